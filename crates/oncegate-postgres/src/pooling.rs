//! Detects connection poolers that give each transaction a different server connection.
//!
//! Prepared statements, session settings and LISTEN belong to one server connection. Behind such a pooler, clients would share them
//! with each other.

use oncegate_store::StoreError;
use tokio_postgres::SimpleQueryMessage;

use crate::connection::Connection;
use crate::fault::Fault;

/// How often to check: other clients of the pooler may hide it by chance.
const LOOKS: usize = 3;

/// Refuses a pooler in transaction mode. Without one, two open connections never share a backend, and each keeps its own. Behind such a
/// pooler a transaction of one connection takes the backend of the other.
pub(crate) async fn refuse_transaction_pooling(one: &Connection, other: &Connection) -> Result<(), StoreError> {
    let mut is_shared = false;
    for _ in 0..LOOKS {
        let before = backend(one, "SELECT pg_backend_pid()").await?;
        let of_other = backend(other, "BEGIN; SELECT pg_backend_pid()").await?;
        is_shared = is_shared || before == of_other || before != backend(one, "SELECT pg_backend_pid()").await?;
        other.within(other.client.batch_execute("ROLLBACK")).await?;
    }
    if is_shared {
        return Err(StoreError::Refused(format!(
            "{} is behind a connection pooler in transaction mode, which Oncegate cannot work with. hint: set \
             `pool_mode = session` for this database (PgBouncer), or name the PostgreSQL server itself in the URL",
            one.server.place
        )));
    }
    Ok(())
}

/// Uses the simple protocol, because such a pooler breaks prepared statements.
async fn backend(connection: &Connection, sql: &str) -> Result<String, Fault> {
    let said = connection.within(connection.client.simple_query(sql)).await?;
    let pid = said.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    pid.ok_or_else(|| Fault::Unable("the server does not say which backend this is".into()))
}
