//! The writer: one thread, one transaction for all that waits.
//!
//! Which statement decides a race: the record is read, decided on and written within one immediate
//! transaction, which no other writer, of this process or another, can enter. Answers go out after
//! the commit. An operation that fails takes none of its group with it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::{Answer, Decision, Moment, decide};
use oncegate_store::{Clock, Commit, Committed, StoreError};
use rusqlite::{Connection, ErrorCode, Statement};
use tokio::sync::{mpsc, oneshot};

use crate::checkpoint::Checkpoints;
use crate::{failure, moment, rows, store_error};

/// Operations that may wait for the writer; more are refused, so that memory stays bounded.
const QUEUE_MAX: usize = 65_536;
/// Operations in one transaction.
const GROUP_MAX: usize = 1_024;
/// How long another process may hold the file.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Between attempts to open a file that cannot be opened.
const REOPEN_AFTER: Duration = Duration::from_millis(200);

enum Job {
    /// The hot path: no boxing.
    Commit(Commit, oneshot::Sender<Result<Committed, StoreError>>),
    /// Many at once, with one hand-over for all of them.
    All(Vec<Commit>, oneshot::Sender<Vec<Result<Committed, StoreError>>>),
    Other(Box<dyn Work>),
    Stop(oneshot::Sender<()>),
}

/// Anything else that writes: run within the group, answered after its commit.
trait Work: Send {
    fn run(&mut self, connection: &Connection, moment: Moment) -> rusqlite::Result<()>;
    fn answer(self: Box<Self>, result: Result<(), StoreError>);
}

struct Task<T, F> {
    work: Option<F>,
    value: Option<T>,
    answer: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Work for Task<T, F>
where
    T: Send,
    F: FnOnce(&Connection, Moment) -> rusqlite::Result<T> + Send,
{
    fn run(&mut self, connection: &Connection, moment: Moment) -> rusqlite::Result<()> {
        let work = self.work.take().expect("run once");
        self.value = Some(work(connection, moment)?);
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
    jobs: mpsc::Sender<Job>,
}

impl Writer {
    pub fn start(path: PathBuf, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        let (jobs, queue) = mpsc::channel(QUEUE_MAX);
        std::thread::Builder::new()
            .name("oncegate-writer".into())
            .spawn(move || WriterThread { path, clock, queue }.run())
            .map_err(|error| StoreError::Unavailable(format!("cannot start the writer: {error}")))?;
        Ok(Writer { jobs })
    }

    pub async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.submit(Job::Commit(commit, answer))?;
        answered.await.map_err(|_| closed())?
    }

    pub async fn commit_all(&self, commits: Vec<Commit>) -> Vec<Result<Committed, StoreError>> {
        let count = commits.len();
        let (answer, answered) = oneshot::channel();
        let all_failed = |error: StoreError| vec![Err(error); count];
        match self.submit(Job::All(commits, answer)) {
            Ok(()) => answered.await.unwrap_or_else(|_| all_failed(closed())),
            Err(error) => all_failed(error),
        }
    }

    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection, Moment) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.submit(Job::Other(Box::new(Task { work: Some(work), value: None, answer })))?;
        answered.await.map_err(|_| closed())?
    }

    /// Returns when all that was submitted before is done and the file is let go.
    pub async fn stop(&self) {
        let (answer, answered) = oneshot::channel();
        if self.jobs.send(Job::Stop(answer)).await.is_ok() {
            let _ = answered.await;
        }
    }

    fn submit(&self, job: Job) -> Result<(), StoreError> {
        self.jobs.try_send(job).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                StoreError::Unavailable(format!("{QUEUE_MAX} operations are waiting already"))
            }
            mpsc::error::TrySendError::Closed(_) => closed(),
        })
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".into())
}

/// A connection that writes durably.
pub fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    // NORMAL would lose acknowledged work at a power cut.
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "cache_size", -64 * 1024)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

struct WriterThread {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    queue: mpsc::Receiver<Job>,
}

enum Next {
    Stop(Vec<oneshot::Sender<()>>),
    /// The connection is not to be trusted any more.
    Reopen,
}

