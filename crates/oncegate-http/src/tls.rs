//! TLS of the server's own listener: `[tls]`.
//!
//! Certificate and key are read when the server starts, and again once either file has changed, so that a renewed certificate
//! needs no restart. If the files do not match (a half-written renewal), the server keeps its current pair, logs the error, and checks
//! again.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use oncegate_config::Tls as Files;
use oncegate_process::secret_file;

/// The time-out of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

pub struct Tls {
    files: Files,
    config: ArcSwap<ServerConfig>,
    /// The stamps of the files at the last read, even if the files could not be used.
    read: Mutex<[Option<Stamp>; 2]>,
}

/// A change of it shows that a file has changed.
type Stamp = (SystemTime, u64);

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{0} cannot be read as PEM: {1}")]
    Pem(String, rustls::pki_types::pem::Error),
    #[error("{0} has no certificate")]
    Empty(String),
    #[error("{0}")]
    Key(String),
    #[error("{certificate} and {key} do not go together: {why}")]
    Mismatch { certificate: String, key: String, why: rustls::Error },
}

impl Tls {
    pub fn open(files: &Files) -> Result<Tls, TlsError> {
        let read = Mutex::new(stamps(files));
        Ok(Tls { config: ArcSwap::from_pointee(load(files)?), files: files.clone(), read })
    }

    /// Reads the files again, if one has changed.
    pub fn refresh(&self) {
        let now = stamps(&self.files);
        let mut read = self.read.lock().expect("no holder of this lock panics");
        if *read == now {
            return;
        }
        *read = now;
        match load(&self.files) {
            Ok(config) => {
                self.config.store(Arc::new(config));
                tracing::info!(event = "tls.reloaded");
            }
            Err(error) => tracing::error!(event = "tls.not_reloaded", %error),
        }
    }

    pub async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let agreed = TlsAcceptor::from(self.config.load_full()).accept(stream);
        tokio::time::timeout(HANDSHAKE_TIMEOUT, agreed).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}

fn stamps(files: &Files) -> [Option<Stamp>; 2] {
    let stamp = |path: &Path| {
        let seen = path.metadata().ok()?;
        Some((seen.modified().ok()?, seen.len()))
    };
    [stamp(&files.certificate), stamp(&files.key)]
}

fn load(files: &Files) -> Result<ServerConfig, TlsError> {
    let name = |path: &Path| path.display().to_string();
    let unreadable = |path: &Path| {
        let name = name(path);
        move |error| TlsError::Pem(name, error)
    };
    let chain = CertificateDer::pem_file_iter(&files.certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(unreadable(&files.certificate))?;
    if chain.is_empty() {
        return Err(TlsError::Empty(name(&files.certificate)));
    }
    let key = secret_file::read(&files.key).map_err(TlsError::Key)?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(unreadable(&files.key))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = versions.expect("ring has TLS 1.2 and 1.3").with_no_client_auth().with_single_cert(chain, key);
    let mut config = config.map_err(|why| {
        let (certificate, key) = (name(&files.certificate), name(&files.key));
        TlsError::Mismatch { certificate, key, why }
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
