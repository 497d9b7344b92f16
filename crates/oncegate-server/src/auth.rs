//! Who asks, and what they may do.
//!
//! Keys are kept as hashes and compared in constant time. While no key exists the server is open, but only
//! to its own machine: it listens on a loopback address, and answers requests that name that address and do
//! not come from another site's page in a browser.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::http::{HeaderMap, HeaderName, Uri, header};
use oncegate::WorkspaceName;
use oncegate::store::{ApiKey, KeyHash, Keyring, Role, StoreError};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::problem::{Kind, Problem};

pub const WORKSPACE_HEADER: HeaderName = HeaderName::from_static("oncegate-workspace");
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Who asks while there are no keys.
const LOCAL: &str = "local";

/// A key as its holder has it: `og_ID_SECRET`. Shown once, kept by nobody but them.
pub struct NewKey {
    pub id: String,
    pub secret: String,
    pub hash: KeyHash,
}

impl NewKey {
    pub fn generate() -> Self {
        let id = random::<8>();
        let secret = format!("og_{id}_{}", random::<32>());
        NewKey { id, hash: hash(&secret), secret }
    }
}

/// So many bytes that nobody can guess, in hex.
pub fn random<const BYTES: usize>() -> String {
    let mut random = [0; BYTES];
    getrandom::fill(&mut random).expect("the operating system has randomness");
    hex(&random)
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The secret is 256 random bits: a plain hash cannot be searched.
fn hash(secret: &str) -> KeyHash {
    Sha256::digest(secret.as_bytes()).into()
}

/// Who asks.
#[derive(Clone, Debug)]
pub struct Caller {
    pub workspace: WorkspaceName,
    pub role: Role,
    /// For the audit line: a key's id, or where the server is open, `local`.
    pub name: String,
}

impl Caller {
    fn of(key: &ApiKey) -> Caller {
        Caller { workspace: key.workspace.clone(), role: key.role, name: key.id.clone() }
    }

    pub fn require(&self, role: Role) -> Result<(), Problem> {
        if self.role >= role {
            return Ok(());
        }
        Err(Kind::Forbidden.because(format!(
            "this needs the role {:?}, and the key has {:?}",
            role.as_str(),
            self.role.as_str()
        )))
    }
}

/// Who may ask. Looked at for every request, by all processors at once, and seldom changed.
pub struct Keys(ArcSwap<Admission>);

#[derive(Clone)]
struct Admission {
    listen: Listen,
    /// The keys as last read from the store.
    by_id: Arc<HashMap<String, ApiKey>>,
    /// This process has seen no key yet. What becomes of the table of keys later, a wrong restore say, does not open the server.
    is_open: bool,
}

impl Keys {
    pub async fn load(store: &dyn Keyring, listen: SocketAddr) -> Result<Self, StoreError> {
        let keys =
            Keys(ArcSwap::from_pointee(Admission { listen: listen.into(), by_id: Arc::default(), is_open: true }));
        keys.refresh(store).await?;
        Ok(keys)
    }

    pub async fn refresh(&self, store: &dyn Keyring) -> Result<(), StoreError> {
        let keys = store.keys().await?.into_iter().map(|key| (key.id.clone(), key));
        let by_id = Arc::new(keys.collect::<HashMap<_, _>>());
        self.0.rcu(|now| Admission {
            is_open: now.is_open && by_id.is_empty(),
            by_id: by_id.clone(),
            ..Admission::clone(now)
        });
        Ok(())
    }

    /// The address that was got, where port 0 was asked for.
    pub fn listens_on(&self, address: SocketAddr) {
        self.0.rcu(|now| Admission { listen: address.into(), ..Admission::clone(now) });
    }

    /// As it is written in a URL.
    pub fn address(&self) -> String {
        let Listen { host, port } = &self.0.load().listen;
        format!("{host}:{port}")
    }

    /// This process has seen no key. (A revoked one counts: revoking the last key must not open the server.)
    pub fn is_open(&self) -> bool {
        self.0.load().is_open
    }

    pub fn authenticate(&self, uri: &Uri, headers: &HeaderMap) -> Result<Caller, Problem> {
        let admission = self.0.load();
        if admission.is_open {
            admission.listen.check_local(uri, headers)?;
            let workspace = named_workspace(headers)?.unwrap_or_else(WorkspaceName::default_workspace);
            return Ok(Caller { workspace, role: Role::Admin, name: LOCAL.into() });
        }
        let key = bearer(headers)
            .and_then(|secret| verify(&admission.by_id, secret))
            .ok_or_else(|| Kind::Unauthorized.because("the request has no valid API key"))?;
        if named_workspace(headers)?.is_some_and(|named| named != key.workspace) {
            return Err(Kind::Forbidden.because("the key is not for the workspace that the request names"));
        }
        Ok(Caller::of(key))
    }

    /// Who has the key with this id, if it stands.
    pub fn holder(&self, id: &str) -> Option<Caller> {
        self.0.load().by_id.get(id).filter(|key| key.revoked_at.is_none()).map(Caller::of)
    }

    /// Whether somebody who was let in may stay: their key stands, or there is still none at all.
    pub fn stands(&self, caller: &Caller) -> bool {
        if caller.name == LOCAL { self.is_open() } else { self.holder(&caller.name).is_some() }
    }

    /// Who has this key.
    pub fn holder_of(&self, secret: &str) -> Option<Caller> {
        verify(&self.0.load().by_id, secret).map(Caller::of)
    }

    /// For what needs no key: open to all once there are keys, and to this machine alone before.
    pub fn check_nearby(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let admission = self.0.load();
        if admission.is_open { admission.listen.check_local(uri, headers) } else { Ok(()) }
    }
}

/// The address that the server listens on, as it is written in a URL.
#[derive(Clone)]
struct Listen {
    host: String,
    port: u16,
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Self {
        let ip = address.ip();
        Listen { host: if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() }, port: address.port() }
    }
}

