//! Hearing of claims that other replicas settle.
//!
//! One connection listens. Whatever may have been missed while it was not there wakes everybody once.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use oncegate_core::{ClaimId, WorkspaceName};
use oncegate_store::Waiters;
use tokio::time::sleep;
use tokio_postgres::{AsyncMessage, Client};

use crate::fault::Fault;
use crate::server::{CONNECT_PAUSE, Raw, STATEMENT_WITHIN, Server};

/// A connection that only listens is not seen to break: it is asked something from time to time.
const PING_EVERY: Duration = Duration::from_secs(5);

/// Where settled claims are announced, and those in this process who want to hear of them.
#[derive(Debug)]
pub(crate) struct Channel {
    name: String,
    waiters: Mutex<Vec<Arc<Waiters>>>,
}

impl Channel {
    pub fn of_schema(schema: &str) -> Channel {
        Channel { name: format!("oncegate_{schema}"), waiters: Mutex::default() }
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
                Some(Ok(AsyncMessage::Notification(heard))) => channel.hear(heard.payload()),
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
    let mut kept = server.begin_session(client).await;
    if kept.is_ok() {
        kept = ask(client, &format!("LISTEN \"{}\"", channel.name())).await;
        channel.wake_all();
    }
    loop {
        match kept {
            Ok(()) => sleep(PING_EVERY).await,
            Err(fault) => return fault,
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
