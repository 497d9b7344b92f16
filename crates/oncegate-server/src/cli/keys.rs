//! `oncegate workspace` and `oncegate key`.

use clap::Subcommand;
use oncegate::store::{Clock, Keyring, MainStore, Role, SystemClock};
use oncegate::{Time, WorkspaceName};
use serde_json::json;

use super::args::{Note, who};
use super::{with, with_audit};
use oncegate_config::Config;
use oncegate_http::api::KeyView;
use oncegate_http::audit::{Audit, By};
use oncegate_http::keys::{self, Made, NotChanged, Terms};
use oncegate_http::stores::open_existing;
use oncegate_http::stores::open_store;
use oncegate_process::failure::Failure;
use oncegate_process::output::{Format, say, table};

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
        /// What people call it
        #[arg(long)]
        name: Option<String>,
        /// When it ends: a time, or how long from now, 90d [default: never]
        #[arg(long, value_name = "TIME|DURATION")]
        expires: Option<String>,
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
        note: Note,
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
        KeyCommand::Create { workspace, role, name: called, expires, format } => {
            let usage = |flag: &str| {
                let flag = flag.to_owned();
                move |wrong: String| Failure::usage(format!("{flag}: {wrong}"))
            };
            let now = SystemClock.now();
            let terms = Terms {
                workspace: name(&workspace)?,
                role: Role::parse(&role).ok_or_else(|| Failure::usage("--role is send, operate or admin"))?,
                name: called.as_deref().map(keys::name).transpose().map_err(usage("--name"))?,
                expires_at: expires.map(|end| keys::end(&end, now)).transpose().map_err(usage("--expires"))?,
            };
            with_audit(open_store(config).await?, async |store, audit| create_key(store, audit, terms, format).await)
                .await
        }
        KeyCommand::List { format } => {
            with(open_existing(config).await?, async |store| list_keys(store, format).await).await
        }
        KeyCommand::Revoke { id, note, format } => {
            let (store, note) = (open_existing(config).await?, note.read()?);
            with_audit(store, async |store, audit| revoke_key(store, audit, &id, note.as_deref(), format).await).await
        }
    }
}

async fn create_key(store: &dyn MainStore, audit: &Audit, terms: Terms, format: Format) -> Result<(), Failure> {
    let Made { key, secret } = keys::create(store, audit, &By::from(who().as_str()), terms).await.map_err(failure)?;
    let view = json!({
        "id": key.id, "workspace": key.workspace.as_str(), "role": key.role.as_str(), "name": key.name,
        "expiresAt": key.expires_at.map(|at| at.to_string()), "key": secret,
    });
    format.print(&view, |_| secret.clone());
    say("this key is shown once; from now on every request needs one");
    Ok(())
}

fn failure(not: NotChanged) -> Failure {
    match &not {
        NotChanged::NoWorkspace(workspace) => {
            Failure::not_found(not.to_string()).hint(format!("oncegate workspace create {workspace}"))
        }
        NotChanged::NoKey(id) => Failure::not_found(format!("there is no live key {id}")).hint("oncegate key list"),
        NotChanged::TooManyLive => Failure::new(not.to_string()).hint("oncegate key list, and oncegate key revoke ID"),
        NotChanged::TooMany => Failure::new(not.to_string()).hint("oncegate workspace create NAME"),
        NotChanged::Store(error) => error.clone().into(),
    }
}

async fn list_keys(store: &dyn Keyring, format: Format) -> Result<(), Failure> {
    let (keys, now) = (store.keys().await?, SystemClock.now());
    let view: Vec<_> = keys.iter().map(|key| KeyView::of(key, now)).collect();
    format.print(&view, |_| {
        let rows = keys.iter().map(|key| {
            let time = |at: Option<Time>| at.map_or("-".into(), |at| at.to_string());
            let name = key.name.clone().unwrap_or_else(|| "-".into());
            let (workspace, role) = (key.workspace.to_string(), key.role.as_str().into());
            let state = keys::state(key, now).into();
            let (created, expires, used) = (key.created_at.to_string(), time(key.expires_at), time(key.last_used_at));
            [key.id.clone(), workspace, role, name, state, created, expires, used, time(key.revoked_at)]
        });
        table(["ID", "WORKSPACE", "ROLE", "NAME", "STATE", "CREATED", "EXPIRES", "LAST USED", "REVOKED"], rows)
    });
    Ok(())
}

async fn revoke_key(
    store: &dyn MainStore,
    audit: &Audit,
    id: &str,
    why: Option<&str>,
    format: Format,
) -> Result<(), Failure> {
    let none = || failure(NotChanged::NoKey(id.to_owned()));
    let key = store.keys().await?.into_iter().find(|key| key.id == id).ok_or_else(none)?;
    let by = By::from(who().as_str());
    keys::revoke(store, audit, &by, (&key.workspace, id), why).await.map_err(failure)?;
    format.report(&json!({"id": id, "revoked": true}), format_args!("key {id} revoked"));
    Ok(())
}
