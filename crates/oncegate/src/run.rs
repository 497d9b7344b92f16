//! Runs a closure once under a key.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use oncegate_core::{
    Answer, Command, OnFailure, OnStoreError, Refusal, State, Time, Verdict, limits::OUTCOME_BYTES_MAX,
};
use oncegate_store::{Reading, StoreError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::background::retry_within_lease;
use crate::guard::{Claimed, Guard, Owner, OwnerError};
use crate::key::IntoKey;
use crate::renewals;

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran<T> {
    /// The value that the closure returned, in this call or an earlier one.
    pub value: T,
    /// Which call ran the closure, and what the store records of it.
    pub how: How,
}

/// How a call of [`Guard::run`] got its value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum How {
    /// This call ran the closure, and its outcome is recorded. If the store was unavailable, a background task records the
    /// outcome, provided that the store is back before the lease ends.
    First,
    /// This call ran the closure, and the store records that, but not the value: it is too large, or is not valid JSON. Later
    /// callers run nothing, and get [`RunError::OutcomeNotReadable`].
    NotKept {
        /// Why the value is not stored, for people.
        why: String,
    },
    /// An earlier call ran the closure, this long ago.
    Duplicate {
        /// The time since the earlier call made its claim.
        age: Duration,
    },
    /// This call ran the closure without a claim: the store was unavailable, and the policy allows that.
    Unguarded,
    /// This call ran the closure, but lost its lease before the end. Another owner may have run the closure too, and the
    /// outcome of that owner counts.
    Fenced,
}

/// How an effect failed, as far as the closure knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// The effect surely did not happen. [`Policy::on_failure`](crate::Policy::on_failure) decides what happens to the claim.
    NotDone(E),
    /// The effect may have happened: the provider did not answer in time, or the connection was cut. The claim becomes
    /// `unknown`. No caller runs the closure again until a person or a program resolves the claim.
    Unknown(E),
}

/// `?` in a closure states that the effect did not happen.
impl<E> From<E> for Failure<E> {
    fn from(error: E) -> Self {
        Failure::NotDone(error)
    }
}

/// Why a call of [`Guard::run`] returned no value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError<E> {
    /// The closure failed in this call: the effect did not happen.
    #[error("the effect failed: {0}")]
    Effect(E),
    /// The closure failed in this call with [`Failure::Unknown`]. The claim is `unknown`.
    #[error("the effect failed and may have happened: {0}")]
    MayHaveHappened(E),
    /// The closure was stopped at the `max_run` of the policy. The effect may have happened, and the `lost` of the policy
    /// decides: the next caller takes over, or the claim is `unknown`.
    #[error("the effect was stopped after {after:?}, and may have happened")]
    TooLong {
        /// The `max_run` of the policy.
        after: Duration,
    },
    /// The closure failed in an earlier call, and the policy keeps failures.
    #[error("the effect failed before, {age:?} ago")]
    FailedBefore {
        /// The time since the earlier call made its claim.
        age: Duration,
    },
    /// Another owner is at work under the key, and did not finish within the wait of the guard.
    #[error("another is at work on it; its lease ends at {lease_until}")]
    InFlight {
        /// The end of that owner's lease.
        lease_until: Time,
    },
    /// An earlier call may have caused the effect. No call runs the closure until a person or a program resolves the claim.
    #[error("whether it happened is unknown since {since}: a person has to settle it")]
    Unknown {
        /// When the claim became `unknown`.
        since: Time,
    },
    /// The claim under this key has another fingerprint: it was made from another input.
    #[error("the key was used for something else: its fingerprint differs")]
    Mismatch,
    /// The effect happened, but its value was not stored, or does not have the type that this call asks for.
    #[error("it happened {age:?} ago, but its outcome cannot be read: {why}")]
    OutcomeNotReadable {
        /// The time since the earlier call made its claim.
        age: Duration,
        /// Why there is no value, for people.
        why: String,
    },
    /// The store returned an error before the closure began, so the closure did not run.
    #[error(transparent)]
    Store(StoreError),
}

