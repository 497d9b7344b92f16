//! A guard: one policy for all claims under one name.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncegate_core::limits::{LEASE_MAX, SPAN_MIN};
use oncegate_core::{
    Answer, Claim, ClaimKey, Command, GuardName, InvalidName, Policy, Refusal, State, Terms, Time, Token, Verdict,
    WorkspaceName,
};
use oncegate_store::{Cursor, Page, Query, Reading, StoreError};

use crate::key::{IntoKey, Part};
use crate::ledger::Ledger;

/// Makes claims under one name, with one policy. Cheap to clone. [`Guard::run`] runs a closure under a claim.
#[derive(Clone)]
pub struct Guard {
    pub(crate) ledger: Arc<Ledger>,
    workspace: WorkspaceName,
    name: GuardName,
    pub(crate) policy: Policy,
    pub(crate) wait: Duration,
    fingerprint: Option<String>,
}

/// Why a guard was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    /// The name of the guard is invalid.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// A duration of the policy is too short or too long.
    #[error("{field} is {found:?}; it must be {SPAN_MIN:?} to {max:?}")]
    Span {
        /// The name of the duration, for people.
        field: &'static str,
        /// The duration in the policy.
        found: Duration,
        /// The longest duration that is allowed.
        max: Duration,
    },
}

impl Guard {
    pub(crate) fn new(
        ledger: Arc<Ledger>,
        workspace: WorkspaceName,
        name: GuardName,
        policy: Policy,
    ) -> Result<Self, GuardError> {
        let max_run = policy.max_run.unwrap_or(SPAN_MIN);
        for (field, found, max) in [
            ("the lease", policy.lease, LEASE_MAX),
            ("the window", policy.window, Policy::FOR_GOOD),
            ("max_run", max_run, Duration::MAX),
        ] {
            if found < SPAN_MIN || found > max {
                return Err(GuardError::Span { field, found, max });
            }
        }
        Ok(Guard { ledger, workspace, name, policy, wait: Duration::ZERO, fingerprint: None })
    }

    /// Sets the fingerprint of the input. A claim of the same key with another fingerprint is a mismatch.
    pub fn made_from(self, fingerprint: impl Into<String>) -> Self {
        Guard { fingerprint: Some(fingerprint.into()), ..self }
    }

    /// How long a caller waits while another owner works under the same key. The default is not to wait.
    pub fn waiting(self, wait: Duration) -> Self {
        Guard { wait, ..self }
    }

    /// The key made of these parts, under this guard.
    pub fn key(&self, parts: impl IntoKey) -> ClaimKey {
        self.key_of(&parts.into_key())
    }

    /// The name of the guard.
    pub fn name(&self) -> &GuardName {
        &self.name
    }

    pub(crate) fn key_of(&self, parts: &[Part]) -> ClaimKey {
        ClaimKey::of(&self.workspace, &self.name, parts)
    }

    /// Claims `key`. The winner must settle, fail or release the claim through its [`Owner`], and renew the lease while it
    /// works. [`Guard::run`] does all of that.
    ///
    /// If the returned future is dropped before it yields the [`Owner`], a background task gives the claim back.
    pub async fn claim(&self, key: &ClaimKey) -> Result<Claimed, StoreError> {
        self.claim_of(key, None).await
    }

    /// Claims the key made of these parts. The parts are stored with the claim if the policy says so.
    pub(crate) async fn claim_of(&self, key: &ClaimKey, parts: Option<&[Part]>) -> Result<Claimed, StoreError> {
        let parts = parts.filter(|_| self.policy.store_parts).map(parts_as_json);
        let reading = self.ledger.claim_for_owner(key, Terms { parts, ..self.terms() }, self.wait).await?;
        Ok(match reading.value {
            Answer::Won(claim) => Claimed::Won(Owner { ledger: self.ledger.clone(), claim }),
            Answer::Duplicate(claim) => Claimed::Duplicate { age: reading.now.since(claim.created_at), claim },
            Answer::InFlight(claim) => Claimed::InFlight { lease_until: claim.lease_until },
            Answer::Mismatch(_) => Claimed::Mismatch,
            Answer::Held(claim) => Claimed::Held { since: claim.settled_at.unwrap_or(claim.lease_until) },
            other => unreachable!("not an answer to a claim: {other:?}"),
        })
    }

    /// The current claim under `key`.
    pub async fn find(&self, key: &ClaimKey) -> Result<Option<Claim>, StoreError> {
        Ok(self.ledger.read(key).await?.value)
    }

    /// The state of the claim under `key`; `None` if there is no claim. A claim in flight whose lease has ended is in the state that
    /// its policy gives it.
    pub async fn state(&self, key: &ClaimKey) -> Result<Option<State>, StoreError> {
        let Reading { value, now } = self.ledger.read(key).await?;
        Ok(value.map(|claim| claim.state_at(now)))
    }

    /// Lists the claims of this guard, newest first. A page may have fewer than `limit` claims, or none, although there are more: then it
    /// has a cursor.
    pub async fn list(&self, state: Option<State>, limit: usize, after: Option<Cursor>) -> Result<Page, StoreError> {
        let (workspace, guard) = (self.workspace.clone(), Some(self.name.clone()));
        self.ledger.store().scan(Query { workspace, guard, state, limit, after }).await
    }

