//! The store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::future::try_join_all;
use oncegate_core::job;
use oncegate_core::{Claim, ClaimId, ClaimKey, GuardName, Time, Token, WorkspaceName};
use oncegate_store::{
    Commit, Committed, Cursor, DuplicateCount, Page, Query, Reading, Record, Report, Store, StoreError, Swept, Usage,
    UsageFrom, UsagePart, Waiters,
};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use crate::connection::{Connection, Params};
use crate::fault::Fault;
use crate::finder::Finder;
use crate::listen::{Channel, listen};
use crate::migrate;
use crate::pending::Reply;
use crate::pending_queue::PendingQueue;
use crate::pipeline::{Pipeline, expire};
use crate::pooling;
use crate::report::report;
use crate::row::{self, CLAIM_COLUMNS, state_code};
use crate::server::{ANSWERED_WITHIN, Options, Server};
use crate::shared_connection::{SharedConnection, counted};

const COUNT_DUPLICATES: &str = include_str!("../sql/count_duplicates.sql");
const EXPECT_WAKE: &str = include_str!("../sql/expect_wake.sql");
const SCAN_CLAIMS: &str = include_str!("../sql/scan_claims.sql");
const SCAN_HORIZON: &str = include_str!("../sql/scan_horizon.sql");
const SWEEP_CLAIMS: &str = include_str!("../sql/sweep_claims.sql");
const SWEEP_MARKS: &str = include_str!("../sql/sweep_marks.sql");
const SWEEP_RECORDS: &str = include_str!("../sql/sweep_records.sql");
const USAGE_CLAIMS: &str = include_str!("../sql/usage_claims.sql");
const USAGE_RECORDS: &str = include_str!("../sql/usage_records.sql");
/// How many blocks of 8 KiB one step of the usage count reads: some milliseconds, if they are in memory.
const USAGE_BLOCKS: i64 = 1_000;

/// The connections that a replica needs beside the writing pipelines. One reads for the pipelines, one listens, and each shared connection has one. One more
/// is opened for a moment, to look up a lost COMMIT or to check whether the server can be reached.
const CONNECTIONS_BESIDE_PIPELINES: usize = 8;

/// Claims in PostgreSQL.
pub struct PostgresStore {
    server: Arc<Server>,
    queue: Arc<PendingQueue>,
    channel: Arc<Channel>,
    /// For statements that a caller waits for.
    pub(crate) front: Arc<SharedConnection>,
    /// For statements that may take longer: lists, sweeping, counting.
    pub(crate) back: SharedConnection,
    claim_finder: Finder<Claim>,
    pub(crate) finder: Finder<Record>,
    pub(crate) job_finder: Finder<job::Job>,
    /// For leasing jobs, which takes a transaction: one at a time.
    pub(crate) leasing: Arc<tokio::sync::Mutex<SharedConnection>>,
    /// One for lookups of records, one for lookups of claims and jobs.
    finding: [Arc<SharedConnection>; 2],
    /// How many connections a replica needs.
    needed: usize,
    pipelines: Mutex<JoinSet<()>>,
    listener: JoinHandle<()>,
    teller: JoinHandle<()>,
}

impl PostgresStore {
    /// Connects, prepares the schema, and starts the pipelines. Opens all connections now, so that a server with too few connections
    /// for this replica is found before anything depends on it.
    pub async fn open(url: &str, options: Options) -> Result<PostgresStore, StoreError> {
        let server = Arc::new(Server::new(url, &options)?);
        let writing_pipelines = options.pipelines.max(1);
        let needed = CONNECTIONS_BESIDE_PIPELINES + writing_pipelines;
        let too_few = |fault: Fault| fault.if_too_many_connections(needed);
        let front = Arc::new(SharedConnection::new(server.clone()));
        let connection = front.connection().await.map_err(too_few)?;
        let spare = Connection::open(server.clone()).await.map_err(too_few)?;
        pooling::refuse_transaction_pooling(&connection, &spare).await?;
        if options.migrate {
            migrate::apply_pending(&connection).await?;
        } else {
            migrate::check(&connection).await?;
        }
        let back = SharedConnection::new(server.clone());
        let leasing = SharedConnection::for_probes(server.clone());
        let finding = [(); 2].map(|()| Arc::new(SharedConnection::for_probes(server.clone())));
        for desk in [&back, &leasing, &finding[0], &finding[1]] {
            desk.connection().await.map_err(too_few)?;
        }
        let reading = Connection::open_for_probes(server.clone()).await.map_err(too_few)?;
        let mut writing = vec![];
        for _ in 0..writing_pipelines {
            writing.push(Connection::open_for_probes(server.clone()).await.map_err(too_few)?);
        }
        // One more connection must be possible, because the listener opens its own.
        Connection::open(server.clone()).await.map_err(too_few)?;
        drop(spare);

        let channel = Arc::new(Channel::of_schema(&server.schema));
        let queue = Arc::new(PendingQueue::new());
        let mut pipelines = JoinSet::new();
        let pipeline = || Pipeline { queue: queue.clone(), server: server.clone(), channel: channel.clone() };
        pipelines.spawn(pipeline().keep_reading(reading));
        for connection in writing {
            pipelines.spawn(pipeline().keep_writing(connection));
        }
        pipelines.spawn(expire(queue.clone()));
        let listener = tokio::spawn(listen(server.clone(), channel.clone()));
        let teller = {
            let (channel, desk) = (channel.clone(), front.clone());
            tokio::spawn(async move { channel.keep_telling(&desk).await })
        };
        let [of_records, of_others] = &finding;
        Ok(PostgresStore {
            claim_finder: Finder::start(of_others.clone()),
            finder: Finder::start(of_records.clone()),
            job_finder: Finder::start(of_others.clone()),
            leasing: Arc::new(tokio::sync::Mutex::new(leasing)),
            pipelines: Mutex::new(pipelines),
            server,
            queue,
            channel,
            front,
            back,
            finding,
            needed,
            listener,
            teller,
        })
    }