impl Listen {
    /// Against pages of other sites (and names that resolve to us), which a browser on this machine may have open.
    fn check_local(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        // Said twice, or in letters that cannot be read, is said wrongly.
        let text = |name: HeaderName| {
            let mut values = headers.get_all(name).iter();
            let value = values.next()?;
            Some(value.to_str().ok().filter(|_| values.next().is_none()).unwrap_or_default())
        };
        let host = text(header::HOST).unwrap_or_default();
        if !self.is_named(host) || uri.authority().is_some_and(|name| !self.is_named(name.as_str())) {
            return Err(Kind::Forbidden.because(format!(
                "without keys the server answers as {}:{} or localhost, not as {host:?}",
                self.host, self.port
            )));
        }
        if let Some(site) = text(SEC_FETCH_SITE)
            && !matches!(site, "same-origin" | "none")
        {
            return Err(Kind::Forbidden.because("without keys the server does not answer cross-site requests"));
        }
        if let Some(origin) = text(header::ORIGIN)
            && origin.split_once("://").is_none_or(|(_, origin_host)| !origin_host.eq_ignore_ascii_case(host))
        {
            return Err(Kind::Forbidden.because("without keys the server does not answer cross-origin requests"));
        }
        Ok(())
    }

    fn is_named(&self, name: &str) -> bool {
        ["localhost", &self.host].into_iter().any(|host| match name.split_at_checked(host.len()) {
            Some((given, rest)) if given.eq_ignore_ascii_case(host) => {
                rest.is_empty() || rest.strip_prefix(':').is_some_and(|port| port.parse() == Ok(self.port))
            }
            _ => false,
        })
    }
}

