//! How the store resolves a COMMIT without an answer if the server has crashed meanwhile, and another replica has written.
//!
//! After a crash the server gives the same transaction id to another transaction, and another replica may own the same key under a
//! larger token. Neither proves anything about the lost COMMIT.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oncegate_core::{Answer, Command};
use oncegate_postgres::{Options, PostgresStore};
use oncegate_store::conformance::histories::{Rules, check, record};
use oncegate_store::conformance::{START, Wrapper, key, terms, workspace};
use oncegate_store::{Change, Commit, Committed, MainStore, ManualClock, Op, Record, Store, StoreError};
use uuid::Uuid;

use crate::support::cluster::Cluster;
use crate::support::proxy::{Mode, Proxy};

/// A replica behind a proxy, and another one that connects directly to the same server.
struct Replicas {
    cluster: Cluster,
    proxy: Proxy,
    cut: Arc<PostgresStore>,
}

impl Replicas {
    async fn start() -> Replicas {
        // Only COMMIT writes the log, so the crash loses the open transaction, its number, and all that it wrote.
        let cluster = Cluster::start("wal_writer_delay = 10s");
        let proxy = Proxy::to(&cluster.url()).await;
        let cut = open(&proxy.url("cut")).await;
        claim(&cut, "warm").await.expect("the server is there");
        Replicas { cluster, proxy, cut: Arc::new(cut) }
    }

    /// Commits through the replica whose connection is cut at its COMMIT. Before that replica can look anything up, the server crashes
    /// and restarts, and `meanwhile` runs on another replica.
    async fn commit_cut<T: Send + 'static>(
        &self,
        commit: impl Future<Output = T> + Send + 'static,
        meanwhile: impl AsyncFnOnce(&PostgresStore),
    ) -> T {
        self.proxy.set_then(Mode::CutBeforeCommit, Mode::Refuse);
        let committing = tokio::spawn(commit);
        self.proxy.has_struck().await;
        self.cluster.crash();
        self.cluster.up();
        let direct = open(&self.cluster.url()).await;
        meanwhile(&direct).await;
        self.proxy.set(Mode::Forward);
        let answered = committing.await.expect("does not panic");
        direct.close().await;
        answered
    }
}

async fn open(url: &str) -> PostgresStore {
    PostgresStore::open(url, Options { pipelines: 1, ..Options::default() }).await.expect("opens")
}

fn claim_op(part: &str) -> Op {
    Op { key: key(part), command: Command::Claim(terms()) }
}

