//! The intake of one message from any broker: its events are committed before it is acknowledged.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use oncegate::sagas::Event;
use oncegate::{StoreError, WorkspaceName};
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::crash;
use crate::events::{Media, Received, is_good_id, read};
use crate::problem::Problem;
use crate::sagas::Director;
use crate::tenants::Tenant;

/// The pause between two attempts to connect.
const RECONNECT_MIN: Duration = Duration::from_millis(200);
const RECONNECT_MAX: Duration = Duration::from_secs(5);
/// The pause between two attempts to commit a message's events while the store is unreachable. The message is not given
/// back meanwhile: a broker may count its deliveries and drop it.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// A message that is not acknowledged yet.
#[async_trait]
pub trait Incoming: Send + Sync + 'static {
    fn body(&self) -> &[u8];

    fn content_type(&self) -> Option<&str>;

    /// The id that the broker or the sender gave the message.
    fn id(&self) -> Option<&str>;

    /// Tells the broker that the message is still being worked on.
    async fn in_progress(&self) {}

    /// Returns whether the broker can have received the acknowledgement.
    async fn acknowledge(&self) -> bool;

    /// Tells the broker not to deliver the message again.
    async fn reject(&self);
}

/// A queue or stream of a broker.
#[async_trait]
pub trait Source: Send + 'static {
    /// Connects, and starts a task for each message until the connection is gone. The connection is kept until the next
    /// one, or the end.
    async fn consume(&mut self, intake: &Arc<Intake>, at_work: &mut JoinSet<()>) -> Broken;
}

/// The destination of a queue's messages.
pub struct Intake {
    pub queue: String,
    pub workspace: WorkspaceName,
    /// The most messages in progress at once. The rest wait at the broker.
    pub at_once: u16,
    /// A larger message is not even parsed.
    pub body_max: usize,
    pub director: Arc<Director>,
    /// Events of a queue wait for permits of their workspace, as events over HTTP do.
    pub tenant: Arc<Tenant>,
    pub stopped: watch::Receiver<bool>,
}

impl Intake {
    /// Returns when the intake has to stop.
    pub async fn stopped(&self) {
        // A dropped sender means stop as well.
        let _ = self.stopped.clone().wait_for(|stopped| *stopped).await;
    }

    /// Consumes until it has to stop, and reconnects when the connection breaks.
    pub async fn keep_consuming(self: Arc<Self>, mut source: impl Source) {
        let mut at_work = JoinSet::new();
        let mut pause = RECONNECT_MIN;
        while !*self.stopped.borrow() {
            let broken = tokio::select! {
                broken = source.consume(&self, &mut at_work) => broken,
                () = self.stopped() => break,
            };
            // The messages in progress can no longer be acknowledged, and will be delivered again. Their tasks end here, so
            // that no message is processed twice at once.
            at_work.shutdown().await;
            let Broken { why, has_worked } = broken;
            tracing::warn!(event = "broker.disconnected", queue = self.queue, why);
            pause = if has_worked { RECONNECT_MIN } else { (pause * 2).min(RECONNECT_MAX) };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stopped() => {}
            }
        }
        // The connection is still open, so the remaining messages can be acknowledged.
        while at_work.join_next().await.is_some() {}
    }

    pub async fn take(self: Arc<Self>, message: impl Incoming) {
        let queue = &self.queue;
        let mut pause = RETRY_MIN;
        // Parsed once, so that a retry has the same events under the same ids.
        let brought = self.read(&message);
        let mut is_paid = false;
        loop {
            let handled = match self.admit(&brought, &mut is_paid) {
                Ok(()) => self.handle(&brought).await,
                // The message stays with the broker until there is room.
                Err(over) => Err(StoreError::Unavailable(over.detail.into_owned())),
            };
            match handled {
                Ok(()) => break,
                // The store can never keep this message. The broker may have a dead letter queue for it.
                Err(error @ StoreError::Refused(_)) => {
                    tracing::error!(event = "broker.rejected", queue, %error);
                    return message.reject().await;
                }
                Err(error) => tracing::warn!(event = "broker.not_committed", queue, %error),
            }
            message.in_progress().await;
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(RETRY_MAX),
                () = self.stopped() => return,
            }
        }
        self.tenant.stores(1, message.body().len());
        crash::point("broker.handled").await;
        if !message.acknowledge().await {
            // The message will be delivered again, and is then a duplicate.
            tracing::info!(event = "broker.not_acknowledged", queue);
        }
    }

    /// The workspace's rate and quota also apply to events from brokers. A message pays once.
    fn admit(&self, brought: &Brought, is_paid: &mut bool) -> Result<(), Problem> {
        self.tenant.check_quota()?;
        if !*is_paid {
            self.tenant.pay()?;
            *is_paid = true;
            if let Brought::Events(events) = brought {
                self.tenant.owe(events.len().saturating_sub(1));
            }
        }
        Ok(())
    }

    fn read(&self, message: &impl Incoming) -> Brought {
        let (body, content_type) = (message.body(), message.content_type());
        let media = match content_type {
            // Many senders give no content type.
            None | Some("") => Some(Media::Json),
            Some(content_type) => Media::of(content_type),
        };
        let received = match media {
            _ if body.len() > self.body_max => {
                Err(format!("it has {} bytes; events have at most {}", body.len(), self.body_max))
            }
            Some(media) => read(media, body).map_err(|problem| problem.detail.into_owned()),
            None => Err(format!("the content type is {content_type:?}; it should be application/json")),
        };
        let Received { mut events, is_list } = match received {
            Ok(received) => received,
            Err(why) => return Brought::NoEvent { raw: text_of(body), why },
        };
        // Events without ids get the message's id. If the message has none either, only retries of this delivery are
        // recognised as duplicates.
        let own = message.id().filter(|id| is_good_id(id)).map(str::to_owned);
        let own = own.unwrap_or_else(|| format!("unnamed {}", Uuid::now_v7()));
        for (i, event) in events.iter_mut().enumerate() {
            event.id.get_or_insert_with(|| if is_list { format!("{own}#{i}") } else { own.clone() });
        }
        Brought::Events(events.into_iter().map(Arc::new).collect())
    }

    async fn handle(&self, brought: &Brought) -> Result<(), StoreError> {
        match brought {
            Brought::Events(events) => {
                self.director.handle(&self.workspace, events, self.tenant.lookups()).await.map(drop)
            }
            // The broker will not deliver this message again, so it is kept as a dead letter.
            Brought::NoEvent { raw, why } => {
                self.director.bury_raw(&self.workspace, raw.clone(), why.clone()).await.map(drop)
            }
        }
    }
}

/// The content of a message.
enum Brought {
    Events(Vec<Arc<Event>>),
    NoEvent { raw: String, why: String },
}

/// Why there is no connection, or none any more.
pub struct Broken {
    pub why: String,
    /// Whether a connection had been made.
    pub has_worked: bool,
}

impl Broken {
    pub fn before(why: impl ToString) -> Broken {
        Broken { why: why.to_string(), has_worked: false }
    }

    pub fn after(why: impl ToString) -> Broken {
        Broken { why: why.to_string(), has_worked: true }
    }
}

/// The body as text; bytes that are not UTF-8 as base64.
fn text_of(body: &[u8]) -> String {
    match std::str::from_utf8(body) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("base64:{}", STANDARD.encode(body)),
    }
}