impl Guard {
    /// Runs `effect`, unless an earlier call ran it under `key`. Then returns the value of the earlier call.
    ///
    /// The value of `Ok` is stored as JSON for later callers.
    ///
    /// `Err` states that the effect did not happen. [`Policy::on_failure`](crate::Policy::on_failure) decides what follows: the
    /// claim is released, so that the next caller runs the closure again, or the claim is stored as failed. An effect that
    /// failed and may have happened (a time-out of the provider, a cut connection) must not return `Err` here: use
    /// [`Guard::run_or_unknown`].
    ///
    /// A separate thread renews the lease while the closure runs, even if the closure blocks its own thread. A closure that
    /// hangs therefore holds its key, unless the policy has a [`max_run`](crate::Policy::max_run). By default it has none.
    ///
    /// | event | the claim |
    /// |---|---|
    /// | the future is dropped before the closure begins | given back: nothing happened |
    /// | the future is dropped while the closure runs | in flight until its lease ends, then [`lost`](crate::Policy::lost) decides |
    /// | the closure panics, or runs past `max_run` | `lost` decides at once: a take-over, seen by [`Owner::attempt`], or `unknown` |
    pub async fn run<T, E, K, F, Fut>(&self, key: K, effect: F) -> Result<Ran<T>, RunError<E>>
    where
        T: Serialize + DeserializeOwned,
        K: IntoKey,
        F: FnOnce(Option<Owner>) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.run_with(key, effect, Failure::NotDone).await
    }

    /// Like [`Guard::run`], with a function that says of each error whether the effect surely did not happen, or may have.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::io::{Error, ErrorKind};
    /// use oncegate::{Failure, Gate, Policy, RunError};
    /// # async fn charge_the_card() -> Result<String, Error> { Err(ErrorKind::TimedOut.into()) }
    ///
    /// let charges = Gate::open("memory:").await?.guard("charge", Policy::default())?;
    /// let verdict = |error: Error| match error.kind() {
    ///     ErrorKind::ConnectionRefused => Failure::NotDone(error),
    ///     _ => Failure::Unknown(error),
    /// };
    /// let ran = charges.run_with("order 17", |_| charge_the_card(), verdict).await;
    /// assert!(matches!(ran, Err(RunError::MayHaveHappened(_))));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_with<T, E, K, F, Fut>(
        &self,
        key: K,
        effect: F,
        verdict: impl FnOnce(E) -> Failure<E>,
    ) -> Result<Ran<T>, RunError<E>>
    where
        T: Serialize + DeserializeOwned,
        K: IntoKey,
        F: FnOnce(Option<Owner>) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.run_or_unknown(key, async |owner| effect(owner).await.map_err(verdict)).await
    }

    /// Like [`Guard::run`], for an effect that can fail without knowing whether it happened.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::io::{Error, ErrorKind};
    /// use oncegate::{Failure, Gate, Policy, RunError};
    /// # async fn charge_the_card() -> Result<String, Error> { Err(ErrorKind::TimedOut.into()) }
    ///
    /// let charges = Gate::open("memory:").await?.guard("charge", Policy::default())?;
    /// let charge = |_owner| async {
    ///     charge_the_card().await.map_err(|error| match error.kind() {
    ///         // The request was sent, and no answer came: the card may have been charged.
    ///         ErrorKind::TimedOut | ErrorKind::ConnectionReset => Failure::Unknown(error),
    ///         _ => Failure::NotDone(error),
    ///     })
    /// };
    /// assert!(matches!(charges.run_or_unknown(["order 17"], charge).await, Err(RunError::MayHaveHappened(_))));
    /// // No second charge: a person, or a program that asks the provider, resolves the claim first.
    /// assert!(matches!(charges.run_or_unknown(["order 17"], charge).await, Err(RunError::Unknown { .. })));
    ///
    /// charges.resolve(&charges.key(["order 17"]), true, Some("\"receipt 1\"".into())).await?;
    /// assert_eq!(charges.run_or_unknown(["order 17"], charge).await?.value, "receipt 1");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_or_unknown<T, E, K, F, Fut>(&self, key: K, effect: F) -> Result<Ran<T>, RunError<E>>
    where
        T: Serialize + DeserializeOwned,
        K: IntoKey,
        F: FnOnce(Option<Owner>) -> Fut,
        Fut: Future<Output = Result<T, Failure<E>>>,
    {
        let parts = key.into_key();
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
                match within(self.policy.max_run, effect(None)).await {
                    Ended::Returned(Ok(value)) => Ok(Ran { value, how: How::Unguarded }),
                    Ended::Returned(Err(Failure::NotDone(error))) => Err(RunError::Effect(error)),
                    Ended::Returned(Err(Failure::Unknown(error))) => Err(RunError::MayHaveHappened(error)),
                    Ended::Panicked(panic) => resume_unwind(panic),
                    Ended::TooLong { after } => Err(RunError::TooLong { after }),
                }
            }
            Err(error) => Err(RunError::Store(error)),
        }
    }

    async fn run_owned<T, E, F, Fut>(&self, owner: Owner, effect: F) -> Result<Ran<T>, RunError<E>>
    where
        T: Serialize,
        F: FnOnce(Option<Owner>) -> Fut,
        Fut: Future<Output = Result<T, Failure<E>>>,
    {
        let running = async { effect(Some(owner.clone())).await };
        match run_to_end(&owner, self.policy.max_run, running).await.map_err(RunError::Store)? {
            Ended::Returned(Ok(value)) => {
                let (outcome, not_kept) = match kept(&value) {
                    Ok(json) => (Some(json), None),
                    Err(why) => (None, Some(why)),
                };
                let how = match (finish(owner, Verdict::Done, outcome).await, not_kept) {
                    (How::First, Some(why)) => How::NotKept { why },
                    (how, _) => how,
                };
                Ok(Ran { value, how })
            }
            Ended::Returned(Err(Failure::NotDone(error))) => {
                match self.policy.on_failure {
                    OnFailure::Keep => _ = finish(owner, Verdict::Failed, None).await,
                    OnFailure::Release => give_back(&owner).await,
                }
                Err(RunError::Effect(error))
            }
            Ended::Returned(Err(Failure::Unknown(error))) => {
                finish(owner, Verdict::Unknown, None).await;
                Err(RunError::MayHaveHappened(error))
            }
            Ended::Panicked(panic) => resume_unwind(panic),
            Ended::TooLong { after } => Err(RunError::TooLong { after }),
        }
    }
}

