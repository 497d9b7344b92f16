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
mod reminders;
mod sagas;
mod sends;
mod show;
mod tail;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};
use oncegate::Ledger;
use oncegate::store::{MainStore, Role};
use serde_json::json;

use oncegate_config::{Config, Flag, Loaded, misconfigured};
use oncegate_http::audit::Audit;
use oncegate_http::decisions::Decisions;
use oncegate_http::stores::open_existing;
use oncegate_process::failure::Failure;
use oncegate_process::output;

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
    Demo(oncegate_lab::demo::Command),
    /// See claims, forget and resolve them
    #[command(subcommand)]
    Claims(claims::Command),
    /// See actions, cancel them, try them again, run them now
    #[command(subcommand)]
    Actions(actions::Command),
    /// Check and draw definitions of sagas, see their instances and dead letters
    #[command(subcommand)]
    Saga(sagas::Command),
    /// List sends, and settle those that may or may not have been sent
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
    Drill(oncegate_lab::drill::Command),
    /// Measure decisions per second, beside their limits
    Bench(oncegate_lab::bench::Command),
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

pub fn run() -> ExitCode {
    let Cli { settings, command } = Cli::parse();
    match dispatch(settings, command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.say();
            ExitCode::from(failure.code())
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
        return runtime()?.block_on(oncegate_lab::demo::run(command, settings.log, crate::serve::serve));
    }
    let listen = match &command {
        Command::Serve { listen } => listen.clone(),
        _ => None,
    };
    let loaded = load(settings, listen)?;
    let serves = matches!(command, Command::Serve { .. });
    // Commands report to people: errors of their store go to standard error, as failures.
    let decisions = Arc::new(Decisions::default());
    let _log = serves.then(|| oncegate_http::log::start(&loaded.config.log, decisions.clone()));
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
            Command::Drill(command) => oncegate_lab::drill::run(command).await,
            Command::Bench(command) => oncegate_lab::bench::run(command).await,
            Command::BenchHello => oncegate_lab::bench::hello().await,
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
    let routes: Vec<_> = crate::router::routes()
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

/// Like `with_audit`, for the configured store and a ledger of its claims.
async fn with_ledger(
    config: &Config,
    work: impl AsyncFnOnce(Arc<dyn MainStore>, Arc<Ledger>, &Audit) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let store = open_existing(config).await?;
    let audit = Audit::new(store.clone());
    let ledger = Arc::new(Ledger::start(store.clone(), Arc::new(())));
    let result = work(store, ledger.clone(), &audit).await;
    audit.write_behind(true).await;
    ledger.close().await;
    result
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
