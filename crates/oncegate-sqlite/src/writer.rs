//! The writer: one thread that writes all waiting jobs in one transaction.
//!
//! The writer reads, decides and writes a record within one immediate transaction. No other writer, of this
//! process or another, can write during it, so the transaction decides every race. Answers are sent after
//! the commit.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use oncegate_core::Moment;
use oncegate_store::{Commit, Committed, DuplicateCount, StoreError, Swept, Waiters};
use rusqlite::Connection;
use rusqlite::hooks::Wal;
use tokio::sync::oneshot;

use crate::cache::Cache;
use crate::checkpoint::Checkpoints;
use crate::claims::Claims;
use crate::commit_queue::CommitQueue;
use crate::file::WatchedFile;
use crate::group::{Done, Group, answer, is_damaged};
use crate::index::Index;
use crate::job::{Job, Task};
use crate::ledger_clock::LedgerClock;
use crate::open::{connect_with, start_log_over};
use crate::trouble::Trouble;
use crate::wal_index::WalIndex;
use crate::{cause, store_error};

/// The largest weight of one transaction (see [`Commit::weight`]).
const GROUP_WEIGHT_MAX: usize = 1_024;
/// If groups usually have at least this many jobs, a smaller group waits a moment for more. A commit costs nearly the same for
/// one job as for a hundred, and otherwise the first job would be committed alone. With fewer callers, all of their jobs may
/// have arrived already.
const USUAL_MIN: usize = 12;
const LINGER: Duration = Duration::from_micros(400);
/// The pause between attempts to open a file that cannot be opened.
const REOPEN_AFTER: Duration = Duration::from_millis(200);

/// A handle on the writer's thread. The thread ends when the handle is dropped.
pub struct Writer {
    commit_queue: Arc<CommitQueue<Job>>,
    pub waiters: Arc<OnceLock<Arc<Waiters>>>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.commit_queue.close();
    }
}

impl Writer {
    pub fn start(shared: Shared) -> Result<Self, StoreError> {
        let commit_queue: Arc<CommitQueue<Job>> = Arc::default();
        let waiters: Arc<OnceLock<Arc<Waiters>>> = Arc::default();
        let thread = WriterThread {
            shared,
            commit_queue: commit_queue.clone(),
            taken: VecDeque::new(),
            waiters: waiters.clone(),
            askers: vec![],
            trouble: Trouble::default(),
            distrusts_log: false,
        };
        std::thread::Builder::new()
            .name("oncegate-writer".into())
            .spawn(move || thread.run())
            .map_err(|error| StoreError::Unavailable(format!("cannot start the writer: {error}")))?;
        Ok(Writer { commit_queue, waiters })
    }

    /// Submits the commit, or fails to, before it returns the future. The future therefore holds only the wait for the answer.
    pub fn commit(&self, commit: Commit) -> impl Future<Output = Result<Committed, StoreError>> + use<> {
        let (answer, answered) = oneshot::channel();
        let submitted = self.commit_queue.put(commit.weight().max(1), Job::Commit(commit, answer));
        async {
            submitted?;
            answered.await.map_err(|_| unanswered())?
        }
    }

    pub async fn commit_all(&self, commits: Vec<Commit>) -> Vec<Result<Committed, StoreError>> {
        let (count, weight) = (commits.len(), commits.iter().map(Commit::weight).sum::<usize>());
        let (answer, answered) = oneshot::channel();
        let all_failed = |error: StoreError| vec![Err(error); count];
        match self.commit_queue.put(weight.max(1), Job::All(commits, answer)) {
            Ok(()) => answered.await.unwrap_or_else(|_| all_failed(unanswered())),
            Err(error) => all_failed(error),
        }
    }

    pub async fn sweep(&self, limit: usize) -> Result<Swept, StoreError> {
        self.ask(|answer| Job::Sweep(limit, answer)).await
    }

    pub async fn count_duplicates(&self, counts: Vec<DuplicateCount>) -> Result<(), StoreError> {
        self.ask(|answer| Job::Count(counts, answer)).await
    }

    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnMut(&Connection, Moment) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.ask(|answer| Job::Other(Box::new(Task { work, value: None, answer }))).await
    }

    async fn ask<T>(&self, job: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Job) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.commit_queue.put(1, job(answer))?;
        answered.await.map_err(|_| unanswered())?
    }

    /// Returns when all jobs submitted before are done and the file is closed.
    pub async fn stop(&self) {
        let (answer, answered) = oneshot::channel();
        if self.commit_queue.put(0, Job::Stop(answer)).is_ok() {
            // An error means that the thread has ended, which is the goal.
            let _ = answered.await;
        }
    }
}

/// The error for a job whose writer ended before it answered.
fn unanswered() -> StoreError {
    StoreError::Unknown("the writer ended before it answered".into())
}

/// What the writer shares with the rest of the store.
pub struct Shared {
    pub path: PathBuf,
    pub syncs: bool,
    pub file: Arc<WatchedFile>,
    pub clock: Arc<LedgerClock>,
    pub index: Arc<Index>,
    pub cache: Arc<Cache>,
}

