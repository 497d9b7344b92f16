//! What is kept as the body of a record.

use std::sync::Arc;

use bytes::Bytes;
use oncegate_store::{Listed, Listing, MainStore, Record, StoreError};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub fn bytes(document: &impl Serialize) -> Bytes {
    serde_json::to_vec(document).expect("what is kept is JSON").into()
}

pub fn read<T: DeserializeOwned>(record: &Record) -> Result<T, StoreError> {
    // Not the error's own words: they repeat what is there.
    serde_json::from_slice(&record.body).map_err(|error| {
        let (kind, id, byte) = (record.kind, record.id, error.column());
        StoreError::Refused(format!("the {kind} {id} cannot be read, from its byte {byte} on"))
    })
}

/// A page that has so many bytes ends, though there were to be more in it.
const PAGE_BYTES: usize = 4 * 1024 * 1024;
const READ_AT_ONCE: usize = 50;

/// A page of records, some at a time: where they are large, fewer make a page.
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
