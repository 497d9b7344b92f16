//! What went wrong between the store and the server, as far as it matters for the next step.

use std::error::Error as _;
use std::time::Duration;

use oncegate_store::StoreError;
use tokio_postgres::error::{Severity, SqlState};

#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The connection is lost or unusable. What was not committed is not written.
    Gone(String),
    /// The server rejected the data of a statement. A retry would not help.
    Data(String),
    /// The server undid the transaction in favour of another one. A retry helps.
    Conflict(String),
    /// The server cannot do it at present: no disk space, no privilege, no such table, no time.
    Unable(String),
    /// The connection was lost during a COMMIT: the outcome is unknown.
    Unknown(String),
}

impl Fault {
    pub fn silent_for(limit: Duration) -> Fault {
        Fault::Gone(format!("no answer within {limit:?}"))
    }

    /// Converts a fault that happened while a COMMIT was under way.
    pub fn of_commit(self) -> Fault {
        match self {
            Fault::Gone(why) => Fault::Unknown(why),
            fault => fault,
        }
    }

    /// Adds how many connections a replica needs, if the server has none left.
    pub fn if_too_many_connections(self, needed: usize) -> Fault {
        let code = format!("({})", SqlState::TOO_MANY_CONNECTIONS.code());
        match self {
            Fault::Gone(why) if why.contains(&code) => Fault::Gone(format!(
                "this replica needs {needed} connections, and the server has too few left: {why}. hint: raise \
                 max_connections (or the limit of the role or the database) to {needed} for each replica, and 3 more"
            )),
            fault => fault,
        }
    }

    pub fn message(&self) -> &str {
        match self {
            Fault::Gone(why) | Fault::Data(why) | Fault::Conflict(why) | Fault::Unable(why) | Fault::Unknown(why) => {
                why
            }
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
        // This server became a standby. The next connection may find the server that took over.
        if *db.code() == SqlState::READ_ONLY_SQL_TRANSACTION {
            return Fault::Gone(why);
        }
        if [SqlState::DUPLICATE_PSTATEMENT, SqlState::INVALID_SQL_STATEMENT_NAME].contains(db.code()) {
            return Fault::Gone(format!("{why}. Is there a connection pooler in transaction mode in between?"));
        }
        // Another transaction wrote the unique value first. The next step follows from what it wrote.
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

/// For statements that write nothing, or nothing that was promised to a caller.
impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Data(why) => StoreError::Refused(why),
            Fault::Unknown(why) => StoreError::Unknown(why),
            Fault::Gone(why) | Fault::Conflict(why) | Fault::Unable(why) => StoreError::Unavailable(why),
        }
    }
}

/// The error and its causes. For an error reported by the server, the server's own message.
pub(crate) fn describe(error: &tokio_postgres::Error) -> String {
    if let Some(db) = error.as_db_error() {
        return format!("{} ({})", db.message(), db.code().code());
    }
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
