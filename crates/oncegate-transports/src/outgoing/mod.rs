//! Calls to other systems, and the addresses that they may not reach.
//!
//! A name is resolved once, all of its addresses are checked, and the connection goes to one of them. Unless the
//! configuration allows it, a URL must not reach what only this machine or this network can reach.

mod post;

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use hyper::header::HeaderValue;
use ipnet::IpNet;
use oncegate::WorkspaceName;
use oncegate_config::is_allowed;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde::Serializer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use url::{Host, Url};

pub use post::{NotPosted, Posted, exchange, post};

/// The name of the header that carries the workspace in everything that leaves: HTTP, mail, and messages to brokers.
pub const WORKSPACE: &str = "oncegate-workspace";

/// Serializes a workspace for lines of JSON.
pub fn serialize_workspace<S: Serializer>(workspace: &WorkspaceName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(workspace.as_str())
}

pub fn workspace_header(workspace: &WorkspaceName) -> (&'static str, HeaderValue) {
    (WORKSPACE, HeaderValue::from_str(workspace.as_str()).expect("the name of a workspace is a header's value"))
}

/// Why no connection was made. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum NoConnection {
    #[error("the address of {0} is not one to call. hint: [outgoing] allow")]
    Refused(String),
    #[error("the name {0} cannot be resolved: {1}")]
    Name(String, std::io::Error),
    #[error("no connection to {0}: {1}")]
    Connect(String, std::io::Error),
    #[error("no encrypted connection to {0}: {1}")]
    Encrypt(String, std::io::Error),
}

/// The addresses of a URL's host, after all of them were checked.
pub async fn addresses(url: &Url, default_port: u16, allow: &[IpNet]) -> Result<Vec<SocketAddr>, NoConnection> {
    let host = url.host_str().unwrap_or_default().to_owned();
    let port = url.port().unwrap_or(default_port);
    let addresses: Vec<SocketAddr> = match url.host() {
        Some(Host::Ipv4(address)) => vec![(address, port).into()],
        Some(Host::Ipv6(address)) => vec![(address, port).into()],
        // For a scheme that the parser does not know, the host is text, even if it is an address.
        _ => {
            let looked_up = tokio::net::lookup_host((host.as_str(), port)).await;
            looked_up.map_err(|error| NoConnection::Name(host.clone(), error))?.collect()
        }
    };
    all_allowed(host, addresses, allow)
}

/// A name with a single forbidden address is not called at all: the server does not control which address is used.
fn all_allowed(host: String, addresses: Vec<SocketAddr>, allow: &[IpNet]) -> Result<Vec<SocketAddr>, NoConnection> {
    match addresses.iter().all(|address| is_allowed(address.ip(), allow)) {
        true => Ok(addresses),
        false => Err(NoConnection::Refused(host)),
    }
}

pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection to the host of an `http` or `https` URL.
pub async fn connect(url: &Url, allow: &[IpNet]) -> Result<Box<dyn Stream>, NoConnection> {
    let host = url.host_str().unwrap_or_default().to_owned();
    let is_encrypted = url.scheme() == "https";
    let addresses = addresses(url, if is_encrypted { 443 } else { 80 }, allow).await?;
    let stream = match TcpStream::connect(&addresses[..]).await {
        Ok(stream) => stream,
        Err(error) => return Err(NoConnection::Connect(host, error)),
    };
    let _ = stream.set_nodelay(true);
    if !is_encrypted {
        return Ok(Box::new(stream));
    }
    encrypt(&host, stream).await.map_err(|why| NoConnection::Encrypt(host, why))
}

/// Encrypts a connection to this host, after its certificate was checked.
pub async fn encrypt(host: &str, stream: TcpStream) -> std::io::Result<Box<dyn Stream>> {
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(std::io::Error::other)?;
    Ok(Box::new(TLS.connect(name, stream).await?))
}

/// The TLS client. Certificates are always checked against the system's authorities.
static TLS: LazyLock<TlsConnector> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has them")
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
});

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_is_checked_by_what_it_resolves_to() {
        let url = "http://localhost:1/".parse().unwrap();
        assert!(matches!(addresses(&url, 80, &[]).await, Err(NoConnection::Refused(_))));
    }

    #[test]
    fn a_name_with_a_public_and_a_private_address_is_refused() {
        let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<SocketAddr>>();
        let check = |texts: &[&str], allow: &[IpNet]| all_allowed("name".into(), addresses(texts), allow);
        assert!(check(&["8.8.8.8:80", "[2606:4700::1111]:80"], &[]).is_ok());
        for private in ["10.0.0.1:80", "127.0.0.1:80", "169.254.169.254:80", "[::1]:80", "[::ffff:10.0.0.1]:80"] {
            assert!(check(&["8.8.8.8:80", private], &[]).is_err(), "{private}");
            assert!(check(&[private, "8.8.8.8:80"], &[]).is_err(), "{private}");
        }
        assert!(check(&["8.8.8.8:80", "10.0.0.1:80"], &["10.0.0.0/8".parse().unwrap()]).is_ok());
    }
}
