//! The guarantees when the server waits for a standby that is missing.

use std::time::{Duration, Instant};

use oncegate_core::{Answer, Command};
use oncegate_postgres::{Options, PostgresStore};
use oncegate_store::conformance::{key, terms};
use oncegate_store::{Op, Store, StoreError};

use crate::support::{connect, is_on_a_server_of_its_own, server_url};

async fn claim(store: &dyn Store, part: &str) -> Result<Answer, StoreError> {
    let op = Op { key: key(part), command: Command::Claim(terms()) };
    Ok(store.commit(op.into()).await?.only())
}

/// The setting applies to the whole server, so the test runs itself again on a separate server.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn what_no_standby_has_confirmed_is_not_answered_as_committed() {
    if is_on_a_server_of_its_own("standby") {
        on_a_server_without_its_standby().await;
    }
}

async fn on_a_server_without_its_standby() {
    let store =
        PostgresStore::open(&server_url(), Options { pipelines: 1, ..Options::default() }).await.expect("opens");
    assert!(matches!(claim(&store, "before").await, Ok(Answer::Won(_))));
    let admin = connect().await;
    let set_standbys = async |value: &str| {
        // One statement at a time, because ALTER SYSTEM cannot run in a transaction.
        admin.batch_execute(&format!("ALTER SYSTEM SET synchronous_standby_names = '{value}'")).await.expect("sets");
        admin.batch_execute("SELECT pg_reload_conf()").await.expect("reloads");
        tokio::time::sleep(Duration::from_millis(300)).await;
    };
    let waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    let waiters = async || admin.query(waiting, &[]).await.expect("reads").len();
    // A COMMIT whose wait is cancelled succeeds, with a warning.
    for (part, end) in [("cancelled by somebody", "pg_cancel_backend"), ("ended by somebody", "pg_terminate_backend")] {
        set_standbys("").await;
        while store.confirm().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        set_standbys("nobody").await;
        let end_it = async {
            while waiters().await == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let end = format!("SELECT {end}(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
            admin.query(&end, &[]).await.expect("a superuser may");
        };
        let (answer, ()) = tokio::join!(claim(&store, part), end_it);
        assert!(matches!(answer, Err(StoreError::Unknown(_))), "{part}: {answer:?}");
        let shown = store.read(&key(part)).await.expect("reads").value;
        assert!(shown.is_some(), "{part}: it is committed, but here only");
    }

    let before = waiters().await;
    let answer = claim(&store, "left alone").await;
    assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
    assert_eq!(waiters().await, before + 1, "it still waits");
    assert_eq!(store.read(&key("left alone")).await.expect("reads").value, None, "and nobody sees it");

    // However often callers retry, no more backends wait: the first one has to end before.
    let tried = Instant::now();
    while tried.elapsed() < Duration::from_secs(6) {
        let answer = claim(&store, "tried").await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
        assert!(store.report().await.is_err(), "not ready");
        assert!(store.sweep(10).await.is_err());
        assert!(store.expect_wake(&key("before")).await.is_err());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(waiters().await, before + 1);

    let told = claim(&store, "ended by somebody").await;
    assert!(told.is_err(), "no standby has it, so the next caller is not told of it: {told:?}");

    set_standbys("").await;
    while store.confirm().await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(matches!(claim(&store, "left alone").await, Ok(Answer::InFlight(_))), "the wait is over");
    assert!(matches!(claim(&store, "after").await, Ok(Answer::Won(_))));
    store.close().await;
}
