//! `/api/decisions`: every decision as it is made. Followers cost the server nothing, even if they do not read.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Client, Follower, Home, Raw, Server, claim_of, eventually};

/// The limit for "at once": far below the limit of a stop.
const AT_ONCE: Duration = Duration::from_secs(3);
/// The limit of a stop while a client does not read its answer.
const STOP_MAX: Duration = Duration::from_secs(10);

/// Makes this number of claims under one guard, of keys that begin with `name`.
async fn claim_many(client: &mut Client, name: &str, count: usize) {
    let batch: Vec<Value> = (0..count).map(|number| claim_of("flood", &format!("{name}-{number}"))).collect();
    client.post("/api/claims/batch", &json!(batch)).await.expect(200);
}

/// A follower that never reads.
async fn silent(address: SocketAddr, path: &str) -> Raw {
    let mut raw = Raw::connect(address).await;
    raw.write(format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n").as_bytes()).await;
    raw
}

#[tokio::test]
async fn a_decision_is_heard_as_it_is_made_in_the_words_of_the_log() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    client.win(&claim_of("charge", "before")).await;
    let mut follower = Follower::open(server.address, "/api/decisions").await;
    let (id, token) = client.win(&claim_of("charge", "order 17")).await;
    let asked = Instant::now();
    let won = follower.decision().await;
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    assert_eq!((&won["event"], &won["guard"], &won["claimId"]), (&json!("claim.won"), &json!("charge"), &json!(id)));
    client.claim(&claim_of("charge", "order 17")).await.expect(409);
    client.settle("charge", &id, token, &json!("a secret receipt")).await.expect(200);
    client.claim(&claim_of("charge", "order 17")).await.expect(200);
    for event in ["claim.in_flight", "claim.done", "claim.duplicate"] {
        let told = follower.decision().await;
        assert_eq!(told["event"], event);
        assert!(!told.to_string().contains("order 17") && !told.to_string().contains("secret"), "{told}");
        assert_eq!(told, server.logged(event, 1).await[0]);
    }
}

#[tokio::test]
async fn one_hears_what_one_asks_for_and_the_last_ones_first() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    for (guard, part) in [("a", "1"), ("b", "1"), ("b", "1"), ("a", "2"), ("a", "2"), ("b", "3")] {
        client.claim(&claim_of(guard, part)).await;
    }
    let cases: [(&str, &[(&str, &str)]); 6] = [
        ("guard=a&last=1000", &[("a", "claim.won"), ("a", "claim.won"), ("a", "claim.in_flight")]),
        ("fate=stopped&last=1000", &[("b", "claim.in_flight"), ("a", "claim.in_flight")]),
        ("event=claim.in&guard=b&last=1000", &[("b", "claim.in_flight")]),
        ("last=2", &[("a", "claim.in_flight"), ("b", "claim.won")]),
        ("last=0", &[]),
        ("event=message.&last=1000", &[]),
    ];
    for (query, expected) in cases {
        let mut follower = Follower::open(server.address, &format!("/api/decisions?{query}")).await;
        for (guard, event) in expected {
            let told = follower.decision().await;
            assert_eq!((&told["guard"], &told["event"]), (&json!(guard), &json!(event)), "{query}");
        }
    }
}

#[tokio::test]
async fn what_cannot_be_asked_for_is_a_400_that_names_it() {
    let home = Home::new();
    let server = home.serve();
    for (query, named) in [
        ("colour=red", "`colour`"),
        ("fate=gone", "passed, done, stopped, failed, needed, noted"),
        ("fate=", "fate"),
        ("last=1001", "last: at most 1000"),
        ("last=-1", "last"),
        ("last=all", "last"),
        ("guard=a&guard=b", "guard"),
    ] {
        server.client().get(&format!("/api/decisions?{query}")).await.expect_invalid(named);
    }
}

