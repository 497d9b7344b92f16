//! A guard's configuration applies to its claims: what happens after a lost owner, the durations, and
//! the stored data.

use serde_json::json;

use crate::support::{Home, Server, claim_of, eventually, with};

const HOLD: &str = "[claims.guard.bank]\nlost = \"hold\"\n";

/// A claim of the guard `bank` whose owner is lost. Returns once callers get that answer.
async fn held(server: &Server, part: &str) -> String {
    let (id, _) = server.client().win(&with(claim_of("bank", part), json!({"leaseSeconds": 0.05}))).await;
    let held = eventually("a held claim", || async {
        let answer = server.client().claim(&claim_of("bank", part)).await.expect(409);
        (answer.text("type") == "/problems/held").then_some(answer)
    })
    .await
    .expect_problem(409, "held");
    assert_eq!((&held.body["claim"], held.text("id")), (&json!("held"), id.clone()));
    assert_eq!(server.client().show("bank", &id).await.expect(200).body["state"], "unknown");
    id
}

#[tokio::test]
async fn a_guard_that_holds_lets_nobody_take_over_until_a_person_resolves_it() {
    let home = Home::with_config(HOLD);
    let server = home.serve();
    let mut client = server.client();
    for (verdict, state) in [("done", "done"), ("not_done", "failed")] {
        let id = held(&server, verdict).await;
        let resolve = json!({"guard": "bank", "as": verdict, "note": "asked the bank"});
        client.post(&format!("/api/claims/{id}/resolve"), &resolve).await.expect(200);
        assert_eq!(client.claim(&claim_of("bank", verdict)).await.expect(200).body["state"], state);
        client.post(&format!("/api/claims/{id}/resolve"), &resolve).await.expect_problem(409, "not-unknown");
    }
    let audits = server.logged("audit.resolve", 2).await;
    assert_eq!((&audits[0]["by"], &audits[0]["why"]), (&json!("local"), &json!("asked the bank")));
}

#[tokio::test]
async fn a_held_claim_can_be_resolved_from_the_command_line() {
    let home = Home::with_config(HOLD);
    let server = home.serve();
    for (verdict, state) in [("done", "done"), ("not_done", "failed")] {
        let id = held(&server, verdict).await;
        let resolve = ["claims", "resolve", &id, "--guard", "bank", "--as", verdict, "--note", "asked the bank"];
        let ran = home.run(resolve).expect_code(0);
        assert!(ran.stderr.contains("resolved") && ran.stderr.contains("asked the bank"), "{ran:?}");
        assert_eq!(server.client().claim(&claim_of("bank", verdict)).await.expect(200).body["state"], state);
        let again = home.run(resolve).expect_code(1);
        assert!(again.stderr.contains(&format!("this one is {state}")), "{again:?}");
    }
}

#[tokio::test]
async fn a_late_owner_of_a_held_claim_is_fenced_and_a_person_still_decides() {
    let home = Home::with_config(HOLD);
    let server = home.serve();
    let mut client = server.client();
    let id = held(&server, "k").await;
    let token = client.show("bank", &id).await.expect(200).body["token"].as_i64().unwrap();
    client.settle("bank", &id, token, &json!(1)).await.expect_problem(409, "fenced");
    let resolve = json!({"guard": "bank", "as": "done"});
    client.post(&format!("/api/claims/{id}/resolve"), &resolve).await.expect(200);
}

#[tokio::test]
async fn only_an_unknown_claim_is_resolved() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let (id, _) = client.win(&claim_of("g", "k")).await;
    let resolve = json!({"guard": "g", "as": "done"});
    client.post(&format!("/api/claims/{id}/resolve"), &resolve).await.expect_problem(409, "not-unknown");
    let nothing = format!("/api/claims/{}/resolve", "f".repeat(64));
    client.post(&nothing, &resolve).await.expect_problem(404, "not-found");
}

