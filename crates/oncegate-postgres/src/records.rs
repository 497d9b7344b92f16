//! Reads of records and of the queue.

use async_trait::async_trait;
use oncegate_core::WorkspaceName;
use oncegate_core::job::Job;
use oncegate_store::{
    JobFilter, JobListing, KindFilter, Leased, Listed, Listing, MainStore, Place, Reading, Record, StoreError, Wanted,
};
use tokio::sync::Mutex;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::changes::job;
use crate::connection::Params;
use crate::fault::Fault;
use crate::finder::record;
use crate::lease::{LEASE_ROUNDS_MAX, lease};
use crate::shared_connection::{SharedConnection, counted};
use crate::store::PostgresStore;

const COUNT_JOBS: &str = include_str!("../sql/count_jobs.sql");
/// Counts through the list's own statements: PostgreSQL does not read columns that the outer query does not use.
const COUNT_RECORDS: &str = concat!("SELECT count(*) FROM (", include_str!("../sql/list_records.sql"), ") AS listed");
const COUNT_RECORDS_IN_LIST: &str =
    concat!("SELECT count(*) FROM (", include_str!("../sql/list_records_in_list.sql"), ") AS listed");
const LIST_JOBS: &str = include_str!("../sql/list_jobs.sql");
const LIST_HORIZON: &str = include_str!("../sql/list_horizon.sql");
const LIST_RECORDS: &str = include_str!("../sql/list_records.sql");
const LIST_RECORDS_IN_LIST: &str = include_str!("../sql/list_records_in_list.sql");

#[async_trait]
impl MainStore for PostgresStore {
    async fn find(&self, places: &[Place]) -> Result<Reading<Vec<Option<Record>>>, StoreError> {
        self.finder.find(places).await
    }

    async fn list(&self, listing: Listing) -> Result<Listed, StoreError> {
        // One record more than asked for shows whether there is a next page.
        let one_more = Listing { limit: listing.limit.saturating_add(1), ..listing.clone() };
        let horizon = self.list_horizon(&listing).await?;
        let rows = self.ask_of_records(LIST_RECORDS, LIST_RECORDS_IN_LIST, &one_more, horizon).await?;
        let Listing { workspace, kind, limit, .. } = &listing;
        let mut records: Vec<Record> = rows.iter().map(|row| record(row, 0, workspace, kind)).collect();
        let more = records.len() > *limit;
        records.truncate(*limit);
        let next = records.last().map(|record| record.id).filter(|_| more).or(horizon);
        Ok(Listed { records, next })
    }

    async fn count(&self, listing: Listing) -> Result<usize, StoreError> {
        Ok(counted(&self.ask_of_records(COUNT_RECORDS, COUNT_RECORDS_IN_LIST, &listing, None).await?))
    }

    async fn find_jobs(&self, ids: &[(WorkspaceName, Uuid)]) -> Result<Reading<Vec<Option<Job>>>, StoreError> {
        self.job_finder.find(ids).await
    }

    async fn list_jobs(&self, listing: JobListing) -> Result<Vec<Job>, StoreError> {
        let rows = self.ask_of_jobs(LIST_JOBS, &listing).await?;
        Ok(rows.iter().map(job).collect::<Result<_, Fault>>()?)
    }

    async fn count_jobs(&self, listing: JobListing) -> Result<usize, StoreError> {
        Ok(counted(&self.ask_of_jobs(COUNT_JOBS, &listing).await?))
    }

    async fn lease_jobs(&self, wanted: &Wanted) -> Result<Reading<Leased>, StoreError> {
        let (leasing, wanted) = (self.leasing.clone(), wanted.clone());
        let leased = async {
            self.resolve_doubt().await?;
            // In a separate task: the caller may go away, and a transaction that is left open would keep its locks.
            let leased = tokio::spawn(async move { lease_by_turns(&leasing, &wanted).await });
            leased.await.unwrap_or_else(|_| Err(StoreError::Unavailable("leasing was stopped".into())))
        };
        self.noted(self.in_time(StoreError::Unknown, leased).await)
    }
}

impl PostgresStore {
    async fn ask_of_records(
        &self,
        all: &'static str,
        in_list: &'static str,
        listing: &Listing,
        down_to: Option<Uuid>,
    ) -> Result<Vec<Row>, Fault> {
        let Listing { workspace, kind, list, state, limit, before } = listing;
        let (before, limit) = (before.unwrap_or(Uuid::max()), i64::try_from(*limit).unwrap_or(i64::MAX));
        let workspace = workspace.as_str();
        match list {
            None => self.back.ask(all, &[&workspace, kind, state, &before, &limit]).await,
            Some(list) => {
                let down_to = down_to.unwrap_or(Uuid::nil());
                self.back.ask(in_list, &[&workspace, kind, state, &before, &limit, list, &down_to]).await
            }
        }
    }

    /// The oldest record that a page looks at; `None` if it looks at all.
    async fn list_horizon(&self, listing: &Listing) -> Result<Option<Uuid>, Fault> {
        if !listing.is_sparse() {
            return Ok(None);
        }
        let Listing { workspace, kind, list, before, .. } = listing;
        let before = before.unwrap_or(Uuid::max());
        let looked = i64::try_from(Listing::LOOKED_MAX).expect("not that many");
        let rows = self.back.ask(LIST_HORIZON, &[&workspace.as_str(), kind, list, &before, &looked]).await?;
        Ok(rows.first().map(|row| row.get(0)))
    }

    async fn ask_of_jobs(&self, sql: &'static str, listing: &JobListing) -> Result<Vec<Row>, Fault> {
        let JobListing { workspace, kind, lane_prefix, state, limit, before } = listing;
        let (kind, kind_prefix) = match kind {
            KindFilter::Is(kind) => (Some(kind.as_str()), None),
            KindFilter::BeginsWith(prefix) => (None, Some(*prefix)),
        };
        let (state, is_tried) = match state {
            None => (None, None),
            Some(JobFilter::Running) => (Some(1_i16), None),
            Some(JobFilter::Untouched) => (Some(0), Some(false)),
            Some(JobFilter::Failed) => (Some(0), Some(true)),
        };
        let (before, limit) = (before.unwrap_or(Uuid::max()), i64::try_from(*limit).unwrap_or(i64::MAX));
        let params: Params<'_> =
            &[&workspace.as_str(), &kind, &kind_prefix, lane_prefix, &state, &is_tried, &before, &limit];
        self.back.ask(sql, params).await
    }
}

/// Leases one caller at a time, because a transaction needs the connection to itself.
async fn lease_by_turns(leasing: &Mutex<SharedConnection>, wanted: &Wanted) -> Result<Reading<Leased>, StoreError> {
    let desk = leasing.lock().await;
    let connection = desk.connection().await?;
    for _ in 0..LEASE_ROUNDS_MAX {
        let leased = lease(&connection, wanted).await;
        if leased.is_err() && connection.is_usable() {
            connection.within(connection.client.batch_execute("ROLLBACK")).await?;
        }
        match leased {
            // Another replica has taken the same lane at the same moment.
            Err(Fault::Conflict(_)) => {}
            leased => return Ok(leased?),
        }
    }
    Err(StoreError::Unavailable("other replicas were faster, every time".into()))
}
