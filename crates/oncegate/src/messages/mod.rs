//! Messages: a text to a person, sent once.
//!
//! One commit accepts a post: it writes the Idempotency-Key's claim, the duplicate claim, the lead, the thread, the
//! message, and a job that sends it. A second commit ends the job: it removes the job, records the outcome in the message,
//! and keeps the answer under the key. After a crash at any point, the next request finds the state after one of the two
//! commits.
//!
//! The effect goes through a [`Channel`](crate::worker::Channel).

mod accept;
mod await_send;
mod contact;
mod idempotency;
mod plan;
mod query;
mod record;
mod reply;
mod resolve;
mod separate_guard;
mod watcher;
mod work;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use oncegate_core::{GuardName, OnFailure, OnStoreError, Policy};
use oncegate_store::{MainStore, StoreError};
use tokio::sync::oneshot;
use uuid::Uuid;

pub use contact::{Contact, Post};
pub use idempotency::Asked;
pub use record::{CrmIds, Lead, Message, Status, Thread, email_name, phone_name};
pub use reply::{Answered, Posted, Reply};
pub use resolve::resolve;
pub use watcher::{Event, Watcher};

pub use crate::channel::Attachment;
use crate::channel::Channels;
pub use crate::document::{Kept, Resolution};
use crate::ledger::Ledger;
use crate::queue::Queue;
use crate::scoped::Scoped;

/// The guards of the contents and of the keys. No other part of the system makes claims under them.
pub static GUARD: LazyLock<GuardName> = LazyLock::new(|| GuardName::new("message").expect("a good name"));
/// See [`GUARD`].
pub static IDEMPOTENCY: LazyLock<GuardName> = LazyLock::new(|| GuardName::new("idempotency").expect("a good name"));

/// The kind of the jobs that send messages.
pub const JOB: &str = "message";

/// How duplicates are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A duplicate is not sent.
    Enforce,
    /// Duplicates are let through, and reported.
    Observe,
    /// Messages are accepted without a duplicate claim.
    Off,
}

/// The settings of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How duplicates are handled.
    pub mode: Mode,
    /// How long the same message to the same person is a duplicate.
    pub window: Duration,
    /// How long a request waits for the first one with its key, or with its message.
    pub wait: Duration,
    /// How long a request waits until its message is sent.
    pub send_wait: Duration,
    /// How long the answer to an Idempotency-Key is kept.
    pub idempotency_window: Duration,
    /// What becomes of the claims of a message that surely was not sent.
    pub failed: OnFailure,
    /// What a request does while a separate guard store is away.
    pub store_error: OnStoreError,
    /// The lease of a worker on a message.
    pub lease: Duration,
    /// Whether the parts of the duplicate claim's key are stored with it.
    pub store_parts: bool,
    /// Whether the whole answer is kept under an Idempotency-Key. Otherwise a replay is rebuilt from the message.
    pub keep_answers: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            mode: Mode::Enforce,
            window: Duration::from_secs(15 * 60),
            wait: Duration::from_secs(3),
            send_wait: Duration::from_secs(10),
            idempotency_window: Duration::from_secs(24 * 3600),
            failed: OnFailure::Release,
            store_error: OnStoreError::Open,
            lease: Policy::DEFAULT_LEASE,
            store_parts: false,
            keep_answers: true,
        }
    }
}

/// Why a post was not accepted, or a message not resolved.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refused {
    /// There is no lead with this id in the workspace.
    #[error("leadId: there is no lead {0} in this workspace")]
    NoLead(String),
    /// The channel with this name sends mail, and the message has no address.
    #[error("recipientEmail: the channel {0:?} sends mail, and there is no address")]
    NoAddress(String),
    /// The Idempotency-Key was used with another body.
    #[error("this key was used with another body")]
    KeyReused,
    /// The first request with the Idempotency-Key has not ended.
    #[error("the first request with this key is still under way")]
    KeyInFlight,
    /// There is no message with this id in the workspace.
    #[error("there is no such message")]
    Missing,
    /// Wrong state for this operation.
    #[error("{0}")]
    Wrong(String),
    /// A record that must exist is missing, or cannot be read.
    #[error("{0}")]
    Broken(String),
    /// The store returned an error. A post may be accepted.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The messages of a store, and their channels. `R` is the form in which callers get their answers.
pub struct Messages<R: Reply = Posted> {
    options: Options,
    store: Arc<dyn MainStore>,
    /// The ledger over the main store.
    main: Arc<Ledger>,
    /// The ledger over the separate guard store, if there is one.
    separate: Option<Arc<Ledger>>,
    channels: Arc<dyn Channels>,
    queue: Arc<Queue>,
    watcher: Arc<dyn Watcher>,
    over: Over<R>,
}

/// Requests that wait for a message that another task of this process may finish.
struct Over<R>(Mutex<HashMap<Uuid, oneshot::Sender<R>>>);

impl<R: Reply> Over<R> {
    fn expect(&self, message: Uuid) -> oneshot::Receiver<R> {
        let (sender, receiver) = oneshot::channel();
        self.lock().insert(message, sender);
        receiver
    }

    /// Removes the request that waits for a message.
    fn forget(&self, message: Uuid) {
        self.lock().remove(&message);
    }

    fn tell(&self, message: Uuid, reply: &R) {
        if let Some(waiting) = self.lock().remove(&message) {
            // The request may have stopped waiting just now.
            let _ = waiting.send(reply.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, oneshot::Sender<R>>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl<R: Reply> Messages<R> {
    /// Makes the messages of `store`. The `main` ledger must use the same store; the `separate` one uses the guard store. The `queue`
    /// gives the slots in which messages are sent.
    pub fn over(
        store: Arc<dyn MainStore>,
        main: Arc<Ledger>,
        separate: Option<Arc<Ledger>>,
        channels: Arc<dyn Channels>,
        queue: Arc<Queue>,
        options: Options,
        watcher: Arc<dyn Watcher>,
    ) -> Arc<Messages<R>> {
        let over = Over(Mutex::default());
        Arc::new(Messages { options, store, main, separate, channels, queue, watcher, over })
    }

    /// The ledger over the main store.
    pub fn main(&self) -> &Arc<Ledger> {
        &self.main
    }

    /// The ledger over the separate guard store, if there is one.
    pub fn separate(&self) -> Option<&Arc<Ledger>> {
        self.separate.as_ref()
    }

    /// The queue that gives the slots.
    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Whether a message that surely was not sent gives its claims back.
    pub fn releases(&self) -> bool {
        self.options.failed == OnFailure::Release
    }
}

impl<R: Reply> Scoped<Arc<Messages<R>>> {
    /// Sends a message, unless the same one was posted within the window. Returns when it is sent, or after
    /// [`Options::send_wait`]: a worker goes on then. The message is accepted even if this future is dropped.
    ///
    /// With `asked`, a repeated request gets the first answer again.
    pub async fn post(&self, asked: Option<Asked>, post: Post) -> Result<Answered<R>, Refused> {
        let (answer, answered) = oneshot::channel();
        tokio::spawn(self.policy().clone().post_to_end(self.workspace().clone(), asked, post, answer));
        let ended = |_| Refused::Broken("the task that sends the message has panicked".into());
        answered.await.map_err(ended)?
    }

    /// See [`Messages::find`].
    pub async fn find(&self, id: Uuid) -> Result<Option<Kept<Message>>, StoreError> {
        self.policy().find(self.workspace(), id).await
    }
}

impl<R: Reply> fmt::Debug for Messages<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").field("options", &self.options).finish_non_exhaustive()
    }
}
