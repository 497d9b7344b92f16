//! The command line.
//!
//! Tables are for people, `--json` is for programs. Data goes to standard output, messages go to standard error.
//! Exit status: 0 done, 1 failed, 2 usage, 3 not found. An error says what happened, then `hint:` and
//! what to do about it.

mod actions;
mod args;
mod audit;
mod claims;
mod config;
mod doctor;
mod fields;
mod keys;
mod messages;
mod migrate;
pub mod output;
mod reminders;
mod sagas;
mod sends;
mod tail;

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};
use oncegate::sagas::Defects;
use oncegate::store::{MainStore, Role, Store, StoreError};
use oncegate::{GuardName, OnStoreError, OpenError, StoreUrl};
use serde_json::json;

use self::output::say;
use crate::audit::Audit;
use crate::config::{Config, ConfigError, Flag, Loaded, SecretUrl};
use crate::decisions::Decisions;
use crate::late::LateStore;
use crate::sagas::NotLoaded;

/// The time that the runtime's threads have to end, once all work is finished.
const THREADS_GRACE: Duration = Duration::from_millis(100);

#[derive(Parser)]
#[command(name = "oncegate", version, about = "Make an effect happen once, though its request comes twice.")]
struct Cli {
    #[command(flatten)]
    settings: Settings,
    #[command(subcommand)]
    command: Command,
}

/// Settings that have a flag. They win over `ONCEGATE_*`, which win over the file.
#[derive(Args)]
struct Settings {
    /// Where claims are kept: sqlite:FILE or postgres://USER@HOST/DATABASE
    #[arg(long, global = true, value_name = "URL")]
    store: Option<String>,
    /// The configuration file [default: oncegate.toml, if it is there]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How the log looks
    #[arg(long, global = true, value_name = "json|pretty")]
    log: Option<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Run the server
    Serve {
        /// Where to listen; port 0 takes a free one and prints it
        #[arg(long, value_name = "ADDRESS:PORT")]
        listen: Option<String>,
    },
    // What its help says is longer, and with its arguments.
    Demo(crate::demo::Command),
    /// See claims, forget and resolve them
    #[command(subcommand)]
    Claims(claims::Command),
    /// See actions, cancel them, try them again, run them now
    #[command(subcommand)]
    Actions(actions::Command),
    /// Check and draw definitions of sagas, see their instances and dead letters
    #[command(subcommand)]
    Saga(sagas::Command),
    /// See sends, and settle those of which nobody can say
    #[command(subcommand)]
    Sends(sends::Command),
    /// See reminders, cancel them, send those that were missed
    #[command(subcommand)]
    Reminders(reminders::Command),
    /// List and show messages
    #[command(subcommand)]
    Messages(messages::Command),
    /// Make and list workspaces
    #[command(subcommand)]
    Workspace(keys::WorkspaceCommand),
    /// Make, list and revoke API keys
    #[command(subcommand)]
    Key(keys::KeyCommand),
    /// See who did what, and check that no line was removed or changed
    #[command(subcommand)]
    Audit(audit::Command),
    /// Check and show the configuration
    #[command(subcommand)]
    Config(config::Command),
    /// Bring the store's schema up to date
    Migrate(migrate::Command),
    /// Look for what is wrong with the configuration, the store and this machine
    Doctor(doctor::Command),
    /// Follow the decisions of a running server, and why each was made
    Tail(tail::Command),
    /// Kill workers at every point of their work, and count what really arrived
    Drill(crate::drill::Command),
    /// Measure decisions per second, beside their limits
    Bench(crate::bench::Command),
    #[command(hide = true)]
    BenchHello,
    /// Print every route of the server and what it needs, for tests
    #[command(hide = true)]
    Routes,
    /// Print completions for a shell
    Completions {
        shell: clap_complete::Shell,
    },
}

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    message: String,
    hint: Option<String>,
    code: u8,
    /// The outcome of the store's write is unknown.
    pub is_unknown: bool,
}

impl Failure {
    pub fn new(message: impl Into<String>) -> Self {
        Failure { message: message.into(), hint: None, code: 1, is_unknown: false }
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Failure { code: 3, ..Self::new(message) }
    }

    fn is_not_found(&self) -> bool {
        self.code == 3
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Failure { code: 2, ..Self::new(message) }
    }

