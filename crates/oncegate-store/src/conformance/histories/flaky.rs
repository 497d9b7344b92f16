//! A store whose calls fail: before the write, after it, or with an unknown result.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use oncegate_core::{Claim, ClaimKey};

use crate::{Commit, Committed, DuplicateCount, Page, Query, Reading, Report, Store, StoreError, Swept, Waiters};

/// Passes calls on to another store, and fails one in eight of the writes.
pub struct Flaky {
    inner: Arc<dyn Store>,
    calls: AtomicU64,
}

impl Flaky {
    /// Makes a store that fails some of the writes to `inner`.
    pub fn new(inner: Arc<dyn Store>) -> Flaky {
        Flaky { inner, calls: AtomicU64::new(0) }
    }
}

#[async_trait]
impl Store for Flaky {
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        match self.calls.fetch_add(1, Ordering::Relaxed) % 24 {
            3 => Err(StoreError::Unavailable("failed on purpose, before the write".into())),
            11 => Err(StoreError::Unknown("failed on purpose, before the write".into())),
            19 => {
                let _ = self.inner.commit(commit).await;
                Err(StoreError::Unknown("failed on purpose, after the write".into()))
            }
            _ => self.inner.commit(commit).await,
        }
    }

    async fn confirm(&self) -> Result<(), StoreError> {
        self.inner.confirm().await
    }

    async fn read(&self, key: &ClaimKey) -> Result<Reading<Option<Claim>>, StoreError> {
        self.inner.read(key).await
    }

    async fn scan(&self, query: Query) -> Result<Page, StoreError> {
        self.inner.scan(query).await
    }

    async fn sweep(&self, limit: usize) -> Result<Swept, StoreError> {
        self.inner.sweep(limit).await
    }

    async fn count_duplicates(&self, counts: Vec<DuplicateCount>) -> Result<(), StoreError> {
        self.inner.count_duplicates(counts).await
    }

    fn attach(&self, waiters: Arc<Waiters>) {
        self.inner.attach(waiters);
    }

    async fn report(&self) -> Result<Report, StoreError> {
        self.inner.report().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