    /// Removes the claim under `key`, so that the next caller wins. An owner that is still at work is fenced. False: there was no claim.
    pub async fn forget(&self, key: &ClaimKey) -> Result<bool, StoreError> {
        Ok(!matches!(self.ledger.apply(key, Command::Forget).await?.value, Answer::Refused(_)))
    }

    /// Resolves an unknown claim, once a person, or a program that asked the provider, knows whether the effect happened.
    ///
    /// Later callers get `outcome`. For [`Guard::run`] the outcome is its value as JSON; for the tower layer it is a response,
    /// made by `tower::outcome_of`.
    pub async fn resolve(&self, key: &ClaimKey, done: bool, outcome: Option<Bytes>) -> Result<(), ResolveError> {
        match self.ledger.apply(key, Command::Resolve { done, outcome }).await?.value {
            Answer::Refused(refusal) => Err(ResolveError::Refused(refusal)),
            _ => Ok(()),
        }
    }

    fn terms(&self) -> Terms {
        Terms {
            fingerprint: self.fingerprint.clone(),
            ..Terms::new(self.policy.window, self.policy.lease, self.policy.lost)
        }
    }
}

fn parts_as_json(parts: &[Part]) -> String {
    serde_json::to_string(parts).expect("text and integers are JSON")
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("name", &self.name).field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// The result of a claim.
#[derive(Clone, Debug)]
pub enum Claimed {
    /// The caller is the owner of the claim now.
    Won(Owner),
    /// An earlier owner has settled the claim.
    Duplicate {
        /// The settled claim, with its outcome.
        claim: Arc<Claim>,
        /// The time since that owner made the claim.
        age: Duration,
    },
    /// Another owner is at work, and did not finish within the wait.
    InFlight {
        /// The end of that owner's lease.
        lease_until: Time,
    },
    /// The claim has a different fingerprint.
    Mismatch,
    /// The claim is `unknown`. Its owner settled it as unknown, or the owner's lease ended and the policy forbids a take-over.
    Held {
        /// When the claim became `unknown`.
        since: Time,
    },
}

/// The owner of a claim. Every command is fenced: after a take-over the store refuses the commands of the earlier owner.
#[derive(Clone)]
pub struct Owner {
    ledger: Arc<Ledger>,
    claim: Arc<Claim>,
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner").field("claim", &self.claim).finish_non_exhaustive()
    }
}

/// Why a command of an owner failed.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// The store refused the command. Usually the lease has ended, or another owner has taken over the claim.
    #[error("no longer the owner: {0}")]
    Fenced(Refusal),
    /// The store returned an error. The claim may be unchanged.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why an unknown claim was not resolved.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// There is no claim under the key, or the claim is not `unknown`.
    #[error(transparent)]
    Refused(Refusal),
    /// The store returned an error. The claim may be unchanged.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Owner {
    /// The fencing token: pass it to every system that can refuse a smaller token.
    pub fn token(&self) -> Token {
        self.claim.token
    }

    /// 1 for the first owner, larger after each take-over. If it is larger than 1, the effect may have happened before.
    pub fn attempt(&self) -> i32 {
        self.claim.attempt
    }

    /// The key of the claim.
    pub fn key(&self) -> &ClaimKey {
        &self.claim.key
    }

    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    pub(crate) fn lease(&self) -> Duration {
        self.claim.lease
    }

    /// Renews the lease: it ends one full lease from now. [`Guard::run`] does this by itself.
    pub async fn renew(&self) -> Result<(), OwnerError> {
        self.apply(Command::Renew { token: self.token(), lease: None }).await
    }

    /// Settles the claim as done, because the effect happened. Later callers get `outcome`.
    pub async fn settle(&self, outcome: Option<Bytes>) -> Result<(), OwnerError> {
        self.settle_as(Verdict::Done, outcome).await
    }

    /// Settles the claim as failed, because the effect did not happen. Later callers get `outcome`, and run nothing.
    pub async fn fail(&self, outcome: Option<Bytes>) -> Result<(), OwnerError> {
        self.settle_as(Verdict::Failed, outcome).await
    }

    /// Settles the claim as unknown, because the owner cannot say whether the effect happened.
    pub async fn settle_unknown(&self, outcome: Option<Bytes>) -> Result<(), OwnerError> {
        self.settle_as(Verdict::Unknown, outcome).await
    }

    /// Ends the lease now, because the owner stops and cannot say whether the effect happened. The claim becomes what it would
    /// be at the end of its lease: [`Policy::lost`] decides.
    pub async fn abandon(&self) -> Result<(), OwnerError> {
        self.apply(Command::Abandon { token: self.token() }).await
    }

    /// Releases the claim, because nothing happened: the next caller may try.
    pub async fn release(&self) -> Result<(), OwnerError> {
        self.apply(Command::Release { token: self.token() }).await
    }

    pub(crate) async fn settle_as(&self, verdict: Verdict, outcome: Option<Bytes>) -> Result<(), OwnerError> {
        self.apply(Command::Settle { token: self.token(), verdict, outcome }).await
    }

    pub(crate) async fn apply(&self, command: Command) -> Result<(), OwnerError> {
        match self.ledger.apply(self.key(), command).await?.value {
            Answer::Refused(refusal) => Err(OwnerError::Fenced(refusal)),
            _ => Ok(()),
        }
    }
}
