//! Records with a JSON document as their body. All policies read, write, list and settle their records with this module.

use bytes::Bytes;
use oncegate_core::{Time, WorkspaceName};
use oncegate_store::{At, Commit, Listing, MainStore, Place, Reading, Record, StoreError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// How many times a change starts over because other writers were first.
pub(crate) const ROUNDS_MAX: usize = 32;
/// A page ends once it has this many bytes, even if its limit of items is not reached.
const PAGE_BYTES: usize = 4 * 1024 * 1024;
const READ_AT_ONCE: usize = 50;
/// The most reads of the store for one page.
const READS_MAX: usize = 40;

/// A type that is stored as a record.
pub trait Document: Serialize + DeserializeOwned {
    /// The kind of the records.
    const KIND: &'static str;

    /// The state by which lists filter the documents.
    fn state(&self) -> Option<String> {
        None
    }

    /// When the store removes the record; `None` if it never does.
    fn expires_at(&self) -> Option<Time> {
        None
    }
}

/// A document, with its workspace, id and version.
#[derive(Clone, Debug)]
pub struct Kept<D> {
    /// The workspace that owns the record.
    pub workspace: WorkspaceName,
    /// The id of the record.
    pub id: Uuid,
    /// The version of the record. It grows by one with each write.
    pub version: i64,
    /// The document.
    pub document: D,
}

impl<D: Document> Kept<D> {
    /// The first version of a new document.
    pub fn new(workspace: &WorkspaceName, document: D) -> Kept<D> {
        Kept { workspace: workspace.clone(), id: Uuid::now_v7(), version: 1, document }
    }

    /// The next version of the document.
    pub fn with(&self, document: D) -> Kept<D> {
        Kept { workspace: self.workspace.clone(), id: self.id, version: self.version + 1, document }
    }

    /// Reads the document of a record.
    pub fn read(record: Record) -> Result<Kept<D>, StoreError> {
        let document = read(&record)?;
        let Record { workspace, id, version, .. } = record;
        Ok(Kept { workspace, id, version, document })
    }

    /// The record of this version.
    pub fn record(&self) -> Record {
        Record {
            workspace: self.workspace.clone(),
            kind: D::KIND,
            id: self.id,
            version: self.version,
            state: self.document.state(),
            expires_at: self.document.expires_at(),
            body: bytes(&self.document),
        }
    }
}

/// The place of a document with this id or name.
pub fn place<D: Document>(workspace: &WorkspaceName, at: At) -> Place {
    Place { workspace: workspace.clone(), kind: D::KIND, at }
}

/// The document at this place, and the store's time; `None` if there is no document.
pub async fn find<D: Document>(
    store: &dyn MainStore,
    workspace: &WorkspaceName,
    at: At,
) -> Result<Reading<Option<Kept<D>>>, StoreError> {
    let Reading { mut value, now } = store.find(&[place::<D>(workspace, at)]).await?;
    Ok(Reading { value: value.remove(0).map(Kept::read).transpose()?, now })
}

pub(crate) fn bytes(document: &impl Serialize) -> Bytes {
    serde_json::to_vec(document).expect("what is kept is JSON").into()
}

pub(crate) fn read<T: DeserializeOwned>(record: &Record) -> Result<T, StoreError> {
    // The message of the error is left out: it repeats parts of the document.
    serde_json::from_slice(&record.body).map_err(|error| {
        let (kind, id, byte) = (record.kind, record.id, error.column());
        StoreError::Unreadable(format!("the {kind} {id} cannot be read, from its byte {byte} on"))
    })
}

/// A page of a list, newest first.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// The items on this page. They may be fewer than the limit although the list goes on.
    pub items: Vec<T>,
    /// The `before` of the next page; `None` if the list ends here.
    pub next: Option<Uuid>,
}

/// The items of a page that one read of the store has found.
pub(crate) struct Batch<T> {
    pub items: Vec<T>,
    pub next: Option<Uuid>,
    /// The size of the documents.
    pub bytes: usize,
    /// The store stopped early, so that the caller need not wait longer.
    pub ended_early: bool,
}

/// Reads a page in small batches, so that a page of large documents has fewer of them. `read` is given a limit and a `before`.
pub(crate) async fn page<T, E, F>(
    limit: usize,
    before: Option<Uuid>,
    read: impl Fn(usize, Option<Uuid>) -> F,
) -> Result<Page<T>, E>
where
    F: Future<Output = Result<Batch<T>, E>>,
{
    let mut page = Page { items: vec![], next: before };
    let mut size = 0;
    for reads in 1.. {
        let Batch { items, next, bytes, ended_early } =
            read((limit - page.items.len()).min(READ_AT_ONCE), page.next).await?;
        size += bytes;
        page.items.extend(items);
        page.next = next;
        let is_full = page.items.len() >= limit || size >= PAGE_BYTES || reads >= READS_MAX;
        if next.is_none() || ended_early || is_full {
            break;
        }
    }
    Ok(page)
}

