//! Read-only lookups and lists of instances.

use futures::future::try_join_all;
use oncegate_core::{Time, WorkspaceName};
use oncegate_saga::Instance;
use oncegate_store::{Listing, Reading, Record, StoreError};
use uuid::Uuid;

use super::Sagas;
use super::record::{INSTANCE, Kept, LINE, Line, Stored, list_of, read, state_of};

/// A page ends once it has this many bytes, even if its limit of records is not reached.
pub(super) const PAGE_BYTES: usize = 4 * 1024 * 1024;
pub(super) const READ_AT_ONCE: usize = 50;

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
#[derive(Clone, Debug)]
pub struct Page {
    /// The instances on this page. They may be fewer than the limit although the list goes on.
    pub items: Vec<Found>,
    /// The `before` of the next page; `None` if the list ends here.
    pub next: Option<Uuid>,
}

impl Found {
    fn of(stored: Stored) -> Found {
        let Kept { saga, correlation_id, instance, created_us, updated_us, expires_us } = stored.kept;
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
        let Reading { mut value, now } = self.store.find(&[Kept::place(workspace, saga, correlation_id)]).await?;
        let stored = value.remove(0).map(Stored::read).transpose()?;
        Ok(stored.filter(|stored| !stored.kept.is_expired(now)).map(Found::of))
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
        let mut page = Page { items: vec![], next: before };
        if ![saga, state].into_iter().flatten().all(is_name) {
            return Ok(Page { next: None, ..page });
        }
        let listings = self.listings(workspace, saga, state);
        let mut bytes = 0;
        loop {
            let at_once = (limit - page.items.len()).min(READ_AT_ONCE);
            let (items, size, next) = self.list_some(&listings, at_once, page.next).await?;
            bytes += size;
            page.items.extend(items);
            page.next = next;
            if page.next.is_none() || page.items.len() >= limit || bytes >= PAGE_BYTES {
                return Ok(page);
            }
        }
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
    ) -> Result<(Vec<Found>, usize, Option<Uuid>), StoreError> {
        let now = self.now().await?;
        let some = listings.iter().map(|listing| self.store.list(Listing { limit, before, ..listing.clone() }));
        let listed = try_join_all(some).await?;
        let mut is_more = listed.iter().any(|listed| listed.next.is_some());
        let mut records: Vec<Record> = listed.into_iter().flat_map(|listed| listed.records).collect();
        records.sort_by_key(|record| std::cmp::Reverse(record.id));
        is_more |= records.len() > limit;
        records.truncate(limit);
        let next = records.last().map(|last| last.id).filter(|_| is_more);
        let stored: Vec<Stored> = records.into_iter().filter_map(|record| legible(Stored::read(record))).collect();
        let bytes = stored.iter().map(|stored| stored.bytes).sum();
        let items = stored.into_iter().filter(|stored| !stored.kept.is_expired(now)).map(Found::of).collect();
        Ok((items, bytes, next))
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
