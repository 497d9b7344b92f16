//! The embedded store: one SQLite file, no service.
//!
//! One thread writes. It takes all waiting operations, runs them in one transaction, and
//! answers each after the commit is on disk (WAL, `synchronous=FULL`). Many callers therefore share
//! one fsync, and no acknowledged write is lost. Readers run beside the writer and see only committed
//! writes. A reader answers duplicates and looks up records; what was written last is answered from a cache in memory.
//! Checkpoints run off the writer's path. New claims are appended, and found by an index in memory.

#![warn(missing_docs)]

mod anchor;
mod cache;
mod cache_shards;
mod cause;
mod checkpoint;
mod claims;
mod commit_queue;
mod file;
mod group;
mod index;
mod job;
mod keyring;
mod ledger_clock;
mod open;
mod queue;
mod readers;
mod records;
mod rows;
mod schema;
mod trouble;
mod wal_index;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use oncegate_core::{Answer, Claim, ClaimKey, Command, Moment, State, Time, Token, WorkspaceName, decide};
use oncegate_store::{
    Clock, Commit, Committed, DuplicateCount, Op, Page, Query, Reading, Report, Store, StoreError, Swept, SystemClock,
    Usage, UsageFrom, UsagePart, Waiters,
};
use rusqlite::{ErrorCode, ffi};

use cache::Cache;
use file::WatchedFile;
use index::Index;
use ledger_clock::LedgerClock;
use readers::Readers;
pub use schema::migrations;
use writer::Writer;

/// The statements of the hot path for one claim, for benchmarks of the bare statements.
pub mod statements {
    pub use crate::open::connect;
    pub use crate::rows::{CREATE, READ};
}

const PROBE: &str = include_str!("../sql/probe.sql");
const USAGE_CLAIMS: &str = include_str!("../sql/usage_claims.sql");
const USAGE_RECORDS: &str = include_str!("../sql/usage_records.sql");
/// The number of rows that one part of a measurement reads.
const USAGE_ROWS: i64 = 20_000;

/// How to open a store.
#[derive(Clone)]
pub struct Options {
    /// The source of time. A test passes a clock that it moves.
    pub clock: Arc<dyn Clock>,
    /// Whether to bring the schema up to date. Otherwise an outdated schema is an error.
    pub migrate: bool,
    /// The most claims that the store keeps at once. Each takes some 20 to 40 bytes of memory, beside its space on disk.
    pub claims_max: usize,
    /// For negative controls in tests: without syncs, acknowledged work is lost at a power cut.
    #[doc(hidden)]
    pub syncs: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { clock: Arc::new(SystemClock), migrate: true, claims_max: 25_000_000, syncs: true }
    }
}

/// The store. Cheap to share behind an `Arc`.
pub struct SqliteStore {
    file: Arc<WatchedFile>,
    path: PathBuf,
    clock: Arc<LedgerClock>,
    index: Arc<Index>,
    cache: Arc<Cache>,
    writer: Writer,
    readers: Readers,
}

impl SqliteStore {
    /// Opens the file. Creates the file and its folder, readable by their owner only, if they are missing.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, StoreError> {
        // An absolute path, so that the file stays the same if the program changes its working directory.
        let path = std::path::absolute(path.as_ref()).map_err(|error| StoreError::Refused(error.to_string()))?;
        create_private(&path)
            .map_err(|error| StoreError::Unavailable(format!("cannot make {}: {error}", path.display())))?;
        let mut connection = open::connect_with(&path, options.syncs).map_err(store_error)?;
        schema::prepare(&mut connection, options.migrate)?;
        let file = Arc::new(WatchedFile::open_in(&connection, &path).map_err(store_error)?);
        let clock = Arc::new(LedgerClock::open(options.clock, &connection)?);
        drop(connection);
        let index = Arc::new(Index::new(options.claims_max));
        let cache = Arc::new(Cache::new());
        let writer = Writer::start(writer::Shared {
            path: path.clone(),
            syncs: options.syncs,
            file: file.clone(),
            clock: clock.clone(),
            index: index.clone(),
            cache: cache.clone(),
        })?;
        let readers = Readers::new(path.clone(), file.clone());
        Ok(SqliteStore { file, readers, path, clock, index, cache, writer })
    }

    /// The schema's steps, without changing anything. If there is no file, no step is applied.
    pub fn pending(path: &Path) -> Result<Vec<oncegate_store::Migration>, StoreError> {
        if !path.exists() {
            return Ok(migrations(0));
        }
        let connection = readers::connect(path).map_err(store_error)?;
        connection.busy_timeout(open::BUSY_TIMEOUT).map_err(store_error)?;
        Ok(migrations(schema::version(&connection).map_err(store_error)?))
    }

    /// The answer to a commit whose claims meet other owners' claims. Such a commit changes nothing, and what a reader sees is
    /// durable, so the answer need not wait for the writer. Every less clear case is left to the writer.
    fn answer_by_reading(&self, commit: &Commit) -> Option<Committed> {
        let is_claim = |op: &Op| matches!(op.command, Command::Claim(_));
        if commit.ops.is_empty() || !commit.ops.iter().all(is_claim) {
            return None;
        }
        // The writer reports the reason.
        self.file.look_lately().ok()?;
        let now = self.clock.now_if_fresh()?;
        let answers = self.remembered(commit, now).or_else(|| self.looked_up(commit, now))?;
        Some(Committed::of_claims(answers, now)).filter(|committed| !committed.is_written())
    }

    fn remembered(&self, commit: &Commit, now: Time) -> Option<Vec<Answer>> {
        let found = |op: &Op| self.cache.find(self.index.hash_of(&op.key), &op.key);
        commit.ops.iter().map(|op| answer_to(op, Some(&found(op)?), now)).collect()
    }

    /// `None` if the index knows no row of any of the keys.
    fn looked_up(&self, commit: &Commit, now: Time) -> Option<Vec<Answer>> {
        let known: Vec<_> = commit.ops.iter().map(|op| self.index.rows(&op.key).known).collect();
        if known.iter().all(|rows| rows.is_empty()) {
            return None;
        }
        let found = self.readers.run_now(|connection| {
            let mut read = connection.prepare_cached(rows::READ)?;
            let rows = commit.ops.iter().zip(&known);
            rows.map(|(op, rows)| rows::find_among(&mut read, rows, &op.key)).collect::<rusqlite::Result<Vec<_>>>()
        });
        let found = commit.ops.iter().zip(found.ok()?);
        found.map(|(op, row)| answer_to(op, row.map(|row| row.claim).as_ref(), now)).collect()
    }
}

