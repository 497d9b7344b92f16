//! A policy: what tells one guard from another.
//!
//! The guards are one mechanism with different answers to five questions: how
//! long does a claim stand, what if its owner dies, what if its effect fails,
//! what if its effect does not end, and what if the store is away.

use std::time::Duration;

/// What becomes of a claim whose owner is gone before it settled: its lease ended, its effect panicked, or its effect ran
/// for longer than `max_run`. The effect may have happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lost {
    /// The next caller becomes the owner, under a larger token.
    #[default]
    TakeOver,
    /// No caller does: the claim is `unknown` until a person or a reconcile hook settles it.
    Hold,
}

/// What becomes of a claim whose effect failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// Given back, so that the next caller tries afresh. For effects that surely did not happen.
    #[default]
    Release,
    /// Kept as `failed` for the rest of the window.
    Keep,
}

/// What to do with an effect when the store cannot be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreError {
    /// Let it happen, unguarded, and say so.
    Open,
    /// Refuse it.
    #[default]
    Closed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How long a decision stands, from the claim.
    pub window: Duration,
    /// How long an owner may be silent before it counts as dead.
    pub lease: Duration,
    pub lost: Lost,
    /// How long an effect may run. Past it the owner stops and counts as lost, and `lost` decides what becomes of the claim.
    ///
    /// `None`: the lease of a closure is renewed for as long as it runs, so a closure that hangs holds its key. Guarded HTTP
    /// requests then run for at most [`REQUEST_RUN_MAX`](crate::limits::REQUEST_RUN_MAX).
    pub max_run: Option<Duration>,
    pub on_failure: OnFailure,
    pub on_store_error: OnStoreError,
    /// Whether the parts of the key are kept with the claim. They may be personal data.
    pub store_parts: bool,
}

impl Policy {
    pub const DEFAULT_WINDOW: Duration = Duration::from_secs(24 * 3600);
    pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);
    /// A window that does not end.
    pub const FOR_GOOD: Duration = Duration::MAX;
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            window: Self::DEFAULT_WINDOW,
            lease: Self::DEFAULT_LEASE,
            lost: Lost::default(),
            max_run: None,
            on_failure: OnFailure::default(),
            on_store_error: OnStoreError::default(),
            store_parts: false,
        }
    }
}
