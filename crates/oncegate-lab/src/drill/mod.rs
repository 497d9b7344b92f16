//! `oncegate drill`: kills workers at every point of their work, and counts at its own provider what really arrived.

mod client;
mod own;
mod paths;
mod process;
mod provider;
mod report;
mod worker;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use oncegate::store::{Clock, SystemClock};
use tokio::signal::unix::{SignalKind, signal};

use oncegate_process::child::Folder;
use oncegate_process::failure::Failure;
use oncegate_process::output::Format;
use report::{PathReport, Report, chart, html, text};

const KILLS_OWN: u32 = 220;
const KILLS_WORKER: u32 = 50;
const JOBS: u32 = 200;
const KILLS_MAX: u32 = 100_000;
const JOBS_MAX: u32 = 1_000_000;

#[derive(Args)]
pub struct Command {
    /// How often to kill: our own servers 220 times, rounded up so that each point has as many, or your worker 50 times, unless given
    #[arg(long, value_name = "COUNT")]
    kills: Option<u32>,
    /// Jobs for your worker [default: 200]
    #[arg(long, value_name = "COUNT", requires = "command")]
    jobs: Option<u32>,
    /// What becomes of a send whose worker died: resend, skip or hold [default: resend]
    #[arg(long, value_name = "POLICY", requires = "command", value_parser = ["resend", "skip", "hold"])]
    lost: Option<String>,
    /// How long your worker may be silent about a send before it counts as dead [default: 2s]
    #[arg(long, value_name = "DURATION", requires = "command")]
    lease: Option<String>,
    /// Write a report with a chart
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the chart alone
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// A report of another run (--json), to be shown beside this one
    #[arg(long, value_name = "FILE")]
    beside: Option<PathBuf>,
    /// What this run is called in the report
    #[arg(long, value_name = "TEXT", requires = "command")]
    name: Option<String>,
    #[command(flatten)]
    format: Format,
    /// Your worker; our own ones, if it is left out
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub async fn run(command: Command) -> Result<(), Failure> {
    command.check()?;
    let beside = command.beside.as_deref().map(read).transpose()?;
    // Before the drill, so that a file that cannot be written is reported at once.
    for file in command.html.iter().chain(&command.svg) {
        std::fs::OpenOptions::new().append(true).create(true).open(file).map_err(|error| unwritable(file, &error))?;
    }
    let (started_at, started) = (SystemClock.now().to_string(), Instant::now());
    let folder = Folder::new(None, "drill")?;
    let drilled = tokio::select! {
        drilled = command.drill(&folder.path) => drilled?,
        () = told_to_stop() => return Err(Failure::new("interrupted")),
    };
    let is_kept = drilled.iter().all(|path| path.broken.is_empty());
    let own = Report {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at,
        seconds: started.elapsed().as_secs_f64(),
        command: (!command.command.is_empty()).then(|| command.command.clone()),
        paths: drilled,
    };
    let shown = Report {
        paths: beside.into_iter().flat_map(|report| report.paths).chain(own.paths.clone()).collect(),
        ..own.clone()
    };
    command.format.print(&own, |_| text::page(&shown));
    if let Some(file) = &command.html {
        write(file, &html::page(&shown))?;
    }
    if let Some(file) = &command.svg {
        write(file, &chart::svg(&shown.paths.iter().collect::<Vec<_>>()))?;
    }
    match is_kept {
        true => Ok(()),
        false => Err(Failure::new("a promise was broken")
            .hint("docs/guides/queue-workers-that-crash.md: how a worker asks before it sends")),
    }
}

impl Command {
    fn check(&self) -> Result<(), Failure> {
        let within = |flag: &str, value: u32, max: u32| match (1..=max).contains(&value) {
            true => Ok(()),
            false => Err(Failure::usage(format!("{flag} is 1 to {max}"))),
        };
        within("--kills", self.kills.unwrap_or(1), KILLS_MAX)?;
        let plan = self.plan();
        within("--jobs", plan.jobs, JOBS_MAX)?;
        if !self.command.is_empty() && plan.kills > plan.jobs {
            return Err(Failure::usage("--kills is at most --jobs: each kill is to meet one of its own"));
        }
        let lease = oncegate_core::units::parse_duration(&plan.lease);
        match lease.is_some_and(|lease| lease >= Duration::from_millis(100)) {
            true => Ok(()),
            false => Err(Failure::usage("--lease is a duration of 100ms or more, as in 2s")),
        }
    }

    fn plan(&self) -> worker::Plan {
        let jobs = self.jobs.unwrap_or(JOBS);
        worker::Plan {
            command: self.command.clone(),
            jobs,
            kills: self.kills.unwrap_or(KILLS_WORKER.min(jobs)),
            lost: self.lost.clone().unwrap_or_else(|| "resend".into()),
            lease: self.lease.clone().unwrap_or_else(|| "2s".into()),
        }
    }

    async fn drill(&self, folder: &Path) -> Result<Vec<PathReport>, Failure> {
        let mut drilled = match self.command.is_empty() {
            true => {
                let kills_each = self.kills.unwrap_or(KILLS_OWN).div_ceil(own::points());
                let bar = bar(kills_each * own::points());
                let drilled = own::drill(folder.to_owned(), kills_each, &bar).await;
                bar.finish_and_clear();
                drilled?
            }
            false => {
                let plan = self.plan();
                let bar = bar(plan.kills);
                let drilled = worker::drill(folder, &plan, &bar).await;
                bar.finish_and_clear();
                vec![drilled?]
            }
        };
        if let (Some(name), [path]) = (&self.name, &mut drilled[..]) {
            path.name = name.clone();
        }
        Ok(drilled)
    }
}

/// Completes on Ctrl-C or SIGTERM. The futures that are dropped then kill the processes that they started.
pub fn told_to_stop() -> impl Future<Output = ()> {
    let on = |kind| signal(kind).expect("a handler can be set");
    let (mut terminate, mut interrupt) = (on(SignalKind::terminate()), on(SignalKind::interrupt()));
    async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}

fn bar(kills: u32) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} kills [{elapsed}] {wide_msg}");
    ProgressBar::new(kills.into()).with_style(style.expect("the template is right"))
}

fn read(file: &Path) -> Result<Report, Failure> {
    let wrong = |why: String| Failure::new(format!("{}: {why}", file.display())).hint("oncegate drill … --json > FILE");
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| wrong(format!("no report of a drill: {error}")))
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text).map_err(|error| unwritable(file, &error))
}

fn unwritable(file: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot write {}: {error}", file.display()))
}
