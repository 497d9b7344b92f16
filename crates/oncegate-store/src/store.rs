//! The seam.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::join_all;
use oncegate_core::job::{self, Due, Job, Share, share};
use oncegate_core::{Answer, Claim, ClaimKey, Command, GuardName, State, Time, Token, WorkspaceName};
use smallvec::SmallVec;
use uuid::Uuid;

use crate::{Change, Keyring, Listed, Listing, Place, Record, Waiters};

/// One command on one claim.
#[derive(Clone, Debug)]
pub struct Op {
    pub key: ClaimKey,
    pub command: Command,
}

/// What is written together: all of it, if every command is accepted and every change finds what it expects, else none.
/// The keys of its operations are distinct, and so are the things that it changes.
#[derive(Clone, Debug, Default)]
pub struct Commit {
    pub ops: Vec<Op>,
    pub changes: Vec<Change>,
}

impl From<Op> for Commit {
    fn from(op: Op) -> Self {
        Commit { ops: vec![op], changes: vec![] }
    }
}

/// Most commits have one operation; its answer is made on one thread and read on another, and needs no memory that these would hand to each other.
pub type Answers = SmallVec<[Answer; 1]>;

/// What became of a [`Commit`].
#[derive(Clone, Debug)]
pub struct Committed {
    /// One for each operation, in order. Where one is not accepted nothing was written, and the
    /// accepted ones say only what would have been.
    pub answers: Answers,
    /// The change that found something else than it expected. Then nothing was written: look again, and decide anew.
    pub conflict: Option<usize>,
    /// The store's time, at which it was decided.
    pub now: Time,
}

impl Committed {
    /// Of a commit that changes claims alone.
    pub fn of_claims(answers: Answers, now: Time) -> Committed {
        Committed { answers, conflict: None, now }
    }

    pub fn is_written(&self) -> bool {
        self.conflict.is_none() && self.answers.iter().all(Answer::is_accepted)
    }

    /// The answer to a commit of one operation.
    pub fn only(mut self) -> Answer {
        assert_eq!(self.answers.len(), 1, "a commit of one operation has one answer");
        self.answers.remove(0)
    }
}

/// Something read, and the store's time when it was.
#[derive(Clone, Debug)]
pub struct Reading<T> {
    pub value: T,
    pub now: Time,
}

/// Which claims to list, newest first. Expired ones are not there.
#[derive(Clone, Debug)]
pub struct Query {
    pub workspace: WorkspaceName,
    pub guard: Option<GuardName>,
    pub state: Option<State>,
    pub limit: usize,
    pub after: Option<Cursor>,
}

impl Query {
    /// Claims that a page may end after, if those that fit are fewer: nobody waits for all to be looked at.
    pub const LOOKED_MAX: usize = 50_000;

    /// Whether those that fit may be few among many. Unknown ones are found by themselves.
    pub fn is_sparse(&self) -> bool {
        self.state != Some(State::Unknown) && (self.guard.is_some() || self.state.is_some())
    }
}

/// Where a page ended: the token of its last claim. Tokens are unique enough to order by, and
/// those that are equal are told apart by their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub token: Token,
    pub id: oncegate_core::ClaimId,
}

impl Cursor {
    /// All with this token have been looked at.
    pub fn past(token: Token) -> Cursor {
        Cursor { token, id: oncegate_core::ClaimId::from_bytes([0; 32]) }
    }

    /// The newest token that is left to look at.
    pub fn left(self) -> Token {
        if self == Cursor::past(self.token) { Token(self.token.0 - 1) } else { self.token }
    }
}

#[derive(Clone, Debug)]
pub struct Page {
    /// Without their outcomes, which may be large.
    pub claims: Vec<Claim>,
    /// There may be more: also where there are fewer here than were asked for, or none.
    pub next: Option<Cursor>,
    pub now: Time,
}

/// Later callers that met a claim, to be added to its record.
#[derive(Clone, Debug)]
pub struct DuplicateCount {
    pub key: ClaimKey,
    /// Of the owner that was met: a later owner's record is not counted up.
    pub token: Token,
    pub count: i64,
    pub last_at: Time,
}

