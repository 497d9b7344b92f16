//! Records: conditional writes within the writer's transaction, and reads. The queue is in `queue.rs`.

use async_trait::async_trait;
use bytes::Bytes;
use oncegate_core::job::Job;
use oncegate_core::{Moment, Time, WorkspaceName};
use oncegate_store::{
    At, Change, JobListing, Leased, Listed, Listing, MainStore, Place, Reading, Record, StoreError, Wanted,
};
use rusqlite::{Connection, OptionalExtension, Row, params};
use uuid::Uuid;

use crate::{SqliteStore, counted, queue};

const CREATE_RECORD: &str = "INSERT INTO records (workspace, kind, id, version, state, expires_at, body)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING";
const REPLACE_RECORD: &str = "UPDATE records SET version = ?4, state = ?5, expires_at = ?6, body = ?7
    WHERE workspace = ?1 AND kind = ?2 AND id = ?3 AND version = ?4 - 1";
/// Changes one row if the name was free or belongs to the record already.
const NAME_RECORD: &str = "INSERT INTO record_names (workspace, kind, name, id) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT DO UPDATE SET id = id WHERE id = excluded.id";
const REMOVE_RECORD: &str = "DELETE FROM records WHERE workspace = ?1 AND kind = ?2 AND id = ?3 AND version = ?4";
const UNNAME_RECORD: &str = "DELETE FROM record_names WHERE workspace = ?1 AND kind = ?2 AND name = ?3 AND id = ?4";
const UNLIST_RECORD: &str = "DELETE FROM record_lists WHERE workspace = ?1 AND kind = ?2 AND list = ?3 AND id = ?4";
const LIST_RECORD: &str = "INSERT INTO record_lists (workspace, kind, list, id) VALUES (?1, ?2, ?3, ?4)";
const FIND_BY_ID: &str =
    "SELECT id, version, state, expires_at, body FROM records WHERE workspace = ?1 AND kind = ?2 AND id = ?3";
const FIND_BY_NAME: &str = "SELECT id, version, state, expires_at, body FROM records
    WHERE workspace = ?1 AND kind = ?2
      AND id = (SELECT id FROM record_names WHERE workspace = ?1 AND kind = ?2 AND name = ?3)";

/// Records that are past their end.
const ENDED_RECORDS: &str = "SELECT workspace, kind, id, rowid FROM records
    WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2";
const UNNAME_ENDED: &str = "DELETE FROM record_names WHERE workspace = ?1 AND kind = ?2 AND id = ?3";
const UNLIST_ENDED: &str = "DELETE FROM record_lists WHERE workspace = ?1 AND kind = ?2 AND id = ?3";

/// Applies a change. Returns whether it found what it expects.
pub fn apply(connection: &Connection, change: &Change, now: Time) -> rusqlite::Result<bool> {
    let is_made = make(connection, change, now)?;
    if let Some(job) = change.leaves_lane().filter(|_| is_made) {
        queue::wake_next(connection, job)?;
    }
    Ok(is_made)
}

fn make(connection: &Connection, change: &Change, now: Time) -> rusqlite::Result<bool> {
    match change {
        Change::Create { record, names, lists } => {
            if !write_record(connection, CREATE_RECORD, record)? || !add_names(connection, record, names)? {
                return Ok(false);
            }
            label(connection, LIST_RECORD, record, lists)?;
            Ok(true)
        }
        Change::Replace { record, names } => {
            Ok(write_record(connection, REPLACE_RECORD, record)? && add_names(connection, record, names)?)
        }
        Change::Remove { record, names, lists } => {
            let Record { workspace, kind, id, version, .. } = record;
            let mut remove = connection.prepare_cached(REMOVE_RECORD)?;
            label(connection, UNNAME_RECORD, record, names)?;
            label(connection, UNLIST_RECORD, record, lists)?;
            Ok(remove.execute(params![workspace.as_str(), kind, id.as_bytes(), version])? == 1)
        }
        Change::Enqueue(job) => Ok(now < job.stands_until() && queue::enqueue(connection, job)?),
        Change::Requeue { job, stands_until } => Ok(now < *stands_until && queue::requeue(connection, job)?),
        Change::Dequeue(job) => Ok(now < job.stands_until() && queue::dequeue(connection, job)?),
    }
}

