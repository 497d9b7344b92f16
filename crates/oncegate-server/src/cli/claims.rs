//! `oncegate claims`: what the API's claims endpoints do, from a shell, straight on the store.

use clap::{Args, Subcommand, ValueEnum};
use oncegate::store::{Cursor, Query, Reading, Store};
use oncegate::{Answer, Claim, ClaimId, ClaimKey, Command as ClaimCommand, GuardName, State, WorkspaceName, limits};

use super::output::{Format, table};
use super::{Failure, open_store};
use crate::api::{ClaimView, PageView};
use crate::config::Config;

#[derive(Subcommand)]
pub enum Command {
    /// List claims, newest first
    List {
        #[command(flatten)]
        scope: Scope,
        #[arg(long)]
        guard: Option<String>,
        /// in_flight, done, failed or unknown
        #[arg(long)]
        state: Option<String>,
        #[arg(long, default_value_t = limits::PAGE_DEFAULT)]
        limit: usize,
        /// Where the page before ended
        #[arg(long)]
        cursor: Option<String>,
        #[command(flatten)]
        format: Format,
    },
    /// Show one claim
    Show {
        id: String,
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        format: Format,
    },
    /// Find a claim by the parts of its key
    Find {
        /// The parts, in order
        #[arg(required = true)]
        parts: Vec<String>,
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        format: Format,
    },
    /// Delete the lock: the next caller wins
    Forget {
        id: String,
        #[command(flatten)]
        named: Named,
        /// Why, for the log
        #[arg(long)]
        note: Option<String>,
    },
    /// Settle an unknown claim
    Resolve {
        id: String,
        #[command(flatten)]
        named: Named,
        #[arg(long = "as", value_name = "done|not_done")]
        resolution: Resolution,
        /// Why, for the log
        #[arg(long)]
        note: Option<String>,
    },
}

#[derive(Args)]
pub struct Scope {
    #[arg(long, default_value = "default")]
    workspace: String,
}

#[derive(Args)]
pub struct Named {
    #[command(flatten)]
    scope: Scope,
    #[arg(long)]
    guard: String,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Resolution {
    #[value(name = "done")]
    Done,
    #[value(name = "not_done")]
    NotDone,
}

impl Scope {
    fn workspace(&self) -> Result<WorkspaceName, Failure> {
        WorkspaceName::new(&self.workspace).map_err(|error| Failure::usage(error.to_string()))
    }
}

impl Named {
    fn key(&self, id: &str) -> Result<ClaimKey, Failure> {
        let id =
            ClaimId::parse(id).ok_or_else(|| Failure::usage(format!("{id:?} is no id: those are 64 hex digits")))?;
        Ok(ClaimKey { workspace: self.scope.workspace()?, guard: guard(&self.guard)?, id })
    }
}

fn guard(name: &str) -> Result<GuardName, Failure> {
    GuardName::new(name).map_err(|error| Failure::usage(error.to_string()))
}

pub async fn run(command: Command, config: &Config) -> Result<(), Failure> {
    let store = open_store(config).await?;
    let result = match command {
        Command::List { scope, guard: of, state, limit, cursor, format } => {
            list(&*store, &scope, of, state, limit, cursor, format).await
        }
        Command::Show { id, named, format } => show(&*store, &named.key(&id)?, format).await,
        Command::Find { parts, named, format } => {
            let parts: Vec<Option<String>> = parts.into_iter().map(Some).collect();
            show(&*store, &ClaimKey::of(&named.scope.workspace()?, &guard(&named.guard)?, &parts), format).await
        }
        Command::Forget { id, named, note } => {
            by_hand(&*store, &named.key(&id)?, ClaimCommand::Forget, "forgotten", note).await
        }
        Command::Resolve { id, named, resolution, note } => {
            let resolve = ClaimCommand::Resolve { done: resolution == Resolution::Done, outcome: None };
            by_hand(&*store, &named.key(&id)?, resolve, "resolved", note).await
        }
    };
    store.close().await;
    result
}

async fn list(
    store: &dyn Store,
    scope: &Scope,
    of: Option<String>,
    state: Option<String>,
    limit: usize,
    cursor: Option<String>,
    format: Format,
) -> Result<(), Failure> {
    if !(1..=limits::PAGE_MAX).contains(&limit) {
        return Err(Failure::usage(format!("--limit is 1 to {}", limits::PAGE_MAX)));
    }
    let state = state
        .map(|name| State::parse(&name).ok_or_else(|| Failure::usage("--state is in_flight, done, failed or unknown")))
        .transpose()?;
    let after: Option<Cursor> = cursor
        .map(|cursor| {
            crate::api::parse_cursor(&cursor).ok_or_else(|| Failure::usage("--cursor is not one that a page has given"))
        })
        .transpose()?;
    let workspace = scope.workspace()?;
    let page =
        store.scan(Query { workspace, guard: of.as_deref().map(guard).transpose()?, state, limit, after }).await?;
    format.print(&PageView::of(&page), |view| {
        let rows = page.claims.iter().map(|claim| {
            [
                claim.key.id.to_string(),
                claim.key.guard.to_string(),
                claim.state_at(page.now).to_string(),
                claim.duplicates.to_string(),
                claim.created_at.to_string(),
                claim.expires_at.to_string(),
            ]
        });
        let more = view.next_cursor.as_ref().map_or(String::new(), |cursor| format!("\nmore: --cursor {cursor}"));
        table(["ID", "GUARD", "STATE", "DUPLICATES", "CREATED", "EXPIRES"], rows) + &more
    });
    Ok(())
}

async fn show(store: &dyn Store, key: &ClaimKey, format: Format) -> Result<(), Failure> {
    let Reading { value, now } = store.read(key).await?;
    let claim: Claim = value.ok_or_else(|| missing(key))?;
    format.print(&ClaimView::of(&claim, now), |view| {
        let fields = serde_json::to_value(view).expect("output is JSON");
        let rows = fields.as_object().into_iter().flatten().map(|(name, value)| {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            [name.clone(), value]
        });
        table(["FIELD", "VALUE"], rows)
    });
    Ok(())
}

/// Forgetting and resolving: the audit line goes to standard error, with who and why.
async fn by_hand(
    store: &dyn Store,
    key: &ClaimKey,
    command: ClaimCommand,
    done: &str,
    note: Option<String>,
) -> Result<(), Failure> {
    let op = oncegate::store::Op { key: key.clone(), command };
    match store.commit(op.into()).await?.only() {
        Answer::Refused(oncegate::Refusal::Missing) => Err(missing(key)),
        Answer::Refused(refusal) => Err(Failure::new(refusal.to_string())),
        _ => {
            let by = std::env::var("USER").unwrap_or_else(|_| "the command line".into());
            let why = note.map_or(String::new(), |note| format!(": {note}"));
            eprintln!("{} {done} by {by}{why}", key.id);
            Ok(())
        }
    }
}

fn missing(key: &ClaimKey) -> Failure {
    Failure::not_found(format!("no claim {} of guard {} in workspace {}", key.id, key.guard, key.workspace))
        .hint(format!("oncegate claims list --workspace {} --guard {}", key.workspace, key.guard))
}
