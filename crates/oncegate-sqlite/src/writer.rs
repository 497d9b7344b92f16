//! The writer: one thread, one transaction for all that waits.
//!
//! Which statement decides a race: the record is read, decided on and written within one immediate
//! transaction, which no other writer, of this process or another, can enter. Answers go out after
//! the commit.

use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use oncegate_core::Moment;
use oncegate_store::{Clock, Commit, Committed, DuplicateCount, StoreError, Swept, Waiters};
use rusqlite::hooks::Wal;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::checkpoint::Checkpoints;
use crate::claims::Claims;
use crate::group::{Done, Group, answer};
use crate::index::Index;
use crate::recent::Recent;
use crate::store_error;
use crate::wal_index::WalIndex;

/// What may wait for the writer, by weight (see [`Commit::weight`]): so many operations, or 256 MiB of outcomes.
/// More is refused, so that memory stays bounded.
const QUEUE_WEIGHT_MAX: usize = 65_536;
/// What goes into one transaction.
const GROUP_WEIGHT_MAX: usize = 1_024;
/// How long another process may hold the file.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Between attempts to open a file that cannot be opened.
const REOPEN_AFTER: Duration = Duration::from_millis(200);

pub enum Job {
    /// The hot path: no boxing.
    Commit(Commit, oneshot::Sender<Result<Committed, StoreError>>, OwnedSemaphorePermit),
    /// Many at once, with one hand-over for all of them.
    All(Vec<Commit>, oneshot::Sender<Vec<Result<Committed, StoreError>>>, OwnedSemaphorePermit),
    Sweep(usize, oneshot::Sender<Result<Swept, StoreError>>, OwnedSemaphorePermit),
    Count(Vec<DuplicateCount>, oneshot::Sender<Result<(), StoreError>>, OwnedSemaphorePermit),
    Other(Box<dyn Work>, OwnedSemaphorePermit),
    Stop(oneshot::Sender<()>),
}

impl Job {
    pub fn weight(&self) -> usize {
        match self {
            Job::Commit(.., place)
            | Job::All(.., place)
            | Job::Sweep(.., place)
            | Job::Count(.., place)
            | Job::Other(_, place) => place.num_permits(),
            Job::Stop(_) => 0,
        }
    }
}

/// Anything else that writes, but for claims and records: run within the group, perhaps more than once, and answered after its commit.
pub trait Work: Send {
    fn run(&mut self, connection: &Connection, moment: Moment) -> rusqlite::Result<()>;
    fn answer(self: Box<Self>, result: Result<(), StoreError>);
}

struct Task<T, F> {
    work: F,
    value: Option<T>,
    answer: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Work for Task<T, F>
where
    T: Send,
    F: FnMut(&Connection, Moment) -> rusqlite::Result<T> + Send,
{
    fn run(&mut self, connection: &Connection, moment: Moment) -> rusqlite::Result<()> {
        self.value = Some((self.work)(connection, moment)?);
        Ok(())
    }

    fn answer(self: Box<Self>, result: Result<(), StoreError>) {
        let value = self.value;
        // A caller that has gone away needs no answer; its write stands.
        let _ = self.answer.send(result.map(|()| value.expect("it ran")));
    }
}

/// A handle on the writer's thread.
pub struct Writer {
    jobs: mpsc::UnboundedSender<Job>,
    places: Arc<Semaphore>,
    pub waiters: Arc<OnceLock<Arc<Waiters>>>,
}

impl Writer {
    pub fn start(
        path: PathBuf,
        clock: Arc<dyn Clock>,
        index: Arc<Index>,
        recent: Arc<Recent>,
    ) -> Result<Self, StoreError> {
        let (jobs, queue) = mpsc::unbounded_channel();
        let waiters: Arc<OnceLock<Arc<Waiters>>> = Arc::default();
        let thread = WriterThread { path, clock, index, recent, queue, waiters: waiters.clone(), askers: vec![] };
        std::thread::Builder::new()
            .name("oncegate-writer".into())
            .spawn(move || thread.run())
            .map_err(|error| StoreError::Unavailable(format!("cannot start the writer: {error}")))?;
        Ok(Writer { jobs, places: Arc::new(Semaphore::new(QUEUE_WEIGHT_MAX)), waiters })
    }

    /// Submitted, or refused, when this returns, so that whoever waits for the answer carries nothing else.
    pub fn commit(&self, commit: Commit) -> impl Future<Output = Result<Committed, StoreError>> + use<> {
        let submitted = self.place(commit.weight()).and_then(|place| {
            let (answer, answered) = oneshot::channel();
            self.submit(Job::Commit(commit, answer, place))?;
            Ok(answered)
        });
        async { submitted?.await.map_err(|_| unanswered())? }
    }

    pub async fn commit_all(&self, commits: Vec<Commit>) -> Vec<Result<Committed, StoreError>> {
        let count = commits.len();
        let (answer, answered) = oneshot::channel();
        let submitted = self
            .place(commits.iter().map(Commit::weight).sum())
            .and_then(|place| self.submit(Job::All(commits, answer, place)));
        let all_failed = |error: StoreError| vec![Err(error); count];
        match submitted {
            Ok(()) => answered.await.unwrap_or_else(|_| all_failed(unanswered())),
            Err(error) => all_failed(error),
        }
    }

    pub async fn sweep(&self, limit: usize) -> Result<Swept, StoreError> {
        self.ask(|answer, place| Job::Sweep(limit, answer, place)).await
    }

