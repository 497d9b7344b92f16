//! Two servers over one PostgreSQL database are one Oncegate: through either of them, there is one winner and one outcome, and
//! nothing is lost when one of them is stopped or killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tokio::sync::Barrier;

use crate::support::{
    Cluster, Database, Faults, Home, Ledger, Server, claim_of, claims_and_settles, eventually, verify, with,
};

struct Pair {
    a: Server,
    b: Server,
    home: Home,
    // The last field: dropped after the servers are gone.
    _database: Database,
}

async fn pair() -> Pair {
    let database = Database::create().await;
    let home = Home::with_config(&format!("store = {:?}\n", database.url()));
    Pair { a: home.serve(), b: home.serve(), home, _database: database }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn of_64_callers_on_two_servers_one_wins_in_each_of_1000_rounds() {
    const CALLERS: usize = 64;
    const ROUNDS: usize = 1000;
    let pair = pair().await;
    let start = Arc::new(Barrier::new(CALLERS));
    let winners: Arc<Vec<AtomicUsize>> = Arc::new((0..ROUNDS).map(|_| AtomicUsize::new(0)).collect());
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (start, winners) = (start.clone(), winners.clone());
            let mut client = if caller % 2 == 0 { pair.a.client() } else { pair.b.client() };
            tokio::spawn(async move {
                for (round, winners) in winners.iter().enumerate() {
                    start.wait().await;
                    let answer = client.claim(&claim_of("race", &format!("round {round}"))).await;
                    match answer.status {
                        201 => winners.fetch_add(1, Ordering::Relaxed),
                        _ => answer.expect_problem(409, "in-flight").status.into(),
                    };
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("every caller is answered in every round");
    }
    for (round, winners) in winners.iter().enumerate() {
        assert_eq!(winners.load(Ordering::Relaxed), 1, "round {round}");
    }
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_waiter_on_one_server_is_woken_by_a_settle_or_a_release_on_the_other() {
    let pair = pair().await;
    let mut owner = pair.a.client();
    for verb in ["settle", "release"] {
        let body = claim_of("g", verb);
        let (id, token) = owner.win(&body).await;
        let (mut client, waiting) = (pair.b.client(), with(body, json!({"waitSeconds": 20})));
        let waiter = tokio::spawn(async move { (client.claim(&waiting).await, Instant::now()) });
        // A late waiter is answered at once, so it proves less but never fails the test.
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!waiter.is_finished());
        let ending = Instant::now();
        owner.owner(verb, "g", &id, token).await.expect(200);
        let (answer, at) = waiter.await.unwrap();
        answer.expect(if verb == "settle" { 200 } else { 201 });
        println!("woken by a {verb} on the other server after {:?}", at - ending);
        assert!(at - ending < Duration::from_secs(1), "{verb}: {:?}", at - ending);
    }
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_key_made_on_the_command_line_is_seen_by_both_servers() {
    let pair = pair().await;
    for server in [&pair.a, &pair.b] {
        server.client().get("/api/claims").await.expect(200);
    }
    let (id, secret) = pair.home.make_key("acme", "operate");
    for server in [&pair.a, &pair.b] {
        status_becomes(server, None, 401).await;
        status_becomes(server, Some(&secret), 200).await;
    }
    pair.home.run(["key", "revoke", &id]).expect_code(0);
    for server in [&pair.a, &pair.b] {
        status_becomes(server, Some(&secret), 401).await;
    }
}

async fn status_becomes(server: &Server, key: Option<&str>, status: u16) {
    eventually(&format!("status {status}"), || async {
        let mut client = key.map_or_else(|| server.client(), |key| server.client_with(key));
        (client.get("/api/claims").await.status == status).then_some(())
    })
    .await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run make test"]
async fn what_a_stopped_server_writes_after_another_took_over_is_fenced() {
    let pair = pair().await;
    let body = with(claim_of("g", "k"), json!({"leaseSeconds": 0.5}));
    let mut owner = pair.a.client();
    let (id, stale) = owner.win(&body).await;
    pair.a.signal(Signal::STOP);
    // The settle is on its way when its server wakes up, too late.
    let late = tokio::spawn({
        let id = id.clone();
        async move { owner.settle("g", &id, stale, &json!("mine")).await }
    });
    let mut other = pair.b.client();
    let (_, next) = other.win(&with(body, json!({"waitSeconds": 20, "leaseSeconds": 60}))).await;
    assert!(next > stale);
    pair.a.signal(Signal::CONT);
    late.await.unwrap().expect_problem(409, "fenced");
    let claim = other.show("g", &id).await.expect(200).body;
    assert_eq!((&claim["state"], &claim["token"]), (&json!("in_flight"), &json!(next)));
    pair.a.client().settle("g", &id, next, &json!("theirs")).await.expect(200);
    assert_eq!(other.claim(&claim_of("g", "k")).await.expect(200).body["outcome"], "theirs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn one_server_is_killed_20_times_while_the_other_goes_on_and_nothing_acknowledged_is_lost() {
    const KILLS: usize = 20;
    let Pair { a, b, home, _database } = pair().await;
    let (ledger, stop) = (Arc::new(Ledger::default()), Arc::new(AtomicBool::new(false)));
    let client = |server: &Server, name: String| {
        let (ledger, stop, address) = (ledger.clone(), stop.clone(), server.address);
        tokio::spawn(async move { claims_and_settles(address, &name, &ledger, &stop, Faults::None).await })
    };
    let survivors: Vec<_> = (0..4).map(|number| client(&b, format!("survivor-{number}"))).collect();
    let mut killed = a;
    for kill in 0..KILLS {
        let before = ledger.len();
        let victims: Vec<_> = (0..4).map(|number| client(&killed, format!("{kill}-{}", number / 2))).collect();
        eventually("the load has begun", || async { (ledger.len() > before + 8).then_some(()) }).await;
        tokio::time::sleep(Duration::from_micros((kill as u64 * 7919) % 60_000)).await;
        killed.kill();
        for victim in victims {
            assert!(victim.await.expect("no client was told anything that cannot be").is_err());
        }
        killed = home.serve();
    }
    stop.store(true, Ordering::Relaxed);
    for survivor in survivors {
        survivor.await.expect("no client was told anything that cannot be").expect("the other server goes on");
    }
    ledger.assert_one_winner_each();
    let (of_killed, of_other) = (ledger.all(), ledger.all());
    tokio::join!(verify(killed.address, &of_killed), verify(b.address, &of_other));
    println!(
        "{KILLS} kills, {} acknowledged claims, {} acknowledged settles, all there",
        ledger.len(),
        ledger.settled()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn postgresql_crashes_10_times_under_two_servers_and_nothing_acknowledged_is_lost() {
    const CRASHES: usize = 10;
    let cluster = Cluster::start();
    let home = Home::with_config(&format!("store = {:?}\n", cluster.url()));
    let servers = [home.serve(), home.serve()];
    let (ledger, stop) = (Arc::new(Ledger::default()), Arc::new(AtomicBool::new(false)));
    // Two clients of each name, one on each server, race for the same keys.
    let clients: Vec<_> = (0..8)
        .map(|number| {
            let (ledger, stop, address) = (ledger.clone(), stop.clone(), servers[number % 2].address);
            let name = format!("racer-{}", number / 2);
            tokio::spawn(async move { claims_and_settles(address, &name, &ledger, &stop, Faults::OfTheStore).await })
        })
        .collect();
    for crash in 0..CRASHES {
        let before = ledger.settled();
        eventually("both servers work", || async { (ledger.settled() > before + 50).then_some(()) }).await;
        tokio::time::sleep(Duration::from_micros((crash as u64 * 7919) % 60_000)).await;
        tokio::task::block_in_place(|| {
            cluster.crash();
            cluster.start_again();
        });
    }
    let before = ledger.settled();
    eventually("both servers work again", || async { (ledger.settled() > before + 50).then_some(()) }).await;
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        let ended = client.await.expect("no client was told anything that cannot be");
        ended.expect("a server survives the crash of its store");
    }
    ledger.assert_one_winner_each();
    let (of_one, of_other) = (ledger.all(), ledger.all());
    tokio::join!(verify(servers[0].address, &of_one), verify(servers[1].address, &of_other));
    println!(
        "{CRASHES} crashes of PostgreSQL, {} acknowledged claims, {} acknowledged settles, all there",
        ledger.len(),
        ledger.settled()
    );
}