impl DuplicateCount {
    pub fn add_to(&self, claim: &mut Claim) {
        if claim.token == self.token {
            claim.duplicates += self.count;
            claim.last_duplicate_at = claim.last_duplicate_at.max(Some(self.last_at));
        }
    }
}

/// What a workspace has stored, in a part of the store or in all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    pub workspace: WorkspaceName,
    /// Claims and records.
    pub claims: u64,
    /// Of their outcomes, attributes, parts and bodies. What a store needs beside them is not in it.
    pub bytes: u64,
}

/// Where to go on with measuring; at first, the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageFrom {
    /// Claims are first, then records.
    pub in_records: bool,
    /// What that is, is the store's own.
    pub position: i64,
}

impl UsageFrom {
    pub const RECORDS: UsageFrom = UsageFrom { in_records: true, position: 0 };
}

/// What workspaces have stored in a part of the store.
#[derive(Clone, Debug, Default)]
pub struct UsagePart {
    pub usage: Vec<Usage>,
    /// None: that was the last part.
    pub next: Option<UsageFrom>,
}

/// What a sweep has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub claims: usize,
    pub records: usize,
}

/// A step of a store's schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    pub version: i64,
    pub name: &'static str,
    pub sql: &'static str,
    pub applied: bool,
    /// The oldest build that still runs on a schema with this step, named by the newest step that it knows. Replicas can be
    /// upgraded one by one only across steps that the old build tolerates.
    pub oldest_build: i64,
}

/// What a store says of itself, for `/readyz`, `oncegate doctor` and the log at start-up.
#[derive(Clone, Debug)]
pub struct Report {
    /// `sqlite`, `postgres`, `memory`.
    pub kind: &'static str,
    /// Its version, and where it is; without credentials.
    pub detail: String,
    pub schema_version: i64,
    pub now: Time,
    /// Ways in which acknowledged work could be lost, in words. Empty is good.
    pub warnings: Vec<String>,
}

/// Why a store did not answer. A duplicate is never one of these.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing was written.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// Whether it was written could not be found out. Asking again under the same key is safe.
    #[error("the store did not say whether it wrote: {0}")]
    Unknown(String),
    /// This operation cannot be done, now or later.
    #[error("the store refused: {0}")]
    Refused(String),
}

/// Whoever waits for a lane looks for itself after a while, and not all the time.
const POSTPONED_MIN: Duration = Duration::from_secs(1);
const POSTPONED_MAX: Duration = Duration::from_secs(30);

/// Which jobs somebody wants to lease.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Each once.
    kinds: Vec<String>,
    pub lease: Duration,
    pub whose: Whose,
}

#[derive(Clone, Debug)]
pub enum Whose {
    /// One workspace's, so many at most.
    One { workspace: WorkspaceName, max: usize },
    /// Everybody's, as [`share`](oncegate_core::job::share) says: there are `free` slots, beside those that workspaces have taken already, and
    /// `max` of them are to be filled at once.
    All { free: usize, max: usize, taken: BTreeMap<WorkspaceName, usize> },
}

impl Wanted {
    pub fn new<K: Into<String>>(kinds: impl IntoIterator<Item = K>, lease: Duration, whose: Whose) -> Wanted {
        let mut kinds: Vec<String> = kinds.into_iter().map(Into::into).collect();
        kinds.sort_unstable();
        kinds.dedup();
        Wanted { kinds, lease, whose }
    }

    /// How long those wait whose lanes are taken, unless they are woken before.
    pub fn postpones_for(&self) -> Duration {
        self.lease.clamp(POSTPONED_MIN, POSTPONED_MAX)
    }

    pub fn kinds(&self) -> &[String] {
        &self.kinds
    }

    /// Whether a workspace's jobs are wanted at all.
    pub fn is_from(&self, workspace: &WorkspaceName) -> bool {
        match &self.whose {
            Whose::One { workspace: one, .. } => one == workspace,
            Whose::All { .. } => true,
        }
    }

