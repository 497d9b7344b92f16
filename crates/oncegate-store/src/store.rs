//! The seam between the rules and the storage: the traits [`Store`] and [`MainStore`], and their arguments and answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::join_all;
use oncegate_core::job::{self, Due, Job, Share, share};
use oncegate_core::{Answer, Claim, ClaimKey, Command, GuardName, State, Time, Token, WorkspaceName};
use uuid::Uuid;

use crate::{Change, Keyring, Listed, Listing, Place, Record, Waiters};

/// One command on one claim.
#[derive(Clone, Debug)]
pub struct Op {
    /// The key of the claim.
    pub key: ClaimKey,
    /// What to do with the claim.
    pub command: Command,
}

/// An atomic write. The store writes all of it if every command is accepted and every change finds what it expects;
/// otherwise the store writes nothing. The keys of the operations are distinct, and so are the targets of the changes.
#[derive(Clone, Debug, Default)]
pub struct Commit {
    /// Commands on claims.
    pub ops: Vec<Op>,
    /// Conditional writes of records and jobs.
    pub changes: Vec<Change>,
}

impl From<Op> for Commit {
    fn from(op: Op) -> Self {
        Commit { ops: vec![op], changes: vec![] }
    }
}

/// The result of a [`Commit`].
#[derive(Clone, Debug)]
pub struct Committed {
    /// One answer for each operation, in order. If one is not accepted, nothing was written, and the
    /// accepted ones say only what would have been written.
    pub answers: Vec<Answer>,
    /// The index of the change that did not find what it expected. Nothing was written: the caller reads again and decides anew.
    pub conflict: Option<usize>,
    /// The store's time at which the commit was decided.
    pub now: Time,
}

impl Committed {
    /// The result of a commit that changes only claims.
    pub fn of_claims(answers: Vec<Answer>, now: Time) -> Committed {
        Committed { answers, conflict: None, now }
    }

    /// Whether the commit was written: every command was accepted, and every change found what it expected.
    pub fn is_written(&self) -> bool {
        self.conflict.is_none() && self.answers.iter().all(Answer::is_accepted)
    }

    /// The answer to a commit of one operation.
    pub fn only(mut self) -> Answer {
        assert_eq!(self.answers.len(), 1, "a commit of one operation has one answer");
        self.answers.remove(0)
    }
}

/// A value that was read, and the store's time of the read.
#[derive(Clone, Debug)]
pub struct Reading<T> {
    /// What the store has read.
    pub value: T,
    /// The store's time of the read.
    pub now: Time,
}

/// Which claims to list, newest first. Expired claims are left out.
#[derive(Clone, Debug)]
pub struct Query {
    /// The workspace that owns the claims.
    pub workspace: WorkspaceName,
    /// Only claims of this guard. `None`: claims of all guards.
    pub guard: Option<GuardName>,
    /// Only claims that are in this state at the time of the read. `None`: claims in any state.
    pub state: Option<State>,
    /// The most claims of a page.
    pub limit: usize,
    /// Where the previous page ended. `None`: the first page.
    pub after: Option<Cursor>,
}

impl Query {
    /// The number of examined claims after which a page may end early, if few of them fit. It bounds the caller's wait.
    pub const LOOKED_MAX: usize = 50_000;

    /// Whether few of many claims may fit. Unknown claims are never sparse, because a store finds them directly.
    pub fn is_sparse(&self) -> bool {
        self.state != Some(State::Unknown) && (self.guard.is_some() || self.state.is_some())
    }
}

/// Where a page ended: the token and the id of its last claim. Tokens order the claims, and
/// the id breaks a tie between equal tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The token of the page's last claim.
    pub token: Token,
    /// The id of the page's last claim.
    pub id: oncegate_core::ClaimId,
}

impl Cursor {
    /// The cursor after all claims with this token.
    pub fn past(token: Token) -> Cursor {
        Cursor { token, id: oncegate_core::ClaimId::from_bytes([0; 32]) }
    }

    /// The newest token that the next page has to examine.
    pub fn left(self) -> Token {
        if self == Cursor::past(self.token) { Token(self.token.0 - 1) } else { self.token }
    }
}

