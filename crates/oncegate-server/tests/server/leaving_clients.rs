//! A client that closes its connection, or its half of it, after a request: a completely received request is handled, and a client
//! that continues to read is answered.

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::support::{Home, On, PATIENCE, PostOffice, Raw, Server, claim_of, eventually, sms, with};

const CLIENTS: usize = 100;
/// Longer than a server needs to read a request and to handle it.
const A_MOMENT: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug)]
enum Leaves {
    /// FIN: the client sends nothing more, and the server cannot know whether it still reads.
    Close,
    /// RST: the client is gone.
    Reset,
}

impl Leaves {
    const BOTH: [Leaves; 2] = [Leaves::Close, Leaves::Reset];

    fn leave(self, client: Raw) {
        match self {
            Leaves::Close => client.close(),
            Leaves::Reset => client.reset(),
        }
    }
}

/// A key that the server knows. Without keys the server answers only this machine's user, and it cannot tell the user of a client that has
/// left.
async fn known_key(home: &Home, server: &Server) -> String {
    let (_, key) = home.make_key("default", "operate");
    eventually("the key is known", || async { (server.client().get("/api/claims").await.status == 401).then_some(()) })
        .await;
    key
}

/// Clients that each send a whole request, and disconnect at once.
async fn send_and_leave(server: &Server, key: &str, path: &str, leaves: Leaves, body: impl Fn(usize) -> Value) {
    let clients = (0..CLIENTS).map(|number| {
        let body = body(number);
        async move {
            let mut client = Raw::connect(server.address).await.with_key(key);
            let request = client.post(path, &body);
            client.write(request.as_bytes()).await;
            leaves.leave(client);
        }
    });
    join_all(clients).await;
}

