//! What went wrong between us and the server, as far as it matters for what to do next.

use std::error::Error as _;
use std::time::Duration;

use oncegate_store::StoreError;
use tokio_postgres::error::{Severity, SqlState};

#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The connection is lost, or as good as lost. What was not committed is not written.
    Gone(String),
    /// The server would not take the data of a statement, and never will.
    Data(String),
    /// The server undid us in favour of somebody else. Trying again helps.
    Conflict(String),
    /// The server cannot do it at present: no room, no privilege, no such table, no time.
    Unable(String),
}

impl Fault {
    pub fn silent_for(limit: Duration) -> Fault {
        Fault::Gone(format!("no answer within {limit:?}"))
    }

    pub fn message(&self) -> &str {
        match self {
            Fault::Gone(why) | Fault::Data(why) | Fault::Conflict(why) | Fault::Unable(why) => why,
        }
    }
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        let why = describe(&error);
        let Some(db) = error.as_db_error() else {
            return Fault::Gone(why);
        };
        if matches!(db.parsed_severity(), Some(Severity::Fatal | Severity::Panic)) {
            return Fault::Gone(why);
        }
        // A server that became a standby: the next connection may find the one that took over.
        if *db.code() == SqlState::READ_ONLY_SQL_TRANSACTION {
            return Fault::Gone(why);
        }
        // Somebody else wrote what must be there once; what we do next follows from what they wrote.
        if *db.code() == SqlState::UNIQUE_VIOLATION {
            return Fault::Conflict(why);
        }
        match db.code().code().get(..2) {
            Some("22" | "23" | "54") => Fault::Data(why),
            Some("40") => Fault::Conflict(why),
            _ => Fault::Unable(why),
        }
    }
}

/// For statements that write nothing, or nothing that anybody was promised.
impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Data(why) => StoreError::Refused(why),
            Fault::Gone(why) | Fault::Conflict(why) | Fault::Unable(why) => StoreError::Unavailable(why),
        }
    }
}

/// The error and its causes; of the server's own errors, what the server said.
pub(crate) fn describe(error: &tokio_postgres::Error) -> String {
    if let Some(db) = error.as_db_error() {
        return format!("{} ({})", db.message(), db.code().code());
    }
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
