//! Records and the queue, as they are read and leased.

use std::time::Duration;

use async_trait::async_trait;
use oncegate_core::Time;
use oncegate_core::job::{Command, Decision, decide};
use oncegate_store::{Leased, Listed, Listing, MainStore, Place, Reading, Record, StoreError};
use uuid::Uuid;

use crate::changes::{job, requeue};
use crate::fault::Fault;
use crate::finder::record;
use crate::link::Link;
use crate::store::PostgresStore;

const DUE_JOBS: &str = include_str!("../sql/due_jobs.sql");
const LIST_RECORDS: &str = include_str!("../sql/list_records.sql");
const LIST_RECORDS_IN_LIST: &str = include_str!("../sql/list_records_in_list.sql");
const NEXT_JOB: &str = include_str!("../sql/next_job.sql");

#[async_trait]
impl MainStore for PostgresStore {
    async fn find(&self, places: &[Place]) -> Result<Reading<Vec<Option<Record>>>, StoreError> {
        self.finder.find(places).await
    }

    async fn list(&self, listing: Listing) -> Result<Listed, StoreError> {
        let Listing { workspace, kind, list, state, limit, before } = &listing;
        let before = before.unwrap_or(Uuid::max());
        // One more than asked for tells whether there is a next page.
        let limit_and_one = i64::try_from(*limit).unwrap_or(i64::MAX).saturating_add(1);
        let rows = match list {
            None => self.back.ask(LIST_RECORDS, &[&workspace.as_str(), kind, state, &before, &limit_and_one]).await?,
            Some(list) => {
                let params: crate::link::Params<'_> =
                    &[&workspace.as_str(), kind, state, &before, &limit_and_one, list];
                self.back.ask(LIST_RECORDS_IN_LIST, params).await?
            }
        };
        let mut records: Vec<Record> = rows.iter().map(|row| record(row, 0, workspace, kind)).collect();
        let more = records.len() > *limit;
        records.truncate(*limit);
        let next = records.last().map(|record| record.id).filter(|_| more);
        Ok(Listed { records, next })
    }

    async fn lease_jobs(&self, kinds: &[String], max: usize, lease: Duration) -> Result<Reading<Leased>, StoreError> {
        // A transaction has its connection to itself.
        let desk = self.leasing.lock().await;
        let link = desk.link().await?;
        let leased = lease_jobs(&link, kinds, max, lease).await;
        if leased.is_err() && link.is_usable() {
            link.within(link.client.batch_execute("ROLLBACK")).await?;
        }
        Ok(leased?)
    }
}

/// The locks decide who leases what. If the answer to COMMIT is lost, nobody works on what was leased, if it was, and it is taken
/// up like any other job that has lost its worker.
async fn lease_jobs(link: &Link, kinds: &[String], max: usize, lease: Duration) -> Result<Reading<Leased>, Fault> {
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    let now = link.server.injected_time();
    // Nothing to lease is the usual answer, and takes no transaction.
    let (first_look, next_at) = next_job(link, kinds).await?;
    if next_at.is_none_or(|next_at| next_at > first_look) {
        return Ok(Reading { value: Leased { jobs: vec![], next_at }, now: first_look });
    }
    link.within(link.client.batch_execute("BEGIN")).await?;
    let rows = link.query(DUE_JOBS, &[&now, &kinds, &max]).await?;
    let mut jobs = vec![];
    for row in &rows {
        let now = Time::from_micros(row.get("now"));
        let due = job(row).ok_or_else(|| Fault::Data("the table `jobs` has a workspace that is none".into()))?;
        if let Decision::Keep(next) = decide(&due, &Command::Lease { lease }, now) {
            jobs.push(next);
        }
    }
    requeue(link, &jobs.iter().collect::<Vec<_>>()).await?;
    let (now, next_at) = next_job(link, kinds).await?;
    link.within(link.client.batch_execute("COMMIT")).await?;
    Ok(Reading { value: Leased { jobs, next_at }, now })
}

async fn next_job(link: &Link, kinds: &[String]) -> Result<(Time, Option<Time>), Fault> {
    let rows = link.query(NEXT_JOB, &[&link.server.injected_time(), &kinds]).await?;
    let row = rows.first().ok_or_else(|| Fault::Unable("the server did not say the time".into()))?;
    Ok((Time::from_micros(row.get(0)), row.get::<_, Option<i64>>(1).map(Time::from_micros)))
}
