//! The schema, step by step.
//!
//! All pending steps are one transaction under a lock. So replicas that start together take turns, and a replica that is killed
//! half-way leaves the schema unchanged.

use std::collections::BTreeMap;
use std::sync::Arc;

use oncegate_store::{Migration, StoreError};

use crate::connection::Connection;
use crate::fault::Fault;
use crate::server::{Options, Server};

/// Version, the oldest build that still runs on it, name and statements.
const STEPS: [(i64, i64, &str, &str); 7] = [
    (1, 1, "claims", include_str!("../migrations/0001_claims.sql")),
    (2, 2, "keyring", include_str!("../migrations/0002_keyring.sql")),
    (3, 3, "books", include_str!("../migrations/0003_books.sql")),
    (4, 4, "lanes", include_str!("../migrations/0004_lanes.sql")),
    (5, 5, "ends", include_str!("../migrations/0005_ends.sql")),
    // Earlier builds trust another replica's evidence about a lost COMMIT, so they must not run beside this one.
    (6, 6, "commit_marks", include_str!("../migrations/0006_commit_marks.sql")),
    (7, 6, "keys", include_str!("../migrations/0007_keys.sql")),
];
/// Since this step, the list of steps records which builds run on each.
const OLDEST_BUILD_SINCE: i64 = 6;

const APPLIED_STEPS: &str = include_str!("../sql/applied_steps.sql");
const SCHEMA_STATE: &str = include_str!("../sql/schema_state.sql");
const CREATE_LIST: &str = "CREATE TABLE schema_migrations (
    version bigint PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())";

/// The version that this build needs.
pub(crate) const SCHEMA_VERSION: i64 = STEPS[STEPS.len() - 1].0;

/// The key of the advisory lock for migrations in this database ("oncegate" in ASCII). Only migrations take it.
const LOCK: i64 = 0x6f6e_6365_6761_7465;

/// All steps of the schema, and which of them the database has had. Changes nothing.
pub async fn migrations(url: &str, options: &Options) -> Result<Vec<Migration>, StoreError> {
    let connection = Connection::open(Arc::new(Server::new(url, options)?)).await?;
    Ok(list(&applied(&connection).await?))
}

/// Applies the steps that are pending, and returns them.
pub async fn migrate(url: &str, options: &Options) -> Result<Vec<Migration>, StoreError> {
    let connection = Connection::open(Arc::new(Server::new(url, options)?)).await?;
    apply_pending(&connection).await
}

/// Applies the pending steps. The time limits of ordinary statements do not hold here: an index may take long to build.
pub(crate) async fn apply_pending(connection: &Connection) -> Result<Vec<Migration>, StoreError> {
    let begin = format!("BEGIN; SET LOCAL statement_timeout = 0; SELECT pg_advisory_xact_lock({LOCK});");
    run(connection, &begin).await?;
    let pending = pending(connection).await?;
    if !pending.is_empty() {
        prepare_schema(connection).await?;
    }
    for Migration { version, name, sql, oldest_build, .. } in &pending {
        let row = if *version >= OLDEST_BUILD_SINCE {
            format!("(version, name, oldest_build) VALUES ({version}, '{name}', {oldest_build})")
        } else {
            format!("(version, name) VALUES ({version}, '{name}')")
        };
        run(connection, &format!("{sql}; INSERT INTO schema_migrations {row};")).await?;
    }
    run(connection, "COMMIT").await?;
    Ok(pending)
}

/// Creates the schema and its list of steps if they are missing. Existing ones are not created again, not even with `IF NOT EXISTS`,
/// because that needs the privilege to create anyway.
async fn prepare_schema(connection: &Connection) -> Result<(), StoreError> {
    let Server { schema, place, .. } = &*connection.server;
    let rows = connection.query(SCHEMA_STATE, &[schema]).await?;
    let state = rows.first().ok_or_else(|| Fault::Unable("the server did not tell its schema version".into()))?;
    let (is_there, has_list, role): (bool, bool, &str) = (state.get(0), state.get(1), state.get(2));
    if !is_there {
        let hint = format!("CREATE SCHEMA {schema} AUTHORIZATION \"{role}\"");
        let created = run(connection, &format!("CREATE SCHEMA \"{schema}\"")).await;
        created.map_err(|fault| denied(fault, &format!("create the schema {schema} in {place}"), &hint))?;
    }
    if !has_list {
        let hint = format!("GRANT USAGE, CREATE ON SCHEMA {schema} TO \"{role}\"");
        let created = run(connection, CREATE_LIST).await;
        created.map_err(|fault| denied(fault, &format!("create tables in the schema {schema} of {place}"), &hint))?;
    }
    Ok(())
}

async fn run(connection: &Connection, sql: &str) -> Result<(), Fault> {
    Ok(connection.client.batch_execute(sql).await?)
}

fn denied(fault: Fault, what: &str, hint: &str) -> StoreError {
    match fault {
        Fault::Unable(why) => StoreError::Refused(format!("cannot {what}: {why}. hint: as its owner, run: {hint}")),
        fault => fault.into(),
    }
}

/// Refuses a schema that this build cannot use.
pub(crate) async fn check(connection: &Connection) -> Result<(), StoreError> {
    let pending = pending(connection).await?;
    if pending.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = pending.iter().map(|step| format!("{:04}_{}", step.version, step.name)).collect();
    Err(StoreError::Refused(format!(
        "the schema {} in {} is not up to date; pending: {}; run `oncegate migrate`",
        connection.server.schema,
        connection.server.place,
        names.join(", ")
    )))
}

/// The steps that the schema has not had. A schema with steps unknown to this build is accepted if each of them says that this build
/// still runs on it. So replicas can be upgraded one by one.
async fn pending(connection: &Connection) -> Result<Vec<Migration>, StoreError> {
    let applied = applied(connection).await?;
    let is_too_new =
        |(version, oldest_build): &(&i64, &i64)| **version > SCHEMA_VERSION && **oldest_build > SCHEMA_VERSION;
    if let Some((newest, _)) = applied.iter().rfind(is_too_new) {
        let Server { schema, place, .. } = &*connection.server;
        return Err(StoreError::Refused(format!(
            "the schema {schema} in {place} is version {newest}; this program knows versions up to {SCHEMA_VERSION}. \
             hint: run the newer oncegate that wrote it"
        )));
    }
    Ok(list(&applied).into_iter().filter(|step| !step.applied).collect())
}

/// The steps that the schema has had, and the oldest build that runs on each.
async fn applied(connection: &Connection) -> Result<BTreeMap<i64, i64>, Fault> {
    let is_there = connection.query("SELECT to_regclass('schema_migrations') IS NOT NULL", &[]).await?;
    if !is_there.iter().any(|row| row.get(0)) {
        return Ok(BTreeMap::new());
    }
    let rows = connection.query(APPLIED_STEPS, &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

fn list(applied: &BTreeMap<i64, i64>) -> Vec<Migration> {
    let step = |(version, oldest_build, name, sql)| Migration {
        version,
        name,
        sql,
        applied: applied.contains_key(&version),
        oldest_build,
    };
    STEPS.into_iter().map(step).collect()
}
