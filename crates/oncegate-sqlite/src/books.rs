//! Records and the queue: conditional writes within the writer's transaction, and what readers find.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use oncegate_core::job::{Command, Decision, Delivery, Job, Reached, State, Tries, decide};
use oncegate_core::{Moment, Time, Token, WorkspaceName};
use oncegate_store::{At, Change, Leased, Listed, Listing, MainStore, Place, Reading, Record, StoreError};
use rusqlite::types::FromSqlError;
use rusqlite::{Connection, OptionalExtension, Row, named_params, params};
use uuid::Uuid;

use crate::rows::broken;
use crate::{SqliteStore, workspace_name};

const CREATE_RECORD: &str = "INSERT INTO records (workspace, kind, id, version, state, body)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING";
const REPLACE_RECORD: &str = "UPDATE records SET version = ?4, state = ?5, body = ?6
    WHERE workspace = ?1 AND kind = ?2 AND id = ?3 AND version = ?4 - 1";
/// One row where the name was free, or its own already.
const NAME_RECORD: &str = "INSERT INTO record_names (workspace, kind, name, id) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT DO UPDATE SET id = id WHERE id = excluded.id";
const LIST_RECORD: &str = "INSERT INTO record_lists (workspace, kind, list, id) VALUES (?1, ?2, ?3, ?4)";
const FIND_BY_ID: &str = "SELECT id, version, state, body FROM records WHERE workspace = ?1 AND kind = ?2 AND id = ?3";
const FIND_BY_NAME: &str = "SELECT id, version, state, body FROM records
    WHERE workspace = ?1 AND kind = ?2
      AND id = (SELECT id FROM record_names WHERE workspace = ?1 AND kind = ?2 AND name = ?3)";

const ENQUEUE: &str = include_str!("../sql/enqueue_job.sql");
const REQUEUE: &str = include_str!("../sql/requeue_job.sql");
const DEQUEUE: &str = "DELETE FROM jobs WHERE id = ?1 AND workspace = ?2 AND version = ?3";
const WAITING: &str = include_str!("../sql/waiting_jobs.sql");

/// Makes a change, and says whether it found what it expects.
pub fn apply(connection: &Connection, change: &Change, now: Time) -> rusqlite::Result<bool> {
    match change {
        Change::Create { record, names, lists } => {
            if !write_record(connection, CREATE_RECORD, record)? || !add_names(connection, record, names)? {
                return Ok(false);
            }
            let mut add = connection.prepare_cached(LIST_RECORD)?;
            for list in lists {
                add.execute(params![record.workspace.as_str(), record.kind, list, record.id.as_bytes()])?;
            }
            Ok(true)
        }
        Change::Replace { record, names } => {
            Ok(write_record(connection, REPLACE_RECORD, record)? && add_names(connection, record, names)?)
        }
        Change::Enqueue(job) => Ok(now < job.stands_until() && write_job(connection, ENQUEUE, job)?),
        Change::Requeue { job, stands_until } => Ok(now < *stands_until && write_job(connection, REQUEUE, job)?),
        Change::Dequeue(job) => {
            let mut delete = connection.prepare_cached(DEQUEUE)?;
            let place = params![job.id.as_bytes(), job.workspace.as_str(), job.version];
            Ok(now < job.stands_until() && delete.execute(place)? == 1)
        }
    }
}

fn write_record(connection: &Connection, sql: &str, record: &Record) -> rusqlite::Result<bool> {
    let Record { workspace, kind, id, version, state, body } = record;
    let written = connection.prepare_cached(sql)?.execute(params![
        workspace.as_str(),
        kind,
        id.as_bytes(),
        version,
        state,
        &body[..]
    ])?;
    Ok(written == 1)
}

fn add_names(connection: &Connection, record: &Record, names: &[String]) -> rusqlite::Result<bool> {
    for name in names {
        let mut add = connection.prepare_cached(NAME_RECORD)?;
        if add.execute(params![record.workspace.as_str(), record.kind, name, record.id.as_bytes()])? == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// By [`ENQUEUE`] or [`REQUEUE`], which take the same parameters.
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
    })?;
    Ok(written == 1)
}

#[async_trait]
impl MainStore for SqliteStore {
    async fn find(&self, places: &[Place]) -> Result<Reading<Vec<Option<Record>>>, StoreError> {
        // A few probes of an index, on the caller's thread; where that cannot be done at once, on one that may wait.
        if let Ok(records) = self.readers.run_now(|connection| find(connection, places)) {
            return Ok(Reading { value: records, now: self.clock.now() });
        }
        let (places, clock) = (places.to_vec(), self.clock.clone());
        self.readers.run(move |connection| Ok(Reading { value: find(connection, &places)?, now: clock.now() })).await
    }

