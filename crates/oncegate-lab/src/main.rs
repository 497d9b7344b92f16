//! `oncegate-lab`: long runs under faults.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use oncegate_lab::chaos::{self, Broken, Options, StoreKind};

#[derive(Parser)]
#[command(name = "oncegate-lab", about = "Long runs of Oncegate under faults")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs two servers under load and faults, and checks what they answer.
    Chaos(Chaos),
}

#[derive(clap::Args)]
struct Chaos {
    /// The store under test.
    #[arg(long, env = "STORE", default_value = "sqlite")]
    store: Store,
    /// How long the faults go on. Waiting for the last answers comes on top.
    #[arg(long, env = "MINUTES", default_value_t = 2.0)]
    minutes: f64,
    /// Chooses the faults and the load. Another one each time, unless it is given.
    #[arg(long, env = "SEED")]
    seed: Option<u64>,
    /// The `oncegate` binary.
    #[arg(long, env = "ONCEGATE_BIN", default_value = "target/debug/oncegate")]
    server: PathBuf,
    /// Only these faults, by their names in the report.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Breaks a promise on purpose: the run must find it.
    #[arg(long)]
    broken: Option<BrokenOn>,
    /// Promotes asynchronous standbys, which lose commits. Checks only that the servers tell of it.
    #[arg(long)]
    asynchronous: bool,
    /// Keeps the folder with the servers' logs.
    #[arg(long)]
    keep: bool,
    /// Prints the report as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Store {
    Sqlite,
    Postgres,
    Both,
}

#[derive(Clone, Copy, ValueEnum)]
enum BrokenOn {
    /// SQLite does not wait for its syncs.
    NoSync,
    /// PostgreSQL's lost COMMITs are believed.
    BelieveCommits,
    /// An outdated token is as good as the current one.
    NoFence,
    /// A live lease is taken over.
    NoLease,
}

fn main() -> ExitCode {
    let Command::Chaos(arguments) = Arguments::parse().command;
    let kinds = match arguments.store {
        Store::Sqlite => vec![StoreKind::Sqlite],
        Store::Postgres => vec![StoreKind::Postgres],
        Store::Both => vec![StoreKind::Sqlite, StoreKind::Postgres],
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return said(&format!("no runtime: {error}")),
    };
    let mut is_right = true;
    for store in kinds {
        let options = Options {
            store,
            length: Duration::from_secs_f64(arguments.minutes.max(0.0) * 60.0),
            seed: arguments.seed.unwrap_or_else(chaos::new_seed),
            server: arguments.server.clone(),
            only: arguments.only.clone(),
            broken: arguments.broken.map(|broken| match broken {
                BrokenOn::NoSync => Broken::NoSync,
                BrokenOn::BelieveCommits => Broken::BelieveCommits,
                BrokenOn::NoFence => Broken::NoFence,
                BrokenOn::NoLease => Broken::NoLease,
            }),
            asynchronous: arguments.asynchronous,
            keep: arguments.keep,
            shows_progress: std::io::stderr().is_terminal() && !arguments.json,
        };
        match runtime.block_on(chaos::run(options)) {
            Ok(report) => {
                is_right &= report.violation.is_none();
                match arguments.json {
                    true => println!("{}", report.json()),
                    false => println!("{report}"),
                }
            }
            Err(error) => return said(&error),
        }
    }
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn said(error: &str) -> ExitCode {
    eprintln!("oncegate-lab: {error}");
    ExitCode::from(2)
}
