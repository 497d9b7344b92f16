//! Records with a JSON document as their body: encoding, decoding and paging.

use std::sync::Arc;

use bytes::Bytes;
use oncegate_store::{Listed, Listing, MainStore, Record, StoreError};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub fn bytes(document: &impl Serialize) -> Bytes {
    serde_json::to_vec(document).expect("what is kept is JSON").into()
}

pub fn read<T: DeserializeOwned>(record: &Record) -> Result<T, StoreError> {
    // The message of the error is left out: it repeats parts of the document.
    serde_json::from_slice(&record.body).map_err(|error| {
        let (kind, id, byte) = (record.kind, record.id, error.column());
        StoreError::Refused(format!("the {kind} {id} cannot be read, from its byte {byte} on"))
    })
}

/// A page ends once it has this many bytes, even if its limit of records is not reached.
const PAGE_BYTES: usize = 4 * 1024 * 1024;
const READ_AT_ONCE: usize = 50;

/// Reads a page of records in small batches, so that a page of large records has fewer of them.
pub async fn page(store: &Arc<dyn MainStore>, mut listing: Listing) -> Result<Listed, StoreError> {
    let limit = listing.limit;
    let mut page = Listed { records: vec![], next: None };
    let mut bytes = 0;
    loop {
        listing.limit = (limit - page.records.len()).min(READ_AT_ONCE);
        let listed = store.list(listing.clone()).await?;
        bytes += listed.records.iter().map(|record| record.body.len()).sum::<usize>();
        let ended_early = listed.ended_early(listing.limit);
        page.records.extend(listed.records);
        page.next = listed.next;
        listing.before = listed.next;
        if listed.next.is_none() || ended_early || page.records.len() >= limit || bytes >= PAGE_BYTES {
            return Ok(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::WorkspaceName;
    use oncegate_store::{Change, Commit, MemoryStore};
    use uuid::Uuid;

    use super::*;

    #[tokio::test]
    async fn whoever_wants_what_is_rare_waits_for_no_more_than_one_look() {
        let store: Arc<dyn MainStore> = Arc::new(MemoryStore::default());
        let workspace = WorkspaceName::default_workspace();
        let create = |number: usize| {
            let (id, state) = (Uuid::from_u128(number as u128), if number == 1 { "rare" } else { "usual" });
            let (workspace, state) = (workspace.clone(), Some(state.to_owned()));
            let record =
                Record { workspace, kind: "thing", id, version: 1, state, expires_at: None, body: Bytes::new() };
            Change::Create { record, names: vec![], lists: vec!["crowd".into()] }
        };
        let changes = (1..=Listing::LOOKED_MAX * 3).map(create).collect();
        assert!(store.commit(Commit { ops: vec![], changes }).await.unwrap().is_written());
        let (list, state) = (Some("crowd".to_owned()), Some("rare".to_owned()));
        let mut listing = Listing { workspace, kind: "thing", list, state, limit: 10, before: None };
        for looked in [1, 2] {
            let nothing = page(&store, listing.clone()).await.unwrap();
            let next = Uuid::from_u128((Listing::LOOKED_MAX * (3 - looked) + 1) as u128);
            assert_eq!((nothing.records.len(), nothing.next), (0, Some(next)));
            listing.before = nothing.next;
        }
        assert_eq!(page(&store, listing).await.unwrap().records.len(), 1);
    }
}
