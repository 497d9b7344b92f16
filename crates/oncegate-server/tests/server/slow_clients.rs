//! A client that is slow, or sends nothing at all, loses its connection.

use std::time::{Duration, Instant};

use crate::support::{Home, Raw, Server, claim_of};

/// How long after its time-out a connection may still be open, on a busy machine.
const SLACK: Duration = Duration::from_secs(5);
const HEADERS: Duration = Duration::from_secs(10);
const BODY: Duration = Duration::from_secs(30);

/// The server's output before it closed a connection that, after `sent`, sends a byte each second.
async fn drip(server: &Server, head: &str, byte: &[u8], limit: Duration) -> (String, Duration) {
    let mut connection = Raw::connect(server.address).await;
    let started = Instant::now();
    connection.write(head.as_bytes()).await;
    let mut said = None;
    while said.is_none() {
        assert!(started.elapsed() < limit + SLACK, "still open after {:?}", started.elapsed());
        said = connection.read_for(Duration::from_secs(1)).await;
        // The next read reports a connection that was closed meanwhile.
        let _ = connection.try_write(byte).await;
    }
    (said.unwrap_or_default(), started.elapsed())
}

/// The server's answer to a client that writes these pieces, with a pause between them.
async fn said_to(server: &Server, pieces: &[String]) -> String {
    let mut connection = Raw::connect(server.address).await;
    for piece in pieces {
        connection.write(piece.as_bytes()).await;
        // Time for the server to read each piece separately. A slower server gets two pieces at once, and answers the same.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    connection.read_to_close(SLACK).await
}

#[tokio::test]
async fn a_body_may_come_in_pieces_and_a_request_with_the_one_before() {
    let home = Home::new();
    let server = home.serve();
    let head = |more: &str| {
        let address = server.address;
        format!("POST /api/claims HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n{more}\r\n\r\n")
    };
    let body = |part: &str| claim_of("g", part).to_string();
    let length = |body: &str, more: &str| head(&format!("content-length: {}{more}", body.len()));
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let chunked = head("transfer-encoding: chunked\r\nconnection: close");
    let close = "\r\nconnection: close";

    let one = body("after its head");
    let after = [length(&one, close), one[..5].to_owned(), one[5..6].to_owned(), one[6..].to_owned()];
    let one = body("half with its head");
    let half = [length(&one, close) + &one[..9], one[9..].to_owned()];
    let one = body("in chunks");
    let trailer = "0\r\nx-trailer: of no meaning\r\n\r\n";
    let chunks = [chunked.clone() + &chunk(&one[..7]), chunk(&one[7..]), trailer.to_owned()];
    let at_once = [format!("{chunked}{}0\r\n\r\n", chunk(&body("in one chunk, at once")))];
    for pieces in [&after[..], &half, &chunks, &at_once] {
        let said = said_to(&server, pieces).await;
        assert!(said.starts_with("HTTP/1.1 201 "), "{pieces:?}: {said}");
    }

    let one = body("on demand");
    let said = said_to(&server, &[length(&one, &format!("\r\nexpect: 100-continue{close}")), one]).await;
    assert!(said.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 "), "{said}");

    let (one, other) = (body("first"), body("second"));
    let said = said_to(&server, &[length(&one, "") + &one + &length(&other, close) + &other]).await;
    assert_eq!(said.matches("HTTP/1.1 201 ").count(), 2, "{said}");
    assert_eq!(server.client().get("/api/claims").await.expect(200).body["items"].as_array().unwrap().len(), 7);
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
