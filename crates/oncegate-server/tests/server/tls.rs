//! TLS of the server's own listener.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustix::process::Signal;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::{Home, Server, claim_of, eventually, with};

const TLS: &str = "[tls]\ncertificate_file = \"chain.pem\"\nkey_file = \"key.pem\"";

/// Writes a new certificate for `localhost` and its key, and returns the certificate that a client has to trust.
fn certify(folder: &Path) -> CertificateDer<'static> {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).expect("a key");
    let write = |name: &str, pem: String| {
        let new = folder.join("new.pem");
        std::fs::write(&new, pem).expect("the folder is ours");
        std::fs::set_permissions(&new, Permissions::from_mode(0o600)).expect("it is ours");
        std::fs::rename(new, folder.join(name)).expect("the folder is ours");
    };
    write("key.pem", signing_key.serialize_pem());
    write("chain.pem", cert.pem());
    cert.der().clone()
}

/// A client that trusts only this certificate.
async fn connect(server: &Server, trusted: &CertificateDer<'static>) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = versions.expect("versions").with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(server.address).await?;
    let name = ServerName::try_from("localhost").expect("a name");
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// The answer of `/healthz` to such a client.
async fn health(server: &Server, trusted: &CertificateDer<'static>) -> std::io::Result<String> {
    let mut stream = connect(server, trusted).await?;
    let request =
        format!("GET /healthz HTTP/1.1\r\nhost: localhost:{}\r\nconnection: close\r\n\r\n", server.address.port());
    stream.write_all(request.as_bytes()).await?;
    let mut said = String::new();
    stream.read_to_string(&mut said).await?;
    Ok(said)
}

#[tokio::test]
async fn the_listener_speaks_tls_and_takes_a_renewed_certificate_without_a_restart() {
    let home = Home::with_config(TLS);
    let first = certify(home.path());
    let server = home.serve();
    assert!(health(&server, &first).await.expect("an answer").starts_with("HTTP/1.1 200 "));

    // An invalid certificate file changes nothing, and is reported.
    std::fs::write(home.path().join("chain.pem"), "no certificate").expect("the folder is ours");
    server.logged("tls.not_reloaded", 1).await;
    assert!(health(&server, &first).await.is_ok());

    let second = certify(home.path());
    server.logged("tls.reloaded", 1).await;
    eventually("the new certificate", || async { health(&server, &second).await.ok() }).await;
    assert!(health(&server, &first).await.is_err(), "the old one is not shown any more");
}

#[tokio::test]
async fn plain_http_gets_no_answer_from_a_tls_listener_and_does_not_hold_it_up() {
    let home = Home::with_config(TLS);
    let trusted = certify(home.path());
    let server = home.serve();
    let mut plain = TcpStream::connect(server.address).await.expect("the server listens");
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("open");
    let mut said = vec![];
    let _ = plain.read_to_end(&mut said).await;
    assert!(!String::from_utf8_lossy(&said).contains("HTTP/1.1 200"), "{said:?}");
    assert!(health(&server, &trusted).await.is_ok());
}

/// Sends a `POST`, and does not wait for its answer.
async fn post(stream: &mut TlsStream<TcpStream>, key: &str, path: &str, body: &Value) {
    let body = body.to_string();
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.expect("open");
    stream.flush().await.expect("open");
}

/// The status of the next answer, and its body.
async fn answer(stream: &mut TlsStream<TcpStream>) -> (u16, Value) {
    let mut said = vec![];
    let head = loop {
        said.push(stream.read_u8().await.expect("an answer"));
        if said.ends_with(b"\r\n\r\n") {
            break String::from_utf8(std::mem::take(&mut said)).expect("text");
        }
    };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
    let mut body = vec![0; length.parse().expect("a number")];
    stream.read_exact(&mut body).await.expect("a body");
    (head[9..12].parse().expect("a status"), serde_json::from_slice(&body).expect("JSON"))
}

#[tokio::test]
async fn a_client_that_ends_tls_while_it_waits_wins_nothing_and_one_that_asks_ahead_is_answered() {
    let home = Home::with_config(TLS);
    let trusted = certify(home.path());
    let (_, key) = home.make_key("default", "operate");
    let server = home.serve();
    let mut owner = connect(&server, &trusted).await.expect("TLS");
    let waits = with(claim_of("g", "k"), json!({"waitSeconds": 20}));
    let win = async |owner: &mut TlsStream<TcpStream>| {
        post(owner, &key, "/api/claims", &claim_of("g", "k")).await;
        let (status, won) = answer(owner).await;
        assert_eq!(status, 201, "{won}");
        won
    };
    let release = async |owner: &mut TlsStream<TcpStream>, won: &Value| {
        let path = format!("/api/claims/{}/release", won["id"].as_str().expect("an id"));
        post(owner, &key, &path, &json!({"guard": "g", "token": won["token"]})).await;
        assert_eq!(answer(owner).await.0, 200);
    };

    // The client closes its half. It is refused, and does not win the claim that becomes free later.
    let won = win(&mut owner).await;
    let mut waiter = connect(&server, &trusted).await.expect("TLS");
    post(&mut waiter, &key, "/api/claims", &waits).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    waiter.shutdown().await.expect("open");
    tokio::time::sleep(Duration::from_millis(200)).await;
    release(&mut owner, &won).await;
    let (status, told) = answer(&mut waiter).await;
    assert_eq!((status, &told["claim"]), (409, &json!("in_flight")), "{told}");
    let won = win(&mut owner).await;

    // The first of these waits while the second arrives.
    let mut eager = connect(&server, &trusted).await.expect("TLS");
    post(&mut eager, &key, "/api/claims", &waits).await;
    let filler = json!({"attributes": {"filler": "x".repeat(3000)}});
    post(&mut eager, &key, "/api/claims", &with(claim_of("g", "other"), filler)).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    release(&mut owner, &won).await;
    for _ in 0..2 {
        let (status, won) = answer(&mut eager).await;
        assert_eq!(status, 201, "{won}");
    }
}

#[tokio::test]
async fn a_server_stops_at_once_though_a_client_does_not_go_on_with_tls() {
    let home = Home::with_config(TLS);
    certify(home.path());
    let mut server = home.serve();
    let _silent = TcpStream::connect(server.address).await.expect("the server listens");
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.signal(Signal::TERM);
    assert!(server.wait(Duration::from_secs(12)).success());
    let cut = server.log().into_iter().find(|line| line["event"] == "server.connections_cut");
    assert_eq!(cut, None);
}

#[test]
fn a_certificate_that_cannot_be_used_is_refused_at_the_start() {
    let home = Home::with_config(TLS);
    let refused = home.run(["serve", "--listen", "127.0.0.1:0"]).expect_code(1);
    assert!(refused.stderr.contains("chain.pem cannot be read"), "{refused:?}");
    certify(home.path());
    let other = tempfile::tempdir().expect("a folder");
    certify(other.path());
    std::fs::copy(other.path().join("key.pem"), home.path().join("key.pem")).expect("the folder is ours");
    let refused = home.run(["serve", "--listen", "127.0.0.1:0"]).expect_code(1);
    assert!(refused.stderr.contains("do not go together"), "{refused:?}");
    let key = home.path().join("key.pem");
    std::fs::set_permissions(&key, Permissions::from_mode(0o644)).expect("it is ours");
    let refused = home.run(["serve", "--listen", "127.0.0.1:0"]).expect_code(1);
    assert!(refused.stderr.contains("every user of this machine may read it"), "{refused:?}");
    home.configure("[tls]\nkey_file = \"key.pem\"");
    let refused = home.run(["config", "check"]);
    assert!(refused.code != 0 && refused.stderr.contains("certificate_file"), "{refused:?}");
}
