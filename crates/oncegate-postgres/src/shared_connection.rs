//! A connection for everything that is not an operation on a claim. All callers share it, and it is reopened when it is lost.

use std::sync::Arc;

use oncegate_store::StoreError;
use tokio::sync::Mutex;
use tokio_postgres::Row;

use crate::connection::{Connection, Params};
use crate::fault::Fault;
use crate::server::{ANSWERED_WITHIN, STATEMENT_WITHIN, Server};

pub(crate) struct SharedConnection {
    server: Arc<Server>,
    connection: Mutex<Option<Arc<Connection>>>,
    /// All statements on this connection are index probes.
    probes: bool,
}

impl SharedConnection {
    pub fn new(server: Arc<Server>) -> SharedConnection {
        SharedConnection { server, connection: Mutex::new(None), probes: false }
    }

    /// For statements that run all the time, whatever the tables' size.
    pub fn for_probes(server: Arc<Server>) -> SharedConnection {
        SharedConnection { probes: true, ..SharedConnection::new(server) }
    }

    pub fn injected_time(&self) -> Option<i64> {
        self.server.injected_time()
    }

    /// The connection. While the server is away, callers share one attempt to connect instead of waiting for each other's attempts.
    pub async fn connection(&self) -> Result<Arc<Connection>, Fault> {
        let linked = async {
            let mut slot = self.connection.lock().await;
            if let Some(connection) = slot.as_ref().filter(|connection| connection.is_usable()) {
                return Ok(connection.clone());
            }
            *slot = None;
            let server = self.server.clone();
            let connection =
                if self.probes { Connection::open_for_probes(server).await? } else { Connection::open(server).await? };
            let connection = Arc::new(connection);
            *slot = Some(connection.clone());
            Ok(connection)
        };
        let waited = tokio::time::timeout(STATEMENT_WITHIN, linked).await;
        waited.unwrap_or_else(|_| Err(Fault::silent_for(STATEMENT_WITHIN)))
    }

    /// Runs a statement that may run twice: if the connection turns out to be lost, it is retried over a new one. However slow the
    /// network is, the caller is answered in time.
    pub async fn ask(&self, sql: &'static str, params: Params<'_>) -> Result<Vec<Row>, Fault> {
        let asked = async {
            let connection = self.connection().await?;
            let was_closed = |fault: &Fault| matches!(fault, Fault::Gone(_)) && connection.client.is_closed();
            match connection.query(sql, params).await {
                Err(fault) if was_closed(&fault) => self.connection().await?.query(sql, params).await,
                answered => answered,
            }
        };
        let answered = tokio::time::timeout(ANSWERED_WITHIN, asked).await;
        answered.unwrap_or_else(|_| Err(Fault::silent_for(ANSWERED_WITHIN)))
    }

    /// Runs a statement that must not run twice.
    pub async fn tell(&self, sql: &'static str, params: Params<'_>) -> Result<u64, StoreError> {
        let told = async {
            let connection = self.connection().await?;
            let statement = connection.prepared(sql).await?;
            connection.within(connection.client.execute(&statement, params)).await.map_err(Fault::of_commit)
        };
        let told = tokio::time::timeout(ANSWERED_WITHIN, told).await;
        Ok(told.unwrap_or_else(|_| Err(Fault::silent_for(ANSWERED_WITHIN).of_commit()))?)
    }

    pub async fn close(&self) {
        *self.connection.lock().await = None;
    }
}

/// The result of a statement that counts.
pub(crate) fn counted(rows: &[Row]) -> usize {
    let count = rows.first().map_or(0, |row| row.get::<_, i64>(0));
    usize::try_from(count).expect("a count is not negative")
}
