//! What is logged and counted about messages: never a text, never an address.

use metrics::counter;
use oncegate::StoreError;
use oncegate::{ClaimKey, WorkspaceName};
use uuid::Uuid;

use crate::observe::STOPPED;

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    Sent,
    Failed,
    Unknown,
    /// How the original was found: at once, or after a wait.
    DuplicateBlocked(&'static str),
    /// A duplicate that was let through, because duplicates are only observed.
    DuplicateObserved,
    /// The original is not written yet.
    DuplicatePending,
    Replayed,
}

impl Event {
    pub const COUNTER: &str = "oncegate_message_events_total";

    const fn name(self) -> &'static str {
        match self {
            Event::Sent => "message.api.sent",
            Event::Failed => "message.api.failed",
            Event::Unknown => "message.api.unknown",
            Event::DuplicateBlocked(_) => "message.api.duplicate_blocked",
            Event::DuplicateObserved => "message.api.duplicate_observed",
            Event::DuplicatePending => "message.api.duplicate_pending",
            Event::Replayed => "message.api.replayed",
        }
    }

    pub fn tell(self, workspace: &WorkspaceName, claim: Option<&ClaimKey>, message: Option<Uuid>, age_seconds: f64) {
        let event = self.name();
        counter!(Event::COUNTER, "event" => event).increment(1);
        match self {
            Event::DuplicateBlocked(_) | Event::DuplicatePending => {
                counter!(STOPPED, "guard" => super::GUARD.as_str()).increment(1);
            }
            Event::Replayed => counter!(STOPPED, "guard" => super::IDEMPOTENCY.as_str()).increment(1),
            _ => {}
        }
        let workspace = workspace.as_str();
        let claim_id = claim.map(|key| key.id.to_string());
        let message_id = message.map(|id| id.to_string());
        match self {
            Event::DuplicateBlocked(mode) => tracing::info!(
                event,
                workspace,
                claimId = claim_id,
                messageId = message_id,
                ageSeconds = age_seconds,
                mode
            ),
            Event::Failed | Event::Unknown => {
                tracing::warn!(event, workspace, claimId = claim_id, messageId = message_id, ageSeconds = age_seconds)
            }
            _ => tracing::info!(event, workspace, claimId = claim_id, messageId = message_id, ageSeconds = age_seconds),
        }
    }
}

/// The guard store did not answer.
pub fn guard_error(key: &ClaimKey, error: &StoreError) {
    let event = "message.api.duplicate_guard_error";
    counter!(Event::COUNTER, "event" => event).increment(1);
    tracing::error!(event, workspace = %key.workspace, claimId = %key.id, %error);
}
