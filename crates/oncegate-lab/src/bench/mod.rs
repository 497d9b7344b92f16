//! `oncegate bench`: durable decisions per second, compared with their limits, in one run on one disk.
//!
//! A figure alone says more about the machine than about Oncegate. So each round measures everything once, and ratios are taken within
//! a round. The report prints the median over the rounds with its spread.

mod actions;
mod decisions;
mod http;
mod library;
mod neighbours;
mod pages;
mod postgres;
mod sagas;
mod sqlite;
mod stats;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

pub use http::hello;
use oncegate_process::child::Folder;
use oncegate_process::failure::Failure;
use oncegate_process::output::{Format, table};
use stats::{Figures, Latency, Rate};

#[derive(Args)]
pub struct Command {
    /// Rounds; a figure is their median
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long each measurement takes
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Where the files go: the disk that is measured [default: a temporary folder]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Measure PostgreSQL too, in a schema (for pages, in a database) that is made for it and dropped
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
    /// Measure others beside us, whose node modules are in this folder (scripts/install-peers)
    #[arg(long, value_name = "FOLDER")]
    peers: Option<PathBuf>,
    /// Measure this part only
    #[arg(long, value_enum)]
    only: Option<Part>,
    #[command(flatten)]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Sqlite,
    Postgres,
    Http,
    Actions,
    Sagas,
    Sends,
    /// What one workspace notices of another: only where it is asked for
    Neighbours,
    /// The dashboard's pages, on a full store: only where it is asked for, since filling one takes minutes
    Pages,
}

/// The settings of every measurement.
pub struct Setting {
    pub folder: PathBuf,
    pub span: Duration,
    pub postgres: Option<String>,
    pub peers: Option<PathBuf>,
}

/// One line of a round: what was measured, and the result.
pub struct Measured {
    pub name: &'static str,
    pub rate: Rate,
    pub latency: Option<Latency>,
}

/// A figure compared with its limit or its peer.
struct Goal {
    figure: &'static str,
    beside: &'static str,
    at_least: f64,
}

const GOALS: &[Goal] = &[
    Goal { figure: "library, SQLite, 1 caller", beside: "raw append + fdatasync", at_least: 0.5 },
    Goal { figure: "library, SQLite, 512 callers", beside: "the same statements, 1,000 a transaction", at_least: 0.8 },
    Goal { figure: "library, PostgreSQL, 256 callers", beside: "INSERT by hand, 32 connections", at_least: 2.5 },
    Goal { figure: "HTTP, 256 connections", beside: "hello world, 256 connections", at_least: 0.6 },
    Goal { figure: "messages, 32 connections", beside: "HTTP, 32 connections", at_least: 0.33 },
    Goal { figure: "messages, 256 connections", beside: "HTTP, 256 connections", at_least: 0.33 },
    Goal { figure: "schedules, PostgreSQL, 256 callers", beside: "pg-boss, singletonKey, 256 callers", at_least: 8.0 },
    Goal {
        figure: "schedules, PostgreSQL, 256 callers",
        beside: "graphile-worker, jobKey, 256 callers",
        at_least: 12.0,
    },
    Goal { figure: "HTTP, batches of 1,000", beside: "HTTP, 256 connections", at_least: 4.0 },
];

pub async fn run(command: Command) -> Result<(), Failure> {
    if command.rounds == 0 || !(0.1..=600.0).contains(&command.seconds) {
        return Err(Failure::usage("--rounds is at least 1 and --seconds 0.1 to 600"));
    }
    if command.only == Some(Part::Postgres) && command.postgres.is_none() {
        return Err(Failure::usage("--only postgres needs --postgres URL"));
    }
    let folder = Folder::new(command.folder, "bench")?;
    let setting = Setting {
        folder: folder.path.clone(),
        span: Duration::from_secs_f64(command.seconds),
        postgres: command.postgres,
        peers: command.peers,
    };
    if command.only == Some(Part::Pages) {
        let looked = pages::measure(&setting).await?;
        command.format.print(&looked, |looked| pages::text(looked));
        return Ok(());
    }
    let mut figures = Figures::default();
    let bar = ProgressBar::new(command.rounds as u64).with_style(
        ProgressStyle::with_template("{bar:30} round {pos}/{len} {msg} [{elapsed}]").expect("the template is right"),
    );
    for _ in 0..command.rounds {
        for measured in round(&setting, command.only, &bar).await? {
            figures.add(measured);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    command.format.print(&report(&figures), |_| text(&figures));
    Ok(())
}

async fn round(setting: &Setting, only: Option<Part>, bar: &ProgressBar) -> Result<Vec<Measured>, Failure> {
    let measures = |part| only.is_none_or(|only| only == part);
    let mut measured = vec![];
    if measures(Part::Sqlite) {
        bar.set_message("the disk and SQLite by hand");
        measured.extend(sqlite::by_hand(setting)?);
        bar.set_message("the library on SQLite");
        measured.extend(library::on_sqlite(setting).await?);
    }
    if measures(Part::Postgres) && setting.postgres.is_some() {
        bar.set_message("PostgreSQL");
        measured.extend(postgres::measure(setting).await?);
    }
    if measures(Part::Http) {
        bar.set_message("HTTP");
        measured.extend(http::measure(setting).await?);
    }
    if measures(Part::Actions) {
        bar.set_message("actions");
        measured.extend(actions::measure(setting).await?);
    }
    if measures(Part::Sagas) {
        bar.set_message("sagas");
        measured.extend(sagas::measure(setting).await?);
    }
    if measures(Part::Sends) {
        bar.set_message("sends");
        measured.extend(http::sends(setting).await?);
    }
    if only == Some(Part::Neighbours) {
        bar.set_message("neighbours");
        measured.extend(neighbours::measure(setting).await?);
    }
    Ok(measured)
}

fn report(figures: &Figures) -> serde_json::Value {
    let ratios = GOALS.iter().filter_map(|goal| {
        let ratio = figures.ratio(goal.figure, goal.beside)?;
        Some(json!({"figure": goal.figure, "beside": goal.beside, "ratio": ratio.median, "spread": [ratio.min, ratio.max], "goal": goal.at_least}))
    });
    json!({"figures": figures.to_json(), "ratios": ratios.collect::<Vec<_>>()})
}

fn text(figures: &Figures) -> String {
    let rows = figures.rows().map(|(name, rate, latency)| {
        let ms = |micros: f64| format!("{:.2}", micros / 1000.0);
        let latency = latency.map_or([String::new(), String::new(), String::new()], |latency| {
            [ms(latency.p50), ms(latency.p99), ms(latency.p999)]
        });
        let [p50, p99, p999] = latency;
        [name.into(), format!("{:.0}", rate.median), format!("{:.0}–{:.0}", rate.min, rate.max), p50, p99, p999]
    });
    let figures_table = table(["MEASURED", "PER SECOND", "SPREAD", "P50 ms", "P99 ms", "P99.9 ms"], rows);
    let ratios = GOALS.iter().filter_map(|goal| {
        let ratio = figures.ratio(goal.figure, goal.beside)?;
        Some([
            format!("{} / {}", goal.figure, goal.beside),
            format!("{:.2}", ratio.median),
            format!("{:.2}–{:.2}", ratio.min, ratio.max),
            format!("{:.2}", goal.at_least),
        ])
    });
    format!("{figures_table}\n\n{}", table(["RATIO WITHIN A ROUND", "MEDIAN", "SPREAD", "GOAL"], ratios))
}
