//! The queue: conditional writes within the writer's transaction, leases, and reads.

use std::time::Duration;

use bytes::Bytes;
use oncegate_core::job::{Command, Decision, Delivery, Due, Job, Reached, Share, State, Tries, decide};
use oncegate_core::{Time, Token, WorkspaceName};
use oncegate_store::{JobFilter, JobListing, KindFilter, Leased, Wanted, Whose};
use rusqlite::types::FromSqlError;
use rusqlite::{Connection, OptionalExtension, Row, ffi, named_params, params, params_from_iter};
use uuid::Uuid;

use crate::rows::broken;
use crate::{counted, our_error, workspace_name};

const ENQUEUE: &str = include_str!("../sql/enqueue_job.sql");
const REQUEUE: &str = include_str!("../sql/requeue_job.sql");
const DEQUEUE: &str = "DELETE FROM jobs WHERE id = ?1 AND workspace = ?2 AND version = ?3";
const FIND: &str = "SELECT * FROM jobs WHERE id = ?1 AND workspace = ?2";
const LIST: &str = include_str!("../sql/list_jobs.sql");
const COUNT: &str = include_str!("../sql/count_jobs.sql");
const DUE: &str =
    "SELECT * FROM jobs WHERE kind = ?1 AND workspace = ?2 AND wakes_at <= ?3 ORDER BY wakes_at, id LIMIT ?4";
/// Each workspace that has jobs of a kind, with the earliest time at which a worker must look at one.
const FIRST_OF_EACH: &str = include_str!("../sql/first_of_each.sql");
const FIRST_OF_ONE: &str =
    "SELECT workspace, wakes_at FROM jobs WHERE kind = ?1 AND workspace = ?2 ORDER BY wakes_at LIMIT 1";
/// Another job of the group (`lane`) that has started.
const IN_THE_WAY: &str = "SELECT 1 FROM jobs
    WHERE workspace = ?1 AND lane = ?2 AND lane IS NOT NULL AND started AND id <> ?3";
/// Wakes the first job that waits for a group (`lane`).
const WAKE_NEXT: &str = include_str!("../sql/wake_next.sql");

pub fn enqueue(connection: &Connection, job: &Job) -> rusqlite::Result<bool> {
    write_job(connection, ENQUEUE, job)
}

/// Replaces the previous version of the job.
pub fn requeue(connection: &Connection, job: &Job) -> rusqlite::Result<bool> {
    write_job(connection, REQUEUE, job)
}

pub fn dequeue(connection: &Connection, job: &Job) -> rusqlite::Result<bool> {
    let place = params![job.id.as_bytes(), job.workspace.as_str(), job.version];
    Ok(connection.prepare_cached(DEQUEUE)?.execute(place)? == 1)
}

/// Wakes the next job of the group that `gone` has left.
pub fn wake_next(connection: &Connection, gone: &Job) -> rusqlite::Result<()> {
    connection.prepare_cached(WAKE_NEXT)?.execute(params![gone.workspace.as_str(), gone.lane]).map(drop)
}

/// Runs [`ENQUEUE`] or [`REQUEUE`], which take the same parameters.
fn write_job(connection: &Connection, sql: &str, job: &Job) -> rusqlite::Result<bool> {
    let written = connection.prepare_cached(sql)?.execute(named_params! {
        ":id": job.id.as_bytes(),
        ":workspace": job.workspace.as_str(),
        ":kind": job.kind,
        ":state": state_name(job.state),
        ":wakes_at": job.wakes_at().micros(),
        ":due_at": job.due_at.micros(),
        ":token": job.token.0,
        ":lease_until": job.lease_until.micros(),
        ":version": job.version,
        ":tried": job.tried,
        ":tries_max": job.tries.max,
        ":pause_us": micros(job.tries.pause),
        ":pause_max_us": micros(job.tries.pause_max),
        ":delivery": delivery_name(job.delivery),
        ":begun": job.begun,
        ":reached": reached_name(job.reached),
        ":created_at": job.created_at.micros(),
        ":error": job.error,
        ":payload": &job.payload[..],
        ":lane": job.lane,
        ":started": job.started,
    })?;
    Ok(written == 1)
}