    /// How many of each workspace's, of those that have something due; who is named more than once is due since the first.
    pub fn shares(&self, mut due: Vec<Due>) -> Vec<Share> {
        due.sort_by(|a, b| (&a.workspace, a.since).cmp(&(&b.workspace, b.since)));
        due.dedup_by(|later, first| later.workspace == first.workspace);
        match &self.whose {
            Whose::One { workspace, max } => {
                due.retain(|due| due.workspace == *workspace);
                due.into_iter().map(|due| Share { workspace: due.workspace, jobs: *max }).collect()
            }
            Whose::All { free, max, taken } => share(due, taken, *free, *max),
        }
    }
}

/// Which of the jobs that are in the queue to list, newest first, or to count.
#[derive(Clone, Debug)]
pub struct JobListing {
    pub workspace: WorkspaceName,
    /// One kind, or all those that begin like this.
    pub kind: KindFilter,
    /// What their lanes begin with.
    pub lane_prefix: Option<String>,
    pub state: Option<JobFilter>,
    pub limit: usize,
    /// Those older than this one.
    pub before: Option<Uuid>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KindFilter {
    Is(String),
    BeginsWith(&'static str),
}

impl KindFilter {
    pub fn fits(&self, kind: &str) -> bool {
        match self {
            KindFilter::Is(is) => kind == is,
            KindFilter::BeginsWith(prefix) => kind.starts_with(prefix),
        }
    }
}

/// How a job in the queue stands, as people see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobFilter {
    /// Nobody has started with it.
    Untouched,
    Running,
    /// A try has failed, and it waits for the next.
    Failed,
}

impl JobFilter {
    pub fn of(job: &Job) -> JobFilter {
        match (job.state, job.tried) {
            (job::State::Running, _) => JobFilter::Running,
            (job::State::Pending, 0) => JobFilter::Untouched,
            (job::State::Pending, _) => JobFilter::Failed,
        }
    }
}

/// Jobs that a worker has leased.
#[derive(Clone, Debug)]
pub struct Leased {
    pub jobs: Vec<Job>,
    /// How many were due, and have to wait for their lanes. There may be others behind them.
    pub postponed: usize,
    /// When somebody has to look again: when the next one is due (it may be so already, if there were more than were
    /// wanted), or when the lease of one ends.
    pub next_at: Option<Time>,
}

/// Where claims are kept. Enough to be a guard's store; one that keeps the whole system is a [`MainStore`].
///
/// Implementations promise: [`commit`](Store::commit) answers only after its writes are durable;
/// a record is written only onto the version that it was decided from, which decides every race; the time that a
/// decision is made from is the store's own, read where the record is read.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Decides and writes. A store of claims alone refuses a commit with changes.
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError>;

    /// Returns once all that can be read now is as durable as a commit that was acknowledged. After a commit whose answer is
    /// unknown a read may find its writes before that: on PostgreSQL while a standby does not have them yet. Writes something of no
    /// meaning, so it also shows that a commit succeeds.
    async fn confirm(&self) -> Result<(), StoreError>;

    /// Decides and writes many, each by itself: what becomes of one has nothing to do with the others.
    /// Their keys are distinct.
    async fn commit_all(&self, commits: Vec<Commit>) -> Vec<Result<Committed, StoreError>> {
        join_all(commits.into_iter().map(|commit| self.commit(commit))).await
    }

    /// The record under a key, unless its window has ended.
    async fn read(&self, key: &ClaimKey) -> Result<Reading<Option<Claim>>, StoreError>;

    async fn scan(&self, query: Query) -> Result<Page, StoreError>;

    /// Removes up to `limit` claims whose window has ended, and up to as many records that are past their end, with all of
    /// their names and lists; says how many of each. What somebody is writing at this moment may be left for the next sweep.
    async fn sweep(&self, limit: usize) -> Result<Swept, StoreError>;

    /// Adds to the counters of claims that are still the same owner's.
    async fn count_duplicates(&self, counts: Vec<DuplicateCount>) -> Result<(), StoreError>;

    /// Says that somebody waits for this claim, so that its settling is announced to them.
    /// A store that knows of every settle anyway has nothing to do.
    async fn expect_wake(&self, _key: &ClaimKey) -> Result<(), StoreError> {
        Ok(())
    }

