//! Anybody's worker: fed with jobs, killed again and again, started again, and fed again with what it did not acknowledge.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use indicatif::ProgressBar;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};

use super::client;
use super::paths::Stands;
use super::provider::{Moment, Provider};
use super::report::{GuardFound, PathReport, PointReport};
use crate::child::Served;
use crate::cli::Failure;

/// Jobs that are with the worker at once, as a queue's prefetch.
const OUTSTANDING: usize = 4;
/// A job that was put back comes again after this, unless it says otherwise.
const RETRY_AFTER: Duration = Duration::from_millis(500);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// Nothing was acknowledged, put back or killed for so long: the worker does not go on.
const STUCK_AFTER: Duration = Duration::from_secs(60);
/// How long it may take to end, once there are no more jobs.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
/// A kill at any moment comes between these, in steps, after the last one.
const ANY_MOMENT_MILLIS: std::ops::Range<u64> = 1..150;
const ANY_MOMENT_STEP: u64 = 37;

/// What is to be drilled.
pub struct Plan {
    pub command: Vec<String>,
    pub jobs: u32,
    pub kills: u32,
    pub lost: String,
    pub lease: String,
}

/// When a worker is killed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kill {
    AnyMoment,
    InSend,
    AfterSend,
}

impl Kill {
    const ALL: [Kill; 3] = [Kill::AnyMoment, Kill::InSend, Kill::AfterSend];

    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Kill::AnyMoment => {
                ("at any moment", "1 to 150 ms after the last: before a send, in it, after it, or while it starts")
            }
            Kill::InSend => ("in the send", "the provider has the call, and has not answered"),
            Kill::AfterSend => ("after the send", "the provider has answered, and the job is not acknowledged"),
        }
    }
}

/// A line of the worker's.
#[derive(Deserialize)]
#[serde(untagged)]
enum Said {
    Ack { ack: String },
    Retry { retry: String, after: Option<f64> },
}

pub async fn drill(folder: &Path, plan: &Plan, bar: &ProgressBar) -> Result<PathReport, Failure> {
    let unwritable = |error: std::io::Error| Failure::new(format!("cannot write to {}: {error}", folder.display()));
    let config = format!("[sends]\nlost = {:?}\nlease = {:?}\n", plan.lost, plan.lease);
    std::fs::write(folder.join("oncegate.toml"), config).map_err(unwritable)?;
    let served = Served::start(&["serve", "--listen", "127.0.0.1:0"], folder, &[]).await?;
    let server = served.ok_or_else(|| Failure::new("the server has ended"))?;
    let provider = Provider::start().await?;
    let mut queue = Queue::new(plan);
    let ran = queue.run(plan, &server, &provider, bar).await;
    let report = match ran {
        Ok(()) => queue.report(plan, server.address, &provider).await,
        Err(failure) => Err(failure),
    };
    server.kill().await;
    report
}

fn job_name(number: u32) -> String {
    format!("job-{number}")
}

/// Who a job is for: how the provider knows it.
fn recipient_of(job: &str) -> String {
    job.replace("job-", "recipient-")
}

/// The queue, and what has become of its jobs.
struct Queue {
    ready: VecDeque<String>,
    /// When they come again.
    put_back: Vec<(Instant, String)>,
    outstanding: BTreeSet<String>,
    /// All that have been delivered, once at least.
    given: BTreeSet<String>,
    acked: BTreeSet<String>,
    /// By which kill a job was hit first.
    hit: BTreeMap<String, Kill>,
    kills: BTreeMap<Kill, u32>,
}

impl Queue {
    fn new(plan: &Plan) -> Queue {
        Queue {
            ready: (1..=plan.jobs).map(job_name).collect(),
            put_back: vec![],
            outstanding: BTreeSet::new(),
            given: BTreeSet::new(),
            acked: BTreeSet::new(),
            hit: BTreeMap::new(),
            kills: BTreeMap::new(),
        }
    }

    fn killed(&self) -> u32 {
        self.kills.values().sum()
    }

    fn next_kill(&self, plan: &Plan) -> Option<Kill> {
        let killed = self.killed();
        (killed < plan.kills).then(|| Kill::ALL[killed as usize % Kill::ALL.len()])
    }

