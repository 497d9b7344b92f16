//! Timers: an event that comes by itself when its job is due. The commit that applies the event removes the job.

use std::sync::Arc;

use oncegate_core::job::Job;
use oncegate_saga::Event;
use oncegate_store::StoreError;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::apply::Also;
use super::{Handled, Sagas};

/// The source of the events of timers. No sender may use it.
pub const SOURCE: &str = "oncegate:timer";

#[derive(Serialize, Deserialize)]
pub struct Payload {
    pub saga: String,
    pub correlation_id: String,
    pub event: String,
    pub data: Value,
}

/// The result of a timer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fired {
    /// The timer was applied, and its job is removed.
    Done {
        /// The name of the timer's event.
        event: String,
        /// What the event did.
        handled: Handled,
    },
    /// Another worker has the timer now.
    Lost,
    /// This replica has not loaded the saga of the timer; another replica may have.
    NotOurs {
        /// The name of that saga.
        saga: String,
    },
}

impl Sagas {
    /// Applies the event of a timer that is due, for the worker that has leased its job.
    pub async fn fire(&self, job: &Job) -> Result<Fired, StoreError> {
        let unreadable = |_| StoreError::Unreadable(format!("the timer {} cannot be read", job.id));
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
