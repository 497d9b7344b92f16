//! Claims as rows, and the statements on them.

use std::time::Duration;

use bytes::Bytes;
use oncegate_core::{Claim, ClaimId, ClaimKey, GuardName, Lost, Moment, State, Time, Token};
use oncegate_store::{Cursor, DuplicateCount, Page, Query};
use rusqlite::types::{FromSqlError, Type};
use rusqlite::{Connection, OptionalExtension, Row, Statement, params};

pub const READ: &str = include_str!("../sql/read_claim.sql");
pub const CREATE: &str = include_str!("../sql/create_claim.sql");
pub const REPLACE: &str = include_str!("../sql/replace_claim.sql");

pub fn read(statement: &mut Statement<'_>, key: &ClaimKey) -> rusqlite::Result<Option<Claim>> {
    statement
        .query_row(params![key.workspace.as_str(), key.id.as_bytes(), key.guard.as_str()], |row| {
            claim(row, key.clone())
        })
        .optional()
}

/// Writes `claim` by [`CREATE`] or [`REPLACE`], which take the same parameters; says whether it did.
pub fn write(statement: &mut Statement<'_>, claim: &Claim) -> rusqlite::Result<bool> {
    let rows = statement.execute(params![
        claim.key.workspace.as_str(),
        claim.key.id.as_bytes(),
        claim.key.guard.as_str(),
        claim.state.as_str(),
        claim.token.0,
        claim.version,
        claim.attempt,
        lost_name(claim.lost),
        i64::try_from(claim.lease.as_micros()).unwrap_or(i64::MAX),
        claim.lease_until.micros(),
        claim.expires_at.micros(),
        claim.created_at.micros(),
        claim.settled_at.map(Time::micros),
        claim.fingerprint,
        claim.duplicates,
        claim.last_duplicate_at.map(Time::micros),
        claim.attributes,
        claim.parts,
        claim.outcome.as_deref(),
    ])?;
    Ok(rows == 1)
}

pub fn scan(connection: &Connection, query: &Query, now: Time) -> rusqlite::Result<Page> {
    let after = query.after.unwrap_or(Cursor { token: Token(i64::MAX), id: ClaimId::from_bytes([0xff; 32]) });
    // One row more than asked for tells whether there is a next page.
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX - 1) + 1;
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
        ],
        |row| {
            let guard = GuardName::new(row.get_ref(17)?.as_str()?).map_err(|error| broken(17, error))?;
            claim(row, ClaimKey { workspace: query.workspace.clone(), guard, id: ClaimId::from_bytes(row.get(16)?) })
        },
    )?;
    let mut claims: Vec<Claim> = rows.collect::<Result<_, _>>()?;
    let more = claims.len() > query.limit;
    claims.truncate(query.limit);
    let next = claims.last().filter(|_| more).map(|last| Cursor { token: last.token, id: last.key.id });
    Ok(Page { claims, next, now })
}

/// [`Claim::state_at`] as a condition.
fn state_condition(state: Option<State>) -> &'static str {
    match state {
        None => "TRUE",
        Some(State::Done) => "state = 'done'",
        Some(State::Failed) => "state = 'failed'",
        Some(State::InFlight) => "state = 'in_flight' AND NOT (lost = 'hold' AND lease_until <= ?2)",
        // Both halves: the index `claims_attention` serves what implies its own condition.
        Some(State::Unknown) => {
            "(state = 'unknown' OR (state = 'in_flight' AND lost = 'hold')) AND (state = 'unknown' OR lease_until <= ?2)"
        }
    }
}

/// Removes records whose window has ended, and remembers the largest of their tokens.
pub fn sweep(connection: &Connection, moment: Moment, limit: usize) -> rusqlite::Result<usize> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut expired = connection.prepare_cached(include_str!("../sql/expired_claims.sql"))?;
    let expired: Vec<(i64, i64)> = expired
        .query_map(params![moment.now.micros(), limit], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    let Some(largest) = expired.iter().map(|(_, token)| *token).max() else { return Ok(0) };
    let mut delete = connection.prepare_cached("DELETE FROM claims WHERE rowid = ?1")?;
    for (rowid, _) in &expired {
        delete.execute([rowid])?;
    }
    connection.prepare_cached("UPDATE token_floor SET token = max(token, ?1)")?.execute([largest])?;
    Ok(expired.len())
}

pub fn count_duplicates(connection: &Connection, counts: &[DuplicateCount]) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(include_str!("../sql/count_duplicates.sql"))?;
    for DuplicateCount { key, token, count, last_at } in counts {
        statement.execute(params![
            key.workspace.as_str(),
            key.id.as_bytes(),
            key.guard.as_str(),
            token.0,
            count,
            last_at.micros()
        ])?;
    }
    Ok(())
}

fn claim(row: &Row<'_>, key: ClaimKey) -> rusqlite::Result<Claim> {
    let time = |column| row.get(column).map(Time::from_micros);
    let maybe_time = |column| row.get::<_, Option<i64>>(column).map(|micros| micros.map(Time::from_micros));
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
        duplicates: row.get(11)?,
        last_duplicate_at: maybe_time(12)?,
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

fn broken(column: usize, error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error))
}
