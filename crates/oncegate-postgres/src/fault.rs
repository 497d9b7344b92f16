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
    /// The connection was lost in a COMMIT: it may be written.
    Unknown(String),
}

impl Fault {
    pub fn silent_for(limit: Duration) -> Fault {
        Fault::Gone(format!("no answer within {limit:?}"))
    }

    /// What a fault means where a COMMIT was under way.
    pub fn of_commit(self) -> Fault {
        match self {
            Fault::Gone(why) => Fault::Unknown(why),
            fault => fault,
        }
    }

    /// Says how many connections a replica needs, where the server has none left.
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
        // A server that became a standby: the next connection may find the one that took over.
        if *db.code() == SqlState::READ_ONLY_SQL_TRANSACTION {
            return Fault::Gone(why);
        }
        if [SqlState::DUPLICATE_PSTATEMENT, SqlState::INVALID_SQL_STATEMENT_NAME].contains(db.code()) {
            return Fault::Gone(format!("{why}. Is there a connection pooler in transaction mode in between?"));
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
            Fault::Unknown(why) => StoreError::Unknown(why),
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
