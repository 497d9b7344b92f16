//! A guard store separate from the main store.
//!
//! Claim and message are then two writes. The claim is in flight until the message is written, and is settled with the
//! message's id afterwards. A request may be paused between the two writes past its lease, and be overtaken. The fence
//! stops it: a record of the main store, written with every message, that holds the largest token that has written.

use std::sync::Arc;
use std::time::Duration;

use oncegate::store::{Change, Reading};
use oncegate::{Answer, Claim, ClaimKey, Command, Ledger, OnStoreError, StoreError, Time, Token, Verdict};
use uuid::Uuid;

use super::Messages;
use super::document::{Fence, Kept, by_id};
use super::events::{self, Event};
use crate::config::Mode;
use crate::problem::Problem;

/// The pause between two attempts to settle the claim in the guard store.
const SETTLE_PAUSE: Duration = Duration::from_millis(500);

/// A claim that was won in the guard store.
pub struct Won {
    ledger: Arc<Ledger>,
    key: ClaimKey,
    token: Token,
    /// The claim was taken over: its previous owner may have written a message.
    is_taken_over: bool,
}

/// The guard store's answer.
pub enum Asked {
    Won(Won),
    /// The request goes on without a guard: the guard store is unreachable, or duplicates are only observed.
    Unguarded,
    /// A duplicate of this message.
    Duplicate {
        message: Uuid,
        age: Duration,
        waited: bool,
    },
    /// The claim's owner has not written its message yet.
    Pending,
}

/// The fence's answer.
pub enum Passed {
    /// No larger token has written. The change goes into the message's commit.
    Yes(Box<Change>),
    /// A duplicate of this message.
    Duplicate(Uuid),
}

impl Messages {
    pub async fn claim_apart(
        &self,
        ledger: &Arc<Ledger>,
        key: &ClaimKey,
        parts: Option<String>,
    ) -> Result<Asked, Problem> {
        loop {
            let claimed = ledger.claim_quietly(key, self.guard_terms(parts.clone(), None), self.config.wait).await;
            let (Reading { value: answer, now }, waited) = match claimed {
                Ok(claimed) => claimed,
                Err(error) => return self.guard_is_away(key, error),
            };
            match answer {
                Answer::Won(claim) => {
                    let (token, is_taken_over) = (claim.token, claim.attempt > 1);
                    return Ok(Asked::Won(Won { ledger: ledger.clone(), key: key.clone(), token, is_taken_over }));
                }
                Answer::Duplicate(claim) => match self.met_apart(ledger, &claim, now, waited).await? {
                    Some(asked) => return Ok(asked),
                    None => continue,
                },
                other if self.config.mode == Mode::Observe => {
                    let age = other.met().map_or(Duration::ZERO, |claim| now.since(claim.created_at));
                    Event::DuplicateObserved.tell(&key.workspace, Some(key), None, age.as_secs_f64());
                    return Ok(Asked::Unguarded);
                }
                _ => return Ok(Asked::Pending),
            }
        }
    }

    /// `None`: the claim is retracted, and can be made anew.
    async fn met_apart(
        &self,
        ledger: &Ledger,
        claim: &Claim,
        now: Time,
        waited: bool,
    ) -> Result<Option<Asked>, Problem> {
        let age = now.since(claim.created_at);
        let Some(id) = message_of(claim) else { return Ok(Some(Asked::Pending)) };
        if self.config.mode == Mode::Observe {
            let (workspace, key) = (&claim.key.workspace, Some(&claim.key));
            Event::DuplicateObserved.tell(workspace, key, Some(id), age.as_secs_f64());
            return Ok(Some(Asked::Unguarded));
        }
        // The message failed for certain, but its worker died before it could retract the claim.
        if self.is_released(&claim.key.workspace, id).await? {
            match ledger.apply(&claim.key, Command::Retract { token: claim.token }).await {
                Ok(_) => return Ok(None),
                Err(error) => return self.guard_is_away(&claim.key, error).map(Some),
            }
        }
        Ok(Some(Asked::Duplicate { message: id, age, waited }))
    }

    fn guard_is_away(&self, key: &ClaimKey, error: StoreError) -> Result<Asked, Problem> {
        events::guard_error(key, &error);
        match self.config.store_error {
            OnStoreError::Open => Ok(Asked::Unguarded),
            OnStoreError::Closed => Err(error.into()),
        }
    }

    /// Checks whether a request with a larger token has written, or an earlier owner of this claim.
    pub async fn pass_fence(&self, won: &Won, message: Uuid) -> Result<Passed, Problem> {
        let id = Fence::id_of(&won.key);
        let mut reading = self.store.find(&[by_id::<Fence>(&won.key.workspace, id)]).await?;
        let standing = reading.value.remove(0).map(Kept::<Fence>::read).transpose()?;
        let fence = Fence { token: won.token.0, message, at_us: reading.now.micros() };
        let Some(standing) = standing else {
            let fence = Kept { workspace: won.key.workspace.clone(), id, version: 1, document: fence };
            return Ok(Passed::Yes(Box::new(Change::create(fence.record()))));
        };
        let Fence { token, message, at_us } = standing.document;
        let is_of_this_window = reading.now < Time::from_micros(at_us) + self.config.window;
        let is_overtaken = token >= won.token.0;
        let was_written =
            won.is_taken_over && is_of_this_window && !self.is_released(&won.key.workspace, message).await?;
        match is_overtaken || was_written {
            true => Ok(Passed::Duplicate(message)),
            false => Ok(Passed::Yes(Box::new(Change::replace(standing.with(fence).record())))),
        }
    }
}

/// The message that a claim was settled with.
pub fn message_of(claim: &Claim) -> Option<Uuid> {
    std::str::from_utf8(claim.outcome.as_ref()?).ok()?.parse().ok()
}

impl Won {
    pub fn key(&self) -> &ClaimKey {
        &self.key
    }

    pub fn token(&self) -> Token {
        self.token
    }

    /// The message is written: requests that wait for the claim can go on. If the guard store does not answer, the call is
    /// retried until the lease ends; after that the fence knows.
    pub async fn settle(&self, message: Uuid, lease: Duration) {
        let outcome = Some(message.to_string().into());
        let settle = Command::Settle { token: self.token, verdict: Verdict::Done, outcome };
        if self.ledger.apply(&self.key, settle.clone()).await.is_ok() {
            return;
        }
        let (ledger, key) = (self.ledger.clone(), self.key.clone());
        tokio::spawn(async move {
            let told = async {
                while ledger.apply(&key, settle.clone()).await.is_err() {
                    tokio::time::sleep(SETTLE_PAUSE).await;
                }
            };
            let _ = tokio::time::timeout(lease, told).await;
        });
    }

    /// This request has written nothing. A claim that was taken over is kept: its earlier owner may have written a message.
    /// The next request that takes over checks for that; the owner of a new claim would not.
    pub async fn release(&self) {
        if self.is_taken_over {
            return;
        }
        // If the guard store does not answer, the lease ends by itself.
        let _ = self.ledger.apply(&self.key, Command::Release { token: self.token }).await;
    }
}
