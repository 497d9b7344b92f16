//! Marks: one row for each connection that writes, with the id of the last transaction that it committed.
//!
//! A replica remembers the last commit that it acknowledged over each writing connection. When that connection is lost, the replica
//! looks the commit up over the next one. A server that does not have the commit was restored, or promoted without it: acknowledged
//! work is lost. The replica cannot repair that, but reports it.

use std::time::Duration;

use futures::future::join3;
use oncegate_core::Time;
use tokio::time::Instant;
use uuid::Uuid;

use crate::connection::Connection;
use crate::fault::Fault;
use crate::health::Loss;

const COUNT_MARKED: &str = include_str!("../sql/count_marked.sql");
const RAISE_FLOOR: &str = include_str!("../sql/raise_floor.sql");
const FIND_COMMIT: &str = include_str!("../sql/find_commit.sql");

/// An older mark may be gone because `sweep_marks.sql` removed it. That happens after seven days.
const KEPT_FOR: Duration = Duration::from_secs(6 * 24 * 60 * 60);
/// A connection gets a new mark after this many commits. While an old snapshot keeps every version of a row, a row that is updated
/// again and again becomes slow to find.
pub(crate) const COMMITS_MAX: i64 = 10_000;

/// One transaction of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub connection_id: Uuid,
    pub commit: Uuid,
    /// Counts the commits of the connection.
    pub number: i64,
    /// According to the server's clock.
    pub marked_at: Time,
}

/// The last commit that was acknowledged over a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    pub mark: Mark,
    pub at: Instant,
}

/// Gives a connection its mark. Each connection has a mark of its own: the transaction of an earlier one may still be open,
/// and hold its mark locked.
pub(crate) async fn add(connection: &Connection) -> Result<Uuid, Fault> {
    let connection_id = Uuid::now_v7();
    let add = format!(
        "INSERT INTO commit_marks (connection, commit_id, marked_at)
         VALUES ('{connection_id}', '{connection_id}', store_time(NULL))"
    );
    write_here(connection, &add).await?;
    Ok(connection_id)
}

/// The commits that the server has lost since it acknowledged this one.
pub(crate) async fn find_loss(connection: &Connection, last: &Acknowledged) -> Result<Option<Loss>, Fault> {
    let rows = connection.query(COUNT_MARKED, &[&last.mark.connection_id]).await?;
    let row = rows.first().ok_or_else(|| Fault::Unable("the server did not tell of its commits".into()))?;
    let (now, kept) = (Time::from_micros(row.get(0)), row.get::<_, Option<i64>>(1));
    if kept.is_none() && now.since(last.mark.marked_at) > KEPT_FOR {
        return Ok(None);
    }
    let lost = last.mark.number - kept.unwrap_or(0);
    Ok((lost > 0).then(|| Loss { commits: lost, acknowledged: last.at.elapsed() }))
}

/// Makes tokens keep growing on a server that this replica meets for the first time.
pub(crate) async fn raise_floor(connection: &Connection) -> Result<(), Fault> {
    write_here(connection, &RAISE_FLOOR.replace("$1", &connection.server.health.largest_token().0.to_string())).await
}

/// Writes without waiting for standbys: a server whose standby is away would keep a backend for each attempt. A commit that is
/// acknowledged later comes after this one in the server's log. So a standby that has the later one has this one, too.
async fn write_here(connection: &Connection, sql: &str) -> Result<(), Fault> {
    connection
        .within(connection.client.batch_execute(&format!("BEGIN; SET LOCAL synchronous_commit = local; {sql}; COMMIT")))
        .await
}

/// What a connection's mark shows about a commit.
pub(crate) enum Found {
    Committed,
    Undone,
    /// The transaction is still open.
    Open,
    /// The mark is gone.
    Gone,
}

pub(crate) async fn find(connection: &Connection, mark: &Mark) -> Result<Found, Fault> {
    let statement = connection.prepared(FIND_COMMIT).await?;
    // Rolled back, because committing even a lock would wait for standbys. The statements are sent without waiting for answers in
    // between.
    let all = async {
        let (begun, found, _) = join3(
            connection.client.batch_execute("BEGIN"),
            connection.client.query(&statement, &[&mark.connection_id]),
            connection.client.batch_execute("ROLLBACK"),
        )
        .await;
        begun?;
        found
    };
    let rows = connection.within(all).await?;
    let row = rows.first().ok_or_else(|| Fault::Unable("the server did not tell of the commit".into()))?;
    Ok(match (row.get::<_, Option<Uuid>>(0), row.get(1)) {
        (Some(found), _) if found == mark.commit => Found::Committed,
        // The transaction wrote its id before COMMIT, and no transaction holds the mark: this one was undone.
        (Some(_), _) => Found::Undone,
        (None, true) => Found::Open,
        (None, false) => Found::Gone,
    })
}