async fn claim(store: &dyn Store, part: &str) -> Result<Answer, StoreError> {
    Ok(store.commit(claim_op(part).into()).await?.only())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_lost_commit_is_not_believed_on_another_replicas_claim() {
    let replicas = Replicas::start().await;
    let mut answered = 0;
    for round in 0..3 {
        let part = format!("k {round}");
        let (store, own) = (replicas.cut.clone(), part.clone());
        let answer = replicas
            .commit_cut(async move { claim(&*store, &own).await }, async |direct| {
                let won = claim(direct, &part).await.expect("the server is there");
                assert!(matches!(won, Answer::Won(_)), "{won:?}");
            })
            .await;
        assert!(!matches!(answer, Ok(Answer::Won(_))), "round {round}: two owners of one key");
        // Unavailable: the commit was found to be undone, and no time was left to retry it.
        answered += usize::from(matches!(answer, Ok(Answer::InFlight(_)) | Err(StoreError::Unavailable(_))));
    }
    assert!(answered > 0, "in some round the server was back in time, and the commit was looked up");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn each_commit_of_a_lost_batch_is_answered_by_what_became_of_it() {
    // Few enough to be queued in this order: the first is the key that another replica claims.
    const KEYS: usize = 30;
    let replicas = Replicas::start().await;
    let store = replicas.cut.clone();
    let commits: Vec<Commit> = (0..KEYS).map(|i| claim_op(&format!("batch {i}")).into()).collect();
    // While a read is under way all of them are queued, so they become one transaction.
    replicas.proxy.set(Mode::HoldAnswers);
    let first = {
        let store = replicas.cut.clone();
        tokio::spawn(async move { claim(&*store, "warm").await })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    let committing = tokio::spawn(async move { store.commit_all(commits).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let answers = replicas
        .commit_cut(async move { committing.await.expect("does not panic") }, async |direct| {
            claim(direct, "batch 0").await.expect("the server is there");
        })
        .await;
    assert!(matches!(first.await.expect("does not panic"), Ok(Answer::InFlight(_))));
    for (i, answer) in answers.into_iter().enumerate() {
        let Ok(Answer::Won(told)) = answer.map(Committed::only) else { continue };
        let found = replicas.cut.read(&key(&format!("batch {i}"))).await.expect("reads").value;
        assert_eq!(found.map(|claim| claim.token), Some(told.token), "key {i} was told as won");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_record_that_is_told_as_written_is_there() {
    let replicas = Replicas::start().await;
    let record = |id| Record {
        workspace: workspace("default"),
        kind: "message",
        id,
        version: 1,
        state: None,
        expires_at: None,
        body: "{}".into(),
    };
    let commit = |id| Commit { ops: vec![claim_op("message")], changes: vec![Change::create(record(id))] };
    let (mine, other) = (Uuid::now_v7(), Uuid::now_v7());
    let (store, own) = (replicas.cut.clone(), commit(mine));
    let answer = replicas
        .commit_cut(async move { store.commit(own).await }, async |direct| {
            assert!(direct.commit(commit(other)).await.expect("the server is there").is_written());
        })
        .await;
    let is_told = answer.is_ok_and(|committed| committed.is_written());
    let found = replicas.cut.find(&[record(mine).place()]).await.expect("reads").value;
    assert_eq!(is_told, found[0].is_some(), "told as written, and there");
}

/// The same, but nothing happens between the crash and the lookup.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_commit_that_a_crash_undid_is_there_if_it_is_told_as_won() {
    let replicas = Replicas::start().await;
    let store = replicas.cut.clone();
    let answer = replicas.commit_cut(async move { claim(&*store, "k").await }, async |_| {}).await;
    match answer {
        // The claim was retried, and exists.
        Ok(Answer::Won(told)) => {
            let found = replicas.cut.read(&key("k")).await.expect("reads").value.expect("is there");
            assert_eq!((found.token, found.version), (told.token, 1));
        }
        // The server was away for longer than a caller waits.
        Err(StoreError::Unavailable(_) | StoreError::Unknown(_)) => {}
        other => panic!("{other:?}"),
    }
}

/// Two replicas, one of them behind a proxy, on shared keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs PostgreSQL: run make test"]
async fn clients_that_share_keys_see_one_owner_while_the_server_crashes_and_connections_are_cut() {
    let cluster = Cluster::start("");
    let proxy = Proxy::to(&cluster.url()).await;
    let clock = Arc::new(ManualClock::starting_at(START));
    let options = || Options { clock: Some(clock.clone()), ..Options::default() };
    let near = PostgresStore::open(&cluster.url(), options()).await.expect("opens");
    let far = PostgresStore::open(&proxy.url("far"), options()).await.expect("opens");
    let both = Arc::new(Both { stores: [near, far], calls: AtomicU64::new(0) });
    let recording = tokio::spawn(record(both, clock.clone()));
    let mut faults = 0;
    while !recording.is_finished() {
        tokio::time::sleep(Duration::from_millis(100)).await;
        match faults % 4 {
            0 => {
                cluster.crash();
                cluster.up();
            }
            1 => proxy.set(Mode::CutAfterCommit),
            2 => proxy.set(Mode::CutBeforeCommit),
            _ => {
                let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()";
                let _ = cluster.connect().await.query(end, &[]).await;
            }
        }
        faults += 1;
    }
    let history = recording.await.expect("no client panics");
    let figures = check(&history, Rules::default()).unwrap_or_else(|violation| panic!("{violation}"));
    assert!(faults >= 4 && figures.successions > 0, "{faults} faults: {figures:?}");
}

/// Calls the two stores alternately.
struct Both {
    stores: [PostgresStore; 2],
    calls: AtomicU64,
}

impl Wrapper for Both {
    type Inner = PostgresStore;

    fn inner(&self) -> &PostgresStore {
        &self.stores[self.calls.fetch_add(1, Ordering::Relaxed) as usize % 2]
    }
}
