//! Claims as rows, and the statements on them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncegate_core::{Claim, ClaimId, ClaimKey, GuardName, Lost, State, Time, Token};
use oncegate_store::{Cursor, DuplicateCount, Page, Query};
use rusqlite::types::{FromSqlError, Type};
use rusqlite::{Connection, OptionalExtension, Statement, ToSql, params};

use crate::index::{Entry, Index, Rows};

/// Reads the claim in one row, if the row belongs to the key.
pub const READ: &str = include_str!("../sql/read_claim.sql");
/// Inserts one claim as a new row.
pub const CREATE: &str = include_str!("../sql/create_claim.sql");
pub const REPLACE: &str = include_str!("../sql/replace_claim.sql");
/// The number of parameters that [`CREATE`] and [`REPLACE`] take for a claim.
const PARAMETERS: usize = 20;

/// A claim and its row.
pub struct Found {
    pub seq: i64,
    pub claim: Arc<Claim>,
}

/// The claim under a key, as a reader sees it. It also searches rows that other processes have appended and the writer has not read.
pub fn look_up(connection: &Connection, index: &Index, key: &ClaimKey) -> rusqlite::Result<Option<Found>> {
    let Rows { mut known, complete_to } = index.rows(key);
    let mut appended = connection.prepare_cached("SELECT seq FROM claims WHERE seq > ?1 AND id = ?2")?;
    for seq in appended.query_map(params![complete_to, key.id.as_bytes()], |row| row.get(0))? {
        known.push(seq?);
    }
    find_among(&mut *connection.prepare_cached(READ)?, &known, key)
}

/// The claim under a key, read by [`READ`] from one of the rows that the index names.
pub fn find_among(read: &mut Statement<'_>, seqs: &[i64], key: &ClaimKey) -> rusqlite::Result<Option<Found>> {
    for seq in seqs {
        let mut rows = read.query(params![seq, key.id.as_bytes(), key.workspace.as_str(), key.guard.as_str()])?;
        if let Some(row) = rows.next()? {
            return Ok(Some(Found { seq: *seq, claim: Arc::new(claim(row, key.clone())?) }));
        }
    }
    Ok(None)
}

/// [`CREATE`] for this many claims.
pub fn create_many(claims: usize) -> String {
    let (insert, _) = CREATE.split_once("VALUES").expect("it is an insert");
    let row = format!("({})", vec!["?"; PARAMETERS].join(", "));
    format!("{insert}VALUES {}", vec![row; claims].join(", "))
}

/// Writes claims into rows by a statement for that many claims. Returns whether all were written.
pub fn write(statement: &mut Statement<'_>, claims: &[(i64, Arc<Claim>)]) -> rusqlite::Result<bool> {
    for (place, (seq, claim)) in claims.iter().enumerate() {
        bind(statement, place * PARAMETERS, *seq, claim)?;
    }
    Ok(statement.raw_execute()? == claims.len())
}

fn bind(statement: &mut Statement<'_>, after: usize, seq: i64, claim: &Claim) -> rusqlite::Result<()> {
    let parameters: [&dyn ToSql; PARAMETERS] = [
        &seq,
        &claim.key.workspace.as_str(),
        &claim.key.id.as_bytes(),
        &claim.key.guard.as_str(),
        &claim.state.as_str(),
        &claim.token.0,
        &claim.version,
        &claim.attempt,
        &lost_name(claim.lost),
        &i64::try_from(claim.lease.as_micros()).unwrap_or(i64::MAX),
        &claim.lease_until.micros(),
        &claim.expires_at.micros(),
        &claim.created_at.micros(),
        &claim.settled_at.map(Time::micros),
        &claim.fingerprint,
        &claim.duplicates,
        // Never NULL, so that counting duplicates does not change the row's length.
        &claim.last_duplicate_at.unwrap_or(claim.created_at).micros(),
        &claim.attributes,
        &claim.parts,
        &claim.outcome.as_deref(),
    ];
    (after + 1..).zip(parameters).try_for_each(|(place, value)| statement.raw_bind_parameter(place, value))
}

