//! `oncegate claims`: what the API's claims endpoints do, from a shell, straight on the store.

use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};
use oncegate::store::{Query, Reading, Store};
use oncegate::{Answer, Claim, ClaimId, ClaimKey, Command as ClaimCommand, GuardName, Ledger, Refusal, State};
use serde_json::json;

use super::args::{Limit, Note, Scope, who};
use super::show::{self, more};
use super::with;
use oncegate_config::Config;
use oncegate_http::api::{ClaimView, PageView};
use oncegate_http::audit::{Act, Audit, By};
use oncegate_http::stores::{open_existing, open_existing_guards};
use oncegate_process::failure::Failure;
use oncegate_process::output::{Format, table};

#[derive(Subcommand)]
pub enum Command {
    /// List claims, newest first
    List(ListArgs),
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
        #[command(flatten)]
        parts: Parts,
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        format: Format,
    },
    /// Delete the claim: the next caller wins
    Forget {
        id: String,
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        note: Note,
        #[command(flatten)]
        format: Format,
    },
    /// Settle an unknown claim
    Resolve {
        id: String,
        #[command(flatten)]
        named: Named,
        #[arg(long = "as", value_name = "done|not_done")]
        resolution: Resolution,
        #[command(flatten)]
        note: Note,
        #[command(flatten)]
        format: Format,
    },
}

#[derive(Args)]
pub struct ListArgs {
    #[command(flatten)]
    scope: Scope,
    #[arg(long)]
    guard: Option<String>,
    /// in_flight, done, failed or unknown
    #[arg(long)]
    state: Option<String>,
    #[command(flatten)]
    limit: Limit,
    /// Where the page before ended
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    format: Format,
}

#[derive(Args)]
pub struct Parts {
    /// The parts, in order
    #[arg(value_name = "PART", required_unless_present = "json_key", conflicts_with = "json_key")]
    parts: Vec<String>,
    /// The parts as JSON, null for one that is absent: '["a",null]'
    #[arg(long, value_name = "JSON")]
    json_key: Option<String>,
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

impl Resolution {
    pub fn is_done(self) -> bool {
        self == Resolution::Done
    }

    pub const fn says(self) -> &'static str {
        match self {
            Resolution::Done => "resolved as done",
            Resolution::NotDone => "resolved as not_done",
        }
    }
}

impl Named {
    fn key(&self, id: &str) -> Result<ClaimKey, Failure> {
        let id =
            ClaimId::parse(id).ok_or_else(|| Failure::usage(format!("{id:?} is no id: those are 64 hex digits")))?;
        Ok(ClaimKey { workspace: self.scope.workspace()?, guard: guard(&self.guard)?, id })
    }

    fn key_of(&self, parts: &[Option<String>]) -> Result<ClaimKey, Failure> {
        Ok(ClaimKey::of(&self.scope.workspace()?, &guard(&self.guard)?, parts))
    }
}

impl ListArgs {
    fn query(&self) -> Result<Query, Failure> {
        let limit = self.limit.read()?;
        let state = |name: &str| {
            State::parse(name).ok_or_else(|| Failure::usage("--state is in_flight, done, failed or unknown"))
        };
        let after = |cursor: &str| {
            oncegate_http::api::parse_cursor(cursor)
                .ok_or_else(|| Failure::usage("--cursor is not one that a page has given"))
        };
        Ok(Query {
            workspace: self.scope.workspace()?,
            guard: self.guard.as_deref().map(guard).transpose()?,
            state: self.state.as_deref().map(state).transpose()?,
            limit,
            after: self.cursor.as_deref().map(after).transpose()?,
        })
    }
}

