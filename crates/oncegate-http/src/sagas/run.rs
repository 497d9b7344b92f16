//! Handles due timers, and removes records whose retention is over.

use std::sync::Arc;

use async_trait::async_trait;
use oncegate::StoreError;
use oncegate::sagas::{Fired, TIMER};

use super::{Sagas, tell};
use oncegate::worker::{Held, RunJob};
use oncegate_process::crash;
use oncegate_transports::trace;

#[async_trait]
impl RunJob for Sagas {
    async fn run(self: Arc<Self>, held: Held) {
        crash::point("saga.leased").await;
        let job = &held.job;
        let done = match job.kind.as_str() {
            TIMER => match trace::work("apply event", &job.workspace, &[], self.sagas.fire(job)).await {
                Ok(Fired::Done { event, handled }) => {
                    tell::handled(&job.workspace, &event, &handled);
                    Ok(())
                }
                Ok(Fired::Lost) => Ok(()),
                Ok(Fired::NotOurs { saga }) => Err(StoreError::Unavailable(format!("there is no saga {saga} here"))),
                Err(error) => Err(error),
            },
            _ => self.sagas.retire(job).await,
        };
        crash::point("saga.fired").await;
        if let Err(error) = done {
            tracing::warn!(event = "saga.put_off", workspace = %job.workspace, kind = job.kind, %error);
            held.put_off(&self.store, error.to_string()).await;
        }
    }
}
