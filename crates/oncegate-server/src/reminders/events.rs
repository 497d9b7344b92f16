//! What is logged and counted of reminders: never a text, never an address.

use metrics::counter;
use oncegate::WorkspaceName;
use oncegate::reminders::{GUARD, Kept, State};
use uuid::Uuid;

use crate::observe::STOPPED;

#[derive(Clone, Copy, Debug)]
pub enum Event {
    Set,
    /// There was one already.
    Duplicate,
    Moved,
    Cancelled,
    Sent,
    Missed,
    /// A try that surely reached nobody; there will be another.
    Failed,
    /// Whoever sent it was too late to say so.
    LeaseLost,
}

impl Event {
    pub const COUNTER: &str = "oncegate_reminder_events_total";

    /// After a try.
    pub fn of(kept: &Kept) -> Event {
        match kept.reminder.state {
            State::Sent => Event::Sent,
            State::Missed => Event::Missed,
            State::Scheduled | State::Sending | State::Cancelled => Event::Failed,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Event::Set => "reminder.set",
            Event::Duplicate => "reminder.duplicate",
            Event::Moved => "reminder.moved",
            Event::Cancelled => "reminder.cancelled",
            Event::Sent => "reminder.sent",
            Event::Missed => "reminder.missed",
            Event::Failed => "reminder.failed",
            Event::LeaseLost => "reminder.lease_lost",
        }
    }

    pub fn tell(self, workspace: &WorkspaceName, id: Uuid) {
        let event = self.name();
        counter!(Event::COUNTER, "event" => event).increment(1);
        let workspace = workspace.as_str();
        match self {
            Event::Missed => {
                tracing::error!(event, workspace, reminderId = %id, hint = "POST /api/reminders/{id}/send")
            }
            Event::Failed | Event::LeaseLost => tracing::warn!(event, workspace, reminderId = %id),
            Event::Duplicate => {
                counter!(STOPPED, "guard" => GUARD.as_str()).increment(1);
                tracing::info!(event, workspace, reminderId = %id);
            }
            _ => tracing::info!(event, workspace, reminderId = %id),
        }
    }
}
