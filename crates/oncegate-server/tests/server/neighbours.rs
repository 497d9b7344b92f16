//! Two workspaces on one server, of which one uses as much as it can: it is refused more, and the other does not notice.
//!
//! `oncegate bench --only neighbours` measures the other workspace's latency meanwhile.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use futures::future::join_all;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Client, Follower, Home, PATIENCE, Raw, SEARCH_IMPORT, Server, claim_of, eventually, with};

/// The maximum time of the neighbour's claim on a busy machine. The attacks below delayed it by 2.5 s to 30 s.
const UNDISTURBED: Duration = Duration::from_secs(2);

/// A server with a busy workspace and a calm one.
struct Street {
    server: Server,
    busy: String,
    calm: String,
    _home: Home,
}

impl Street {
    fn open(toml: &str) -> Street {
        let home = Home::with_config(toml);
        let (_, busy) = home.make_key("busy", "operate");
        let (_, calm) = home.make_key("calm", "operate");
        Street { server: home.serve(), busy, calm, _home: home }
    }

    fn busy(&self) -> Client {
        self.server.client_with(&self.busy)
    }

    /// A request of the busy workspace, up to its body.
    fn head(&self, path: &str, more: &str) -> String {
        format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n{more}\r\n\r\n",
            self.server.address, self.busy
        )
    }

    async fn follow(&self, key: &str) -> Follower {
        let key = format!("Bearer {key}");
        Follower::open_with(self.server.address, "/api/decisions", &[("authorization", &key)]).await
    }

    /// The metric counts a refusal at this limit.
    async fn is_counted(&self, limit: &str) {
        let line = format!("oncegate_workspace_limited_total{{limit=\"{limit}\"}}");
        let metrics = self.server.client_with(&self.calm).get("/metrics").await.expect(200).text;
        assert!(metrics.contains(&line), "{line} is not in {metrics}");
    }

    /// The calm workspace can claim, and a health check is answered.
    async fn is_undisturbed(&self, part: &str) {
        let asked = Instant::now();
        self.server.client_with(&self.calm).claim(&claim_of("g", part)).await.expect(201);
        let claimed = asked.elapsed();
        self.server.client().get("/healthz").await.expect(200);
        let answered = asked.elapsed();
        assert!(claimed < UNDISTURBED && answered < UNDISTURBED, "{part}: {claimed:?}, {answered:?}");
    }
}

#[tokio::test]
async fn a_workspace_at_its_rate_pays_for_each_event_of_a_list() {
    let street = Street::open("[limits]\nrate = 5");
    let list: Vec<Value> = (0..500).map(|_| json!({"type": "Nothing"})).collect();
    street.busy().post("/api/events", &json!(list)).await.expect(200);
    let refused = street.busy().claim(&claim_of("g", "a")).await.expect_problem(429, "rate-limited");
    let seconds: u64 = refused.header("retry-after").expect("a time").parse().expect("seconds");
    assert!(seconds > 90, "500 events at 5 a second: {seconds}");
    let limited = street.server.logged("workspace.limited", 1).await;
    assert_eq!((&limited[0]["workspace"], &limited[0]["limit"]), (&json!("busy"), &json!("rate")));
    street.is_counted("rate").await;
    street.is_undisturbed("rate").await;
}

#[tokio::test]
async fn callers_that_wait_are_limited_and_leave_connections_to_others() {
    let street = Street::open("[limits]\nconnections = 40\nworkspace.waiters = 20\nworkspace.connections = 30");
    street.busy().win(&claim_of("g", "k")).await;
    let waiting = with(claim_of("g", "k"), json!({"waitSeconds": 20}));
    let mut waiters: Vec<_> = (0..29)
        .map(|_| {
            let (mut client, body) = (street.busy(), waiting.clone());
            tokio::spawn(async move { client.claim(&body).await })
        })
        .collect();
    // Nine requests are refused at once, and the others wait.
    for _ in 0..9 {
        let (refused, _, rest) = futures::future::select_all(waiters).await;
        let refused = refused.expect("no panic").expect_problem(429, "workspace-limit");
        assert!(refused.text("detail").contains("20 callers waiting at once"), "{refused:?}");
        waiters = rest;
    }
    street.is_counted("waiters").await;
    street.is_undisturbed("waiters").await;
    let lease = json!({"types": ["t"], "waitSeconds": 20});
    street.busy().post("/api/actions/lease", &lease).await.expect_problem(429, "workspace-limit");
    waiters.iter().for_each(|waiter| waiter.abort());
    eventually("the waiters have gone", || async {
        let short = with(claim_of("g", "k"), json!({"waitSeconds": 0.01}));
        (street.busy().claim(&short).await.status == 409).then_some(())
    })
    .await;
}