/// The value as JSON, or the reason why it cannot be stored.
fn kept(value: &impl Serialize) -> Result<Bytes, String> {
    let json = serde_json::to_vec(value).map_err(|error| error.to_string())?;
    match json.len() {
        0..=OUTCOME_BYTES_MAX => Ok(json.into()),
        found => Err(format!("it has {found} bytes; at most {OUTCOME_BYTES_MAX} are kept")),
    }
}

/// How an effect ended.
pub(crate) enum Ended<T> {
    Returned(T),
    Panicked(Box<dyn Any + Send>),
    TooLong { after: Duration },
}

/// Runs `effect` while the lease is renewed. If the effect ends without a result, it is dropped first and the claim is
/// abandoned afterwards, so that two owners never work at the same time.
///
/// There is no await between winning the claim and the first poll of `effect`, so the caller cannot be dropped there.
pub(crate) async fn run_to_end<T>(
    owner: &Owner,
    max_run: Option<Duration>,
    effect: impl Future<Output = T>,
) -> Result<Ended<T>, StoreError> {
    let renewing = match renewals::renew(owner, max_run) {
        Ok(renewing) => renewing,
        Err(error) => {
            give_back(owner).await;
            return Err(error);
        }
    };
    let ended = within(max_run, effect).await;
    drop(renewing);
    if !matches!(ended, Ended::Returned(_)) {
        abandon(owner).await;
    }
    Ok(ended)
}

/// Ends the lease now. If that fails, the lease ends by itself.
pub(crate) async fn abandon(owner: &Owner) {
    if let Err(error) = owner.abandon().await {
        tracing::warn!(event = "claim.abandon_failed", claimId = %owner.key().id, %error);
    }
}

/// Cannot stop a closure that blocks its thread. Its renewals stop, so that the lease ends.
async fn within<T>(max_run: Option<Duration>, effect: impl Future<Output = T>) -> Ended<T> {
    let caught = caught(effect);
    let (ended, after) = match max_run {
        None => (Some(caught.await), Duration::MAX),
        Some(max_run) => (tokio::time::timeout(max_run, caught).await.ok(), max_run),
    };
    match ended {
        Some(Ok(returned)) => Ended::Returned(returned),
        Some(Err(panic)) => Ended::Panicked(panic),
        None => Ended::TooLong { after },
    }
}

async fn caught<T>(effect: impl Future<Output = T>) -> std::thread::Result<T> {
    let mut effect = pin!(effect);
    // After a panic the effect is not polled again.
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| effect.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(returned)) => Poll::Ready(Ok(returned)),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// Gives the claim back, because nothing happened: the next caller may try. If the store is unavailable, a background task
/// retries.
pub(crate) async fn give_back(owner: &Owner) {
    let command = crate::ledger::give_back(owner.claim());
    match owner.apply(command.clone()).await {
        Ok(()) => {}
        Err(OwnerError::Fenced(refusal)) => fenced(owner, refusal),
        Err(OwnerError::Store(error)) => {
            tracing::warn!(event = "claim.release_retried", claimId = %owner.key().id, %error);
            retry_in_background(owner, command);
        }
    }
}

/// Settles the claim. The effect has happened, so the caller gets its value whatever the store answers. If the store is
/// unavailable, a background task retries until the store has settled or refused.
pub(crate) async fn finish(owner: Owner, verdict: Verdict, outcome: Option<Bytes>) -> How {
    let command = Command::Settle { token: owner.token(), verdict, outcome };
    match owner.apply(command.clone()).await {
        Ok(()) => How::First,
        Err(OwnerError::Fenced(refusal)) => {
            fenced(&owner, refusal);
            How::Fenced
        }
        Err(OwnerError::Store(error)) => {
            tracing::warn!(event = "claim.settle_retried", claimId = %owner.key().id, %error);
            retry_in_background(&owner, command);
            How::First
        }
    }
}

fn retry_in_background(owner: &Owner, command: Command) {
    let retried = owner.clone();
    owner.ledger().in_background(async move {
        let (owner, ledger) = (&retried, retried.ledger());
        match retry_within_lease(owner.lease(), || ledger.apply(owner.key(), command.clone())).await {
            Ok(Reading { value: Answer::Refused(refusal), .. }) => fenced(owner, refusal),
            Ok(_) => {}
            Err(error) => tracing::error!(event = "claim.retry_given_up", claimId = %owner.key().id, %error),
        }
    });
}

fn fenced(owner: &Owner, refusal: Refusal) {
    tracing::warn!(event = "claim.fenced", claimId = %owner.key().id, %refusal);
}
