//! Workspaces and their API keys.

use async_trait::async_trait;
use oncegate_core::{Time, WorkspaceName};
use oncegate_store::{ApiKey, Keyring, Role, StoreError};
use rusqlite::params;

use crate::{SqliteStore, workspace_name};

#[async_trait]
impl Keyring for SqliteStore {
    async fn create_workspace(&self, name: &WorkspaceName) -> Result<bool, StoreError> {
        let name = name.clone();
        self.writer
            .run(move |connection, moment| {
                let insert = "INSERT INTO workspaces (name, created_at) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
                connection.execute(insert, params![name.as_str(), moment.now.micros()]).map(|rows| rows == 1)
            })
            .await
    }

    async fn workspaces(&self) -> Result<Vec<(WorkspaceName, Time)>, StoreError> {
        self.readers
            .run(|connection| {
                let mut statement =
                    connection.prepare_cached("SELECT name, created_at FROM workspaces ORDER BY name")?;
                let rows = statement.query_map([], |row| {
                    Ok((workspace_name(row.get_ref(0)?.as_str()?)?, Time::from_micros(row.get(1)?)))
                })?;
                rows.collect()
            })
            .await
    }

    async fn create_key(&self, key: ApiKey) -> Result<bool, StoreError> {
        self.writer
            .run(move |connection, moment| {
                let insert =
                    "INSERT INTO api_keys (id, workspace, role, hash, created_at, name, created_by, expires_at)
                              SELECT ?1, workspaces.name, ?3, ?4, ?5, ?6, ?7, ?8
                              FROM workspaces WHERE workspaces.name = ?2";
                let (workspace, role, now) = (key.workspace.as_str(), key.role.as_str(), moment.now.micros());
                let expires_at = key.expires_at.map(Time::micros);
                let values = params![key.id, workspace, role, key.hash, now, key.name, key.created_by, expires_at];
                connection.execute(insert, values).map(|rows| rows == 1)
            })
            .await
    }

    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        self.readers
            .run(|connection| {
                let mut statement = connection.prepare_cached(
                    "SELECT id, workspace, role, hash, created_at, revoked_at, name, created_by, expires_at, last_used_at
                     FROM api_keys ORDER BY created_at, id",
                )?;
                let rows = statement.query_map([], |row| {
                    Ok(ApiKey {
                        id: row.get(0)?,
                        workspace: workspace_name(row.get_ref(1)?.as_str()?)?,
                        // A role that this version does not know gets the fewest rights.
                        role: Role::parse(row.get_ref(2)?.as_str()?).unwrap_or(Role::Send),
                        hash: row.get(3)?,
                        created_at: Time::from_micros(row.get(4)?),
                        revoked_at: row.get::<_, Option<i64>>(5)?.map(Time::from_micros),
                        name: row.get(6)?,
                        created_by: row.get(7)?,
                        expires_at: row.get::<_, Option<i64>>(8)?.map(Time::from_micros),
                        last_used_at: row.get::<_, Option<i64>>(9)?.map(Time::from_micros),
                    })
                })?;
                rows.collect()
            })
            .await
    }

    async fn revoke_key(&self, id: &str) -> Result<bool, StoreError> {
        let id = id.to_owned();
        self.writer
            .run(move |connection, moment| {
                let revoke = "UPDATE api_keys SET revoked_at = ?2 WHERE id = ?1 AND revoked_at IS NULL";
                connection.execute(revoke, params![id, moment.now.micros()]).map(|rows| rows == 1)
            })
            .await
    }

    async fn touch_keys(&self, ids: &[String]) -> Result<(), StoreError> {
        if ids.is_empty() {
            return Ok(());
        }
        let ids = ids.to_vec();
        self.writer
            .run(move |connection, moment| {
                let mut touch = connection.prepare_cached("UPDATE api_keys SET last_used_at = ?2 WHERE id = ?1")?;
                ids.iter().try_for_each(|id| touch.execute(params![id, moment.now.micros()]).map(drop))
            })
            .await
    }
}
