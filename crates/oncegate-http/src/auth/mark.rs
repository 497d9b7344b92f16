//! The mark that a key has existed. It is a record beside the table of keys, and stays when that table is emptied.

use oncegate::WorkspaceName;
use oncegate::store::{At, Change, Commit, MainStore, Place, Record, StoreError};
use uuid::Uuid;

pub(super) const KIND: &str = "mark";
const NAME: &str = "a key has existed";

/// A mark's place: one record for the whole store.
pub fn place(name: &str) -> Place {
    Place { workspace: WorkspaceName::default_workspace(), kind: KIND, at: At::Name(name.into()) }
}

/// A record that only one commit can create: the first one.
pub fn create(id: Uuid, name: &str, body: String) -> Commit {
    let record = Record {
        workspace: WorkspaceName::default_workspace(),
        kind: KIND,
        id,
        version: 1,
        state: None,
        body: body.into(),
        expires_at: None,
    };
    Commit { ops: vec![], changes: vec![Change::Create { record, names: vec![name.into()], lists: vec![] }] }
}

pub async fn is_set(store: &dyn MainStore) -> Result<bool, StoreError> {
    Ok(store.find(&[place(NAME)]).await?.value.into_iter().flatten().next().is_some())
}

/// Sets the mark, if it is not set yet.
pub async fn set(store: &dyn MainStore) -> Result<(), StoreError> {
    if is_set(store).await? {
        return Ok(());
    }
    // A conflict means that another process has set it.
    store.commit(create(Uuid::now_v7(), NAME, "{}".into())).await.map(drop)
}
