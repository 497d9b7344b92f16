//! Leases jobs. The rows' locks decide which replica leases a job, and the lanes' index which job runs in a lane.

use std::collections::{BTreeMap, HashMap, HashSet};

use oncegate_core::job::{Command, Decision, Due, Job, Share, State, decide};
use oncegate_core::{Time, WorkspaceName};
use oncegate_store::{Leased, Reading, Wanted, Whose};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::changes::{job, requeue, workspace};
use crate::connection::Connection;
use crate::fault::Fault;

const DUE_JOBS: &str = include_str!("../sql/due_jobs.sql");
const FIRST_OF_EACH: &str = include_str!("../sql/first_of_each.sql");
const FIRST_OF_ONE: &str = include_str!("../sql/first_of_one.sql");
const KEEP_LANES: &str = include_str!("../sql/keep_lanes.sql");
const LANE_TURNS: &str = include_str!("../sql/lane_turns.sql");

/// How often leasing is retried when another replica takes a lane at the same moment.
pub(crate) const LEASE_ROUNDS_MAX: usize = 10;

/// Leases due jobs. If the answer to COMMIT is lost, no worker starts the leased jobs. If they were leased after all, they are taken
/// over later like any other job that has lost its worker.
pub(crate) async fn lease(connection: &Connection, wanted: &Wanted) -> Result<Reading<Leased>, Fault> {
    // Usually there is nothing to lease, and then no transaction is needed.
    let first = First::look(connection, wanted).await?;
    let due: Vec<&(String, Due)> = first.of_each.iter().filter(|(_, due)| due.since <= first.now).collect();
    let shares = wanted.shares(due.iter().map(|(_, due)| due.clone()).collect());
    let of_kinds = |share: &Share| {
        let kinds = due.iter().filter(|(_, due)| due.workspace == share.workspace).map(|(kind, _)| kind.clone());
        kinds.map(|kind| (kind, share.clone())).collect::<Vec<_>>()
    };
    let places: Vec<(String, Share)> = shares.iter().flat_map(of_kinds).collect();
    if places.is_empty() {
        return Ok(Reading { value: Leased { jobs: vec![], postponed: 0, next_at: first.next_at() }, now: first.now });
    }
    connection.within(connection.client.batch_execute("BEGIN")).await?;
    let rows = due_jobs(connection, &places).await?;
    let now = rows.first().map_or(first.now, |row| Time::from_micros(row.get("now")));
    let mut by_workspace: BTreeMap<WorkspaceName, Vec<Job>> = BTreeMap::new();
    for row in &rows {
        let job = job(row)?;
        by_workspace.entry(job.workspace.clone()).or_default().push(job);
    }
    let mut jobs = vec![];
    for share in &shares {
        let mut own = by_workspace.remove(&share.workspace).unwrap_or_default();
        own.sort_by_key(|job| (job.wakes_at(), job.id));
        jobs.extend(own.into_iter().take(share.jobs));
    }
    let jobs = decide_all(connection, jobs, wanted, now).await?;
    requeue(connection, &jobs.iter().collect::<Vec<_>>()).await?;
    let next_at = First::look(connection, wanted).await?.next_at();
    connection.within(connection.client.batch_execute("COMMIT")).await.map_err(Fault::of_commit)?;
    let (jobs, postponed): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(|job| job.state == State::Running);
    Ok(Reading { value: Leased { jobs, postponed: postponed.len(), next_at }, now })
}

/// The first job of each kind in each workspace.
struct First {
    of_each: Vec<(String, Due)>,
    now: Time,
}

impl First {
    async fn look(connection: &Connection, wanted: &Wanted) -> Result<First, Fault> {
        let (time, kinds) = (connection.server.injected_time(), wanted.kinds());
        let rows = match &wanted.whose {
            Whose::All { .. } => connection.query(FIRST_OF_EACH, &[&time, &kinds]).await?,
            Whose::One { workspace, .. } => {
                connection.query(FIRST_OF_ONE, &[&time, &kinds, &workspace.as_str()]).await?
            }
        };
        let now = rows.first().ok_or_else(|| Fault::Unable("the server did not say the time".into()))?.get(0);
        let mut of_each = vec![];
        for row in &rows {
            if let Some(kind) = row.get(1) {
                let due = Due { workspace: workspace(row.get(2))?, since: Time::from_micros(row.get(3)) };
                of_each.push((kind, due));
            }
        }
        Ok(First { of_each, now: Time::from_micros(now) })
    }

