//! Invalid input is refused with a named problem whose page exists, and changes nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};

use crate::support::{Client, Home, PATIENCE, Raw, Reply, Server, claim_of, with};

const BODY_MAX: usize = 1024 * 1024;

async fn post_text(client: &mut Client, path: &str, body: impl Into<Vec<u8>>) -> Reply {
    client.send(Method::POST, path, Some(body.into().into())).await
}

/// There is no claim in any state, after everything that a test did.
async fn assert_nothing_claimed(server: &Server) {
    let listed = server.client().get("/api/claims").await.expect(200);
    assert_eq!(listed.body["items"], json!([]), "{listed:?}");
}

#[tokio::test]
async fn a_claim_that_cannot_be_right_is_a_400_that_names_what_is_wrong() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let large_part = json!({"guard": "g", "key": [null, "x".repeat(64 * 1024 + 1)]}).to_string();
    let long_name = json!({"guard": "x".repeat(65), "key": ["k"]}).to_string();
    let many_parts = json!({"guard": "g", "key": vec!["k"; 33]}).to_string();
    let wide = json!({"guard": "g", "key": ["k"], "attributes": {"a": "x".repeat(4096)}}).to_string();
    let cases: &[(&str, &str)] = &[
        ("", "EOF"),
        ("{", "EOF"),
        ("nonsense", "expected"),
        ("[]", "expected an object with `guard` and `key`"),
        ("null", "null"),
        (r#"{"guard":"g","key":["k"]} {}"#, "trailing"),
        (r#"{"guard":"g","key":["k"],"fingerprint":"a\u0000b"}"#, "fingerprint"),
        (r#"{"key":["k"]}"#, "`guard`"),
        (r#"{"guard":"g"}"#, "`key`"),
        (r#"{"guard":"g","key":["k"],"colour":"red"}"#, "`colour`"),
        (r#"{"guard":"g","guard":"g","key":["k"]}"#, "`guard`"),
        (r#"{"guard":7,"key":["k"]}"#, "guard"),
        (r#"{"guard":"","key":["k"]}"#, "guard"),
        (r#"{"guard":"a b","key":["k"]}"#, "guard"),
        (r#"{"guard":"../etc","key":["k"]}"#, "guard"),
        (&long_name, "guard"),
        (r#"{"guard":"g","key":"k"}"#, "key"),
        (r#"{"guard":"g","key":[]}"#, "key: 1 to 32 parts"),
        (r#"{"guard":"g","key":["k",5]}"#, "key[1]"),
        (r#"{"guard":"g","key":["\ud800"]}"#, "key[0]"),
        (&many_parts, "33"),
        (&large_part, "key[1]"),
        (r#"{"guard":"g","key":["k"],"ttlSeconds":-1}"#, "ttlSeconds"),
        (r#"{"guard":"g","key":["k"],"ttlSeconds":0}"#, "ttlSeconds"),
        (r#"{"guard":"g","key":["k"],"ttlSeconds":1e300}"#, "ttlSeconds"),
        (r#"{"guard":"g","key":["k"],"ttlSeconds":1e999}"#, "out of range"),
        (r#"{"guard":"g","key":["k"],"ttlSeconds":NaN}"#, "expected"),
        (r#"{"guard":"g","key":["k"],"ttlSeconds":Infinity}"#, "expected"),
        (r#"{"guard":"g","key":["k"],"ttlSeconds":"15m"}"#, "ttlSeconds"),
        (r#"{"guard":"g","key":["k"],"leaseSeconds":-0.5}"#, "leaseSeconds"),
        (r#"{"guard":"g","key":["k"],"leaseSeconds":3601}"#, "leaseSeconds"),
        (r#"{"guard":"g","key":["k"],"waitSeconds":-1}"#, "waitSeconds"),
        (r#"{"guard":"g","key":["k"],"waitSeconds":61}"#, "waitSeconds"),
        (r#"{"guard":"g","key":["k"],"fingerprint":""}"#, "fingerprint"),
        (r#"{"guard":"g","key":["k"],"fingerprint":{}}"#, "fingerprint"),
        (r#"{"guard":"g","key":["k"],"attributes":[]}"#, "attributes"),
        (&wide, "attributes"),
    ];
    for (body, named) in cases {
        post_text(&mut client, "/api/claims", *body).await.expect_invalid(named);
    }
    post_text(&mut client, "/api/claims", *b"{\"guard\":\"g\",\"key\":[\"\xff\xfe\"]}").await.expect_invalid("unicode");
    post_text(&mut client, "/api/claims", *b"\x00\x01\x02").await.expect_invalid("expected");
    assert_nothing_claimed(&server).await;
}

#[tokio::test]
async fn json_may_be_nested_64_deep_and_no_deeper() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let body = |arrays: usize| {
        let nested = format!("{}{}", "[".repeat(arrays), "]".repeat(arrays));
        format!(r#"{{"guard":"g","key":["k"],"attributes":{{"a":{nested}}}}}"#)
    };
    post_text(&mut client, "/api/claims", body(63)).await.expect_invalid("nested over 64 deep");
    post_text(&mut client, "/api/claims", "[".repeat(500_000)).await.expect_invalid("nested over 64 deep");
    assert_nothing_claimed(&server).await;
    post_text(&mut client, "/api/claims", body(62)).await.expect(201);
}

#[tokio::test]
async fn an_owners_body_that_cannot_be_right_is_a_400_and_changes_nothing() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let (id, token) = client.win(&claim_of("g", "k")).await;
    let before = client.show("g", &id).await.expect(200).body;
    let right = json!({"guard": "g", "token": token});
    let cases = [
        ("settle", json!({"guard": "g"}), "`token`"),
        ("settle", json!({"token": token}), "`guard`"),
        ("settle", json!({"guard": "g", "token": "1"}), "token"),
        ("settle", json!({"guard": "g", "token": 1.5}), "token"),
        ("settle", json!({"guard": "g", "token": u64::MAX}), "token"),
        ("settle", with(right.clone(), json!({"outcom": 1})), "`outcom`"),
        ("settle", with(right.clone(), json!({"leaseSeconds": 1})), "leaseSeconds"),
        ("fail", with(right.clone(), json!({"leaseSeconds": 1})), "leaseSeconds"),
        ("renew", with(right.clone(), json!({"outcome": 1})), "outcome"),
        ("renew", with(right.clone(), json!({"leaseSeconds": -1})), "leaseSeconds"),
        ("release", with(right.clone(), json!({"outcome": 1})), "outcome"),
        ("release", with(right, json!({"leaseSeconds": 1})), "leaseSeconds"),
        ("resolve", json!({"guard": "g"}), "`as`"),
        ("resolve", json!({"guard": "g", "as": "maybe"}), "maybe"),
    ];
    for (verb, body, named) in cases {
        client.post(&format!("/api/claims/{id}/{verb}"), &body).await.expect_invalid(named);
    }
    assert_eq!(client.show("g", &id).await.expect(200).body, before);
}

#[tokio::test]
async fn paths_queries_and_ids_that_cannot_be_right_are_refused() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let none = "0".repeat(64);
    let queries = [
        ("/api/claims?limit=0".to_owned(), "limit"),
        ("/api/claims?limit=501".into(), "limit"),
        ("/api/claims?limit=-1".into(), "limit"),
        ("/api/claims?limit=many".into(), "limit"),
        ("/api/claims?cursor=nonsense".into(), "cursor"),
        ("/api/claims?cursor=1.2".into(), "cursor"),
        ("/api/claims?state=gone".into(), "state"),
        ("/api/claims?guard=a%20b".into(), "guard"),
        ("/api/claims?guard=a&guard=b".into(), "guard"),
        ("/api/claims?colour=red".into(), "`colour`"),
        (format!("/api/claims/{none}"), "`guard`"),
        (format!("/api/claims/{none}?guard=g&colour=red"), "`colour`"),
        (format!("/api/claims/{none}?guard=a%2Fb"), "guard"),
    ];
    for (path, named) in queries {
        client.get(&path).await.expect_invalid(named);
    }
    let nothing = [
        format!("/api/claims/{none}?guard=g"),
        "/api/claims/not-an-id?guard=g".into(),
        format!("/api/claims/{none}0?guard=g"),
        format!("/api/claims/{}?guard=g", "é".repeat(32).bytes().map(|b| format!("%{b:02x}")).collect::<String>()),
        "/api/claims/%ff?guard=g".into(),
        "/api/nothing".into(),
        "/api".into(),
        "/nothing".into(),
        "/../../etc/passwd".into(),
    ];
    for path in nothing {
        client.get(&path).await.expect_problem(404, "not-found");
    }
    for page in ["/problems/nothing", "/problems/%ff"] {
        client.get(page).await.expect_page(404);
    }
    for (method, path) in [(Method::PUT, "/api/claims"), (Method::GET, "/api/claims/batch"), (Method::POST, "/metrics")]
    {
        client.send(method, path, None).await.expect_problem(405, "method-not-allowed");
    }
    let refused = client.send(Method::PUT, "/api/claims", None).await;
    assert_eq!(refused.header("allow"), Some("GET,HEAD,POST"), "what the path takes, it says");
    let bad_header = server.client().header("oncegate-workspace", "a b").get("/api/claims").await;
    bad_header.expect_invalid("Oncegate-Workspace");
}

#[tokio::test]
async fn a_body_that_is_not_declared_as_json_is_a_415() {
    let home = Home::new();
    let server = home.serve();
    let body = claim_of("g", "k");
    for content_type in
        ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", "multipart/form-data", ""]
    {
        let mut client = server.client().header("content-type", content_type);
        client.claim(&body).await.expect_problem(415, "unsupported-media-type");
    }
    let without = server.client().send(Method::POST, "/api/claims", None).await;
    without.expect_problem(415, "unsupported-media-type");
    assert_nothing_claimed(&server).await;
    server.client().header("content-type", "Application/JSON; charset=utf-8").claim(&body).await.expect(201);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_before_it_is_sent_whole() {
    let home = Home::new();
    let server = home.serve();
    // With a declared length: no byte of the body is sent.
    let mut declared = Raw::connect(server.address).await;
    declared.post_head(&format!("content-length: {}", BODY_MAX + 1)).await;
    // Chunked, without an end: refused only after the limit.
    let mut chunked = Raw::connect(server.address).await;
    chunked.post_head("transfer-encoding: chunked").await;
    let piece = format!("{:x}\r\n{}\r\n", 64 * 1024, "x".repeat(64 * 1024));
    for _ in 0..=BODY_MAX / (64 * 1024) {
        chunked.write(piece.as_bytes()).await;
    }
    for connection in [&mut declared, &mut chunked] {
        let answer = connection.read_to_close(PATIENCE).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        assert!(
            answer.contains("application/problem+json") && answer.contains("/problems/payload-too-large"),
            "{answer}"
        );
    }
    // The whole body, from a client that reads only afterwards.
    let large = claim_of("g", &"x".repeat(BODY_MAX)).to_string();
    if let Ok(answer) = server.client().try_send(Method::POST, "/api/claims", Some(large.into())).await {
        answer.expect_problem(413, "payload-too-large");
    }
    assert_nothing_claimed(&server).await;
}

#[tokio::test]
async fn a_workspace_over_its_rate_is_told_when_to_come_back() {
    let home = Home::with_config("[limits]\nrate = 5\n");
    let server = home.serve();
    let mut client = server.client();
    let refused = loop {
        let answer = client.get("/api/claims").await;
        if answer.status != 200 {
            break answer.expect_problem(429, "rate-limited");
        }
    };
    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=2).contains(&seconds), "{seconds}");
    server.client().header("oncegate-workspace", "calm").get("/api/claims").await.expect(200);
    client.get("/healthz").await.expect(200);
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    client.get("/api/claims").await.expect(200);
}

#[tokio::test]
async fn a_batch_over_the_rate_is_let_through_and_the_next_request_pays_for_it() {
    let home = Home::with_config("[limits]\nrate = 1\n");
    let server = home.serve();
    let mut client = server.client();
    let batch = json!([claim_of("g", "a"), claim_of("g", "b"), claim_of("g", "c")]);
    client.post("/api/claims/batch", &batch).await.expect(200);
    let refused = client.get("/api/claims").await.expect_problem(429, "rate-limited");
    assert!((2..=3).contains(&refused.header("retry-after").unwrap().parse::<u64>().unwrap()), "{refused:?}");
}

#[tokio::test]
async fn every_problem_has_a_page_that_the_server_serves() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let docs = client.get("/docs/openapi").await.expect(200);
    let pages: BTreeSet<&str> = docs
        .text
        .split("href=")
        .filter_map(|rest| rest.split('"').nth(1))
        .filter(|link| link.starts_with("/problems/"))
        .collect();
    assert!(pages.len() >= 15, "{pages:?}");
    let refused: Value = client.get("/nothing").await.body;
    assert!(pages.contains(refused["type"].as_str().unwrap()));
    for page in pages {
        let page = client.get(page).await.expect(200);
        assert!(page.header("content-type").unwrap().starts_with("text/html"), "{page:?}");
        assert!(page.text.contains("What to do:") && page.header("content-security-policy").is_some(), "{page:?}");
    }
}
