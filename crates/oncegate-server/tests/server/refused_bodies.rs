//! A client that writes its whole request before it reads is answered, although its body is refused.

use std::process::Command;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Home, Raw};

/// Posts a body of this size this many times, as Python's own client does, and prints the statuses.
const PYTHON: &str = "
import http.client, sys
host, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for _ in range(count):
    try:
        connection = http.client.HTTPConnection(host, timeout=20)
        connection.request('POST', '/api/claims', b'x' * size, {'Content-Type': 'application/json'})
        print(connection.getresponse().status)
    except OSError as error:
        print(type(error).__name__)
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_writes_before_it_reads_is_told_that_its_body_is_too_large() {
    let home = Home::new();
    let server = home.serve();
    for (bytes, count) in [(1_100_000, 100), (8_000_000, 20)] {
        let (address, size, times) = (server.address.to_string(), bytes.to_string(), count.to_string());
        let run = move || Command::new("/usr/bin/python3").args(["-c", PYTHON, &address, &size, &times]).output();
        let output = tokio::task::spawn_blocking(run).await.expect("no panic").expect("Python is installed");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.lines().filter(|line| *line == "413").count(), count, "{bytes} bytes: {said}");
    }
}

#[tokio::test]
async fn what_is_read_and_thrown_away_is_bounded() {
    let home = Home::new();
    let server = home.serve();
    let head = format!(
        "POST /api/claims HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
        server.address
    );
    let mut stream = TcpStream::connect(server.address).await.expect("the server listens");
    stream.write_all(head.as_bytes()).await.expect("it reads");
    let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
    let mut wrote = 0;
    // The read ends on its own, whatever else the client sends.
    let writes = async {
        while stream.write_all(&chunk).await.is_ok() {
            wrote += chunk.len();
        }
    };
    tokio::time::timeout(Duration::from_secs(10), writes).await.expect("the connection is closed in time");
    assert!(wrote < 200 * 1024 * 1024, "{wrote} bytes");
    let mut said = vec![];
    // After so much unread data, the system may have discarded the answer.
    let _ = stream.read_to_end(&mut said).await;
}

#[tokio::test]
async fn a_client_that_waits_for_a_word_before_it_sends_gets_the_refusal_at_once() {
    let home = Home::new();
    let server = home.serve();
    let mut client = Raw::connect(server.address).await;
    client.post_head("content-length: 9000000\r\nexpect: 100-continue").await;
    let said = client.read_to_close(Duration::from_secs(5)).await;
    assert!(said.starts_with("HTTP/1.1 413 "), "{said}");
}
