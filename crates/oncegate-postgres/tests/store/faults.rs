//! The guarantees when the network or the server breaks under the store, or a caller goes away.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncegate_core::{Answer, ClaimKey, Command, Refusal, State, Token};
use oncegate_postgres::{Options, PostgresStore};
use oncegate_store::conformance::{LEASE, START, WINDOW, key, settle, terms, workspace};
use oncegate_store::{Change, Clock, Commit, MainStore, ManualClock, Op, Record, Store, StoreError};
use uuid::Uuid;

use crate::support::proxy::{Mode, Proxy};
use crate::support::{Schema, connect, server_url};

/// A store behind a proxy, and a second one that connects directly to the same server.
struct Broken {
    proxy: Proxy,
    store: Arc<PostgresStore>,
    direct: PostgresStore,
    schema: Schema,
}

impl Broken {
    async fn new(clock: Option<Arc<ManualClock>>) -> Broken {
        let schema = Schema::create().await;
        let direct = schema.open(clock.clone()).await;
        let proxy = Proxy::start().await;
        let options = Options { pipelines: 1, ..schema.options(clock) };
        let store = Arc::new(PostgresStore::open(&proxy.url(&schema.name), options).await.expect("opens"));
        let broken = Broken { proxy, store, direct, schema };
        // Connects every pipeline and prepares its statements.
        let token = broken.win(&key("warm")).await;
        broken.apply(&key("warm"), settle(token, "1")).await.expect("settles");
        broken
    }

    async fn apply(&self, key: &ClaimKey, command: Command) -> Result<Answer, StoreError> {
        apply(&*self.store, key, command).await
    }

    /// The answer to a command on the key `k`. `meanwhile` runs after its record was read and before anything is written.
    async fn paused(&self, command: Command, meanwhile: impl AsyncFnOnce()) -> Answer {
        let before = self.proxy.requests();
        self.proxy.set(Mode::HoldAnswers);
        let store = self.store.clone();
        let answer = tokio::spawn(async move { apply(&*store, &key("k"), command).await });
        while self.proxy.requests() == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The request has reached the server. The pause is long enough for the server to read.
        tokio::time::sleep(Duration::from_millis(50)).await;
        meanwhile().await;
        self.proxy.set(Mode::Forward);
        answer.await.expect("does not panic").expect("the server is there")
    }

    async fn win(&self, key: &ClaimKey) -> Token {
        win(&*self.store, key).await
    }
}

async fn win(store: &dyn Store, key: &ClaimKey) -> Token {
    match apply(store, key, Command::Claim(terms())).await.expect("the server is there") {
        Answer::Won(claim) => claim.token,
        other => panic!("expected to win, got {other:?}"),
    }
}