    /// Hands over those to wake, after the commit, whenever a claim is settled, given back or forgotten. It is the
    /// store that wakes them and not whoever settled: that one may be gone before its answer is. Those who wait for
    /// jobs hear of each that is put into the queue, or moved within it.
    fn attach(&self, waiters: Arc<Waiters>);

    async fn report(&self) -> Result<Report, StoreError>;

    /// Measures what workspaces have stored, in a part that takes a moment; the parts together are all of it, as near as it can be
    /// told while others write. A store that cannot tell says that there is nothing.
    async fn usage(&self, _from: UsageFrom) -> Result<UsagePart, StoreError> {
        Ok(UsagePart::default())
    }

    /// Finishes what is under way and lets go of files and connections.
    async fn close(&self);
}

/// Where everything is kept: claims, keys, records and the queue.
#[async_trait]
pub trait MainStore: Store + Keyring {
    /// The records at these places, one for each, as they were last committed.
    async fn find(&self, places: &[Place]) -> Result<Reading<Vec<Option<Record>>>, StoreError>;

    async fn list(&self, listing: Listing) -> Result<Listed, StoreError>;

    /// How many records a listing finds, counted no further than to its limit.
    async fn count(&self, listing: Listing) -> Result<usize, StoreError>;

    /// The jobs with these ids that are in the queue, one for each, as they were last committed.
    async fn find_jobs(&self, ids: &[(WorkspaceName, Uuid)]) -> Result<Reading<Vec<Option<Job>>>, StoreError>;

    async fn list_jobs(&self, listing: JobListing) -> Result<Vec<Job>, StoreError>;

    /// How many jobs a listing finds, counted no further than to its limit.
    async fn count_jobs(&self, listing: JobListing) -> Result<usize, StoreError>;

    /// Leases jobs of these kinds that are due, or whose worker is gone: of each workspace the longest overdue first. No two
    /// workers get the same one, nor two in the same lane: whoever finds its lane taken is postponed for as long as
    /// a lease, and woken when the one before it leaves the queue.
    async fn lease_jobs(&self, wanted: &Wanted) -> Result<Reading<Leased>, StoreError>;
}

impl Commit {
    /// What it takes of a bounded queue: one for each operation and change, and one for every 4 KiB that it brings.
    pub fn weight(&self) -> usize {
        let ops = self.ops.iter().map(|op| 1 + outcome(&op.command).map_or(0, Bytes::len) / 4096);
        let changes = self.changes.iter().map(|change| 1 + change.bytes() / 4096);
        ops.sum::<usize>() + changes.sum::<usize>()
    }

    /// Refuses what no store keeps, before it reaches one: it would fail for all that share its commit.
    pub fn check(&self) -> Result<(), StoreError> {
        use oncegate_core::limits::OUTCOME_BYTES_MAX;
        if self.ops.iter().enumerate().any(|(i, op)| self.ops[..i].iter().any(|before| before.key == op.key)) {
            return Err(StoreError::Refused("two operations of one commit have the same key".into()));
        }
        for op in &self.ops {
            if let Some(outcome) = outcome(&op.command)
                && outcome.len() > OUTCOME_BYTES_MAX
            {
                return Err(StoreError::Refused(format!(
                    "an outcome is at most {OUTCOME_BYTES_MAX} bytes; this one has {}",
                    outcome.len()
                )));
            }
        }
        Ok(())
    }
}

/// What a command writes as the outcome.
fn outcome(command: &Command) -> Option<&Bytes> {
    match command {
        Command::Claim(terms) => terms.outcome.as_ref(),
        Command::Settle { outcome, .. } | Command::Resolve { outcome, .. } => outcome.as_ref(),
        Command::Renew { .. }
        | Command::Release { .. }
        | Command::Abandon { .. }
        | Command::Retract { .. }
        | Command::Forget => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_passed_is_not_looked_at_again() {
        let id = oncegate_core::ClaimId::from_bytes([7; 32]);
        assert_eq!(Cursor { token: Token(5), id }.left(), Token(5), "others may have the same token");
        assert_eq!(Cursor::past(Token(5)).left(), Token(4));
    }
}
