//! Records as rows.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncegate_core::{Claim, ClaimKey, Lost, Moment, State, Time, Token};
use tokio_postgres::Row;

use crate::connection::Connection;
use crate::fault::Fault;

const READ_CLAIMS: &str = include_str!("../sql/read_claims.sql");

/// When and where records were read.
#[derive(Clone, Copy)]
pub(crate) struct Read {
    pub moment: Moment,
    /// The generation of the server.
    pub generation: u64,
    /// What was read is as durable as a commit that succeeded.
    pub is_confirmed: bool,
}

/// The records under some keys.
pub(crate) struct Records {
    pub read: Read,
    /// One for each key, in order.
    pub claims: Vec<Option<Arc<Claim>>>,
}

/// Reads the records under `keys`, in one snapshot. Expired ones too: they hold the last token.
pub(crate) async fn read(connection: &Connection, keys: &[&ClaimKey]) -> Result<Records, Fault> {
    let workspaces: Vec<&str> = keys.iter().map(|key| key.workspace.as_str()).collect();
    let ids: Vec<&[u8]> = keys.iter().map(|key| &key.id.as_bytes()[..]).collect();
    let guards: Vec<&str> = keys.iter().map(|key| key.guard.as_str()).collect();
    let rows = connection.query(READ_CLAIMS, &[&connection.server.injected_time(), &workspaces, &ids, &guards]).await?;
    let first = rows.first().ok_or_else(|| Fault::Unable("the table `meta` has lost its row".into()))?;
    // The server may have lost claims whose tokens were given out.
    let token_floor = Token(first.get(1)).max(connection.server.health.largest_token());
    let moment = Moment { now: Time::from_micros(first.get(0)), token_floor };
    let mut claims = vec![None; keys.len()];
    for row in &rows {
        if let Some(ord) = row.get::<_, Option<i64>>(2) {
            let place = usize::try_from(ord - 1).expect("WITH ORDINALITY counts from one");
            // The id's hash includes the guard, so an id together with another guard matches nothing.
            let is_named = row.get::<_, &str>(3 + CLAIM_COLUMNS) == keys[place].guard.as_str();
            claims[place] = is_named.then(|| Arc::new(claim(row, 3, keys[place].clone())));
            claims[place].iter().for_each(|claim| connection.server.health.saw_token(claim.token));
        }
    }
    let generation = connection.generation;
    let read = Read { moment, generation, is_confirmed: connection.server.health.is_confirmed() };
    Ok(Records { read, claims })
}

/// Reads the record in the columns from `first` on, in the order in which the statements list them.
pub(crate) fn claim(row: &Row, first: usize, key: ClaimKey) -> Claim {
    let time = |column: usize| Time::from_micros(row.get(first + column));
    let maybe_time = |column: usize| row.get::<_, Option<i64>>(first + column).map(Time::from_micros);
    Claim {
        key,
        token: Token(row.get(first)),
        version: row.get(first + 1),
        lease: Duration::from_micros(row.get::<_, i64>(first + 2).unsigned_abs()),
        lease_until: time(3),
        expires_at: time(4),
        created_at: time(5),
        settled_at: maybe_time(6),
        duplicates: row.get(first + 7),
        last_duplicate_at: maybe_time(8),
        attempt: row.get(first + 9),
        state: state(row.get(first + 10)),
        lost: lost(row.get(first + 11)),
        fingerprint: row.get(first + 12),
        attributes: row.get(first + 13),
        parts: row.get(first + 14),
        outcome: row.get::<_, Option<&[u8]>>(first + 15).map(Bytes::copy_from_slice),
    }
}

/// How many columns [`claim`] reads.
pub(crate) const CLAIM_COLUMNS: usize = 16;

pub(crate) fn state_code(state: State) -> i16 {
    match state {
        State::InFlight => 0,
        State::Done => 1,
        State::Failed => 2,
        State::Unknown => 3,
    }
}

fn state(code: i16) -> State {
    match code {
        0 => State::InFlight,
        1 => State::Done,
        2 => State::Failed,
        3 => State::Unknown,
        other => unreachable!("the table's check keeps state {other} out"),
    }
}

pub(crate) fn lost_code(lost: Lost) -> i16 {
    match lost {
        Lost::TakeOver => 0,
        Lost::Hold => 1,
    }
}

fn lost(code: i16) -> Lost {
    match code {
        0 => Lost::TakeOver,
        1 => Lost::Hold,
        other => unreachable!("the table's check keeps lost {other} out"),
    }
}

pub(crate) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
