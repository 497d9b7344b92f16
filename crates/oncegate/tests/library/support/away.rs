//! A store of claims that a test makes unavailable and available again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use async_trait::async_trait;
use oncegate::store::{
    Commit, Committed, DuplicateCount, MemoryStore, Page, Query, Reading, Report, Store, Swept, Waiters,
};
use oncegate::{Claim, ClaimKey, StoreError};

#[derive(Default)]
pub struct Away {
    pub store: MemoryStore,
    is_away: AtomicBool,
    refused: AtomicU32,
}

impl Away {
    pub fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::SeqCst);
    }

    /// How many commits failed because the store was unavailable.
    pub fn refused(&self) -> u32 {
        self.refused.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Store for Away {
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        if self.is_away.load(Ordering::SeqCst) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Err(StoreError::Unavailable("away".into()));
        }
        self.store.commit(commit).await
    }

    async fn confirm(&self) -> Result<(), StoreError> {
        self.store.confirm().await
    }

    async fn read(&self, key: &ClaimKey) -> Result<Reading<Option<Claim>>, StoreError> {
        self.store.read(key).await
    }

    async fn scan(&self, query: Query) -> Result<Page, StoreError> {
        self.store.scan(query).await
    }

    async fn sweep(&self, limit: usize) -> Result<Swept, StoreError> {
        self.store.sweep(limit).await
    }

    async fn count_duplicates(&self, counts: Vec<DuplicateCount>) -> Result<(), StoreError> {
        self.store.count_duplicates(counts).await
    }

    async fn report(&self) -> Result<Report, StoreError> {
        self.store.report().await
    }

    fn attach(&self, waiters: Arc<Waiters>) {
        self.store.attach(waiters);
    }

    async fn close(&self) {}
}
