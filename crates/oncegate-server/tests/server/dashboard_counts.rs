//! The dashboard's counts: the same on every replica, and equal to the metrics.

use std::time::Duration;

use serde_json::json;

use crate::support::{Follower, Home, On, Server, Workshop, claim_of, eventually, from_now, on_both, with};

on_both! {
    what_is_stopped_is_added_up_on_every_replica_and_outlives_them,
}

/// Waits until the overview shows this number of stopped callers in the last 24 hours, and the same in the last hour.
async fn stopped_becomes(server: &Server, count: u64) {
    eventually(&format!("{count} were stopped"), || async { (stopped(server).await == [count; 2]).then_some(()) })
        .await;
}

/// The stopped callers in the last 24 hours and in the last hour. The overview reads the two one after the other:
/// while another server writes its counts, they may differ.
async fn stopped(server: &Server) -> [u64; 2] {
    let page = server.client().get("/").await.expect_page(200).text;
    let tile = page.split("What did it stop?").nth(1).expect("it is said").split("</section>").next().expect("its end");
    ["class=\"big\">", "in the last 24 hours, "].map(|before| {
        let said = tile.split(before).nth(1).expect("a number");
        let digits: String = said.chars().filter(|c| *c != ',').take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or_else(|_| panic!("{tile}"))
    })
}

async fn what_is_stopped_is_added_up_on_every_replica_and_outlives_them(on: On) {
    let mut shop = Workshop::open(on).await;
    let mut expected = 0;
    for round in 1..=2 {
        for number in 0..shop.servers.len() {
            let mut client = shop.client(number);
            let body = claim_of("charge", &format!("{round} {number}"));
            client.win(&body).await;
            for _ in 0..=number + round {
                client.claim(&body).await.expect(409);
                expected += 1;
            }
        }
        for server in &shop.servers {
            stopped_becomes(server, expected).await;
        }
        // Counts are written every five seconds; a server that is told to stop writes them at once.
        match round {
            1 => drop(shop.servers.drain(..).map(Server::stop).collect::<Vec<_>>()),
            _ => {
                tokio::time::sleep(Duration::from_secs(6)).await;
                shop.servers.drain(..).for_each(Server::kill);
            }
        }
        let count = if matches!(on, On::Sqlite) { 1 } else { 2 };
        shop.servers = (0..count).map(|_| shop.serve(&[])).collect();
        for server in &shop.servers {
            stopped_becomes(server, expected).await;
        }
    }
}

#[tokio::test]
async fn the_dashboard_counts_what_the_metrics_count_of_every_kind_of_guard() {
    let shop = Workshop::open(On::Sqlite).await;
    let server = &shop.servers[0];
    let mut client = server.client();
    let held = with(claim_of("held", "k"), json!({"leaseSeconds": 0.1, "lost": "hold"}));
    client.claim(&held).await;
    let fingerprint = |print: &str| with(claim_of("charge", "printed"), json!({"fingerprint": print}));
    client.win(&fingerprint("a")).await;
    client.claim(&fingerprint("b")).await.expect(422);
    let (id, token) = client.win(&claim_of("charge", "k")).await;
    client.claim(&claim_of("charge", "k")).await.expect(409);
    client.settle("charge", &id, token, &json!(1)).await.expect(200);
    client.post("/api/claims/batch", &json!([claim_of("charge", "k"), claim_of("charge", "new")])).await.expect(200);
    let message = json!({"recipientPhone": "+15550100", "message": "Your table is ready."});
    let mut keyed = server.client().header("idempotency-key", "one");
    for _ in 0..2 {
        client.post("/api/messages", &message).await;
        keyed.post("/api/messages", &with(message.clone(), json!({"message": "Another."}))).await;
    }
    let send = json!({"campaignId": "spring", "recipientId": "ada"});
    let begun = client.post("/api/sends", &send).await.expect(201).body;
    client.post("/api/sends", &send).await;
    let sent = format!("/api/sends/{}/sent", begun["id"].as_str().expect("an id"));
    client.post(&sent, &json!({"token": begun["token"], "espMessageId": "e"})).await.expect(200);
    client.post("/api/sends", &send).await.expect(200);
    let reminder = json!({"bookingId": "b", "sendAt": from_now(Duration::from_secs(600)), "channel": "sms",
        "recipientPhone": "+15550100", "message": "Soon."});
    client.post("/api/reminders", &reminder).await.expect(201);
    client.post("/api/reminders", &reminder).await.expect(200);
    let action = json!({"actionType": "note", "payload": {"entityId": "7"}});
    client.post("/api/actions", &action).await.expect(201);
    client.post("/api/actions", &action).await.expect(200);
    let event = json!({"type": "SearchUploadSaved", "id": "e", "data":
        {"searchId": "s", "projectId": "p", "searchName": "n", "referenceFiles": ["a"]}});
    for _ in 0..2 {
        client.post("/api/events", &event).await.expect(200);
    }
    let metrics = client.get("/metrics").await.expect(200).text;
    let mut by_guard: Vec<(String, u64)> = vec![];
    for line in metrics.lines().filter(|line| line.starts_with("oncegate_duplicates_stopped_total{")) {
        let guard = line.split("guard=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a guard");
        let count: u64 = line.rsplit(' ').next().and_then(|count| count.parse().ok()).expect("a count");
        by_guard.push((guard.to_owned(), count));
    }
    by_guard.retain(|(_, count)| *count > 0);
    by_guard.sort();
    let page = client.get("/").await.expect_page(200).text;
    let legend = page.split("<caption class=\"hidden\">By guard</caption>").nth(1).expect("a legend");
    let rows = legend.split("</table>").next().expect("its end").split("href=\"/claims?guard=").skip(1);
    let mut shown: Vec<(String, u64)> = rows
        .map(|row| {
            let guard = row.split('"').next().expect("a guard").to_owned();
            let count = row.split("<td>").nth(1).and_then(|rest| rest.split('<').next()).expect("a count");
            (guard, count.replace(',', "").parse().expect("a number"))
        })
        .filter(|(_, count)| *count > 0)
        .collect();
    shown.sort();
    assert_eq!(shown, by_guard);
    assert_eq!(stopped(server).await, [by_guard.iter().map(|(_, count)| count).sum::<u64>(); 2]);
    let guards: Vec<&str> = by_guard.iter().map(|(guard, _)| guard.as_str()).collect();
    assert_eq!(guards, ["action", "charge", "idempotency", "message", "reminder", "saga", "send"]);
}

#[tokio::test]
async fn a_log_that_says_nothing_does_not_silence_the_dashboard() {
    let home = Home::with_config("[log]\nlevel = \"error\"\n");
    let server = home.serve_quietly();
    let mut client = server.client();
    let mut follower = Follower::open(server.address, "/api/decisions").await;
    let mut live = Follower::open(server.address, "/live?on=decisions").await;
    let (id, _) = client.win(&claim_of("charge", "order 17")).await;
    client.claim(&claim_of("charge", "order 17")).await.expect(409);
    assert_eq!(follower.decision().await["event"], "claim.won");
    assert!(live.part("decisions").await.contains(&format!("/claims/{id}")));
    assert_eq!(stopped(&server).await, [1, 1]);
    let page = client.get("/decisions").await.expect_page(200).text;
    assert!(page.contains("its owner began") && page.contains("first request: allowed"), "{page}");
    let (_, written) = server.stop();
    assert!(!written.contains("claim.won"), "{written}");
}
