//! A store whose calls fail: before the write, after it, or with an unknown result.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;

use crate::conformance::Wrapper;
use crate::{Commit, Committed, Store, StoreError};

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
impl Wrapper for Flaky {
    type Inner = dyn Store;

    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

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
}
