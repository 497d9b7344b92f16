//! Listens for claims that other replicas settle, and for jobs that they enqueue.
//!
//! One connection listens. Replicas announce jobs after the COMMIT, many at once, because a NOTIFY inside the transaction would delay
//! all commits. If a replica dies before it announces its jobs, the other replicas find them when they poll. After a gap in the
//! connection every waiter is woken once, because announcements may have been missed.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use oncegate_core::{ClaimId, Time, WorkspaceName};
use oncegate_store::{Change, Waiters};
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_postgres::{AsyncMessage, Client};
use uuid::Uuid;

use crate::fault::Fault;
use crate::server::{CONNECT_PAUSE, Raw, STATEMENT_WITHIN, Server};
use crate::shared_connection::SharedConnection;

const TELL: &str = "SELECT pg_notify($1, $2)";

/// A connection that only listens does not notice when it breaks, so it runs a statement from time to time.
const PING_EVERY: Duration = Duration::from_secs(5);

/// Jobs that are due within this time are announced to the other replicas. Every replica polls the queue this often anyway.
const SOON: Duration = Duration::from_millis(1100);
/// The pause between two announcements.
const TELL_PAUSE: Duration = Duration::from_millis(5);
/// The size of one announcement; the server accepts at most 8,000 bytes.
const TELL_BYTES_MAX: usize = 7000;

/// The channel on which settled claims and new jobs are announced, and this process's waiters for them.
#[derive(Debug)]
pub(crate) struct Channel {
    name: String,
    /// The channel for jobs.
    jobs_name: String,
    waiters: Mutex<Vec<Arc<Waiters>>>,
    /// Kinds of jobs that have not been announced to the other replicas yet.
    untold: Mutex<BTreeSet<String>>,
    some_untold: Notify,
    /// Identifies our own announcements.
    replica: String,
}

impl Channel {
    pub fn of_schema(schema: &str) -> Channel {
        Channel {
            name: format!("oncegate_{schema}"),
            jobs_name: format!("oncegate_{schema}_jobs"),
            waiters: Mutex::default(),
            untold: Mutex::default(),
            some_untold: Notify::new(),
            replica: Uuid::now_v7().to_string(),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn attach(&self, waiters: Arc<Waiters>) {
        self.waiters().push(waiters);
    }

    fn waiters(&self) -> MutexGuard<'_, Vec<Arc<Waiters>>> {
        self.waiters.lock().expect("no holder of this lock panics")
    }

    /// Wakes waiters after this change was committed. It was decided at `decided_at`.
    pub fn wake_after(&self, change: &Change, decided_at: Time) {
        let Some((kind, at)) = change.wakes() else { return };
        self.waiters().iter().for_each(|waiters| waiters.jobs.ring(kind, at));
        if at < decided_at + SOON {
            let is_new = self.untold().insert(kind.to_owned());
            if is_new {
                self.some_untold.notify_one();
            }
        }
    }

    /// Announces jobs that are due soon to the other replicas, for as long as the store is open.
    pub async fn keep_telling(&self, desk: &SharedConnection) {
        loop {
            self.some_untold.notified().await;
            let kinds: Vec<String> = std::mem::take(&mut *self.untold()).into_iter().collect();
            if kinds.is_empty() {
                continue;
            }
            let told = format!("{}\n{}", self.replica, kinds.join("\n"));
            let told = if told.len() > TELL_BYTES_MAX { format!("{}\n*", self.replica) } else { told };
            if let Err(fault) = desk.ask(TELL, &[&self.jobs_name, &told]).await {
                tracing::debug!(why = fault.message(), "the other replicas were not told of new jobs");
            }
            sleep(TELL_PAUSE).await;
        }
    }

    fn untold(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.untold.lock().expect("no holder of this lock panics")
    }

    /// The payload names the announcing replica and the kinds of jobs.
    fn hear_of_jobs(&self, payload: &str) {
        let mut lines = payload.lines();
        if lines.next() == Some(&self.replica) {
            return;
        }
        for kind in lines {
            self.waiters().iter().for_each(|waiters| match kind {
                "*" => waiters.jobs.ring_all(),
                kind => waiters.jobs.ring(kind, Time::LONG_AGO),
            });
        }
    }

    /// The payload is `workspace id`, as `replace_claims.sql` writes it. Any client may write to a channel, so other payloads are
    /// ignored.
    fn hear(&self, payload: &str) {
        let place = payload
            .split_once(' ')
            .and_then(|(workspace, id)| Some((WorkspaceName::new(workspace).ok()?, ClaimId::parse(id)?)));
        if let Some((workspace, id)) = place {
            self.waiters().iter().for_each(|waiters| waiters.wake(&workspace, id));
        }
    }

    fn wake_all(&self) {
        self.waiters().iter().for_each(|waiters| waiters.wake_all());
    }
}

/// Listens for as long as the store is open. The task that spawned this aborts it.
pub(crate) async fn listen(server: Arc<Server>, channel: Arc<Channel>) {
    loop {
        if let Ok(raw) = server.connect().await {
            let why = listen_on(&server, raw, &channel).await;
            tracing::debug!(why = why.message(), "no longer listening for settled claims; connecting again");
        }
        sleep(CONNECT_PAUSE).await;
    }
}

async fn listen_on(server: &Server, (client, mut connection): Raw, channel: &Channel) -> Fault {
    let hearing = async {
        loop {
            match poll_fn(|cx| connection.poll_message(cx)).await {
                Some(Ok(AsyncMessage::Notification(heard))) => match heard.channel() == channel.name {
                    true => channel.hear(heard.payload()),
                    false => channel.hear_of_jobs(heard.payload()),
                },
                Some(Ok(_)) => {}
                Some(Err(error)) => return Fault::from(error),
                None => return Fault::Gone("the server closed the connection".into()),
            }
        }
    };
    tokio::select! {
        fault = hearing => fault,
        fault = keep_listening(server, &client, channel) => fault,
    }
}

async fn keep_listening(server: &Server, client: &Client, channel: &Channel) -> Fault {
    let generation = match server.begin_session(client).await.and_then(|identity| server.health.met(&identity)) {
        Ok(generation) => generation,
        Err(fault) => return fault,
    };
    let mut kept = ask(client, &format!("LISTEN \"{}\"; LISTEN \"{}\"", channel.name, channel.jobs_name)).await;
    channel.wake_all();
    loop {
        match kept {
            Ok(()) => sleep(PING_EVERY).await,
            Err(fault) => return fault,
        }
        if generation != server.health.generation() {
            return Fault::Gone("the server was replaced by another".into());
        }
        kept = ask(client, "").await;
    }
}

async fn ask(client: &Client, sql: &str) -> Result<(), Fault> {
    match tokio::time::timeout(STATEMENT_WITHIN, client.batch_execute(sql)).await {
        Ok(answered) => Ok(answered?),
        Err(_) => Err(Fault::silent_for(STATEMENT_WITHIN)),
    }
}