    pub fn hint(self, hint: impl Into<String>) -> Self {
        Failure { hint: Some(hint.into()), ..self }
    }
}

/// Lists each defect of a definition separately.
pub fn not_loaded(error: NotLoaded) -> Failure {
    match error {
        NotLoaded::Defects(Defects(defects)) => {
            let (last, others) = defects.split_last().expect("a failure has a reason");
            for defect in others {
                say(format_args!("oncegate: {defect}"));
            }
            Failure::new(last.to_string()).hint(format!("oncegate saga check {}", last.file))
        }
        NotLoaded::File(_, ref why) if why.kind() == ErrorKind::NotFound => {
            Failure::not_found(error.to_string()).hint("a file is named on the command line, or under [sagas] files")
        }
        error => Failure::new(error.to_string()).hint("a saga is a TOML file; each has a name of its own"),
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let is_unknown = matches!(error, StoreError::Unknown(_));
        Failure { is_unknown, ..Failure::new(error.to_string()).hint("oncegate doctor") }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let message = error.to_string();
        match message.split_once(" hint: ") {
            Some((message, hint)) => Failure::new(message.trim_end_matches('.')).hint(hint),
            None => Failure::new(message).hint("oncegate doctor"),
        }
    }
}

pub fn run() -> ExitCode {
    let Cli { settings, command } = Cli::parse();
    match dispatch(settings, command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say(format_args!("oncegate: {}", failure.message));
            if let Some(hint) = failure.hint {
                say(format_args!("hint: {hint}"));
            }
            ExitCode::from(failure.code)
        }
    }
}

fn dispatch(settings: Settings, command: Command) -> Result<(), Failure> {
    if let Command::Completions { shell } = command {
        print_completions(shell);
        return Ok(());
    }
    if let Command::Routes = command {
        print_routes();
        return Ok(());
    }
    if let Command::Demo(command) = command {
        if settings.store.is_some() || settings.config.is_some() {
            return Err(Failure::usage("the demo has a store and a configuration of its own")
                .hint("leave out --store and --config; oncegate serve takes both"));
        }
        return runtime()?.block_on(crate::demo::run(command, settings.log));
    }
    let listen = match &command {
        Command::Serve { listen } => listen.clone(),
        _ => None,
    };
    let loaded = load(settings, listen)?;
    let serves = matches!(command, Command::Serve { .. });
    // Commands report to people: errors of their store go to standard error, as failures.
    let decisions = Arc::new(Decisions::default());
    let _log = serves.then(|| crate::log::start(&loaded.config.log, decisions.clone()));
    let runtime = runtime()?;
    let done = runtime.block_on(async {
        match command {
            Command::Serve { .. } => crate::serve::serve(loaded.config, decisions, crate::serve::announce).await,
            Command::Claims(command) => claims::run(command, &loaded.config).await,
            Command::Actions(command) => actions::run(command, &loaded.config).await,
            Command::Sends(command) => sends::run(command, &loaded.config).await,
            Command::Reminders(command) => reminders::run(command, &loaded.config).await,
            Command::Saga(command) => sagas::run(command, &loaded.config).await,
            Command::Messages(command) => messages::run(command, &loaded.config).await,
            Command::Workspace(command) => keys::run_workspace(command, &loaded.config).await,
            Command::Key(command) => keys::run_key(command, &loaded.config).await,
            Command::Audit(command) => audit::run(command, &loaded.config).await,
            Command::Config(command) => config::run(command, &loaded),
            Command::Migrate(command) => migrate::run(command, &loaded.config).await,
            Command::Doctor(command) => doctor::run(command, &loaded).await,
            Command::Tail(command) => tail::run(command, &loaded.config).await,
            Command::Drill(command) => crate::drill::run(command).await,
            Command::Bench(command) => crate::bench::run(command).await,
            Command::BenchHello => crate::bench::hello().await,
            Command::Completions { .. } | Command::Demo(_) | Command::Routes => unreachable!("needs no configuration"),
        }
    });
    // Work on a blocking thread cannot be cancelled; the process ends without waiting for it.
    runtime.shutdown_timeout(THREADS_GRACE);
    done
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let built = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    built.map_err(|error| Failure::new(format!("cannot start: {error}")))
}