    async fn list(&self, listing: Listing) -> Result<Listed, StoreError> {
        self.readers.run(move |connection| list(connection, &listing)).await
    }

    async fn lease_jobs(&self, kinds: &[String], max: usize, lease: Duration) -> Result<Reading<Leased>, StoreError> {
        let kinds = kinds.to_vec();
        self.writer
            .run(move |connection, Moment { now, .. }| {
                Ok(Reading { value: lease_jobs(connection, &kinds, max, lease, now)?, now })
            })
            .await
    }
}

fn find(connection: &Connection, places: &[Place]) -> rusqlite::Result<Vec<Option<Record>>> {
    let find = |Place { workspace, kind, at }: &Place| {
        let read = |row: &Row<'_>| record(row, workspace, kind);
        match at {
            At::Id(id) => {
                let mut by_id = connection.prepare_cached(FIND_BY_ID)?;
                by_id.query_row(params![workspace.as_str(), kind, id.as_bytes()], read).optional()
            }
            At::Name(name) => {
                let mut by_name = connection.prepare_cached(FIND_BY_NAME)?;
                by_name.query_row(params![workspace.as_str(), kind, name], read).optional()
            }
        }
    };
    if places.len() < 2 {
        return places.iter().map(find).collect();
    }
    // Together: the locks of a transaction cost as much as what is read in it.
    connection.prepare_cached("BEGIN")?.execute([])?;
    let found = places.iter().map(find).collect();
    connection.prepare_cached("COMMIT")?.execute([])?;
    found
}

fn list(connection: &Connection, listing: &Listing) -> rusqlite::Result<Listed> {
    let Listing { workspace, kind, list, state, limit, before } = listing;
    let sql = match (list, state) {
        (None, None) => include_str!("../sql/list_records.sql"),
        (None, Some(_)) => include_str!("../sql/list_records_by_state.sql"),
        (Some(_), _) => include_str!("../sql/list_records_in_list.sql"),
    };
    let mut statement = connection.prepare_cached(sql)?;
    let before = before.unwrap_or(Uuid::max());
    // One more than asked for tells whether there is a next page.
    let limit_and_one = i64::try_from(*limit).unwrap_or(i64::MAX - 1) + 1;
    let read = |row: &Row<'_>| record(row, workspace, kind);
    let parameters = params![workspace.as_str(), kind, before.as_bytes(), limit_and_one, list, state];
    let mut records: Vec<Record> = statement.query_map(parameters, read)?.collect::<Result<_, _>>()?;
    let more = records.len() > *limit;
    records.truncate(*limit);
    let next = records.last().map(|record| record.id).filter(|_| more);
    Ok(Listed { records, next })
}

fn lease_jobs(
    connection: &Connection,
    kinds: &[String],
    max: usize,
    lease: Duration,
    now: Time,
) -> rusqlite::Result<Leased> {
    let mut waiting: Vec<Job> = vec![];
    let limit = i64::try_from(max).unwrap_or(i64::MAX);
    for kind in kinds {
        let mut statement = connection.prepare_cached(WAITING)?;
        for found in statement.query_map(params![kind, limit], job)? {
            waiting.push(found?);
        }
    }
    waiting.sort_by_key(|job| (job.wakes_at(), job.id));
    let mut jobs = vec![];
    for job in waiting.iter().take(max) {
        let Decision::Keep(next) = decide(job, &Command::Lease { lease }, now) else { break };
        let written = write_job(connection, REQUEUE, &next)?;
        assert!(written, "nobody writes between the read and the write of one transaction");
        jobs.push(next);
    }
    let mut next = connection.prepare_cached("SELECT min(wakes_at) FROM jobs WHERE kind = ?1")?;
    let mut next_at = None;
    for kind in kinds {
        let of_kind: Option<i64> = next.query_row([kind], |row| row.get(0))?;
        next_at = next_at.into_iter().chain(of_kind).min();
    }
    Ok(Leased { next_at: next_at.map(Time::from_micros), jobs })
}

fn record(row: &Row<'_>, workspace: &WorkspaceName, kind: &'static str) -> rusqlite::Result<Record> {
    Ok(Record {
        workspace: workspace.clone(),
        kind,
        id: Uuid::from_bytes(row.get(0)?),
        version: row.get(1)?,
        state: row.get(2)?,
        body: Bytes::from(row.get::<_, Vec<u8>>(3)?),
    })
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
    Ok(Job {
        workspace: workspace_name(&row.get::<_, String>("workspace")?)?,
        id: Uuid::from_bytes(row.get("id")?),
        kind: row.get("kind")?,
        payload: Bytes::from(row.get::<_, Vec<u8>>("payload")?),
        state: states[word("state", &states.map(state_name))?],
        due_at: time("due_at")?,
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