    fn next_at(&self) -> Option<Time> {
        self.of_each.iter().map(|(_, due)| due.since).min()
    }
}

async fn due_jobs(connection: &Connection, places: &[(String, Share)]) -> Result<Vec<Row>, Fault> {
    let kinds: Vec<&str> = places.iter().map(|(kind, _)| kind.as_str()).collect();
    let workspaces: Vec<&str> = places.iter().map(|(_, share)| share.workspace.as_str()).collect();
    let limits: Vec<i64> = places.iter().map(|(_, share)| i64::try_from(share.jobs).unwrap_or(i64::MAX)).collect();
    connection.query(DUE_JOBS, &[&connection.server.injected_time(), &kinds, &workspaces, &limits]).await
}

type Lane<'a> = (&'a str, &'a str);

fn lane(job: &Job) -> Option<Lane<'_>> {
    job.lane.as_deref().map(|lane| (job.workspace.as_str(), lane))
}

/// Decides due jobs: leases a job if it is its turn, or postpones it if its lane is taken. Leaves a job unchanged if the lane's current
/// job is just leaving, or if another replica is about to lease the job whose turn it is.
async fn decide_all(connection: &Connection, due: Vec<Job>, wanted: &Wanted, now: Time) -> Result<Vec<Job>, Fault> {
    let (workspaces, lanes): (Vec<&str>, Vec<&str>) = due.iter().filter_map(lane).unzip();
    let rows = match lanes.is_empty() {
        true => vec![],
        false => connection.query(LANE_TURNS, &[&workspaces, &lanes]).await?,
    };
    let turns: HashMap<Lane<'_>, Option<Uuid>> =
        rows.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect();
    let turn_of = |job: &Job| lane(job).and_then(|lane| turns.get(&lane).copied().flatten());
    let has_turn = |job: &Job| lane(job).is_none() || turn_of(job) == Some(job.id);
    let mut next: Vec<Job> = vec![];
    for job in due.iter().filter(|job| has_turn(job)) {
        next.extend(decided(job, &Command::Lease { lease: wanted.lease }, now));
    }
    // The jobs leased here are ours, and stay. For jobs that had started before, that has to be checked.
    let ours: HashSet<Uuid> = next.iter().map(|job| job.id).collect();
    let started: HashSet<Uuid> = rows.iter().filter(|row| row.get(3)).filter_map(|row| row.get(2)).collect();
    let behind = || due.iter().filter(|job| !has_turn(job)).filter_map(|job| Some((job, turn_of(job)?)));
    let (workspaces, ids): (Vec<&str>, Vec<Uuid>) = behind()
        .filter(|(_, turn)| started.contains(turn) && !ours.contains(turn))
        .map(|(job, turn)| (job.workspace.as_str(), turn))
        .unzip();
    let rows = match ids.is_empty() {
        true => vec![],
        false => connection.query(KEEP_LANES, &[&workspaces, &ids]).await?,
    };
    let stay: HashSet<Lane<'_>> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let has_to_wait =
        |job: &Job, turn: Uuid| ours.contains(&turn) || lane(job).is_some_and(|lane| stay.contains(&lane));
    let postpone = Command::Postpone { until: now + wanted.postpones_for() };
    let waiting = behind().filter(|(job, turn)| has_to_wait(job, *turn));
    next.extend(waiting.filter_map(|(job, _)| decided(job, &postpone, now)));
    Ok(next)
}

fn decided(job: &Job, command: &Command, now: Time) -> Option<Job> {
    match decide(job, command, now) {
        Decision::Keep(next) => Some(next),
        Decision::End(_) | Decision::Refuse(_) => None,
    }
}
