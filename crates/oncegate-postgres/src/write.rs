//! The conditional writes of a batch, inside its transaction.

use std::collections::HashSet;

use futures::future::join5;
use oncegate_core::{Claim, Time, Token};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::batch::Batch;
use crate::changes::Changes;
use crate::connection::Connection;
use crate::decide::Write;
use crate::fault::Fault;
use crate::listen::Channel;
use crate::mark::Mark;
use crate::row::{lost_code, micros, state_code};
use crate::written::{Seal, Written};

const CREATE_CLAIMS: &str = include_str!("../sql/create_claims.sql");
const REPLACE_CLAIMS: &str = include_str!("../sql/replace_claims.sql");
const SEAL: &str = include_str!("../sql/seal.sql");

/// Begins a transaction over the connection with this mark, and runs the batch's statements.
pub(crate) async fn write(
    connection: &Connection,
    connection_id: Uuid,
    channel: &Channel,
    batch: &Batch,
) -> Result<Written, Fault> {
    let commit = Uuid::now_v7();
    let create = connection.prepared(CREATE_CLAIMS).await?;
    let replace = connection.prepared(REPLACE_CLAIMS).await?;
    let seal = connection.prepared(SEAL).await?;
    let changes = Changes::prepare(connection, batch.changes().collect()).await?;
    let now = connection.server.injected_time();
    let creation = Columns::of(batch, |write| write.was.is_none());
    let replacement = Columns::of(batch, |write| write.was.is_some());
    // Sent without waiting for answers in between. The order of polling is the order of sending.
    let all = async {
        let (begun, created, replaced, changed, sealed) = join5(
            connection.client.batch_execute("BEGIN"),
            creation.create(connection, &create, now),
            replacement.replace(connection, &replace, now, channel),
            changes.write(connection),
            connection.client.query_opt(&seal, &[&connection_id, &commit]),
        )
        .await;
        begun?;
        Ok((created?, replaced?, changed?, sealed?))
    };
    let (created, replaced, changes, sealed) = connection.within(all).await?;
    let mut claims = vec![false; batch.writes().count()];
    creation.mark_created(&created, &mut claims);
    replacement.mark_replaced(&replaced, &mut claims);
    let Some(sealed) = sealed else {
        connection.give_up();
        return Err(Fault::Gone("the mark of this connection is gone".into()));
    };
    let seal = Seal {
        mark: Mark { connection_id, commit, number: sealed.get(3), marked_at: Time::from_micros(sealed.get(4)) },
        transaction: sealed.get(0),
        backend: sealed.get(1),
        token_floor: Token(sealed.get(2)),
    };
    Ok(Written { seal, claims, changes })
}

/// Some of the writes, column by column.
struct Columns<'a> {
    /// The index of each write among the writes of the batch.
    places: Vec<usize>,
    writes: Vec<&'a Write>,
    workspaces: Vec<&'a str>,
    ids: Vec<&'a [u8]>,
}

impl<'a> Columns<'a> {
    fn of(batch: &'a Batch, is_wanted: fn(&Write) -> bool) -> Columns<'a> {
        let (places, writes): (Vec<usize>, Vec<&Write>) =
            batch.writes().enumerate().filter(|(_, write)| is_wanted(write)).unzip();
        Columns {
            workspaces: writes.iter().map(|write| write.next.key.workspace.as_str()).collect(),
            ids: writes.iter().map(|write| &write.next.key.id.as_bytes()[..]).collect(),
            places,
            writes,
        }
    }

    fn column<T>(&self, field: impl Fn(&'a Claim) -> T) -> Vec<T> {
        self.writes.iter().map(|write| field(&write.next)).collect()
    }

    /// A column that only a new owner sets.
    fn brought(&self, field: impl Fn(&'a Claim) -> &'a Option<String>) -> Vec<Option<&'a str>> {
        self.writes.iter().map(|write| field(&write.next).as_deref().filter(|_| write.new_owner)).collect()
    }

    async fn create(
        &self,
        connection: &Connection,
        statement: &tokio_postgres::Statement,
        now: Option<i64>,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        if self.writes.is_empty() {
            return Ok(vec![]);
        }
        connection
            .client
            .query(
                statement,
                &[
                    &now,
                    &self.workspaces,
                    &self.ids,
                    &self.column(|next| next.key.guard.as_str()),
                    &self.column(|next| next.token.0),
                    &self.column(|next| lost_code(next.lost)),
                    &self.column(|next| micros(next.lease)),
                    &self.column(|next| next.lease_until.micros()),
                    &self.column(|next| next.expires_at.micros()),
                    &self.column(|next| next.created_at.micros()),
                    &self.brought(|next| &next.fingerprint),
                    &self.brought(|next| &next.attributes),
                    &self.brought(|next| &next.parts),
                    &self.column(|next| state_code(next.state)),
                    &self.column(|next| next.settled_at.map(|at| at.micros())),
                    &self.column(|next| next.outcome.as_deref()),
                    &self.writes.iter().map(|write| write.stands_until.micros()).collect::<Vec<_>>(),
                ],
            )
            .await
    }

    async fn replace(
        &self,
        connection: &Connection,
        statement: &tokio_postgres::Statement,
        now: Option<i64>,
        channel: &Channel,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        if self.writes.is_empty() {
            return Ok(vec![]);
        }
        let (tokens, versions): (Vec<i64>, Vec<i64>) =
            self.writes.iter().filter_map(|write| write.was).map(|(token, version)| (token.0, version)).unzip();
        connection
            .client
            .query(
                statement,
                &[
                    &now,
                    &channel.name(),
                    &self.workspaces,
                    &self.ids,
                    &tokens,
                    &versions,
                    &self.writes.iter().map(|write| write.stands_until.micros()).collect::<Vec<_>>(),
                    &self.writes.iter().map(|write| write.new_owner).collect::<Vec<_>>(),
                    &self.writes.iter().map(|write| write.announce).collect::<Vec<_>>(),
                    &self.column(|next| state_code(next.state)),
                    &self.column(|next| next.token.0),
                    &self.column(|next| next.version),
                    &self.column(|next| next.attempt),
                    &self.column(|next| lost_code(next.lost)),
                    &self.column(|next| micros(next.lease)),
                    &self.column(|next| next.lease_until.micros()),
                    &self.column(|next| next.expires_at.micros()),
                    &self.column(|next| next.created_at.micros()),
                    &self.column(|next| next.settled_at.map(|at| at.micros())),
                    &self.brought(|next| &next.fingerprint),
                    &self.brought(|next| &next.attributes),
                    &self.brought(|next| &next.parts),
                    &self.column(|next| next.outcome.as_deref()),
                ],
            )
            .await
    }

    fn mark_created(&self, rows: &[Row], landed: &mut [bool]) {
        let created: HashSet<(&str, &[u8])> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        for (i, &place) in self.places.iter().enumerate() {
            landed[place] = created.contains(&(self.workspaces[i], self.ids[i]));
        }
    }

    fn mark_replaced(&self, rows: &[Row], landed: &mut [bool]) {
        for row in rows {
            let ord = usize::try_from(row.get::<_, i64>(0) - 1).expect("WITH ORDINALITY counts from one");
            landed[self.places[ord]] = true;
        }
    }
}
