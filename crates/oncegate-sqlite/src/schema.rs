//! The schema and its steps. The file's `user_version` says which steps were applied.

use oncegate_store::{Migration, StoreError};
use rusqlite::{Connection, TransactionBehavior, params};

use crate::store_error;

/// Each step with the oldest build that still runs on a file with that step.
const STEPS: &[(&str, &str, i64)] = &[
    ("ledger", include_str!("../migrations/0001_ledger.sql"), 1),
    ("appended", include_str!("../migrations/0002_appended.sql"), 2),
    ("books", include_str!("../migrations/0003_books.sql"), 3),
    ("lanes", include_str!("../migrations/0004_lanes.sql"), 4),
    ("ends", include_str!("../migrations/0005_ends.sql"), 5),
    // Earlier builds use the wall clock, so beside this build they could own a claim that another process owns.
    ("clock", include_str!("../migrations/0006_clock.sql"), 6),
    ("keys", include_str!("../migrations/0007_keys.sql"), 6),
];

/// All steps, and whether a file at `version` has them.
pub fn migrations(version: i64) -> Vec<Migration> {
    (1..)
        .zip(STEPS)
        .map(|(version_of_step, &(name, sql, oldest_build))| Migration {
            version: version_of_step,
            name,
            sql,
            applied: version_of_step <= version,
            oldest_build,
        })
        .collect()
}

const NOTE_STEP: &str = "INSERT INTO schema_steps VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
/// Finds a step that this build is too old for.
const TOO_NEW: &str = "SELECT 1 FROM schema_steps WHERE version > ?1 AND oldest_build > ?1";

/// The newest step that this build knows, which is the build's own name.
pub fn newest() -> i64 {
    STEPS.len() as i64
}

/// Whether every newer step allows this build, so that processes that share a file can be upgraded one by one.
fn runs_on(connection: &Connection, build: i64) -> rusqlite::Result<bool> {
    let lists_steps = connection.table_exists(None::<&str>, "schema_steps")?;
    Ok(lists_steps && !connection.prepare(TOO_NEW)?.exists([build])?)
}

pub fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Applies the missing steps in one transaction. Without `migrate` it fails if steps are missing.
pub fn prepare(connection: &mut Connection, migrate: bool) -> Result<(), StoreError> {
    // Immediate, so that of two processes that open a new file at once, the second finds the steps applied.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(store_error)?;
    let current = version(&transaction).map_err(store_error)?;
    let newest = newest();
    if current > newest && !runs_on(&transaction, newest).map_err(store_error)? {
        return Err(StoreError::Refused(format!(
            "the file's schema is version {current}; this program knows versions up to {newest}. \
             hint: run the newer oncegate that wrote it"
        )));
    }
    if current < newest && !migrate {
        return Err(StoreError::Refused(format!(
            "the file's schema is version {current} of {newest}. hint: oncegate migrate"
        )));
    }
    for step in migrations(current).into_iter().filter(|step| !step.applied) {
        transaction.execute_batch(step.sql).map_err(store_error)?;
        transaction.pragma_update(None, "user_version", step.version).map_err(store_error)?;
    }
    if current < newest {
        for Migration { version, name, oldest_build, .. } in migrations(newest) {
            transaction.execute(NOTE_STEP, params![version, name, oldest_build]).map_err(store_error)?;
        }
    }
    transaction.commit().map_err(store_error)
}
