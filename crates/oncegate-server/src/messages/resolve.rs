//! How a person settles a message that may or may not have been sent.

use oncegate::sends::Resolved;
use oncegate::store::{Change, Commit, MainStore, Op, Reading};
use oncegate::{Command, StoreError, WorkspaceName};
use uuid::Uuid;

use super::accept::{ROUNDS_MAX, others_were_faster};
use super::document::{Kept, Message, Status, by_id};
use super::idempotency::message_of_key;
use crate::problem::{Kind, Problem};

/// Records in one commit what the person found out. A message that was not sent becomes failed. If failures release their
/// claims, the same commit gives back its Idempotency-Key. The next post of the same message gives back the duplicate
/// claim, as for any other failed message.
pub async fn resolve(
    store: &dyn MainStore,
    workspace: &WorkspaceName,
    id: Uuid,
    sent: bool,
    by: &str,
    note: Option<String>,
    releases: bool,
) -> Result<Kept<Message>, Problem> {
    let status = if sent { Status::Sent } else { Status::Failed };
    for _ in 0..ROUNDS_MAX {
        let Reading { mut value, now } = store.find(&[by_id::<Message>(workspace, id)]).await?;
        let found = value.remove(0).ok_or_else(|| Kind::NotFound.because("no such message"))?;
        let message = Kept::<Message>::read(found)?;
        match (message.document.status, &message.document.resolved) {
            (Status::Unknown, _) => {}
            // A retry of the same decision: the answer to the first request may have been lost.
            (is, Some(_)) if is == status => return Ok(message),
            (is, _) => {
                let why = format!("only an unknown message can be settled; it is {}", is.as_str());
                return Err(Kind::WrongStatus.because(why));
            }
        }
        let at_us = now.micros();
        let settled = message.with(Message {
            status,
            sent_us: sent.then_some(at_us),
            error: message.document.error.clone().filter(|_| !sent),
            resolved: Some(Resolved { sent, by: by.to_owned(), note: note.clone(), at_us, token: None }),
            ..message.document.clone()
        });
        let ops = if sent || !releases { vec![] } else { key_given_back(store, &message).await? };
        match store.commit(Commit { ops, changes: vec![Change::replace(settled.record())] }).await {
            Ok(committed) if committed.is_written() => return Ok(settled),
            // Another commit was faster: the next round reads the message again.
            Ok(_) => {}
            Err(StoreError::Unknown(why)) if store.confirm().await.is_err() => {
                return Err(StoreError::Unknown(why).into());
            }
            Err(StoreError::Unknown(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(others_were_faster())
}

/// Without this, a retry under the key would get the first answer again, which says that the outcome is unknown.
async fn key_given_back(store: &dyn MainStore, message: &Kept<Message>) -> Result<Vec<Op>, StoreError> {
    let Some(key) = message.idempotency_key() else { return Ok(vec![]) };
    let claim = store.read(&key).await?.value.filter(|claim| message_of_key(claim) == Some(message.id));
    Ok(claim.map(|claim| Op { key, command: Command::Retract { token: claim.token } }).into_iter().collect())
}
