//! A guard store that is not available when the server starts.
//!
//! Guards that fail open let their callers go ahead without the store, so the server must start without it, too. The store is opened as
//! soon as
//! possible.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use oncegate::store::{
    Commit, Committed, DuplicateCount, Page, Query, Reading, Report, Store, StoreError, Swept, UsageFrom, UsagePart,
    Waiters,
};
use oncegate::{Claim, ClaimKey, StoreUrl};

const TRY_EVERY: Duration = Duration::from_secs(2);

pub struct LateStore {
    store: OnceLock<Arc<dyn Store>>,
    waiters: OnceLock<Arc<Waiters>>,
    why: Mutex<String>,
}

impl LateStore {
    /// Tries until the store is open.
    pub fn start(url: StoreUrl, why: String) -> Arc<LateStore> {
        let late = Arc::new(LateStore { store: OnceLock::new(), waiters: OnceLock::new(), why: Mutex::new(why) });
        // The tries end when the last holder drops the store.
        let weak = Arc::downgrade(&late);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(TRY_EVERY).await;
                let opened = url.open_with(oncegate_process::crash::clock()).await;
                let Some(late) = weak.upgrade() else { return };
                match opened {
                    Ok(store) => {
                        tracing::info!(event = "guard_store.opened");
                        return late.has_come(store);
                    }
                    Err(error) => *late.why.lock().expect("no holder of this lock panics") = error.to_string(),
                }
            }
        });
        late
    }

    fn has_come(&self, store: Arc<dyn Store>) {
        let store = self.store.get_or_init(|| store);
        if let Some(waiters) = self.waiters.get() {
            store.attach(waiters.clone());
        }
    }

    fn store(&self) -> Result<&Arc<dyn Store>, StoreError> {
        let why = || self.why.lock().expect("no holder of this lock panics").clone();
        self.store.get().ok_or_else(|| StoreError::Unavailable(why()))
    }
}

#[async_trait]
impl Store for LateStore {
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        self.store()?.commit(commit).await
    }

    async fn confirm(&self) -> Result<(), StoreError> {
        self.store()?.confirm().await
    }

    async fn read(&self, key: &ClaimKey) -> Result<Reading<Option<Claim>>, StoreError> {
        self.store()?.read(key).await
    }

    async fn scan(&self, query: Query) -> Result<Page, StoreError> {
        self.store()?.scan(query).await
    }

    async fn sweep(&self, limit: usize) -> Result<Swept, StoreError> {
        self.store()?.sweep(limit).await
    }

    async fn count_duplicates(&self, counts: Vec<DuplicateCount>) -> Result<(), StoreError> {
        self.store()?.count_duplicates(counts).await
    }

    async fn expect_wake(&self, key: &ClaimKey) -> Result<(), StoreError> {
        self.store()?.expect_wake(key).await
    }

    fn attach(&self, waiters: Arc<Waiters>) {
        let waiters = self.waiters.get_or_init(|| waiters);
        if let Some(store) = self.store.get() {
            store.attach(waiters.clone());
        }
    }

    async fn report(&self) -> Result<Report, StoreError> {
        self.store()?.report().await
    }

    async fn usage(&self, from: UsageFrom) -> Result<UsagePart, StoreError> {
        self.store()?.usage(from).await
    }

    async fn close(&self) {
        if let Some(store) = self.store.get() {
            store.close().await;
        }
    }
}
