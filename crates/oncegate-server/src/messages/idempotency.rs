//! `Idempotency-Key`: one request, one answer, however often it is repeated.
//!
//! The commit that accepts the message claims the key, in flight. The commit that finishes the message settles the claim
//! with the answer. The claim is never taken over: if its owner is gone, the answer is rebuilt from the message in the
//! store.

use axum::response::Response;
use oncegate::store::{Commit, Op, Reading};
use oncegate::{Answer, Claim, ClaimKey, Command, Lost, State, Terms, WorkspaceName};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use uuid::Uuid;

use super::document::Status;
use super::events::Event;
use super::reply::Reply;
use super::{IDEMPOTENCY, Messages};
use crate::auth::hex;
use crate::problem::{Kind, Problem};

/// A request that came with a key.
pub struct Asked {
    pub key: ClaimKey,
    fingerprint: String,
}

/// What is kept with a key's claim while it is in flight.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attributes {
    message_id: Uuid,
}

impl Asked {
    pub fn new(workspace: &WorkspaceName, method: &str, path: &str, key: &str, body: &[u8]) -> Asked {
        let key = ClaimKey::of(workspace, &IDEMPOTENCY, &[Some(method), Some(path), Some(key)]);
        Asked { key, fingerprint: hex(&Sha256::digest(body)) }
    }
}

impl Messages {
    fn key_terms(&self, asked: &Asked) -> Terms {
        Terms {
            window: self.config.idempotency_window,
            lease: self.config.lease,
            lost: Lost::Hold,
            fingerprint: Some(asked.fingerprint.clone()),
            attributes: None,
            parts: None,
            outcome: None,
            replaces: None,
        }
    }

    /// Claims a key for a message that is accepted in the same commit.
    pub fn claim_key(&self, asked: &Asked, message_id: Uuid) -> Op {
        let attributes = serde_json::to_string(&Attributes { message_id }).expect("an id is JSON");
        let terms = Terms { attributes: Some(attributes), ..self.key_terms(asked) };
        Op { key: asked.key.clone(), command: Command::Claim(terms) }
    }

    /// Keeps under the key an answer that accepted no message. False: another request has the key.
    pub async fn keep_under_key(&self, asked: &Asked, reply: &Reply) -> Result<bool, Problem> {
        let terms = Terms { outcome: Some(reply.keep(self.store_outcome_body)), ..self.key_terms(asked) };
        let op = Op { key: asked.key.clone(), command: Command::Claim(terms) };
        Ok(self.main.commit(Commit::from(op)).await?.is_written())
    }

    /// The answer that the key has; `None` if the key is new. Waits for a first request that is in progress.
    pub async fn answer_of_key(&self, asked: &Asked) -> Result<Option<Response>, Problem> {
        loop {
            let Reading { value, now } = self.main.await_settled(&asked.key, self.config.wait).await?;
            let Some(claim) = value else { return Ok(None) };
            self.main.count_duplicate(&claim, now);
            if claim.fingerprint.as_ref() != Some(&asked.fingerprint) {
                return Err(Kind::IdempotencyKeyReused.because("this key was used with another body"));
            }
            let reply = match claim.state_at(now) {
                State::InFlight => {
                    let detail = "the first request with this key is still under way";
                    return Err(Kind::IdempotencyKeyInFlight.because(detail).retry_after(1));
                }
                State::Unknown => self.rebuild(asked, &claim).await?,
                State::Done | State::Failed => Rebuilt::Reply(self.kept_reply(&asked.key, &claim).await?),
            };
            match reply {
                Rebuilt::Reply(reply) => {
                    let age = now.since(claim.created_at).as_secs_f64();
                    Event::Replayed.tell(&asked.key.workspace, Some(&asked.key), None, age);
                    return Ok(Some(reply.replayed()));
                }
                Rebuilt::Free => return Ok(None),
                Rebuilt::LookAgain => {}
            }
        }
    }

    pub async fn kept_reply(&self, key: &ClaimKey, claim: &Claim) -> Result<Reply, Problem> {
        let unreadable = || Kind::Internal.because("what was answered to this key cannot be read");
        let kept = claim.outcome.as_ref().and_then(Reply::read);
        // Bodies are not kept, or a person has settled the message: the answer is rebuilt from the message.
        let (id, like) = match kept {
            Some(reply) => match reply.to_be_told_from() {
                Some(id) => (id, Some(reply)),
                None => return Ok(reply),
            },
            None => (message_of_key(claim).ok_or_else(unreadable)?, None),
        };
        let (message, lead) = self.load(&key.workspace, id).await?.ok_or_else(unreadable)?;
        Ok(Reply::told_again(&message, &lead, like.as_ref()))
    }

    /// The claim's owner is gone, but its message exists. Answers from that message; a second one is never created.
    async fn rebuild(&self, asked: &Asked, claim: &Claim) -> Result<Rebuilt, Problem> {
        let workspace = &asked.key.workspace;
        let Some(message_id) = message_of_key(claim) else {
            return Err(Kind::Internal.because("nobody knows what this key was used for"));
        };
        // The queue has the message: wait for its end, up to the deadline.
        let deadline = Instant::now() + self.config.send_wait;
        let Some((message, lead)) = self.await_over(workspace, message_id, deadline).await? else {
            return Err(Kind::Internal.because(format!("the message {message_id} is gone")));
        };
        let reply = Reply::to_first(&message, &lead);
        let is_released = message.document.status == Status::Failed && self.releases();
        let command = match is_released {
            true => Command::Retract { token: claim.token },
            false => Command::Resolve { done: true, outcome: Some(reply.keep(self.store_outcome_body)) },
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

enum Rebuilt {
    Reply(Reply),
    /// The message failed and released the key, which can be used as new.
    Free,
    LookAgain,
}
