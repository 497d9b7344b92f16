//! Hears of every decision.

use oncegate_core::{Answer, Claim, ClaimKey, Command, Time};
use oncegate_store::StoreError;

/// Hears of the decisions of the ledger. The ledger calls it on the task of the caller, so an implementation must be fast.
pub trait Observer: Send + Sync + 'static {
    /// The store has answered a command on a claim.
    fn decided(&self, _decided: &Decided<'_>) {}
    /// A decision within a larger commit. No `decided` call follows; the maker of the commit reports what the commit was for.
    fn counted(&self, _decided: &Decided<'_>) {}
    /// A caller met the claim of another owner. If the caller made a claim, the `decided` or `counted` call follows.
    fn met(&self, _claim: &Claim, _now: Time) {}
    /// A duplicate seen by a read-only lookup. No `decided` call follows.
    fn met_alone(&self, _claim: &Claim, _now: Time) {}
    /// The store returned an error for a command on the claim under this key, or for a read of it.
    fn store_failed(&self, _key: &ClaimKey, _error: &StoreError) {}
    /// The sweeper has removed this number of expired claims.
    fn swept(&self, _claims: usize) {}
}

/// A command on a claim, and the answer to it.
pub struct Decided<'a> {
    /// The key of the claim.
    pub key: &'a ClaimKey,
    /// The command on the claim.
    pub command: &'a Command,
    /// The store's answer to the command. It says whether the claim has changed.
    pub answer: &'a Answer,
    /// The store's time of the answer.
    pub now: Time,
    /// Whether the caller waited for the owner of the claim.
    pub waited: bool,
}

/// The observer that does nothing.
impl Observer for () {}
