//! What comes, and what is kept.

use std::collections::BTreeMap;

use oncegate_core::Time;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Something that has happened elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    #[serde(rename = "type")]
    pub event_type: String,
    /// The same on every delivery of it. Without one, only the state that the saga is in tells a duplicate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Whose ids those are: another source's may be the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Of the instance, if the sender says so; else the definition knows where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    #[serde(default)]
    pub data: Value,
}

impl Event {
    pub fn new(event_type: impl Into<String>, data: Value) -> Event {
        let event_type = event_type.into();
        Event { event_type, id: None, source: None, correlation_id: None, subject: None, time: None, data }
    }

    pub fn id(self, id: impl Into<String>) -> Event {
        Event { id: Some(id.into()), ..self }
    }

    /// What is beside the data, as expressions see it: what is not there is null.
    pub(crate) const FIELDS: [&str; 7] = ["type", "id", "source", "correlationId", "subject", "time", "data"];

    pub(crate) fn envelope(&self) -> Value {
        json!({
            "type": self.event_type, "id": self.id, "source": self.source, "correlationId": self.correlation_id,
            "subject": self.subject, "time": self.time,
        })
    }
}

/// Where a saga stands for one correlation id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    pub state: String,
    pub data: Map<String, Value>,
    /// Events that are to come by themselves, and the id of each: one of the same name that has another is not awaited any more.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub timers: BTreeMap<String, String>,
    /// When it came into its terminal state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_us: Option<i64>,
}

impl Instance {
    pub fn completed_at(&self) -> Option<Time> {
        self.completed_us.map(Time::from_micros)
    }
}
