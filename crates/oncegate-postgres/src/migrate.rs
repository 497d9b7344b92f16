//! The schema, step by step.
//!
//! All pending steps are one transaction under a lock, so that replicas that start together take turns, and
//! one that is killed half-way leaves the schema as it was.

use std::collections::BTreeSet;
use std::sync::Arc;

use oncegate_store::{Migration, StoreError};

use crate::fault::Fault;
use crate::link::Link;
use crate::server::{Options, Server};

const STEPS: [(i64, &str, &str); 2] = [
    (1, "claims", include_str!("../migrations/0001_claims.sql")),
    (2, "keyring", include_str!("../migrations/0002_keyring.sql")),
];

/// The version that this build needs.
pub(crate) const SCHEMA_VERSION: i64 = STEPS[STEPS.len() - 1].0;

/// Names the lock to all who migrate in this database ("oncegate" in ASCII). Only migrations take it.
const LOCK: i64 = 0x6f6e_6365_6761_7465;

/// All steps of the schema, and which of them the database has had. Changes nothing.
pub async fn migrations(url: &str, options: &Options) -> Result<Vec<Migration>, StoreError> {
    let link = Link::open(Arc::new(Server::new(url, options)?)).await?;
    Ok(list(&applied(&link).await?))
}

/// Applies the steps that are pending, and returns them.
pub async fn migrate(url: &str, options: &Options) -> Result<Vec<Migration>, StoreError> {
    let link = Link::open(Arc::new(Server::new(url, options)?)).await?;
    Ok(apply_pending(&link).await?)
}

/// Applies what is pending. The time limits of ordinary statements do not hold here: an index may take its time.
pub(crate) async fn apply_pending(link: &Link) -> Result<Vec<Migration>, Fault> {
    let create_schema = match link.server.schema() {
        Some(schema) => format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\";"),
        None => String::new(),
    };
    let begin = format!(
        "BEGIN; SET LOCAL statement_timeout = 0; SELECT pg_advisory_xact_lock({LOCK}); {create_schema}
         CREATE TABLE IF NOT EXISTS schema_migrations (
             version bigint PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now());"
    );
    link.client.batch_execute(&begin).await?;
    let pending: Vec<Migration> = list(&applied(link).await?).into_iter().filter(|step| !step.applied).collect();
    for Migration { version, name, sql, .. } in &pending {
        let recorded = format!("{sql}; INSERT INTO schema_migrations (version, name) VALUES ({version}, '{name}');");
        link.client.batch_execute(&recorded).await?;
    }
    link.client.batch_execute("COMMIT").await?;
    Ok(pending)
}

/// Refuses a schema that this build cannot work with.
pub(crate) async fn check(link: &Link) -> Result<(), StoreError> {
    let pending: Vec<String> = list(&applied(link).await?)
        .into_iter()
        .filter(|step| !step.applied)
        .map(|step| format!("{:04}_{}", step.version, step.name))
        .collect();
    if pending.is_empty() {
        return Ok(());
    }
    Err(StoreError::Refused(format!(
        "the schema in {} is not up to date; pending: {}; run `oncegate migrate`",
        link.server.place,
        pending.join(", ")
    )))
}

async fn applied(link: &Link) -> Result<BTreeSet<i64>, Fault> {
    let is_there = link.query("SELECT to_regclass('schema_migrations') IS NOT NULL", &[]).await?;
    if !is_there.iter().any(|row| row.get(0)) {
        return Ok(BTreeSet::new());
    }
    let rows = link.query("SELECT version FROM schema_migrations", &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

fn list(applied: &BTreeSet<i64>) -> Vec<Migration> {
    let step = |(version, name, sql)| Migration { version, name, sql, applied: applied.contains(&version) };
    STEPS.into_iter().map(step).collect()
}