struct WriterThread {
    shared: Shared,
    commit_queue: Arc<CommitQueue<Job>>,
    /// Jobs taken out of the commit queue, but not written yet.
    taken: VecDeque<(usize, Job)>,
    waiters: Arc<OnceLock<Arc<Waiters>>>,
    /// The callers that have asked the writer to stop.
    askers: Vec<oneshot::Sender<()>>,
    trouble: Trouble,
    /// An fsync may have failed since the log was started.
    distrusts_log: bool,
}

/// A moving average of the jobs per group, times eight.
#[derive(Default)]
struct Usual(usize);

impl Usual {
    fn add(&mut self, jobs: usize) {
        self.0 = self.0 - self.0 / 8 + jobs;
    }

    /// How many jobs a group should wait for, if the jobs at hand would make a small group with room for more. Nine tenths of
    /// the usual number are enough, so that the average falls when fewer jobs come.
    fn awaited<T>(&self, at_hand: &VecDeque<(usize, T)>) -> Option<usize> {
        let enough = self.0 / 8 * 9 / 10;
        let has_room = || at_hand.iter().map(|(weight, _)| weight).sum::<usize>() < GROUP_WEIGHT_MAX;
        (self.0 >= USUAL_MIN * 8 && at_hand.len() < enough && has_room()).then_some(enough)
    }
}

enum Next {
    Stop,
    /// The connection can no longer be trusted.
    Reopen,
}

impl WriterThread {
    /// Runs until a caller stops the writer, or until all handles are dropped.
    fn run(mut self) {
        loop {
            let ended = self.write_until_stopped();
            // If the file were opened again, its name might lead to another file.
            let is_gone = !matches!(ended, Ok(Next::Stop))
                && (self.shared.file.look().is_err() && self.shared.file.why_gone().is_some());
            let next = match ended {
                _ if is_gone => self.refuse_for_good(),
                Ok(next) => next,
                Err(error) => {
                    let error = cause::explained(error, None, self.shared.file.folder());
                    self.complain("sqlite.open_failed", &error);
                    self.refuse_waiting(&store_error(error))
                }
            };
            match next {
                Next::Stop => {
                    // The caller may no longer wait for the answer.
                    self.askers.drain(..).for_each(|asker| _ = asker.send(()));
                    return;
                }
                Next::Reopen => {
                    std::thread::sleep(REOPEN_AFTER);
                }
            }
        }
    }

    fn write_until_stopped(&mut self) -> rusqlite::Result<Next> {
        self.shared.file.look()?;
        let mut connection = connect_with(&self.shared.path, self.shared.syncs)?;
        self.shared.file.check(&connection)?;
        if self.distrusts_log {
            let begun = start_log_over(&connection);
            begun.map_err(|error| cause::explained(error, Some(&connection), self.shared.file.folder()))?;
            self.distrusts_log = false;
        }
        // Savepoints store the pages that they may have to undo. A temporary file for them would cost as much as the log itself.
        connection.pragma_update(None, "temp_store", "memory")?;
        let (checkpoints, copier, copy) = Checkpoints::start(&self.shared.path, self.shared.syncs)?;
        let next = self.write_over(&mut connection, &checkpoints, copy);
        let next = next.map_err(|error| cause::explained(error, Some(&connection), self.shared.file.folder()));
        self.shared.file.unwatch_log();
        // The copier thread ends when the hook drops its sender.
        connection.wal_hook(None::<fn(&mut Wal, i32) -> rusqlite::Result<()>>)?;
        // The last connection to close copies the log into the file, which must be done when this function returns. The
        // connections close one after the other, because of two that close at once neither would be the last.
        self.shared.cache.close();
        let _ = copier.join();
        drop(connection);
        next
    }

    fn write_over(
        &mut self,
        connection: &mut Connection,
        checkpoints: &Arc<Checkpoints>,
        copy: SyncSender<()>,
    ) -> rusqlite::Result<Next> {
        self.shared.cache.open(WalIndex::open(&self.shared.path)?);
        connection.wal_hook(Some({
            let (checkpoints, cache) = (checkpoints.clone(), self.shared.cache.clone());
            move |_: &mut Wal, frames: i32| {
                cache.logged(frames.unsigned_abs());
                checkpoints.logged(frames.into(), &copy);
                Ok(())
            }
        }))?;
        self.shared.file.watch_log(connection)?;
        let (index, cache, file) = (self.shared.index.clone(), self.shared.cache.clone(), self.shared.file.clone());
        let clock = self.shared.clock.clone();
        let mut claims = Claims::open(connection, &index, &cache, &file, &clock)?;
        Ok(self.write_groups(&mut claims, checkpoints))
    }

