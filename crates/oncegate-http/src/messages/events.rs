//! What is logged and counted about messages: never a text, never an address.

use std::time::Duration;

use metrics::counter;
use oncegate::messages::{Event, GUARD, IDEMPOTENCY};
use oncegate::{ClaimKey, StoreError, WorkspaceName};
use uuid::Uuid;

use crate::observe::STOPPED;

/// The counter of message outcomes.
pub const EVENTS: &str = "oncegate_message_events_total";

const fn name(event: Event) -> &'static str {
    match event {
        Event::Sent => "message.api.sent",
        Event::Failed => "message.api.failed",
        Event::Unknown => "message.api.unknown",
        Event::DuplicateBlocked(_) => "message.api.duplicate_blocked",
        Event::DuplicateObserved => "message.api.duplicate_observed",
        Event::DuplicatePending => "message.api.duplicate_pending",
        Event::Replayed => "message.api.replayed",
    }
}

pub fn tell(
    happened: Event,
    workspace: &WorkspaceName,
    claim: Option<&ClaimKey>,
    message: Option<Uuid>,
    age: Duration,
) {
    let event = name(happened);
    counter!(EVENTS, "event" => event).increment(1);
    match happened {
        Event::DuplicateBlocked(_) | Event::DuplicatePending => {
            counter!(STOPPED, "guard" => GUARD.as_str()).increment(1);
        }
        Event::Replayed => counter!(STOPPED, "guard" => IDEMPOTENCY.as_str()).increment(1),
        _ => {}
    }
    let (workspace, age_seconds) = (workspace.as_str(), age.as_secs_f64());
    let claim_id = claim.map(|key| key.id.to_string());
    let message_id = message.map(|id| id.to_string());
    match happened {
        Event::DuplicateBlocked(mode) => {
            tracing::info!(event, workspace, claimId = claim_id, messageId = message_id, ageSeconds = age_seconds, mode)
        }
        Event::Failed | Event::Unknown => {
            tracing::warn!(event, workspace, claimId = claim_id, messageId = message_id, ageSeconds = age_seconds)
        }
        _ => tracing::info!(event, workspace, claimId = claim_id, messageId = message_id, ageSeconds = age_seconds),
    }
}

/// The guard store did not answer.
pub fn tell_guard_failed(key: &ClaimKey, error: &StoreError) {
    let event = "message.api.duplicate_guard_error";
    counter!(EVENTS, "event" => event).increment(1);
    tracing::error!(event, workspace = %key.workspace, claimId = %key.id, %error);
}
