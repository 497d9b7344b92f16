//! A store of claims that a test makes unavailable and available again.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use async_trait::async_trait;
use oncegate::StoreError;
use oncegate::store::{Commit, Committed, MemoryStore, Store};
use oncegate_store::conformance::Wrapper;

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
impl Wrapper for Away {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.store
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        if self.is_away.load(Ordering::SeqCst) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Err(StoreError::Unavailable("away".into()));
        }
        self.store.commit(commit).await
    }
}
