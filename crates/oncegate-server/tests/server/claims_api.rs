//! The claims API over the embedded store: the winner, the answers to duplicates, and what an owner and a
//! person can do to a claim.

use serde_json::{Value, json};

use crate::support::{Home, Server, claim_of, eventually, with};

#[tokio::test]
async fn the_first_caller_wins_and_later_ones_read_its_outcome() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let body = claim_of("mail", "order 17");

    let won = client.claim(&body).await.expect(201);
    let (id, token) = (won.text("id"), won.body["token"].as_i64().unwrap());
    assert_eq!((&won.body["claim"], &won.body["attempt"]), (&json!("won"), &json!(1)));
    assert!(id.len() == 64 && id.bytes().all(|digit| digit.is_ascii_hexdigit()), "{id}");
    for time in [won.text("expiresAt"), won.text("leaseUntil")] {
        // 2026-01-31T12:00:00.000Z
        assert!(time.len() == 24 && time.ends_with('Z') && &time[19..20] == ".", "{time}");
    }

    let met = client.claim(&body).await.expect_problem(409, "in-flight");
    assert!(met.header("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
    assert_eq!((&met.body["claim"], met.text("id")), (&json!("in_flight"), id.clone()));
    assert_eq!(met.text("leaseUntil"), won.text("leaseUntil"));
    assert!(met.body["ageSeconds"].as_f64().unwrap() >= 0.0);

    let settled = client.settle("mail", &id, token, &json!({"sent": true})).await.expect(200);
    assert_eq!((&settled.body["state"], &settled.body["token"]), (&json!("done"), &json!(token)));

    let duplicate = client.claim(&body).await.expect(200);
    assert_eq!((&duplicate.body["claim"], &duplicate.body["state"]), (&json!("duplicate"), &json!("done")));
    assert_eq!((duplicate.text("id"), &duplicate.body["outcome"]), (id, &json!({"sent": true})));
    assert!(duplicate.body["ageSeconds"].as_f64().unwrap() < 20.0);
    assert_eq!(duplicate.header("content-type"), Some("application/json"));
}

#[tokio::test]
async fn keys_differ_by_guard_workspace_framing_and_absence() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let keys = [json!(["a", "bc"]), json!(["ab", "c"]), json!(["abc"]), json!([""]), json!([null]), json!(["A", "bc"])];
    for key in &keys {
        client.claim(&json!({"guard": "g", "key": key})).await.expect(201);
    }
    for key in &keys {
        client.claim(&json!({"guard": "g", "key": key})).await.expect(409);
    }
    client.claim(&json!({"guard": "G", "key": ["abc"]})).await.expect(201);
    let mut other = server.client().header("oncegate-workspace", "other");
    other.claim(&json!({"guard": "g", "key": ["abc"]})).await.expect(201);
}

#[tokio::test]
async fn another_fingerprint_under_a_key_is_refused_and_none_at_all_is_not() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let body = |fingerprint: &str| with(claim_of("pay", "k"), json!({"fingerprint": fingerprint}));
    let (id, token) = client.win(&body("one")).await;
    let mismatch = client.claim(&body("two")).await.expect_problem(422, "fingerprint-mismatch");
    assert_eq!((&mismatch.body["claim"], mismatch.text("id")), (&json!("fingerprint_mismatch"), id.clone()));
    client.claim(&body("one")).await.expect_problem(409, "in-flight");
    client.settle("pay", &id, token, &json!(1)).await.expect(200);
    client.claim(&body("two")).await.expect_problem(422, "fingerprint-mismatch");
    client.claim(&body("one")).await.expect(200);
    client.claim(&claim_of("pay", "k")).await.expect(200);
}

#[tokio::test]
async fn settling_again_the_same_way_succeeds_and_any_other_way_is_fenced() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let (id, token) = client.win(&claim_of("g", "k")).await;
    let first = client.settle("g", &id, token, &json!({"n": 1})).await.expect(200);
    let again = client.settle("g", &id, token, &json!({"n": 1})).await.expect(200);
    assert_eq!(first.body, again.body);
    client.settle("g", &id, token, &json!({"n": 2})).await.expect_problem(409, "fenced");
    client.settle("g", &id, token + 1, &json!({"n": 1})).await.expect_problem(409, "fenced");
    client.settle("g", &id, token - 1, &json!({"n": 1})).await.expect_problem(409, "fenced");
    for verb in ["fail", "renew", "release"] {
        client.owner(verb, "g", &id, token).await.expect_problem(409, "fenced");
    }
    assert_eq!(client.show("g", &id).await.expect(200).body, first.body);
}

#[tokio::test]
async fn a_failed_claim_stands_as_a_duplicate() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let (id, token) = client.win(&claim_of("g", "k")).await;
    let failed = json!({"guard": "g", "token": token, "outcome": "refused by the bank"});
    client.post(&format!("/api/claims/{id}/fail"), &failed).await.expect(200);
    let duplicate = client.claim(&claim_of("g", "k")).await.expect(200).body;
    assert_eq!((&duplicate["state"], &duplicate["outcome"]), (&json!("failed"), &json!("refused by the bank")));
}

