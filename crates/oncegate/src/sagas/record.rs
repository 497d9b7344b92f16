//! The records of a saga: its instances, and one line for each event that was applied.

use oncegate_core::{ClaimKey, Time, WorkspaceName};
use oncegate_saga::{Event, Instance};
use oncegate_store::{Change, Record};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::GUARD;
use crate::document::{self, Document};
pub(super) use crate::document::{bytes, read};

/// The kinds of two records: of an instance, and of a line of the history.
pub const INSTANCE: &str = "saga";
pub const LINE: &str = "saga_event";

/// The document of an instance.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stored {
    pub saga: String,
    pub correlation_id: String,
    pub instance: Instance,
    pub created_us: i64,
    pub updated_us: i64,
    /// When the instance expires, once it is in a terminal state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_us: Option<i64>,
}

/// An instance, with its workspace, id and version.
pub type Kept = document::Kept<Stored>;

impl Document for Stored {
    const KIND: &'static str = INSTANCE;

    fn state(&self) -> Option<String> {
        Some(state_of(&self.saga, &self.instance.state))
    }
}

/// A line of the history: an event that was applied.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    /// The name of the event.
    pub event: String,
    /// The id of the event. An event that came without an id has a new one.
    pub event_id: String,
    /// The source that assigned the id, if the event names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The state before the event; `None` if the event created the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The state after the event.
    pub to: String,
    /// The first commands of the event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<Sent>,
    /// The number of all its commands.
    #[serde(default)]
    pub commands_sent: usize,
    /// The names of the events that were scheduled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scheduled: Vec<String>,
    /// The names of the required data that the instance still lacked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// When the event was applied.
    pub at_us: i64,
    /// The name of the replica that applied the event.
    pub replica: String,
}

/// A command that was sent, and the id of its action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// The name of the command.
    pub command: String,
    /// The id of the command's action.
    pub id: Uuid,
}

/// The unique name of an instance. It decides which event creates the instance.
pub fn name_of(saga: &str, correlation_id: &str) -> String {
    format!("{}:{saga}:{correlation_id}", saga.len())
}

/// The state of an instance's record in lists: the saga and the state of the instance.
pub fn state_of(saga: &str, state: &str) -> String {
    format!("{}:{saga}:{state}", saga.len())
}

/// The list of instances, lines or dead letters of one saga, or of one instance.
pub fn list_of(saga: impl std::fmt::Display) -> String {
    format!("saga:{saga}")
}

/// The key of an event in the inbox.
pub fn inbox_key(
    workspace: &WorkspaceName,
    saga: &str,
    correlation_id: &str,
    source: Option<&str>,
    id: &str,
) -> ClaimKey {
    ClaimKey::of(workspace, &GUARD, &[Some(saga), Some(correlation_id), source, Some(id)])
}

impl Stored {
    /// Whether the instance has expired. An expired instance counts as absent, removed or not.
    pub fn is_expired(&self, now: Time) -> bool {
        self.expires_us.is_some_and(|expires_us| now >= Time::from_micros(expires_us))
    }

    pub fn names(&self) -> Vec<String> {
        vec![name_of(&self.saga, &self.correlation_id)]
    }

    pub fn lists(&self) -> Vec<String> {
        vec![list_of(&self.saga)]
    }
}

impl Kept {
    /// The state of the instance.
    pub(super) fn state(&self) -> String {
        self.document.instance.state.clone()
    }

    pub(super) fn removed(&self) -> Change {
        Change::Remove { record: self.record(), names: self.document.names(), lists: self.document.lists() }
    }
}

impl Line {
    /// Creates the record of the line, in the history of this instance.
    pub fn created(&self, workspace: &WorkspaceName, id: Uuid, instance: Uuid) -> Change {
        let body = bytes(self);
        let record =
            Record { workspace: workspace.clone(), kind: LINE, id, version: 1, state: None, expires_at: None, body };
        Change::Create { record, names: vec![], lists: vec![list_of(instance)] }
    }

    /// The key of the line's event in the inbox.
    pub fn inbox_key(&self, workspace: &WorkspaceName, saga: &str, correlation_id: &str) -> ClaimKey {
        inbox_key(workspace, saga, correlation_id, self.source.as_deref(), &self.event_id)
    }
}

/// The id of an event. An event without an id gets a new one.
pub fn id_of(event: &Event) -> String {
    event.id.clone().unwrap_or_else(|| format!("unnamed {}", Uuid::now_v7()))
}
