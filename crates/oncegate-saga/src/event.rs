//! Events, and the stored instances.

use std::collections::BTreeMap;

use oncegate_core::Time;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// An event that has happened elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// The name of the event, as the definition lists it.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The same on every delivery. Without an id, only the state of the saga reveals a duplicate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The source that assigned the id: another source may use the same id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The id of the instance, if the sender gives it. Otherwise the definition says where to find it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// What the event is about, in the sender's words. Expressions can read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// When the event happened, as the sender writes it. Expressions can read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// The payload of the event. It is null if the sender gives none.
    #[serde(default)]
    pub data: Value,
}

impl Event {
    /// An event with this name and data, and nothing else.
    pub fn new(event_type: impl Into<String>, data: Value) -> Event {
        let event_type = event_type.into();
        Event { event_type, id: None, source: None, correlation_id: None, subject: None, time: None, data }
    }

    /// Sets the id by which a second delivery is recognised.
    pub fn id(self, id: impl Into<String>) -> Event {
        Event { id: Some(id.into()), ..self }
    }

    /// The fields beside the data that expressions see. A missing field is null.
    pub(crate) const FIELDS: [&str; 7] = ["type", "id", "source", "correlationId", "subject", "time", "data"];

    pub(crate) fn envelope(&self) -> Value {
        json!({
            "type": self.event_type, "id": self.id, "source": self.source, "correlationId": self.correlation_id,
            "subject": self.subject, "time": self.time,
        })
    }
}

/// The state of a saga for one correlation id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    /// The state that the last applied event led to.
    pub state: String,
    /// The data that the applied events have left, by field.
    pub data: Map<String, Value>,
    /// Scheduled events, and the id of each. A scheduled event of the same name with another id is no longer awaited.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub timers: BTreeMap<String, String>,
    /// When the instance entered its terminal state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_us: Option<i64>,
}

impl Instance {
    /// When the instance entered its terminal state; `None` before that.
    pub fn completed_at(&self) -> Option<Time> {
        self.completed_us.map(Time::from_micros)
    }
}
