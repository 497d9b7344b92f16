//! TLS of the server's own listener.

use std::path::Path;
use std::sync::Arc;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::support::{Home, Server, eventually};

const TLS: &str = "[tls]\ncertificate_file = \"chain.pem\"\nkey_file = \"key.pem\"";

/// Writes a new certificate for `localhost` and its key, and returns what a client has to trust.
fn certify(folder: &Path) -> CertificateDer<'static> {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).expect("a key");
    let write = |name: &str, pem: String| {
        let new = folder.join("new.pem");
        std::fs::write(&new, pem).expect("the folder is ours");
        std::fs::rename(new, folder.join(name)).expect("the folder is ours");
    };
    write("key.pem", signing_key.serialize_pem());
    write("chain.pem", cert.pem());
    cert.der().clone()
}

/// What `/healthz` answers a client that trusts this certificate alone.
async fn health(server: &Server, trusted: &CertificateDer<'static>) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = versions.expect("versions").with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(server.address).await?;
    let name = ServerName::try_from("localhost").expect("a name");
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
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

    // A file that is no certificate changes nothing, and is told of.
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
    home.configure("[tls]\nkey_file = \"key.pem\"");
    let refused = home.run(["config", "check"]);
    assert!(refused.code != 0 && refused.stderr.contains("certificate_file"), "{refused:?}");
}
