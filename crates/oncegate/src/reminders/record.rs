//! The record of a reminder. Pure: no clock, no store.

use std::time::Duration;

use oncegate_core::job::{Delivery, Job, Reached, Tries};
use oncegate_core::{ClaimKey, Time, WorkspaceName};
use oncegate_store::Change;
use serde::{Deserialize, Serialize};

use super::{GUARD, JOB};
use crate::document::{self, Document, Resolved};

/// The kind of the records of reminders.
pub const KIND: &str = "reminder";
/// How many deliveries a reminder keeps: the last ones.
const DELIVERIES_KEPT: usize = 20;
/// The pauses between tries that surely reached no recipient. The grace limits how many tries there are.
const TRIES: Tries = Tries { max: 10_000, pause: Duration::from_secs(2), pause_max: Duration::from_secs(60) };

/// The state of a reminder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It waits for its due time, and its flag is not set.
    Scheduled,
    /// Its flag is set. The worker calls the carrier, or will retry within the grace.
    Sending,
    /// The carrier has accepted it, or a person has resolved it as sent.
    Sent,
    /// Its flag is set, or its time is over, and no worker knows that it was sent.
    Missed,
    /// It was cancelled before its flag was set, or it was missed and a person has resolved it as not sent.
    Cancelled,
}

impl State {
    /// All states.
    pub const ALL: [State; 5] = [State::Scheduled, State::Sending, State::Sent, State::Missed, State::Cancelled];

    /// The name of the state, as the API shows it and the stores write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Scheduled => "scheduled",
            State::Sending => "sending",
            State::Sent => "sent",
            State::Missed => "missed",
            State::Cancelled => "cancelled",
        }
    }

    /// The state with this name; `None` if no state has it.
    pub fn parse(name: &str) -> Option<State> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

/// The recipient and the message of a reminder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    /// The name of the channel that sends the message.
    pub channel: String,
    /// The phone number of the recipient, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phone: Option<String>,
    /// The email address of the recipient, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// The text of the message.
    pub message: String,
}

/// A row of the delivery log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// When the try ended, or when the reminder counted as missed.
    pub at_us: i64,
    /// `None` if it was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether it may have reached the recipient despite the error.
    #[serde(default)]
    pub maybe: bool,
    /// The provider's id of the message, if the provider gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_message_id: Option<String>,
}

impl Row {
    pub(super) fn sent(provider_message_id: Option<String>, now: Time) -> Row {
        Row { at_us: now.micros(), error: None, maybe: false, provider_message_id }
    }

    pub(super) fn failed(error: String, reached: Reached, now: Time) -> Row {
        Row { at_us: now.micros(), error: Some(error), maybe: reached == Reached::Maybe, provider_message_id: None }
    }
}

/// The document in the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reminder {
    /// The id of the booking.
    pub booking: String,
    /// The kind of the reminder.
    pub kind: String,
    /// When the reminder is due.
    pub send_at_us: i64,
    /// The recipient and the message.
    #[serde(flatten)]
    pub text: Text,
    /// The state of the reminder.
    pub state: State,
    /// When the flag was set, which is before the carrier was called. It is never reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flagged_us: Option<i64>,
    /// The end of the grace: until then a try that surely reached no recipient may be repeated.
    pub grace_until_us: i64,
    /// The last rows of the delivery log, oldest first.
    pub deliveries: Vec<Row>,
    /// The person who last had the missed reminder sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_by: Option<String>,
    /// How a person resolved the missed reminder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Resolved>,
    /// When the reminder was created.
    pub created_us: i64,
    /// When the reminder was sent, missed or cancelled; `None` before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_us: Option<i64>,
}

impl Reminder {
    /// Whether the flag is set. A worker sets it before it calls the carrier.
    pub fn reminder_sent(&self) -> bool {
        self.flagged_us.is_some()
    }

    /// Whether the queue has a job for it.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.state, State::Scheduled | State::Sending)
    }

    /// With the flag set: from here on the carrier may be called.
    pub(super) fn flagged(&self, now: Time) -> Reminder {
        let flagged_us = self.flagged_us.or(Some(now.micros()));
        Reminder { state: State::Sending, flagged_us, ..self.clone() }
    }

    /// With another row in the delivery log.
    pub(super) fn logged(&self, row: Row) -> Reminder {
        let mut reminder = self.clone();
        if reminder.deliveries.len() == DELIVERIES_KEPT {
            reminder.deliveries.remove(0);
        }
        reminder.deliveries.push(row);
        reminder
    }

    pub(super) fn ended(&self, state: State, now: Time) -> Reminder {
        Reminder { state, ended_us: Some(now.micros()), ..self.clone() }
    }

    /// Whether the grace is over, so that no worker may begin.
    pub(super) fn is_overdue(&self, now: Time) -> bool {
        now.micros() > self.grace_until_us
    }
}

pub(super) fn key_of(workspace: &WorkspaceName, booking: &str, kind: &str) -> ClaimKey {
    ClaimKey::of(workspace, &GUARD, &[Some(booking), Some(kind)])
}

pub(super) fn list_of(booking: &str) -> String {
    format!("booking:{booking}")
}

/// A reminder, with its workspace, id and version.
pub type Kept = document::Kept<Reminder>;

impl Document for Reminder {
    const KIND: &'static str = KIND;

    fn state(&self) -> Option<String> {
        Some(self.state.as_str().to_owned())
    }
}

impl Kept {
    pub(super) fn created(&self) -> Change {
        let Reminder { booking, kind, .. } = &self.document;
        // The name belongs to one reminder, even after a person has removed the claim.
        let names = vec![key_of(&self.workspace, booking, kind).id.to_string()];
        Change::Create { record: self.record(), names, lists: vec![list_of(booking)] }
    }

    pub(super) fn replaced(&self) -> Change {
        Change::replace(self.record())
    }

    /// The job that sends it. It is delivered at most once, so the worker records the beginning before it sends.
    pub(super) fn job(&self, due_at: Time, now: Time) -> Job {
        let new = Job::new(&self.workspace, self.id, JOB, Default::default(), TRIES, now);
        Job { due_at, delivery: Delivery::AtMostOnce, ..new }
    }
}
