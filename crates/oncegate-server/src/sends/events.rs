//! What is logged and counted of sends: never a recipient.

use metrics::counter;
use oncegate::WorkspaceName;
use oncegate::sends::{Begun, GUARD, State};
use uuid::Uuid;

use crate::observe::STOPPED;

#[derive(Clone, Copy, Debug)]
pub enum Event {
    Begun(Uuid),
    /// It was sent already; nobody can say; another is at it.
    Skipped(&'static str),
    Stands(State),
    /// Whoever said something of it was too late.
    Fenced,
    Resolved,
}

impl Event {
    pub const COUNTER: &str = "oncegate_send_events_total";

    pub fn of(begun: &Begun) -> Event {
        match begun {
            Begun::Proceed(proceed) => Event::Begun(proceed.id),
            Begun::Sent(_) => Event::Skipped("sent"),
            Begun::Unknown { .. } => Event::Skipped("unknown"),
            Begun::Busy { .. } => Event::Skipped("busy"),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Event::Begun(_) => "send.begun",
            Event::Skipped(_) => "send.skipped",
            Event::Stands(State::Sending) => "send.renewed",
            Event::Stands(State::Sent) => "send.sent",
            Event::Stands(State::Failed) => "send.failed",
            Event::Stands(State::Lost) => "send.lost",
            Event::Stands(State::Unknown) => "send.unknown",
            Event::Fenced => "send.fenced",
            Event::Resolved => "send.resolved",
        }
    }

    pub fn tell(self, workspace: &WorkspaceName, id: Option<Uuid>) {
        let event = self.name();
        counter!(Event::COUNTER, "event" => event).increment(1);
        let workspace = workspace.as_str();
        let send_id = id.map(|id| id.to_string());
        match self {
            Event::Begun(id) => tracing::info!(event, workspace, sendId = %id),
            Event::Skipped(why) => {
                counter!(STOPPED, "guard" => GUARD.as_str()).increment(1);
                tracing::info!(event, workspace, why);
            }
            Event::Stands(State::Lost | State::Unknown | State::Failed) | Event::Fenced => {
                tracing::warn!(event, workspace, sendId = send_id);
            }
            _ => tracing::info!(event, workspace, sendId = send_id),
        }
    }
}
