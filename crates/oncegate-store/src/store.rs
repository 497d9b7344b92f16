//! The seam.

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::join_all;
use oncegate_core::{Answer, Claim, ClaimKey, Command, GuardName, State, Time, Token, WorkspaceName};

use crate::{Keyring, Waiters};

/// One command on one claim.
#[derive(Clone, Debug)]
pub struct Op {
    pub key: ClaimKey,
    pub command: Command,
}

/// What is written together: all of it, if every command is accepted, else none.
/// The keys of its operations are distinct.
#[derive(Clone, Debug)]
pub struct Commit {
    pub ops: Vec<Op>,
}

impl From<Op> for Commit {
    fn from(op: Op) -> Self {
        Commit { ops: vec![op] }
    }
}

/// What became of a [`Commit`].
#[derive(Clone, Debug)]
pub struct Committed {
    /// One for each operation, in order. Where one is not accepted nothing was written, and the
    /// accepted ones say only what would have been.
    pub answers: Vec<Answer>,
    /// The store's time, at which it was decided.
    pub now: Time,
}

impl Committed {
    pub fn is_written(&self) -> bool {
        self.answers.iter().all(Answer::is_accepted)
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

/// Where a page ended: the token of its last claim. Tokens are unique enough to order by, and
/// those that are equal are told apart by their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub token: Token,
    pub id: oncegate_core::ClaimId,
}

#[derive(Clone, Debug)]
pub struct Page {
    /// Without their outcomes, which may be large.
    pub claims: Vec<Claim>,
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

/// A step of a store's schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    pub version: i64,
    pub name: &'static str,
    pub sql: &'static str,
    pub applied: bool,
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

/// Where claims are kept.
///
/// Implementations promise: [`commit`](Store::commit) answers only after its writes are durable;
/// a record is written only onto the version that it was decided from, which decides every race; the time that a
/// decision is made from is the store's own, read where the record is read.
#[async_trait]
pub trait Store: Keyring + Send + Sync + 'static {
    /// Decides and writes.
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError>;

    /// Decides and writes many, each by itself: what becomes of one has nothing to do with the others.
    /// Their keys are distinct.
    async fn commit_all(&self, commits: Vec<Commit>) -> Vec<Result<Committed, StoreError>> {
        join_all(commits.into_iter().map(|commit| self.commit(commit))).await
    }

    /// The record under a key, unless its window has ended.
    async fn read(&self, key: &ClaimKey) -> Result<Reading<Option<Claim>>, StoreError>;

    async fn scan(&self, query: Query) -> Result<Page, StoreError>;

    /// Removes up to `limit` records whose window has ended, and says how many it removed.
    async fn sweep(&self, limit: usize) -> Result<usize, StoreError>;

    /// Adds to the counters of claims that are still the same owner's.
    async fn count_duplicates(&self, counts: Vec<DuplicateCount>) -> Result<(), StoreError>;

    /// Says that somebody waits for this claim, so that its settling is announced to them.
    /// A store that knows of every settle anyway has nothing to do.
    async fn expect_wake(&self, _key: &ClaimKey) -> Result<(), StoreError> {
        Ok(())
    }

    /// Hands over those to wake, after the commit, whenever a claim is settled, given back or forgotten. It is the
    /// store that wakes them and not whoever settled: that one may be gone before its answer is.
    fn attach(&self, waiters: Arc<Waiters>);

    async fn report(&self) -> Result<Report, StoreError>;

    /// Finishes what is under way and lets go of files and connections.
    async fn close(&self);
}

impl Commit {
    /// What it takes of a bounded queue: one for each operation, and one for every 4 KiB of outcome.
    pub fn weight(&self) -> usize {
        let outcome = |command: &Command| match command {
            Command::Settle { outcome, .. } | Command::Resolve { outcome, .. } => {
                outcome.as_ref().map_or(0, |o| o.len())
            }
            _ => 0,
        };
        self.ops.iter().map(|op| 1 + outcome(&op.command) / 4096).sum()
    }

    /// Refuses what no store keeps, before it reaches one: it would fail for all that share its commit.
    pub fn check(&self) -> Result<(), StoreError> {
        use oncegate_core::limits::OUTCOME_BYTES_MAX;
        if self.ops.iter().enumerate().any(|(i, op)| self.ops[..i].iter().any(|before| before.key == op.key)) {
            return Err(StoreError::Refused("two operations of one commit have the same key".into()));
        }
        for op in &self.ops {
            if let Command::Settle { outcome: Some(outcome), .. } | Command::Resolve { outcome: Some(outcome), .. } =
                &op.command
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
