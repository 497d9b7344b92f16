//! Hearing of claims that other replicas settle, and of jobs that they put into the queue.
//!
//! One connection listens. Of jobs replicas tell each other after the COMMIT, of many at once: a NOTIFY within it would hold
//! up everybody's. Who dies before it has told leaves them to be found by a look. Whatever may have been missed while it was not there wakes everybody once.

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

use crate::desk::Desk;
use crate::fault::Fault;
use crate::server::{CONNECT_PAUSE, Raw, STATEMENT_WITHIN, Server};

const TELL: &str = "SELECT pg_notify($1, $2)";

/// A connection that only listens is not seen to break: it is asked something from time to time.
const PING_EVERY: Duration = Duration::from_secs(5);

/// Others are told of jobs that are due within this. Everybody looks at the queue that often anyway.
const SOON: Duration = Duration::from_millis(1100);
/// Between two announcements.
const TELL_PAUSE: Duration = Duration::from_millis(5);
/// Of one announcement; the server takes no more than 8,000.
const TELL_BYTES_MAX: usize = 7000;

/// Where settled claims and new jobs are announced, and those in this process who want to hear of them.
#[derive(Debug)]
pub(crate) struct Channel {
    name: String,
    /// Of jobs.
    jobs_name: String,
    waiters: Mutex<Vec<Arc<Waiters>>>,
    /// Kinds of jobs that the others have not been told of.
    untold: Mutex<BTreeSet<String>>,
    some_untold: Notify,
    /// By which we know our own announcements.
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

    /// This was committed, by a decision of this time.
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

    /// Tells the others of what is due soon, for as long as the store is open.
    pub async fn keep_telling(&self, desk: &Desk) {
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

    /// Who told, and kinds of jobs.
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

    /// `workspace id`, as `replace_claims.sql` writes it. Anybody may write to a channel: what is not ours is ignored.
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

/// Listens for as long as the store is open: whoever spawned this aborts it.
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
