//! The intake of messages from any broker.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The pause between two attempts to connect.
const RECONNECT_MIN: Duration = Duration::from_millis(200);
const RECONNECT_MAX: Duration = Duration::from_secs(5);

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

/// What takes the messages of a queue.
#[async_trait]
pub trait Taker: Send + Sync + 'static {
    /// Takes the message: commits its events, and acknowledges it. Gives up when the intake has to stop.
    async fn take(&self, intake: &Intake, message: &dyn Incoming);
}

/// The intake of a queue.
pub struct Intake {
    pub queue: String,
    /// The most messages in progress at once. The rest wait at the broker.
    pub at_once: u16,
    pub taker: Arc<dyn Taker>,
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
        self.taker.take(&self, &message).await;
    }
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
