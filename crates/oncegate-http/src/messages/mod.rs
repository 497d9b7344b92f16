//! Messages in the server: the bodies of posts, the HTTP answers, and a person's decision with its line in the audit log.
//!
//! The library (`oncegate::messages`) defines what a message is, and which request sends it.

pub mod body;
mod events;
pub mod reply;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use oncegate::WorkspaceName;
use oncegate::messages::{self, Kept, Message, Refused, Resolution};
use tokio::sync::Semaphore;
use uuid::Uuid;

pub use events::{EVENTS, tell, tell_guard_failed};

use crate::audit::{self, Act, Audit, By, Receipt};
use crate::problem::{Kind, Problem};
use crate::task::to_the_end;
use reply::Reply;

pub struct Messages {
    pub messages: Arc<messages::Messages<Reply>>,
    /// Limits the requests in progress, including those whose clients have hung up.
    pub room: Arc<Semaphore>,
}

impl Messages {
    /// Records a person's decision on an unknown message, with the person and the reason in the log.
    pub async fn resolve_by_hand(
        &self,
        audit: Arc<Audit>,
        workspace: WorkspaceName,
        id: Uuid,
        sent: bool,
        by: By,
        note: Option<String>,
    ) -> Result<Kept<Message>, Problem> {
        let messages = self.messages.clone();
        to_the_end(async move {
            let act = Act::new("audit.message_resolved", &workspace, ("message", id), &by, note.as_deref());
            let act = act.about("sent", sent);
            let resolution = Resolution { happened: sent, by: by.id.clone(), note: note.clone() };
            let resolve = async { Ok::<_, Problem>(messages.resolve(&workspace, id, &resolution).await?) };
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
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        let kind = match refused {
            Refused::Store(error) => return error.into(),
            Refused::NoLead(_) => Kind::NotFound,
            Refused::NoAddress(_) => Kind::InvalidRequest,
            Refused::KeyReused => Kind::IdempotencyKeyReused,
            Refused::KeyInFlight => return Kind::IdempotencyKeyInFlight.because(refused.to_string()).retry_after(1),
            Refused::Missing => return Kind::NotFound.because("no such message"),
            Refused::Wrong(_) => Kind::WrongStatus,
            Refused::Broken(_) => Kind::Internal,
        };
        kind.because(refused.to_string())
    }
}
