//! Requests and answers use a bounded amount of memory, for any sender and any slow reader.

use std::time::Duration;

use futures::future::join_all;
use hyper::Method;
use serde_json::{Value, json};

use crate::support::{Home, Raw, SEARCH_IMPORT, Server, claim_of};

const MIB: u64 = 1024;

/// The maximum growth of the server's memory while something happens, in KiB.
async fn growth(server: &Server, happens: impl Future<Output = ()>) -> u64 {
    let before = server.memory();
    let mut most = before;
    let mut happens = std::pin::pin!(happens);
    loop {
        tokio::select! {
            () = &mut happens => return most.max(server.memory()) - before,
            () = tokio::time::sleep(Duration::from_millis(5)) => most = most.max(server.memory()),
        }
    }
}

#[tokio::test]
async fn sixteen_events_of_4_mib_at_once_take_less_than_300_mib() {
    let home = Home::with_config(&format!("[sagas]\nfiles = [{SEARCH_IMPORT:?}]"));
    let server = home.serve();
    let event = |data: &str| format!(r#"{{"type":"SearchUploadStarted","data":{{"searchId":"s","files":{data}}}}}"#);
    // Two million values are above the limit of a body.
    let ones = event(&format!("[{}1]", "1,".repeat(2_000_000)));
    // As many values as the limit allows, and a long text.
    let most = event(&format!("[{}\"{}\"]", "1,".repeat(190_000), "x".repeat(3_700_000)));
    for (body, expected) in [(ones, 413), (most, 200)] {
        let posts = (0..16).map(|_| {
            let (mut client, body) = (server.client(), body.clone());
            async move {
                client.send(Method::POST, "/api/events", Some(body.into())).await.expect(expected);
            }
        });
        let grown = growth(&server, async { drop(join_all(posts).await) }).await;
        assert!(grown < 300 * MIB, "{} MiB, {expected}", grown / MIB);
    }
}

#[tokio::test]
async fn two_hundred_clients_that_do_not_read_their_answers_take_less_than_100_mib() {
    let home = Home::new();
    let server = home.serve();
    let mut owner = server.client();
    let outcome = json!("x".repeat(1_000_000));
    let parts: Vec<String> = (0..8).map(|number| number.to_string()).collect();
    for part in &parts {
        let (id, token) = owner.win(&claim_of("g", part)).await;
        owner.settle("g", &id, token, &outcome).await.expect(200);
    }
    let batch = Value::Array(parts.iter().map(|part| claim_of("g", part)).collect());
    // A first batch, so that one-time allocations of the server and its allocator do not count.
    owner.post("/api/claims/batch", &batch).await.expect(200);
    let mut clients = vec![];
    let asks = async {
        for _ in 0..200 {
            let mut client = Raw::connect_narrow(server.address).await;
            let request = client.post("/api/claims/batch", &batch);
            client.write(request.as_bytes()).await;
            clients.push(client);
        }
        // All requests are answered, as far as their clients read.
        tokio::time::sleep(Duration::from_secs(3)).await;
    };
    let grown = growth(&server, asks).await;
    assert!(grown < 100 * MIB, "{} MiB", grown / MIB);
    // The rest of the room is taken, too, or waited for.
    for _ in 0..4 {
        let mut client = Raw::connect_narrow(server.address).await;
        let request = client.post("/api/claims/batch", &batch);
        client.write(request.as_bytes()).await;
        clients.push(client);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    // A claim is still answered. A batch without room is refused before it claims anything.
    owner.claim(&claim_of("g", "another")).await.expect(201);
    let refused = owner.post("/api/claims/batch", &batch).await.expect_problem(429, "workspace-limit");
    assert!(refused.text("detail").contains("limits.workspace.answers"), "{refused:?}");
    drop(clients);
    crate::support::eventually("clients that left make room", || async {
        (server.client().post("/api/claims/batch", &batch).await.status == 200).then_some(())
    })
    .await;
}