/// Uses a buffer, because the generator panics when it cannot write.
fn print_completions(shell: clap_complete::Shell) {
    let mut script = vec![];
    clap_complete::generate(shell, &mut Cli::command(), "oncegate", &mut script);
    output::print(String::from_utf8_lossy(&script).trim_end());
}

fn print_routes() {
    let routes: Vec<_> = crate::routes::all()
        .map(|route| {
            let (needs, role) = (route.needs.as_str(), route.needs.role().map(Role::as_str));
            json!({"method": route.method.to_uppercase(), "path": route.path, "needs": needs, "role": role})
        })
        .collect();
    output::print(&serde_json::to_string_pretty(&routes).expect("output is JSON"));
}

fn load(settings: Settings, listen: Option<String>) -> Result<Loaded, Failure> {
    let flag = |key: &str, name: &str, value: Option<String>| {
        value.map(|value| Flag { key: key.into(), name: name.into(), value })
    };
    let flags = [
        flag("store", "--store", settings.store),
        flag("log.format", "--log", settings.log),
        flag("listen", "--listen", listen),
    ];
    Config::load(flags.into_iter().flatten().collect(), std::env::vars_os(), settings.config).map_err(misconfigured)
}

/// Lists each error separately.
pub fn misconfigured(errors: Vec<ConfigError>) -> Failure {
    let (last, others) = errors.split_last().expect("a failure has a reason");
    for error in others {
        say(format_args!("oncegate: {error}"));
    }
    Failure::usage(last.to_string())
}

/// Opens the configured store.
pub async fn open_store(config: &Config) -> Result<Arc<dyn MainStore>, Failure> {
    Ok(config.store.expose().parse::<StoreUrl>()?.open_with(crate::crash::clock()).await?)
}

/// Opens the separate guard store, if one is configured.
pub async fn open_guards(config: &Config) -> Result<Option<Arc<dyn Store>>, Failure> {
    let Some(url) = &config.guard_store else { return Ok(None) };
    let url = url.expose().parse::<StoreUrl>()?;
    match url.open_with(crate::crash::clock()).await {
        Ok(store) => Ok(Some(store)),
        Err(OpenError::Store(StoreError::Unavailable(why))) if config.messages.store_error == OnStoreError::Open => {
            tracing::error!(event = "guard_store.away", why);
            Ok(Some(LateStore::start(url, why)))
        }
        Err(error) => Err(error.into()),
    }
}

/// Like `open_store`, for commands that need an existing store, so that a mistyped name creates no file.
pub async fn open_existing(config: &Config) -> Result<Arc<dyn MainStore>, Failure> {
    open_existing_at(&config.store).await
}

/// The existing store with the claims of a guard. Claims of idempotency keys are in the main store, beside their messages.
pub async fn open_existing_guards(config: &Config, guard: Option<&GuardName>) -> Result<Arc<dyn MainStore>, Failure> {
    let apart = config.guard_store.as_ref().filter(|_| !guard.is_some_and(crate::api::is_kept_beside));
    open_existing_at(apart.unwrap_or(&config.store)).await
}

async fn open_existing_at(url: &SecretUrl) -> Result<Arc<dyn MainStore>, Failure> {
    let url: StoreUrl = url.expose().parse()?;
    // If the file's existence cannot be checked, opening the file reports why.
    if let StoreUrl::Sqlite(file) = &url
        && file.try_exists().is_ok_and(|exists| !exists)
    {
        return Err(Failure::not_found(format!("there is no store at {}", file.display()))
            .hint("oncegate serve makes it; if it is elsewhere, say where with --store or --config"));
    }
    Ok(url.open_with(crate::crash::clock()).await?)
}

/// Like `with`, for commands that write to the store's audit log.
async fn with_audit(
    store: Arc<dyn MainStore>,
    work: impl AsyncFnOnce(&dyn MainStore, &Audit) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let audit = Audit::new(store.clone());
    with(store, async |store| {
        let result = work(store, &audit).await;
        // Retries a second line that could not be written: no other process would write it.
        audit.write_behind(true).await;
        result
    })
    .await
}

/// Does something with a store, and closes the store in every case.
async fn with(
    store: Arc<dyn MainStore>,
    work: impl AsyncFnOnce(&dyn MainStore) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let result = work(&*store).await;
    store.close().await;
    result
}
