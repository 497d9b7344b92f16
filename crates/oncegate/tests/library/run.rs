//! What `Guard::run` promises.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use oncegate::store::{Commit, Committed, MemoryStore, Store, StoreError};
use oncegate::{Gate, Guard, GuardError, Guards, How, OnFailure, OnStoreError, Policy, RunError, State};
use oncegate_store::conformance::Wrapper;

async fn gate() -> Gate {
    Gate::open("memory:").await.expect("opens")
}

type Io = std::io::Error;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_callers_at_once_run_it_once_and_all_get_its_value() {
    let guard = gate().await.guard("g", Policy::default()).unwrap().waiting(Duration::from_secs(10));
    let runs = Arc::new(AtomicU32::new(0));
    let callers = (0..50).map(|caller| {
        let (guard, runs) = (guard.clone(), runs.clone());
        tokio::spawn(async move {
            guard
                .run(["k"], |_| async move {
                    runs.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    Ok::<_, Io>(caller)
                })
                .await
                .unwrap()
                .value
        })
    });
    let mut values = vec![];
    for caller in callers.collect::<Vec<_>>() {
        values.push(caller.await.unwrap());
    }
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    assert!(values.iter().all(|value| *value == values[0]));
}

#[tokio::test]
async fn a_waiter_is_woken_by_the_settle_and_not_by_a_timer() {
    let guard = gate().await.guard("g", Policy::default()).unwrap().waiting(Duration::from_secs(30));
    let (settled_at, woken_at) = tokio::join!(
        async {
            guard
                .run(["k"], |_| async {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    Ok::<_, Io>(())
                })
                .await
                .unwrap();
            Instant::now()
        },
        async {
            tokio::task::yield_now().await;
            assert!(matches!(
                guard.run(["k"], |_| async { Ok::<_, Io>(()) }).await.unwrap().how,
                How::Duplicate { .. }
            ));
            Instant::now()
        }
    );
    assert!(woken_at.saturating_duration_since(settled_at) < Duration::from_secs(5), "long before the wait is over");
}

#[tokio::test]
async fn a_failed_effect_is_released_or_kept_as_the_policy_says() {
    let fail = |_| async { Err::<(), _>(Io::other("refused")) };
    let released = gate().await.guard("g", Policy::default()).unwrap();
    assert!(matches!(released.run(["k"], fail).await, Err(RunError::Effect(_))));
    assert_eq!(released.run(["k"], |_| async { Ok::<_, Io>(7) }).await.unwrap().how, How::First);

    let policy = Policy { on_failure: OnFailure::Keep, ..Policy::default() };
    let kept = gate().await.guard("g", policy).unwrap();
    assert!(matches!(kept.run(["k"], fail).await, Err(RunError::Effect(_))));
    assert!(matches!(kept.run(["k"], fail).await, Err(RunError::FailedBefore { .. })));
}

#[tokio::test]
async fn an_effect_longer_than_its_lease_keeps_it_by_renewing() {
    let policy = Policy { lease: Duration::from_millis(60), ..Policy::default() };
    let guard = gate().await.guard("g", policy).unwrap();
    let slow = guard.run(["k"], |_| async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok::<_, Io>(1)
    });
    let impatient = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        guard.run(["k"], |_| async { Ok::<_, Io>(2) }).await
    };
    let (slow, impatient) = tokio::join!(slow, impatient);
    assert_eq!(slow.unwrap().how, How::First);
    assert!(matches!(impatient, Err(RunError::InFlight { .. })));
}

#[tokio::test]
async fn a_dropped_run_leaves_the_claim_to_its_lease() {
    let policy = Policy { lease: Duration::from_millis(80), ..Policy::default() };
    let guard = gate().await.guard("g", policy).unwrap();
    let endless = guard.run(["k"], |_| async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok::<_, Io>(1)
    });
    assert!(tokio::time::timeout(Duration::from_millis(20), endless).await.is_err());
    let guard = guard.waiting(Duration::from_secs(10));
    let next = guard
        .run(["k"], |owner| async move {
            assert_eq!(owner.expect("guarded").attempt(), 2);
            Ok::<_, Io>(2)
        })
        .await;
    assert_eq!(next.unwrap().value, 2);
}