/// When a worker must look at the queue next.
pub fn next_at(connection: &Connection, wanted: &Wanted) -> rusqlite::Result<Option<Time>> {
    let first = first_of_each(connection, wanted)?;
    Ok(first.into_iter().map(|(_, due)| due.since).min())
}

fn first_of_each(connection: &Connection, wanted: &Wanted) -> rusqlite::Result<Vec<(String, Due)>> {
    let mut first = vec![];
    let (sql, one) = match &wanted.whose {
        Whose::All { .. } => (FIRST_OF_EACH, None),
        Whose::One { workspace, .. } => (FIRST_OF_ONE, Some(workspace.as_str())),
    };
    let mut statement = connection.prepare_cached(sql)?;
    for kind in wanted.kinds() {
        let rows = statement.query_map(params_from_iter([kind.as_str()].into_iter().chain(one)), |row| {
            let workspace = workspace_name(&row.get::<_, String>(0)?)?;
            Ok((kind.clone(), Due { workspace, since: Time::from_micros(row.get(1)?) }))
        })?;
        for row in rows {
            first.push(row?);
        }
    }
    Ok(first)
}

pub fn lease(connection: &Connection, wanted: &Wanted, now: Time) -> rusqlite::Result<Leased> {
    let due: Vec<(String, Due)> =
        first_of_each(connection, wanted)?.into_iter().filter(|(_, due)| due.since <= now).collect();
    let (mut jobs, mut postponed) = (vec![], 0);
    for Share { workspace, jobs: wanted_jobs } in wanted.shares(due.iter().map(|(_, due)| due.clone()).collect()) {
        let kinds = due.iter().filter(|(_, due)| due.workspace == workspace).map(|(kind, _)| kind);
        let mut waiting: Vec<Job> = vec![];
        for kind in kinds {
            let mut statement = connection.prepare_cached(DUE)?;
            let limit = i64::try_from(wanted_jobs).unwrap_or(i64::MAX);
            for found in statement.query_map(params![kind, workspace.as_str(), now.micros(), limit], job)? {
                waiting.push(found?);
            }
        }
        waiting.sort_by_key(|job| (job.wakes_at(), job.id));
        for job in waiting.iter().take(wanted_jobs) {
            let command = match lane_is_taken(connection, job)? {
                false => Command::Lease { lease: wanted.lease },
                true => Command::Postpone { until: now + wanted.postpones_for() },
            };
            let Decision::Keep(next) = decide(job, &command, now) else { continue };
            if !requeue(connection, &next)? {
                return Err(our_error(ffi::SQLITE_INTERNAL, "a job changed within the transaction that had read it"));
            }
            match next.state {
                State::Running => jobs.push(next),
                State::Pending => postponed += 1,
            }
        }
    }
    Ok(Leased { next_at: next_at(connection, wanted)?, jobs, postponed })
}

fn lane_is_taken(connection: &Connection, job: &Job) -> rusqlite::Result<bool> {
    let Some(lane) = &job.lane else { return Ok(false) };
    connection.prepare_cached(IN_THE_WAY)?.exists(params![job.workspace.as_str(), lane, job.id.as_bytes()])
}

pub fn find(connection: &Connection, ids: &[(WorkspaceName, Uuid)]) -> rusqlite::Result<Vec<Option<Job>>> {
    let mut find = connection.prepare_cached(FIND)?;
    let found =
        ids.iter().map(|(workspace, id)| find.query_row(params![id.as_bytes(), workspace.as_str()], job).optional());
    found.collect()
}

pub fn list(connection: &Connection, listing: &JobListing) -> rusqlite::Result<Vec<Job>> {
    let JobListing { workspace, kind, lane_prefix, state, limit, before } = listing;
    let (kind, kind_prefix) = match kind {
        KindFilter::Is(kind) => (Some(kind.as_str()), None),
        KindFilter::BeginsWith(prefix) => (None, Some(*prefix)),
    };
    let (state, is_tried) = state_and_tried(*state);
    let mut statement = connection.prepare_cached(LIST)?;
    let jobs = statement.query_map(
        named_params! {
            ":workspace": workspace.as_str(),
            ":kind": kind,
            ":kind_prefix": kind_prefix,
            ":lane_prefix": lane_prefix,
            ":state": state,
            ":is_tried": is_tried,
            ":before": before.unwrap_or(Uuid::max()).as_bytes(),
            ":limit": i64::try_from(*limit).unwrap_or(i64::MAX),
        },
        job,
    )?;
    jobs.collect()
}

