//! Encryption, as the URL asks for it. The client never falls back to an unencrypted connection silently.
//!
//! `sslmode=require` and `sslmode=verify-full` mean the same here: the connection is encrypted, and the server's certificate is
//! checked, including the host name, against the system's authorities or those in `sslrootcert=FILE`. Encryption without a check of the
//! server's identity is not supported.

use std::sync::Arc;

use oncegate_store::StoreError;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;

/// What a URL says about encryption, and the rest of the URL.
pub(crate) struct Asked {
    pub encrypt: bool,
    root_file: Option<String>,
    /// The URL without the parameters that the client library does not understand.
    pub url: String,
}

impl Asked {
    pub fn of(url: &str) -> Result<Asked, StoreError> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut asked = Asked { encrypt: false, root_file: None, url: String::new() };
        let mut rest = vec![];
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sslmode", "disable")) => {}
                Some(("sslmode", "require" | "verify-full")) => asked.encrypt = true,
                Some(("sslmode", other)) => {
                    return Err(StoreError::Refused(format!(
                        "sslmode={other} is not known. hint: verify-full (or require, which is the same here) or disable"
                    )));
                }
                Some(("sslrootcert", file)) => asked.root_file = Some(file.to_owned()),
                _ => rest.push(pair),
            }
        }
        if asked.root_file.is_some() && !asked.encrypt {
            return Err(StoreError::Refused("sslrootcert without encryption. hint: add sslmode=verify-full".into()));
        }
        rest.push(if asked.encrypt { "sslmode=require" } else { "sslmode=disable" });
        asked.url = format!("{base}?{}", rest.join("&"));
        Ok(asked)
    }

    pub fn connector(&self) -> Result<MakeRustlsConnect, StoreError> {
        let roots = match (&self.root_file, self.encrypt) {
            (Some(file), _) => roots_of(file)?,
            (None, true) => system_roots()?,
            (None, false) => RootCertStore::empty(),
        };
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has them")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(MakeRustlsConnect::new(config))
    }
}

fn roots_of(file: &str) -> Result<RootCertStore, StoreError> {
    let refused = |why: String| StoreError::Refused(format!("sslrootcert={file}: {why}"));
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(file).map_err(|error| refused(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| refused(error.to_string()))?;
        roots.add(certificate).map_err(|error| refused(error.to_string()))?;
    }
    if roots.is_empty() { Err(refused("there is no certificate in it".into())) } else { Ok(roots) }
}

fn system_roots() -> Result<RootCertStore, StoreError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        let none = "this system has no certificate authorities. hint: name the server's with sslrootcert=FILE";
        return Err(StoreError::Refused(none.into()));
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encryption_is_what_the_url_asks_for_and_nothing_weaker() {
        let asked = |url: &str| Asked::of(url).map(|asked| (asked.encrypt, asked.url));
        let open = |url: &str| (false, url.to_owned());
        assert_eq!(asked("postgres://h/d").unwrap(), open("postgres://h/d?sslmode=disable"));
        assert_eq!(asked("postgres://h/d?sslmode=disable").unwrap(), open("postgres://h/d?sslmode=disable"));
        for mode in ["require", "verify-full"] {
            let url = format!("postgres://h/d?connect_timeout=3&sslmode={mode}");
            assert_eq!(asked(&url).unwrap(), (true, "postgres://h/d?connect_timeout=3&sslmode=require".into()));
        }
        for bad in ["sslmode=prefer", "sslmode=verify-ca", "sslmode=", "sslrootcert=ca.pem"] {
            let refused = asked(&format!("postgres://ann:secret@h/d?{bad}")).unwrap_err().to_string();
            assert!(refused.contains("hint: ") && !refused.contains("secret"), "{refused}");
        }
    }

    #[test]
    fn a_file_of_authorities_that_cannot_be_read_is_named() {
        let asked = Asked::of("postgres://h/d?sslmode=verify-full&sslrootcert=/no/such.pem").unwrap();
        let refused = asked.connector().err().unwrap().to_string();
        assert!(refused.contains("/no/such.pem"), "{refused}");
    }
}
