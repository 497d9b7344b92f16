//! The guarantees when a standby takes over, or a standby answers in place of the server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncegate_core::{Answer, Command, Terms, Token};
use oncegate_postgres::{Options, PostgresStore};
use oncegate_store::conformance::{START, key, settle, terms};
use oncegate_store::{Clock, ManualClock, Op, Store, StoreError};

use crate::support::cluster::Cluster;
use crate::support::proxy::{Mode, Proxy};

const FOLLOWED: &str = "SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'";
const SYNCHRONOUS: &str = "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'";

async fn open(url: &str, clock: Option<Arc<dyn Clock>>) -> PostgresStore {
    PostgresStore::open(url, Options { clock, pipelines: 1, ..Options::default() }).await.expect("opens")
}

/// A server, and the standby that its COMMIT waits for.
async fn synchronous() -> (Cluster, Cluster) {
    let primary = Cluster::start("synchronous_commit = on");
    let standby = primary.standby("standby");
    primary.configure("synchronous_standby_names = 'standby'");
    primary.reload();
    primary.wait_until(SYNCHRONOUS).await;
    (primary, standby)
}

async fn apply(store: &dyn Store, part: &str, command: Command) -> Result<Answer, StoreError> {
    Ok(store.commit(Op { key: key(part), command }.into()).await?.only())
}

async fn win(store: &dyn Store, part: &str) -> Token {
    match apply(store, part, Command::Claim(terms())).await {
        Ok(Answer::Won(claim)) => claim.token,
        other => panic!("expected to win, got {other:?}"),
    }
}

/// Waits until the store can commit again, and returns how long that took.
async fn is_back(store: &dyn Store) -> Duration {
    let from = Instant::now();
    while let Err(error) = store.confirm().await {
        assert!(from.elapsed() < Duration::from_secs(10), "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    from.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_read_only_standby_is_no_store() {
    let primary = Cluster::start("");
    let proxy = Proxy::to(&primary.url()).await;
    let store = open(&proxy.url("moved"), None).await;
    let token = win(&store, "k").await;
    let standby = primary.standby("standby");
    primary.wait_until(FOLLOWED).await;

    let Err(StoreError::Unavailable(why)) = PostgresStore::open(&standby.url(), Options::default()).await else {
        panic!("a standby cannot be written to");
    };
    assert!(why.contains("standby") && why.contains("hint"), "{why}");

    primary.stop("fast");
    proxy.move_to(&standby.url());
    for command in [settle(token, "1"), Command::Renew { token, lease: None }, Command::Claim(terms())] {
        let answer = apply(&store, "k", command).await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    }
    assert!(matches!(store.read(&key("k")).await, Err(StoreError::Unavailable(_))));
    assert!(matches!(store.report().await, Err(StoreError::Unavailable(_))), "not ready");

    standby.promote();
    is_back(&store).await;
    assert!(matches!(apply(&store, "k", settle(token, "1")).await, Ok(Answer::Applied(_))));
    assert!(store.report().await.expect("ready").warnings.is_empty(), "nothing was lost");
}

/// A standby that has not received a claim answers that there is none. The claim's owner must not get that answer.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn an_owner_hears_nothing_definitive_from_a_standby_that_is_behind() {
    let primary = Cluster::start("");
    let proxy = Proxy::to(&primary.url()).await;
    let store = open(&proxy.url("moved"), None).await;
    let standby = primary.standby("standby");
    primary.wait_until(FOLLOWED).await;
    standby.stop("fast");
    let token = win(&store, "late").await;
    primary.stop("immediate");
    standby.up();
    proxy.move_to(&standby.url());
    for command in [settle(token, "1"), Command::Renew { token, lease: None }, Command::Release { token }] {
        let answer = apply(&store, "late", command).await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    }
}

/// A server, a standby that follows it, and a store that reaches the server through the proxy.
async fn replicated() -> (Cluster, Cluster, Proxy, PostgresStore) {
    let primary = Cluster::start("");
    let standby = primary.standby("standby");
    primary.wait_until(FOLLOWED).await;
    let proxy = Proxy::to(&primary.url()).await;
    let store = open(&proxy.url("moved"), None).await;
    (primary, standby, proxy, store)
}

/// The server's name leads to another server, but open connections are not cut.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn once_a_replica_has_met_the_next_server_it_asks_the_last_one_nothing_more() {
    let (primary, standby, proxy, store) = replicated().await;
    win(&store, "warm").await;
    store.read(&key("warm")).await.expect("reads");
    primary.wait_until("SELECT bool_and(replay_lsn = pg_current_wal_lsn()) FROM pg_stat_replication").await;
    standby.promote();
    proxy.redirect(&standby.url());
    let other = open(&standby.url(), None).await;
    let token = win(&other, "new").await;
    // One connection is lost, the writing one. All others still lead to the last server.
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'COMMIT%' AND application_name = 'moved'";
    primary.connect().await.query(end, &[]).await.expect("a superuser terminates");
    is_back(&store).await;
    let answer = apply(&store, "new", settle(token, "1")).await;
    assert!(matches!(answer, Ok(Answer::Applied(_))), "{answer:?}");
    let found = store.read(&key("new")).await.expect("reads").value.expect("is there");
    assert_eq!(found.token, token);
}