impl WriterThread {
    /// Until told to stop, or until nobody is left to tell it anything.
    fn run(mut self) {
        loop {
            match self.write_until_stopped() {
                Ok(Next::Stop(askers)) => {
                    // Whoever asked may have stopped waiting.
                    askers.into_iter().for_each(|asker| _ = asker.send(()));
                    return;
                }
                Ok(Next::Reopen) => tracing::warn!(event = "sqlite.reopen"),
                Err(error) => {
                    tracing::error!(event = "sqlite.open_failed", %error);
                    self.refuse_waiting(&store_error(error));
                    std::thread::sleep(REOPEN_AFTER);
                }
            }
        }
    }

    fn write_until_stopped(&mut self) -> rusqlite::Result<Next> {
        let mut connection = connect(&self.path)?;
        let (checkpoints, copier) = Checkpoints::start(&self.path, &mut connection)?;
        let next = {
            let mut statements = Statements::prepare(&connection)?;
            self.write_groups(&connection, &mut statements, &checkpoints)
        };
        connection.wal_hook(None::<fn(&mut rusqlite::hooks::Wal, i32) -> rusqlite::Result<()>>)?;
        drop(connection);
        let _ = copier.join();
        Ok(next)
    }

    fn write_groups(
        &mut self,
        connection: &Connection,
        statements: &mut Statements<'_>,
        checkpoints: &Checkpoints,
    ) -> Next {
        let mut askers = vec![];
        loop {
            let Some(first) = self.queue.blocking_recv() else { return Next::Stop(askers) };
            let mut group = Group::default();
            let mut next = Some(first);
            while let Some(job) = next {
                match job {
                    Job::Stop(asker) => {
                        self.queue.close();
                        askers.push(asker);
                    }
                    job => group.push(job),
                }
                next = if group.operations < GROUP_MAX { self.queue.try_recv().ok() } else { None };
            }
            if let Err(error) = group.run(connection, statements, &*self.clock)
                && error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure)
            {
                return Next::Reopen;
            }
            checkpoints.finish_if_due(connection);
        }
    }

    fn refuse_waiting(&mut self, error: &StoreError) {
        while let Ok(job) = self.queue.try_recv() {
            match job {
                Job::Stop(asker) => _ = asker.send(()),
                job => answer(job, Done::Failed(error.clone())),
            }
        }
    }
}

/// The statements of the hot path, prepared once.
struct Statements<'c> {
    read: Statement<'c>,
    create: Statement<'c>,
    replace: Statement<'c>,
}

impl<'c> Statements<'c> {
    fn prepare(connection: &'c Connection) -> rusqlite::Result<Self> {
        Ok(Statements {
            read: connection.prepare(rows::READ)?,
            create: connection.prepare(rows::CREATE)?,
            replace: connection.prepare(rows::REPLACE)?,
        })
    }
}

/// What became of a job within its group.
enum Done {
    Committed(Committed),
    All(Vec<Result<Committed, StoreError>>),
    Worked,
    Failed(StoreError),
}

#[derive(Default)]
struct Group {
    waiting: Vec<Job>,
    done: Vec<Done>,
    operations: usize,
}

impl Group {
    fn push(&mut self, job: Job) {
        self.operations += if let Job::All(commits, _) = &job { commits.len() } else { 1 };
        self.waiting.push(job);
    }

    /// Runs and commits all of it, then answers each.
    fn run(
        mut self,
        connection: &Connection,
        statements: &mut Statements<'_>,
        clock: &dyn Clock,
    ) -> rusqlite::Result<()> {
        let committed = self.write(connection, statements, clock);
        if let Err(error) = &committed {
            if !connection.is_autocommit() {
                let _ = connection.execute_batch("ROLLBACK");
            }
            tracing::error!(event = "sqlite.commit_failed", %error, operations = self.operations);
            let failure = failure(error);
            self.waiting.into_iter().for_each(|job| answer(job, Done::Failed(failure.clone())));
        } else {
            self.waiting.into_iter().zip(self.done).for_each(|(job, done)| answer(job, done));
        }
        committed
    }

