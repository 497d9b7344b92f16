//! Workspaces and API keys.

use async_trait::async_trait;
use oncegate_core::{Time, WorkspaceName};
use oncegate_store::{ApiKey, Keyring, Role, StoreError};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::store::PostgresStore;

const CREATE_KEY: &str = include_str!("../sql/create_key.sql");
const CREATE_WORKSPACE: &str = include_str!("../sql/create_workspace.sql");
const LIST_KEYS: &str = include_str!("../sql/list_keys.sql");
const LIST_WORKSPACES: &str = include_str!("../sql/list_workspaces.sql");
const REVOKE_KEY: &str = include_str!("../sql/revoke_key.sql");
const TOUCH_KEYS: &str = include_str!("../sql/touch_keys.sql");

#[async_trait]
impl Keyring for PostgresStore {
    async fn create_workspace(&self, name: &WorkspaceName) -> Result<bool, StoreError> {
        let now = self.front.injected_time();
        Ok(self.tell(CREATE_WORKSPACE, &[&now, &name.as_str()]).await? == 1)
    }

    async fn workspaces(&self) -> Result<Vec<(WorkspaceName, Time)>, StoreError> {
        let rows = self.front.ask(LIST_WORKSPACES, &[]).await?;
        rows.iter().map(|row| Ok((workspace(row.get(0))?, Time::from_micros(row.get(1))))).collect()
    }

    async fn create_key(&self, key: ApiKey) -> Result<bool, StoreError> {
        let now = self.front.injected_time();
        let revoked_at = key.revoked_at.map(|at| at.micros());
        let (workspace, role, hash) = (key.workspace.as_str(), key.role.as_str(), &key.hash[..]);
        let (name, created_by, expires_at) = (&key.name, &key.created_by, key.expires_at.map(Time::micros));
        let values: [&(dyn ToSql + Sync); 9] =
            [&now, &workspace, &key.id, &role, &hash, &revoked_at, name, created_by, &expires_at];
        Ok(self.tell(CREATE_KEY, &values).await? == 1)
    }

    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        self.front.ask(LIST_KEYS, &[]).await?.iter().map(api_key).collect()
    }

    async fn revoke_key(&self, id: &str) -> Result<bool, StoreError> {
        let now = self.front.injected_time();
        Ok(self.tell(REVOKE_KEY, &[&now, &id]).await? == 1)
    }

    async fn touch_keys(&self, ids: &[String]) -> Result<(), StoreError> {
        if ids.is_empty() {
            return Ok(());
        }
        let now = self.front.injected_time();
        self.tell(TOUCH_KEYS, &[&now, &ids]).await.map(drop)
    }
}

fn api_key(row: &Row) -> Result<ApiKey, StoreError> {
    let strange = |what: &str| StoreError::Refused(format!("the table `api_keys` has a {what} that is none"));
    Ok(ApiKey {
        id: row.get(0),
        workspace: workspace(row.get(1))?,
        role: Role::parse(row.get(2)).ok_or_else(|| strange("role"))?,
        hash: row.get::<_, &[u8]>(3).try_into().map_err(|_| strange("hash"))?,
        created_at: Time::from_micros(row.get(4)),
        revoked_at: row.get::<_, Option<i64>>(5).map(Time::from_micros),
        name: row.get(6),
        created_by: row.get(7),
        expires_at: row.get::<_, Option<i64>>(8).map(Time::from_micros),
        last_used_at: row.get::<_, Option<i64>>(9).map(Time::from_micros),
    })
}

fn workspace(name: &str) -> Result<WorkspaceName, StoreError> {
    WorkspaceName::new(name).map_err(|error| StoreError::Refused(error.to_string()))
}
