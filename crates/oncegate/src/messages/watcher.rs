//! What a program hears of its messages: never a text, never an address.

use std::time::Duration;

use async_trait::async_trait;
use oncegate_core::{ClaimKey, WorkspaceName};
use oncegate_store::StoreError;
use uuid::Uuid;

/// What happened to a message or to its duplicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It was sent.
    Sent,
    /// It surely was not sent.
    Failed,
    /// It may have been sent, and is not sent again.
    Unknown,
    /// A duplicate was not sent. The word says how its original was found: at once, or after a wait.
    DuplicateBlocked(&'static str),
    /// A duplicate that was let through, because duplicates are only observed.
    DuplicateObserved,
    /// A duplicate whose original is not written yet.
    DuplicatePending,
    /// A request with a known Idempotency-Key got the first answer again.
    Replayed,
}

/// Hears of messages. The server logs and counts them, and its tests end the process at the steps.
#[async_trait]
pub trait Watcher: Send + Sync + 'static {
    /// A message has reached this step.
    async fn reached(&self, _step: &'static str) {}

    /// This has happened. `age` is the time since the message, or its claim, was created.
    fn message(
        &self,
        _event: Event,
        _workspace: &WorkspaceName,
        _claim: Option<&ClaimKey>,
        _message: Option<Uuid>,
        _age: Duration,
    ) {
    }

    /// The separate guard store did not answer.
    fn guard_failed(&self, _claim: &ClaimKey, _error: &StoreError) {}
}

impl Watcher for () {}
