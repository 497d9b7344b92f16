//! Running a closure once under a key.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use oncegate_core::{Command, OnFailure, OnStoreError, State, Time, Verdict, limits::OUTCOME_BYTES_MAX};
use oncegate_store::StoreError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::guard::{Claimed, Guard, Owner, OwnerError};
use crate::key::Part;

/// How often a lease is renewed within its length: two renewals may fail before it ends.
const RENEWALS_PER_LEASE: u32 = 3;
const SETTLE_RETRY_MIN: Duration = Duration::from_millis(100);
const SETTLE_RETRY_MAX: Duration = Duration::from_secs(5);

/// A value, and how it was come by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran<T> {
    pub value: T,
    pub how: How,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// This call ran it, and its outcome is recorded; or, where the store went away meanwhile, will be if it is back
    /// before the lease ends.
    First,
    /// An earlier call ran it, this long ago.
    Duplicate { age: Duration },
    /// This call ran it with no guard: the store was away, and the policy says to go on.
    Unguarded,
    /// This call ran it, but was paused past its lease: another may have run it too, and that one's outcome counts.
    Fenced,
}

#[derive(Debug, thiserror::Error)]
pub enum RunError<E> {
    /// The closure failed, here and now.
    #[error("the effect failed: {0}")]
    Effect(E),
    /// The closure failed in an earlier call, and the policy keeps failures.
    #[error("the effect failed before, {age:?} ago")]
    FailedBefore { age: Duration },
    #[error("another is at work on it; its lease ends at {lease_until}")]
    InFlight { lease_until: Time },
    #[error("whether it happened is unknown since {since}: a person has to settle it")]
    Unknown { since: Time },
    #[error("the key was used for something else: its fingerprint differs")]
    Mismatch,
    /// It happened, but what it returned was too large to keep, or is not what is now asked for.
    #[error("it happened {age:?} ago, but its outcome cannot be read: {why}")]
    OutcomeNotReadable { age: Duration, why: String },
    #[error(transparent)]
    Store(StoreError),
}

impl Guard {
    /// Runs `effect` unless it was run under `key` before; then returns what it returned.
    ///
    /// While it runs the lease is renewed. `Ok` is kept as JSON for whoever comes later; on `Err` the
    /// claim is released or kept as failed, as [`Policy::on_failure`](crate::Policy) says. If the returned
    /// future is dropped half-way the claim stays in flight until its lease ends, since the effect
    /// may have happened.
    pub async fn run<T, E, K, F, Fut>(&self, key: K, effect: F) -> Result<Ran<T>, RunError<E>>
    where
        T: Serialize + DeserializeOwned,
        K: IntoIterator,
        K::Item: Into<Part>,
        F: FnOnce(Option<Owner>) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let parts = crate::key::parts(key);
        let key = self.key_of(&parts);
        match self.claim_of(&key, Some(&parts)).await {
            Ok(Claimed::Won(owner)) => self.run_owned(owner, effect).await,
            Ok(Claimed::Duplicate { claim, age }) if claim.state == State::Done => {
                let not_readable = |why| Err(RunError::OutcomeNotReadable { age, why });
                let Some(outcome) = &claim.outcome else { return not_readable("it was not kept".into()) };
                match serde_json::from_slice(outcome) {
                    Ok(value) => Ok(Ran { value, how: How::Duplicate { age } }),
                    Err(error) => not_readable(error.to_string()),
                }
            }
            Ok(Claimed::Duplicate { age, .. }) => Err(RunError::FailedBefore { age }),
            Ok(Claimed::InFlight { lease_until }) => Err(RunError::InFlight { lease_until }),
            Ok(Claimed::Held { since }) => Err(RunError::Unknown { since }),
            Ok(Claimed::Mismatch) => Err(RunError::Mismatch),
            Err(error) if self.policy.on_store_error == OnStoreError::Open => {
                tracing::error!(event = "claim.duplicate_guard_error", guard = %key.guard, claimId = %key.id, %error);
                let value = effect(None).await.map_err(RunError::Effect)?;
                Ok(Ran { value, how: How::Unguarded })
            }
            Err(error) => Err(RunError::Store(error)),
        }
    }

    async fn run_owned<T, E, F, Fut>(&self, owner: Owner, effect: F) -> Result<Ran<T>, RunError<E>>
    where
        T: Serialize,
        F: FnOnce(Option<Owner>) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let result = while_alive(&owner, self.policy.lease, effect(Some(owner.clone()))).await;
        match result {
            Ok(value) => {
                let outcome = serde_json::to_vec(&value).ok().filter(|json| json.len() <= OUTCOME_BYTES_MAX);
                let how = finish(owner, Verdict::Done, outcome.map(Bytes::from)).await;
                Ok(Ran { value, how })
            }
            Err(error) => {
                match self.policy.on_failure {
                    OnFailure::Keep => _ = finish(owner, Verdict::Failed, None).await,
                    OnFailure::Release => give_back(&owner).await,
                }
                Err(RunError::Effect(error))
            }
        }
    }
}