fn named_workspace(headers: &HeaderMap) -> Result<Option<WorkspaceName>, Problem> {
    let Some(value) = headers.get(WORKSPACE_HEADER) else { return Ok(None) };
    let name = value.to_str().unwrap_or_default();
    match WorkspaceName::new(name) {
        Ok(name) => Ok(Some(name)),
        Err(error) => Err(Kind::InvalidRequest.because(format!("header Oncegate-Workspace: {error}"))),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, secret) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

/// A key that does not exist takes as long as one that is wrong.
fn verify<'k>(keys: &'k HashMap<String, ApiKey>, secret: &str) -> Option<&'k ApiKey> {
    let id = secret.strip_prefix("og_").and_then(|rest| rest.split_once('_')).map_or("", |(id, _)| id);
    let key = keys.get(id);
    let kept = key.map_or([0; 32], |key| key.hash);
    let equal: bool = kept.ct_eq(&hash(secret)).into();
    key.filter(|key| equal && key.revoked_at.is_none())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use oncegate::Time;

    use super::*;

    fn keys(listen: &str, keys: Vec<ApiKey>) -> Keys {
        let by_id: HashMap<_, _> = keys.into_iter().map(|key| (key.id.clone(), key)).collect();
        let listen = listen.parse::<SocketAddr>().unwrap().into();
        Keys(ArcSwap::from_pointee(Admission { listen, is_open: by_id.is_empty(), by_id: Arc::new(by_id) }))
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn kept(new: &NewKey, revoked_at: Option<Time>) -> ApiKey {
        ApiKey {
            id: new.id.clone(),
            workspace: WorkspaceName::new("acme").unwrap(),
            role: Role::Send,
            hash: new.hash,
            created_at: Time::from_micros(1),
            revoked_at,
        }
    }

    #[test]
    fn without_keys_only_local_same_site_requests_are_answered() {
        let open = keys("127.0.0.1:4600", vec![]);
        let answered = [
            &[("host", "127.0.0.1:4600")][..],
            &[("host", "localhost:4600")],
            &[("host", "localhost")],
            &[("host", "LOCALHOST:4600")],
            &[("host", "localhost:4600"), ("origin", "http://localhost:4600"), ("sec-fetch-site", "same-origin")],
            &[("host", "localhost:4600"), ("sec-fetch-site", "none")],
        ];
        for request in answered {
            assert_eq!(
                open.authenticate(&Uri::default(), &headers(request)).unwrap().workspace.as_str(),
                "default",
                "{request:?}"
            );
        }
        let refused = [
            &[][..],
            &[("host", "evil.example")],
            &[("host", "localhost.evil.example:4600")],
            &[("host", "127.0.0.1:80")],
            &[("host", "localhost:4600"), ("origin", "http://evil.example")],
            &[("host", "localhost:4600"), ("origin", "null")],
            &[("host", "localhost:4600"), ("host", "localhost:4600")],
            &[("host", "localhost:4600"), ("origin", "http://localhost:4600"), ("origin", "http://evil.example")],
            &[("host", "localhost:4600"), ("sec-fetch-site", "cross-site")],
            &[("host", "localhost:4600"), ("sec-fetch-site", "same-site")],
        ];
        for request in refused {
            assert_eq!(
                open.authenticate(&Uri::default(), &headers(request)).unwrap_err().kind,
                Kind::Forbidden,
                "{request:?}"
            );
        }
        let elsewhere: Uri = "http://evil.example/api/claims".parse().unwrap();
        assert!(open.authenticate(&elsewhere, &headers(&[("host", "localhost")])).is_err());
        let other = headers(&[("host", "localhost"), ("oncegate-workspace", "acme")]);
        assert_eq!(open.authenticate(&Uri::default(), &other).unwrap().workspace.as_str(), "acme");
        let bad = headers(&[("host", "localhost"), ("oncegate-workspace", "a b")]);
        assert_eq!(open.authenticate(&Uri::default(), &bad).unwrap_err().kind, Kind::InvalidRequest);
    }

    #[test]
    fn with_keys_only_a_live_key_is_answered_and_all_others_alike() {
        let (live, revoked, stranger) = (NewKey::generate(), NewKey::generate(), NewKey::generate());
        let closed = keys("0.0.0.0:4600", vec![kept(&live, None), kept(&revoked, Some(Time::from_micros(2)))]);
        let ask = |value: &str| closed.authenticate(&Uri::default(), &headers(&[("authorization", value)]));
        let caller = ask(&format!("Bearer {}", live.secret)).unwrap();
        assert_eq!((caller.workspace.as_str(), caller.role), ("acme", Role::Send));
        assert!(caller.require(Role::Send).is_ok());
        assert_eq!(caller.require(Role::Operate).unwrap_err().kind, Kind::Forbidden);
        let half_right = format!("Bearer {}0", &live.secret[..live.secret.len() - 1].to_owned());
        let wrong = [
            format!("Bearer {}", stranger.secret),
            format!("Bearer {}", revoked.secret),
            half_right,
            "Bearer og_".into(),
            "Bearer".into(),
            format!("Basic {}", live.secret),
        ];
        let without = closed.authenticate(&Uri::default(), &headers(&[("host", "localhost:4600")])).unwrap_err();
        for value in wrong.iter().filter(|value| !value.ends_with(&live.secret) || value.starts_with("Basic")) {
            let problem = ask(value).unwrap_err();
            assert_eq!((problem.kind, &problem.detail), (without.kind, &without.detail), "{value}");
        }
    }

    #[test]
    fn a_revoked_last_key_does_not_open_the_server() {
        let revoked = NewKey::generate();
        let closed = keys("127.0.0.1:4600", vec![kept(&revoked, Some(Time::from_micros(2)))]);
        assert!(!closed.is_open());
        assert_eq!(
            closed.authenticate(&Uri::default(), &headers(&[("host", "localhost")])).unwrap_err().kind,
            Kind::Unauthorized
        );
    }
}