async fn apply(store: &dyn Store, key: &ClaimKey, command: Command) -> Result<Answer, StoreError> {
    Ok(store.commit(Op { key: key.clone(), command }.into()).await?.only())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_commit_that_was_done_but_not_answered_is_found_to_be_done() {
    win_and_settle_with_every_commit(Mode::CutAfterCommit).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_commit_that_did_not_arrive_is_found_to_be_undone_and_made_again() {
    win_and_settle_with_every_commit(Mode::CutBeforeCommit).await;
}

/// A claim or no claim, a record, and a job, in one commit.
async fn commit_with_changes(cut: Mode) {
    let world = Broken::new(None).await;
    let record = |number: u128, version: i64| Record {
        workspace: workspace("default"),
        kind: "thing",
        id: Uuid::from_u128(number),
        version,
        state: None,
        expires_at: None,
        body: "{}".into(),
    };
    let claim = Op { key: key("with changes"), command: Command::Claim(terms()) };
    let commits = [
        Commit { ops: vec![claim], changes: vec![Change::create(record(1, 1))] },
        Commit { ops: vec![], changes: vec![Change::create(record(2, 1)), Change::replace(record(1, 2))] },
    ];
    for commit in commits {
        world.proxy.set(cut);
        let committed = world.store.commit(commit).await.expect("is found out");
        world.proxy.has_struck().await;
        assert!(committed.is_written(), "{committed:?}");
    }
    let places = [record(1, 1).place(), record(2, 1).place()];
    let found = world.direct.find(&places).await.expect("reads").value;
    let versions: Vec<_> = found.into_iter().map(|record| record.map(|record| record.version)).collect();
    assert_eq!(versions, [Some(2), Some(1)], "each was written once");
    assert!(world.direct.read(&key("with changes")).await.expect("reads").value.is_some());
}

async fn win_and_settle_with_every_commit(cut: Mode) {
    commit_with_changes(cut).await;
    let world = Broken::new(None).await;
    world.proxy.set(cut);
    let token = world.win(&key("k")).await;
    world.proxy.has_struck().await;
    let record = world.direct.read(&key("k")).await.expect("reads").value.expect("is there");
    assert_eq!((record.token, record.version), (token, 1), "the win that was answered is the one that is there");

    world.proxy.set(cut);
    assert!(matches!(world.apply(&key("k"), settle(token, "1")).await, Ok(Answer::Applied(_))));
    world.proxy.has_struck().await;
    let record = world.direct.read(&key("k")).await.expect("reads").value.expect("is there");
    assert_eq!((record.state, record.version), (State::Done, 2), "settled, once");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_transaction_whose_commit_was_swallowed_is_ended_and_blocks_nobody() {
    let world = Broken::new(None).await;
    world.proxy.set(Mode::SwallowCommit);
    let asked = Instant::now();
    let answer = world.apply(&key("k"), Command::Claim(terms())).await;
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "nothing was written: {answer:?}");
    assert!(asked.elapsed() < Duration::from_secs(4), "before the server would have ended it by itself");
    let winner = apply(&world.direct, &key("k"), Command::Claim(terms())).await;
    assert!(matches!(winner, Ok(Answer::Won(_))), "{winner:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn what_was_decided_before_a_pause_past_the_lease_is_not_written_after_it() {
    let clock = Arc::new(ManualClock::starting_at(START));
    let world = Broken::new(Some(clock.clone())).await;
    let paused = async |command: Command| world.paused(command, async || clock.advance(LEASE)).await;
    let Answer::Won(claim) = paused(Command::Claim(terms())).await else { panic!("nobody else is there") };
    assert_eq!(claim.created_at, clock.now(), "decided again after the pause");
    let late = paused(settle(claim.token, "late")).await;
    assert_eq!(late, Answer::Refused(Refusal::LeaseEnded { at: claim.lease_until }));
    assert_eq!(world.direct.read(&key("k")).await.expect("reads").value.expect("is there").version, 1);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_record_that_was_swept_and_made_again_is_not_taken_for_the_one_that_was_read() {
    let clock = Arc::new(ManualClock::starting_at(START));
    let world = Broken::new(Some(clock.clone())).await;
    let first = world.win(&key("k")).await;
    clock.advance(WINDOW);
    let mut second = None;
    let answer = world.paused(Command::Claim(terms()), async || {
        while world.direct.sweep(100).await.expect("sweeps").claims > 0 {}
        second = Some(win(&world.direct, &key("k")).await);
    });
    let Answer::InFlight(claim) = answer.await else { panic!("the key has an owner") };
    assert_eq!((Some(claim.token), claim.version), (second, 1), "the same version, of another owner");
    assert!(claim.token > first);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_token_decided_before_another_owner_came_and_was_swept_is_not_given() {
    let clock = Arc::new(ManualClock::starting_at(START));
    let world = Broken::new(Some(clock)).await;
    let mut other = None;
    let answer = world.paused(Command::Claim(terms()), async || {
        let token = win(&world.direct, &key("k")).await;
        apply(&world.direct, &key("k"), Command::Release { token }).await.expect("releases");
        while world.direct.sweep(100).await.expect("sweeps").claims > 0 {}
        other = Some(token);
    });
    let Answer::Won(claim) = answer.await else { panic!("the other has released it") };
    assert!(Some(claim.token) > other, "{} is not larger than {other:?}", claim.token);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_half_open_server_is_an_error_in_bounded_time_and_the_store_recovers() {
    let world = Broken::new(None).await;
    world.proxy.set(Mode::Swallow);
    let asked = Instant::now();
    let calls = (0..200).map(|i| {
        let store = world.store.clone();
        tokio::spawn(async move { apply(&*store, &key(&i.to_string()), Command::Claim(terms())).await })
    });
    for call in calls.collect::<Vec<_>>() {
        let answer = call.await.expect("does not panic");
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    }
    assert!(asked.elapsed() < Duration::from_secs(7), "took {:?}", asked.elapsed());
    assert!(matches!(world.store.read(&key("warm")).await, Err(StoreError::Unavailable(_))));

    world.proxy.set(Mode::Forward);
    let back = Instant::now();
    while world.apply(&key("again"), Command::Claim(terms())).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(back.elapsed() < Duration::from_secs(5), "took {:?}", back.elapsed());
    assert!(world.store.read(&key("again")).await.expect("reads").value.is_some());
    let unanswered = world.direct.read(&key("0")).await.expect("reads").value;
    assert_eq!(unanswered, None, "what was unavailable was not written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs PostgreSQL: run make test"]
async fn terminated_backends_cost_no_acknowledged_work_and_give_no_wrong_answer() {
    const CLIENTS: usize = 32;
    const CUTS: usize = 25;
    let world = Broken::new(None).await;
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let done = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let clients = (0..CLIENTS).map(|client| {
        let (store, is_over, done) = (world.store.clone(), is_over.clone(), done.clone());
        tokio::spawn(async move {
            let mut acknowledged = vec![];
            for i in 0.. {
                if is_over.load(std::sync::atomic::Ordering::SeqCst) {
                    break;
                }
                let key = key(&format!("{client} {i}"));
                let answer = apply(&*store, &key, Command::Claim(terms())).await.expect("is found out or made again");
                let Answer::Won(claim) = answer else { panic!("a key of its own, met by another: {answer:?}") };
                let settled = apply(&*store, &key, settle(claim.token, "1")).await.expect("is found out or made again");
                assert!(matches!(settled, Answer::Applied(_)), "{settled:?}");
                acknowledged.push((key, claim.token));
                done.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
            acknowledged
        })
    });
    let clients: Vec<_> = clients.collect();
    let admin = connect().await;
    for _ in 0..CUTS {
        let before = done.load(std::sync::atomic::Ordering::SeqCst);
        while done.load(std::sync::atomic::Ordering::SeqCst) < before + 2 * CLIENTS
            && !clients.iter().any(|c| c.is_finished())
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
        admin.query(cut, &[&world.schema.name]).await.expect("a superuser terminates");
    }
    is_over.store(true, std::sync::atomic::Ordering::SeqCst);
    for client in clients {
        for (key, token) in client.await.expect("does not panic") {
            let record = world.direct.read(&key).await.expect("reads").value.expect("acknowledged work is there");
            assert_eq!((record.token, record.state, record.version), (token, State::Done, 2));
        }
    }
}

// One thread: both commits are queued before any pipeline runs, so they are read together.
#[tokio::test]
#[ignore = "needs PostgreSQL: run make test"]
async fn who_follows_a_caller_that_went_away_is_served_all_the_same() {
    let schema = Schema::create().await;
    let options = Options { pipelines: 1, ..schema.options(None) };
    let store = Arc::new(PostgresStore::open(&server_url(), options).await.expect("opens"));
    let token = win(&*store, &key("held")).await;

    // The only writing pipeline waits for a row.
    let holder = connect().await;
    let hold = format!("BEGIN; SELECT FROM {}.claims FOR UPDATE", schema.name);
    holder.batch_execute(&hold).await.expect("locks");
    let settling = tokio::spawn({
        let store = store.clone();
        async move { apply(&*store, &key("held"), settle(token, "1")).await }
    });
    let is_waited_for =
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)))";
    while !holder.query_one(is_waited_for, &[]).await.expect("reads").get::<_, bool>(0) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    let key = key("k");
    let (mut first, mut second) = (Box::pin(win(&*store, &key)), Box::pin(win(&*store, &key)));
    assert!(futures::poll!(&mut first).is_pending() && futures::poll!(&mut second).is_pending());
    // Long enough for both commits to be read.
    tokio::time::sleep(Duration::from_millis(200)).await;
    drop(first);
    holder.batch_execute("ROLLBACK").await.expect("unlocks");
    let token = second.await;
    let record = store.read(&key).await.expect("reads").value.expect("is there");
    assert_eq!((record.token, record.version), (token, 1));
    assert!(matches!(settling.await.expect("does not panic"), Ok(Answer::Applied(_))));
}

#[tokio::test]
async fn opening_while_the_server_is_away_says_so_without_credentials() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("is bound").port();
    let url = format!("postgres://ann:secret@127.0.0.1:{free}/ledger");
    let Err(StoreError::Unavailable(why)) = PostgresStore::open(&url, Options::default()).await else {
        panic!("nobody listens there");
    };
    assert!(why.contains(&format!("127.0.0.1:{free}/ledger")) && !why.contains("secret"), "{why}");
}
