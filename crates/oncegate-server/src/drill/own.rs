//! Our own workers, killed at every point of every effect path.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::{StreamExt, TryStreamExt, stream};
use indicatif::ProgressBar;

use super::paths::{PATHS, Path, Point, Promise, SAGA, Stands};
use super::provider::{Arrived, Moment, Provider};
use super::report::{GuardFound, PathReport, PointReport};
use crate::child::Served;
use crate::cli::Failure;

/// Jobs that are handed in before each kill.
const JOBS_EACH: u32 = 5;
/// How long a server may take to come to the point at which it dies.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long everything may take to come to its end, once nobody is killed any more.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Paths that are drilled at once: most of the time they wait for the leases of the dead.
const AT_ONCE: usize = 4;

/// How many points there are, in all.
pub fn points() -> u32 {
    PATHS.iter().map(|path| path.points.len() as u32).sum()
}

/// Kills at each point so often.
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
    let mut drill = Drill { path, folder, provider, broken: vec![] };
    let mut points = vec![];
    for point in path.points {
        points.push(drill.drill_point(point, kills_each, bar).await?);
    }
    let found = |(name, kept): &(&str, &str)| GuardFound {
        name: (*name).to_owned(),
        kept: (*kept).to_owned(),
        decisions: None,
        stopped: None,
    };
    Ok(PathReport {
        name: path.name.to_owned(),
        promise: path.promise.sentence().to_owned(),
        policy: path.policy.to_owned(),
        flag: path.flag.to_owned(),
        guards: path.guards.iter().map(found).collect(),
        points,
        broken: drill.broken,
    })
}

struct Drill<'a> {
    path: &'a Path,
    folder: PathBuf,
    provider: Provider,
    broken: Vec<String>,
}

impl Drill<'_> {
    async fn drill_point(&mut self, point: &Point, kills: u32, bar: &ProgressBar) -> Result<PointReport, Failure> {
        let name = point.name.unwrap_or("in the call");
        let mut jobs = vec![];
        let mut killed = 0;
        for kill in 0..kills {
            bar.set_message(format!("{}: {name}", self.path.name));
            // A word of visible characters: it is a key, too.
            jobs.extend((0..JOBS_EACH).map(|job| format!("{}-{kill}-{job}", name.replace(' ', "-"))));
            killed += u32::from(self.live_and_die(point, kill, &jobs).await?);
            bar.inc(1);
        }
        if killed < kills {
            self.broken.push(format!("{name}: {killed} of {kills} servers came to this point"));
        }
        let standings = self.settle(name, &jobs).await?;
        Ok(self.count(point, killed, &jobs, &standings))
    }

    /// A server that dies at the point, while jobs are handed in. False: it did not come there, and was killed all the same.
    async fn live_and_die(&self, point: &Point, kill: u32, jobs: &[String]) -> Result<bool, Failure> {
        // Another job each time: the first to come there, the third, and so on.
        let passing = 1 + (kill * 2) % JOBS_EACH;
        let crash_at = point.name.map(|name| format!("{name}:{passing}"));
        let variables: Vec<_> = crash_at.iter().map(|at| ("ONCEGATE_TEST_CRASH_AT", at.as_str())).collect();
        let sprung = point.name.is_none().then(|| self.provider.set_trap(Moment::InCall));
        let Some(mut server) = self.serve(&variables).await? else { return Ok(true) };
        let address = server.address;
        let has_died = {
            let handed_in = self.hand_in(address, jobs);
            let dies = async {
                match sprung {
                    Some(sprung) => tokio::time::timeout(PATIENCE, sprung).await.is_ok(),
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
        Ok(has_died)
    }

    async fn serve(&self, variables: &[(&str, &str)]) -> Result<Option<Served>, Failure> {
        let arguments = ["serve", "--listen", "127.0.0.1:0"];
        Served::start(&arguments, &self.folder, variables).await
    }

    /// All that the server does not know yet.
    async fn hand_in(&self, address: std::net::SocketAddr, jobs: &[String]) {
        let Ok(standings) = self.path.standings(address).await else { return };
        let is_known = |job: &&String| !standings.iter().any(|(known, _)| known == *job);
        join_all(jobs.iter().filter(is_known).map(|job| self.path.hand_in(address, job))).await;
    }

    /// Nobody is killed any more: everything comes to its end, or has not in time.
    async fn settle(&mut self, name: &str, jobs: &[String]) -> Result<BTreeMap<String, Stands>, Failure> {
        let server = self.serve(&[]).await?.ok_or_else(|| Failure::new("a server that nobody killed has ended"))?;
        let deadline = Instant::now() + SETTLED_WITHIN;
        let standings = loop {
            self.hand_in(server.address, jobs).await;
            let standings: BTreeMap<_, _> =
                self.path.standings(server.address).await.unwrap_or_default().into_iter().collect();
            let open = jobs.iter().filter(|job| standings.get(*job).is_none_or(|stands| *stands == Stands::Open));
            match open.count() {
                0 => break standings,
                open if Instant::now() > deadline => {
                    self.broken.push(format!("{name}: {open} jobs had not ended after {SETTLED_WITHIN:?}"));
                    break standings;
                }
                _ => tokio::time::sleep(LOOK_EVERY).await,
            }
        };
        server.kill().await;
        Ok(standings)
    }

    /// What really arrived, beside what the server says.
    fn count(
        &mut self,
        point: &Point,
        kills: u32,
        jobs: &[String],
        standings: &BTreeMap<String, Stands>,
    ) -> PointReport {
        let name = point.name.unwrap_or("in the call").to_owned();
        let mut report = PointReport::new(name.clone(), point.when);
        report.kills = kills;
        let mut silent = 0;
        for job in jobs {
            let arrived = self.provider.arrived(job);
            let stands = standings.get(job).copied().unwrap_or(Stands::Open);
            report.add(&arrived, stands);
            // What did not arrive has to be called that, or at least not be called sent.
            silent += u32::from(arrived.calls == 0 && stands == Stands::Sent);
        }
        let promise = self.path.promise;
        let mut broken = |count: u32, what: &str| {
            if count > 0 {
                self.broken.push(format!("{name}: {count} of {} jobs {what}", report.jobs));
            }
        };
        broken(report.duplicates, "had their effect more than once");
        broken(silent, "are called sent, and never arrived");
        if promise == Promise::AtMostOnce {
            broken(report.repeats, "were called again, under the same key");
        } else {
            broken(report.missed, "never arrived");
            broken(report.unknown, "are unknown, though they may be repeated");
        }
        report
    }
}

impl PointReport {
    pub fn new(point: impl Into<String>, when: impl Into<String>) -> PointReport {
        let (point, when) = (point.into(), when.into());
        PointReport { point, when, kills: 0, jobs: 0, sent: 0, repeats: 0, duplicates: 0, missed: 0, unknown: 0 }
    }

    /// One job more. What arrived though the server calls it missed is what nobody can say.
    pub fn add(&mut self, arrived: &Arrived, stands: Stands) {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        self.jobs += 1;
        self.sent += u32::from(arrived.calls > 0);
        self.duplicates += count(arrived.effects.saturating_sub(1));
        self.repeats += count(arrived.calls - arrived.effects);
        let is_unknown = stands == Stands::Unknown || stands == Stands::Missed && arrived.calls > 0;
        self.unknown += u32::from(is_unknown);
        self.missed += u32::from(arrived.calls == 0 && !is_unknown);
    }
}
