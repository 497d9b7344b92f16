//! The user's worker. It gets jobs, is killed again and again, restarted, and gets the jobs that it did not acknowledge again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use indicatif::ProgressBar;
use serde::Deserialize;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};

use super::client;
use super::paths::Stands;
use super::process::{Worker, unheard};
use super::provider::{Moment, Provider};
use super::report::{PathReport, PointReport};
use oncegate_process::child::Served;
use oncegate_process::failure::Failure;

/// How many jobs the worker has at once, like a queue's prefetch.
const OUTSTANDING: usize = 4;
/// A job that the worker puts back is delivered again after this time, unless the worker says otherwise.
const RETRY_AFTER: Duration = Duration::from_millis(500);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// After this time without an acknowledgement or a kill, the worker counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(60);
/// How long to read the remaining output of a dead worker.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// The delay before a kill at any moment. Each further kill adds a step, within this range.
const ANY_MOMENT_MILLIS: std::ops::Range<u64> = 1..150;
const ANY_MOMENT_STEP: u64 = 37;

/// What to drill.
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
            Kill::AnyMoment => ("at any moment", "before a send, in it, after it, or while it starts"),
            Kill::InSend => ("in the send", "the provider has the call, and has not answered"),
            Kill::AfterSend => ("after the send", "the provider has answered, and the job is not acknowledged"),
        }
    }
}

/// A line that the worker writes.
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

/// The recipient of a job, by which the provider knows it.
fn recipient_of(job: &str) -> String {
    job.replace("job-", "recipient-")
}

