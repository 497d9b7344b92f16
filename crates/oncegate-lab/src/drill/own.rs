//! Our own workers, killed at every point of every effect path.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::{StreamExt, TryStreamExt, stream};
use indicatif::ProgressBar;

use super::client;
use super::paths::{PATHS, Path, Point, Promise, SAGA, Stands, Turn};
use super::provider::{Arrived, Moment, Provider};
use super::report::{GuardFound, PathReport, PointReport};
use oncegate_process::child::Served;
use oncegate_process::failure::Failure;

/// How many jobs are submitted before each kill.
const JOBS_EACH: u32 = 5;
/// How long a server may take to reach the point at which it dies.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long all jobs may take to finish after the last kill.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);
/// Longer than every lease of a path's configuration, so that lost workers are found and repeated calls have happened.
const AFTERMATH: Duration = Duration::from_millis(2500);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Paths that are drilled at once: most of the time they wait for the leases of dead workers.
const AT_ONCE: usize = 4;

/// The number of points of all paths.
pub fn points() -> u32 {
    PATHS.iter().map(|path| path.points.len() as u32).sum()
}

/// Kills this often at each point.
pub async fn drill(folder: PathBuf, kills_each: u32, bar: &ProgressBar) -> Result<Vec<PathReport>, Failure> {
    let mut drilled: Vec<(usize, PathReport)> = stream::iter(PATHS.iter().enumerate())
        .map(async |(number, path)| {
            let report = drill_path(path, folder.join(number.to_string()), kills_each, bar).await?;
            Ok::<_, Failure>((number, report))
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    drilled.sort_by_key(|(number, _)| *number);
    Ok(drilled.into_iter().map(|(_, report)| report).collect())
}

async fn drill_path(path: &Path, folder: PathBuf, kills_each: u32, bar: &ProgressBar) -> Result<PathReport, Failure> {
    let unwritable = |error: std::io::Error| Failure::new(format!("cannot write to {}: {error}", folder.display()));
    let provider = Provider::start().await?;
    std::fs::create_dir_all(&folder).map_err(unwritable)?;
    std::fs::write(folder.join("oncegate.toml"), path.config(&provider)).map_err(unwritable)?;
    std::fs::write(folder.join("drill.toml"), SAGA).map_err(unwritable)?;
    let guards = path.guards.iter().map(|(name, kept)| GuardFound::new(*name, *kept)).collect();
    let mut drill = Drill { path, folder, provider, rounds: vec![], guards, broken: vec![] };
    drill.undisturbed().await?;
    for point in path.points {
        drill.killed_at(point, kills_each, bar).await?;
    }
    let standings = drill.aftermath().await?;
    let points = drill.count(&standings);
    Ok(PathReport {
        name: path.name.to_owned(),
        promise: path.promise.sentence().to_owned(),
        policy: path.policy.to_owned(),
        flag: path.flag.to_owned(),
        guards: drill.guards,
        points,
        broken: drill.broken,
    })
}

struct Drill<'a> {
    path: &'a Path,
    folder: PathBuf,
    provider: Provider,
    rounds: Vec<Round>,
    guards: Vec<GuardFound>,
    broken: Vec<String>,
}

/// Jobs that were submitted to servers that died at one point.
struct Round {
    point: String,
    when: &'static str,
    /// No job had begun when its server was killed here, so all of them have to arrive.
    is_to_arrive: bool,
    kills: u32,
    jobs: Vec<String>,
}

impl Drill<'_> {
    /// The baseline: no server is killed, and each effect happens once.
    async fn undisturbed(&mut self) -> Result<(), Failure> {
        let jobs: Vec<String> = jobs("undisturbed", 0).collect();
        self.settle("not killed", &jobs).await?;
        for job in &jobs {
            let calls = self.provider.arrived(job).calls;
            if calls != 1 {
                self.broken.push(format!("not killed: {job} arrived {calls} times"));
            }
        }
        let when = "to compare with";
        self.rounds.push(Round { point: "not killed".into(), when, is_to_arrive: true, kills: 0, jobs });
        Ok(())
    }

    async fn killed_at(&mut self, point: &Point, kills: u32, bar: &ProgressBar) -> Result<(), Failure> {
        let name = point.name.unwrap_or("in the call");
        let (when, is_to_arrive) = (point.when, self.is_to_arrive(point));
        let mut round = Round { point: name.to_owned(), when, is_to_arrive, kills: 0, jobs: vec![] };
        for kill in 0..kills {
            bar.set_message(format!("{}: {name}", self.path.name));
            round.jobs.extend(jobs(name, kill));
            round.kills += u32::from(self.live_and_die(point, kill, &round.jobs).await?);
            bar.inc(1);
        }
        if round.kills < kills {
            self.broken.push(format!("{name}: {} of {kills} servers came to this point", round.kills));
        }
        self.settle(name, &round.jobs).await?;
        self.rounds.push(round);
        Ok(())
    }

    /// Whether all jobs that are killed at this point have to arrive, although an effect that has begun is not repeated.
    fn is_to_arrive(&self, point: &Point) -> bool {
        point.is_before_begin && self.path.promise == Promise::AtMostOnce
    }

    /// Runs a server that dies at the point, while jobs are submitted. False: the server did not reach the point, and was killed
    /// anyway.
    async fn live_and_die(&self, point: &Point, kill: u32, jobs: &[String]) -> Result<bool, Failure> {
        // A different job each time: the first to reach the point, the third, and so on.
        let passing = 1 + (kill * 2) % JOBS_EACH;
        let crash_at = point.name.map(|name| format!("{name}:{passing}"));
        let variables: Vec<_> = crash_at.iter().map(|at| ("ONCEGATE_TEST_CRASH_AT", at.as_str())).collect();
        let sprung = point.name.is_none().then(|| self.provider.set_trap(Moment::InCall));
        let Some(mut server) = self.serve(&variables).await? else { return Ok(true) };
        let address = server.address;
        let has_died = {
            let handed_in = async {
                match self.is_to_arrive(point) {
                    true => self.hand_in_one_by_one(address, jobs).await,
                    false => self.hand_in(address, jobs, Turn::First).await,
                }
            };
            let dies = async {
                match sprung {
                    Some(sprung) => Ok(matches!(tokio::time::timeout(PATIENCE, sprung).await, Ok(Ok(_)))),
                    None => server.has_died(PATIENCE).await,
                }
            };
            let (mut handed_in, mut dies) = (std::pin::pin!(handed_in), std::pin::pin!(dies));
            tokio::select! {
                has_died = &mut dies => has_died,
                () = &mut handed_in => dies.await,
            }
        };
        self.provider.take_trap();
        server.kill().await;
        has_died
    }

    async fn serve(&self, variables: &[(&str, &str)]) -> Result<Option<Served>, Failure> {
        let arguments = ["serve", "--listen", "127.0.0.1:0"];
        Served::start(&arguments, &self.folder, variables).await
    }

    async fn serve_in_peace(&self) -> Result<Served, Failure> {
        self.serve(&[]).await?.ok_or_else(|| Failure::new("a server that nobody killed was killed"))
    }

    /// Submits jobs like clients that retry until they are answered. Repeatable jobs are submitted even if the server knows them.
    async fn hand_in(&self, address: SocketAddr, jobs: &[String], turn: Turn) {
        let Ok(standings) = self.path.standings(address).await else { return };
        let is_wanted = |job: &&String| self.path.is_repeatable() || !standings.iter().any(|(known, _)| known == *job);
        join_all(jobs.iter().filter(is_wanted).map(|job| self.path.hand_in(address, job, turn))).await;
    }

    /// Submits each job after the previous one has finished, so that the server dies while no other job has begun.
    async fn hand_in_one_by_one(&self, address: SocketAddr, jobs: &[String]) {
        for job in jobs {
            self.hand_in(address, std::slice::from_ref(job), Turn::First).await;
            loop {
                // The server has died.
                let Ok(standings) = self.path.standings(address).await else { return };
                if standings.iter().any(|(known, stands)| known == job && *stands != Stands::Open) {
                    break;
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }

    /// No more kills: all jobs finish, or fail to finish in time.
    async fn settle(&mut self, name: &str, jobs: &[String]) -> Result<(), Failure> {
        let server = self.serve_in_peace().await?;
        self.hand_in(server.address, jobs, Turn::First).await;
        let open = self.come_to_an_end(server.address, jobs).await;
        if open > 0 {
            self.broken.push(format!("{name}: {open} jobs had not ended after {SETTLED_WITHIN:?}"));
        }
        self.add_guards(server.address).await?;
        server.kill().await;
        Ok(())
    }

    /// Waits until the jobs have finished. Returns how many have not.
    async fn come_to_an_end(&self, address: SocketAddr, jobs: &[String]) -> usize {
        let deadline = Instant::now() + SETTLED_WITHIN;
        loop {
            let standings: BTreeMap<_, _> =
                self.path.standings(address).await.unwrap_or_default().into_iter().collect();
            let is_open = |job: &&String| standings.get(*job).is_none_or(|stands| *stands == Stands::Open);
            let open = jobs.iter().filter(is_open).count();
            if open == 0 || Instant::now() > deadline {
                return open;
            }
            // Jobs that were not accepted the first time.
            if jobs.iter().any(|job| !standings.contains_key(job)) {
                self.hand_in(address, jobs, Turn::First).await;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// After all leases have ended, submits everything once more. What must not happen again has not happened.
    async fn aftermath(&mut self) -> Result<Vec<(String, Stands)>, Failure> {
        let server = self.serve_in_peace().await?;
        let jobs: Vec<String> = self.rounds.iter().flat_map(|round| round.jobs.clone()).collect();
        if self.path.is_repeatable() {
            self.hand_in(server.address, &jobs, Turn::Again).await;
        }
        tokio::time::sleep(AFTERMATH).await;
        self.come_to_an_end(server.address, &jobs).await;
        let standings = self.path.standings(server.address).await;
        let standings = standings.map_err(|_| Failure::new("the server did not say how its jobs stand"))?;
        self.add_guards(server.address).await?;
        server.kill().await;
        Ok(standings)
    }

    async fn add_guards(&mut self, address: SocketAddr) -> Result<(), Failure> {
        for found in client::guards_found(address).await? {
            if let Some(guard) = self.guards.iter_mut().find(|guard| guard.name == found.name) {
                guard.add(&found);
            }
        }
        Ok(())
    }

    /// Compares what really arrived with what the server says.
    fn count(&mut self, standings: &[(String, Stands)]) -> Vec<PointReport> {
        let borrowed = self.provider.borrowed();
        if borrowed > 0 {
            self.broken.push(format!("{borrowed} calls under the key of another job"));
        }
        let rounds = std::mem::take(&mut self.rounds);
        rounds.iter().map(|round| self.count_round(round, standings)).collect()
    }

    fn count_round(&mut self, round: &Round, standings: &[(String, Stands)]) -> PointReport {
        let mut report = PointReport::new(round.point.clone(), round.when);
        report.kills = round.kills;
        let (mut silent, mut denied, mut twins) = (0, 0, 0);
        for job in &round.jobs {
            let arrived = self.provider.arrived(job);
            let mut records = standings.iter().filter(|(known, _)| known == job).map(|(_, stands)| *stands);
            let stands = records.next().unwrap_or(Stands::Open);
            twins += u32::from(records.next().is_some());
            report.add(&arrived, stands);
            // A job that did not arrive must not count as sent. A job that may have arrived must not count as certainly unsent.
            silent += u32::from(arrived.calls == 0 && stands == Stands::Sent);
            denied += u32::from(arrived.calls > 0 && stands == Stands::Dead);
        }
        let promise = self.path.promise;
        let mut broken = |count: u32, what: &str| {
            if count > 0 {
                self.broken.push(format!("{}: {count} of {} jobs {what}", round.point, report.jobs));
            }
        };
        broken(report.duplicates, "had their effect more than once");
        broken(silent, "are called sent, and never arrived");
        broken(denied, "are called unsent, and arrived");
        broken(twins, "are there twice");
        if promise == Promise::AtMostOnce {
            broken(report.repeats, "were called again, under the same key");
            if round.is_to_arrive {
                broken(report.not_arrived, "never arrived, though they had not begun");
            }
        } else {
            broken(report.not_arrived, "never arrived");
            broken(report.unknown, "are unknown, though they may be repeated");
        }
        report
    }
}

/// Each name is a word of visible characters, because it is also a key.
fn jobs(point: &str, kill: u32) -> impl Iterator<Item = String> + use<> {
    let point = point.replace(' ', "-");
    (0..JOBS_EACH).map(move |job| format!("{point}-{kill}-{job}"))
}

impl PointReport {
    pub fn new(point: impl Into<String>, when: impl Into<String>) -> PointReport {
        PointReport { point: point.into(), when: when.into(), ..PointReport::default() }
    }

    /// Adds one job. A job that arrived although its record says missed counts as unknown.
    pub fn add(&mut self, arrived: &Arrived, stands: Stands) {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        self.jobs += 1;
        self.sent += u32::from(arrived.calls > 0);
        self.duplicates += count(arrived.effects.saturating_sub(1));
        self.repeats += count(arrived.calls - arrived.effects);
        let is_unknown = stands == Stands::Unknown || stands == Stands::Missed && arrived.calls > 0;
        self.unknown += u32::from(is_unknown);
        self.not_arrived += u32::from(arrived.calls == 0);
        self.missed += u32::from(arrived.calls == 0 && stands == Stands::Missed);
    }
}