#[tokio::test]
async fn connections_of_a_workspace_are_limited_and_health_is_told_when_all_are_taken() {
    let street = Street::open("[limits]\nconnections = 12\nworkspace.connections = 10");
    let mut idle = vec![];
    for _ in 0..10 {
        let mut client = street.busy();
        client.get("/api/claims").await.expect(200);
        idle.push(client);
    }
    let mut refused = street.busy();
    let problem = refused.get("/api/claims").await.expect_problem(429, "workspace-limit");
    assert_eq!(problem.header("connection"), Some("close"), "{problem:?}");
    assert!(problem.text("detail").contains("10 connections at once"), "{problem:?}");
    street.is_counted("connections").await;
    street.is_undisturbed("connections").await;

    // All connections now belong to workspaces.
    let mut calm = vec![];
    for _ in 0..2 {
        let mut client = street.server.client_with(&street.calm);
        client.get("/api/claims").await.expect(200);
        calm.push(client);
    }
    let busy = street.server.client_with(&street.calm).get("/api/claims").await.expect_problem(503, "server-busy");
    assert_eq!(busy.header("connection"), Some("close"), "{busy:?}");
    let mut silent = vec![];
    for _ in 0..100 {
        silent.push(Raw::connect(street.server.address).await);
    }
    street.server.client().get("/healthz").await.expect(200);
    street.server.client().get("/readyz").await.expect(200);
    drop(calm);
    eventually("there is room again", || async {
        (street.server.client_with(&street.calm).get("/api/claims").await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn connections_that_say_nothing_make_room_for_others() {
    let street = Street::open("[limits]\nconnections = 12\nworkspace.connections = 8");
    let mut kept = street.server.client_with(&street.calm);
    kept.get("/api/claims").await.expect(200);
    let mut silent = vec![];
    for round in 0..3 {
        // This client sends an endless request.
        let mut slow = Raw::connect(street.server.address).await;
        slow.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-slow: ").await;
        silent.push(slow);
        for _ in 0..30 {
            silent.push(Raw::connect(street.server.address).await);
        }
        let begun = Instant::now();
        eventually("a newcomer has a place", || async {
            let part = format!("silence {round}");
            let claimed = street.server.client_with(&street.calm).claim(&claim_of("g", &part)).await;
            (claimed.status == 201).then_some(())
        })
        .await;
        // Their heads would time out only after 10 s.
        assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
        kept.get("/api/claims").await.expect(200);
        street.server.client().get("/healthz").await.expect(200);
    }
    assert_eq!(silent[0].read_to_close(Duration::from_secs(5)).await, "");
}

#[tokio::test]
async fn requests_in_flight_are_limited_and_leave_the_server_to_others() {
    let street = Street::open("[limits]\nworkspace.requests = 10");
    street.busy().win(&claim_of("g", "k")).await;
    let waiting = with(claim_of("g", "k"), json!({"waitSeconds": 20}));
    let waiters: Vec<_> = (0..10)
        .map(|_| {
            let (mut client, body) = (street.busy(), waiting.clone());
            tokio::spawn(async move { client.claim(&body).await })
        })
        .collect();
    let refused = eventually("ten wait", || async {
        Some(street.busy().claim(&claim_of("g", "k")).await).filter(|asked| asked.status == 429)
    })
    .await
    .expect_problem(429, "workspace-limit");
    assert!(refused.text("detail").contains("10 requests in flight at once"), "{refused:?}");
    street.busy().get("/metrics").await.expect_problem(429, "workspace-limit");
    street.is_counted("requests").await;
    street.is_undisturbed("requests").await;
    waiters.iter().for_each(|waiter| waiter.abort());
    eventually("those that left make room", || async {
        (street.busy().claim(&claim_of("g", "k")).await.status == 409).then_some(())
    })
    .await;
}

#[tokio::test]
async fn followers_of_one_workspace_leave_live_views_to_others() {
    let street = Street::open("[limits]\nworkspace.followers = 3");
    let mut following = vec![];
    for _ in 0..3 {
        following.push(street.follow(&street.busy).await);
    }
    street.busy().get("/api/decisions").await.expect_problem(429, "workspace-limit");
    let mut calm = street.follow(&street.calm).await;
    street.is_undisturbed("followers").await;
    assert_eq!(calm.decision().await["event"], "claim.won");
    drop(following);
    eventually("followers that left make room", || async {
        let mut client = Raw::connect(street.server.address).await;
        let (address, key) = (street.server.address, &street.busy);
        let head = format!("GET /api/decisions HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\n\r\n");
        client.write(head.as_bytes()).await;
        (client.read_status().await == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn bodies_that_stall_take_the_room_of_their_own_workspace_alone() {
    let street = Street::open("[limits]\nworkspace.bodies = \"8MiB\"");
    let stalled = async |head: String, begun: &[u8]| {
        let mut client = Raw::connect(street.server.address).await;
        client.write(head.as_bytes()).await;
        client.write(begun).await;
        client
    };
    let mut clients = vec![];
    for _ in 0..100 {
        let head = street.head("/api/events", "transfer-encoding: chunked");
        clients.push(stalled(head, b"1\r\n[\r\n").await);
        let head = street.head("/api/events", "content-length: 4000000");
        clients.push(stalled(head, b"[").await);
    }
    street.is_undisturbed("bodies").await;
    // A large body of the calm workspace has its own room.
    let large = json!({"type": "Nothing", "data": "x".repeat(2_000_000)});
    let asked = Instant::now();
    street.server.client_with(&street.calm).post("/api/events", &large).await.expect(200);
    assert!(asked.elapsed() < UNDISTURBED, "{:?}", asked.elapsed());
    // A client that has its turn and does not use it loses it; a client that gets no turn is refused.
    let mut said = vec![];
    for client in &mut clients[..10] {
        said.push(client.read_to_close(PATIENCE + Duration::from_secs(15)).await);
    }
    assert!(said.iter().any(|said| said.starts_with("HTTP/1.1 408 ")), "{said:?}");
    street.is_counted("bodies").await;
    street.is_undisturbed("bodies, later").await;
}

#[tokio::test]
async fn lists_of_events_wait_for_the_turns_of_their_own_workspace() {
    let street = Street::open(&format!("[sagas]\nfiles = [{SEARCH_IMPORT:?}]"));
    let lists = (0..40).map(|list| {
        let mut client = street.busy();
        let started = |i| json!({"type": "SearchUploadStarted", "id": format!("{list} {i}"), "data": {"searchId": format!("{list} {i}")}});
        let events: Vec<Value> = (0..500).map(started).collect();
        async move { client.post("/api/events", &json!(events)).await.expect(200) }
    });
    let flood = tokio::spawn(join_all(lists.collect::<Vec<_>>()));
    let mut asked = 0;
    while !flood.is_finished() && asked < 50 {
        street.is_undisturbed(&format!("events {asked}")).await;
        asked += 1;
    }
    assert!(asked > 3, "the flood was over at once");
    flood.await.expect("every list is applied");
}

#[tokio::test]
async fn what_a_workspace_may_store_is_limited_in_number_and_in_bytes() {
    let street = Street::open("[limits.workspace]\nclaims = 1000000\nstored = \"1MiB\"");
    let mut busy = street.busy();
    let ten_years = json!({"ttlSeconds": 10 * 365 * 24 * 3600});
    let (first, first_token) = busy.win(&with(claim_of("g", "0"), ten_years.clone())).await;
    let mut refused = None;
    for number in 1..20 {
        let body = with(claim_of("g", &number.to_string()), ten_years.clone());
        let claimed = busy.claim(&body).await;
        if claimed.status == 429 {
            refused = Some(claimed);
            break;
        }
        let won = claimed.expect(201);
        let (id, token) = (won.text("id"), won.body["token"].as_i64().expect("a token"));
        busy.settle("g", &id, token, &json!("x".repeat(200_000))).await.expect(200);
    }
    let refused = refused.expect("it is refused at some time").expect_problem(429, "quota-exceeded");
    assert!(refused.text("detail").contains("of at most 1048576 (limits.workspace.stored)"), "{refused:?}");
    street.is_counted("stored").await;
    for path in ["/api/messages", "/api/actions", "/api/sends", "/api/reminders", "/api/events", "/api/leads"] {
        busy.post(path, &json!({})).await.expect_problem(429, "quota-exceeded");
    }
    let batch = json!([claim_of("g", "in a batch")]);
    busy.post("/api/claims/batch", &batch).await.expect_problem(429, "quota-exceeded");
    // Owners can still settle their claims, and reads still work.
    let large = json!("x".repeat(5_000));
    busy.settle("g", &first, first_token, &large).await.expect_problem(429, "quota-exceeded");
    busy.settle("g", &first, first_token, &json!("small")).await.expect(200);
    busy.get("/api/claims").await.expect(200);
    street.is_undisturbed("quota").await;
    // Stored data is measured, too: a newly started server knows it.
    let street = Street { server: street._home.serve(), ..street };
    eventually("the next server has measured it", || async {
        let claimed = street.busy().claim(&claim_of("g", "another")).await;
        (claimed.status == 429).then_some(())
    })
    .await;
}

#[tokio::test]
async fn claims_count_as_stored_however_they_are_won() {
    let street = Street::open("[limits.workspace]\nclaims = 4");
    let mut busy = street.busy();
    busy.win(&claim_of("g", "at once")).await;
    busy.win(&with(claim_of("g", "waiting"), json!({"waitSeconds": 5}))).await;
    let batch = json!([claim_of("g", "in a batch"), with(claim_of("g", "there, too"), json!({"waitSeconds": 5}))]);
    busy.post("/api/claims/batch", &batch).await.expect(200);
    let refused = busy.claim(&claim_of("g", "another")).await.expect_problem(429, "quota-exceeded");
    assert!(refused.text("detail").contains("at most 4 (limits.workspace.claims)"), "{refused:?}");
    street.is_counted("claims").await;
    street.is_undisturbed("counted").await;
}

#[tokio::test]
async fn a_lease_of_many_large_actions_is_answered_with_some_of_them() {
    let street = Street::open("");
    let mut busy = street.busy();
    for number in 0..30 {
        let payload = json!({"n": number, "text": "x".repeat(900_000)});
        let action = json!({"actionType": "large", "payload": payload});
        busy.post("/api/actions", &action).await.expect(201);
    }
    let mut seen = vec![];
    while seen.len() < 30 {
        let leased = busy.post("/api/actions/lease", &json!({"types": ["large"], "max": 100})).await.expect(200);
        assert!(leased.text.len() < 13 * 1024 * 1024, "{}", leased.text.len());
        let leased = leased.body.as_array().expect("a list").clone();
        assert!(!leased.is_empty(), "after {}", seen.len());
        seen.extend(leased.iter().map(|action| action["id"].as_str().expect("an id").to_owned()));
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 30);
}

#[tokio::test]
async fn a_lease_whose_answer_has_no_room_gives_its_actions_back() {
    let street = Street::open("[limits.workspace]\nanswers = \"9MiB\"");
    let mut busy = street.busy();
    for number in 0..16 {
        let payload = json!({"n": number, "text": "x".repeat(1_000_000)});
        busy.post("/api/actions", &json!({"actionType": "large", "payload": payload})).await.expect(201);
    }
    let lease = json!({"types": ["large"], "max": 8});
    let mut silent = Raw::connect_narrow(street.server.address).await.with_key(&street.busy);
    let request = silent.post("/api/actions/lease", &lease);
    silent.write(request.as_bytes()).await;
    assert_eq!(silent.read_status().await, 200);
    // The system's buffers take a part of the answer; the rest waits for its client.
    let refused = busy.post("/api/actions/lease", &lease).await.expect_problem(429, "workspace-limit");
    assert!(refused.text("detail").contains("limits.workspace.answers"), "{refused:?}");
    street.is_counted("answers").await;
    street.is_undisturbed("answers").await;
    silent.close();
    let again = AtomicUsize::new(0);
    eventually("the actions of the refused lease are leased again", || async {
        let leased = street.busy().post("/api/actions/lease", &lease).await;
        let some = leased.body.as_array().map_or(0, Vec::len);
        (again.fetch_add(some, Relaxed) + some == 8).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_limit_that_was_reached_is_counted_and_logged() {
    let street = Street::open("[limits]\nworkspace.followers = 1");
    let _follower = street.follow(&street.busy).await;
    street.busy().get("/api/decisions").await.expect(429);
    street.is_counted("followers").await;
    assert_eq!(street.server.logged("workspace.limited", 1).await[0]["limit"], "followers");
}

#[tokio::test]
async fn a_server_under_all_of_it_still_stops_in_its_time() {
    let mut street = Street::open("");
    street.busy().win(&claim_of("g", "k")).await;
    let waiting = with(claim_of("g", "k"), json!({"waitSeconds": 60}));
    for _ in 0..50 {
        let (mut client, body) = (street.busy(), waiting.clone());
        tokio::spawn(async move {
            client.try_send(hyper::Method::POST, "/api/claims", Some(body.to_string().into())).await
        });
    }
    let mut stalled = vec![];
    for _ in 0..50 {
        let mut client = Raw::connect(street.server.address).await;
        client.write(street.head("/api/events", "transfer-encoding: chunked").as_bytes()).await;
        stalled.push(client);
    }
    street.is_undisturbed("before").await;
    street.server.signal(Signal::TERM);
    let status = street.server.wait(Duration::from_secs(12));
    assert!(status.success(), "{status:?}");
}