    /// The next job to deliver. Each kill has its share of them, so that even the fastest worker meets all kills: more are delivered before it only
    /// where nothing is left that could meet it.
    fn next_job(&mut self, plan: &Plan, kill: Option<Kill>) -> Option<String> {
        let job = self.ready.front()?;
        let share = u64::from(self.killed() + 1) * u64::from(plan.jobs) / u64::from(plan.kills);
        let is_held = match kill {
            None => false,
            Some(_) if self.given.contains(job) => false,
            Some(kill) => {
                self.given.len() as u64 >= share.max(1) && (kill == Kill::AnyMoment || !self.outstanding.is_empty())
            }
        };
        if self.outstanding.len() == OUTSTANDING || is_held {
            return None;
        }
        self.given.insert(job.clone());
        self.ready.pop_front()
    }

    async fn run(
        &mut self,
        plan: &Plan,
        server: &Served,
        provider: &Provider,
        bar: &ProgressBar,
    ) -> Result<(), Failure> {
        while self.acked.len() < plan.jobs as usize {
            let mut worker = Worker::start(plan, server.address, provider)?;
            let lived = self.live(plan, &mut worker, provider, bar).await;
            provider.take_trap();
            worker.kill().await;
            lived?;
            // What is not acknowledged when a worker dies is delivered again.
            self.ready.extend(std::mem::take(&mut self.outstanding));
        }
        Ok(())
    }