/// Runs `effect`, and renews the lease for as long as it runs.
pub(crate) async fn while_alive<T>(owner: &Owner, lease: Duration, effect: impl Future<Output = T>) -> T {
    tokio::select! {
        result = effect => result,
        () = keep_alive(owner, lease) => unreachable!("renews until dropped"),
    }
}

/// Renews for as long as it is polled. A refusal is left for the settle to find: the effect is under way.
async fn keep_alive(owner: &Owner, lease: Duration) {
    loop {
        tokio::time::sleep(lease / RENEWALS_PER_LEASE).await;
        if let Err(error) = owner.renew().await {
            tracing::warn!(event = "claim.renew_failed", claimId = %owner.key().id, %error);
        }
    }
}

/// Releases. Where that fails the claim is given back by itself, when its lease ends.
pub(crate) async fn give_back(owner: &Owner) {
    if let Err(error) = owner.release().await {
        tracing::warn!(event = "claim.release_failed", claimId = %owner.key().id, %error);
    }
}

/// Settles. The effect has happened, so the caller gets its answer whatever the store says; where the
/// store is away the settle is tried again behind the caller's back, until it is done or refused.
pub(crate) async fn finish(owner: Owner, verdict: Verdict, outcome: Option<Bytes>) -> How {
    match owner.settle_as(verdict, outcome.clone()).await {
        Ok(()) => How::First,
        Err(OwnerError::Fenced(refusal)) => {
            tracing::warn!(event = "claim.fenced", claimId = %owner.key().id, %refusal);
            How::Fenced
        }
        Err(OwnerError::Store(error)) => {
            tracing::warn!(event = "claim.settle_retried", claimId = %owner.key().id, %error);
            tokio::spawn(settle_until_told(owner, verdict, outcome));
            How::First
        }
    }
}

/// Past the lease it would be refused: there is an end to it, whatever the store says.
async fn settle_until_told(owner: Owner, verdict: Verdict, outcome: Option<Bytes>) {
    let give_up_at = Instant::now() + owner.lease();
    let mut pause = SETTLE_RETRY_MIN;
    while Instant::now() < give_up_at {
        tokio::time::sleep(pause).await;
        let settle = Command::Settle { token: owner.token(), verdict, outcome: outcome.clone() };
        match owner.apply(settle).await {
            Ok(()) => return,
            Err(OwnerError::Fenced(refusal)) => {
                tracing::warn!(event = "claim.fenced", claimId = %owner.key().id, %refusal);
                return;
            }
            Err(OwnerError::Store(StoreError::Refused(why))) => {
                tracing::error!(event = "claim.settle_refused", claimId = %owner.key().id, why);
                return;
            }
            Err(OwnerError::Store(_)) => pause = (pause * 2).min(SETTLE_RETRY_MAX),
        }
    }
}