#[tokio::test]
async fn each_key_hears_its_own_workspace_until_it_is_revoked() {
    let home = Home::new();
    let server = home.serve();
    let (id, acme) = home.make_key("acme", "send");
    let (_, other) = home.make_key("other", "send");
    for key in [&acme, &other] {
        eventually("the key is known", || async {
            let known = server.client_with(key).get("/api/claims/nothing?guard=g").await.status;
            let unknown = server.client().get("/api/claims/nothing?guard=g").await.status;
            ((known, unknown) == (404, 401)).then_some(())
        })
        .await;
    }
    server.client().get("/api/decisions").await.expect_problem(401, "unauthorized");
    server.client_with("og_wrong").get("/api/decisions").await.expect_problem(401, "unauthorized");
    let follow = async |key: &str| {
        let bearer = format!("Bearer {key}");
        Follower::open_with(server.address, "/api/decisions?last=1000", &[("authorization", &bearer)]).await
    };
    let (mut of_acme, mut of_other) = (follow(&acme).await, follow(&other).await);
    server.client_with(&acme).win(&claim_of("g", "of acme")).await;
    server.client_with(&other).win(&claim_of("g", "of the other")).await;
    for (follower, workspace) in [(&mut of_acme, "acme"), (&mut of_other, "other")] {
        assert_eq!(follower.decision().await["workspace"], workspace);
    }
    let denied = server.client_with(&acme).header("oncegate-workspace", "other").get("/api/decisions").await;
    denied.expect_problem(403, "forbidden");
    home.run(["key", "revoke", &id]).expect_code(0);
    assert!(of_acme.next().await.is_none(), "its stream ends with the key");
    server.client_with(&other).win(&claim_of("g", "later")).await;
    assert_eq!(of_other.decision().await["workspace"], "other", "the other's goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_does_not_read_is_told_how_many_were_missed_and_costs_little() {
    const BATCHES: usize = 60;
    const BATCH: usize = 1_000;
    const SILENT: usize = 20;
    // Each follower holds at most the kept lines: 1,000 lines of about 250 bytes. The rest is memory that the allocator does not return.
    const GROWTH_KIB: u64 = 20 * 1024;
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    // Two rounds: the second round of the same keys must not grow anything.
    for batch in (0..BATCHES).chain(0..BATCHES) {
        claim_many(&mut client, &format!("{batch}"), BATCH).await;
    }
    let mut followers = vec![];
    for _ in 0..SILENT {
        followers.push(Follower::open(server.address, "/api/decisions").await);
    }
    let before = server.memory();
    for batch in 0..BATCHES {
        claim_many(&mut client, &format!("{batch}"), BATCH).await;
    }
    let grown = server.memory().saturating_sub(before);
    println!("{SILENT} followers that do not read, {} decisions: {grown} KiB more", BATCHES * BATCH);
    assert!(grown < GROWTH_KIB, "{grown} KiB");
    for follower in &mut followers {
        let (mut heard, mut missed) = (0, 0);
        while heard + missed < BATCHES * BATCH {
            let came = follower.next().await.expect("the stream goes on");
            match came.event.as_str() {
                "decision" => heard += 1,
                "missed" => missed += came.json()["missed"].as_u64().expect("a number") as usize,
                event => panic!("{event}"),
            }
        }
        assert!(missed > 0 && heard >= 1_000, "{heard} heard, {missed} missed");
        assert_eq!(heard + missed, BATCHES * BATCH, "each was heard, or counted");
    }
}

#[tokio::test]
async fn a_server_that_is_told_to_stop_ends_the_streams_at_once() {
    let home = Home::new();
    let mut server = home.serve();
    let paths = ["/api/decisions", "/live?on=overview", "/live?on=decisions"];
    let mut followers = vec![];
    for path in paths {
        followers.push(Follower::open(server.address, path).await);
    }
    let told = Instant::now();
    server.signal(Signal::TERM);
    for follower in &mut followers {
        while follower.next().await.is_some() {}
    }
    assert!(server.wait(STOP_MAX).success());
    assert!(told.elapsed() < AT_ONCE, "{:?}", told.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_stops_in_its_time_though_followers_do_not_read() {
    let home = Home::new();
    let mut server = home.serve();
    let mut held = vec![];
    for path in ["/api/decisions", "/live?on=overview", "/live?on=decisions"] {
        held.push(silent(server.address, path).await);
    }
    let mut client = server.client();
    // More than the buffers between server and client hold.
    for batch in 0..40 {
        claim_many(&mut client, &batch.to_string(), 1_000).await;
    }
    let told = Instant::now();
    server.signal(Signal::TERM);
    assert!(server.wait(STOP_MAX).success());
    println!("stopped after {:?}", told.elapsed());
}

/// Claims at a steady rate, nearly all of them duplicates.
async fn steady(address: SocketAddr, caller: usize, stop: Arc<AtomicBool>) {
    // Few keys, all of them claimed soon: the store's memory for them does not grow.
    const KEYS: usize = 20;
    let mut client = Client::new(address);
    for turn in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let body = claim_of(["charge", "mail", "sync"][turn % 3], &format!("{caller}-{}", turn / 3 % KEYS));
        let answer = client.claim(&body).await;
        if answer.status == 201 {
            let (id, token) = (answer.text("id"), answer.body["token"].as_i64().expect("a token"));
            client.settle(body["guard"].as_str().expect("text"), &id, token, &json!({"turn": turn})).await.expect(200);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The lowest of a few samples, so that a short peak does not count.
async fn settled_memory(server: &Server) -> u64 {
    let mut least = u64::MAX;
    for _ in 0..10 {
        least = least.min(server.memory());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    least
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes 40 seconds: run make test"]
async fn a_dashboard_that_is_left_open_on_a_busy_server_does_not_grow_its_memory() {
    const CALLERS: usize = 4;
    const FOLLOWERS: usize = 20;
    const WARM_UP: Duration = Duration::from_secs(8);
    const WATCHED: Duration = Duration::from_secs(20);
    // A leak of one line of 250 bytes for each decision and follower would be 20 s * 300/s * 20 * 250 bytes, 30 MB. The limit leaves room
    // for
    // memory that the allocator took for a short peak.
    const GROWTH_KIB: u64 = 8 * 1024;
    // In memory, because a store on disk has a cache that fills for a while.
    let home = Home::with_config("store = \"memory:\"\n");
    let server = home.serve();
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> =
        (0..CALLERS).map(|caller| tokio::spawn(steady(server.address, caller, stop.clone()))).collect();
    let paths = ["/live?on=overview", "/live?on=decisions", "/api/decisions", "/live?on=overview&range=week"];
    let mut readers = vec![];
    let mut held = vec![];
    for number in 0..FOLLOWERS {
        let path = paths[number / 2 % paths.len()];
        if number % 2 == 0 {
            held.push(silent(server.address, path).await);
            continue;
        }
        let mut follower = Follower::open(server.address, path).await;
        readers.push(tokio::spawn(async move { while follower.next().await.is_some() {} }));
    }
    tokio::time::sleep(WARM_UP).await;
    let before = settled_memory(&server).await;
    tokio::time::sleep(WATCHED).await;
    let after = settled_memory(&server).await;
    for reader in readers {
        reader.abort();
    }
    drop(held);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let left = settled_memory(&server).await;
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.expect("every caller is answered");
    }
    println!("after the warm-up {before} KiB, {WATCHED:?} later {after} KiB, when they had left {left} KiB");
    assert!(after < before + GROWTH_KIB, "{before} KiB, then {after} KiB");
    assert!(left <= after, "{after} KiB with followers, {left} KiB without");
}