/// The answer to a caller whose claim meets `found`, or `None` if only the writer can decide.
fn answer_to(op: &Op, found: Option<&Arc<Claim>>, now: Time) -> Option<Answer> {
    // The owner may have renewed or settled in time, in a commit that is still in progress.
    if found.is_some_and(|claim| claim.state == State::InFlight && !claim.owner_is_alive(now)) {
        return None;
    }
    // The token floor matters only for new tokens, and only the writer grants those.
    Some(decide(&op.key, found, &op.command, Moment { now, token_floor: Token(0) }).answer)
}

#[async_trait]
impl Store for SqliteStore {
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        commit.check()?;
        match self.answer_by_reading(&commit) {
            Some(answered) => Ok(answered),
            None => self.writer.commit(commit).await,
        }
    }

    async fn confirm(&self) -> Result<(), StoreError> {
        // A synced write, so the log before it is synced too.
        self.writer.run(|connection, moment| connection.execute(PROBE, [moment.now.micros()]).map(drop)).await
    }

    async fn commit_all(&self, commits: Vec<Commit>) -> Vec<Result<Committed, StoreError>> {
        let checked: Vec<_> = commits.iter().map(Commit::check).collect();
        let good = commits.into_iter().zip(&checked).filter(|(_, check)| check.is_ok()).map(|(commit, _)| commit);
        let mut committed = self.writer.commit_all(good.collect()).await.into_iter();
        let each =
            checked.into_iter().map(|check| check.and_then(|()| committed.next().expect("one for each good one")));
        each.collect()
    }

    async fn read(&self, key: &ClaimKey) -> Result<Reading<Option<Claim>>, StoreError> {
        let (key, clock, index) = (key.clone(), self.clock.clone(), self.index.clone());
        let read = move |connection: &rusqlite::Connection| {
            let now = clock.now();
            let found = rows::look_up(connection, &index, &key)?;
            let live = found.map(|row| row.claim).filter(|claim| claim.is_live(now));
            Ok(Reading { value: live.map(Arc::unwrap_or_clone), now })
        };
        // On the caller's thread; if that would have to wait, on a thread that may wait.
        match self.readers.run_now(&read) {
            Ok(reading) => Ok(reading),
            Err(_) => self.readers.run(read).await,
        }
    }

    async fn scan(&self, query: Query) -> Result<Page, StoreError> {
        let clock = self.clock.clone();
        self.readers.run(move |connection| rows::scan(connection, &query, clock.now())).await
    }

    async fn sweep(&self, limit: usize) -> Result<Swept, StoreError> {
        self.writer.sweep(limit).await
    }

    async fn count_duplicates(&self, counts: Vec<DuplicateCount>) -> Result<(), StoreError> {
        self.writer.count_duplicates(counts).await
    }

    async fn report(&self) -> Result<Report, StoreError> {
        let (clock, detail) =
            (self.clock.clone(), format!("SQLite {} at {}", rusqlite::version(), self.path.display()));
        // Ready means that the writer has loaded its index (hence the empty commit) and that a write succeeds.
        self.writer.commit(Commit::default()).await?;
        if !self.file.was_written_lately() {
            self.confirm().await?;
        }
        self.writer
            .run(move |connection, _| {
                let schema_version = schema::version(connection)?;
                let is_newer = (schema_version > schema::newest()).then(|| {
                    format!("the schema is of version {schema_version}, newer than this build's {}", schema::newest())
                });
                Ok(Report {
                    kind: "sqlite",
                    detail: detail.clone(),
                    schema_version,
                    now: clock.now(),
                    warnings: is_newer.into_iter().chain(clock.warning()).collect(),
                })
            })
            .await
    }

    async fn usage(&self, from: UsageFrom) -> Result<UsagePart, StoreError> {
        self.readers
            .run(move |connection| {
                let sql = if from.in_records { USAGE_RECORDS } else { USAGE_CLAIMS };
                let mut statement = connection.prepare_cached(sql)?;
                let (mut part, mut last, mut count) = (UsagePart::default(), from.position, 0);
                let mut rows = statement.query([from.position, USAGE_ROWS])?;
                while let Some(row) = rows.next()? {
                    let workspace = workspace_name(row.get_ref(0)?.as_str()?)?;
                    let unsigned =
                        |column| row.get(column).map(|number: i64| u64::try_from(number).unwrap_or_default());
                    part.usage.push(Usage { workspace, claims: unsigned(1)?, bytes: unsigned(2)? });
                    last = last.max(row.get(3)?);
                    count = row.get(4)?;
                }
                part.next = if count == USAGE_ROWS {
                    Some(UsageFrom { position: last, ..from })
                } else {
                    (!from.in_records).then_some(UsageFrom::RECORDS)
                };
                Ok(part)
            })
            .await
    }

    fn attach(&self, waiters: Arc<Waiters>) {
        // A store serves one ledger. The waiters of a second one would sleep until the owner's lease ends.
        let _ = self.writer.waiters.set(waiters);
    }

    async fn close(&self) {
        // The last connection to close copies the log into the file, so the writer's thread must be last.
        self.readers.close();
        self.writer.stop().await;
    }
}

