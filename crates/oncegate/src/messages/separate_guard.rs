//! A guard store separate from the main store.
//!
//! Claim and message are then two writes. The claim is in flight until the message is written, and is settled with the
//! message's id afterwards. A request may be paused between the two writes past its lease, and be overtaken. The fence
//! stops it: a record of the main store, written with every message, that holds the largest token that has written.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::{Answer, Claim, ClaimKey, Command, OnStoreError, Time, Token, Verdict};
use oncegate_store::{At, Change, Reading, StoreError};
use uuid::Uuid;

use super::record::Fence;
use super::{Event, Messages, Mode, Refused, Reply};
use crate::document::{self, Kept};
use crate::ledger::Ledger;

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
pub enum Separate {
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

impl<R: Reply> Messages<R> {
    pub(super) async fn claim_separate(
        &self,
        ledger: &Arc<Ledger>,
        key: &ClaimKey,
        parts: Option<String>,
    ) -> Result<Separate, Refused> {
        loop {
            let claimed = ledger.claim_quietly(key, self.guard_terms(parts.clone(), None), self.options.wait).await;
            let (Reading { value: answer, now }, waited) = match claimed {
                Ok(claimed) => claimed,
                Err(error) => return self.guard_is_away(key, error),
            };
            match answer {
                Answer::Won(claim) => {
                    let (token, is_taken_over) = (claim.token, claim.attempt > 1);
                    return Ok(Separate::Won(Won { ledger: ledger.clone(), key: key.clone(), token, is_taken_over }));
                }
                Answer::Duplicate(claim) => match self.met_in_separate(ledger, &claim, now, waited).await? {
                    Some(asked) => return Ok(asked),
                    None => continue,
                },
                other if self.options.mode == Mode::Observe => {
                    let age = other.met().map_or(Duration::ZERO, |claim| now.since(claim.created_at));
                    self.watcher.message(Event::DuplicateObserved, &key.workspace, Some(key), None, age);
                    return Ok(Separate::Unguarded);
                }
                _ => return Ok(Separate::Pending),
            }
        }
    }

    /// `None`: the claim is retracted, and can be made anew.
    async fn met_in_separate(
        &self,
        ledger: &Ledger,
        claim: &Claim,
        now: Time,
        waited: bool,
    ) -> Result<Option<Separate>, Refused> {
        let age = now.since(claim.created_at);
        let Some(id) = message_of(claim) else { return Ok(Some(Separate::Pending)) };
        if self.options.mode == Mode::Observe {
            let (workspace, key) = (&claim.key.workspace, Some(&claim.key));
            self.watcher.message(Event::DuplicateObserved, workspace, key, Some(id), age);
            return Ok(Some(Separate::Unguarded));
        }
        // The message failed for certain, but its worker died before it could retract the claim.
        if self.is_released(&claim.key.workspace, id).await? {
            match ledger.apply(&claim.key, Command::Retract { token: claim.token }).await {
                Ok(_) => return Ok(None),
                Err(error) => return self.guard_is_away(&claim.key, error).map(Some),
            }
        }
        Ok(Some(Separate::Duplicate { message: id, age, waited }))
    }

    fn guard_is_away(&self, key: &ClaimKey, error: StoreError) -> Result<Separate, Refused> {
        self.watcher.guard_failed(key, &error);
        match self.options.store_error {
            OnStoreError::Open => Ok(Separate::Unguarded),
            OnStoreError::Closed => Err(error.into()),
        }
    }

    /// Checks whether a request with a larger token has written, or an earlier owner of this claim.
    pub(super) async fn pass_fence(&self, won: &Won, message: Uuid) -> Result<Passed, Refused> {
        let id = Fence::id_of(&won.key);
        let Reading { value: standing, now } =
            document::find::<Fence>(&*self.store, &won.key.workspace, At::Id(id)).await?;
        let fence = Fence { token: won.token.0, message, at_us: now.micros() };
        let Some(standing) = standing else {
            let fence = Kept { workspace: won.key.workspace.clone(), id, version: 1, document: fence };
            return Ok(Passed::Yes(Box::new(Change::create(fence.record()))));
        };
        let Fence { token, message, at_us } = standing.document;
        let is_of_this_window = now < Time::from_micros(at_us) + self.options.window;
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
