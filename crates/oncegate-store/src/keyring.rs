//! Workspaces and their API keys, as a store keeps them.

use async_trait::async_trait;
use oncegate_core::{Time, WorkspaceName};

use crate::StoreError;

/// The SHA-256 of a key. The key itself is shown once, when it is made, and kept nowhere.
pub type KeyHash = [u8; 32];

/// What a key may do. Each role includes the rights of the roles before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Claim, and settle one's own claims.
    Send,
    /// See everything in the workspace; lease actions; forget, resolve and retry; read the audit log and the metrics.
    Operate,
    /// Make and revoke the workspace's keys.
    Admin,
}

impl Role {
    /// All roles, from the fewest rights to the most.
    pub const ALL: [Role; 3] = [Role::Send, Role::Operate, Role::Admin];

    /// The name of the role, as the API shows it and the stores write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Send => "send",
            Role::Operate => "operate",
            Role::Admin => "admin",
        }
    }

    /// The role with this name; `None` if no role has it.
    pub fn parse(name: &str) -> Option<Role> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }
}

/// An API key of a workspace. The store keeps the key's hash, not the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// Public: the part of the key that names it.
    pub id: String,
    /// The workspace that the key gives access to.
    pub workspace: WorkspaceName,
    /// What the key may do in its workspace.
    pub role: Role,
    /// The hash of the key. The server compares it with the hash of the key in a request.
    pub hash: KeyHash,
    /// When the store created the key.
    pub created_at: Time,
    /// When the key was revoked. From then on the server refuses the key.
    pub revoked_at: Option<Time>,
    /// A name for people.
    pub name: Option<String>,
    /// The key, or the person at the command line, that made it.
    pub created_by: Option<String>,
    /// From this time on the key is refused as if it were revoked.
    pub expires_at: Option<Time>,
    /// Written asynchronously, at most once a minute.
    pub last_used_at: Option<Time>,
}

impl ApiKey {
    /// Whether the server accepts the key at this time.
    pub fn is_live(&self, now: Time) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|expires_at| now < expires_at)
    }
}

/// The part of a store that keeps workspaces and their API keys.
#[async_trait]
pub trait Keyring: Send + Sync {
    /// Creates a workspace; `false` if it existed already.
    async fn create_workspace(&self, name: &WorkspaceName) -> Result<bool, StoreError>;

    /// All workspaces in the order of their names, and when each was created.
    async fn workspaces(&self) -> Result<Vec<(WorkspaceName, Time)>, StoreError>;

    /// Adds a key to an existing workspace; `false` if there is no such workspace.
    /// The store's clock sets `created_at`, so the argument's `created_at` is ignored. A new key has no `last_used_at`.
    async fn create_key(&self, key: ApiKey) -> Result<bool, StoreError>;

    /// All keys, revoked ones included.
    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError>;

    /// Revokes a key; `false` if there is no such key, or it was revoked already.
    async fn revoke_key(&self, id: &str) -> Result<bool, StoreError>;

    /// Sets `last_used_at` of the keys with these ids to the store's time. An id without a key is ignored.
    async fn touch_keys(&self, ids: &[String]) -> Result<(), StoreError>;
}
