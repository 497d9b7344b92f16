//! `oncegate workspace` and `oncegate key`.

use clap::Subcommand;
use oncegate::store::{ApiKey, Role};
use oncegate::{Time, WorkspaceName};
use serde_json::json;

use super::output::{Format, table};
use super::{Failure, open_store};
use crate::auth::NewKey;
use crate::config::Config;

#[derive(Subcommand)]
pub enum WorkspaceCommand {
    /// Make a workspace
    Create { name: String },
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
    Revoke { id: String },
}

fn name(name: &str) -> Result<WorkspaceName, Failure> {
    WorkspaceName::new(name).map_err(|error| Failure::usage(error.to_string()))
}

pub async fn run_workspace(command: WorkspaceCommand, config: &Config) -> Result<(), Failure> {
    let store = open_store(config).await?;
    match command {
        WorkspaceCommand::Create { name: given } => {
            let created = store.create_workspace(&name(&given)?).await?;
            eprintln!("workspace {given} {}", if created { "created" } else { "is there already" });
        }
        WorkspaceCommand::List { format } => {
            let workspaces = store.workspaces().await?;
            let view: Vec<_> = workspaces
                .iter()
                .map(|(name, created_at)| json!({"name": name.as_str(), "createdAt": created_at.to_string()}))
                .collect();
            format.print(&view, |_| {
                table(["NAME", "CREATED"], workspaces.iter().map(|(name, at)| [name.to_string(), at.to_string()]))
            });
        }
    }
    store.close().await;
    Ok(())
}

pub async fn run_key(command: KeyCommand, config: &Config) -> Result<(), Failure> {
    let store = open_store(config).await?;
    match command {
        KeyCommand::Create { workspace, role, format } => {
            let workspace = name(&workspace)?;
            let role = Role::parse(&role).ok_or_else(|| Failure::usage("--role is send, operate or admin"))?;
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
            eprintln!("this key is shown once; from now on every request needs one");
        }
        KeyCommand::List { format } => {
            let keys = store.keys().await?;
            let view: Vec<_> = keys.iter().map(view).collect();
            format.print(&view, |_| {
                let rows = keys.iter().map(|key| {
                    let revoked = key.revoked_at.map_or("-".into(), |at| at.to_string());
                    [
                        key.id.clone(),
                        key.workspace.to_string(),
                        key.role.as_str().into(),
                        key.created_at.to_string(),
                        revoked,
                    ]
                });
                table(["ID", "WORKSPACE", "ROLE", "CREATED", "REVOKED"], rows)
            });
        }
        KeyCommand::Revoke { id } => {
            if !store.revoke_key(&id).await? {
                return Err(Failure::not_found(format!("there is no live key {id}")).hint("oncegate key list"));
            }
            eprintln!("key {id} revoked");
        }
    }
    store.close().await;
    Ok(())
}

fn view(key: &ApiKey) -> serde_json::Value {
    json!({
        "id": key.id, "workspace": key.workspace.as_str(), "role": key.role.as_str(),
        "createdAt": key.created_at.to_string(), "revokedAt": key.revoked_at.map(|at| at.to_string()),
    })
}
