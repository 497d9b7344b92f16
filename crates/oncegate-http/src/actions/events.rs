//! What is logged and counted about actions: never a payload.

use metrics::counter;
use oncegate::WorkspaceName;
use oncegate::actions::{GUARD, Status};
use oncegate::worker::{ActionEvent, type_of};
use oncegate_core::job::Job;
use uuid::Uuid;

use crate::observe::STOPPED;

#[derive(Clone, Copy, Debug)]
pub enum Event {
    Scheduled,
    /// A duplicate was coalesced into the action: the new revision.
    Deduplicated(i64),
    Ended(Status),
    /// A failed attempt that will be retried.
    Failed,
    /// The worker reported its outcome too late: its lease was lost.
    LeaseLost,
}

impl Event {
    pub const COUNTER: &str = "oncegate_action_events_total";

    const fn name(self) -> &'static str {
        match self {
            Event::Scheduled => "action.scheduled",
            Event::Deduplicated(_) => "action.deduplicated",
            Event::Ended(Status::Completed) => "action.completed",
            Event::Ended(Status::Dead) => "action.dead",
            Event::Ended(Status::Cancelled) => "action.cancelled",
            Event::Ended(_) => "action.unknown",
            Event::Failed => "action.failed",
            Event::LeaseLost => "action.lease_lost",
        }
    }

    pub fn tell(self, workspace: &WorkspaceName, id: Uuid, action_type: &str) {
        let event = self.name();
        counter!(Event::COUNTER, "event" => event).increment(1);
        let workspace = workspace.as_str();
        match self {
            Event::Deduplicated(revision) => {
                counter!(STOPPED, "guard" => GUARD.as_str()).increment(1);
                tracing::info!(event, workspace, actionId = %id, actionType = action_type, revision);
            }
            Event::Ended(Status::Dead | Status::Unknown) | Event::Failed | Event::LeaseLost => {
                tracing::warn!(event, workspace, actionId = %id, actionType = action_type);
            }
            _ => tracing::info!(event, workspace, actionId = %id, actionType = action_type),
        }
    }
}

/// Logs one line for the end of a run.
pub fn tell(job: &Job, event: ActionEvent) {
    let (event, id) = match event {
        ActionEvent::Failed => (Event::Failed, job.id),
        ActionEvent::Ended(id, status) => (Event::Ended(status), id),
        ActionEvent::LeaseLost => (Event::LeaseLost, job.id),
    };
    event.tell(&job.workspace, id, type_of(job));
}
