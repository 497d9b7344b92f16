//! Workspaces and API keys.

use async_trait::async_trait;
use oncegate_core::{Time, WorkspaceName};
use oncegate_store::{ApiKey, Keyring, Role, StoreError};
use tokio_postgres::Row;

use crate::store::PostgresStore;

const CREATE_KEY: &str = include_str!("../sql/create_key.sql");
const CREATE_WORKSPACE: &str = include_str!("../sql/create_workspace.sql");
const LIST_KEYS: &str = include_str!("../sql/list_keys.sql");
const LIST_WORKSPACES: &str = include_str!("../sql/list_workspaces.sql");
const REVOKE_KEY: &str = include_str!("../sql/revoke_key.sql");

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
        Ok(self.tell(CREATE_KEY, &[&now, &workspace, &key.id, &role, &hash, &revoked_at]).await? == 1)
    }

    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        self.front.ask(LIST_KEYS, &[]).await?.iter().map(api_key).collect()
    }

    async fn revoke_key(&self, id: &str) -> Result<bool, StoreError> {
        let now = self.front.injected_time();
        Ok(self.tell(REVOKE_KEY, &[&now, &id]).await? == 1)
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
    })
}

fn workspace(name: &str) -> Result<WorkspaceName, StoreError> {
    WorkspaceName::new(name).map_err(|error| StoreError::Refused(error.to_string()))
}
