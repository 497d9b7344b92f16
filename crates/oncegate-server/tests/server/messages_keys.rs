//! `Idempotency-Key`: one request, one answer, byte for byte, however often and however late it is retried.
#![cfg(feature = "crash-points")]

use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::{Value, json};

use crate::support::{Client, On, PostOffice, Raw, Reply, eventually, on_both, sms, with};

on_both![
    a_finished_request_is_replayed_byte_for_byte,
    a_key_stands_for_one_body,
    a_request_under_way_is_waited_for_and_then_refused,
    another_key_for_the_same_message_gets_the_first_one_and_keeps_that_answer,
    a_key_is_free_again_after_its_window,
    what_was_refused_or_surely_failed_leaves_the_key_free,
    what_may_have_happened_is_kept,
    a_client_that_hangs_up_does_not_stop_its_request,
];

/// All parts of an answer that a replay repeats.
fn content(reply: &Reply) -> (u16, String, Option<String>, Option<String>) {
    let header = |name: &str| reply.header(name).map(str::to_owned);
    (reply.status, reply.text.clone(), header("content-type"), header("oncegate-duplicate"))
}

#[track_caller]
fn expect_replay(reply: &Reply, first: &Reply) {
    assert_eq!(reply.header("idempotent-replayed"), Some("true"), "{reply:?}");
    assert_eq!(content(reply), content(first));
}

async fn a_finished_request_is_replayed_byte_for_byte(on: On) {
    let mut office = PostOffice::open(on).await;
    let message = with(sms("+1", "keyed \u{1F511} text"), json!({"metadata": {"z": 1, "a": [1.50, "é"]}}));
    let first = office.post_with_key("k-1", &message).await.expect(201);
    assert_eq!(first.header("idempotent-replayed"), None);
    expect_replay(&office.post_with_key("\"k-1\"", &message).await, &first);
    expect_replay(&office.client(1).header("idempotency-key", "k-1").post("/api/messages", &message).await, &first);
    // The same key in another workspace is another key.
    let mut other = office.client(1).header("oncegate-workspace", "other").header("idempotency-key", "k-1");
    assert_eq!(other.post("/api/messages", &message).await.expect(201).header("idempotent-replayed"), None);
    // After a restart, and although the same request would now be refused: its channel needs an address.
    office.servers.clear();
    let config = std::fs::read_to_string(office.home.path().join("oncegate.toml")).expect("is there");
    let (before, _) = config.split_once("[messages.channel.sms]").expect("has the channel");
    office.home.configure(&format!(
        "{before}[messages.channel.sms]\nkind = \"smtp\"\nurl = \"smtp://127.0.0.1:9\"\nfrom = \"a@b.test\"\n"
    ));
    office.servers = vec![office.serve(&[])];
    office.post(&sms("+1", "new")).await.expect_invalid("recipientEmail");
    expect_replay(&office.post_with_key("k-1", &message).await, &first);
    assert_eq!(office.provider.arrivals("keyed \u{1F511} text").len(), 2);
}

async fn a_key_stands_for_one_body(on: On) {
    let office = PostOffice::open(on).await;
    let first = office.post_with_key("k", &sms("+1", "one")).await.expect(201);
    office.post_with_key("k", &sms("+1", "two")).await.expect_problem(422, "idempotency-key-reused");
    // The same JSON in other bytes is another body.
    let mut client = office.client(1).header("idempotency-key", "k");
    let spaced = r#"{ "recipientPhone": "+1", "message": "one" }"#;
    let reply = client.send(Method::POST, "/api/messages", Some(spaced.into())).await;
    reply.expect_problem(422, "idempotency-key-reused");
    // Invalid JSON is refused first.
    client.send(Method::POST, "/api/messages", Some("{".into())).await.expect_invalid("EOF");
    expect_replay(&office.post_with_key("k", &sms("+1", "one")).await, &first);
    assert!(office.provider.arrivals("two").is_empty());
}