/// A page of claims.
#[derive(Clone, Debug)]
pub struct Page {
    /// Claims without their outcomes, which may be large.
    pub claims: Vec<Claim>,
    /// Set if there may be more claims, even if this page has fewer than the limit, or none.
    pub next: Option<Cursor>,
    /// The store's time of the read, which decides the state of each claim.
    pub now: Time,
}

/// Duplicates of a claim, to be added to its record.
#[derive(Clone, Debug)]
pub struct DuplicateCount {
    /// The key of the claim that the duplicates met.
    pub key: ClaimKey,
    /// The token of the owner that the duplicates met. A later owner's record is not counted up.
    pub token: Token,
    /// The number of duplicates to add.
    pub count: i64,
    /// When the last of the duplicates met the claim.
    pub last_at: Time,
}

impl DuplicateCount {
    /// Adds the duplicates to the claim, unless it has another owner by now.
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
    /// The workspace that owns the claims and records.
    pub workspace: WorkspaceName,
    /// Claims and records.
    pub claims: u64,
    /// Bytes of outcomes, attributes, parts and bodies, without the store's own overhead.
    pub bytes: u64,
}

/// A cursor: where to continue measuring. The default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageFrom {
    /// Claims are measured first, then records.
    pub in_records: bool,
    /// Its meaning is private to the store.
    pub position: i64,
}

impl UsageFrom {
    /// Where the measuring of records begins, after all claims.
    pub const RECORDS: UsageFrom = UsageFrom { in_records: true, position: 0 };
}

/// What workspaces have stored in a part of the store.
#[derive(Clone, Debug, Default)]
pub struct UsagePart {
    /// What each workspace has stored in this part. The caller adds up all parts.
    pub usage: Vec<Usage>,
    /// `None`: this was the last part.
    pub next: Option<UsageFrom>,
}

/// What a sweep has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// The number of removed claims.
    pub claims: usize,
    /// The number of removed records.
    pub records: usize,
}

/// A step of a store's schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The number of the step. The first step is number 1.
    pub version: i64,
    /// A short name of the step, for people.
    pub name: &'static str,
    /// The SQL statements of the step.
    pub sql: &'static str,
    /// Whether the store has this step already.
    pub applied: bool,
    /// The oldest build that still runs on a schema with this step, named by the newest step that it knows. Replicas can be
    /// upgraded one by one only across steps that the old build tolerates.
    pub oldest_build: i64,
}

/// A store's report on itself, for `/readyz`, `oncegate doctor` and the log at start-up.
#[derive(Clone, Debug)]
pub struct Report {
    /// `sqlite`, `postgres`, `memory`.
    pub kind: &'static str,
    /// The store's version and location, without credentials.
    pub detail: String,
    /// The newest schema step that the store has; 0 if the store has no schema.
    pub schema_version: i64,
    /// The store's time of the report.
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
    /// It is not known whether the commit was written. A retry under the same key is safe.
    #[error("the store did not say whether it wrote: {0}")]
    Unknown(String),
    /// This operation cannot be done, now or later.
    #[error("the store refused: {0}")]
    Refused(String),
    /// What the store has cannot be read: a defect, or a file that was changed by hand.
    #[error("{0}")]
    Unreadable(String),
}

/// Bounds of the time after which a postponed job is tried again without a wake-up.
const POSTPONED_MIN: Duration = Duration::from_secs(1);
const POSTPONED_MAX: Duration = Duration::from_secs(30);

/// Which jobs a worker wants to lease.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Without duplicates.
    kinds: Vec<String>,
    /// How long a worker may go without a renewal before it counts as lost.
    pub lease: Duration,
    /// The workspaces to lease from, and the number of jobs.
    pub whose: Whose,
}

/// The workspaces that a worker leases jobs from, and how many jobs it wants.
#[derive(Clone, Debug)]
pub enum Whose {
    /// Jobs of one workspace, at most `max`.
    One {
        /// The workspace to lease from.
        workspace: WorkspaceName,
        /// The most jobs to lease.
        max: usize,
    },
    /// Jobs of all workspaces, shared as [`share`](oncegate_core::job::share) says. `free` slots are left beside the `taken` ones,
    /// and at most `max` of them are filled at once.
    All {
        /// The worker's free slots.
        free: usize,
        /// The most jobs to lease at once.
        max: usize,
        /// The slots that each workspace has already.
        taken: BTreeMap<WorkspaceName, usize>,
    },
}

