//! A guard: one policy over claims under one name.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncegate_core::limits::{LEASE_MAX, SPAN_MIN};
use oncegate_core::{
    Answer, Claim, ClaimKey, Command, GuardName, InvalidName, Policy, Refusal, Terms, Time, Token, Verdict,
    WorkspaceName,
};
use oncegate_store::StoreError;

use crate::key::Part;
use crate::ledger::Ledger;

/// Cheap to clone. How a closure is run under it: [`Guard::run`].
#[derive(Clone)]
pub struct Guard {
    pub(crate) ledger: Arc<Ledger>,
    workspace: WorkspaceName,
    name: GuardName,
    pub(crate) policy: Policy,
    pub(crate) wait: Duration,
    fingerprint: Option<String>,
}

/// Why there is no such guard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error("{field} is {found:?}; it must be {SPAN_MIN:?} to {max:?}")]
    Span { field: &'static str, found: Duration, max: Duration },
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

    /// What is run under a key must be this: the same key for another fingerprint is a mismatch.
    pub fn made_from(self, fingerprint: impl Into<String>) -> Self {
        Guard { fingerprint: Some(fingerprint.into()), ..self }
    }

    /// How long a caller waits where another is at work on the same key. Not at all unless told.
    pub fn waiting(self, wait: Duration) -> Self {
        Guard { wait, ..self }
    }

    /// The key of these parts under this guard.
    pub fn key<K>(&self, parts: K) -> ClaimKey
    where
        K: IntoIterator,
        K::Item: Into<Part>,
    {
        self.key_of(&crate::key::parts(parts))
    }

    pub(crate) fn key_of(&self, parts: &[Part]) -> ClaimKey {
        ClaimKey::of(&self.workspace, &self.name, parts)
    }

    /// Claims `key`. The winner must settle, fail or release through its [`Owner`], and renew while it works;
    /// [`Guard::run`] does all of that.
    ///
    /// If the returned future is dropped before it has given the [`Owner`], a task gives the claim back.
    pub async fn claim(&self, key: &ClaimKey) -> Result<Claimed, StoreError> {
        self.claim_of(key, None).await
    }

    /// Claims the key of these parts, which are kept with it where the policy says so.
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

    /// The claim under `key` as it stands.
    pub async fn find(&self, key: &ClaimKey) -> Result<Option<Claim>, StoreError> {
        Ok(self.ledger.read(key).await?.value)
    }

    /// Settles an unknown claim: a person, or a program that asked the provider, knows whether the effect happened.
    ///
    /// Later callers get `outcome`: for [`Guard::run`] its value as JSON, for the tower layer
    /// `layer::outcome_of` a response.
    pub async fn resolve(&self, key: &ClaimKey, done: bool, outcome: Option<Bytes>) -> Result<(), ResolveError> {
        match self.ledger.apply(key, Command::Resolve { done, outcome }).await?.value {
            Answer::Refused(refusal) => Err(ResolveError::Refused(refusal)),
            _ => Ok(()),
        }
    }

    fn terms(&self) -> Terms {
        Terms {
            window: self.policy.window,
            lease: self.policy.lease,
            lost: self.policy.lost,
            fingerprint: self.fingerprint.clone(),
            attributes: None,
            parts: None,
            outcome: None,
            replaces: None,
        }
    }
}

fn parts_as_json(parts: &[Part]) -> String {
    serde_json::to_string(parts).expect("text and integers are JSON")
}

/// What a caller gets.
pub enum Claimed {
    Won(Owner),
    /// Settled already.
    Duplicate {
        claim: Arc<Claim>,
        age: Duration,
    },
    /// Another is at work, and was until the wait was over.
    InFlight {
        lease_until: Time,
    },
    /// Made from a different fingerprint.
    Mismatch,
    /// Its owner is gone, and no caller may take over: `unknown`.
    Held {
        since: Time,
    },
}

/// The owner of a claim. Every verb is fenced: once another owns it, all of them are refused.
#[derive(Clone)]
pub struct Owner {
    ledger: Arc<Ledger>,
    claim: Arc<Claim>,
}

#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    #[error("no longer the owner: {0}")]
    Fenced(Refusal),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why an unknown claim was not resolved.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    #[error(transparent)]
    Refused(Refusal),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Owner {
    /// The fencing token: pass it on to whatever can refuse a smaller one.
    pub fn token(&self) -> Token {
        self.claim.token
    }

    /// 1 for the first owner; more after take-overs: the effect may have happened before.
    pub fn attempt(&self) -> i32 {
        self.claim.attempt
    }

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

    pub async fn renew(&self) -> Result<(), OwnerError> {
        self.apply(Command::Renew { token: self.token(), lease: None }).await
    }

    pub async fn settle(&self, outcome: Option<Bytes>) -> Result<(), OwnerError> {
        self.settle_as(Verdict::Done, outcome).await
    }

    pub async fn fail(&self, outcome: Option<Bytes>) -> Result<(), OwnerError> {
        self.settle_as(Verdict::Failed, outcome).await
    }

    /// The owner cannot say whether the effect happened.
    pub async fn settle_unknown(&self, outcome: Option<Bytes>) -> Result<(), OwnerError> {
        self.settle_as(Verdict::Unknown, outcome).await
    }

    /// The owner stops, and cannot say whether the effect happened. At once the claim is what it would be at the end of its
    /// lease: [`Policy::lost`] decides.
    pub async fn abandon(&self) -> Result<(), OwnerError> {
        self.apply(Command::Abandon { token: self.token() }).await
    }

    /// Nothing happened: the next caller may try.
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
