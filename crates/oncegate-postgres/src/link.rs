//! One connection, its prepared statements, and the time limit on everything that is asked of it.

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

/// Letting go of a link closes its connection: the server undoes what was not committed.
pub(crate) struct Link {
    pub client: Client,
    pub server: Arc<Server>,
    /// Which server it leads to: another one after a restart or a failover.
    pub identity: Identity,
    /// Counts the servers that this replica has met. A link to an earlier one is of no more use.
    pub generation: u64,
    statements: Mutex<HashMap<&'static str, Statement>>,
    _driver: AbortOnDrop,
    /// Ends with the driver.
    driven: watch::Receiver<()>,
    /// Something was asked and not answered: nobody knows what the next answer would be to.
    is_broken: AtomicBool,
    /// The server has warned, and nothing has been asked about it.
    was_warned: Arc<AtomicBool>,
}

/// What is asked all day is planned once, maybe while the tables are still empty. All of it is probes of indexes, one
/// row after the other, whatever the tables' size; a plan that reads a whole table would be wrong ever after.
const PLANNING: &str = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_hashjoin = off;
    SET enable_mergejoin = off";

impl Link {
    /// A connection for statements that are asked all day, whatever the tables' size.
    pub async fn open_for_probes(server: Arc<Server>) -> Result<Link, Fault> {
        let link = Link::open(server).await?;
        link.within(link.client.batch_execute(PLANNING)).await?;
        Ok(link)
    }

    pub async fn open(server: Arc<Server>) -> Result<Link, Fault> {
        let (client, mut connection) = server.connect().await?;
        let (driving, driven) = watch::channel(());
        let was_warned = Arc::new(AtomicBool::new(false));
        let warned = was_warned.clone();
        let driver = tokio::spawn(async move {
            // What broke it is told by the client to the next one that asks.
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notice(notice) = message
                    && notice.parsed_severity() == Some(Severity::Warning)
                {
                    warned.store(true, Ordering::SeqCst);
                }
            }
            drop(driving);
        });
        // Aborted with the link, also where the session cannot begin.
        let driver = AbortOnDrop(driver);
        let identity = server.begin_session(&client).await?;
        let generation = server.health.met(&identity)?;
        let (statements, is_broken) = (Mutex::default(), AtomicBool::new(false));
        Ok(Link { client, server, identity, generation, statements, _driver: driver, driven, is_broken, was_warned })
    }

    pub fn is_usable(&self) -> bool {
        !self.is_broken.load(Ordering::Relaxed) && !self.client.is_closed() && self.is_current()
    }

    /// Not if a later connection has met another server: this one may be a primary that was replaced.
    pub fn is_current(&self) -> bool {
        self.generation == self.server.health.generation()
    }

    /// COMMIT succeeds with a warning where its wait for a standby was cancelled: the standby may not have it. True: it is as durable as the
    /// server's settings say.
    pub async fn commit(&self) -> Result<bool, Fault> {
        self.was_warned.store(false, Ordering::SeqCst);
        self.within(self.client.batch_execute("COMMIT")).await?;
        // The warning comes before the answer.
        Ok(!self.was_warned.load(Ordering::SeqCst))
    }

    /// Nothing more is asked over this connection.
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

    /// The statement of this text, prepared on first use.
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

    /// Gives up on an answer after a while, and on the connection with it.
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
