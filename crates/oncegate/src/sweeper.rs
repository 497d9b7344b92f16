//! The sweeper removes expired claims and records. No caller waits for it: an expired claim counts as absent, swept or not.

use std::sync::Arc;
use std::time::Duration;

use oncegate_store::{Store, Swept};
use tokio::task::JoinHandle;

use crate::observer::Observer;

/// Claims, and records, removed in one commit. It takes a few milliseconds, so that callers behind it do not wait long.
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
                // An idle store is checked rarely, which costs nothing measurable. A busy store is checked every second.
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

/// Removes until no expired claim or record is left, so that the sweeper keeps up with any rate of claims.
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
