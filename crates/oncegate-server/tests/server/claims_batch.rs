//! `POST /api/claims/batch`: many claims in one request, each answered like a single request.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Home, claim_of, with};

#[tokio::test]
async fn a_batch_is_answered_in_order_each_with_its_own_status() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let (id, token) = client.win(&claim_of("g", "settled")).await;
    client.settle("g", &id, token, &json!("outcome")).await.expect(200);
    client.win(&claim_of("g", "in flight")).await;
    client.win(&with(claim_of("g", "printed"), json!({"fingerprint": "a"}))).await;
    let batch = json!([
        claim_of("g", "fresh"),
        claim_of("g", "settled"),
        claim_of("g", "in flight"),
        with(claim_of("g", "printed"), json!({"fingerprint": "b"})),
        {"guard": "g"},
        with(claim_of("g", "x"), json!({"ttlSeconds": -1})),
        with(claim_of("g", "x"), json!({"colour": "red"})),
        {"guard": "g", "key": ["x", 5]},
        claim_of("no good name", "x"),
        17,
        claim_of("g", "x"),
    ]);
    let answers = client.post("/api/claims/batch", &batch).await.expect(200).body;
    let statuses: Vec<_> =
        answers.as_array().unwrap().iter().map(|answer| answer["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 200, 409, 422, 400, 400, 400, 400, 400, 400, 201]);
    assert_eq!((&answers[0]["claim"], &answers[1]["claim"]), (&json!("won"), &json!("duplicate")));
    assert_eq!(answers[1]["outcome"], "outcome");
    assert_eq!((&answers[2]["type"], &answers[2]["claim"]), (&json!("/problems/in-flight"), &json!("in_flight")));
    assert!(answers[2]["retryAfterSeconds"].as_u64().unwrap() >= 1);
    assert_eq!(answers[3]["type"], "/problems/fingerprint-mismatch");
    for (place, named) in [(4, "key"), (5, "ttlSeconds"), (6, "colour"), (7, "key[1]"), (8, "guard")] {
        assert!(answers[place]["detail"].as_str().unwrap().contains(named), "{named}: {}", answers[place]);
    }
    let id = answers[10]["id"].as_str().unwrap();
    let token = answers[10]["token"].as_i64().unwrap();
    client.settle("g", id, token, &json!(1)).await.expect(200);
}

#[tokio::test]
async fn what_a_batch_brings_back_is_bounded_and_says_what_it_left_out() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let (id, token) = client.win(&claim_of("g", "large")).await;
    client.settle("g", &id, token, &json!("x".repeat(1_000_000))).await.expect(200);
    let batch: Vec<Value> = (0..50).map(|_| claim_of("g", "large")).collect();
    let answers = client.post("/api/claims/batch", &json!(batch)).await.expect(200).body;
    let answers = answers.as_array().unwrap();
    let (kept, left_out): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer["outcome"].is_string());
    assert!((1..=8).contains(&kept.len()), "{} outcomes", kept.len());
    assert!(left_out.iter().all(|answer| answer["outcomeOmitted"] == true && answer["state"] == "done"));
}

#[tokio::test]
async fn of_equal_keys_in_a_batch_the_first_wins() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    for round in 0..20 {
        let body = claim_of("g", &format!("round {round}"));
        let batch = json!([claim_of("g", &format!("other {round}")), body, body, body]);
        let answers = client.post("/api/claims/batch", &batch).await.expect(200).body;
        let statuses: Vec<_> = answers.as_array().unwrap().iter().map(|answer| &answer["status"]).collect();
        assert_eq!(statuses, [201, 201, 409, 409]);
    }
}

/// The wait could not succeed: before the batch is answered, no caller can settle the claims that it won.
#[tokio::test]
async fn a_batch_does_not_wait_for_itself() {
    let home = Home::new();
    let server = home.serve();
    let first = with(claim_of("g", "k"), json!({"leaseSeconds": 0.3}));
    let second = with(claim_of("g", "k"), json!({"waitSeconds": 5}));
    let started = Instant::now();
    let answers = server.client().post("/api/claims/batch", &json!([first, second])).await.expect(200).body;
    assert_eq!((&answers[0]["status"], &answers[1]["status"]), (&json!(201), &json!(409)));
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_batch_waits_for_the_claims_of_others() {
    let home = Home::new();
    let server = home.serve();
    let (id, token) = server.client().win(&claim_of("g", "theirs")).await;
    let batch = json!([claim_of("g", "ours"), with(claim_of("g", "theirs"), json!({"waitSeconds": 20}))]);
    let mut client = server.client();
    let waiting = tokio::spawn(async move { client.post("/api/claims/batch", &batch).await.expect(200).body });
    tokio::time::sleep(Duration::from_millis(200)).await;
    // If it were won now, its lease would pass while the batch waits for the other claim.
    server.client().post("/api/claims/find", &claim_of("g", "ours")).await.expect_problem(404, "not-found");
    server.client().settle("g", &id, token, &json!("settled")).await.expect(200);
    let answers = waiting.await.unwrap();
    assert_eq!((&answers[0]["status"], &answers[1]["outcome"]), (&json!(201), &json!("settled")));
}

#[tokio::test]
async fn a_batch_has_one_to_a_thousand_claims() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let batch = |size: usize| (0..size).map(|part| claim_of("g", &part.to_string())).collect::<Value>();
    client.post("/api/claims/batch", &batch(1001)).await.expect_invalid("1001");
    client.post("/api/claims/batch", &batch(0)).await.expect_invalid("1 to 1000");
    client.post("/api/claims/batch", &claim_of("g", "k")).await.expect_invalid("expected a sequence");
    let none = client.get("/api/claims").await.expect(200).body;
    assert_eq!(none["items"], json!([]));
    let answers = client.post("/api/claims/batch", &batch(1000)).await.expect(200).body;
    assert!(answers.as_array().unwrap().iter().all(|answer| answer["status"] == 201));
    let again = client.post("/api/claims/batch", &batch(1000)).await.expect(200).body;
    assert!(again.as_array().unwrap().iter().all(|answer| answer["status"] == 409));
}

#[tokio::test]
async fn two_batches_at_once_win_each_key_once_between_them() {
    let home = Home::new();
    let server = home.serve();
    let batch: Value = (0..500).map(|part| claim_of("g", &part.to_string())).collect();
    let backwards: Value = batch.as_array().unwrap().iter().rev().cloned().collect();
    let (mut one, mut other) = (server.client(), server.client());
    let (forth, back) =
        tokio::join!(one.post("/api/claims/batch", &batch), other.post("/api/claims/batch", &backwards));
    let won = |answers: &Value, place: usize| answers[place]["status"] == 201;
    let (forth, back) = (forth.expect(200).body, back.expect(200).body);
    for place in 0..500 {
        assert!(won(&forth, place) ^ won(&back, 499 - place), "{place}");
    }
}
