//! What `Guard::run` does when a caller leaves, a closure panics, blocks or hangs, and renewals fail.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::FutureExt;
use oncegate::store::Store;
use oncegate::{
    ClaimKey, Claimed, Failure, Gate, Guard, Guards, How, Lost, Part, Policy, ResolveError, RunError, State,
};

use crate::support::away::Away;

type Io = std::io::Error;

/// Longer than any of these tests, so that no run ends because its lease has ended.
const LONG_LEASE: Duration = Duration::from_secs(600);
const LEASE: Duration = Duration::from_millis(1_500);
const IN_TIME: Duration = Duration::from_secs(20);

fn policy(lost: Lost, lease: Duration) -> Policy {
    Policy { lost, lease, ..Policy::default() }
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let looking = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(IN_TIME, looking).await.unwrap_or_else(|_| panic!("{what}"));
}

async fn state(guard: &Guard, key: &ClaimKey) -> Option<State> {
    guard.find(key).await.expect("the test store and service answer").map(|claim| claim.state)
}

async fn on_memory_and_sqlite() -> (tempfile::TempDir, [Gate; 2]) {
    let folder = tempfile::tempdir().expect("the test store and service answer");
    let sqlite = format!("sqlite:{}", folder.path().join("ledger.db").display());
    (
        folder,
        [
            Gate::open("memory:").await.expect("the test store and service answer"),
            Gate::open(&sqlite).await.expect("works in tests"),
        ],
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_dropped_while_it_claims_gives_the_claim_back() {
    let (_folder, gates) = on_memory_and_sqlite().await;
    for gate in gates {
        for lost in [Lost::TakeOver, Lost::Hold] {
            let guard = gate.guard(&format!("{lost:?}"), policy(lost, LONG_LEASE)).unwrap();
            for round in 0..50 {
                let key = guard.key([format!("{round}")]);
                let begun = AtomicU32::new(0);
                let effect = |_| async {
                    begun.fetch_add(1, Ordering::SeqCst);
                    std::future::pending::<Result<(), Io>>().await
                };
                // One poll sends the claim to the store. The drop comes before the answer, or after the closure began.
                assert!(guard.run([format!("{round}")], effect).now_or_never().is_none());
                // The store answers in order, so this answer proves that the earlier commits are decided.
                guard.claim(&guard.key([format!("fence {round}")])).await.unwrap();
                if begun.load(Ordering::SeqCst) == 0 {
                    until("the claim is given back", async || state(&guard, &key).await.is_none()).await;
                }
                let claiming = guard.key([format!("claim {round}")]);
                if guard.claim(&claiming).now_or_never().is_none() {
                    guard.claim(&guard.key([format!("second fence {round}")])).await.unwrap();
                    until("the claim is given back", async || state(&guard, &claiming).await.is_none()).await;
                }
            }
        }
        gate.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_closed_gives_back_first_what_dropped_callers_claimed() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("ledger.db").display());
    let gate = Gate::open(&url).await.unwrap();
    let guard = gate.guard("g", policy(Lost::Hold, LONG_LEASE)).unwrap();
    let mut dropped = vec![];
    for round in 0..20 {
        // If the store answered at once, the claim has an owner, and its caller did not leave.
        if guard.claim(&guard.key([format!("{round}")])).now_or_never().is_none() {
            dropped.push(round);
        }
    }
    assert!(!dropped.is_empty());
    gate.close().await;
    let gate = Gate::open(&url).await.unwrap();
    let guard = gate.guard("g", Policy::default()).unwrap();
    for round in dropped {
        assert_eq!(state(&guard, &guard.key([format!("{round}")])).await, None, "{round}");
    }
}

#[tokio::test]
async fn after_a_panic_the_next_caller_takes_over_or_the_claim_is_unknown_at_once() {
    let gate = Gate::open("memory:").await.unwrap();
    let panics = async |guard: &Guard| {
        let guard = guard.clone();
        let run = async move { guard.run(["k"], |_| async { panic!("on purpose") as Result<(), Io> }).await };
        assert!(tokio::spawn(run).await.unwrap_err().is_panic(), "the caller gets its own panic");
    };
    let taken_over = gate.guard("taken_over", policy(Lost::TakeOver, LONG_LEASE)).unwrap();
    panics(&taken_over).await;
    let attempt = taken_over.run(["k"], |owner| async move { Ok::<_, Io>(owner.expect("guarded").attempt()) }).await;
    assert_eq!(attempt.unwrap().value, 2);

    let held = gate.guard("held", policy(Lost::Hold, LONG_LEASE)).unwrap();
    panics(&held).await;
    assert!(matches!(held.run(["k"], |_| async { Ok::<_, Io>(()) }).await, Err(RunError::Unknown { .. })));
    assert_eq!(state(&held, &held.key(["k"])).await, Some(State::Unknown));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closure_that_blocks_its_thread_past_several_leases_keeps_its_lease() {
    let (_folder, gates) = on_memory_and_sqlite().await;
    for gate in gates {
        let guard = gate.guard("g", policy(Lost::TakeOver, LEASE)).unwrap();
        // One blocked closure for each thread of the runtime: only a separate thread can renew.
        let runs = ["a", "b"].map(|key| {
            let guard = guard.clone();
            tokio::spawn(async move {
                let blocks = |_| async {
                    std::thread::sleep(LEASE * 3);
                    Ok::<_, Io>(())
                };
                guard.run([key], blocks).await.unwrap().how
            })
        });
        for run in runs {
            assert_eq!(run.await.unwrap(), How::First);
        }
    }
}

#[tokio::test]
async fn a_closure_that_blocks_the_only_thread_keeps_its_lease() {
    let (_folder, gates) = on_memory_and_sqlite().await;
    for gate in gates {
        let guard = gate.guard("g", policy(Lost::TakeOver, LEASE)).unwrap();
        let blocks = |_| async {
            std::thread::sleep(LEASE * 3);
            Ok::<_, Io>(())
        };
        assert_eq!(guard.run(["k"], blocks).await.unwrap().how, How::First);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_away_for_a_while_costs_renewals_and_not_the_lease() {
    let store = Arc::new(Away::default());
    let guard = Guards::over(store.clone(), Arc::new(())).guard("g", policy(Lost::TakeOver, LEASE * 4)).unwrap();
    let effect = |_| async {
        store.set_away(true);
        // The first renewal is due after a third of the lease. Two of them fail, and time is left for the next.
        until("two renewals fail", async || store.refused() >= 2).await;
        store.set_away(false);
        tokio::time::sleep(LEASE * 6).await;
        assert!(matches!(guard.claim(&guard.key(["k"])).await, Ok(Claimed::InFlight { .. })));
        Ok::<_, Io>(1)
    };
    assert_eq!(guard.run(["k"], effect).await.unwrap().how, How::First);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_finds_the_store_away_is_made_later() {
    let store = Arc::new(Away::default());
    let guard = Guards::over(store.clone(), Arc::new(())).guard("g", policy(Lost::Hold, LONG_LEASE)).unwrap();
    let fails = |_| async {
        store.set_away(true);
        Err::<(), _>(Io::other("nothing happened"))
    };
    assert!(matches!(guard.run(["k"], fails).await, Err(RunError::Effect(_))));
    until("the release is tried again", async || store.refused() >= 2).await;
    store.set_away(false);
    until("the claim is given back", async || state(&guard, &guard.key(["k"])).await.is_none()).await;
    assert_eq!(guard.run(["k"], |_| async { Ok::<_, Io>(2) }).await.unwrap().how, How::First);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_away_past_the_lease_costs_the_lease_and_the_caller_is_told() {
    let store = Arc::new(Away::default());
    let guard = Guards::over(store.clone(), Arc::new(())).guard("g", policy(Lost::TakeOver, LEASE)).unwrap();
    let waiting = guard.clone().waiting(IN_TIME);
    let effect = |owner: Option<oncegate::Owner>| async move {
        store.set_away(true);
        let key = owner.expect("guarded").key().clone();
        until("the lease ends", async || {
            let found = store.read(&key).await.unwrap();
            !found.value.expect("is there").owner_is_alive(found.now)
        })
        .await;
        store.set_away(false);
        let second = waiting.run(["k"], |owner| async move { Ok::<_, Io>(owner.expect("guarded").attempt()) }).await;
        assert_eq!(second.unwrap().value, 2);
        Ok::<_, Io>(1)
    };
    let first = guard.run(["k"], effect).await.unwrap();
    assert_eq!((first.value, first.how), (1, How::Fenced));
    let later = guard.run(["k"], |_| async { Ok::<_, Io>(3) }).await.unwrap();
    assert_eq!(later.value, 2, "the outcome that counts is the one of the last owner");
}

#[tokio::test]
async fn a_value_that_is_no_json_is_not_called_recorded_and_runs_no_second_time() {
    let guard = Gate::open("memory:").await.unwrap().guard("g", Policy::default()).unwrap();
    let runs = AtomicU32::new(0);
    let effect = |_| async {
        runs.fetch_add(1, Ordering::SeqCst);
        Ok::<_, Io>(HashMap::from([((1u8, 2u8), 3u8)]))
    };
    let first = guard.run(["k"], effect).await.unwrap();
    assert!(matches!(first.how, How::NotKept { .. }), "{:?}", first.how);
    assert!(matches!(guard.run(["k"], effect).await, Err(RunError::OutcomeNotReadable { .. })));
    assert_eq!(runs.into_inner(), 1);
}

#[tokio::test]
async fn a_number_and_its_digits_are_two_keys() {
    let guard = Gate::open("memory:").await.unwrap().guard("g", Policy::default()).unwrap();
    assert_eq!(guard.run([17u64], |_| async { Ok::<_, Io>(1) }).await.unwrap().how, How::First);
    assert_eq!(guard.run(["17"], |_| async { Ok::<_, Io>(2) }).await.unwrap().how, How::First);
    assert_eq!(guard.run([17u64], |_| async { Ok::<_, Io>(3) }).await.unwrap().value, 1);
}

#[tokio::test]
async fn a_closure_that_hangs_is_stopped_at_max_run_and_lost_decides_at_once() {
    let gate = Gate::open("memory:").await.unwrap();
    let max_run = Some(Duration::from_millis(100));
    let hangs = |_| std::future::pending::<Result<i32, Io>>();
    let with = |lost| Policy { max_run, ..policy(lost, LONG_LEASE) };

    let taken_over = gate.guard("taken_over", with(Lost::TakeOver)).unwrap();
    let waiting = taken_over.clone().waiting(IN_TIME);
    let attempt = |owner: Option<oncegate::Owner>| async move { Ok::<_, Io>(owner.expect("guarded").attempt()) };
    let (stopped, next) = tokio::join!(taken_over.run(["k"], hangs), async {
        tokio::task::yield_now().await;
        waiting.run(["k"], attempt).await
    });
    assert!(matches!(stopped, Err(RunError::TooLong { after }) if Some(after) == max_run));
    assert_eq!(next.unwrap().value, 2, "woken, and told that it is not the first");

    let held = gate.guard("held", with(Lost::Hold)).unwrap();
    assert!(matches!(held.run(["k"], hangs).await, Err(RunError::TooLong { .. })));
    assert!(matches!(held.run(["k"], hangs).await, Err(RunError::Unknown { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closure_that_blocks_its_thread_past_max_run_loses_its_lease_and_the_caller_is_told() {
    let gate = Gate::open("memory:").await.unwrap();
    let guard = gate.guard("g", Policy { max_run: Some(LEASE), ..policy(Lost::TakeOver, LEASE) }).unwrap();
    let (ended, has_ended) = std::sync::mpsc::channel::<()>();
    let blocked = guard.clone();
    let first = tokio::spawn(async move {
        let blocks = |_| async move {
            has_ended.recv().expect("the test lets it end");
            Ok::<_, Io>(1)
        };
        blocked.run(["k"], blocks).await.unwrap()
    });
    until("it runs", async || state(&guard, &guard.key(["k"])).await.is_some()).await;
    // The lease is not renewed any more, so the next caller takes over when it ends.
    let next = guard.waiting(IN_TIME).run(["k"], |_| async { Ok::<_, Io>(2) }).await.unwrap();
    assert_eq!((next.value, next.how), (2, How::First));
    ended.send(()).unwrap();
    let first = first.await.unwrap();
    assert_eq!((first.value, first.how), (1, How::Fenced));
}

#[tokio::test]
async fn an_effect_that_may_have_happened_runs_no_second_time_until_it_is_resolved() {
    for lost in [Lost::TakeOver, Lost::Hold] {
        let guard = Gate::open("memory:").await.unwrap().guard("g", policy(lost, LONG_LEASE)).unwrap();
        let runs = AtomicU32::new(0);
        let times_out = |_| async {
            runs.fetch_add(1, Ordering::SeqCst);
            Err::<i32, _>(Failure::Unknown(Io::from(std::io::ErrorKind::TimedOut)))
        };
        assert!(matches!(guard.run_or_unknown(["k"], times_out).await, Err(RunError::MayHaveHappened(_))));
        assert!(matches!(guard.run_or_unknown(["k"], times_out).await, Err(RunError::Unknown { .. })));
        guard.resolve(&guard.key(["k"]), true, Some("7".into())).await.unwrap();
        assert_eq!(guard.run_or_unknown(["k"], times_out).await.unwrap().value, 7);
        assert!(matches!(guard.resolve(&guard.key(["k"]), false, None).await, Err(ResolveError::Refused(_))));
        assert_eq!(runs.into_inner(), 1);
    }
}

#[tokio::test]
async fn a_failure_says_by_question_mark_that_nothing_happened() {
    let guard = Gate::open("memory:").await.unwrap().guard("g", Policy::default()).unwrap();
    let refused = |_| async {
        Err(Io::other("refused"))?;
        Ok::<i32, Failure<Io>>(1)
    };
    assert!(matches!(guard.run_or_unknown(["k"], refused).await, Err(RunError::Effect(_))));
    assert_eq!(guard.run(["k"], |_| async { Ok::<_, Io>(2) }).await.unwrap().how, How::First);
}

#[tokio::test]
async fn a_second_attempt_that_fails_does_not_make_the_third_a_first() {
    let guard = Gate::open("memory:").await.unwrap().guard("g", policy(Lost::TakeOver, LONG_LEASE)).unwrap();
    let Claimed::Won(first) = guard.claim(&guard.key(["k"])).await.unwrap() else { panic!("the first wins") };
    first.abandon().await.unwrap();
    for attempt in [2, 3] {
        let fails = |owner: Option<oncegate::Owner>| async move {
            assert_eq!(owner.expect("guarded").attempt(), attempt);
            Err::<(), _>(Io::other("refused"))
        };
        assert!(matches!(guard.run(["k"], fails).await, Err(RunError::Effect(_))));
    }
}

#[tokio::test]
async fn integers_of_any_type_are_one_part_and_are_kept_as_numbers() {
    let policy = Policy { store_parts: true, ..Policy::default() };
    let guard = Gate::open("memory:").await.unwrap().guard("g", policy).unwrap();
    assert_eq!(guard.key([17u8]), guard.key([17]));
    assert_ne!(guard.key([17]), guard.key([-17i64]));
    let key = || [Part::from("order"), Part::from(17), Part::from(None::<&str>)];
    guard.run(key(), |_| async { Ok::<_, Io>(1) }).await.unwrap();
    let kept = guard.find(&guard.key(key())).await.unwrap().unwrap().parts;
    assert_eq!(kept.as_deref(), Some(r#"["order",17,null]"#));
}
