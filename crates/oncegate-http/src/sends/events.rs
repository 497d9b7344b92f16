//! What is logged and counted about sends: never a recipient.

use metrics::counter;
use oncegate::sends::{Begun, GUARD, State};
use oncegate::{ClaimId, WorkspaceName};
use uuid::Uuid;

use crate::observe::STOPPED;

/// The counter of send outcomes.
pub const COUNTER: &str = "oncegate_send_events_total";

/// The answer to a worker that is about to send.
pub fn begun(workspace: &WorkspaceName, claim: ClaimId, begun: &Begun) {
    let (event, why, send) = match begun {
        Begun::Proceed(proceed) => ("send.begun", None, Some(proceed.id)),
        Begun::Sent(sent) => ("send.skipped", Some("sent"), Some(sent.id)),
        Begun::Unknown { id } => ("send.skipped", Some("unknown"), Some(*id)),
        Begun::Busy { .. } => ("send.skipped", Some("busy"), None),
    };
    counter!(COUNTER, "event" => event).increment(1);
    if why.is_some() {
        counter!(STOPPED, "guard" => GUARD.as_str()).increment(1);
    }
    let (workspace, claim_id, send_id) = (workspace.as_str(), claim.to_hex(), send.map(|id| id.to_string()));
    let attempt = match begun {
        Begun::Proceed(proceed) => Some(proceed.attempt),
        _ => None,
    };
    tracing::info!(event, workspace, claimId = &*claim_id, sendId = send_id, attempt, why);
}

/// The outcome of a send that was begun.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    Stands(State),
    /// The owner reported its send too late: its lease was lost.
    Fenced,
    Resolved,
}

impl Event {
    const fn name(self) -> &'static str {
        match self {
            Event::Stands(State::Sending) => "send.renewed",
            Event::Stands(State::Sent) => "send.sent",
            Event::Stands(State::Failed) => "send.failed",
            Event::Stands(State::Lost) => "send.lost",
            Event::Stands(State::Unknown) => "send.unknown",
            Event::Fenced => "send.fenced",
            Event::Resolved => "send.resolved",
        }
    }

    pub fn tell(self, workspace: &WorkspaceName, id: Uuid) {
        let event = self.name();
        counter!(COUNTER, "event" => event).increment(1);
        let workspace = workspace.as_str();
        match self {
            Event::Stands(State::Lost | State::Unknown | State::Failed) | Event::Fenced => {
                tracing::warn!(event, workspace, sendId = %id);
            }
            _ => tracing::info!(event, workspace, sendId = %id),
        }
    }
}