/// The queue, and the state of its jobs.
struct Queue {
    ready: VecDeque<String>,
    /// Jobs that the worker put back, and when they are delivered again.
    put_back: Vec<(Instant, String)>,
    outstanding: BTreeSet<String>,
    /// All jobs that have been delivered at least once.
    given: BTreeSet<String>,
    acked: BTreeSet<String>,
    /// Jobs acknowledged since the worker was last started.
    acked_now: Vec<String>,
    /// When a job was last acknowledged, or the worker was last killed.
    went_on_at: Instant,
    /// The kill that hit each job: the last one that was aimed at it.
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
            acked_now: vec![],
            went_on_at: Instant::now(),
            hit: BTreeMap::new(),
            kills: BTreeMap::new(),
        }
    }

    fn killed(&self) -> u32 {
        self.kills.values().sum()
    }

    /// The kind of kill with the fewest kills so far. A kill that came too late for its kind counts as one at any moment.
    fn next_kill(&self, plan: &Plan) -> Option<Kill> {
        let count = |kill: &Kill| self.kills.get(kill).copied().unwrap_or(0);
        (self.killed() < plan.kills).then(|| Kill::ALL.into_iter().min_by_key(count).expect("there are some"))
    }

    /// The next job to deliver. Each kill has its share of the jobs, so that even the fastest worker meets all kills. More jobs are
    /// delivered before a kill only if no delivered job is left that could meet it.
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
            let mut worker = Worker::start(&plan.command, server.address, provider)?;
            self.acked_now.clear();
            let lived = self.live(plan, &mut worker, provider, bar).await;
            provider.take_trap();
            worker.kill().await;
            lived?;
            // Jobs that were not acknowledged when a worker died are delivered again.
            self.ready.extend(std::mem::take(&mut self.outstanding));
        }
        Ok(())
    }

    /// Runs one worker process until it is killed or there is nothing left to do.
    async fn live(
        &mut self,
        plan: &Plan,
        worker: &mut Worker,
        provider: &Provider,
        bar: &ProgressBar,
    ) -> Result<(), Failure> {
        let mut trap: Option<(Kill, oneshot::Receiver<String>)> = None;
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
                worker.hand(&job, &recipient_of(&job)).await;
                self.outstanding.insert(job);
            }
            if self.acked.len() == plan.jobs as usize {
                return worker.end().await;
            }
            let next_back = self.put_back.first().map(|(at, _)| *at);
            let sprung = async {
                match &mut trap {
                    Some((_, sprung)) => sprung.await.ok(),
                    None => std::future::pending().await,
                }
            };
            let stuck_at = self.went_on_at + STUCK_AFTER;
            tokio::select! {
                biased;
                Some(recipient) = sprung => {
                    let kill = trap.as_ref().map_or(Kill::AnyMoment, |(kill, _)| *kill);
                    self.kill(kill, &recipient, worker, provider, bar).await;
                    return Ok(());
                }
                line = worker.next_line() => match line? {
                    Some(line) => self.hear(&line, bar)?,
                    None => return Err(worker.ended(self.acked.len(), plan.jobs).await),
                },
                () = sleep_until(next_back.unwrap_or(now)), if next_back.is_some() => {}
                () = sleep_until(stuck_at) => {
                    let open = plan.jobs as usize - self.acked.len();
                    return Err(Failure::new(format!(
                        "the worker has acknowledged nothing for {STUCK_AFTER:?}; {open} jobs are open"
                    ))
                    .hint("a line {\"ack\": id} on its standard output acknowledges a job; flush it"));
                }
            }
        }
    }

    fn set_trap(&self, kill: Kill, provider: &Provider) -> oneshot::Receiver<String> {
        match kill {
            Kill::AnyMoment => {
                let (springs, sprung) = oneshot::channel();
                let span = ANY_MOMENT_MILLIS.end - ANY_MOMENT_MILLIS.start;
                let millis = ANY_MOMENT_MILLIS.start + u64::from(self.killed()) * ANY_MOMENT_STEP % span;
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(millis)).await;
                    // If the worker has ended, there is no receiver.
                    let _ = springs.send(String::new());
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
                self.acked_now.push(ack.clone());
                self.acked.insert(ack);
                self.went_on_at = Instant::now();
                bar.set_message(format!("{} jobs acknowledged", self.acked.len()));
            }
            Ok(Said::Retry { retry, after }) if self.outstanding.remove(&retry) => {
                let after = after.and_then(|after| Duration::try_from_secs_f64(after).ok()).unwrap_or(RETRY_AFTER);
                self.put_back.push((Instant::now() + after.min(RETRY_AFTER_MAX), retry));
            }
            // The worker repeats itself, or answers a job that an earlier process of it was given.
            Ok(Said::Ack { ack: job } | Said::Retry { retry: job, .. }) if self.given.contains(&job) => {}
            _ => return Err(unheard(format!("{:?}", line.chars().take(200).collect::<String>()))),
        }
        Ok(())
    }

    /// Kills the worker with SIGKILL. The job that sprang the trap is recorded under the intended kill, other jobs under way as killed
    /// at any moment. Output that the worker wrote before it died counts.
    async fn kill(&mut self, kill: Kill, recipient: &str, worker: &mut Worker, provider: &Provider, bar: &ProgressBar) {
        worker.kill().await;
        // The last line may be incomplete.
        while let Ok(Ok(Some(line))) = timeout(LAST_WORDS, worker.next_line()).await {
            let _ = self.hear(&line, bar);
        }
        // A worker with its own queue may be working on a job that has not been delivered again yet.
        let met = self.given.difference(&self.acked).find(|job| recipient_of(job) == recipient).cloned();
        // The worker had acknowledged the job already, so this kill counts as one at any moment.
        let kill = if met.is_some() { kill } else { Kill::AnyMoment };
        // Jobs that were acknowledged before their effects were made, and whose effects never happened.
        let unmade = self.acked_now.iter().filter(|job| provider.arrived(&recipient_of(job)).calls == 0);
        for job in self.outstanding.iter().chain(unmade) {
            self.hit.entry(job.clone()).or_insert(Kill::AnyMoment);
        }
        self.hit.extend(met.map(|job| (job, kill)));
        *self.kills.entry(kill).or_default() += 1;
        self.went_on_at = Instant::now();
        bar.inc(1);
    }

    async fn report(&self, plan: &Plan, address: SocketAddr, provider: &Provider) -> Result<PathReport, Failure> {
        let unknown = unknown_recipients(address).await?;
        let guards = client::guards_found(address).await?;
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
        if plan.lost != "resend" {
            breaks(
                sum(|point| point.repeats),
                "sends of a job beyond the first, though it was to be sent at most once",
            );
        }
        let recipients: BTreeSet<String> = (1..=plan.jobs).map(|job| recipient_of(&job_name(job))).collect();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        breaks(count(provider.jobs().difference(&recipients).count()), "recipients that no job was for");
        breaks(
            count(provider.borrowed()),
            "calls under the key of another job, which a provider that honours it drops",
        );
        let is_silent = |recipient: &&String| provider.arrived(recipient).calls == 0 && !unknown.contains(*recipient);
        let silent = recipients.iter().filter(is_silent).count();
        breaks(count(silent), "jobs that were acknowledged and never arrived, and nobody says so");
        breaks(u32::try_from(provider.strange()).unwrap_or(u32::MAX), "calls of the provider without a recipientId");
        for kill in Kill::ALL.iter().filter(|kill| !self.kills.contains_key(kill)) {
            broken.push(format!("it was never killed {}: more jobs are needed", kill.names().0));
        }
        let is_guarded = guards.iter().any(|guard| guard.name == "send");
        let (policy, flag) = match is_guarded {
            true => (
                format!("[sends] lost = {:?}, lease = {:?}", plan.lost, plan.lease),
                "before the call: the claim is in flight, under a lease; after it the claim is settled".to_owned(),
            ),
            false if guards.is_empty() => {
                ("none that Oncegate knows of".to_owned(), "never: it asked nobody".to_owned())
            }
            false => ("its own, over claims".to_owned(), "when it claims".to_owned()),
        };
        Ok(PathReport {
            name: plan.command.join(" "),
            promise: match plan.lost.as_str() {
                "resend" => "One effect for each job, as a provider that honours keys counts them; nothing is missing.",
                _ => "At most one send of each job; what is missing is known to be unknown.",
            }
            .to_owned(),
            policy,
            flag,
            guards,
            points,
            broken,
        })
    }
}

/// The recipients that the log of sends marks as possibly sent.
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