    pub async fn count_duplicates(&self, counts: Vec<DuplicateCount>) -> Result<(), StoreError> {
        self.ask(|answer, place| Job::Count(counts, answer, place)).await
    }

    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnMut(&Connection, Moment) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.ask(|answer, place| Job::Other(Box::new(Task { work, value: None, answer }), place)).await
    }

    async fn ask<T>(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<T, StoreError>>, OwnedSemaphorePermit) -> Job,
    ) -> Result<T, StoreError> {
        let place = self.place(1)?;
        let (answer, answered) = oneshot::channel();
        self.submit(job(answer, place))?;
        answered.await.map_err(|_| unanswered())?
    }

    /// Returns when all that was submitted before is done and the file is let go.
    pub async fn stop(&self) {
        let (answer, answered) = oneshot::channel();
        if self.submit(Job::Stop(answer)).is_ok() {
            // An error says that the thread has ended, which is what was asked for.
            let _ = answered.await;
        }
    }

    fn place(&self, weight: usize) -> Result<OwnedSemaphorePermit, StoreError> {
        let weight = u32::try_from(weight.max(1)).unwrap_or(u32::MAX);
        if weight as usize > QUEUE_WEIGHT_MAX {
            return Err(StoreError::Refused("this is more than one commit may bring".into()));
        }
        let refused = |_| StoreError::Unavailable("too much is waiting for the writer already".into());
        self.places.clone().try_acquire_many_owned(weight).map_err(refused)
    }

    fn submit(&self, job: Job) -> Result<(), StoreError> {
        self.jobs.send(job).map_err(|_| closed())
    }
}

/// It was taken, and the writer ended before it said what became of it.
fn unanswered() -> StoreError {
    StoreError::Unknown("the writer ended before it answered".into())
}

fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".into())
}

/// A connection that writes durably. The file must be there: one that was removed is not made anew, empty.
pub fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    // NORMAL would lose acknowledged work at a power cut.
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "cache_size", -64 * 1024)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

struct WriterThread {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    index: Arc<Index>,
    recent: Arc<Recent>,
    queue: mpsc::UnboundedReceiver<Job>,
    waiters: Arc<OnceLock<Arc<Waiters>>>,
    /// Those who have asked it to stop.
    askers: Vec<oneshot::Sender<()>>,
}

enum Next {
    Stop,
    /// The connection is not to be trusted any more.
    Reopen,
}

impl WriterThread {
    /// Until told to stop, or until nobody is left to tell it anything.
    fn run(mut self) {
        loop {
            let next = self.write_until_stopped().unwrap_or_else(|error| {
                tracing::error!(event = "sqlite.open_failed", %error);
                self.refuse_waiting(&store_error(error))
            });
            match next {
                Next::Stop => {
                    // Whoever asked may have stopped waiting.
                    self.askers.into_iter().for_each(|asker| _ = asker.send(()));
                    return;
                }
                Next::Reopen => {
                    tracing::warn!(event = "sqlite.reopen");
                    std::thread::sleep(REOPEN_AFTER);
                }
            }
        }
    }

    fn write_until_stopped(&mut self) -> rusqlite::Result<Next> {
        let mut connection = connect(&self.path)?;
        // Savepoints keep what they may have to undo; a temporary file for it would cost as much as the log itself.
        connection.pragma_update(None, "temp_store", "memory")?;
        let (checkpoints, copier, copy) = Checkpoints::start(&self.path)?;
        let next = self.write_over(&mut connection, &checkpoints, copy);
        // The copier ends when it is no longer told anything.
        connection.wal_hook(None::<fn(&mut Wal, i32) -> rusqlite::Result<()>>)?;
        // The last to close copies the log into the file, which is to be done when this returns. Of two that close at once
        // neither would be the last.
        self.recent.close();
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
        self.recent.open(WalIndex::open(&self.path)?);
        connection.wal_hook(Some({
            let (checkpoints, recent) = (checkpoints.clone(), self.recent.clone());
            move |_: &mut Wal, frames: i32| {
                recent.logged(frames.unsigned_abs());
                checkpoints.logged(frames.into(), &copy);
                Ok(())
            }
        }))?;
        let (index, recent) = (self.index.clone(), self.recent.clone());
        let mut claims = Claims::open(connection, &index, &recent)?;
        Ok(self.write_groups(&mut claims, checkpoints))
    }

    fn write_groups(&mut self, claims: &mut Claims<'_>, checkpoints: &Checkpoints) -> Next {
        loop {
            let Some(first) = self.queue.blocking_recv() else { return Next::Stop };
            let mut group = Group::default();
            let mut next = Some(first);
            while let Some(job) = next {
                match job {
                    Job::Stop(asker) => {
                        self.queue.close();
                        self.askers.push(asker);
                    }
                    job => group.push(job),
                }
                next = if group.weight < GROUP_WEIGHT_MAX { self.queue.try_recv().ok() } else { None };
            }
            let written = group.run(claims, &*self.clock, self.waiters.get());
            if written.is_err_and(|failed| failed.is_io()) {
                return Next::Reopen;
            }
            checkpoints.finish_if_due(claims.connection);
        }
    }

    /// The file cannot be opened: says so to all who wait.
    fn refuse_waiting(&mut self, error: &StoreError) -> Next {
        loop {
            match self.queue.try_recv() {
                Ok(Job::Stop(asker)) => {
                    self.askers.push(asker);
                    return Next::Stop;
                }
                Ok(job) => answer(job, Done::Failed(error.clone()), &self.index, None),
                Err(mpsc::error::TryRecvError::Empty) => return Next::Reopen,
                Err(mpsc::error::TryRecvError::Disconnected) => return Next::Stop,
            }
        }
    }
}