/// Removes records that are past their end, and returns their ids.
pub fn sweep(connection: &Connection, now: Time, limit: usize) -> rusqlite::Result<Vec<Uuid>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut ended = connection.prepare_cached(ENDED_RECORDS)?;
    let ended = ended.query_map(params![now.micros(), limit], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, [u8; 16]>(2)?, row.get::<_, i64>(3)?))
    })?;
    let ended = ended.collect::<rusqlite::Result<Vec<_>>>()?;
    let mut remove = connection.prepare_cached("DELETE FROM records WHERE rowid = ?1")?;
    let mut unname = connection.prepare_cached(UNNAME_ENDED)?;
    let mut unlist = connection.prepare_cached(UNLIST_ENDED)?;
    for (workspace, kind, id, row) in &ended {
        unname.execute(params![workspace, kind, id])?;
        unlist.execute(params![workspace, kind, id])?;
        remove.execute([row])?;
    }
    Ok(ended.into_iter().map(|(_, _, id, _)| Uuid::from_bytes(id)).collect())
}

fn write_record(connection: &Connection, sql: &str, record: &Record) -> rusqlite::Result<bool> {
    let Record { workspace, kind, id, version, state, expires_at, body } = record;
    let written = connection.prepare_cached(sql)?.execute(params![
        workspace.as_str(),
        kind,
        id.as_bytes(),
        version,
        state,
        expires_at.map(Time::micros),
        &body[..]
    ])?;
    Ok(written == 1)
}

/// Adds or removes names or lists.
fn label(connection: &Connection, sql: &str, record: &Record, labels: &[String]) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(sql)?;
    for label in labels {
        statement.execute(params![record.workspace.as_str(), record.kind, label, record.id.as_bytes()])?;
    }
    Ok(())
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

#[async_trait]
impl MainStore for SqliteStore {
    async fn find(&self, places: &[Place]) -> Result<Reading<Vec<Option<Record>>>, StoreError> {
        let as_of = self.cache.current().filter(|_| self.file.look_lately().is_ok());
        if let Some(records) = as_of.and_then(|as_of| self.cache.records(as_of, places)) {
            return Ok(Reading { value: records, now: self.clock.now() });
        }
        // A few index lookups, on the caller's thread; if that would have to wait, on a thread that may wait.
        if let Ok(records) = self.readers.run_now(|connection| find(connection, places)) {
            for (place, record) in places.iter().zip(&records) {
                if let (Some(as_of), Some(record)) = (as_of, record) {
                    self.cache.learn(as_of, place, record);
                }
            }
            return Ok(Reading { value: records, now: self.clock.now() });
        }
        let (places, clock) = (places.to_vec(), self.clock.clone());
        self.readers.run(move |connection| Ok(Reading { value: find(connection, &places)?, now: clock.now() })).await
    }

    async fn list(&self, listing: Listing) -> Result<Listed, StoreError> {
        self.readers.run(move |connection| list(connection, &listing)).await
    }

    async fn count(&self, listing: Listing) -> Result<usize, StoreError> {
        self.readers.run(move |connection| count(connection, &listing)).await
    }

    async fn find_jobs(&self, ids: &[(WorkspaceName, Uuid)]) -> Result<Reading<Vec<Option<Job>>>, StoreError> {
        if let Ok(jobs) = self.readers.run_now(|connection| queue::find(connection, ids)) {
            return Ok(Reading { value: jobs, now: self.clock.now() });
        }
        let (ids, clock) = (ids.to_vec(), self.clock.clone());
        self.readers
            .run(move |connection| Ok(Reading { value: queue::find(connection, &ids)?, now: clock.now() }))
            .await
    }

    async fn list_jobs(&self, listing: JobListing) -> Result<Vec<Job>, StoreError> {
        self.readers.run(move |connection| queue::list(connection, &listing)).await
    }

    async fn count_jobs(&self, listing: JobListing) -> Result<usize, StoreError> {
        self.readers.run(move |connection| queue::count(connection, &listing)).await
    }

