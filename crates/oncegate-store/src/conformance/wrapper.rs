//! Stores over another store, for tests that make some of its calls fail.

use std::sync::Arc;

use async_trait::async_trait;
use oncegate_core::job::Job;
use oncegate_core::{Claim, ClaimKey, Time, WorkspaceName};
use uuid::Uuid;

use crate::{
    ApiKey, Commit, Committed, DuplicateCount, JobListing, Keyring, Leased, Listed, Listing, MainStore, Page, Place,
    Query, Reading, Record, Report, Store, StoreError, Swept, Waiters, Wanted,
};

/// A store that passes each call on to another store, except for the calls that it overrides.
#[async_trait]
pub trait Wrapper: Send + Sync + 'static {
    /// The kind of the other store. The wrapper is a [`MainStore`] if the other store is one.
    type Inner: Store + ?Sized;

    /// The store that the next call goes to.
    fn inner(&self) -> &Self::Inner;

    /// Overrides [`Store::commit`].
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        self.inner().commit(commit).await
    }

    /// Overrides [`Store::confirm`].
    async fn confirm(&self) -> Result<(), StoreError> {
        self.inner().confirm().await
    }

    /// Overrides [`Store::read`].
    async fn read(&self, key: &ClaimKey) -> Result<Reading<Option<Claim>>, StoreError> {
        self.inner().read(key).await
    }

    /// Overrides [`MainStore::find`].
    async fn find(&self, places: &[Place]) -> Result<Reading<Vec<Option<Record>>>, StoreError>
    where
        Self::Inner: MainStore,
    {
        self.inner().find(places).await
    }

    /// Overrides [`MainStore::find_jobs`].
    async fn find_jobs(&self, ids: &[(WorkspaceName, Uuid)]) -> Result<Reading<Vec<Option<Job>>>, StoreError>
    where
        Self::Inner: MainStore,
    {
        self.inner().find_jobs(ids).await
    }
}

#[async_trait]
impl<W: Wrapper> Store for W {
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        Wrapper::commit(self, commit).await
    }

    async fn confirm(&self) -> Result<(), StoreError> {
        Wrapper::confirm(self).await
    }

    async fn read(&self, key: &ClaimKey) -> Result<Reading<Option<Claim>>, StoreError> {
        Wrapper::read(self, key).await
    }

    async fn scan(&self, query: Query) -> Result<Page, StoreError> {
        self.inner().scan(query).await
    }

    async fn sweep(&self, limit: usize) -> Result<Swept, StoreError> {
        self.inner().sweep(limit).await
    }

    async fn count_duplicates(&self, counts: Vec<DuplicateCount>) -> Result<(), StoreError> {
        self.inner().count_duplicates(counts).await
    }

    fn attach(&self, waiters: Arc<Waiters>) {
        self.inner().attach(waiters);
    }

    async fn report(&self) -> Result<Report, StoreError> {
        self.inner().report().await
    }

    async fn close(&self) {
        self.inner().close().await;
    }
}

#[async_trait]
impl<W: Wrapper<Inner: MainStore>> MainStore for W {
    async fn find(&self, places: &[Place]) -> Result<Reading<Vec<Option<Record>>>, StoreError> {
        Wrapper::find(self, places).await
    }

    async fn list(&self, listing: Listing) -> Result<Listed, StoreError> {
        self.inner().list(listing).await
    }

    async fn count(&self, listing: Listing) -> Result<usize, StoreError> {
        self.inner().count(listing).await
    }

    async fn find_jobs(&self, ids: &[(WorkspaceName, Uuid)]) -> Result<Reading<Vec<Option<Job>>>, StoreError> {
        Wrapper::find_jobs(self, ids).await
    }

    async fn list_jobs(&self, listing: JobListing) -> Result<Vec<Job>, StoreError> {
        self.inner().list_jobs(listing).await
    }

    async fn count_jobs(&self, listing: JobListing) -> Result<usize, StoreError> {
        self.inner().count_jobs(listing).await
    }

    async fn lease_jobs(&self, wanted: &Wanted) -> Result<Reading<Leased>, StoreError> {
        self.inner().lease_jobs(wanted).await
    }
}

#[async_trait]
impl<W: Wrapper<Inner: MainStore>> Keyring for W {
    async fn create_workspace(&self, name: &WorkspaceName) -> Result<bool, StoreError> {
        self.inner().create_workspace(name).await
    }

    async fn workspaces(&self) -> Result<Vec<(WorkspaceName, Time)>, StoreError> {
        self.inner().workspaces().await
    }

    async fn create_key(&self, key: ApiKey) -> Result<bool, StoreError> {
        self.inner().create_key(key).await
    }

    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        self.inner().keys().await
    }

    async fn revoke_key(&self, id: &str) -> Result<bool, StoreError> {
        self.inner().revoke_key(id).await
    }

    async fn touch_keys(&self, ids: &[String]) -> Result<(), StoreError> {
        self.inner().touch_keys(ids).await
    }
}