/// A COMMIT is on its way to the last server, which does not wait for the standby, while another connection meets the next server.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_commit_to_a_server_that_was_replaced_meanwhile_is_not_told_as_done() {
    let (primary, standby, proxy, store) = replicated().await;
    let store = Arc::new(store);
    win(&*store, "warm").await;
    primary.wait_until("SELECT bool_and(replay_lsn = pg_current_wal_lsn()) FROM pg_stat_replication").await;
    standby.promote();
    let other = open(&standby.url(), None).await;
    proxy.redirect(&standby.url());

    proxy.set(Mode::HoldCommits);
    let claiming = tokio::spawn({
        let store = store.clone();
        async move { apply(&*store, "k", Command::Claim(terms())).await }
    });
    proxy.holds_a_commit().await;
    win(&other, "k").await;
    // All connections are lost except the one that holds its COMMIT. Some of them meet the next server.
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE application_name = 'moved' AND state <> 'idle in transaction'";
    primary.connect().await.query(end, &[]).await.expect("a superuser terminates");
    // A pipeline's settings for its plans are its first statement after the replica has met the server.
    let has_met = "SELECT count(*) > 0 FROM pg_stat_activity
                   WHERE application_name = 'moved' AND query LIKE '%force_generic_plan%'";
    standby.wait_until(has_met).await;
    proxy.set(Mode::Forward);
    let answer = claiming.await.expect("does not panic");
    assert!(!matches!(answer, Ok(Answer::Won(_))), "two owners of one key: {answer:?}");
}

/// The last server is still reachable, and its COMMIT waits for the standby that has become the next server.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn an_owner_is_not_refused_by_a_server_that_was_replaced() {
    let (primary, standby) = synchronous().await;
    let behind = open(&primary.url(), None).await;
    win(&behind, "warm").await;
    standby.promote();
    let ahead = open(&standby.url(), None).await;
    let token = win(&ahead, "k").await;
    for command in [settle(token, "1"), Command::Renew { token, lease: None }, Command::Release { token }] {
        let answer = apply(&behind, "k", command).await;
        assert!(answer.is_err(), "{answer:?}");
    }
    assert!(matches!(apply(&ahead, "k", settle(token, "1")).await, Ok(Answer::Applied(_))));
}

