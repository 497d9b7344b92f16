//! A group: the jobs that are written in one transaction, and their answers.
//!
//! Each job is atomic by itself: a failed job does not undo the others. (It may roll the others back for a moment; then they are
//! run again.)

use std::sync::Arc;

use oncegate_core::{Decision, Moment, decide};
use oncegate_store::{Commit, Committed, StoreError, Swept, Waiters};
use rusqlite::{ErrorCode, ffi};

use crate::claims::Claims;
use crate::index::{Entry, Index};
use crate::job::Job;
use crate::{failure, our_error, store_error};

/// The result of a job within its group.
pub enum Done {
    Committed(Committed),
    All(Vec<Result<Committed, StoreError>>),
    /// The swept claims, and the number of swept records.
    Swept(Vec<Entry>, usize),
    Worked,
    Failed(StoreError),
}

#[derive(Default)]
pub struct Group {
    waiting: Vec<Job>,
    done: Vec<Done>,
}

/// Why a whole group failed.
pub struct Failed {
    pub error: rusqlite::Error,
    /// COMMIT failed: the log may have been written, and synced, before that.
    in_commit: bool,
}

impl Failed {
    /// Whether the connection can no longer be trusted.
    pub fn is_io(&self) -> bool {
        self.error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure)
    }

    /// The error for the callers. A COMMIT that found no room or no lock wrote nothing; after any other error the group may be written.
    fn tell(&self) -> StoreError {
        let code = self.error.sqlite_error_code();
        let is_undone =
            matches!(code, Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::ConstraintViolation));
        if self.in_commit && !is_undone { StoreError::Unknown(self.error.to_string()) } else { failure(&self.error) }
    }
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Self {
        Failed { error, in_commit: false }
    }
}

impl Group {
    pub fn push(&mut self, job: Job) {
        self.waiting.push(job);
    }

    /// Runs and commits all jobs, then answers each and wakes the waiters of the claims that it settled.
    pub fn run(mut self, claims: &mut Claims<'_>, waiters: Option<&Arc<Waiters>>) -> Result<(), Failed> {
        let committed = self
            .write(claims)
            .map_err(|Failed { error, in_commit }| Failed { error: claims.explained(error), in_commit });
        if let Err(failed) = &committed {
            claims.roll_back();
            let told = failed.tell();
            self.waiting.into_iter().for_each(|job| answer(job, Done::Failed(told.clone()), claims.index, waiters));
        } else {
            self.waiting.into_iter().zip(self.done).for_each(|(job, done)| answer(job, done, claims.index, waiters));
        }
        committed
    }

    fn write(&mut self, claims: &mut Claims<'_>) -> Result<(), Failed> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        self.run_all(claims)?;
        if claims.is_beyond_repair() {
            claims.roll_back();
            self.run_all(claims)?;
        }
        claims.append()?;
        claims.commit().map_err(|error| Failed { error, in_commit: true })
    }

    /// Begins a transaction and runs each job in it, until all are done or a job fails the whole transaction.
    fn run_all(&mut self, claims: &mut Claims<'_>) -> rusqlite::Result<()> {
        self.done.clear();
        claims.begin(self.waiting.iter().any(|job| !matches!(job, Job::Other(..))))?;
        let mut at = claims.moment()?;
        for job in &mut self.waiting {
            let done = run_alone(job, claims, at);
            if done.as_ref().is_err_and(is_damaged) {
                return done.map(drop);
            }
            // Some errors (a full disk) end the transaction, so they fail all jobs.
            if claims.connection.is_autocommit() {
                return done.and(Err(ended_by_itself()));
            }
            if claims.is_beyond_repair() {
                return Ok(());
            }
            // The sweep may have raised the token floor for the jobs behind it.
            if matches!(job, Job::Sweep(..)) {
                at = claims.moment()?;
            }
            self.done.push(done.unwrap_or_else(|error| Done::Failed(store_error(error))));
        }
        Ok(())
    }
}

