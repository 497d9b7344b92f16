//! A client that is slow, or sends nothing at all, does not keep a connection.

mod support;

use std::time::{Duration, Instant};

use support::{Home, Raw, Server, claim_of};

/// How long after its time a connection may still be open, on a busy machine.
const SLACK: Duration = Duration::from_secs(5);
const HEADERS: Duration = Duration::from_secs(10);
const BODY: Duration = Duration::from_secs(30);

/// What the server said before it closed a connection on which, after `sent`, a byte arrives each second.
async fn drip(server: &Server, head: &str, byte: &[u8], limit: Duration) -> (String, Duration) {
    let mut connection = Raw::connect(server.address).await;
    let started = Instant::now();
    connection.write(head.as_bytes()).await;
    let mut said = None;
    while said.is_none() {
        assert!(started.elapsed() < limit + SLACK, "still open after {:?}", started.elapsed());
        said = connection.read_for(Duration::from_secs(1)).await;
        // A connection that was closed meanwhile says so when it is read.
        let _ = connection.try_write(byte).await;
    }
    (said.unwrap_or_default(), started.elapsed())
}

#[tokio::test]
async fn slow_headers_are_cut_off_after_10_s_and_slow_bodies_after_30_s() {
    let home = Home::new();
    let server = home.serve();
    let head = format!(
        "POST /api/claims HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n",
        server.address
    );
    let whole_head = format!("{head}\r\n");
    let (silent, headers, body, answered) = tokio::join!(
        drip(&server, "", b"", HEADERS),
        drip(&server, &head, b"x", HEADERS),
        drip(&server, &whole_head, b" ", BODY),
        async { server.client().claim(&claim_of("g", "k")).await },
    );
    answered.expect(201);
    for (said, after) in [silent, headers] {
        assert!(after >= HEADERS - Duration::from_secs(1), "{after:?} {said}");
    }
    let (said, after) = body;
    assert!(after >= BODY - Duration::from_secs(1), "{after:?} {said}");
    assert!(said.starts_with("HTTP/1.1 408 ") && said.contains("/problems/request-timeout"), "{said}");
    assert_eq!(server.client().get("/api/claims").await.expect(200).body["items"].as_array().unwrap().len(), 1);
}
