//! A policy: what distinguishes one guard from another.
//!
//! All guards are one mechanism with different answers to five questions. How long
//! does a claim last? What happens if its owner dies, if its effect fails, if its
//! effect does not end, or if the store is unavailable?

use std::time::Duration;

/// What happens to a claim whose owner was lost before it settled: its lease ended, its effect panicked, or its effect ran
/// for longer than `max_run`. The effect may have happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lost {
    /// The next caller becomes the owner, under a larger token.
    #[default]
    TakeOver,
    /// No caller becomes the owner: the claim is `unknown` until a person or a reconcile hook settles it.
    Hold,
}

/// What happens to a claim whose effect failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// Release the claim, so that the next caller tries again. For effects that surely did not happen.
    #[default]
    Release,
    /// Keep the claim as `failed` for the rest of the window.
    Keep,
}

/// What to do with an effect when the store is unavailable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreError {
    /// Let the effect happen unguarded, and report that.
    Open,
    /// Refuse the effect.
    #[default]
    Closed,
}

/// How a guard treats its claims, their owners and their effects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How long a decision is valid, counted from the claim.
    pub window: Duration,
    /// How long an owner may go without a renewal before it counts as lost.
    pub lease: Duration,
    /// What happens to a claim whose owner is lost.
    pub lost: Lost,
    /// How long an effect may run. After that the owner stops and counts as lost, and `lost` decides what happens to the claim.
    ///
    /// `None`: the lease of a closure is renewed for as long as the closure runs, so a closure that hangs holds its key. Guarded
    /// HTTP requests then run for at most [`REQUEST_RUN_MAX`](crate::limits::REQUEST_RUN_MAX).
    pub max_run: Option<Duration>,
    /// What happens to a claim whose effect failed.
    pub on_failure: OnFailure,
    /// Whether effects happen unguarded while the store is unavailable.
    pub on_store_error: OnStoreError,
    /// Whether the parts of the key are kept with the claim. They may be personal data.
    pub store_parts: bool,
}

impl Policy {
    /// The window of the default policy: 24 hours.
    pub const DEFAULT_WINDOW: Duration = Duration::from_secs(24 * 3600);
    /// The lease of the default policy: 30 seconds.
    pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);
    /// A window that never ends.
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