#[tokio::test]
async fn a_released_or_forgotten_key_is_anybodys_and_its_old_owner_is_fenced() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    for verb in ["release", "forget"] {
        let body = claim_of("g", verb);
        let (id, token) = client.win(&body).await;
        let gone = match verb {
            "release" => client.owner("release", "g", &id, token).await,
            _ => client.delete(&format!("/api/claims/{id}?guard=g&note=by%20mistake")).await,
        };
        assert_eq!(gone.expect(200).body, json!({"id": id, "gone": true}));
        client.show("g", &id).await.expect_problem(404, "not-found");
        client.settle("g", &id, token, &json!(1)).await.expect_problem(404, "not-found");
        let (_, next) = client.win(&body).await;
        assert!(next > token);
        client.settle("g", &id, token, &json!(1)).await.expect_problem(409, "fenced");
        client.settle("g", &id, next, &json!(2)).await.expect(200);
    }
    client.delete(&format!("/api/claims/{}?guard=g", "0".repeat(64))).await.expect_problem(404, "not-found");
}

#[tokio::test]
async fn a_renewed_lease_ends_later_and_keeps_its_token() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let won = client.claim(&with(claim_of("g", "k"), json!({"leaseSeconds": 5}))).await.expect(201);
    let (id, token) = (won.text("id"), won.body["token"].as_i64().unwrap());
    let renew = json!({"guard": "g", "token": token, "leaseSeconds": 60});
    let renewed = client.post(&format!("/api/claims/{id}/renew"), &renew).await.expect(200);
    assert!(renewed.text("leaseUntil") > won.text("leaseUntil"));
    assert_eq!((&renewed.body["token"], &renewed.body["state"]), (&json!(token), &json!("in_flight")));
    assert_eq!(renewed.text("expiresAt"), won.text("expiresAt"));
    client.owner("renew", "g", &id, token).await.expect(200);
    client.owner("renew", "g", &id, token - 1).await.expect_problem(409, "fenced");
}

#[tokio::test]
async fn a_lost_owner_is_replaced_by_one_with_a_larger_token_and_can_change_nothing() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let body = with(claim_of("g", "k"), json!({"leaseSeconds": 0.2}));
    let (id, stale) = client.win(&body).await;
    let next = take_over(&server, &with(body, json!({"leaseSeconds": 60}))).await;
    assert!(next > stale, "{next} {stale}");
    for verb in ["renew", "settle", "fail", "release"] {
        client.owner(verb, "g", &id, stale).await.expect_problem(409, "fenced");
    }
    let claim = client.show("g", &id).await.expect(200).body;
    assert_eq!((&claim["state"], &claim["token"], &claim["attempt"]), (&json!("in_flight"), &json!(next), &json!(2)));
    client.settle("g", &id, next, &json!("theirs")).await.expect(200);
    client.settle("g", &id, stale, &json!("mine")).await.expect_problem(409, "fenced");
    assert_eq!(client.claim(&claim_of("g", "k")).await.expect(200).body["outcome"], "theirs");
}

/// Claims until the key is free, and returns the new owner's token.
async fn take_over(server: &Server, body: &Value) -> i64 {
    eventually("a take-over", || async {
        let answer = server.client().claim(body).await;
        (answer.status == 201).then(|| answer.body["token"].as_i64().expect("a token"))
    })
    .await
}

#[tokio::test]
async fn an_owner_paused_past_its_lease_is_refused_even_if_nobody_took_over() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let (id, token) = client.win(&with(claim_of("g", "k"), json!({"leaseSeconds": 0.05}))).await;
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let late = client.settle("g", &id, token, &json!(1)).await.expect_problem(409, "fenced");
    assert!(late.text("detail").contains("lease ended"), "{late:?}");
}

#[tokio::test]
async fn a_window_ends_at_its_end_and_the_next_owner_has_a_larger_token() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let body = with(claim_of("g", "k"), json!({"ttlSeconds": 0.5}));
    let (id, token) = client.win(&body).await;
    client.settle("g", &id, token, &json!(1)).await.expect(200);
    client.claim(&body).await.expect(200);
    let next = take_over(&server, &body).await;
    assert!(next > token);
}

#[tokio::test]
async fn an_outcome_is_any_json_kept_as_it_was_written_up_to_the_size_of_a_body() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let (id, token) = client.win(&claim_of("g", "digits")).await;
    let body = format!(r#"{{"guard":"g","token":{token},"outcome":{{"z":1.10,"a":123456789012345678901234567890}}}}"#);
    let settled = client.send(hyper::Method::POST, &format!("/api/claims/{id}/settle"), Some(body.into())).await;
    assert!(settled.expect(200).text.contains(r#"{"z":1.10,"a":123456789012345678901234567890}"#));

    let (id, token) = client.win(&claim_of("g", "large")).await;
    let large = json!("x".repeat(1024 * 1024 - 256));
    client.settle("g", &id, token, &large).await.expect(200);
    assert_eq!(client.claim(&claim_of("g", "large")).await.expect(200).body["outcome"], large);
}
