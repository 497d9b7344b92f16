//! Stores whose clock a test sets, and a store with hooks for a test.

pub mod actions;
pub mod away;
pub mod desk;
pub mod sends;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::future::BoxFuture;
use oncegate::store::{
    Clock, Commit, Committed, MainStore, ManualClock, MemoryStore, Place, Reading, Record, SystemClock,
};
use oncegate::{Claim, ClaimKey, StoreError, Time, WorkspaceName};
use oncegate_core::job::Job;
use oncegate_store::conformance::Wrapper;
use uuid::Uuid;

pub const START: Time = Time::from_micros(1_790_000_000_000_000);

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum On {
    Memory,
    Sqlite,
    Postgres,
}

/// A store and its clock. The files or the database of the store are dropped with it.
pub struct World {
    pub store: Arc<dyn MainStore>,
    pub clock: Arc<ManualClock>,
    /// The store's clock.
    time: Arc<dyn Clock>,
    schema: Option<String>,
    _folder: tempfile::TempDir,
}

impl World {
    /// A store whose time passes by itself. The clock of the world has no effect on it.
    pub async fn open_with_real_time(on: On) -> World {
        World::open_by(on, true).await
    }

    pub async fn open(on: On) -> World {
        World::open_by(on, false).await
    }

    async fn open_by(on: On, is_real: bool) -> World {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let manual = Arc::new(ManualClock::starting_at(START));
        let clock: Arc<dyn Clock> = if is_real { Arc::new(SystemClock) } else { manual.clone() };
        let folder = tempfile::TempDir::new().expect("a temporary folder");
        let mut schema = None;
        let store: Arc<dyn MainStore> = match on {
            On::Memory => Arc::new(MemoryStore::with_clock(clock.clone())),
            On::Sqlite => {
                let options = oncegate_sqlite::Options { clock: clock.clone(), ..Default::default() };
                let store = oncegate_sqlite::SqliteStore::open(folder.path().join("test.db"), options);
                Arc::new(store.expect("the folder is ours"))
            }
            On::Postgres => {
                let name = format!("lib_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
                let options = oncegate_postgres::Options {
                    clock: Some(clock.clone()),
                    schema: Some(schema.insert(name).clone()),
                    ..Default::default()
                };
                Arc::new(oncegate_postgres::PostgresStore::open(&url(), options).await.expect("the server is there"))
            }
        };
        World { store, clock: manual, time: clock, schema, _folder: folder }
    }

    /// The same store, opened as another replica.
    pub async fn again(&self) -> Arc<dyn MainStore> {
        let Some(schema) = &self.schema else { return self.store.clone() };
        let (clock, schema) = (Some(self.time.clone()), Some(schema.clone()));
        let options = oncegate_postgres::Options { clock, schema, ..Default::default() };
        Arc::new(oncegate_postgres::PostgresStore::open(&url(), options).await.expect("the server is there"))
    }

    pub async fn close(self) {
        self.store.close().await;
        if let Some(schema) = &self.schema {
            let connected = tokio_postgres::connect(&url(), tokio_postgres::NoTls).await;
            let (client, connection) = connected.expect("the server is there");
            tokio::spawn(connection);
            client.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await.expect("it is ours");
        }
    }
}

fn url() -> String {
    std::env::var("ONCEGATE_TEST_POSTGRES").expect("ONCEGATE_TEST_POSTGRES is not set: run make test")
}

/// Makes a test of each function, on each store.
macro_rules! on_each {
    ($($test:ident,)*) => {
        mod on_memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() { super::$test(crate::support::On::Memory).await; })*
        }
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() { super::$test(crate::support::On::Sqlite).await; })*
        }
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "needs PostgreSQL: run make test"]
            async fn $test() { super::$test(crate::support::On::Postgres).await; })*
        }
    };
}
pub(crate) use on_each;

/// A store in which a test can run code before the next commit, or replace that commit.
pub struct Hooked {
    pub store: Arc<dyn MainStore>,
    next: Hook,
    look: Hook,
    read: Hook,
    loses: Mutex<Option<bool>>,
    is_behind: AtomicBool,
    is_cut_off: AtomicBool,
}

