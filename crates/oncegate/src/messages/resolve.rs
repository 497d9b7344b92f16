//! How a person settles a message that may or may not have been sent.

use oncegate_core::{Command, WorkspaceName};
use oncegate_store::{At, Change, Commit, MainStore, Op, Reading, StoreError};
use uuid::Uuid;

use super::idempotency::message_of_key;
use super::record::{Message, Status};
use super::{Messages, Refused, Reply};
use crate::document::{self, Kept, Resolution, commit_or_read_again, until_written};

impl<R: Reply> Messages<R> {
    /// See [`resolve`].
    pub async fn resolve(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        resolution: &Resolution,
    ) -> Result<Kept<Message>, Refused> {
        resolve(&*self.store, workspace, id, resolution, self.releases()).await
    }
}

/// Records in one commit what the person found out. A message that was not sent becomes failed. If failures release their
/// claims, the same commit gives back its Idempotency-Key. The next post of the same message gives back the duplicate
/// claim, as for any other failed message.
pub async fn resolve(
    store: &dyn MainStore,
    workspace: &WorkspaceName,
    id: Uuid,
    resolution: &Resolution,
    releases: bool,
) -> Result<Kept<Message>, Refused> {
    let sent = resolution.happened;
    let status = if sent { Status::Sent } else { Status::Failed };
    until_written(|| async {
        let Reading { value, now } = document::find::<Message>(store, workspace, At::Id(id)).await?;
        let message = value.ok_or(Refused::Missing)?;
        match (message.document.status, &message.document.resolved) {
            (Status::Unknown, _) => {}
            // A retry of the same decision: the answer to the first request may have been lost.
            (is, Some(_)) if is == status => return Ok(Some(message)),
            (is, _) => {
                let is = is.as_str();
                return Err(Refused::Wrong(format!("only an unknown message can be settled; it is {is}")));
            }
        }
        let settled = message.with(Message {
            status,
            sent_us: sent.then(|| now.micros()),
            error: message.document.error.clone().filter(|_| !sent),
            resolved: Some(resolution.at(now)),
            ..message.document.clone()
        });
        let ops = if sent || !releases { vec![] } else { key_given_back(store, &message).await? };
        let commit = Commit { ops, changes: vec![Change::replace(settled.record())] };
        Ok(commit_or_read_again(store, commit).await?.then_some(settled))
    })
    .await
}

/// Without this, a retry under the key would get the first answer again, which says that the outcome is unknown.
async fn key_given_back(store: &dyn MainStore, message: &Kept<Message>) -> Result<Vec<Op>, StoreError> {
    let Some(key) = message.idempotency_key() else { return Ok(vec![]) };
    let claim = store.read(&key).await?.value.filter(|claim| message_of_key(claim) == Some(message.id));
    Ok(claim.map(|claim| Op { key, command: Command::Retract { token: claim.token } }).into_iter().collect())
}
