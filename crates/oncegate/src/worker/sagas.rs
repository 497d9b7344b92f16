//! Runs the jobs of sagas: fires timers, and removes records whose retention is over.

use std::sync::Arc;

use async_trait::async_trait;
use oncegate_store::StoreError;

use super::{Held, RunJob};
use crate::sagas::{Fired, Sagas, TIMER};

/// Runs the jobs of sagas.
pub(crate) struct SagaJobs {
    pub sagas: Sagas,
}

#[async_trait]
impl RunJob for SagaJobs {
    async fn run(self: Arc<Self>, held: Held) {
        let job = &held.job;
        let done = if job.kind == TIMER {
            match self.sagas.fire(job).await {
                Ok(Fired::NotOurs { saga }) => Err(StoreError::Unavailable(format!("there is no saga {saga} here"))),
                fired => fired.map(drop),
            }
        } else {
            self.sagas.retire(job).await
        };
        if let Err(error) = done {
            tracing::warn!(event = "saga.put_off", workspace = %job.workspace, kind = job.kind, %error);
            held.put_off(&self.sagas.store, error.to_string()).await;
        }
    }
}