    fn write_groups(&mut self, claims: &mut Claims<'_>, checkpoints: &Checkpoints) -> Next {
        let mut usual = Usual::default();
        loop {
            self.commit_queue.take(&mut self.taken);
            if self.taken.is_empty() {
                return Next::Stop;
            }
            if let Some(enough) = usual.awaited(&self.taken) {
                self.commit_queue.linger(enough, LINGER, &mut self.taken);
            }
            let at_hand = self.taken.len();
            let mut group = Group::default();
            let mut weight = 0;
            while weight < GROUP_WEIGHT_MAX
                && let Some((job_weight, job)) = self.taken.pop_front()
            {
                weight += job_weight;
                match job {
                    Job::Stop(asker) => {
                        self.commit_queue.close();
                        self.askers.push(asker);
                    }
                    job => group.push(job),
                }
            }
            usual.add(at_hand - self.taken.len());
            // Before any caller is answered, because that caller may submit its next job at once.
            self.commit_queue.begun(weight);
            let written = group.run(claims, self.waiters.get());
            if let Err(failed) = written {
                self.complain("sqlite.commit_failed", &failed.error);
                self.distrusts_log |= failed.is_io();
                if is_damaged(&failed.error) {
                    let _ = self.shared.file.is_gone(&format!("was damaged ({})", failed.error));
                }
                if failed.is_io() || self.shared.file.why_gone().is_some() {
                    return Next::Reopen;
                }
            } else if claims.has_written
                && let Some(over) = self.trouble.succeeded(Instant::now())
            {
                let seconds = over.lasted.as_secs();
                tracing::info!(event = "sqlite.recovered", errors = over.errors, seconds, "commits succeed again");
            }
            checkpoints.finish_if_due(claims.connection);
        }
    }

    /// Logs an error. That a file is gone was logged already.
    fn complain(&mut self, event: &str, error: &rusqlite::Error) {
        if self.shared.file.why_gone().is_some() {
            return;
        }
        if let Some(errors) = self.trouble.failed(Instant::now()) {
            tracing::error!(event, %error, errors);
        }
    }

    /// The file is gone: fails all jobs with that reason, until a caller stops the writer.
    fn refuse_for_good(&mut self) -> Next {
        let error = StoreError::Unavailable(self.shared.file.why_gone().unwrap_or("the file is gone").into());
        loop {
            match self.refuse_waiting(&error) {
                Next::Stop => return Next::Stop,
                Next::Reopen => self.commit_queue.take(&mut self.taken),
            }
        }
    }

    /// The file cannot be opened: fails all waiting jobs with that error.
    fn refuse_waiting(&mut self, error: &StoreError) -> Next {
        loop {
            while let Some((weight, job)) = self.taken.pop_front() {
                self.commit_queue.begun(weight);
                match job {
                    Job::Stop(asker) => {
                        self.askers.push(asker);
                        return Next::Stop;
                    }
                    job => answer(job, Done::Failed(error.clone()), &self.shared.index, None),
                }
            }
            if !self.commit_queue.try_take(&mut self.taken) {
                return Next::Stop;
            }
            if self.taken.is_empty() {
                return Next::Reopen;
            }
        }
    }
}

impl Drop for WriterThread {
    /// Drops all waiting jobs, however the thread ends, so that no caller waits forever.
    fn drop(&mut self) {
        self.commit_queue.close();
        self.taken.clear();
        self.commit_queue.try_take(&mut self.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_hand(weights: &[usize]) -> VecDeque<(usize, ())> {
        weights.iter().map(|&weight| (weight, ())).collect()
    }

    /// The moving average after these (groups, jobs per group).
    fn usual(of_late: &[(usize, usize)]) -> Usual {
        let mut usual = Usual::default();
        for &(groups, jobs) in of_late {
            (0..groups).for_each(|_| usual.add(jobs));
        }
        usual
    }

    #[test]
    fn a_small_group_waits_where_groups_are_large() {
        assert_eq!(usual(&[(100, 100)]).awaited(&at_hand(&[1])), Some(90));
        assert_eq!(usual(&[(100, 100)]).awaited(&at_hand(&[1; 89])), Some(90));
        assert_eq!(usual(&[(100, 100)]).awaited(&at_hand(&[1; 90])), None, "it is nearly as large as the others");
        assert_eq!(usual(&[(100, 100)]).awaited(&at_hand(&[GROUP_WEIGHT_MAX])), None, "nothing more goes into it");
    }

    #[test]
    fn where_groups_are_small_or_have_become_so_nobody_waits() {
        let one = at_hand(&[1]);
        assert_eq!(Usual::default().awaited(&one), None);
        assert_eq!(usual(&[(100, USUAL_MIN - 1)]).awaited(&one), None);
        assert_eq!(usual(&[(100, 100), (100, USUAL_MIN - 1)]).awaited(&one), None);
        assert_eq!(usual(&[(100, USUAL_MIN)]).awaited(&one), Some(10));
        assert_eq!(
            usual(&[(100, GROUP_WEIGHT_MAX), (40, 1)]).awaited(&one),
            None,
            "so few come alone and wait in vain"
        );
    }
}
