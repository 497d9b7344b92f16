//! The guarantees when several replicas share one schema.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::{Answer, Command, Token};
use oncegate_postgres::PostgresStore;
use oncegate_store::conformance::{START, WINDOW, key, settle, terms, workspace};
use oncegate_store::{Change, Commit, Committed, ManualClock, Op, Record, Store, StoreError, Waiters};
use tokio::sync::Barrier;
use uuid::Uuid;

use crate::support::{Database, Schema, listen};

async fn two_replicas(open: impl AsyncFn() -> PostgresStore) -> [Arc<PostgresStore>; 2] {
    // Both at once, so that they also race for the migrations.
    let (a, b) = tokio::join!(open(), open());
    [Arc::new(a), Arc::new(b)]
}

fn op(part: &str, command: Command) -> Op {
    Op { key: key(part), command }
}

async fn apply(store: &dyn Store, part: &str, command: Command) -> Answer {
    store.commit(op(part, command).into()).await.expect("the server is there").only()
}

async fn commit(store: &dyn Store, changes: Vec<Change>) -> Committed {
    store.commit(Commit { ops: vec![], changes }).await.expect("the server is there")
}

/// The number of deadlocks in a separate database, so that other tests' deadlocks do not count.
async fn deadlocks(database: &Database) -> i64 {
    let sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    database.connect().await.query_one(sql, &[]).await.expect("reads").get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs PostgreSQL: run make test"]
async fn overlapping_commits_in_adverse_orders_have_one_winner_each_and_no_deadlock() {
    const ROUNDS: usize = 60;
    const TASKS: usize = 16;
    const KEYS: usize = 24;
    let database = Database::create().await;
    let stores = two_replicas(async || database.open(None).await).await;
    let barrier = Arc::new(Barrier::new(TASKS));
    let tasks = (0..TASKS).map(|task| {
        let (store, barrier) = (stores[task % 2].clone(), barrier.clone());
        tokio::spawn(async move {
            let mut won: Vec<String> = vec![];
            for round in 0..ROUNDS {
                barrier.wait().await;
                // One replica goes up, the other down. Every task begins at a different key, and some tasks claim all keys at once.
                let mut parts: Vec<String> = (0..KEYS).map(|i| format!("{round} {}", (i + task) % KEYS)).collect();
                if task % 2 == 1 {
                    parts.reverse();
                }
                let size = if task % 4 < 2 { KEYS / 3 } else { 1 };
                for some in parts.chunks(size) {
                    won.extend(claim_and_settle(&*store, some).await);
                }
            }
            won
        })
    });
    let mut winners: HashMap<String, usize> = HashMap::new();
    for task in tasks.collect::<Vec<_>>() {
        // If one task fails, the others stay at the barrier.
        let won = tokio::time::timeout(Duration::from_secs(60), task).await.expect("nobody fails or hangs");
        for part in won.expect("does not panic") {
            *winners.entry(part).or_default() += 1;
        }
    }
    assert!(winners.values().all(|count| *count == 1), "{winners:?}");
    assert_eq!(winners.len(), ROUNDS * KEYS, "each key has its winner");
    for store in stores {
        store.close().await;
    }
    assert_eq!(deadlocks(&database).await, 0);
}

/// Claims all of `parts` together. The store that wins them settles them together, in the opposite order.
async fn claim_and_settle(store: &dyn Store, parts: &[String]) -> Vec<String> {
    let ops = parts.iter().map(|part| op(part, Command::Claim(terms()))).collect();
    let claimed = store.commit(Commit { ops, changes: vec![] }).await.expect("the server is there");
    if !claimed.is_written() {
        return vec![];
    }
    let tokens = claimed.answers.iter().map(|answer| match answer {
        Answer::Won(claim) => claim.token,
        other => panic!("written, but {other:?}"),
    });
    let ops = parts.iter().zip(tokens).rev().map(|(part, token)| op(part, settle(token, "1"))).collect();
    assert!(store.commit(Commit { ops, changes: vec![] }).await.expect("the server is there").is_written());
    parts.to_vec()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_settle_in_one_replica_wakes_a_waiter_of_the_other() {
    let schema = Schema::create().await;
    let [here, there] = two_replicas(async || schema.open(None).await).await;
    let waiters = Arc::new(Waiters::default());
    there.attach(waiters.clone());
    let endings: [fn(Token) -> Command; 3] =
        [|token| settle(token, "1"), |token| Command::Release { token }, |_| Command::Forget];
    for (i, ending) in endings.into_iter().enumerate() {
        let part = i.to_string();
        let Answer::Won(claim) = apply(&*here, &part, Command::Claim(terms())).await else { panic!("is new") };
        let mut waiter = waiters.register(&claim.key.workspace, claim.key.id);
        there.expect_wake(&claim.key).await.expect("the server is there");
        // A wake-up of all waiters, from the time when the listener connected, may still be on its way.
        while tokio::time::timeout(Duration::from_millis(300), waiter.woken()).await.is_ok() {}
        apply(&*here, &part, Command::Renew { token: claim.token, lease: None }).await;
        let early = tokio::time::timeout(Duration::from_millis(100), waiter.woken()).await;
        assert!(early.is_err(), "a renewal wakes nobody");
        apply(&*here, &part, ending(claim.token)).await;
        tokio::time::timeout(Duration::from_secs(1), waiter.woken()).await.expect("is woken across replicas");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn only_awaited_claims_are_announced() {
    let schema = Schema::create().await;
    let store = schema.open(None).await;
    let mut heard = listen(&format!("oncegate_{}", schema.name)).await;
    for i in 0..50 {
        let part = i.to_string();
        let Answer::Won(claim) = apply(&store, &part, Command::Claim(terms())).await else { panic!("is new") };
        if i == 20 || i == 49 {
            store.expect_wake(&claim.key).await.expect("the server is there");
        }
        apply(&store, &part, settle(claim.token, "1")).await;
    }
    // Announcements arrive in the order of their commits: when the last has arrived, so has every other.
    let announced = [heard.recv().await, heard.recv().await].map(|payload| payload.expect("still listening"));
    assert_eq!(announced, [20, 49].map(|i| format!("default {}", key(&i.to_string()).id)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs PostgreSQL: run make test"]
async fn sweeping_while_records_are_written_leaves_no_half_of_one_and_no_deadlock() {
    const ROUNDS: u128 = 40;
    const RECORDS: u128 = 12;
    let database = Database::create().await;
    let clock = Arc::new(ManualClock::starting_at(START));
    let stores = two_replicas(async || database.open(Some(clock.clone())).await).await;
    let names = |number: u128| vec![format!("a {number}"), format!("b {number}")];
    let record = |number: u128, version, expires_at| Record {
        workspace: workspace("default"),
        kind: "thing",
        id: Uuid::from_u128(number),
        version,
        state: None,
        expires_at,
        body: "{}".into(),
    };
    for round in 0..ROUNDS {
        let numbers = round * RECORDS..(round + 1) * RECORDS;
        let created = numbers.clone().map(|number| Change::Create {
            record: record(number, 1, Some(START)),
            names: names(number),
            lists: vec!["all".into()],
        });
        assert!(commit(&*stores[0], created.collect()).await.is_written());
        let sweepers = [0, 1, 0, 1].map(|replica: usize| {
            let store = stores[replica].clone();
            tokio::spawn(async move { while store.sweep(3).await.expect("sweeps").records > 0 {} })
        });
        // Some writers move the end of two records at once, with existing names and with new ones. One replica writes in the order of
        // ids and the other in reverse. Other writers want the names for records of their own.
        let writers = numbers.clone().map(|number| {
            let store = stores[(number % 2) as usize].clone();
            let other = if number % 2 == 0 { number + 1 } else { number - 1 };
            let moved = |number: u128| Change::Replace {
                record: record(number, 2, None),
                names: [names(number), vec![format!("c {number}")]].concat(),
            };
            let anew = Change::Create { record: record(number + 10_000, 1, None), names: names(other), lists: vec![] };
            let changes = if number % 3 == 0 { vec![anew, moved(number)] } else { vec![moved(number), moved(other)] };
            tokio::spawn(async move { commit(&*store, changes).await })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.expect("does not panic");
        }
        for sweeper in sweepers {
            sweeper.await.expect("does not panic");
        }
        while stores[0].sweep(100).await.expect("sweeps").records > 0 {}
    }
    let db = database.connect().await;
    let count = async |sql: &str| -> i64 {
        db.query_one(&sql.replace("FROM ", "FROM oncegate."), &[]).await.expect("reads").get(0)
    };
    assert_eq!(count("SELECT count(*) FROM records WHERE expires_at IS NOT NULL").await, 0);
    let left = count("SELECT count(*) FROM records WHERE version = 2").await;
    let anew = count("SELECT count(*) FROM records WHERE version = 1").await;
    assert_eq!(count("SELECT count(*) FROM record_lists").await, left, "of those that are gone, no list is left");
    assert_eq!(count("SELECT count(*) FROM record_names").await, left * 3 + anew * 2, "and no name");
    assert_eq!(deadlocks(&database).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs PostgreSQL: run make test"]
async fn sweeping_while_expired_keys_are_claimed_again_keeps_tokens_growing_and_one_winner() {
    const ROUNDS: usize = 60;
    const KEYS: usize = 20;
    let schema = Schema::create().await;
    let clock = Arc::new(ManualClock::starting_at(START));
    let stores = two_replicas(async || schema.open(Some(clock.clone())).await).await;
    let mut last: HashMap<String, Token> = HashMap::new();
    for round in 0..ROUNDS {
        let sweepers = stores
            .clone()
            .map(|store| tokio::spawn(async move { while store.sweep(3).await.expect("sweeps").claims > 0 {} }));
        let claimers = (0..6).flat_map(|task| (0..KEYS).map(move |i| (task, i)));
        let claimers = claimers.map(|(task, i)| {
            let store = stores[task % 2].clone();
            tokio::spawn(async move {
                let part = i.to_string();
                (apply(&*store, &part, Command::Claim(terms())).await, part)
            })
        });
        let mut winners = 0;
        for claimer in claimers.collect::<Vec<_>>() {
            if let (Answer::Won(claim), part) = claimer.await.expect("does not panic") {
                winners += 1;
                let before = last.insert(part, claim.token);
                assert!(before.is_none_or(|before| before < claim.token), "a later owner has a larger token");
            }
        }
        assert_eq!(winners, KEYS, "one winner for each key");
        for sweeper in sweepers {
            sweeper.await.expect("does not panic");
        }
        // The clock steps back from time to time. The window ends anyway.
        match round % 3 {
            2 => {
                for part in last.keys() {
                    apply(&*stores[0], part, Command::Forget).await;
                }
                clock.set(START);
            }
            _ => clock.advance(WINDOW),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs PostgreSQL: run make test"]
async fn what_the_server_will_not_take_fails_alone() {
    let schema = Schema::create().await;
    let store = Arc::new(schema.open(None).await);
    let calls = (0..100).map(|i| {
        let store = store.clone();
        // PostgreSQL's text has no NUL.
        let fingerprint = (i == 50).then(|| "\0".to_owned());
        let command = Command::Claim(oncegate_core::Terms { fingerprint, ..terms() });
        tokio::spawn(async move { (i, store.commit(op(&i.to_string(), command).into()).await) })
    });
    for call in calls.collect::<Vec<_>>() {
        match call.await.expect("does not panic") {
            (50, answer) => assert!(matches!(answer, Err(StoreError::Refused(_))), "{answer:?}"),
            (_, answer) => assert!(answer.expect("is not touched by the bad one").is_written()),
        }
    }
}
