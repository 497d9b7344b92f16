//! What is kept as the body of a record.

use bytes::Bytes;
use oncegate_store::{Record, StoreError};
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
