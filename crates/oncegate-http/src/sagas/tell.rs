//! What is logged and counted about sagas: never the data of an event.

use metrics::counter;
use oncegate::WorkspaceName;
use oncegate::sagas::{GUARD, Handled, Outcome};

use crate::observe::STOPPED;

pub const COUNTER: &str = "oncegate_saga_events_total";
const CONFLICTS: &str = "oncegate_saga_conflicts_total";

/// One line and one counter for each event.
pub fn handled(workspace: &WorkspaceName, event_type: &str, handled: &Handled) {
    let result = handled.outcome.as_str();
    let saga = handled.saga.clone().unwrap_or_default();
    counter!(COUNTER, "saga" => saga.clone(), "result" => result).increment(1);
    counter!(CONFLICTS, "saga" => saga.clone()).increment(u64::from(handled.conflicts));
    let (workspace, state, conflicts) = (workspace.as_str(), handled.state.as_deref(), handled.conflicts);
    match &handled.outcome {
        Outcome::Applied { missing } if !missing.is_empty() => {
            let missing = missing.join(", ");
            tracing::warn!(event = "saga.incomplete", workspace, saga, eventType = event_type, state, missing);
        }
        Outcome::Applied { .. } => {
            tracing::info!(event = "saga.applied", workspace, saga, eventType = event_type, state, conflicts);
        }
        Outcome::Ignored => tracing::info!(event = "saga.ignored", workspace, saga, eventType = event_type, state),
        Outcome::Duplicate => {
            counter!(STOPPED, "guard" => GUARD.as_str()).increment(1);
            tracing::info!(event = "saga.duplicate", workspace, saga, eventType = event_type, state);
        }
        // The reason is left out: it may quote the event's data.
        Outcome::DeadLetter { id, .. } => {
            tracing::warn!(event = "saga.dead_letter", workspace, saga, eventType = event_type, state, deadLetterId = %id);
        }
    }
}
