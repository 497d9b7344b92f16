//! The first key, where keys are required: an admin key of the default workspace, whose secret is written to a file.
//!
//! When several servers start at once on one store, the first one to write a record of this name makes the key. The others report where it
//! is. The record has everything but the secret, so that the next start can finish the work of a server that died in between.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use oncegate::store::{ApiKey, MainStore, Record, Role, StoreError};
use oncegate::{Time, WorkspaceName};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::audit::{Act, Audit, By};
use crate::auth::{NewKey, mark};

/// The file's name in the data folder.
const FILE: &str = "admin.key";
const NAME: &str = "first key";
const CREATOR: &str = "first start";

#[derive(Debug, thiserror::Error)]
pub enum NotMade {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the first key cannot be written to {0}: {1}")]
    File(PathBuf, std::io::Error),
    #[error("the record of the first key cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
}

/// The key that exists after the start.
#[derive(Debug)]
pub struct FirstKey {
    pub id: String,
    /// The file with the secret, as reported by the server that made the key.
    pub file: PathBuf,
    pub host: String,
    /// This server has made the key.
    pub is_ours: bool,
}

/// The body of the key's record.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Kept {
    id: String,
    hash: String,
    file: PathBuf,
    host: String,
}

/// Makes the first key of a store that has never had one, or finds the key that another server has made.
pub async fn make(store: &dyn MainStore, audit: &Audit, data_dir: &Path, host: &str) -> Result<FirstKey, NotMade> {
    if let Some(record) = find(store).await? {
        return complete(store, audit, &record, false).await;
    }
    let key = NewKey::generate();
    let folder = fs::create_dir_all(data_dir).and_then(|()| fs::canonicalize(data_dir));
    let folder = folder.map_err(|error| NotMade::File(data_dir.join(FILE), error))?;
    let (written, file) = (folder.join(format!("{FILE}.{}", key.id)), folder.join(FILE));
    // The secret is on disk before the key exists, so that no crash in between leaves a key without a known secret.
    write(&folder, &written, &key.secret).map_err(|error| NotMade::File(written.clone(), error))?;
    let kept = Kept { id: key.id.clone(), hash: crate::auth::hex(&key.hash), file, host: host.into() };
    let made = mark::create(Uuid::now_v7(), NAME, serde_json::to_string(&kept)?);
    match store.commit(made).await {
        // After a lost acknowledgement, the record shows which server made the key.
        Ok(_) | Err(StoreError::Unknown(_)) => {}
        Err(error) => {
            let _ = fs::remove_file(&written);
            return Err(error.into());
        }
    }
    let lost = || NotMade::Store(StoreError::Unavailable("the record of the first key is not there yet".into()));
    let record = find(store).await?.ok_or_else(lost)?;
    let is_ours = serde_json::from_slice::<Kept>(&record.body)?.id == key.id;
    if !is_ours {
        let _ = fs::remove_file(&written);
    }
    complete(store, audit, &record, is_ours).await
}

async fn find(store: &dyn MainStore) -> Result<Option<Record>, StoreError> {
    Ok(store.find(&[mark::place(NAME)]).await?.value.into_iter().flatten().next())
}

/// Ensures that the key of a record is in its file and in the table of keys.
async fn complete(store: &dyn MainStore, audit: &Audit, record: &Record, is_ours: bool) -> Result<FirstKey, NotMade> {
    let Kept { id, hash, file, host } = serde_json::from_slice(&record.body)?;
    let written = file.with_file_name(format!("{FILE}.{id}"));
    // The file is not here if it is on another machine, or was already renamed.
    if written.exists() {
        fs::rename(&written, &file).map_err(|error| NotMade::File(file.clone(), error))?;
    }
    let workspace = WorkspaceName::default_workspace();
    let bytes: Option<Vec<u8>> =
        (0..hash.len() / 2).map(|at| u8::from_str_radix(hash.get(2 * at..2 * at + 2)?, 16).ok()).collect();
    let hash = bytes.and_then(|bytes| bytes.try_into().ok());
    let hash = hash.ok_or_else(|| StoreError::Refused("the record of the first key has no hash".into()))?;
    let key = ApiKey {
        id: id.clone(),
        workspace,
        role: Role::Admin,
        hash,
        created_at: Time::LONG_AGO,
        revoked_at: None,
        name: Some(NAME.into()),
        created_by: Some(CREATOR.into()),
        expires_at: None,
        last_used_at: None,
    };
    let act = Act::new("audit.key_created", &key.workspace, ("key", &id), &By::from(CREATOR), None);
    let create = store.create_key(key);
    if let Err(error) = audit.act(act.about("role", Role::Admin.as_str()).about("name", NAME), create).await {
        // Another server completes the same key at this moment, and was faster.
        if !store.keys().await?.iter().any(|key| key.id == id) {
            return Err(error.into());
        }
    }
    Ok(FirstKey { id, file, host, is_ours })
}

/// Writes a file that only its owner can read, and syncs it to disk before this returns.
fn write(folder: &Path, path: &Path, secret: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{secret}")?;
    file.sync_all()?;
    File::open(folder)?.sync_all()
}