    async fn lease_jobs(&self, wanted: &Wanted) -> Result<Reading<Leased>, StoreError> {
        // Usually there is nothing to lease, and that answer needs no transaction of the writer.
        let asked = wanted.clone();
        let next_at = self.readers.run(move |connection| queue::next_at(connection, &asked)).await?;
        let now = self.clock.now();
        if next_at.is_none_or(|next_at| next_at > now) {
            return Ok(Reading { value: Leased { jobs: vec![], postponed: 0, next_at }, now });
        }
        let wanted = wanted.clone();
        self.writer
            .run(move |connection, Moment { now, .. }| {
                Ok(Reading { value: queue::lease(connection, &wanted, now)?, now })
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
    // One transaction for all, because the locks of a transaction cost as much as its reads.
    connection.prepare_cached("BEGIN")?.execute([])?;
    let found = places.iter().map(find).collect();
    connection.prepare_cached("COMMIT")?.execute([])?;
    found
}

fn list(connection: &Connection, listing: &Listing) -> rusqlite::Result<Listed> {
    let Listing { workspace, kind, list, state, limit, before } = listing;
    let mut statement = connection.prepare_cached(list_sql(listing))?;
    let before = before.unwrap_or(Uuid::max());
    // One more than asked for tells whether there is a next page.
    let limit_and_one = i64::try_from(*limit).unwrap_or(i64::MAX - 1) + 1;
    let read = |row: &Row<'_>| record(row, workspace, kind);
    let horizon = horizon(connection, listing)?;
    let down_to = horizon.unwrap_or(Uuid::nil());
    let parameters =
        params![workspace.as_str(), kind, before.as_bytes(), limit_and_one, list, state, down_to.as_bytes()];
    let mut records: Vec<Record> = statement.query_map(parameters, read)?.collect::<Result<_, _>>()?;
    let more = records.len() > *limit;
    records.truncate(*limit);
    let next = records.last().map(|record| record.id).filter(|_| more).or(horizon);
    Ok(Listed { records, next })
}

/// The last record that a page examines; `None` if it examines all.
fn horizon(connection: &Connection, listing: &Listing) -> rusqlite::Result<Option<Uuid>> {
    if !listing.is_sparse() {
        return Ok(None);
    }
    let Listing { workspace, kind, list, before, .. } = listing;
    let before = before.unwrap_or(Uuid::max());
    let looked = i64::try_from(Listing::LOOKED_MAX).expect("not that many");
    let mut statement = connection.prepare_cached(include_str!("../sql/list_horizon.sql"))?;
    let parameters = params![workspace.as_str(), kind, list, before.as_bytes(), looked];
    statement.query_row(parameters, |row| row.get(0).map(Uuid::from_bytes)).optional()
}

fn count(connection: &Connection, listing: &Listing) -> rusqlite::Result<usize> {
    let Listing { workspace, kind, list, state, limit, before } = listing;
    // Reuses the list's statement: SQLite does not read columns that the outer query does not use.
    let mut statement = connection.prepare_cached(&format!("SELECT count(*) FROM ({})", list_sql(listing)))?;
    let (before, limit) = (before.unwrap_or(Uuid::max()), i64::try_from(*limit).unwrap_or(i64::MAX));
    let down_to = Uuid::nil();
    let parameters = params![workspace.as_str(), kind, before.as_bytes(), limit, list, state, down_to.as_bytes()];
    statement.query_row(parameters, counted)
}

fn list_sql(listing: &Listing) -> &'static str {
    match (&listing.list, &listing.state) {
        (None, None) => include_str!("../sql/list_records.sql"),
        (None, Some(_)) => include_str!("../sql/list_records_by_state.sql"),
        (Some(_), _) => include_str!("../sql/list_records_in_list.sql"),
    }
}

fn record(row: &Row<'_>, workspace: &WorkspaceName, kind: &'static str) -> rusqlite::Result<Record> {
    Ok(Record {
        workspace: workspace.clone(),
        kind,
        id: Uuid::from_bytes(row.get(0)?),
        version: row.get(1)?,
        state: row.get(2)?,
        expires_at: row.get::<_, Option<i64>>(3)?.map(Time::from_micros),
        body: Bytes::from(row.get::<_, Vec<u8>>(4)?),
    })
}
