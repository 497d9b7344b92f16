//! `oncegate workspace` and `oncegate key`.

use clap::Subcommand;
use oncegate::store::{ApiKey, Keyring, Role};
use oncegate::{Time, WorkspaceName};
use serde_json::json;

use super::output::{Format, say, table};
use super::{Failure, open_existing, open_store, with};
use crate::auth::NewKey;
use crate::config::Config;

#[derive(Subcommand)]
pub enum WorkspaceCommand {
    /// Make a workspace
    Create {
        name: String,
        #[command(flatten)]
        format: Format,
    },
    /// List workspaces
    List {
        #[command(flatten)]
        format: Format,
    },
}

#[derive(Subcommand)]
pub enum KeyCommand {
    /// Make a key and print it, once
    Create {
        #[arg(long)]
        workspace: String,
        /// send, operate or admin
        #[arg(long, default_value = "send")]
        role: String,
        #[command(flatten)]
        format: Format,
    },
    /// List keys, without their secrets
    List {
        #[command(flatten)]
        format: Format,
    },
    /// Revoke a key by its id
    Revoke {
        id: String,
        #[command(flatten)]
        format: Format,
    },
}

fn name(name: &str) -> Result<WorkspaceName, Failure> {
    WorkspaceName::new(name).map_err(|error| Failure::usage(error.to_string()))
}

pub async fn run_workspace(command: WorkspaceCommand, config: &Config) -> Result<(), Failure> {
    match command {
        WorkspaceCommand::Create { name: given, format } => {
            let workspace = name(&given)?;
            with(open_store(config).await?, async |store| create_workspace(store, &workspace, format).await).await
        }
        WorkspaceCommand::List { format } => {
            with(open_existing(config).await?, async |store| list_workspaces(store, format).await).await
        }
    }
}

async fn create_workspace(store: &dyn Keyring, name: &WorkspaceName, format: Format) -> Result<(), Failure> {
    let created = store.create_workspace(name).await?;
    let line = format!("workspace {name} {}", if created { "created" } else { "is there already" });
    format.report(&json!({"name": name.as_str(), "created": created}), line);
    Ok(())
}

async fn list_workspaces(store: &dyn Keyring, format: Format) -> Result<(), Failure> {
    let workspaces = store.workspaces().await?;
    let view: Vec<_> = workspaces
        .iter()
        .map(|(name, created_at)| json!({"name": name.as_str(), "createdAt": created_at.to_string()}))
        .collect();
    format.print(&view, |_| {
        table(["NAME", "CREATED"], workspaces.iter().map(|(name, at)| [name.to_string(), at.to_string()]))
    });
    Ok(())
}

pub async fn run_key(command: KeyCommand, config: &Config) -> Result<(), Failure> {
    match command {
        KeyCommand::Create { workspace, role, format } => {
            let workspace = name(&workspace)?;
            let role = Role::parse(&role).ok_or_else(|| Failure::usage("--role is send, operate or admin"))?;
            with(open_store(config).await?, async |store| create_key(store, workspace, role, format).await).await
        }
        KeyCommand::List { format } => {
            with(open_existing(config).await?, async |store| list_keys(store, format).await).await
        }
        KeyCommand::Revoke { id, format } => {
            with(open_existing(config).await?, async |store| revoke_key(store, &id, format).await).await
        }
    }
}

async fn create_key(store: &dyn Keyring, workspace: WorkspaceName, role: Role, format: Format) -> Result<(), Failure> {
    let NewKey { id, secret, hash } = NewKey::generate();
    // The store says when.
    let created_at = Time::LONG_AGO;
    let key = ApiKey { id: id.clone(), workspace: workspace.clone(), role, hash, created_at, revoked_at: None };
    if !store.create_key(key).await? {
        return Err(Failure::not_found(format!("there is no workspace {workspace}"))
            .hint(format!("oncegate workspace create {workspace}")));
    }
    let view = json!({"id": id, "workspace": workspace.as_str(), "role": role.as_str(), "key": secret});
    format.print(&view, |_| secret.clone());
    say("this key is shown once; from now on every request needs one");
    Ok(())
}

async fn list_keys(store: &dyn Keyring, format: Format) -> Result<(), Failure> {
    let keys = store.keys().await?;
    let view: Vec<_> = keys.iter().map(view).collect();
    format.print(&view, |_| {
        let rows = keys.iter().map(|key| {
            let revoked = key.revoked_at.map_or("-".into(), |at| at.to_string());
            let (workspace, role) = (key.workspace.to_string(), key.role.as_str().into());
            [key.id.clone(), workspace, role, key.created_at.to_string(), revoked]
        });
        table(["ID", "WORKSPACE", "ROLE", "CREATED", "REVOKED"], rows)
    });
    Ok(())
}

async fn revoke_key(store: &dyn Keyring, id: &str, format: Format) -> Result<(), Failure> {
    if !store.revoke_key(id).await? {
        return Err(Failure::not_found(format!("there is no live key {id}")).hint("oncegate key list"));
    }
    format.report(&json!({"id": id, "revoked": true}), format_args!("key {id} revoked"));
    Ok(())
}

fn view(key: &ApiKey) -> serde_json::Value {
    json!({
        "id": key.id, "workspace": key.workspace.as_str(), "role": key.role.as_str(),
        "createdAt": key.created_at.to_string(), "revokedAt": key.revoked_at.map(|at| at.to_string()),
    })
}