/// Creates the file, and its folder if missing, with access for the owner only, because the file may contain personal data.
/// Their directory entries are synced; otherwise a power cut could remove the file with all its content.
fn create_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    let sync = |folder: &Path| std::fs::File::open(folder)?.sync_all();
    let folder = file::folder_of(path);
    if !folder.exists() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        folder.ancestors().skip(1).filter(|above| above.exists()).try_for_each(sync)?;
    }
    // An existing file is not opened, because closing it would drop the locks that SQLite holds on it for this process.
    if path.exists() {
        return Ok(());
    }
    std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    sync(folder)
}

/// An error of Oncegate's own, as a SQLite error.
fn our_error(code: std::ffi::c_int, message: impl Into<String>) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(code), Some(message.into()))
}

/// A SQLite error as a store error. Nothing was written, unless COMMIT itself failed.
fn failure(error: &rusqlite::Error) -> StoreError {
    let message = error.to_string();
    match error.sqlite_error() {
        Some(cause) if matches!(cause.code, ErrorCode::TooBig | ErrorCode::ConstraintViolation) => {
            StoreError::Refused(message)
        }
        _ => StoreError::Unavailable(message),
    }
}

fn store_error(error: rusqlite::Error) -> StoreError {
    failure(&error)
}

/// The result of a counting statement.
fn counted(row: &rusqlite::Row<'_>) -> rusqlite::Result<usize> {
    row.get::<_, i64>(0).map(|count| usize::try_from(count).expect("a count is not negative"))
}

fn workspace_name(name: &str) -> rusqlite::Result<WorkspaceName> {
    WorkspaceName::new(name)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error)))
}

#[cfg(test)]
mod tests {
    use oncegate_store::conformance;

    use super::*;

    /// Holds also while the log is copied and starts over.
    #[tokio::test]
    async fn a_claim_is_in_memory_as_soon_as_its_winner_knows() {
        const CLAIMS: u64 = 4_000;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        let store = SqliteStore::open(&path, Options::default()).unwrap();
        for number in 0..CLAIMS {
            let key = conformance::key_in("default", &number.to_string());
            let claim = Op { key: key.clone(), command: Command::Claim(conformance::terms()) };
            store.commit(claim.into()).await.unwrap();
            assert!(store.cache.find(store.index.hash_of(&key), &key).is_some(), "{number}");
        }
        let log_bytes = std::fs::metadata(folder.path().join("x.db-wal")).unwrap().len();
        assert!(log_bytes < CLAIMS * 3 * 4_096, "it has started over: {log_bytes} bytes");
        // Closed now, while a copy of the log may be in progress.
        store.close().await;
        assert!(!folder.path().join("x.db-wal").exists(), "the last to close has copied it");
    }

    #[tokio::test]
    async fn closed_it_leaves_no_log_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        for round in 0..50 {
            let store = SqliteStore::open(&path, Options::default()).unwrap();
            let key = conformance::key_in("default", &round.to_string());
            store.commit(Op { key, command: Command::Claim(conformance::terms()) }.into()).await.unwrap();
            store.close().await;
            assert!(!folder.path().join("x.db-wal").exists(), "{round}: the last to close has copied it");
        }
    }
}