impl Parts {
    fn read(self) -> Result<Vec<Option<String>>, Failure> {
        let Some(json) = self.json_key else { return Ok(self.parts.into_iter().map(Some).collect()) };
        let parts: Option<Vec<_>> = serde_json::from_str(&json).ok();
        parts
            .filter(|parts| !parts.is_empty())
            .ok_or_else(|| Failure::usage(r#"--json-key is an array of strings and nulls: '["a",null]'"#))
    }
}

fn guard(name: &str) -> Result<GuardName, Failure> {
    GuardName::new(name).map_err(|error| Failure::usage(error.to_string()))
}

/// Checks the arguments before it opens the store.
pub async fn run(command: Command, config: &Config) -> Result<(), Failure> {
    match command {
        Command::List(args) => {
            let (query, format) = (args.query()?, args.format);
            let store = open_existing_guards(config, query.guard.as_ref()).await?;
            with(store, async |store| list(store, query, format).await).await
        }
        Command::Show { id, named, format } => show(config, &named.key(&id)?, format).await,
        Command::Find { parts, named, format } => show(config, &named.key_of(&parts.read()?)?, format).await,
        Command::Forget { id, named, note, format } => {
            let deed = Deed { command: ClaimCommand::Forget, done: "forgotten", note: note.read()? };
            by_hand(config, &named.key(&id)?, deed, format).await
        }
        Command::Resolve { id, named, resolution, note, format } => {
            let guard = guard(&named.guard)?;
            if oncegate_http::own_guards::is_own(&guard) {
                return Err(Failure::usage(format!("the claims of guard {guard} are the server's own"))
                    .hint("oncegate sends resolve, or messages, actions, reminders resolve, settles what is theirs"));
            }
            let command = ClaimCommand::Resolve { done: resolution.is_done(), outcome: None };
            let deed = Deed { command, done: resolution.says(), note: note.read()? };
            by_hand(config, &named.key(&id)?, deed, format).await
        }
    }
}

async fn list(store: &dyn Store, query: Query, format: Format) -> Result<(), Failure> {
    let page = store.scan(query).await?;
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
        table(["ID", "GUARD", "STATE", "DUPLICATES", "CREATED", "EXPIRES"], rows) + &more(view.next_cursor.as_ref())
    });
    Ok(())
}

async fn show(config: &Config, key: &ClaimKey, format: Format) -> Result<(), Failure> {
    with(open_existing_guards(config, Some(&key.guard)).await?, async |store| {
        let Reading { value, now } = store.read(key).await?;
        let claim: Claim = value.ok_or_else(|| missing(key))?;
        show::record(&ClaimView::of(&claim, now), format);
        Ok(())
    })
    .await
}

/// A person's decision on a claim of another caller.
struct Deed {
    command: ClaimCommand,
    /// The act's name in the output.
    done: &'static str,
    note: Option<String>,
}

async fn by_hand(config: &Config, key: &ClaimKey, deed: Deed, format: Format) -> Result<(), Failure> {
    let Deed { command, done, note } = deed;
    let event = if matches!(command, ClaimCommand::Forget) { "audit.forget" } else { "audit.resolve" };
    let by = By::from(who().as_str());
    let act = Act::new(event, &key.workspace, ("claim", key.id), &by, note.as_deref());
    let act = act.about("guard", &key.guard).about("done", done);
    // The audit log is in the main store, even if the claims are in another one.
    let is_beside = config.guard_store.is_none() || oncegate_http::own_guards::is_kept_beside(&key.guard);
    let main = if is_beside { None } else { Some(open_existing(config).await?) };
    let store = open_existing_guards(config, Some(&key.guard)).await?;
    let log = Audit::new(main.clone().unwrap_or_else(|| store.clone()));
    let ledger = Ledger::start(store, Arc::new(()));
    let apply = async {
        match ledger.apply(key, command).await?.value {
            Answer::Refused(Refusal::Missing) => Err(missing(key)),
            Answer::Refused(refusal) => Err(Failure::new(refusal.to_string())),
            _ => Ok(()),
        }
    };
    let applied = log.act(act, apply).await.map(|_| tell(key, done, note, format));
    log.write_behind(true).await;
    ledger.close().await;
    if let Some(main) = main {
        main.close().await;
    }
    applied
}

/// The audit line goes to standard error, with the user and the reason.
fn tell(key: &ClaimKey, done: &str, note: Option<String>, format: Format) {
    let by = who();
    let why = note.as_ref().map_or(String::new(), |note| format!(": {note}"));
    let view = json!({
        "workspace": key.workspace.as_str(), "guard": key.guard.as_str(), "id": key.id.to_string(),
        "done": done, "by": by, "note": note,
    });
    format.report(&view, format_args!("{} {done} by {by}{why}", key.id));
}

fn missing(key: &ClaimKey) -> Failure {
    Failure::not_found(format!("no claim {} of guard {} in workspace {}", key.id, key.guard, key.workspace))
        .hint(format!("oncegate claims list --workspace {} --guard {}", key.workspace, key.guard))
}
