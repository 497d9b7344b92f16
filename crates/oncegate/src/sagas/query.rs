//! Read-only lookups and lists of instances.

use futures::future::try_join_all;
use oncegate_core::{Time, WorkspaceName};
use oncegate_saga::Instance;
use oncegate_store::{At, Listing, Reading, Record, StoreError};
use uuid::Uuid;

use super::Sagas;
use super::record::{INSTANCE, Kept, LINE, Line, Stored, list_of, name_of, read, state_of};
use crate::document::{self, Batch};

/// Whether the text can be a name: no name contains a control character.
pub(super) fn is_name(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

/// Skips a record that cannot be read, so that the others are still listed.
pub(super) fn legible<T>(read: Result<T, StoreError>) -> Option<T> {
    read.inspect_err(|error| tracing::error!(event = "saga.unreadable", %error)).ok()
}

/// An instance, as people see it.
#[derive(Clone, Debug)]
pub struct Found {
    /// The id of the instance's record.
    pub id: Uuid,
    /// The name of the saga.
    pub saga: String,
    /// The correlation id of the instance.
    pub correlation_id: String,
    /// The state, the data and the timers.
    pub instance: Instance,
    /// When the first event was applied.
    pub created_at: Time,
    /// When the last event was applied.
    pub updated_at: Time,
    /// When it will be removed.
    pub expires_at: Option<Time>,
}

/// A line of its history, and how many duplicates of the event came.
#[derive(Clone, Debug)]
pub struct LineSeen {
    /// The event, and what it did.
    pub line: Line,
    /// The number of the duplicates. It is written asynchronously, so it may lag.
    pub duplicates: i64,
}

/// A page of instances, newest first.
pub type Page = document::Page<Found>;

impl Found {
    fn of(stored: Kept) -> Found {
        let Stored { saga, correlation_id, instance, created_us, updated_us, expires_us } = stored.document;
        Found {
            id: stored.id,
            saga,
            correlation_id,
            instance,
            created_at: Time::from_micros(created_us),
            updated_at: Time::from_micros(updated_us),
            expires_at: expires_us.map(Time::from_micros),
        }
    }
}

impl Sagas {
    /// The instance with this correlation id; `None` if there is none, or if it has expired.
    pub async fn find(
        &self,
        workspace: &WorkspaceName,
        saga: &str,
        correlation_id: &str,
    ) -> Result<Option<Found>, StoreError> {
        if !is_name(saga) || !is_name(correlation_id) {
            return Ok(None);
        }
        let at = At::Name(name_of(saga, correlation_id));
        let Reading { value, now } = document::find::<Stored>(&*self.store, workspace, at).await?;
        Ok(value.filter(|stored| !stored.document.is_expired(now)).map(Found::of))
    }

    /// Lists instances, newest first. A page of large instances has fewer of them.
    pub async fn list(
        &self,
        workspace: &WorkspaceName,
        saga: Option<&str>,
        state: Option<&str>,
        limit: usize,
        before: Option<Uuid>,
    ) -> Result<Page, StoreError> {
        if ![saga, state].into_iter().flatten().all(is_name) {
            return Ok(Page { items: vec![], next: None });
        }
        let listings = self.listings(workspace, saga, state);
        document::page(limit, before, |limit, before| self.list_some(&listings, limit, before)).await
    }

    /// The listings that together find these instances, for a page of no instances yet.
    fn listings(&self, workspace: &WorkspaceName, saga: Option<&str>, state: Option<&str>) -> Vec<Listing> {
        let listing = |list: Option<String>, state: Option<String>| {
            let workspace = workspace.clone();
            Listing { workspace, kind: INSTANCE, list, state, limit: 0, before: None }
        };
        match (saga, state) {
            (saga, None) => vec![listing(saga.map(list_of), None)],
            (Some(saga), Some(state)) => vec![listing(None, Some(state_of(saga, state)))],
            // Each saga has its own states, so each saga is listed on its own.
            (None, Some(state)) => {
                let states = self.definitions().iter().map(|definition| state_of(definition.name(), state));
                states.map(|state| listing(None, Some(state))).collect()
            }
        }
    }

    async fn list_some(
        &self,
        listings: &[Listing],
        limit: usize,
        before: Option<Uuid>,
    ) -> Result<Batch<Found>, StoreError> {
        let now = self.now().await?;
        let some = listings.iter().map(|listing| self.store.list(Listing { limit, before, ..listing.clone() }));
        let listed = try_join_all(some).await?;
        let mut is_more = listed.iter().any(|listed| listed.next.is_some());
        let mut records: Vec<Record> = listed.into_iter().flat_map(|listed| listed.records).collect();
        records.sort_by_key(|record| std::cmp::Reverse(record.id));
        is_more |= records.len() > limit;
        records.truncate(limit);
        let next = records.last().map(|last| last.id).filter(|_| is_more);
        let bytes = records.iter().map(|record| record.body.len()).sum();
        let stored = records.into_iter().filter_map(|record| legible(Kept::read(record)));
        let items = stored.filter(|stored| !stored.document.is_expired(now)).map(Found::of).collect();
        Ok(Batch { items, next, bytes, ended_early: false })
    }

    /// Counts the instances in a state, up to `limit`.
    pub async fn count(
        &self,
        workspace: &WorkspaceName,
        saga: &str,
        state: &str,
        limit: usize,
    ) -> Result<usize, StoreError> {
        let (workspace, state) = (workspace.clone(), Some(state_of(saga, state)));
        self.store.count(Listing { workspace, kind: INSTANCE, list: None, state, limit, before: None }).await
    }

    /// The last lines of an instance's history, oldest first, and whether there are older ones.
    pub async fn history(
        &self,
        workspace: &WorkspaceName,
        found: &Found,
        limit: usize,
    ) -> Result<(Vec<LineSeen>, bool), StoreError> {
        let listing = Listing {
            workspace: workspace.clone(),
            kind: LINE,
            list: Some(list_of(found.id)),
            state: None,
            limit,
            before: None,
        };
        let listed = self.store.list(listing).await?;
        let lines = listed.records.iter().rev().map(read::<Line>).collect::<Result<Vec<_>, _>>()?;
        let seen = lines.into_iter().map(async |line| {
            let key = line.inbox_key(workspace, &found.saga, &found.correlation_id);
            let claim = self.ledger.read(&key).await?.value;
            Ok::<_, StoreError>(LineSeen { line, duplicates: claim.map_or(0, |claim| claim.duplicates) })
        });
        Ok((try_join_all(seen).await?, listed.next.is_some()))
    }
}
