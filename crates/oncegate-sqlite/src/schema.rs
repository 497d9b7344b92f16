//! The schema and its steps. The file's `user_version` says which were applied.

use oncegate_store::{Migration, StoreError};
use rusqlite::{Connection, TransactionBehavior};

use crate::store_error;

const STEPS: &[(&str, &str)] = &[
    ("ledger", include_str!("../migrations/0001_ledger.sql")),
    ("appended", include_str!("../migrations/0002_appended.sql")),
    ("books", include_str!("../migrations/0003_books.sql")),
    ("lanes", include_str!("../migrations/0004_lanes.sql")),
    ("ends", include_str!("../migrations/0005_ends.sql")),
];

/// All steps, and whether a file at `version` has them.
pub fn migrations(version: i64) -> Vec<Migration> {
    (1..)
        .zip(STEPS)
        .map(|(step, (name, sql))| Migration { version: step, name, sql, applied: step <= version })
        .collect()
}

pub fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Applies what is missing in one transaction, or (not told to) complains.
pub fn prepare(connection: &mut Connection, migrate: bool) -> Result<(), StoreError> {
    // Immediate: of two processes that open a new file at once, the second finds the work done.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(store_error)?;
    let current = version(&transaction).map_err(store_error)?;
    let newest = STEPS.len() as i64;
    if current > newest {
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
    transaction.commit().map_err(store_error)
}
