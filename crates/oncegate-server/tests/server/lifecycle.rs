//! The server as a process: how it stops, what it stores, and what it reports about itself.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Client, Home, Raw, claim_of, eventually, with};

const STOP_MAX: Duration = Duration::from_secs(10);

#[tokio::test]
async fn told_to_stop_it_sends_waiters_away_and_exits_0_within_10_s() {
    let home = Home::new();
    let mut server = home.serve();
    let mut idle = server.client();
    let (_, token) = idle.win(&claim_of("g", "k")).await;
    let mut waiting = server.client();
    let waiter =
        tokio::spawn(async move { waiting.claim(&with(claim_of("g", "k"), json!({"waitSeconds": 30}))).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let started = Instant::now();
    server.signal(Signal::TERM);
    let status = server.wait(STOP_MAX);
    assert!(status.success(), "{status}");
    assert!(started.elapsed() < STOP_MAX, "{:?}", started.elapsed());
    let sent_away = waiter.await.unwrap().expect_problem(409, "in-flight");
    assert!(sent_away.header("retry-after").is_some());
    server.logged("server.stopped", 1).await;
    let server = home.serve();
    let claim = server.client().post("/api/claims/find", &claim_of("g", "k")).await.expect(200).body;
    assert_eq!((&claim["token"], &claim["state"]), (&json!(token), &json!("in_flight")));
}

/// A pipe holds 64 KiB; a reader that has stopped reading it must not keep the server from ending.
#[tokio::test]
async fn told_to_stop_it_does_not_wait_for_whoever_stopped_reading_its_log() {
    let home = Home::new();
    let mut server = home.serve_with_unread_log();
    let batch: Vec<_> = (0..1000).map(|i| claim_of("g", &i.to_string())).collect();
    server.client().post("/api/claims/batch", &json!(batch)).await.expect(200);
    server.signal(Signal::TERM);
    let status = server.wait(STOP_MAX);
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn told_to_stop_it_does_not_wait_for_a_client_that_stalls() {
    let home = Home::new();
    let mut server = home.serve();
    let mut stalled = Raw::connect(server.address).await;
    stalled.post_head("content-length: 100").await;
    let mut silent = Raw::connect(server.address).await;
    silent.write(b"GET /heal").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.signal(Signal::TERM);
    let status = server.wait(STOP_MAX);
    assert!(status.success(), "{status}");
}

/// Another process locks the file, so that the writer waits.
fn hold_the_file(home: &Home) -> rusqlite::Connection {
    let file = home.store_files().into_iter().find(|file| file.extension().is_some_and(|end| end == "db"));
    let other = rusqlite::Connection::open(file.expect("the store is there")).expect("opens");
    other.execute_batch("BEGIN IMMEDIATE").expect("takes the lock");
    other
}

#[tokio::test]
async fn told_to_stop_it_does_not_wait_for_whoever_holds_its_file() {
    let home = Home::new();
    let mut server = home.serve();
    server.client().win(&claim_of("g", "k")).await;
    let _held = hold_the_file(&home);
    let mut client = server.client();
    let unanswered = tokio::spawn(async move { client.claim(&claim_of("g", "other")).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.signal(Signal::TERM);
    let status = server.wait(STOP_MAX);
    assert!(status.success(), "{status}");
    unanswered.await.unwrap().expect_problem(503, "store-unavailable");
}

#[tokio::test]
async fn what_a_person_did_is_in_the_log_though_they_hung_up() {
    let home = Home::new();
    let server = home.serve();
    let (id, _) = server.client().win(&claim_of("g", "k")).await;
    let held = hold_the_file(&home);
    let mut client = server.client();
    let forget = tokio::spawn(async move { client.delete(&format!("/api/claims/{id}?guard=g&note=why")).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    // Aborting the task closes its connection.
    forget.abort();
    assert!(forget.await.unwrap_err().is_cancelled());
    tokio::time::sleep(Duration::from_millis(100)).await;
    held.execute_batch("COMMIT").unwrap();
    assert_eq!(server.logged("audit.forget", 1).await[0]["why"], "why");
}

#[tokio::test]
async fn it_can_be_told_to_stop_as_soon_as_it_says_that_it_listens() {
    let home = Home::new();
    for signal in [Signal::TERM, Signal::INT].repeat(5) {
        let mut server = home.serve();
        server.signal(signal);
        let status = server.wait(STOP_MAX);
        assert!(status.success(), "{signal:?}: {status}");
    }
}

#[tokio::test]
async fn a_port_that_is_taken_is_said_with_a_hint() {
    let home = Home::new();
    let server = home.serve();
    let taken = server.address.to_string();
    home.run(["serve", "--listen", &taken]).expect_failure(1, "cannot listen on", "--listen 127.0.0.1:0");
}

#[tokio::test]
async fn what_was_claimed_and_settled_is_there_after_a_restart() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let (done, token) = client.win(&claim_of("g", "done")).await;
    client.settle("g", &done, token, &json!({"n": 1})).await.expect(200);
    let (flying, token) = client.win(&claim_of("g", "in flight")).await;
    let before = client.show("g", &done).await.body;
    let (status, _) = server.stop();
    assert!(status.success());
    let server = home.serve();
    let mut client = server.client();
    assert_eq!(client.show("g", &done).await.expect(200).body, before);
    client.claim(&claim_of("g", "in flight")).await.expect_problem(409, "in-flight");
    client.settle("g", &flying, token, &json!(2)).await.expect(200);
}

#[tokio::test]
async fn it_says_whether_it_lives_and_whether_its_store_does() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    assert_eq!(client.get("/healthz").await.expect(200).text, "ok\n");
    let ready = client.get("/readyz").await.expect(200).body;
    assert_eq!((&ready["status"], &ready["store"]), (&json!("ready"), &json!("sqlite")));
}

/// The value of a metric, by its name and every label that it must have.
async fn metric(client: &mut Client, name: &str, labels: &[&str]) -> f64 {
    let metrics = client.get("/metrics").await.expect(200);
    assert!(metrics.header("content-type").is_some_and(|declared| declared.starts_with("text/plain")));
    let series =
        metrics.text.lines().filter(|line| line.starts_with(name) && labels.iter().all(|label| line.contains(label)));
    let value = |line: &str| line.rsplit_once(' ').and_then(|(_, value)| value.parse::<f64>().ok());
    series.map(|line| value(line).expect("a series ends in a number")).sum()
}

#[tokio::test]
async fn metrics_count_decisions_by_guard_and_answer() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let decisions = "oncegate_decisions_total{";
    assert_eq!(metric(&mut client, decisions, &[]).await, 0.0);
    let (id, token) = client.win(&claim_of("counted", "k")).await;
    client.claim(&claim_of("counted", "k")).await.expect(409);
    client.settle("counted", &id, token, &json!(1)).await.expect(200);
    for _ in 0..3 {
        client.claim(&claim_of("counted", "k")).await.expect(200);
    }
    let guard = "guard=\"counted\"";
    for (answer, count) in [("won", 1.0), ("in_flight", 1.0), ("applied", 1.0), ("duplicate", 3.0), ("fenced", 0.0)] {
        let counted = metric(&mut client, decisions, &[guard, &format!("answer=\"{answer}\"")]).await;
        assert_eq!(counted, count, "{answer}");
    }
    assert_eq!(metric(&mut client, "oncegate_duplicates_stopped_total{", &[guard]).await, 4.0);
    assert!(metric(&mut client, "oncegate_http_requests_total{", &["status=\"2xx\""]).await >= 5.0);
    assert!(metric(&mut client, "oncegate_http_request_seconds_bucket{", &["le=\"5\""]).await >= 5.0);
    assert!(metric(&mut client, "oncegate_http_connections ", &[]).await >= 1.0);
    let text = client.get("/metrics").await.text;
    for line in text.lines().filter(|line| !line.is_empty()) {
        assert!(line.starts_with("# ") || line.starts_with("oncegate_"), "{line}");
    }
}

#[tokio::test]
async fn the_description_of_the_api_has_every_route() {
    let home = Home::new();
    let server = home.serve();
    let description = server.client().get("/openapi.json").await.expect(200);
    assert_eq!(description.header("content-type"), Some("application/json"));
    let paths = description.body["paths"].as_object().unwrap();
    let described: BTreeSet<String> = paths
        .iter()
        .flat_map(|(path, methods)| methods.as_object().unwrap().keys().map(move |method| format!("{method} {path}")))
        .collect();
    let routes = [
        "post /api/claims",
        "get /api/claims",
        "post /api/claims/batch",
        "post /api/claims/find",
        "get /api/claims/{id}",
        "delete /api/claims/{id}",
        "post /api/claims/{id}/renew",
        "post /api/claims/{id}/settle",
        "post /api/claims/{id}/fail",
        "post /api/claims/{id}/release",
        "post /api/claims/{id}/resolve",
        "get /healthz",
        "get /readyz",
        "get /metrics",
    ];
    for route in routes {
        assert!(described.contains(route), "{route} in {described:?}");
    }
    assert!(description.body["openapi"].as_str().unwrap().starts_with("3."));
    // Bodies of the same name get different schemas.
    let schemas = &description.body["components"]["schemas"];
    let of = |path: &str| {
        let body = &paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"];
        let name = body.as_str().and_then(|reference| reference.rsplit('/').next()).expect("a reference");
        schemas[name]["properties"].as_object().expect("properties").keys().map(String::as_str).collect::<Vec<_>>()
    };
    assert_eq!(of("/api/claims/{id}/resolve"), ["as", "guard", "note"]);
    assert_eq!(of("/api/sends/{id}/resolve"), ["as", "espMessageId", "note"]);
    assert_eq!(of("/api/actions/{id}/resolve"), ["as", "note"]);
    assert_eq!(of("/api/messages/{id}/resolve"), ["as", "note"]);
}

#[tokio::test]
async fn the_log_has_a_json_line_for_each_decision() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let (id, token) = client.win(&claim_of("g", "k")).await;
    client.claim(&claim_of("g", "k")).await.expect(409);
    client.owner("renew", "g", &id, token).await.expect(200);
    client.settle("g", &id, token, &json!(1)).await.expect(200);
    client.settle("g", &id, token, &json!(2)).await.expect(409);
    client.claim(&claim_of("g", "k")).await.expect(200);
    client.delete(&format!("/api/claims/{id}?guard=g&note=why%20not")).await.expect(200);
    let about_it = |log: Vec<Value>| log.into_iter().filter(|line| line["claimId"] == json!(id)).collect::<Vec<_>>();
    let lines =
        eventually("eight lines", || async { Some(about_it(server.log())).filter(|lines| lines.len() >= 8) }).await;
    let events: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    let expected = ["won", "in_flight", "renewed", "done", "fenced", "duplicate", "forgotten"];
    let expected: Vec<_> =
        expected.iter().map(|event| format!("claim.{event}")).chain(["audit.forget".into()]).collect();
    assert_eq!(events, expected);
    for line in &lines {
        assert_eq!((&line["workspace"], &line["guard"]), (&json!("default"), &json!("g")), "{line}");
        assert!(line["timestamp"].is_string() && line["level"].is_string(), "{line}");
    }
    assert_eq!((&lines[7]["by"], &lines[7]["why"]), (&json!("local"), &json!("why not")));
}

#[tokio::test]
async fn key_parts_outcomes_and_attributes_are_in_no_log_and_no_metric_at_any_level() {
    let home = Home::with_config("[log]\nlevel = \"trace\"\n");
    let server = home.serve();
    let mut client = server.client();
    let secret = |what: &str| format!("marker-{what}");
    let body = json!({"guard": "g", "key": [secret("part")], "attributes": {"a": secret("attribute")}, "fingerprint": secret("print")});
    let (id, token) = client.win(&body).await;
    client.claim(&body).await.expect(409);
    client.claim(&with(body.clone(), json!({"fingerprint": "other"}))).await.expect(422);
    client.settle("g", &id, token, &json!(secret("outcome"))).await.expect(200);
    client.settle("g", &id, token, &json!(secret("other outcome"))).await.expect(409);
    client.claim(&body).await.expect(200);
    client.post("/api/claims/find", &json!({"guard": "g", "key": [secret("found")]})).await.expect(404);
    client
        .post("/api/claims/batch", &json!([body, with(body.clone(), json!({"key": secret("batch")}))]))
        .await
        .expect(200);
    // A refusal repeats the input only to its sender.
    client.claim(&json!({"guard": "g", "key": secret("not a list")})).await.expect(400);
    client.claim(&json!({"guard": "g", "key": ["k"], "attributes": secret("not an object")})).await.expect(400);
    client.claim(&json!({"guard": secret("a guard"), "key": ["k"]})).await.expect(400);
    let metrics = client.get("/metrics").await.expect(200).text;
    drop(client);
    let (_, written) = server.stop();
    assert!(written.contains(&id));
    for line in written.lines().chain(metrics.lines()) {
        assert!(!line.contains("marker-"), "{line}");
    }
}
