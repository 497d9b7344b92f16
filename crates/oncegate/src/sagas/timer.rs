//! Timers: an event comes by itself, when its job is due. The job leaves the queue in the commit that applies the event.

use std::sync::Arc;

use oncegate_core::job::Job;
use oncegate_saga::Event;
use oncegate_store::StoreError;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::apply::Also;
use super::{Handled, Sagas};

/// Whose ids the ids of timers are. No sender may say that it is one.
pub const SOURCE: &str = "oncegate:timer";

#[derive(Serialize, Deserialize)]
pub struct Payload {
    pub saga: String,
    pub correlation_id: String,
    pub event: String,
    pub data: Value,
}

/// What became of a timer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fired {
    /// It is over.
    Done { event: String, handled: Handled },
    /// Another worker has it by now.
    Lost,
    /// Its saga is not loaded here: another replica may have it.
    NotOurs { saga: String },
}

impl Sagas {
    /// Applies the event of a timer that is due, to whoever has leased its job.
    pub async fn fire(&self, job: &Job) -> Result<Fired, StoreError> {
        let unreadable = |_| StoreError::Refused(format!("the timer {} cannot be read", job.id));
        let payload: Payload = serde_json::from_slice(&job.payload).map_err(unreadable)?;
        let Some(definition) = self.definition(&payload.saga) else { return Ok(Fired::NotOurs { saga: payload.saga }) };
        let event = Arc::new(Event {
            source: Some(SOURCE.into()),
            correlation_id: Some(payload.correlation_id),
            ..Event::new(payload.event, payload.data).id(job.id.to_string())
        });
        match self.apply(&job.workspace, definition, &event, Also::Timer(job)).await? {
            Some(handled) => Ok(Fired::Done { event: event.event_type.clone(), handled }),
            None => Ok(Fired::Lost),
        }
    }
}
