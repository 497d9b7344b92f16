//! The store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use oncegate_core::job;
use oncegate_core::{Claim, ClaimId, ClaimKey, GuardName, Time, Token};
use oncegate_store::{
    Commit, Committed, Cursor, DuplicateCount, Page, Query, Reading, Record, Report, Store, StoreError, Swept, Waiters,
};
use tokio::task::{JoinHandle, JoinSet};

use crate::desk::{Desk, counted};
use crate::finder::Finder;
use crate::lane::{Lane, expire};
use crate::link::Params;
use crate::listen::{Channel, listen};
use crate::migrate;
use crate::queue::Queue;
use crate::report::report;
use crate::row::{self, CLAIM_COLUMNS, state_code};
use crate::server::{Options, Server};

const COUNT_DUPLICATES: &str = include_str!("../sql/count_duplicates.sql");
const EXPECT_WAKE: &str = include_str!("../sql/expect_wake.sql");
const SCAN_CLAIMS: &str = include_str!("../sql/scan_claims.sql");
const SCAN_HORIZON: &str = include_str!("../sql/scan_horizon.sql");
const SWEEP_CLAIMS: &str = include_str!("../sql/sweep_claims.sql");
const SWEEP_RECORDS: &str = include_str!("../sql/sweep_records.sql");

/// One: reading takes a fraction of what a COMMIT takes, and what waits for it shares its statement.
const READING_LANES: usize = 1;

/// Claims in PostgreSQL.
pub struct PostgresStore {
    server: Arc<Server>,
    queue: Arc<Queue>,
    channel: Arc<Channel>,
    /// For what a caller waits for.
    pub(crate) front: Desk,
    /// For what may take longer: lists, sweeping, counting.
    pub(crate) back: Desk,
    claim_finder: Finder<Claim>,
    pub(crate) finder: Finder<Record>,
    pub(crate) job_finder: Finder<job::Job>,
    /// For leasing jobs, which takes a transaction: one at a time.
    pub(crate) leasing: Arc<tokio::sync::Mutex<Desk>>,
    lanes: Mutex<JoinSet<()>>,
    listener: JoinHandle<()>,
    teller: JoinHandle<()>,
}