    /// Waits for the answer to a commit for a limited time. A pipeline that is processing the commit goes on with it.
    async fn answered(&self, answer: oneshot::Receiver<Reply>) -> Result<Committed, StoreError> {
        match tokio::time::timeout(ANSWERED_WITHIN, answer).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(_)) => Err(StoreError::Unknown("the store was dropped under way".into())),
            Err(_) => Err(StoreError::Unknown(format!("the server did not answer within {ANSWERED_WITHIN:?}"))),
        }
    }

    /// Limits the time of an operation, so that the caller is answered in time however many steps there are.
    pub(crate) async fn in_time<T>(
        &self,
        late: fn(String) -> StoreError,
        steps: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let answered = tokio::time::timeout(ANSWERED_WITHIN, steps).await;
        answered.unwrap_or_else(|_| Err(late(format!("the server did not answer within {ANSWERED_WITHIN:?}"))))
    }

    /// Checks that every connection that callers depend on is open or can be opened now.
    async fn check_connections(&self) -> Result<(), Fault> {
        let [of_records, of_others] = &self.finding;
        let leasing = async {
            // If the shared connection is taken, it is leasing jobs at this moment.
            match self.leasing.try_lock() {
                Ok(leasing) => leasing.connection().await.map(drop),
                Err(_) => Ok(()),
            }
        };
        let linked = |desk| async move { SharedConnection::connection(desk).await.map(drop) };
        let desks = try_join_all([&*self.front, &self.back, of_records, of_others].map(linked));
        let checked = tokio::try_join!(desks, leasing);
        checked.map(drop).map_err(|fault| fault.if_too_many_connections(self.needed))
    }

    /// Runs before a write that does not go through a pipeline. After a failed write, a commit has to succeed first. A server that waits
    /// for an absent standby would keep a backend for each attempt; a pipeline keeps only one.
    pub(crate) async fn resolve_doubt(&self) -> Result<(), StoreError> {
        if self.server.health.is_in_doubt() {
            self.confirm().await?;
        }
        Ok(())
    }

    /// A separate write that must not run twice.
    pub(crate) async fn tell(&self, sql: &'static str, params: Params<'_>) -> Result<u64, StoreError> {
        let told = async {
            self.resolve_doubt().await?;
            self.front.tell(sql, params).await
        };
        self.noted(self.in_time(StoreError::Unknown, told).await)
    }

    /// Records a failed write in `health`.
    pub(crate) fn noted<T, E>(&self, written: Result<T, E>) -> Result<T, E> {
        written.inspect_err(|_| self.server.health.failed())
    }

    /// The time up to which to sweep, in microseconds; `None` if the server's clock cannot be trusted with permanent removal.
    async fn sweeps_until(&self) -> Result<Option<i64>, Fault> {
        // A test's injected clock may step as the test likes.
        if let Some(injected) = self.server.injected_time() {
            return Ok(Some(injected));
        }
        let rows = self.back.ask("SELECT store_time(NULL)", &[]).await?;
        let now: Option<i64> = rows.first().map(|row| row.get(0));
        Ok(now.filter(|now| self.server.health.may_sweep(Time::from_micros(*now))))
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        commit.check()?;
        self.answered(self.queue.push(commit)?).await
    }

    async fn confirm(&self) -> Result<(), StoreError> {
        self.answered(self.queue.push_probe()?).await.map(drop)
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
        // A separate query, so that the list is planned for exactly the range that it reads.
        let listed_rows = async {
            let horizon = if query.is_sparse() { self.horizon(&query).await? } else { None };
            let time = self.server.injected_time();
            let params: Params<'_> = &[&time, &workspace, &guard, &state, &token, &id, &limit, &horizon];
            Ok((self.back.ask(SCAN_CLAIMS, params).await?, horizon))
        };
        let (rows, horizon) = self.in_time(StoreError::Unavailable, listed_rows).await?;
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
        let Some(now) = self.sweeps_until().await? else { return Ok(Swept::default()) };
        let now = Some(now);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.resolve_doubt().await?;
        self.noted(self.back.ask(SWEEP_MARKS, &[]).await)?;
        let claims = counted(&self.noted(self.back.ask(SWEEP_CLAIMS, &[&now, &limit]).await)?);
        Ok(Swept { claims, records: counted(&self.noted(self.back.ask(SWEEP_RECORDS, &[&now, &limit]).await)?) })
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
        self.resolve_doubt().await?;
        self.noted(self.back.tell(COUNT_DUPLICATES, &[&workspaces, &ids, &tokens, &met, &last_at]).await)?;
        Ok(())
    }

    async fn expect_wake(&self, key: &ClaimKey) -> Result<(), StoreError> {
        let expected = async {
            self.resolve_doubt().await?;
            let asked = self.front.ask(EXPECT_WAKE, &[&key.workspace.as_str(), &&key.id.as_bytes()[..]]).await;
            asked.map(drop).map_err(StoreError::from)
        };
        self.noted(self.in_time(StoreError::Unavailable, expected).await)
    }

    fn attach(&self, waiters: Arc<Waiters>) {
        self.channel.attach(waiters);
    }

    async fn report(&self) -> Result<Report, StoreError> {
        self.check_connections().await?;
        if let Some(why) = self.server.health.refused_lately() {
            return Err(StoreError::Unavailable(format!("the server does not write: {why}")));
        }
        if !self.server.health.has_committed_lately() {
            self.confirm().await?;
        }
        Ok(report(&self.back, &self.server).await?)
    }

    async fn usage(&self, from: UsageFrom) -> Result<UsagePart, StoreError> {
        let sql = if from.in_records { USAGE_RECORDS } else { USAGE_CLAIMS };
        let until = from.position + USAGE_BLOCKS;
        let block = |number: i64| format!("({number},0)");
        let rows = self.back.ask(sql, &[&block(from.position), &block(until)]).await?;
        let mut part = UsagePart::default();
        for row in &rows {
            if let Some(workspace) = row.get::<_, Option<&str>>(1) {
                let unsigned = |number: i64| u64::try_from(number).unwrap_or_default();
                let workspace =
                    WorkspaceName::new(workspace).map_err(|error| StoreError::Refused(error.to_string()))?;
                part.usage.push(Usage { workspace, claims: unsigned(row.get(2)), bytes: unsigned(row.get(3)) });
            }
        }
        let blocks: i64 = rows.first().map_or(0, |row| row.get(0));
        part.next = if until < blocks {
            Some(UsageFrom { position: until, ..from })
        } else {
            (!from.in_records).then_some(UsageFrom::RECORDS)
        };
        Ok(part)
    }

    async fn close(&self) {
        self.queue.close();
        let mut pipelines = std::mem::take(&mut *self.pipelines.lock().expect("no holder of this lock panics"));
        while pipelines.join_next().await.is_some() {}
        self.listener.abort();
        self.teller.abort();
        self.front.close().await;
        self.back.close().await;
        self.leasing.lock().await.close().await;
        for desk in &self.finding {
            desk.close().await;
        }
    }
}

