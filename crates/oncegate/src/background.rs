//! Work that continues after its caller has left.

use std::future::Future;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use oncegate_store::StoreError;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::Instant;

const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How long `close` waits for the work under way.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// Tasks on the runtime on which the ledger was started. A runtime that shuts down drops them: close the ledger first.
pub struct Background {
    runtime: Handle,
    tasks: Mutex<JoinSet<()>>,
}

impl Background {
    pub fn here() -> Self {
        Background { runtime: Handle::current(), tasks: Mutex::default() }
    }

    /// Can be called from a `Drop`, on any thread.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(work, &self.runtime);
    }

    pub async fn finish(&self) {
        let mut tasks = std::mem::take(&mut *self.lock());
        let all = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(CLOSE_WITHIN, all).await.is_err() {
            tracing::warn!(event = "claim.left_at_close", tasks = tasks.len());
        }
        tasks.detach_all();
    }

    fn lock(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().expect("no holder of this lock panics")
    }
}

/// Retries an owner's command while the store is unavailable. Gives up when the lease ends, because the store would then
/// refuse the command.
pub async fn retry_within_lease<T, Fut>(lease: Duration, mut verb: impl FnMut() -> Fut) -> Result<T, StoreError>
where
    Fut: Future<Output = Result<T, StoreError>>,
{
    let give_up_at = Instant::now() + lease;
    let mut pause = RETRY_MIN;
    loop {
        match verb().await {
            Err(StoreError::Unavailable(_) | StoreError::Unknown(_)) if Instant::now() < give_up_at => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RETRY_MAX);
            }
            answered => return answered,
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.lock().detach_all();
    }
}