pub fn scan(connection: &Connection, query: &Query, now: Time) -> rusqlite::Result<Page> {
    let after = query.after.unwrap_or(Cursor { token: Token(i64::MAX), id: ClaimId::from_bytes([0xff; 32]) });
    // One row more than asked for tells whether there is a next page.
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX - 1) + 1;
    let horizon = if query.is_sparse() { horizon(connection, query, after.left())? } else { None };
    let sql = include_str!("../sql/scan_claims.sql").replace("{state}", state_condition(query.state));
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(
        params![
            query.workspace.as_str(),
            now.micros(),
            query.guard.as_ref().map(GuardName::as_str),
            after.token.0,
            after.id.as_bytes(),
            limit,
            horizon.map_or(i64::MIN, |horizon| horizon.0),
        ],
        |row| {
            let guard = GuardName::new(row.get_ref(17)?.as_str()?).map_err(|error| broken(17, error))?;
            claim(row, ClaimKey { workspace: query.workspace.clone(), guard, id: ClaimId::from_bytes(row.get(16)?) })
        },
    )?;
    let mut claims: Vec<Claim> = rows.collect::<Result<_, _>>()?;
    let more = claims.len() > query.limit;
    claims.truncate(query.limit);
    let last = claims.last().filter(|_| more).map(|last| Cursor { token: last.token, id: last.key.id });
    Ok(Page { claims, next: last.or(horizon.map(Cursor::past)), now })
}

/// The smallest token that a page examines; `None` if it examines all.
fn horizon(connection: &Connection, query: &Query, from: Token) -> rusqlite::Result<Option<Token>> {
    let looked = i64::try_from(Query::LOOKED_MAX).expect("not that many");
    let mut statement = connection.prepare_cached(include_str!("../sql/scan_horizon.sql"))?;
    statement.query_row(params![query.workspace.as_str(), from.0, looked], |row| row.get(0).map(Token)).optional()
}

/// [`Claim::state_at`] as an SQL condition.
fn state_condition(state: Option<State>) -> &'static str {
    match state {
        None => "TRUE",
        Some(State::Done) => "state = 'done'",
        Some(State::Failed) => "state = 'failed'",
        Some(State::InFlight) => "state = 'in_flight' AND NOT (lost = 'hold' AND lease_until <= ?2)",
        // Both halves are needed: SQLite uses the index `claims_attention` only if the query implies the index's own condition.
        Some(State::Unknown) => {
            "(state = 'unknown' OR (state = 'in_flight' AND lost = 'hold')) AND (state = 'unknown' OR lease_until <= ?2)"
        }
    }
}

/// Removes claims whose window has ended. The file keeps the largest of their tokens and row numbers.
pub fn sweep(connection: &Connection, index: &Index, now: Time, limit: usize) -> rusqlite::Result<Vec<Entry>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut expired = connection
        .prepare_cached("SELECT seq, id, workspace FROM claims WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2")?;
    let expired: Vec<Entry> = expired
        .query_map(params![now.micros(), limit], |row| {
            Ok(index.entry(row.get_ref(1)?.as_blob()?, row.get_ref(2)?.as_str()?, row.get(0)?))
        })?
        .collect::<Result<_, _>>()?;
    let mut delete = connection.prepare_cached("DELETE FROM claims WHERE seq = ?1")?;
    for entry in &expired {
        delete.execute([entry.seq])?;
    }
    Ok(expired)
}

pub fn count_duplicates(connection: &Connection, index: &Index, counts: &[DuplicateCount]) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(include_str!("../sql/count_duplicates.sql"))?;
    for DuplicateCount { key, token, count, last_at } in counts {
        for seq in index.rows(key).known {
            statement.execute(params![seq, token.0, count, last_at.micros()])?;
        }
    }
    Ok(())
}

fn claim(row: &rusqlite::Row<'_>, key: ClaimKey) -> rusqlite::Result<Claim> {
    let time = |column| row.get(column).map(Time::from_micros);
    let maybe_time = |column| row.get::<_, Option<i64>>(column).map(|micros| micros.map(Time::from_micros));
    let duplicates = row.get(11)?;
    let state = State::parse(row.get_ref(0)?.as_str()?).ok_or_else(|| broken(0, FromSqlError::InvalidType))?;
    Ok(Claim {
        key,
        state,
        token: Token(row.get(1)?),
        version: row.get(2)?,
        attempt: row.get(3)?,
        lost: if row.get_ref(4)?.as_str()? == "hold" { Lost::Hold } else { Lost::TakeOver },
        lease: Duration::from_micros(row.get::<_, i64>(5)?.unsigned_abs()),
        lease_until: time(6)?,
        expires_at: time(7)?,
        created_at: time(8)?,
        settled_at: maybe_time(9)?,
        fingerprint: row.get(10)?,
        duplicates,
        last_duplicate_at: maybe_time(12)?.filter(|_| duplicates > 0),
        attributes: row.get(13)?,
        parts: row.get(14)?,
        outcome: row.get::<_, Option<Vec<u8>>>(15)?.map(Bytes::from),
    })
}

fn lost_name(lost: Lost) -> &'static str {
    match lost {
        Lost::TakeOver => "take_over",
        Lost::Hold => "hold",
    }
}

pub fn broken(column: usize, error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error))
}
