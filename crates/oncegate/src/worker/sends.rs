//! Runs the jobs of sends: handles leases that have ended, and sends whose outcome is unknown.

use std::sync::Arc;

use async_trait::async_trait;
use oncegate_store::StoreError;

use super::{Held, RunJob, Watcher};
use crate::sends::{Kept, Sends, Tended};

/// Asks the provider about a send whose outcome is unknown.
#[async_trait]
pub trait Reconcile: Send + Sync + 'static {
    /// Asks, and records the answer. False: the outcome is still unknown.
    async fn reconcile(&self, kept: &Kept) -> bool;
}

/// Runs the jobs of sends.
pub struct SendJobs {
    /// The send log.
    pub sends: Sends,
    /// Asks the provider, if there is a way to.
    pub reconcile: Option<Arc<dyn Reconcile>>,
    /// Hears of the leases that have ended.
    pub watcher: Arc<dyn Watcher>,
}

#[async_trait]
impl RunJob for SendJobs {
    async fn run(self: Arc<Self>, held: Held) {
        self.watcher.reached("send.leased").await;
        let job = &held.job;
        let tended = match self.sends.tend(job).await {
            Ok(Tended::Overdue(kept)) => {
                self.watcher.send(&job.workspace, kept.id, kept.document.state);
                Ok(())
            }
            Ok(Tended::Open(kept)) => self.ask(kept).await,
            Ok(Tended::Nothing) => Ok(()),
            Err(error) => Err(error),
        };
        self.watcher.reached("send.tended").await;
        if let Err(error) = tended {
            tracing::warn!(event = "send.put_off", workspace = %job.workspace, sendId = %job.id, %error);
            held.put_off(&self.sends.store, error.to_string()).await;
        }
    }
}

impl SendJobs {
    /// Without an answer, the send is left unknown.
    async fn ask(&self, kept: Kept) -> Result<(), StoreError> {
        if let Some(reconcile) = &self.reconcile
            && reconcile.reconcile(&kept).await
        {
            return Ok(());
        }
        self.sends.leave(&kept, self.reconcile.is_some()).await
    }
}
