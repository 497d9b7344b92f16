//! The sweeper removes what has expired: claims, for which nobody waits (expired is absent, swept or not), and records past their end.

use std::sync::Arc;
use std::time::Duration;

use oncegate_store::{Store, Swept};
use tokio::task::JoinHandle;

use crate::ledger::Observer;

/// Claims, and records, removed in one go: a few milliseconds' work, so that callers behind it do not notice.
const BATCH: usize = 256;
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(16);

pub struct Sweeper(JoinHandle<()>);

impl Sweeper {
    pub fn start(store: Arc<dyn Store>, observer: Arc<dyn Observer>) -> Self {
        Sweeper(tokio::spawn(async move {
            let mut pause = PAUSE_MIN;
            loop {
                tokio::time::sleep(pause).await;
                let swept = sweep_all(&*store, &*observer).await;
                // Idle costs nothing that could be measured; busy is looked at every second.
                pause = if swept == Swept::default() { (pause * 2).min(PAUSE_MAX) } else { PAUSE_MIN };
            }
        }))
    }

    pub fn stop(&self) {
        self.0.abort();
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Until nothing that has expired is left: however fast claims are made, it keeps up.
async fn sweep_all(store: &dyn Store, observer: &dyn Observer) -> Swept {
    let mut total = Swept::default();
    loop {
        match store.sweep(BATCH).await {
            Ok(swept) => {
                total.claims += swept.claims;
                total.records += swept.records;
                if swept.claims < BATCH && swept.records < BATCH {
                    break;
                }
            }
            Err(error) => {
                tracing::warn!(event = "claim.sweep_failed", %error);
                break;
            }
        }
    }
    if total.claims > 0 {
        observer.swept(total.claims);
    }
    total
}
