//! Messages: a text to a person, sent once.
//!
//! A POST is accepted in one commit: its Idempotency-Key, its duplicate claim, its lead, its thread, itself, and a job of
//! the queue that sends it. The job's end is another: the job is gone, the message says how it went, the answer is kept
//! under the key. Whatever happens in between, one of the two is what the next request finds.

mod accept;
mod apart;
mod contact;
pub mod document;
mod events;
mod follow;
mod idempotency;
mod plan;
pub mod post;
pub mod reply;
pub mod resolve;
mod send;
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

/// The counter of what became of messages.
pub const EVENTS: &str = Event::COUNTER;

use crate::audit::{self, Act, Audit, By, Receipt};
use crate::channels::Channels;
use crate::config;
use crate::problem::{Kind, Problem};
use crate::task::to_the_end;
use crate::worker::Worker;
use document::{Document, Kept, Lead, Message, by_id};
use reply::Reply;

/// The guard of the contents, and that of the keys. Nobody else makes claims under them.
pub static GUARD: LazyLock<GuardName> = LazyLock::new(|| GuardName::new("message").expect("a good name"));
pub static IDEMPOTENCY: LazyLock<GuardName> = LazyLock::new(|| GuardName::new("idempotency").expect("a good name"));

/// What the queue calls them.
pub const JOB: &str = "message";

pub struct Messages {
    pub config: config::Messages,
    pub store_parts: bool,
    pub store_outcome_body: bool,
    pub store: Arc<dyn MainStore>,
    /// Over the same store.
    pub main: Arc<Ledger>,
    /// Over the guard store, where that is another one.
    pub apart: Option<Arc<Ledger>>,
    pub channels: Arc<Channels>,
    pub worker: Arc<Worker>,
    pub over: Over,
    /// Requests that may be under way: those whose clients have hung up are, too.
    pub room: Arc<Semaphore>,
}

/// Requests that wait for a message that somebody else in this process may finish.
#[derive(Default)]
pub struct Over(Mutex<HashMap<Uuid, oneshot::Sender<Reply>>>);

impl Over {
    pub fn expect(&self, message: Uuid) -> oneshot::Receiver<Reply> {
        let (sender, receiver) = oneshot::channel();
        self.lock().insert(message, sender);
        receiver
    }

    /// Nobody waits any more.
    pub fn forget(&self, message: Uuid) {
        self.lock().remove(&message);
    }

    fn tell(&self, message: Uuid, reply: &Reply) {
        if let Some(waiting) = self.lock().remove(&message) {
            // Whoever waited may have stopped just now.
            let _ = waiting.send(reply.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, oneshot::Sender<Reply>>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl Messages {
    /// A document, if it is there.
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

    /// A person says what became of an unknown one, with who and why in the log.
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
                // A warning, so that no usual level leaves it out.
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