/// Reads one batch of records. `item` decides what becomes of each record; a record without an item is left out.
pub(crate) async fn batch<T>(
    store: &dyn MainStore,
    listing: Listing,
    item: impl Fn(Record) -> Result<Option<T>, StoreError>,
) -> Result<Batch<T>, StoreError> {
    let limit = listing.limit;
    let listed = store.list(listing).await?;
    Ok(Batch {
        next: listed.next,
        bytes: listed.records.iter().map(|record| record.body.len()).sum(),
        ended_early: listed.ended_early(limit),
        items: listed.records.into_iter().filter_map(|record| item(record).transpose()).collect::<Result<_, _>>()?,
    })
}

/// Which documents to list, newest first: those of a list, those in a state, those before an id.
pub fn listing<D: Document>(
    workspace: &WorkspaceName,
    list: Option<String>,
    state: Option<&str>,
    limit: usize,
    before: Option<Uuid>,
) -> Listing {
    Listing { workspace: workspace.clone(), kind: D::KIND, list, state: state.map(str::to_owned), limit, before }
}

/// Lists a page of documents, newest first. A page of large documents has fewer of them.
pub async fn list<D: Document>(store: &dyn MainStore, listing: Listing) -> Result<Page<Kept<D>>, StoreError> {
    page(listing.limit, listing.before, |limit, before| {
        batch(store, Listing { limit, before, ..listing.clone() }, |record| Kept::read(record).map(Some))
    })
    .await
}

/// Reads, decides and writes, until a round has written. Each round reads again, because another writer was first.
pub(crate) async fn until_written<T, E: From<StoreError>, F>(round: impl Fn() -> F) -> Result<T, E>
where
    F: Future<Output = Result<Option<T>, E>>,
{
    for _ in 0..ROUNDS_MAX {
        if let Some(written) = round().await? {
            return Ok(written);
        }
    }
    Err(others_were_faster().into())
}

pub(crate) fn others_were_faster() -> StoreError {
    StoreError::Unavailable(format!("other writers were faster, {ROUNDS_MAX} times; try again"))
}

/// Writes a change whose next reading shows whether it was made. If the answer is lost, it counts as not written once the
/// store has confirmed: the next round finds the change, if it was written.
pub(crate) async fn commit_or_read_again(store: &dyn MainStore, commit: Commit) -> Result<bool, StoreError> {
    match store.commit(commit).await {
        Err(StoreError::Unknown(why)) => match store.confirm().await {
            Ok(()) => Ok(false),
            Err(_) => Err(StoreError::Unknown(why)),
        },
        committed => Ok(committed?.is_written()),
    }
}

/// How a person or the reconcile hook resolved something whose result was unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved {
    /// Whether the message was sent.
    pub sent: bool,
    /// The name of the person or of the hook.
    pub by: String,
    /// The person's note, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// When it was resolved.
    pub at_us: i64,
    /// The token of the attempt that was resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<i64>,
}

/// A person's decision, or the reconcile hook's, on something whose result was unknown.
#[derive(Clone, Debug)]
pub struct Resolution {
    /// Whether it happened: the message was sent, the action was done.
    pub happened: bool,
    /// The name of the person or of the hook.
    pub by: String,
    /// The person's note, if there is one.
    pub note: Option<String>,
}

impl Resolution {
    /// What is kept of it.
    pub(crate) fn at(&self, now: Time) -> Resolved {
        let Resolution { happened, by, note } = self.clone();
        Resolved { sent: happened, by, note, at_us: now.micros(), token: None }
    }
}

impl Resolved {
    /// Whether this person resolved it with this note: another person may have resolved it in the same way before.
    pub fn is_by(&self, by: &str, note: Option<&str>) -> bool {
        self.by == by && self.note.as_deref() == note
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::WorkspaceName;
    use oncegate_store::{Change, Commit, MemoryStore};
    use uuid::Uuid;

    use std::sync::Arc;

    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Thing;

    impl Document for Thing {
        const KIND: &'static str = "thing";
    }

    #[tokio::test]
    async fn a_page_of_a_rare_state_ends_after_one_read() {
        let store: Arc<dyn MainStore> = Arc::new(MemoryStore::default());
        let workspace = WorkspaceName::default_workspace();
        let create = |number: usize| {
            let (id, state) = (Uuid::from_u128(number as u128), if number == 1 { "rare" } else { "usual" });
            let (workspace, state) = (workspace.clone(), Some(state.to_owned()));
            let record =
                Record { workspace, kind: "thing", id, version: 1, state, expires_at: None, body: bytes(&Thing) };
            Change::Create { record, names: vec![], lists: vec!["crowd".into()] }
        };
        let changes = (1..=Listing::LOOKED_MAX * 3).map(create).collect();
        assert!(store.commit(Commit { ops: vec![], changes }).await.unwrap().is_written());
        let (crowd, state) = (Some("crowd".to_owned()), Some("rare".to_owned()));
        let mut listing = Listing { workspace, kind: "thing", list: crowd, state, limit: 10, before: None };
        for looked in [1, 2] {
            let nothing = list::<Thing>(&*store, listing.clone()).await.unwrap();
            let next = Uuid::from_u128((Listing::LOOKED_MAX * (3 - looked) + 1) as u128);
            assert_eq!((nothing.items.len(), nothing.next), (0, Some(next)));
            listing.before = nothing.next;
        }
        assert_eq!(list::<Thing>(&*store, listing).await.unwrap().items.len(), 1);
    }
}