impl Wanted {
    /// Asks for jobs of these kinds. A kind that is listed twice counts once.
    pub fn new<K: Into<String>>(kinds: impl IntoIterator<Item = K>, lease: Duration, whose: Whose) -> Wanted {
        let mut kinds: Vec<String> = kinds.into_iter().map(Into::into).collect();
        kinds.sort_unstable();
        kinds.dedup();
        Wanted { kinds, lease, whose }
    }

    /// How long a job waits while its group is taken, unless it is woken earlier.
    pub fn postpones_for(&self) -> Duration {
        self.lease.clamp(POSTPONED_MIN, POSTPONED_MAX)
    }

    /// The kinds of jobs that are wanted, sorted and without duplicates.
    pub fn kinds(&self) -> &[String] {
        &self.kinds
    }

    /// Whether jobs of this workspace are wanted at all.
    pub fn is_from(&self, workspace: &WorkspaceName) -> bool {
        match &self.whose {
            Whose::One { workspace: one, .. } => one == workspace,
            Whose::All { .. } => true,
        }
    }

    /// How many jobs to lease from each workspace with due jobs. A workspace that is listed more than once counts from its
    /// earliest `since`.
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

/// Which jobs of the queue to list, newest first, or to count.
#[derive(Clone, Debug)]
pub struct JobListing {
    /// The workspace that owns the jobs.
    pub workspace: WorkspaceName,
    /// One kind, or all kinds with a prefix.
    pub kind: KindFilter,
    /// A prefix of the job's group (`lane`).
    pub lane_prefix: Option<String>,
    /// Only jobs in this state. `None`: jobs in any state.
    pub state: Option<JobFilter>,
    /// The most jobs to return, or to count.
    pub limit: usize,
    /// Lists only jobs older than this one.
    pub before: Option<Uuid>,
}

/// Which kinds of jobs to list or count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KindFilter {
    /// Only jobs of this kind.
    Is(String),
    /// Only jobs whose kind begins with this prefix.
    BeginsWith(&'static str),
}

impl KindFilter {
    /// Whether jobs of this kind pass the filter.
    pub fn fits(&self, kind: &str) -> bool {
        match self {
            KindFilter::Is(is) => kind == is,
            KindFilter::BeginsWith(prefix) => kind.starts_with(prefix),
        }
    }
}

/// The state of a job in the queue, as people see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobFilter {
    /// Pending, and no try has begun.
    Untouched,
    /// A worker has leased the job. That worker may be lost since.
    Running,
    /// A try has failed, and the job waits for its retry.
    Failed,
}

impl JobFilter {
    /// The state of this job.
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
    /// The jobs, as the leases have changed them.
    pub jobs: Vec<Job>,
    /// How many due jobs must wait for their groups. More due jobs may be behind them.
    pub postponed: usize,
    /// When a worker must look again: when the next job is due, or when a lease ends. The time may be past already, if more
    /// jobs were due than were wanted.
    pub next_at: Option<Time>,
}