    fn write(
        &mut self,
        connection: &Connection,
        statements: &mut Statements<'_>,
        clock: &dyn Clock,
    ) -> rusqlite::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        // After the lock: time spent waiting for it is not part of anybody's lease.
        let moment = moment(connection, clock.now())?;
        for job in &mut self.waiting {
            let done = run_alone(job, connection, statements, moment);
            // Some errors (a full disk) end the transaction: then it is everybody's.
            if connection.is_autocommit() {
                done?;
                return Err(rusqlite::Error::SqliteFailure(
                    rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_ABORT),
                    Some("the transaction ended by itself".into()),
                ));
            }
            self.done.push(done.unwrap_or_else(|error| Done::Failed(store_error(error))));
        }
        connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }
}

/// One job: all of its writes or none, whatever becomes of the others.
fn run_alone(
    job: &mut Job,
    connection: &Connection,
    statements: &mut Statements<'_>,
    moment: Moment,
) -> rusqlite::Result<Done> {
    match job {
        Job::Commit(commit, _) => run_commit(commit, connection, statements, moment).map(Done::Committed),
        Job::All(commits, _) => {
            let mut all = Vec::with_capacity(commits.len());
            for commit in commits {
                let committed = run_commit(commit, connection, statements, moment);
                if connection.is_autocommit() {
                    return committed.map(Done::Committed);
                }
                all.push(committed.map_err(store_error));
            }
            Ok(Done::All(all))
        }
        Job::Other(work) => savepoint(connection, || work.run(connection, moment)).map(|()| Done::Worked),
        Job::Stop(_) => unreachable!("stops are taken out of the group"),
    }
}

fn savepoint<T>(connection: &Connection, run: impl FnOnce() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    connection.prepare_cached("SAVEPOINT job")?.execute([])?;
    let result = run();
    if !connection.is_autocommit() {
        if result.is_err() {
            connection.prepare_cached("ROLLBACK TO job")?.execute([])?;
        }
        connection.prepare_cached("RELEASE job")?.execute([])?;
    }
    result
}

fn run_commit(
    commit: &Commit,
    connection: &Connection,
    statements: &mut Statements<'_>,
    moment: Moment,
) -> rusqlite::Result<Committed> {
    match commit.ops.len() {
        // One statement is atomic by itself.
        1 => decide_and_write(commit, statements, moment),
        _ => savepoint(connection, || decide_and_write(commit, statements, moment)),
    }
}

fn decide_and_write(commit: &Commit, statements: &mut Statements<'_>, moment: Moment) -> rusqlite::Result<Committed> {
    let mut answers = Vec::with_capacity(commit.ops.len());
    let mut writes = Vec::new();
    for op in &commit.ops {
        let existing = rows::read(&mut statements.read, &op.key)?;
        let Decision { write, answer } = decide(&op.key, existing.as_ref(), &op.command, moment);
        writes.extend(write.map(|next| (existing.is_some(), next)));
        answers.push(answer);
    }
    if answers.iter().all(Answer::is_accepted) {
        for (exists, next) in &writes {
            let statement = if *exists { &mut statements.replace } else { &mut statements.create };
            let written = rows::write(statement, next)?;
            assert!(written, "nobody writes between the read and the write of one transaction");
        }
    }
    Ok(Committed { answers, now: moment.now })
}

fn answer(job: Job, done: Done) {
    // Callers that have gone away need no answer; what was written stands.
    match (job, done) {
        (Job::Commit(_, caller), Done::Committed(committed)) => _ = caller.send(Ok(committed)),
        (Job::Commit(_, caller), Done::Failed(error)) => _ = caller.send(Err(error)),
        (Job::All(_, caller), Done::All(all)) => _ = caller.send(all),
        (Job::All(commits, caller), Done::Failed(error)) => _ = caller.send(vec![Err(error); commits.len()]),
        (Job::Other(work), Done::Worked) => work.answer(Ok(())),
        (Job::Other(work), Done::Failed(error)) => work.answer(Err(error)),
        _ => unreachable!("each job is answered in kind"),
    }
}