async fn a_request_under_way_is_waited_for_and_then_refused(on: On) {
    let office = PostOffice::open_with(on, "wait = \"400ms\"").await;
    let hangs = sms("+1", "under way#hang");
    let mut first = office.client(0).header("idempotency-key", "k");
    let under_way = tokio::spawn({
        let hangs = hangs.clone();
        async move { first.post("/api/messages", &hangs).await }
    });
    eventually("the first is being sent", || async {
        (!office.provider.arrivals("under way#hang").is_empty()).then_some(())
    })
    .await;
    let asked = Instant::now();
    let mut second = office.client(1).header("idempotency-key", "k");
    let refused = second.post("/api/messages", &hangs).await.expect_problem(409, "idempotency-key-in-flight");
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert!(asked.elapsed() >= Duration::from_millis(400));
    let first = under_way.await.expect("does not panic").expect(502);
    expect_replay(&second.post("/api/messages", &hangs).await, &first);
    // A send that ends in time is awaited, and no longer than necessary.
    let slow = sms("+2", "soon over");
    let (a, b) = (office.client(0), office.client(1));
    let (a, b) = (a.header("idempotency-key", "s"), b.header("idempotency-key", "s"));
    let post = |mut client: Client| {
        let slow = slow.clone();
        async move { client.post("/api/messages", &slow).await }
    };
    let (one, two) = tokio::join!(post(a), post(b));
    assert_eq!(content(&one), content(&two));
    assert_eq!(office.provider.arrivals("soon over").len(), 1);
}

async fn another_key_for_the_same_message_gets_the_first_one_and_keeps_that_answer(on: On) {
    let office = PostOffice::open(on).await;
    let message = sms("+1", "same");
    let first = office.post_with_key("k1", &message).await.expect(201);
    let second = office.post_with_key("k2", &message).await.expect(200);
    assert_eq!((&second.body["duplicateOnly"], &second.body["message"]), (&json!(true), &first.body["message"]));
    // Also when the duplicate's window is over: that request was already answered.
    office.set_clock_ahead(Duration::from_secs(20 * 60));
    expect_replay(&office.post_with_key("k2", &message).await, &second);
    expect_replay(&office.post_with_key("k1", &message).await, &first);
    assert_eq!(office.provider.arrivals("same").len(), 1);
}

async fn a_key_is_free_again_after_its_window(on: On) {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let office = PostOffice::open(on).await;
    let first = office.post_with_key("k", &sms("+1", "daily")).await.expect(201);
    office.set_clock_ahead(DAY - Duration::from_secs(10));
    expect_replay(&office.post_with_key("k", &sms("+1", "daily")).await, &first);
    office.set_clock_ahead(DAY + Duration::from_millis(1));
    let second = office.post_with_key("k", &sms("+1", "otherwise")).await.expect(200);
    assert_eq!(second.header("idempotent-replayed"), None);
}

async fn what_was_refused_or_surely_failed_leaves_the_key_free(on: On) {
    let office = PostOffice::open(on).await;
    let wrong = with(sms("+1", "x"), json!({"metadata": 7}));
    office.post_with_key("k", &wrong).await.expect_invalid("metadata");
    office.post_with_key("k", &json!({"leadId": "7", "message": "x"})).await.expect_problem(404, "not-found");
    office.post_with_key("k", &sms("+1", "right")).await.expect(201);
    for turn in 1..=2 {
        let failed = office.post_with_key("f", &sms("+1", "refused#400")).await.expect(502);
        assert_eq!((&failed.body["success"], &failed.body["status"]), (&json!(false), &json!("failed")));
        assert_eq!(office.provider.arrivals("refused#400").len(), turn, "tried afresh");
    }
}

async fn what_may_have_happened_is_kept(on: On) {
    let office = PostOffice::open(on).await;
    let message = sms("+1", "who knows#500");
    let first = office.post_with_key("u", &message).await.expect(502);
    assert_eq!(first.body["status"], "unknown");
    expect_replay(&office.post_with_key("u", &message).await, &first);
    let other = office.post_with_key("u2", &message).await.expect(200);
    assert_eq!((&other.body["duplicateOnly"], &other.body["status"]), (&json!(true), &json!("unknown")));
    assert_eq!(office.provider.arrivals("who knows#500").len(), 1);
}

async fn a_client_that_hangs_up_does_not_stop_its_request(on: On) {
    let office = PostOffice::open(on).await;
    let message = sms("+1", "gone#slow").to_string();
    let mut raw = Raw::connect(office.servers[0].address).await;
    let head = format!(
        "POST /api/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nidempotency-key: k\r\n\
         content-length: {}\r\n\r\n{message}",
        message.len()
    );
    raw.write(head.as_bytes()).await;
    eventually("it is being sent", || async { (!office.provider.arrivals("gone#slow").is_empty()).then_some(()) })
        .await;
    drop(raw);
    let mut client = office.client(1).header("idempotency-key", "k");
    let reply = client.send(Method::POST, "/api/messages", Some(message.clone().into())).await.expect(201);
    assert_eq!(reply.header("idempotent-replayed"), Some("true"));
    assert_eq!(reply.body["status"], Value::from("sent"));
    assert_eq!(office.provider.arrivals("gone#slow").len(), 1);
}