/// The items of a list, once there are this many.
async fn listed(server: &Server, key: &str, path: &str, count: usize) -> Vec<Value> {
    eventually(&format!("{count} in {path}"), || async {
        let items =
            server.client_with(key).get(path).await.expect(200).body["items"].as_array().expect("items").clone();
        (items.len() >= count).then_some(items)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_was_received_whole_is_sent_though_its_client_left_at_once() {
    let office = PostOffice::open(On::Sqlite).await;
    let server = &office.servers[0];
    let key = known_key(&office.home, server).await;
    for (round, leaves) in Leaves::BOTH.into_iter().enumerate() {
        // Some of the requests do not fit into the first read.
        let filler = |number: usize| "x".repeat(if number.is_multiple_of(10) { 50_000 } else { 10 });
        let text = |number| format!("{leaves:?} {number} {}", filler(number));
        send_and_leave(server, &key, "/api/messages", leaves, |number| sms("+1", &text(number))).await;
        let sent = listed(server, &key, "/api/messages?status=sent&limit=500", (round + 1) * CLIENTS).await;
        assert_eq!(sent.len(), (round + 1) * CLIENTS);
        for number in 0..CLIENTS {
            assert_eq!(office.provider.arrivals(&text(number)).len(), 1, "{leaves:?} {number}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_was_received_whole_is_made_though_its_client_left_at_once() {
    let home = Home::new();
    let server = home.serve();
    let key = known_key(&home, &server).await;
    for (round, leaves) in Leaves::BOTH.into_iter().enumerate() {
        let body = |number: usize| {
            let waits = if number.is_multiple_of(2) { json!({"waitSeconds": 20}) } else { json!({}) };
            with(claim_of("g", &format!("{leaves:?} {number}")), waits)
        };
        send_and_leave(&server, &key, "/api/claims", leaves, body).await;
        let made = listed(&server, &key, "/api/claims?limit=500", (round + 1) * CLIENTS).await;
        assert_eq!(made.len(), (round + 1) * CLIENTS);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owners_word_that_was_received_whole_is_taken_though_its_client_left_at_once() {
    let home = Home::new();
    let server = home.serve();
    let key = known_key(&home, &server).await;
    let mut client = server.client_with(&key);
    for leaves in Leaves::BOTH {
        let mut owned = vec![];
        for number in 0..CLIENTS {
            owned.push(client.win(&claim_of("g", &format!("{leaves:?} {number}"))).await);
        }
        let words = owned.iter().map(|(id, token)| {
            let (server, key, body) = (&server, &key, json!({"guard": "g", "token": token, "outcome": 1}));
            async move {
                let mut client = Raw::connect(server.address).await.with_key(key);
                let request = client.post(&format!("/api/claims/{id}/settle"), &body);
                client.write(request.as_bytes()).await;
                leaves.leave(client);
            }
        });
        join_all(words).await;
        for (id, _) in owned {
            eventually("it is settled", || async {
                (server.client_with(&key).show("g", &id).await.expect(200).body["state"] == "done").then_some(())
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_was_cut_short_is_not_done() {
    let office = PostOffice::open(On::Sqlite).await;
    let server = &office.servers[0];
    let whole = Raw::connect(server.address).await.post("/api/messages", &sms("+1", &"x".repeat(100)));
    let chunked = |piece: &str| {
        let head = whole.replace(&whole[whole.find("content-length").expect("a length")..], "");
        format!("{head}transfer-encoding: chunked\r\n\r\n{:x}\r\n{piece}\r\n", piece.len())
    };
    // The JSON may be complete while the body is not: the last chunk is missing.
    let cut = [whole[..whole.len() - 1].to_owned(), chunked(&sms("+1", "in chunks").to_string())];
    for request in &cut {
        for leaves in Leaves::BOTH {
            let mut client = Raw::connect(server.address).await;
            client.write(request.as_bytes()).await;
            leaves.leave(client);
        }
        let mut half = Raw::connect(server.address).await;
        half.write(request.as_bytes()).await;
        half.close_half().await;
        let said = half.read_to_close(PATIENCE).await;
        assert!(said.starts_with("HTTP/1.1 400 ") && said.contains("/problems/invalid-request"), "{said}");
    }
    tokio::time::sleep(A_MOMENT).await;
    assert_eq!(server.client().get("/api/messages").await.expect(200).body["items"], json!([]));
    assert!(office.provider.all().is_empty());
}

/// The server's answer to a client that closes its half this long after its request.
async fn said_to(server: &Server, request: &str, closes_after: Duration) -> String {
    let mut client = Raw::connect(server.address).await;
    client.write(request.as_bytes()).await;
    tokio::time::sleep(closes_after).await;
    client.close_half().await;
    client.read_to_close(PATIENCE).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_closes_its_half_is_answered() {
    let office = PostOffice::open(On::Sqlite).await;
    let server = &office.servers[0];
    let post = |path: &str, body: Value| {
        let (address, body) = (server.address, body.to_string());
        format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    for (number, closes_after) in [Duration::ZERO, A_MOMENT].into_iter().enumerate() {
        let key = |name: &str| format!("{name} {number}");
        let health = format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n", server.address);
        let short = post("/api/claims", claim_of("g", &key("short")));
        let large = post("/api/messages", sms("+1", &format!("{} {}", key("large"), "x".repeat(50_000))));
        // The provider takes longer to answer than the client waits before it closes its half.
        let long = post("/api/messages", sms("+1", &format!("{}#slow", key("long"))));
        let two = post("/api/claims", claim_of("g", &key("one"))) + &post("/api/claims", claim_of("g", &key("other")));
        for (request, answers) in [(health, 1), (short, 1), (large, 1), (long, 1), (two, 2)] {
            let said = said_to(server, &request, closes_after).await;
            let good = said.matches("HTTP/1.1 20").count();
            assert_eq!(good, answers, "{closes_after:?} {}: {said}", &request[..request.len().min(300)]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_closes_its_half_while_it_waits_is_told_the_outcome_and_wins_nothing() {
    let home = Home::new();
    let server = home.serve();
    for (number, closes_after) in [Duration::ZERO, A_MOMENT].into_iter().enumerate() {
        for (verb, status) in [("settle", "200"), ("release", "409")] {
            let body = claim_of("g", &format!("{verb} {number}"));
            let mut owner = server.client();
            let (id, token) = owner.win(&body).await;
            let request =
                Raw::connect(server.address).await.post("/api/claims", &with(body.clone(), json!({"waitSeconds": 20})));
            let waiting = said_to(&server, &request, closes_after);
            let word = async {
                tokio::time::sleep(2 * A_MOMENT).await;
                owner.owner(verb, "g", &id, token).await.expect(200);
            };
            let (said, ()) = tokio::join!(waiting, word);
            assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{verb}, {closes_after:?}: {said}");
            if verb == "release" {
                assert!(said.contains("retry-after: "), "{said}");
                owner.win(&body).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_closes_its_half_while_it_waits_is_told_that_there_is_nothing() {
    let home = Home::new();
    let server = home.serve();
    let wanted = json!({"types": ["remote"], "waitSeconds": 20});
    let request = Raw::connect(server.address).await.post("/api/actions/lease", &wanted);
    for closes_after in [Duration::ZERO, A_MOMENT] {
        let said = said_to(&server, &request, closes_after).await;
        assert!(said.starts_with("HTTP/1.1 200 ") && said.ends_with("\r\n\r\n[]"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_when_its_client_closes_its_half() {
    let home = Home::new();
    let server = home.serve();
    for path in ["/api/decisions", "/live?on=overview"] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", server.address);
        let said = said_to(&server, &request, A_MOMENT).await;
        assert!(said.starts_with("HTTP/1.1 200 ") && said.ends_with("0\r\n\r\n"), "{path}: {said}");
    }
}
