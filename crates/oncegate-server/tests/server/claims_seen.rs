//! Reading claims: one by its id or its parts, many by pages, and how often duplicates met a claim.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::support::{Client, Home, claim_of, eventually, with};

#[tokio::test]
async fn a_claim_is_shown_by_its_id_and_found_by_its_parts() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let body = with(claim_of("g", "k"), json!({"attributes": {"for": "people"}, "fingerprint": "f"}));
    let (id, token) = client.win(&body).await;
    let shown = client.show("g", &id).await.expect(200).body;
    assert_eq!(shown, client.post("/api/claims/find", &claim_of("g", "k")).await.expect(200).body);
    let expected = json!({
        "workspace": "default", "guard": "g", "id": id, "state": "in_flight", "fingerprint": "f", "token": token,
        "attempt": 1, "settledAt": null, "outcome": null, "duplicates": 0, "lastDuplicateAt": null,
        "attributes": {"for": "people"}, "key": null,
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&shown[field], value, "{field}");
    }
    client.post("/api/claims/find", &claim_of("g", "another")).await.expect_problem(404, "not-found");
    client.show("another", &id).await.expect_problem(404, "not-found");
}

async fn ids(client: &mut Client, query: &str) -> Vec<String> {
    let page = client.get(&format!("/api/claims?{query}")).await.expect(200);
    let items = page.body["items"].as_array().expect("a page has items");
    items.iter().map(|item| item["id"].as_str().expect("an item has an id").to_owned()).collect()
}

#[tokio::test]
async fn pages_are_newest_first_without_gaps_or_repeats_while_more_claims_come() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let mut made = vec![];
    for part in 0..7 {
        made.push(client.win(&claim_of("g", &part.to_string())).await.0);
    }
    made.reverse();
    let (mut seen, mut cursor) = (vec![], String::new());
    for size in [3, 3, 1] {
        let page = client.get(&format!("/api/claims?limit=3{cursor}")).await.expect(200).body;
        let items = page["items"].as_array().unwrap();
        assert_eq!(items.len(), size);
        seen.extend(items.iter().map(|item| item["id"].as_str().unwrap().to_owned()));
        client.win(&claim_of("g", &format!("newer {size} {}", seen.len()))).await;
        match &page["nextCursor"] {
            Value::String(next) => cursor = format!("&cursor={next}"),
            next => assert!(next.is_null() && size == 1, "{next}"),
        }
    }
    assert_eq!(seen, made);
}

#[tokio::test]
async fn lists_are_filtered_by_guard_and_by_state() {
    let home = Home::with_config("[claims.guard.held]\nlost = \"hold\"\n");
    let server = home.serve();
    let mut client = server.client();
    let (done, token) = client.win(&claim_of("a", "done")).await;
    client.settle("a", &done, token, &json!(1)).await.expect(200);
    let (failed, token) = client.win(&claim_of("a", "failed")).await;
    client.owner("fail", "a", &failed, token).await.expect(200);
    let (flying, _) = client.win(&claim_of("b", "in flight")).await;
    let (unknown, _) = client.win(&with(claim_of("held", "unknown"), json!({"leaseSeconds": 0.001}))).await;
    assert_eq!(ids(&mut client, "guard=a").await, [failed.clone(), done.clone()]);
    assert_eq!(ids(&mut client, "guard=b&state=in_flight").await, [flying]);
    assert_eq!(ids(&mut client, "state=done").await, [done]);
    assert_eq!(ids(&mut client, "state=failed&limit=500").await, [failed]);
    assert_eq!(ids(&mut client, "state=unknown").await, [unknown]);
    assert_eq!(ids(&mut client, "guard=b&state=done").await, [] as [String; 0]);
    assert_eq!(ids(&mut client, "limit=500").await.into_iter().collect::<HashSet<_>>().len(), 4);
    let mut other = server.client().header("oncegate-workspace", "other");
    assert_eq!(ids(&mut other, "").await, [] as [String; 0]);
}

#[tokio::test]
async fn whoever_meets_a_claim_is_counted_behind_their_back() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let (id, token) = client.win(&claim_of("g", "k")).await;
    for _ in 0..2 {
        client.claim(&claim_of("g", "k")).await.expect(409);
    }
    client.settle("g", &id, token, &json!(1)).await.expect(200);
    for _ in 0..3 {
        client.claim(&claim_of("g", "k")).await.expect(200);
    }
    eventually("five duplicates", || async {
        let claim = server.client().show("g", &id).await.expect(200).body;
        (claim["duplicates"] == 5 && claim["lastDuplicateAt"].is_string()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn counts_that_were_not_written_yet_are_written_when_the_server_stops() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let (id, _) = client.win(&claim_of("g", "k")).await;
    for _ in 0..3 {
        client.claim(&claim_of("g", "k")).await.expect(409);
    }
    drop(client);
    server.stop();
    let server = home.serve();
    assert_eq!(server.client().show("g", &id).await.expect(200).body["duplicates"], 3);
}
