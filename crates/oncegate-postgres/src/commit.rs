//! COMMIT, and what to do when its answer does not arrive.
//!
//! If a connection breaks while COMMIT is under way, the transaction is committed or it is not, and the caller's answer depends on
//! which. Each transaction writes a random id into the mark of its connection. A new connection looks the mark up: the id is there, or
//! the transaction did not commit. Nothing else is evidence. A larger token or version may come from another replica. After a crash or
//! a failover another transaction may have the same number.
//!
//! A commit counts as unknown while the server has it but has not replicated it to the standbys that a COMMIT waits for.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::connection::Connection;
use crate::fault::Fault;
use crate::mark::{Found, find};
use crate::server::{ANSWERED_WITHIN, CONNECT_PAUSE, Server};
use crate::written::Seal;

const CONFIRM_COMMIT: &str = include_str!("../sql/confirm_commit.sql");
const END_BACKEND: &str = include_str!("../sql/end_backend.sql");

/// The pause between two lookups of a transaction that is still in progress.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

pub(crate) enum Outcome {
    Committed,
    /// Nothing was written.
    Undone,
    /// The outcome could not be found out.
    Unknown(String),
}

/// Commits, and finds out whether the COMMIT succeeded. The connection may be unusable afterwards.
pub(crate) async fn commit(connection: &Connection, seal: &Seal) -> Outcome {
    // No caller waits longer than that.
    let give_up_at = Instant::now() + ANSWERED_WITHIN;
    // A failed COMMIT proves nothing: the server may report an error after it has committed.
    let why = match connection.commit().await {
        Ok(true) if connection.is_current() => return Outcome::Committed,
        Ok(false) => "its wait for a standby was cancelled".to_owned(),
        // The next server may have been promoted without this commit.
        Ok(true) => "the server was replaced meanwhile".to_owned(),
        Err(fault) => format!("it got no answer: {}", fault.message()),
    };
    connection.server.health.doubt();
    tracing::warn!(transaction = seal.transaction, why, "a COMMIT is looked up");
    find_out(&connection.server, seal, give_up_at).await
}

/// Commits a transaction that writes nothing but its mark. Without an answer there is nothing to find out, and no caller waits for
/// longer.
pub(crate) async fn confirm(connection: &Connection) -> Outcome {
    match connection.commit().await {
        Ok(true) if connection.is_current() => Outcome::Committed,
        Ok(false) => {
            connection.server.health.doubt();
            Outcome::Unknown("the wait of a COMMIT for its standby was cancelled".into())
        }
        // The answer of a replaced server says nothing about the next one.
        Ok(true) => Outcome::Undone,
        Err(fault) => {
            connection.server.health.doubt();
            Outcome::Unknown(format!("the server does not confirm its commits: {}", fault.message()))
        }
    }
}

async fn find_out(server: &Arc<Server>, seal: &Seal, give_up_at: Instant) -> Outcome {
    let mut last_why = String::from("the transaction stays in progress");
    while Instant::now() < give_up_at {
        match Connection::open(server.clone()).await {
            Ok(connection) => match look(&connection, seal, give_up_at).await {
                Ok(Some(outcome)) => return outcome,
                Ok(None) => {}
                Err(fault) => last_why = fault.message().to_owned(),
            },
            Err(fault) => last_why = fault.message().to_owned(),
        }
        sleep(CONNECT_PAUSE).await;
    }
    Outcome::Unknown(format!("the connection broke in COMMIT, and its outcome was not found out: {last_why}"))
}

/// Looks the transaction up until it is over; `None` if it is not over in time.
async fn look(connection: &Connection, seal: &Seal, give_up_at: Instant) -> Result<Option<Outcome>, Fault> {
    while Instant::now() < give_up_at {
        match find(connection, &seal.mark).await? {
            Found::Committed => {
                connection.query(CONFIRM_COMMIT, &[]).await?;
                // The next server may have been promoted without this commit, so the next connection asks that server.
                return Ok(connection.is_current().then_some(Outcome::Committed));
            }
            Found::Undone => return Ok(Some(Outcome::Undone)),
            Found::Open => {
                connection.query(END_BACKEND, &[&seal.backend, &seal.transaction]).await?;
                sleep(LOOK_PAUSE).await;
            }
            Found::Gone => {
                return Ok(Some(Outcome::Unknown("the mark of the connection that lost its COMMIT is gone".into())));
            }
        }
    }
    Ok(None)
}