/// Code that runs once, before an operation.
type Hook = Mutex<Option<BoxFuture<'static, ()>>>;

async fn come(hook: &Hook) {
    let work = hook.lock().expect("not poisoned").take();
    if let Some(work) = work {
        work.await;
    }
}

impl Hooked {
    pub fn over(store: Arc<dyn MainStore>) -> Arc<Hooked> {
        let [next, look, read] = Default::default();
        Arc::new(Hooked {
            store,
            next,
            look,
            read,
            loses: Mutex::default(),
            is_behind: AtomicBool::new(false),
            is_cut_off: AtomicBool::new(false),
        })
    }

    /// Runs `work` before the next commit.
    pub fn before_commit(&self, work: impl Future<Output = ()> + Send + 'static) {
        *self.next.lock().expect("not poisoned") = Some(Box::pin(work));
    }

    /// Runs `work` before the next read of jobs.
    pub fn before_look(&self, work: impl Future<Output = ()> + Send + 'static) {
        *self.look.lock().expect("not poisoned") = Some(Box::pin(work));
    }

    /// Runs `work` before the next read of a claim.
    pub fn before_read(&self, work: impl Future<Output = ()> + Send + 'static) {
        *self.read.lock().expect("not poisoned") = Some(Box::pin(work));
    }

    /// Until the next commit reads find nothing, as on an outdated server that was replaced by one that is ahead of it.
    pub fn fall_behind(&self) {
        self.is_behind.store(true, Ordering::SeqCst);
    }

    /// From now on no commit succeeds, as on a server whose standby is unavailable.
    pub fn cut_off(&self) {
        self.is_cut_off.store(true, Ordering::SeqCst);
    }

    /// The answer to the next commit that would succeed is lost. `is_written` says whether the commit is written.
    pub fn lose_answer(&self, is_written: bool) {
        *self.loses.lock().expect("not poisoned") = Some(is_written);
    }

    async fn lost(&self, commit: &Commit) -> Option<Result<Committed, StoreError>> {
        let loses = *self.loses.lock().expect("not poisoned");
        if loses? {
            let committed = self.store.commit(commit.clone()).await;
            if !committed.as_ref().is_ok_and(Committed::is_written) {
                return Some(committed);
            }
        }
        *self.loses.lock().expect("not poisoned") = None;
        Some(Err(StoreError::Unknown("the answer got lost".into())))
    }
}

#[async_trait]
impl Wrapper for Hooked {
    type Inner = dyn MainStore;

    fn inner(&self) -> &dyn MainStore {
        &*self.store
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        come(&self.next).await;
        match self.lost(&commit).await {
            Some(answered) => answered,
            None => self.store.commit(commit).await,
        }
    }

    async fn confirm(&self) -> Result<(), StoreError> {
        if self.is_cut_off.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("no commit succeeds".into()));
        }
        self.is_behind.store(false, Ordering::SeqCst);
        self.store.confirm().await
    }

    async fn read(&self, key: &ClaimKey) -> Result<Reading<Option<Claim>>, StoreError> {
        come(&self.read).await;
        self.store.read(key).await
    }

    async fn find(&self, places: &[Place]) -> Result<Reading<Vec<Option<Record>>>, StoreError> {
        let found = self.store.find(places).await?;
        let is_behind = self.is_behind.load(Ordering::SeqCst);
        Ok(if is_behind { Reading { value: vec![None; places.len()], ..found } } else { found })
    }

    async fn find_jobs(&self, ids: &[(WorkspaceName, Uuid)]) -> Result<Reading<Vec<Option<Job>>>, StoreError> {
        come(&self.look).await;
        let found = self.store.find_jobs(ids).await?;
        let is_behind = self.is_behind.load(Ordering::SeqCst);
        Ok(if is_behind { Reading { value: vec![None; ids.len()], ..found } } else { found })
    }
}
