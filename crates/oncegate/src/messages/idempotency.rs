//! `Idempotency-Key`: one request, one answer, however often it is repeated.
//!
//! The commit that accepts the message claims the key, in flight. The commit that finishes the message settles the claim
//! with the answer. The claim is never taken over: if its owner is gone, the answer is rebuilt from the message in the
//! store.

use oncegate_core::{Answer, Claim, ClaimKey, Command, Lost, State, Terms, WorkspaceName};
use oncegate_store::{Commit, Op, Reading};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use uuid::Uuid;

use super::record::Status;
use super::{Answered, Event, IDEMPOTENCY, Messages, Refused, Reply};

/// The Idempotency-Key of a request.
pub struct Asked {
    pub(super) key: ClaimKey,
    fingerprint: String,
}

/// What is kept with a key's claim while it is in flight.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attributes {
    message_id: Uuid,
}

impl Asked {
    /// The key, with what it belongs to (such as the method and the path), and the fingerprint of the request's body.
    pub fn new(workspace: &WorkspaceName, parts: &[&str], fingerprint: String) -> Asked {
        let parts: Vec<_> = parts.iter().copied().map(Some).collect();
        Asked { key: ClaimKey::of(workspace, &IDEMPOTENCY, &parts), fingerprint }
    }
}

impl<R: Reply> Messages<R> {
    fn key_terms(&self, asked: &Asked) -> Terms {
        let terms = Terms::new(self.options.idempotency_window, self.options.lease, Lost::Hold);
        Terms { fingerprint: Some(asked.fingerprint.clone()), ..terms }
    }

    /// Claims a key for a message that is accepted in the same commit.
    pub(super) fn claim_key(&self, asked: &Asked, message_id: Uuid) -> Op {
        let attributes = serde_json::to_string(&Attributes { message_id }).expect("an id is JSON");
        let terms = Terms { attributes: Some(attributes), ..self.key_terms(asked) };
        Op { key: asked.key.clone(), command: Command::Claim(terms) }
    }

    /// Keeps under the key an answer that accepted no message. False: another request has the key.
    pub(super) async fn keep_under_key(&self, asked: &Asked, reply: &R) -> Result<bool, Refused> {
        let terms = Terms { outcome: Some(reply.keep(self.options.keep_answers)), ..self.key_terms(asked) };
        let op = Op { key: asked.key.clone(), command: Command::Claim(terms) };
        Ok(self.main.commit(Commit::from(op)).await?.is_written())
    }

    /// The answer that the key has; `None` if the key is new. Waits for a first request that is in progress.
    pub async fn answer_of_key(&self, asked: &Asked) -> Result<Option<Answered<R>>, Refused> {
        loop {
            let Reading { value, now } = self.main.await_settled(&asked.key, self.options.wait).await?;
            let Some(claim) = value else { return Ok(None) };
            self.main.count_duplicate(&claim, now);
            if claim.fingerprint.as_ref() != Some(&asked.fingerprint) {
                return Err(Refused::KeyReused);
            }
            let reply = match claim.state_at(now) {
                State::InFlight => return Err(Refused::KeyInFlight),
                State::Unknown => self.rebuild(asked, &claim).await?,
                State::Done | State::Failed => Rebuilt::Reply(self.kept_reply(&asked.key, &claim).await?),
            };
            match reply {
                Rebuilt::Reply(reply) => {
                    let (key, age) = (&asked.key, now.since(claim.created_at));
                    self.watcher.message(Event::Replayed, &key.workspace, Some(key), None, age);
                    return Ok(Some(Answered { reply, is_replay: true }));
                }
                Rebuilt::Free => return Ok(None),
                Rebuilt::LookAgain => {}
            }
        }
    }

    pub(super) async fn kept_reply(&self, key: &ClaimKey, claim: &Claim) -> Result<R, Refused> {
        let unreadable = || Refused::Broken("what was answered to this key cannot be read".into());
        let kept = claim.outcome.as_ref().and_then(R::read);
        // Bodies are not kept, or a person has settled the message: the answer is rebuilt from the message.
        let (id, like) = match kept {
            Some(reply) => match reply.to_be_told_from() {
                Some(id) => (id, Some(reply)),
                None => return Ok(reply),
            },
            None => (message_of_key(claim).ok_or_else(unreadable)?, None),
        };
        let (message, lead) = self.load(&key.workspace, id).await?.ok_or_else(unreadable)?;
        Ok(R::told_again(&message, &lead, like.as_ref()))
    }

    /// The claim's owner is gone, but its message exists. Answers from that message; a second one is never created.
    async fn rebuild(&self, asked: &Asked, claim: &Claim) -> Result<Rebuilt<R>, Refused> {
        let workspace = &asked.key.workspace;
        let Some(message_id) = message_of_key(claim) else {
            return Err(Refused::Broken("the claim of this key names no message".into()));
        };
        // The queue has the message: wait for its end, up to the deadline.
        let deadline = Instant::now() + self.options.send_wait;
        let Some((message, lead)) = self.await_over(workspace, message_id, deadline).await? else {
            return Err(Refused::Broken(format!("the message {message_id} is gone")));
        };
        let reply = R::to_first(&message, &lead);
        let is_released = message.document.status == Status::Failed && self.releases();
        let command = match is_released {
            true => Command::Retract { token: claim.token },
            false => Command::Resolve { done: true, outcome: Some(reply.keep(self.options.keep_answers)) },
        };
        match self.main.apply(&asked.key, command).await?.value {
            Answer::Applied(_) if is_released => Ok(Rebuilt::Free),
            Answer::Applied(_) => Ok(Rebuilt::Reply(reply)),
            // The worker or another request settled the claim first.
            _ => Ok(Rebuilt::LookAgain),
        }
    }
}

/// The message that was accepted with a key.
pub fn message_of_key(claim: &Claim) -> Option<Uuid> {
    let attributes: Attributes = serde_json::from_str(claim.attributes.as_deref()?).ok()?;
    Some(attributes.message_id)
}

enum Rebuilt<R> {
    Reply(R),
    /// The message failed and released the key, which can be used as new.
    Free,
    LookAgain,
}
