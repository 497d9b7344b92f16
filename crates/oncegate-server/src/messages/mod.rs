//! Messages: a text to a person, sent once.
//!
//! One commit accepts a POST: it writes the Idempotency-Key's claim, the duplicate claim, the lead, the thread, the
//! message, and a job that sends it. A second commit ends the job: it removes the job, records the outcome in the message,
//! and keeps the answer under the key. After a crash at any point, the next request finds the state after one of the two
//! commits.

mod accept;
mod await_send;
mod contact;
pub mod document;
mod events;
mod idempotency;
mod plan;
pub mod post;
pub mod reply;
pub mod resolve;
mod send;
mod separate_guard;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use oncegate::store::MainStore;
use oncegate::{GuardName, Ledger, WorkspaceName};
use tokio::sync::{Semaphore, oneshot};
use uuid::Uuid;

pub use events::Event;
pub use idempotency::Asked;

/// The counter of message outcomes.
pub const EVENTS: &str = Event::COUNTER;

use crate::audit::{self, Act, Audit, By, Receipt};
use crate::channels::Channels;
use crate::config;
use crate::problem::{Kind, Problem};
use crate::task::to_the_end;
use document::{Document, Kept, Lead, Message, by_id};
use oncegate::worker::Queue;
use reply::Reply;

/// The guards of the contents and of the keys. Only this module makes claims under them.
pub static GUARD: LazyLock<GuardName> = LazyLock::new(|| GuardName::new("message").expect("a good name"));
pub static IDEMPOTENCY: LazyLock<GuardName> = LazyLock::new(|| GuardName::new("idempotency").expect("a good name"));

/// The kind of the jobs that send messages.
pub const JOB: &str = "message";

pub struct Messages {
    pub config: config::Messages,
    pub store_parts: bool,
    pub store_outcome_body: bool,
    pub store: Arc<dyn MainStore>,
    /// The ledger over the main store.
    pub main: Arc<Ledger>,
    /// The ledger over the separate guard store, if there is one.
    pub apart: Option<Arc<Ledger>>,
    pub channels: Arc<Channels>,
    pub queue: Arc<Queue>,
    pub over: Over,
    /// Limits the requests in progress, including those whose clients have hung up.
    pub room: Arc<Semaphore>,
}

/// Requests that wait for a message that another task of this process may finish.
#[derive(Default)]
pub struct Over(Mutex<HashMap<Uuid, oneshot::Sender<Reply>>>);

impl Over {
    pub fn expect(&self, message: Uuid) -> oneshot::Receiver<Reply> {
        let (sender, receiver) = oneshot::channel();
        self.lock().insert(message, sender);
        receiver
    }

    /// Removes the request that waits for a message.
    pub fn forget(&self, message: Uuid) {
        self.lock().remove(&message);
    }

    fn tell(&self, message: Uuid, reply: &Reply) {
        if let Some(waiting) = self.lock().remove(&message) {
            // The request may have stopped waiting just now.
            let _ = waiting.send(reply.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, oneshot::Sender<Reply>>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl Messages {
    /// The document, if it exists.
    pub async fn find<D: Document>(&self, workspace: &WorkspaceName, id: Uuid) -> Result<Option<Kept<D>>, Problem> {
        let found = self.store.find(&[by_id::<D>(workspace, id)]).await?.value.remove(0);
        found.map(Kept::read).transpose()
    }

    /// A message and its lead.
    async fn load(&self, workspace: &WorkspaceName, id: Uuid) -> Result<Option<(Kept<Message>, Kept<Lead>)>, Problem> {
        let Some(message) = self.find::<Message>(workspace, id).await? else { return Ok(None) };
        let lead = self.lead_of(&message).await?;
        Ok(Some((message, lead)))
    }

    /// Records a person's decision on an unknown message, with the person and the reason in the log.
    pub async fn resolve(
        &self,
        audit: Arc<Audit>,
        workspace: WorkspaceName,
        id: Uuid,
        sent: bool,
        by: By,
        note: Option<String>,
    ) -> Result<Kept<Message>, Problem> {
        let (store, releases) = (self.store.clone(), self.releases());
        to_the_end(async move {
            let act = Act::new("audit.message_resolved", &workspace, ("message", id), &by, note.as_deref());
            let act = act.about("sent", sent);
            let resolve = resolve::resolve(&*store, &workspace, id, sent, &by.id, note.clone(), releases);
            let (settled, receipt) = audit.act(act.clone(), resolve).await?;
            if settled.document.resolved.as_ref().is_some_and(|said| said.is_by(&by.id, note.as_deref())) {
                let (by, Receipt { seq, hash }) = (by.id, receipt);
                // Logged as a warning, so that no usual log level hides it.
                tracing::warn!(event = "audit.message_resolved", %workspace, messageId = %id, sent, by, why = note, auditSeq = seq, auditHash = hash);
            } else {
                audit.ended(act, &receipt, "unchanged", audit::SETTLED_BEFORE).await;
            }
            Ok(settled)
        })
        .await
    }

    async fn lead_of(&self, message: &Kept<Message>) -> Result<Kept<Lead>, Problem> {
        let lost = || Kind::Internal.because(format!("the message {} has lost its lead", message.id));
        self.find::<Lead>(&message.workspace, message.document.lead).await?.ok_or_else(lost)
    }
}