pub fn count(connection: &Connection, listing: &JobListing) -> rusqlite::Result<usize> {
    let JobListing { workspace, kind, lane_prefix, state, limit, before } = listing;
    let (condition, kind) = match kind {
        KindFilter::Is(kind) => ("kind = :kind", kind.as_str()),
        KindFilter::BeginsWith(prefix) => ("kind BETWEEN :kind AND :kind || char(0x10ffff)", *prefix),
    };
    let (state, is_tried) = state_and_tried(*state);
    connection.prepare_cached(&COUNT.replace("{kind}", condition))?.query_row(
        named_params! {
            ":workspace": workspace.as_str(),
            ":kind": kind,
            ":lane_prefix": lane_prefix,
            ":state": state,
            ":is_tried": is_tried,
            ":before": before.unwrap_or(Uuid::max()).as_bytes(),
            ":limit": i64::try_from(*limit).unwrap_or(i64::MAX),
        },
        counted,
    )
}

fn state_and_tried(state: Option<JobFilter>) -> (Option<&'static str>, Option<bool>) {
    match state {
        None => (None, None),
        Some(JobFilter::Running) => (Some("running"), None),
        Some(JobFilter::Untouched) => (Some("pending"), Some(false)),
        Some(JobFilter::Failed) => (Some("pending"), Some(true)),
    }
}

fn job(row: &Row<'_>) -> rusqlite::Result<Job> {
    let time = |name| row.get(name).map(Time::from_micros);
    let span = |name| row.get::<_, i64>(name).map(|micros| Duration::from_micros(micros.unsigned_abs()));
    let word = |name, words: &[&str]| {
        let found: String = row.get(name)?;
        words.iter().position(|word| *word == found).ok_or_else(|| broken(0, FromSqlError::InvalidType))
    };
    let states = [State::Pending, State::Running];
    let deliveries = [Delivery::AtLeastOnce, Delivery::AtMostOnce];
    let reaches = [Reached::No, Reached::Maybe];
    let state = states[word("state", &states.map(state_name))?];
    let (due_at, wakes_at) = (time("due_at")?, time("wakes_at")?);
    let is_postponed = state == State::Pending && wakes_at > due_at;
    Ok(Job {
        workspace: workspace_name(&row.get::<_, String>("workspace")?)?,
        id: Uuid::from_bytes(row.get("id")?),
        kind: row.get("kind")?,
        payload: Bytes::from(row.get::<_, Vec<u8>>("payload")?),
        lane: row.get("lane")?,
        state,
        started: row.get("started")?,
        due_at,
        postponed_until: if is_postponed { wakes_at } else { Time::LONG_AGO },
        token: Token(row.get("token")?),
        lease_until: time("lease_until")?,
        version: row.get("version")?,
        tried: row.get("tried")?,
        tries: Tries { max: row.get("tries_max")?, pause: span("pause_us")?, pause_max: span("pause_max_us")? },
        delivery: deliveries[word("delivery", &deliveries.map(delivery_name))?],
        begun: row.get("begun")?,
        reached: reaches[word("reached", &reaches.map(reached_name))?],
        created_at: time("created_at")?,
        error: row.get("error")?,
    })
}

fn state_name(state: State) -> &'static str {
    match state {
        State::Pending => "pending",
        State::Running => "running",
    }
}

fn delivery_name(delivery: Delivery) -> &'static str {
    match delivery {
        Delivery::AtLeastOnce => "at_least_once",
        Delivery::AtMostOnce => "at_most_once",
    }
}

fn reached_name(reached: Reached) -> &'static str {
    match reached {
        Reached::No => "no",
        Reached::Maybe => "maybe",
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