    /// One life of the worker: until it is killed, or there is nothing left to do.
    async fn live(
        &mut self,
        plan: &Plan,
        worker: &mut Worker,
        provider: &Provider,
        bar: &ProgressBar,
    ) -> Result<(), Failure> {
        let mut trap: Option<(Kill, oneshot::Receiver<()>)> = None;
        loop {
            if trap.is_none() {
                trap = self.next_kill(plan).map(|kill| (kill, self.set_trap(kill, provider)));
            }
            let now = Instant::now();
            self.put_back.sort();
            while self.put_back.first().is_some_and(|(at, _)| *at <= now) {
                self.ready.push_back(self.put_back.remove(0).1);
            }
            while let Some(job) = self.next_job(plan, trap.as_ref().map(|(kill, _)| *kill)) {
                worker.hand(&job).await?;
                self.outstanding.insert(job);
            }
            if self.acked.len() == plan.jobs as usize {
                return worker.end().await;
            }
            let next_back = self.put_back.first().map(|(at, _)| *at);
            let sprung = async {
                match &mut trap {
                    Some((_, sprung)) => sprung.await.is_ok(),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                true = sprung => {
                    let kill = trap.as_ref().map_or(Kill::InSend, |(kill, _)| *kill);
                    return self.kill(kill, worker, bar).await;
                }
                line = worker.lines.next_line() => match line {
                    Ok(Some(line)) => self.hear(&line, bar)?,
                    _ => return Err(worker.ended(self.acked.len(), plan).await),
                },
                () = sleep_until(next_back.unwrap_or(now)), if next_back.is_some() => {}
                () = tokio::time::sleep(STUCK_AFTER) => {
                    let open = plan.jobs as usize - self.acked.len();
                    return Err(Failure::new(format!("the worker said nothing for {STUCK_AFTER:?}; {open} jobs are not acknowledged"))
                        .hint("a line {\"ack\": id} on its standard output acknowledges a job, {\"retry\": id} puts it back; flush it"));
                }
            }
        }
    }

    fn set_trap(&self, kill: Kill, provider: &Provider) -> oneshot::Receiver<()> {
        match kill {
            Kill::AnyMoment => {
                let (springs, sprung) = oneshot::channel();
                let span = ANY_MOMENT_MILLIS.end - ANY_MOMENT_MILLIS.start;
                let millis = ANY_MOMENT_MILLIS.start + u64::from(self.killed()) * ANY_MOMENT_STEP % span;
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(millis)).await;
                    // Nobody waits for it where the worker has come to its end.
                    let _ = springs.send(());
                });
                sprung
            }
            Kill::InSend => provider.set_trap(Moment::InCall),
            Kill::AfterSend => provider.set_trap(Moment::AfterAnswer),
        }
    }

    fn hear(&mut self, line: &str, bar: &ProgressBar) -> Result<(), Failure> {
        match serde_json::from_str(line) {
            Ok(Said::Ack { ack }) if self.outstanding.remove(&ack) => {
                self.acked.insert(ack);
                bar.set_message(format!("{} jobs acknowledged", self.acked.len()));
            }
            Ok(Said::Retry { retry, after }) if self.outstanding.remove(&retry) => {
                let after = after.and_then(|after| Duration::try_from_secs_f64(after).ok()).unwrap_or(RETRY_AFTER);
                self.put_back.push((Instant::now() + after.min(RETRY_AFTER_MAX), retry));
            }
            // It says so twice, or of what an earlier life of it was given.
            Ok(Said::Ack { ack: job } | Said::Retry { retry: job, .. }) if self.given.contains(&job) => {}
            _ => {
                let line: String = line.chars().take(200).collect();
                return Err(Failure::new(format!(
                    "the worker said {line:?} on its standard output, which is no word about a job"
                ))
                .hint("{\"ack\": id} or {\"retry\": id}, a line each; everything else goes to standard error"));
            }
        }
        Ok(())
    }

    /// SIGKILL; what was under way is hit. What it had said before it died counts.
    async fn kill(&mut self, kill: Kill, worker: &mut Worker, bar: &ProgressBar) -> Result<(), Failure> {
        worker.kill().await;
        while let Ok(Ok(Some(line))) = timeout(Duration::from_millis(100), worker.lines.next_line()).await {
            // The last line may have been cut off.
            let _ = self.hear(&line, bar);
        }
        for job in &self.outstanding {
            self.hit.entry(job.clone()).or_insert(kill);
        }
        *self.kills.entry(kill).or_default() += 1;
        bar.inc(1);
        Ok(())
    }

    async fn report(&self, plan: &Plan, address: SocketAddr, provider: &Provider) -> Result<PathReport, Failure> {
        let unknown = unknown_recipients(address).await?;
        let guards = guards_found(address).await?;
        let row = |kill: Option<Kill>| {
            let (name, when) = kill.map_or(("not hit", "no kill met it"), Kill::names);
            let mut point = PointReport::new(name, when);
            point.kills = kill.and_then(|kill| self.kills.get(&kill).copied()).unwrap_or(0);
            for job in (1..=plan.jobs).map(job_name).filter(|job| self.hit.get(job).copied() == kill) {
                let recipient = recipient_of(&job);
                let stands = if unknown.contains(&recipient) { Stands::Unknown } else { Stands::Sent };
                point.add(&provider.arrived(&recipient), stands);
            }
            point
        };
        let points: Vec<_> = Kill::ALL.map(Some).into_iter().chain([None]).map(row).collect();
        let sum = |of: fn(&PointReport) -> u32| points.iter().map(of).sum::<u32>();
        let mut broken = vec![];
        let mut breaks = |count: u32, what: &str| {
            if count > 0 {
                broken.push(format!("{what}: {count}"));
            }
        };
        breaks(sum(|point| point.duplicates), "effects beyond the first of a job");
        breaks(sum(|point| point.missed), "jobs that were acknowledged and never arrived, and nobody says so");
        breaks(u32::try_from(provider.strange()).unwrap_or(u32::MAX), "calls of the provider without a recipientId");
        if self.hit.is_empty() {
            broken.push("no kill met a job: nothing is shown".to_owned());
        }
        let is_guarded = guards.iter().any(|guard| guard.name == "send");
        let (policy, flag) = match is_guarded {
            true => (
                format!("[sends] lost = {:?}, lease = {:?}", plan.lost, plan.lease),
                "before the call: the claim is in flight, under a lease; after it the claim is settled".to_owned(),
            ),
            false => ("none that Oncegate knows of".to_owned(), "never: it asked nobody".to_owned()),
        };
        Ok(PathReport {
            name: plan.command.join(" "),
            promise: "One effect for each job, as a provider that honours keys counts them; what is missing is known."
                .to_owned(),
            policy,
            flag,
            guards,
            points,
            broken,
        })
    }
}