/// After a restart a server shows commits that its standby does not have. A promotion of that standby loses them.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_claim_that_no_standby_has_is_not_told_after_a_restart() {
    let (primary, standby) = synchronous().await;
    let store = open(&primary.url(), None).await;
    win(&store, "confirmed").await;
    standby.stop("immediate");
    // The lease outlives the test.
    let claim = || Command::Claim(Terms { lease: Duration::from_secs(600), ..terms() });
    let answer = apply(&store, "k", claim()).await;
    assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
    primary.crash();
    primary.up();
    let is_there = "SELECT count(*) = 2 FROM oncegate.claims";
    primary.wait_until(is_there).await;
    let tried = Instant::now();
    while tried.elapsed() < Duration::from_secs(6) {
        for part in ["k", "confirmed"] {
            let answer = apply(&store, part, claim()).await;
            assert!(answer.is_err(), "{part}: {answer:?}");
        }
    }
    standby.up();
    is_back(&store).await;
    assert!(matches!(apply(&store, "k", claim()).await, Ok(Answer::InFlight(_))));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_connection_whose_mark_is_gone_is_replaced() {
    let cluster = Cluster::start("");
    let store = open(&cluster.url(), None).await;
    win(&store, "before").await;
    cluster.connect().await.batch_execute("DELETE FROM oncegate.commit_marks").await.expect("deletes");
    win(&store, "after").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_server_that_allows_no_writes_is_not_ready() {
    let cluster = Cluster::start("");
    let store = open(&cluster.url(), None).await;
    store.report().await.expect("ready");
    cluster.configure("default_transaction_read_only = on");
    cluster.restart();
    let asked = Instant::now();
    let refused = loop {
        assert!(asked.elapsed() < Duration::from_secs(20), "it says so");
        match store.report().await {
            Err(StoreError::Unavailable(why)) if why.contains("read-only") => break why,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            Ok(ready) => panic!("{ready:?}"),
        }
    };
    assert!(refused.contains("default_transaction_read_only"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_synchronous_standby_that_is_promoted_has_all_that_was_acknowledged_and_one_winner() {
    let (primary, standby) = synchronous().await;
    let proxy = Proxy::to(&primary.url()).await;
    let cut = Arc::new(open(&proxy.url("cut"), None).await);
    for i in 0..50 {
        win(&*cut, &format!("before {i}")).await;
    }
    // From here on the standby does not receive this commit, and the replica gets no answer to it.
    standby.stop("immediate");
    proxy.set_then(Mode::CutAfterCommit, Mode::Refuse);
    let claiming = tokio::spawn({
        let store = cut.clone();
        async move { apply(&*store, "contested", Command::Claim(terms())).await }
    });
    proxy.has_struck().await;
    primary.stop("immediate");
    standby.configure("synchronous_standby_names = ''");
    standby.up();
    standby.promote();
    let other = open(&standby.url(), None).await;
    win(&other, "contested").await;
    proxy.move_to(&standby.url());
    proxy.set(Mode::Forward);
    let answer = claiming.await.expect("does not panic");
    assert!(!matches!(answer, Ok(Answer::Won(_))), "two owners of one key");
    is_back(&*cut).await;
    for i in 0..50 {
        let found = cut.read(&key(&format!("before {i}"))).await.expect("reads").value;
        assert!(found.is_some(), "acknowledged claim {i} is there");
    }
    assert!(cut.report().await.expect("ready").warnings.is_empty(), "nothing was lost");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_promoted_standby_that_has_lost_acknowledged_commits_is_told_of() {
    let (primary, standby, proxy, store) = replicated().await;
    win(&store, "kept").await;
    primary.wait_until("SELECT bool_and(replay_lsn = pg_current_wal_lsn()) FROM pg_stat_replication").await;
    standby.stop("immediate");
    for i in 0..5 {
        win(&store, &format!("lost {i}")).await;
    }
    primary.stop("immediate");
    standby.up();
    standby.promote();
    proxy.move_to(&standby.url());
    is_back(&store).await;
    let warnings = store.report().await.expect("ready").warnings;
    assert!(warnings.iter().any(|warning| warning.contains("has lost at least 5 commits")), "{warnings:?}");
    assert!(store.read(&key("kept")).await.expect("reads").value.is_some());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn tokens_grow_though_a_server_with_an_earlier_clock_has_lost_the_claim() {
    let cluster = Cluster::start("");
    let clock = Arc::new(ManualClock::starting_at(START));
    let store = open(&cluster.url(), Some(clock.clone())).await;
    let before = win(&store, "k").await;
    win(&store, "other").await;
    // The effect of a failover: the claim is gone, and the clock is an hour behind.
    cluster
        .connect()
        .await
        .execute("DELETE FROM oncegate.claims WHERE token = $1", &[&before.0])
        .await
        .expect("deletes");
    clock.set(oncegate_core::Time::from_micros(START.micros() - 3_600_000_000));
    let again = win(&store, "k").await;
    assert!(again > before, "{again} is not larger than {before}: this replica remembers");

    cluster.connect().await.batch_execute("DELETE FROM oncegate.claims").await.expect("deletes");
    cluster.restart();
    is_back(&store).await;
    let fresh = open(&cluster.url(), Some(clock)).await;
    let last = win(&fresh, "k").await;
    assert!(last > again, "{last} is not larger than {again}: the other replica has raised the floor");
}