impl PostgresStore {
    /// Connects, sees to the schema, and starts the lanes.
    pub async fn open(url: &str, options: Options) -> Result<PostgresStore, StoreError> {
        let server = Arc::new(Server::new(url, &options)?);
        let front = Desk::new(server.clone());
        let link = front.link().await?;
        if options.migrate {
            migrate::apply_pending(&link).await?;
        } else {
            migrate::check(&link).await?;
        }
        let channel = Arc::new(Channel::of_schema(&server.schema));
        let queue = Arc::new(Queue::new());
        let mut lanes = JoinSet::new();
        let lane = || Lane { queue: queue.clone(), server: server.clone(), channel: channel.clone() };
        for _ in 0..READING_LANES {
            lanes.spawn(lane().keep_reading());
        }
        for _ in 0..options.lanes.max(1) {
            lanes.spawn(lane().keep_writing());
        }
        lanes.spawn(expire(queue.clone()));
        let listener = tokio::spawn(listen(server.clone(), channel.clone()));
        let teller = {
            let (channel, desk) = (channel.clone(), Desk::new(server.clone()));
            tokio::spawn(async move { channel.keep_telling(&desk).await })
        };
        let back = Desk::new(server.clone());
        let leasing = Arc::new(tokio::sync::Mutex::new(Desk::for_probes(server.clone())));
        let claim_finder = Finder::start(server.clone());
        let finder = Finder::start(server.clone());
        let job_finder = Finder::start(server.clone());
        let lanes = Mutex::new(lanes);
        Ok(PostgresStore {
            server,
            queue,
            channel,
            front,
            back,
            claim_finder,
            finder,
            job_finder,
            leasing,
            lanes,
            listener,
            teller,
        })
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        commit.check()?;
        let answer = self.queue.push(commit)?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Unknown("the store was dropped under way".into())))
    }

    async fn read(&self, key: &ClaimKey) -> Result<Reading<Option<Claim>>, StoreError> {
        let Reading { mut value, now } = self.claim_finder.find(std::slice::from_ref(key)).await?;
        Ok(Reading { value: value.remove(0).filter(|claim: &Claim| claim.is_live(now)), now })
    }

    async fn scan(&self, query: Query) -> Result<Page, StoreError> {
        let workspace = query.workspace.as_str();
        let guard = query.guard.as_ref().map(GuardName::as_str);
        let state = query.state.map(state_code);
        let (token, id) =
            (query.after.map(|after| after.token.0), query.after.as_ref().map(|after| &after.id.as_bytes()[..]));
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX).saturating_add(1);
        // Asked for by itself, so that the list is planned for the very range that is looked at.
        let horizon = if query.is_sparse() { self.horizon(&query).await? } else { None };
        let time = self.server.injected_time();
        let params: Params<'_> = &[&time, &workspace, &guard, &state, &token, &id, &limit, &horizon];
        let rows = self.back.ask(SCAN_CLAIMS, params).await?;
        let now = rows.first().map(|row| Time::from_micros(row.get(0)));
        let now = now.ok_or_else(|| StoreError::Unavailable("the server did not say the time".into()))?;
        let found = rows.iter().filter(|row| row.get::<_, Option<i64>>(1).is_some());
        let mut claims = found.map(|row| listed(row, &query)).collect::<Result<Vec<Claim>, StoreError>>()?;
        let more = claims.len() > query.limit;
        claims.truncate(query.limit);
        let last = claims.last().filter(|_| more).map(|last| Cursor { token: last.token, id: last.key.id });
        Ok(Page { claims, next: last.or(horizon.map(|token| Cursor::past(Token(token)))), now })
    }

    async fn sweep(&self, limit: usize) -> Result<Swept, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let now = self.server.injected_time();
        let claims = counted(&self.back.ask(SWEEP_CLAIMS, &[&now, &limit]).await?);
        Ok(Swept { claims, records: counted(&self.back.ask(SWEEP_RECORDS, &[&now, &limit]).await?) })
    }

    async fn count_duplicates(&self, counts: Vec<DuplicateCount>) -> Result<(), StoreError> {
        // Each key and owner once, in the order of the keys.
        let mut sums: BTreeMap<(&ClaimKey, i64), (i64, i64)> = BTreeMap::new();
        for count in &counts {
            let sum = sums.entry((&count.key, count.token.0)).or_insert((0, i64::MIN));
            *sum = (sum.0 + count.count, sum.1.max(count.last_at.micros()));
        }
        let workspaces: Vec<&str> = sums.keys().map(|(key, _)| key.workspace.as_str()).collect();
        let ids: Vec<&[u8]> = sums.keys().map(|(key, _)| &key.id.as_bytes()[..]).collect();
        let tokens: Vec<i64> = sums.keys().map(|(_, token)| *token).collect();
        let (met, last_at): (Vec<i64>, Vec<i64>) = sums.values().copied().unzip();
        self.back.tell(COUNT_DUPLICATES, &[&workspaces, &ids, &tokens, &met, &last_at]).await?;
        Ok(())
    }

    async fn expect_wake(&self, key: &ClaimKey) -> Result<(), StoreError> {
        self.front.ask(EXPECT_WAKE, &[&key.workspace.as_str(), &&key.id.as_bytes()[..]]).await?;
        Ok(())
    }

    fn attach(&self, waiters: Arc<Waiters>) {
        self.channel.attach(waiters);
    }

    async fn report(&self) -> Result<Report, StoreError> {
        Ok(report(&self.back, &self.server.place).await?)
    }

    async fn close(&self) {
        self.queue.close();
        let mut lanes = std::mem::take(&mut *self.lanes.lock().expect("no holder of this lock panics"));
        while lanes.join_next().await.is_some() {}
        self.listener.abort();
        self.teller.abort();
        self.front.close().await;
        self.back.close().await;
        self.leasing.lock().await.close().await;
    }
}

impl PostgresStore {
    /// Down to which token a page looks; none, where it looks at all there are.
    async fn horizon(&self, query: &Query) -> Result<Option<i64>, StoreError> {
        let from = query.after.map_or(i64::MAX, |after| after.left().0);
        let looked = i64::try_from(Query::LOOKED_MAX).expect("not that many");
        let rows = self.back.ask(SCAN_HORIZON, &[&query.workspace.as_str(), &from, &looked]).await?;
        Ok(rows.first().map(|row| row.get(0)))
    }
}

/// What was accepted is still worked on: the lanes end when the queue is empty.
impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.queue.close();
        self.lanes.get_mut().expect("no holder of this lock panics").detach_all();
        self.listener.abort();
        self.teller.abort();
    }
}

/// A claim of a list: its guard and id are behind the columns of the record.
fn listed(row: &tokio_postgres::Row, query: &Query) -> Result<Claim, StoreError> {
    let strange = |what: &str| StoreError::Refused(format!("the table `claims` has a {what} that is none"));
    let guard = GuardName::new(row.get(1 + CLAIM_COLUMNS)).map_err(|_| strange("guard"))?;
    let id: [u8; 32] = row.get::<_, &[u8]>(2 + CLAIM_COLUMNS).try_into().map_err(|_| strange("id"))?;
    let key = ClaimKey { workspace: query.workspace.clone(), id: ClaimId::from_bytes(id), guard };
    Ok(row::claim(row, 1, key))
}