#[tokio::test]
async fn windows_and_leases_come_from_the_request_then_the_guard_then_the_rest() {
    let home = Home::with_config("[claims]\nwindow = \"1h\"\nlease = \"10s\"\n[claims.guard.short]\nwindow = \"1m\"\n");
    let server = home.serve();
    let mut client = server.client();
    let of_request = json!({"ttlSeconds": 7200, "leaseSeconds": 1800});
    let cases = [
        (claim_of("plain", "k"), 3600, 10),
        (claim_of("short", "k"), 60, 10),
        (with(claim_of("short", "asked"), of_request), 7200, 1800),
    ];
    for (body, window, lease) in cases {
        let (id, token) = client.win(&body).await;
        let claim = client.show(body["guard"].as_str().unwrap(), &id).await.expect(200).body;
        // A first owner's token is the store's time of the claim, in microseconds.
        let micros = |field: &str| micros(claim[field].as_str().unwrap());
        assert_eq!(micros("createdAt") / 1000, token / 1000, "{claim}");
        assert_eq!((micros("expiresAt") - micros("createdAt")) / 1_000_000, window, "{claim}");
        assert_eq!((micros("leaseUntil") - micros("createdAt")) / 1_000_000, lease, "{claim}");
    }
}

/// The microseconds of a time in the API's format.
fn micros(time: &str) -> i64 {
    let number = |range: std::ops::Range<usize>| time[range].parse::<i64>().expect("digits");
    let (year, month, day) = (number(0..4), number(5..7), number(8..10));
    // Days since 1970-01-01 in the Gregorian calendar, with years that begin in March.
    let (shifted, from_march) = (if month <= 2 { year - 1 } else { year }, (month + 9) % 12);
    let days = 365 * shifted + shifted / 4 - shifted / 100 + shifted / 400 + (153 * from_march + 2) / 5 + day - 719_469;
    let seconds = ((days * 24 + number(11..13)) * 60 + number(14..16)) * 60 + number(17..19);
    (seconds * 1000 + number(20..23)) * 1000
}

#[tokio::test]
async fn the_parts_of_a_key_are_kept_only_where_the_guard_says_so() {
    let home = Home::with_config("[claims.guard.kept]\nstore_parts = true\n");
    let server = home.serve();
    let mut client = server.client();
    let body = |guard: &str| json!({"guard": guard, "key": [format!("marker-{guard}"), null]});
    let (kept, _) = client.win(&body("kept")).await;
    let (plain, _) = client.win(&body("plain")).await;
    assert_eq!(client.show("kept", &kept).await.expect(200).body["key"], json!(["marker-kept", null]));
    assert_eq!(client.show("plain", &plain).await.expect(200).body["key"], json!(null));
    assert_eq!(client.post("/api/claims/find", &body("plain")).await.expect(200).body["id"], json!(plain));
    assert!(is_on_disk(&home, "marker-kept"), "the search finds what is there");
    assert!(!is_on_disk(&home, "marker-plain"));
}

#[tokio::test]
async fn the_body_of_an_outcome_is_not_kept_where_privacy_says_so() {
    let home = Home::with_config("[privacy]\nstore_outcome_body = false\n");
    let server = home.serve();
    let mut client = server.client();
    let (id, token) = client.win(&claim_of("g", "k")).await;
    for _ in 0..2 {
        client.settle("g", &id, token, &json!({"to": "marker-outcome"})).await.expect(200);
    }
    let duplicate = client.claim(&claim_of("g", "k")).await.expect(200).body;
    assert_eq!((&duplicate["state"], &duplicate["outcome"]), (&json!("done"), &json!(null)));
    assert!(!is_on_disk(&home, "marker-outcome"));
}

fn is_on_disk(home: &Home, text: &str) -> bool {
    home.store_files().iter().any(|file| {
        let bytes = std::fs::read(file).unwrap_or_default();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    })
}
