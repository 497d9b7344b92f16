//! What is logged and counted about reminders: never a text, never an address.

use metrics::counter;
use oncegate::WorkspaceName;
use oncegate::reminders::GUARD;
use oncegate::worker::ReminderEvent;
use uuid::Uuid;

use crate::observe::STOPPED;

#[derive(Clone, Copy, Debug)]
pub enum Event {
    Set,
    /// The reminder existed already.
    Duplicate,
    Moved,
    Cancelled,
    Sent,
    Missed,
    /// An attempt that reached no recipient for certain. It will be retried.
    Failed,
    /// The worker reported its attempt too late: its lease was lost.
    LeaseLost,
}

impl Event {
    pub const COUNTER: &str = "oncegate_reminder_events_total";

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

impl From<ReminderEvent> for Event {
    fn from(event: ReminderEvent) -> Event {
        match event {
            ReminderEvent::Sent => Event::Sent,
            ReminderEvent::Missed => Event::Missed,
            ReminderEvent::Failed => Event::Failed,
            ReminderEvent::LeaseLost => Event::LeaseLost,
        }
    }
}
