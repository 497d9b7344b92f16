//! Workspaces and their API keys, as a store keeps them.

use async_trait::async_trait;
use oncegate_core::{Time, WorkspaceName};

use crate::StoreError;

/// The SHA-256 of a key. The key itself is shown once, when it is made, and kept nowhere.
pub type KeyHash = [u8; 32];

/// What a key may do; each role may do all that those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Claim, and settle what one owns.
    Send,
    /// See everything of the workspace; lease actions; forget, resolve and retry; read the audit log and the metrics.
    Operate,
    /// Make and revoke the workspace's keys.
    Admin,
}

impl Role {
    pub const ALL: [Role; 3] = [Role::Send, Role::Operate, Role::Admin];

    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Send => "send",
            Role::Operate => "operate",
            Role::Admin => "admin",
        }
    }

    pub fn parse(name: &str) -> Option<Role> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// Public: the part of the key that names it.
    pub id: String,
    pub workspace: WorkspaceName,
    pub role: Role,
    pub hash: KeyHash,
    pub created_at: Time,
    pub revoked_at: Option<Time>,
    /// What people call it.
    pub name: Option<String>,
    /// The key, or the person at the command line, that made it.
    pub created_by: Option<String>,
    /// From then on it is refused as if it were revoked.
    pub expires_at: Option<Time>,
    /// Written behind, and not more than once a minute.
    pub last_used_at: Option<Time>,
}

impl ApiKey {
    /// Whether the server answers it at this time.
    pub fn is_live(&self, now: Time) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|expires_at| now < expires_at)
    }
}

/// The part of a store that knows who may ask.
#[async_trait]
pub trait Keyring: Send + Sync {
    /// Creates a workspace; `false` if it was there already.
    async fn create_workspace(&self, name: &WorkspaceName) -> Result<bool, StoreError>;

    async fn workspaces(&self) -> Result<Vec<(WorkspaceName, Time)>, StoreError>;

    /// Adds a key to an existing workspace; `false` if there is no such workspace.
    /// The store's clock says when: `created_at` of the argument is ignored. A new key has not been used.
    async fn create_key(&self, key: ApiKey) -> Result<bool, StoreError>;

    /// All keys, revoked ones included.
    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError>;

    /// Revokes a key; `false` if there is no such key, or it was revoked already.
    async fn revoke_key(&self, id: &str) -> Result<bool, StoreError>;

    /// Notes that the keys with these ids were used, now by the store's clock. An id of no key is ignored.
    async fn touch_keys(&self, ids: &[String]) -> Result<(), StoreError>;
}