/// Who the log of sends says may have been sent to.
async fn unknown_recipients(address: SocketAddr) -> Result<BTreeSet<String>, Failure> {
    let gone = |_| Failure::new("the server did not say which sends are unknown");
    let mut recipients = BTreeSet::new();
    let mut cursor = String::new();
    loop {
        let page = client::get(address, &format!("/api/sends?state=unknown&limit=500{cursor}")).await.map_err(gone)?;
        let items = page["items"].as_array().into_iter().flatten();
        recipients.extend(items.filter_map(|item| item["recipientId"].as_str().map(str::to_owned)));
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return Ok(recipients),
        }
    }
}

/// The guards that the worker asked, as the server has counted.
async fn guards_found(address: SocketAddr) -> Result<Vec<GuardFound>, Failure> {
    let metrics = client::get_text(address, "/metrics").await;
    let metrics = metrics.map_err(|_| Failure::new("the server did not say what it has decided"))?;
    let counted = |name: &str| {
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for line in metrics.lines().filter(|line| line.starts_with(name)) {
            let guard = line.split_once("guard=\"").and_then(|(_, rest)| rest.split_once('"'));
            let count = line.rsplit_once(' ').and_then(|(_, count)| count.parse::<f64>().ok());
            if let (Some((guard, _)), Some(count)) = (guard, count) {
                *counts.entry(guard.to_owned()).or_default() += count as u64;
            }
        }
        counts
    };
    let stopped = counted(crate::observe::STOPPED);
    let decisions = counted("oncegate_decisions_total").into_iter().filter(|(_, count)| *count > 0);
    let found = decisions.map(|(name, count)| GuardFound {
        stopped: stopped.get(&name).copied(),
        decisions: Some(count),
        kept: "claims of the store behind ONCEGATE_URL".to_owned(),
        name,
    });
    Ok(found.collect())
}

/// A process of the user's command, and whatever it starts: a group of its own, so that all of it can be killed.
struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(plan: &Plan, address: SocketAddr, provider: &Provider) -> Result<Worker, Failure> {
        let (program, arguments) = plan.command.split_first().expect("a command has a program");
        let child = Command::new(program)
            .args(arguments)
            .env("ONCEGATE_URL", format!("http://{address}"))
            .env("DRILL_PROVIDER_URL", provider.url())
            .env("DRILL_QUEUE", format!("drill-{}-{}", std::process::id(), provider.address.port()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let mut child = child.map_err(|error| {
            Failure::new(format!("cannot start {program}: {error}")).hint("oncegate drill -- python3 worker.py")
        })?;
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Ok(Worker { child, stdin, lines })
    }

    async fn hand(&mut self, job: &str) -> Result<(), Failure> {
        let line = json!({"id": job, "campaignId": "drill", "recipientId": recipient_of(job)});
        let Some(stdin) = &mut self.stdin else { return Ok(()) };
        // One that has just died is noticed where its words end.
        let _ = stdin.write_all(format!("{line}\n").as_bytes()).await;
        let _ = stdin.flush().await;
        Ok(())
    }

    /// There are no more jobs.
    async fn end(&mut self) -> Result<(), Failure> {
        self.stdin = None;
        match timeout(ENDS_WITHIN, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => {
                Err(Failure::new(format!("all jobs are acknowledged, and the worker ended with {status}")))
            }
            _ => Err(Failure::new(format!("the worker did not end within {ENDS_WITHIN:?} of the end of its input"))
                .hint("it ends, with status 0, when its standard input does")),
        }
    }

    /// It ended though nobody killed it.
    async fn ended(&mut self, acked: usize, plan: &Plan) -> Failure {
        let status = timeout(ENDS_WITHIN, self.child.wait()).await.ok().and_then(Result::ok);
        let how =
            status.map_or_else(|| "closed its standard output".to_owned(), |status| format!("ended with {status}"));
        Failure::new(format!("the worker {how}, with {acked} of {} jobs acknowledged", plan.jobs))
            .hint("it goes on until its standard input ends; what it says on standard error is above")
    }

    async fn kill(&mut self) {
        if let Some(group) = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait().await;
    }
}