impl PostgresStore {
    /// The oldest token that a page looks at; `None` if it looks at all.
    async fn horizon(&self, query: &Query) -> Result<Option<i64>, StoreError> {
        let from = query.after.map_or(i64::MAX, |after| after.left().0);
        let looked = i64::try_from(Query::LOOKED_MAX).expect("not that many");
        let rows = self.back.ask(SCAN_HORIZON, &[&query.workspace.as_str(), &from, &looked]).await?;
        Ok(rows.first().map(|row| row.get(0)))
    }
}

/// Accepted commits are still processed: the pipelines end when the queue is empty.
impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.queue.close();
        self.pipelines.get_mut().expect("no holder of this lock panics").detach_all();
        self.listener.abort();
        self.teller.abort();
    }
}

/// Reads a claim of a list. Its guard and id follow the columns of the record.
fn listed(row: &tokio_postgres::Row, query: &Query) -> Result<Claim, StoreError> {
    let strange = |what: &str| StoreError::Refused(format!("the table `claims` has a {what} that is none"));
    let guard = GuardName::new(row.get(1 + CLAIM_COLUMNS)).map_err(|_| strange("guard"))?;
    let id: [u8; 32] = row.get::<_, &[u8]>(2 + CLAIM_COLUMNS).try_into().map_err(|_| strange("id"))?;
    let key = ClaimKey { workspace: query.workspace.clone(), id: ClaimId::from_bytes(id), guard };
    Ok(row::claim(row, 1, key))
}