#[tokio::test]
async fn a_store_that_is_away_lets_it_happen_or_not_as_the_policy_says() {
    let away = Guards::over(Arc::new(Flaky::away_from(0, u32::MAX)), Arc::new(()));
    let run = async |on_store_error| {
        let guard = away.guard("g", Policy { on_store_error, ..Policy::default() }).unwrap();
        guard.run(["k"], |_| async { Ok::<_, Io>(1) }).await
    };
    assert!(matches!(run(OnStoreError::Closed).await, Err(RunError::Store(_))));
    assert_eq!(run(OnStoreError::Open).await.unwrap().how, How::Unguarded);
}

#[tokio::test]
async fn when_only_the_settle_fails_the_caller_gets_its_answer_and_the_settle_is_retried() {
    // The first commit is the claim. The next three commits try to settle, and fail because the store is unavailable.
    let gate = Guards::over(Arc::new(Flaky::away_from(1, 3)), Arc::new(()));
    let guard = gate.guard("g", Policy::default()).unwrap();
    assert_eq!(guard.run(["k"], |_| async { Ok::<_, Io>(1) }).await.unwrap().value, 1);
    let key = guard.key(["k"]);
    assert_eq!(guard.find(&key).await.unwrap().unwrap().state, State::InFlight);
    tokio::time::timeout(Duration::from_secs(20), async {
        while guard.find(&key).await.unwrap().unwrap().state != State::Done {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("settled behind the caller's back");
    assert_eq!(guard.run(["k"], |_| async { Ok::<_, Io>(2) }).await.unwrap().value, 1);
}

#[tokio::test]
async fn another_fingerprint_under_the_same_key_is_a_mismatch_and_runs_nothing() {
    let guard = gate().await.guard("g", Policy::default()).unwrap();
    let run = async |guard: Guard| guard.run(["k"], |_| async { Ok::<_, Io>(1) }).await;
    assert_eq!(run(guard.clone().made_from("a")).await.unwrap().how, How::First);
    assert!(matches!(run(guard.clone().made_from("b")).await, Err(RunError::Mismatch)));
    assert!(matches!(run(guard.made_from("a")).await.unwrap().how, How::Duplicate { .. }));
}

#[tokio::test]
async fn the_parts_of_a_key_are_kept_only_where_the_policy_says_so() {
    for store_parts in [false, true] {
        let guard = gate().await.guard("g", Policy { store_parts, ..Policy::default() }).unwrap();
        guard.run([Some("a"), None], |_| async { Ok::<_, Io>(1) }).await.unwrap();
        let kept = guard.find(&guard.key([Some("a"), None])).await.unwrap().unwrap().parts;
        assert_eq!(kept.as_deref(), store_parts.then_some(r#"["a",null]"#));
    }
}

#[tokio::test]
async fn a_policy_that_makes_no_sense_is_refused() {
    let gate = gate().await;
    let with_lease = |lease| gate.guard("g", Policy { lease, ..Policy::default() });
    assert!(matches!(with_lease(Duration::ZERO), Err(GuardError::Span { .. })));
    assert!(matches!(with_lease(Duration::MAX), Err(GuardError::Span { .. })));
    assert!(matches!(gate.guard("a b", Policy::default()), Err(GuardError::Name(_))));
}

#[tokio::test]
async fn an_outcome_too_large_to_keep_is_a_tombstone_and_never_a_second_run() {
    let guard = gate().await.guard("g", Policy::default()).unwrap();
    let large = |_| async { Ok::<_, Io>("x".repeat(2 << 20)) };
    let first = guard.run(["k"], large).await.unwrap();
    assert!(matches!(first.how, How::NotKept { .. }), "{:?}", first.how);
    assert_eq!(first.value.len(), 2 << 20);
    assert!(matches!(guard.run(["k"], large).await, Err(RunError::OutcomeNotReadable { .. })));
    let anything = guard.run(["k"], |_| async { Ok::<_, Io>(None::<String>) }).await;
    assert!(matches!(anything, Err(RunError::OutcomeNotReadable { .. })), "not kept is not null");
}

/// A memory store whose commits from the `from`th on fail, `count` times.
struct Flaky {
    store: MemoryStore,
    commits: AtomicU32,
    away: std::ops::Range<u32>,
}

impl Flaky {
    fn away_from(from: u32, count: u32) -> Self {
        Flaky { store: MemoryStore::default(), commits: AtomicU32::new(0), away: from..from.saturating_add(count) }
    }
}

#[async_trait]
impl Wrapper for Flaky {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.store
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        if self.away.contains(&self.commits.fetch_add(1, Ordering::Relaxed)) {
            return Err(StoreError::Unavailable("away".into()));
        }
        self.store.commit(commit).await
    }
}
