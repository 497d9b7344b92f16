//! A connection for everything that is not an operation on a claim. All callers share it, and it is reopened when it is lost.

use std::sync::Arc;

use oncegate_store::StoreError;
use tokio::sync::Mutex;
use tokio_postgres::Row;

use crate::fault::Fault;
use crate::link::{Link, Params};
use crate::server::{ANSWERED_WITHIN, STATEMENT_WITHIN, Server};

pub(crate) struct Desk {
    server: Arc<Server>,
    link: Mutex<Option<Arc<Link>>>,
    /// All statements on this connection are index probes.
    probes: bool,
}

impl Desk {
    pub fn new(server: Arc<Server>) -> Desk {
        Desk { server, link: Mutex::new(None), probes: false }
    }

    /// For statements that run all the time, whatever the tables' size.
    pub fn for_probes(server: Arc<Server>) -> Desk {
        Desk { probes: true, ..Desk::new(server) }
    }

    pub fn injected_time(&self) -> Option<i64> {
        self.server.injected_time()
    }

    /// The connection. While the server is away, callers share one attempt to connect instead of waiting for each other's attempts.
    pub async fn link(&self) -> Result<Arc<Link>, Fault> {
        let linked = async {
            let mut slot = self.link.lock().await;
            if let Some(link) = slot.as_ref().filter(|link| link.is_usable()) {
                return Ok(link.clone());
            }
            *slot = None;
            let server = self.server.clone();
            let link = if self.probes { Link::open_for_probes(server).await? } else { Link::open(server).await? };
            let link = Arc::new(link);
            *slot = Some(link.clone());
            Ok(link)
        };
        let waited = tokio::time::timeout(STATEMENT_WITHIN, linked).await;
        waited.unwrap_or_else(|_| Err(Fault::silent_for(STATEMENT_WITHIN)))
    }

    /// Runs a statement that may run twice: if the connection turns out to be lost, it is retried over a new one. However slow the
    /// network is, the caller is answered in time.
    pub async fn ask(&self, sql: &'static str, params: Params<'_>) -> Result<Vec<Row>, Fault> {
        let asked = async {
            let link = self.link().await?;
            let was_closed = |fault: &Fault| matches!(fault, Fault::Gone(_)) && link.client.is_closed();
            match link.query(sql, params).await {
                Err(fault) if was_closed(&fault) => self.link().await?.query(sql, params).await,
                answered => answered,
            }
        };
        let answered = tokio::time::timeout(ANSWERED_WITHIN, asked).await;
        answered.unwrap_or_else(|_| Err(Fault::silent_for(ANSWERED_WITHIN)))
    }

    /// Runs a statement that must not run twice.
    pub async fn tell(&self, sql: &'static str, params: Params<'_>) -> Result<u64, StoreError> {
        let told = async {
            let link = self.link().await?;
            let statement = link.prepared(sql).await?;
            link.within(link.client.execute(&statement, params)).await.map_err(Fault::of_commit)
        };
        let told = tokio::time::timeout(ANSWERED_WITHIN, told).await;
        Ok(told.unwrap_or_else(|_| Err(Fault::silent_for(ANSWERED_WITHIN).of_commit()))?)
    }

    pub async fn close(&self) {
        *self.link.lock().await = None;
    }
}

/// The result of a statement that counts.
pub(crate) fn counted(rows: &[Row]) -> usize {
    let count = rows.first().map_or(0, |row| row.get::<_, i64>(0));
    usize::try_from(count).expect("a count is not negative")
}