/// The file is damaged, so no read from it and no decision based on it can be trusted.
pub fn is_damaged(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

fn ended_by_itself() -> rusqlite::Error {
    our_error(ffi::SQLITE_ABORT, "the transaction ended by itself")
}

/// Runs one job: all of its writes are kept or none, independent of the other jobs.
fn run_alone(job: &mut Job, claims: &mut Claims<'_>, moment: Moment) -> rusqlite::Result<Done> {
    match job {
        Job::Commit(commit, ..) => run_commit(commit, claims, moment).map(Done::Committed),
        Job::All(commits, ..) => {
            let mut all = Vec::with_capacity(commits.len());
            for commit in commits {
                let committed = run_commit(commit, claims, moment);
                // The whole group has failed or is run again, so this result is never answered.
                if claims.connection.is_autocommit() || claims.is_beyond_repair() {
                    return committed.map(Done::Committed);
                }
                all.push(committed.map_err(store_error));
            }
            Ok(Done::All(all))
        }
        Job::Sweep(..) if !claims.may_sweep() => Ok(Done::Swept(vec![], 0)),
        Job::Sweep(limit, ..) => {
            let sweep = |claims: &mut Claims<'_>| {
                let records = claims.sweep_records(moment.now, *limit)?;
                Ok(Done::Swept(claims.sweep(moment.now, *limit)?, records))
            };
            claims.append()?;
            claims.savepoint(sweep)
        }
        Job::Count(counts, ..) => {
            claims.append()?;
            claims.savepoint(|claims| claims.count_duplicates(counts)).map(|()| Done::Worked)
        }
        Job::Other(work) => claims.savepoint(|claims| work.run(claims.connection, moment)).map(|()| Done::Worked),
        Job::Stop(_) => unreachable!("stops are taken out of the group"),
    }
}

fn run_commit(commit: &Commit, claims: &mut Claims<'_>, moment: Moment) -> rusqlite::Result<Committed> {
    // One claim is written by one statement, alone or with other claims, so it is atomic without a savepoint.
    if commit.ops.len() <= 1 && commit.changes.is_empty() {
        return decide_and_write(commit, claims, moment).map_err(Undone::into_error);
    }
    match claims.savepoint(|claims| decide_and_write(commit, claims, moment)) {
        Err(Undone::Conflict(committed)) => Ok(committed),
        result => result.map_err(Undone::into_error),
    }
}

/// Why a commit was undone.
enum Undone {
    Failed(rusqlite::Error),
    Conflict(Committed),
}

impl From<rusqlite::Error> for Undone {
    fn from(error: rusqlite::Error) -> Self {
        Undone::Failed(error)
    }
}

impl Undone {
    fn into_error(self) -> rusqlite::Error {
        match self {
            Undone::Failed(error) => error,
            Undone::Conflict(_) => unreachable!("a commit without changes has no conflict"),
        }
    }
}

fn decide_and_write(commit: &Commit, claims: &mut Claims<'_>, moment: Moment) -> Result<Committed, Undone> {
    let mut answers = Vec::with_capacity(commit.ops.len());
    let mut writes = Vec::new();
    for op in &commit.ops {
        let existing = claims.find(&op.key)?;
        let Decision { write, answer } = decide(&op.key, existing.as_ref().map(|row| &row.claim), &op.command, moment);
        writes.extend(write.map(|next| (existing.map(|row| row.seq), next)));
        answers.push(answer);
    }
    let mut committed = Committed::of_claims(answers, moment.now);
    if committed.is_written() {
        for (place, change) in commit.changes.iter().enumerate() {
            if !claims.apply(change, moment.now)? {
                committed.conflict = Some(place);
                return Err(Undone::Conflict(committed));
            }
        }
        for (seq, next) in writes {
            claims.write(seq, next)?;
        }
    }
    Ok(committed)
}

pub fn answer(job: Job, done: Done, index: &Index, waiters: Option<&Arc<Waiters>>) {
    let wake = |commit: &Commit, committed: &Committed| {
        if let Some(waiters) = waiters
            && committed.is_written()
        {
            waiters.wake_after(commit);
        }
    };
    // A caller that has gone away needs no answer; its write is kept.
    match (job, done) {
        (Job::Commit(commit, caller), Done::Committed(committed)) => {
            wake(&commit, &committed);
            _ = caller.send(Ok(committed));
        }
        (Job::Commit(_, caller), Done::Failed(error)) => _ = caller.send(Err(error)),
        (Job::All(commits, caller), Done::All(all)) => {
            commits.iter().zip(&all).for_each(|(commit, committed)| _ = committed.as_ref().map(|ok| wake(commit, ok)));
            _ = caller.send(all);
        }
        (Job::All(commits, caller), Done::Failed(error)) => _ = caller.send(vec![Err(error); commits.len()]),
        (Job::Sweep(_, caller), Done::Swept(claims, records)) => {
            index.take_out(&claims);
            _ = caller.send(Ok(Swept { claims: claims.len(), records }));
        }
        (Job::Sweep(_, caller), Done::Failed(error)) => _ = caller.send(Err(error)),
        (Job::Count(_, caller), Done::Worked) => _ = caller.send(Ok(())),
        (Job::Count(_, caller), Done::Failed(error)) => _ = caller.send(Err(error)),
        (Job::Other(work), Done::Worked) => work.answer(Ok(())),
        (Job::Other(work), Done::Failed(error)) => work.answer(Err(error)),
        _ => unreachable!("each job is answered in kind"),
    }
}