/// Stores claims, which is enough for a guard. A store for the whole system is a [`MainStore`].
///
/// Implementations promise:
/// - [`commit`](Store::commit) answers only after its writes are durable.
/// - A record is written with a compare-and-set on the version that it was decided from, which decides every race.
/// - A decision uses the store's own time, read where the record is read.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Decides and writes. A store that keeps only claims refuses a commit with changes.
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError>;

    /// Returns once everything readable now is as durable as an acknowledged commit. After a commit whose answer is unknown,
    /// a read may find its writes earlier: on PostgreSQL, while a standby does not have them yet. It makes a meaningless write,
    /// so it also proves that commits succeed.
    async fn confirm(&self) -> Result<(), StoreError>;

    /// Decides and writes many commits, each independent of the others. Their keys are distinct.
    async fn commit_all(&self, commits: Vec<Commit>) -> Vec<Result<Committed, StoreError>> {
        join_all(commits.into_iter().map(|commit| self.commit(commit))).await
    }

    /// The record under a key, unless its window has ended.
    async fn read(&self, key: &ClaimKey) -> Result<Reading<Option<Claim>>, StoreError>;

    /// A page of claims, newest first.
    async fn scan(&self, query: Query) -> Result<Page, StoreError>;

    /// Removes up to `limit` claims whose window has ended, and up to `limit` records that are past their end, with all of
    /// their names and lists. Returns the number of each. A row with a write in progress may be left for the next sweep.
    async fn sweep(&self, limit: usize) -> Result<Swept, StoreError>;

    /// Adds to the duplicate counters of claims that still have the same owner.
    async fn count_duplicates(&self, counts: Vec<DuplicateCount>) -> Result<(), StoreError>;

    /// Tells the store that a caller waits for this claim, so that the settle is announced to the caller.
    /// A store that sees every settle anyway has nothing to do.
    async fn expect_wake(&self, _key: &ClaimKey) -> Result<(), StoreError> {
        Ok(())
    }

    /// Gives the store the waiters. After a commit the store wakes the waiters of each claim that was settled, given back or
    /// forgotten. The store wakes them, not the owner that settled, because that owner may be gone before its answer arrives.
    /// Workers that wait for jobs hear of each job that is enqueued, or moved within the queue.
    fn attach(&self, waiters: Arc<Waiters>);

    /// The store's report on itself. An error means that the store is not ready for work.
    async fn report(&self) -> Result<Report, StoreError>;

    /// Measures what workspaces have stored, in one part that takes a short time. All parts together are the total, as exactly as
    /// concurrent writes allow. A store that cannot measure reports nothing.
    async fn usage(&self, _from: UsageFrom) -> Result<UsagePart, StoreError> {
        Ok(UsagePart::default())
    }

    /// Finishes the operations in progress, then releases files and connections.
    async fn close(&self);
}

/// Stores the whole system: claims, API keys, records and the queue.
#[async_trait]
pub trait MainStore: Store + Keyring {
    /// The records at these places, one entry for each place, as last committed.
    async fn find(&self, places: &[Place]) -> Result<Reading<Vec<Option<Record>>>, StoreError>;

    /// A page of records, newest first.
    async fn list(&self, listing: Listing) -> Result<Listed, StoreError>;

    /// How many records a listing finds. The count stops at the listing's limit.
    async fn count(&self, listing: Listing) -> Result<usize, StoreError>;

    /// The queued jobs with these ids, one entry for each id, as last committed.
    async fn find_jobs(&self, ids: &[(WorkspaceName, Uuid)]) -> Result<Reading<Vec<Option<Job>>>, StoreError>;

    /// The store's time.
    async fn now(&self) -> Result<Time, StoreError> {
        Ok(self.find_jobs(&[]).await?.now)
    }

    /// The jobs that a listing finds, newest first.
    async fn list_jobs(&self, listing: JobListing) -> Result<Vec<Job>, StoreError>;

    /// How many jobs a listing finds. The count stops at the listing's limit.
    async fn count_jobs(&self, listing: JobListing) -> Result<usize, StoreError>;

    /// Leases jobs of these kinds that are due or whose worker is lost; within each workspace, the longest overdue first.
    /// No two workers get the same job, nor two jobs of one group. A job whose group is taken is postponed for
    /// [`Wanted::postpones_for`], and woken when the job before it leaves the queue.
    async fn lease_jobs(&self, wanted: &Wanted) -> Result<Reading<Leased>, StoreError>;
}

impl Commit {
    /// The units that the commit takes of a bounded queue: one for each operation and change, and one for every 4 KiB of payload.
    pub fn weight(&self) -> usize {
        let ops = self.ops.iter().map(|op| 1 + outcome(&op.command).map_or(0, Bytes::len) / 4096);
        let changes = self.changes.iter().map(|change| 1 + change.bytes() / 4096);
        ops.sum::<usize>() + changes.sum::<usize>()
    }

    /// Refuses a commit that no store accepts, before a store sees it. Otherwise it would also fail the commits grouped with it.
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

/// The outcome that a command writes.
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
