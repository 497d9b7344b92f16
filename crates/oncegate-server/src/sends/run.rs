//! Handles leases that have ended, and sends whose outcome is unknown.

use std::sync::Arc;

use async_trait::async_trait;
use oncegate::StoreError;
use oncegate::sends::{Kept, Tended};

use super::{Event, SendLog};
use crate::crash;
use oncegate::worker::{Handler, Held};

#[async_trait]
impl Handler for SendLog {
    async fn run(self: Arc<Self>, held: Held) {
        crash::point("send.leased").await;
        let job = &held.job;
        let tended = match self.sends.tend(job).await {
            Ok(Tended::Overdue(kept)) => {
                Event::Stands(kept.send.state).tell(&job.workspace, kept.id);
                Ok(())
            }
            Ok(Tended::Open(kept)) => self.ask(kept).await,
            Ok(Tended::Nothing) => Ok(()),
            Err(error) => Err(error),
        };
        crash::point("send.tended").await;
        if let Err(error) = tended {
            tracing::warn!(event = "send.put_off", workspace = %job.workspace, sendId = %job.id, %error);
            held.put_off(&self.store, error.to_string()).await;
        }
    }
}

impl SendLog {
    /// Asks the hook, if one is configured. Without an answer, the send is left unknown.
    async fn ask(&self, kept: Kept) -> Result<(), StoreError> {
        let is_asked = self.hook.is_some();
        match is_asked && self.reconcile(&kept).await {
            true => Ok(()),
            false => self.sends.leave(&kept, is_asked).await,
        }
    }
}
