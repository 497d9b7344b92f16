//! One connection, its prepared statements, and the time limit for every statement.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::error::Severity;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Row, Statement};

use crate::fault::Fault;
use crate::health::Identity;
use crate::server::{STATEMENT_WITHIN, Server};

pub(crate) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// One connection. Dropping it closes its session, and the server undoes what was not committed.
pub(crate) struct Connection {
    pub client: Client,
    pub server: Arc<Server>,
    /// The server that the connection leads to: another one after a restart or a failover.
    pub identity: Identity,
    /// The generation of the server. A connection to an earlier generation is of no more use.
    pub generation: u64,
    statements: Mutex<HashMap<&'static str, Statement>>,
    _driver: AbortOnDrop,
    /// Closes when the driver ends.
    driven: watch::Receiver<()>,
    /// A statement got no answer, so it is unclear to which statement the next answer would belong.
    is_broken: AtomicBool,
    /// The server has sent a warning that has not been checked yet.
    was_warned: Arc<AtomicBool>,
}

/// Statements that run all the time are planned once, maybe while the tables are still empty. All of them are index probes, row by row,
/// whatever the tables' size. A plan that reads a whole table would be wrong from then on.
const PLANNING: &str = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_hashjoin = off;
    SET enable_mergejoin = off";

impl Connection {
    /// A connection for statements that run all the time, whatever the tables' size.
    pub async fn open_for_probes(server: Arc<Server>) -> Result<Connection, Fault> {
        let connection = Connection::open(server).await?;
        connection.within(connection.client.batch_execute(PLANNING)).await?;
        Ok(connection)
    }

    pub async fn open(server: Arc<Server>) -> Result<Connection, Fault> {
        let (client, mut driven_by) = server.connect().await?;
        let (driving, driven) = watch::channel(());
        let was_warned = Arc::new(AtomicBool::new(false));
        let warned = was_warned.clone();
        let driver = tokio::spawn(async move {
            // The client reports the error to its next caller.
            while let Some(Ok(message)) = poll_fn(|context| driven_by.poll_message(context)).await {
                if let AsyncMessage::Notice(notice) = message
                    && notice.parsed_severity() == Some(Severity::Warning)
                {
                    warned.store(true, Ordering::SeqCst);
                }
            }
            drop(driving);
        });
        // Aborted when the connection is dropped, also if the session cannot begin.
        let driver = AbortOnDrop(driver);
        let identity = server.begin_session(&client).await?;
        let generation = server.health.met(&identity)?;
        let (statements, is_broken) = (Mutex::default(), AtomicBool::new(false));
        Ok(Connection {
            client,
            server,
            identity,
            generation,
            statements,
            _driver: driver,
            driven,
            is_broken,
            was_warned,
        })
    }

    pub fn is_usable(&self) -> bool {
        !self.is_broken.load(Ordering::Relaxed) && !self.client.is_closed() && self.is_current()
    }

    /// False if a later connection has met another server: this server may be a primary that was replaced.
    pub fn is_current(&self) -> bool {
        self.generation == self.server.health.generation()
    }

    /// Commits. Returns true if the commit is as durable as the server's settings say. COMMIT succeeds with a warning if its wait for a
    /// standby was cancelled: then the standby may not have the commit.
    pub async fn commit(&self) -> Result<bool, Fault> {
        self.was_warned.store(false, Ordering::SeqCst);
        self.within(self.client.batch_execute("COMMIT")).await?;
        // The warning arrives before the answer.
        Ok(!self.was_warned.load(Ordering::SeqCst))
    }

    /// Marks the connection as broken, so that no more statements use it.
    pub fn give_up(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
    }

    /// Returns when the connection is lost, or when this replica has met another server.
    pub async fn closed(&self) {
        let mut driven = self.driven.clone();
        let lost = async { while driven.changed().await.is_ok() {} };
        tokio::select! {
            () = lost => {}
            () = self.server.health.met_after(self.generation) => {}
        }
    }

    /// The prepared statement for this text, prepared on first use.
    pub async fn prepared(&self, sql: &'static str) -> Result<Statement, Fault> {
        let known = || self.statements.lock().expect("no holder of this lock panics");
        if let Some(statement) = known().get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.within(self.client.prepare(sql)).await?;
        known().insert(sql, statement.clone());
        Ok(statement)
    }

    pub async fn query(&self, sql: &'static str, params: Params<'_>) -> Result<Vec<Row>, Fault> {
        let statement = self.prepared(sql).await?;
        self.within(self.client.query(&statement, params)).await
    }

    /// Waits for an answer for a limited time. After that it gives up the connection, too.
    pub async fn within<T>(&self, answer: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Fault> {
        let answered = match tokio::time::timeout(STATEMENT_WITHIN, answer).await {
            Ok(answered) => answered.map_err(Fault::from),
            Err(_) => Err(Fault::silent_for(STATEMENT_WITHIN)),
        };
        if let Err(Fault::Gone(_)) = answered {
            self.give_up();
        }
        answered
    }
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
