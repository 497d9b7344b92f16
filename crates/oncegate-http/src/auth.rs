//! Authentication: which caller a request is from, and what that caller may do.
//!
//! Keys are stored as hashes and compared in constant time. An open server answers without a key. The server is open only while no key has
//! ever existed, and only to requests that come directly from its own machine and user (`local.rs`, `peer.rs`). Once this process or
//! another
//! one on the same store (`mark.rs`) has seen a key, the server never opens again, even if the table of keys is emptied.

mod local;
pub mod mark;
mod peer;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Uri, Version, header};
use oncegate::store::{ApiKey, Clock, KeyHash, MainStore, Role, StoreError, SystemClock};
use oncegate::{Time, WorkspaceName};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

pub use peer::Peer;

use self::local::Listen;
use crate::problem::{Kind, Problem};

pub const WORKSPACE_HEADER: HeaderName = HeaderName::from_static("oncegate-workspace");

/// The caller's name while the server is open.
pub const LOCAL: &str = "local";
/// The minimum time between two writes of a key's last use.
const USE_NOTED_EVERY: Duration = Duration::from_secs(60);

/// A key as its holder has it: `og_ID_SECRET`. It is shown once, and only the holder keeps it.
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

/// Random bytes in hex, too many to guess.
pub fn random<const BYTES: usize>() -> String {
    let mut random = [0; BYTES];
    getrandom::fill(&mut random).expect("the operating system has randomness");
    hex(&random)
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The secret is 256 random bits, so a plain hash resists a search.
fn hash(secret: &str) -> KeyHash {
    Sha256::digest(secret.as_bytes()).into()
}

/// The authenticated caller of a request.
#[derive(Clone, Debug)]
pub struct Caller {
    pub workspace: WorkspaceName,
    pub role: Role,
    /// The caller's id in the audit log: a key's id, or `local` where the server is open.
    pub name: String,
    /// The display name of the key.
    pub label: Option<Arc<str>>,
}

impl Caller {
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

/// The parts of a request that identify its caller.
#[derive(Clone, Copy)]
pub struct Credentials<'r> {
    pub uri: &'r Uri,
    pub headers: &'r HeaderMap,
    pub version: Version,
    /// None: the origin of the request is unknown, and an open server does not answer it.
    pub peer: Option<&'r Peer>,
}

impl<'r> Credentials<'r> {
    pub fn new(parts: &'r Parts, peer: Option<&'r Peer>) -> Credentials<'r> {
        Credentials { uri: &parts.uri, headers: &parts.headers, version: parts.version, peer }
    }
}

/// A wrong key that a request sent: the key that its id names, if the server knows that key.
pub struct WrongKey {
    pub workspace: WorkspaceName,
    pub id: Option<String>,
}

/// The keys of the server. Every request reads them, on all processors at once; they seldom change.
pub struct Keys {
    admission: ArcSwap<Admission>,
    /// `[auth] required`: the server is never open.
    required: bool,
    /// The last reading of the keys failed. Keys are read on a connection of their own, so a failure means that the store is away, not
    /// busy.
    is_store_away: AtomicBool,
    /// Readings run one at a time. Of two concurrent readings, the older could finish last and bring a revoked key back.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Admission {
    listen: Listen,
    /// The keys as last read from the store.
    by_id: Arc<HashMap<String, Held>>,
    /// A key exists, or has existed. A later change of the table of keys, such as a wrong restore, does not open the server.
    seen: bool,
    /// The mark that a key has existed is in the store.
    marked: bool,
}

struct Held {
    key: ApiKey,
    label: Option<Arc<str>>,
    /// The key was used since its last use was written. It is a flag, so that a request only reads it once it is set.
    used: Arc<AtomicBool>,
}

impl Held {
    fn caller(&self) -> Caller {
        let ApiKey { workspace, role, id, .. } = &self.key;
        Caller { workspace: workspace.clone(), role: *role, name: id.clone(), label: self.label.clone() }
    }

    /// Uses the server's own clock, and reads it only for keys that expire.
    fn is_live(&self) -> bool {
        self.key.revoked_at.is_none() && self.key.expires_at.is_none_or(|expires_at| SystemClock.now() < expires_at)
    }

    fn note_use(&self) {
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
    }
}

impl Keys {
    pub async fn load(store: &dyn MainStore, listen: SocketAddr, required: bool) -> Result<Self, StoreError> {
        let admission = Admission { listen: listen.into(), by_id: Arc::default(), seen: false, marked: false };
        let admission = ArcSwap::from_pointee(admission);
        let keys = Keys { admission, required, is_store_away: AtomicBool::new(false), reading: Default::default() };
        keys.refresh(store).await?;
        Ok(keys)
    }

    /// Reads the keys again, and sets the mark in the store if there are any.
    pub async fn refresh(&self, store: &dyn MainStore) -> Result<(), StoreError> {
        let _reading = self.reading.lock().await;
        let refreshed = self.read(store).await;
        self.is_store_away.store(refreshed.is_err(), Relaxed);
        refreshed
    }

    /// Notes that this process has made a key: the server is no longer open, whether or not the keys can be read again.
    pub fn made_one(&self) {
        self.admission.rcu(|now| Admission { seen: true, ..Admission::clone(now) });
    }

    /// Whether the last reading of the keys failed.
    pub fn is_store_away(&self) -> bool {
        self.is_store_away.load(Relaxed)
    }

    async fn read(&self, store: &dyn MainStore) -> Result<(), StoreError> {
        let before = self.admission.load_full();
        let held = |key: ApiKey| {
            let used = before.by_id.get(&key.id).map(|held| held.used.clone()).unwrap_or_default();
            (key.id.clone(), Held { label: key.name.as_deref().map(Arc::from), key, used })
        };
        let by_id: HashMap<String, Held> = store.keys().await?.into_iter().map(held).collect();
        let by_id = Arc::new(by_id);
        let is_empty = by_id.is_empty();
        self.admission.rcu(|now| Admission {
            seen: now.seen || !is_empty,
            by_id: by_id.clone(),
            ..Admission::clone(now)
        });
        if before.marked {
            return Ok(());
        }
        let marked = if is_empty { mark::is_set(store).await? } else { mark::set(store).await.map(|()| true)? };
        self.admission.rcu(|now| Admission { seen: now.seen || marked, marked, ..Admission::clone(now) });
        Ok(())
    }

    /// The keys that were used since their last use was written, if that write is long enough ago.
    pub fn take_used(&self, now: Time) -> Vec<String> {
        let admission = self.admission.load();
        let is_noted = |held: &&Held| held.key.last_used_at.is_some_and(|at| now < at + USE_NOTED_EVERY);
        let stale = admission.by_id.values().filter(|held| held.used.load(Relaxed)).filter(|held| !is_noted(held));
        stale.filter(|held| held.used.swap(false, Relaxed)).map(|held| held.key.id.clone()).collect()
    }

    /// Sets the actual address, where port 0 was configured.
    pub fn listens_on(&self, address: SocketAddr) {
        self.admission.rcu(|now| Admission { listen: address.into(), ..Admission::clone(now) });
    }

    /// The address as it is written in a URL.
    pub fn address(&self) -> String {
        self.admission.load().listen.to_string()
    }

    /// Whether no key exists or has existed, as far as this process and the store know. A revoked key counts, because revoking the last key
    /// must
    /// not open the server.
    pub fn never_existed(&self) -> bool {
        !self.admission.load().seen
    }

    /// Whether the server answers its own machine without a key.
    pub fn is_open(&self) -> bool {
        self.is_open_with(&self.admission.load())
    }

    fn is_open_with(&self, admission: &Admission) -> bool {
        !self.required && !admission.seen && admission.listen.is_loopback()
    }

    pub fn authenticate(&self, asked: Credentials<'_>) -> Result<Caller, Problem> {
        let admission = self.admission.load();
        let headers = asked.headers;
        if self.is_open_with(&admission) {
            admission.listen.check_local(asked)?;
            let workspace = named_workspace(headers)?.unwrap_or_else(WorkspaceName::default_workspace);
            return Ok(Caller { workspace, role: Role::Admin, name: LOCAL.into(), label: None });
        }
        let held = bearer(headers)
            .and_then(|secret| verify(&admission.by_id, secret))
            .ok_or_else(|| Kind::Unauthorized.because("the request has no valid API key"))?;
        if named_workspace(headers)?.is_some_and(|named| named != held.key.workspace) {
            return Err(Kind::Forbidden.because("the key is not for the workspace that the request names"));
        }
        held.note_use();
        Ok(held.caller())
    }

    /// The caller that has the key with this id, if the key is live.
    pub fn holder(&self, id: &str) -> Option<Caller> {
        self.admission.load().by_id.get(id).filter(|held| held.is_live()).map(Held::caller)
    }

    /// Whether an authenticated caller may continue: its key is still live, or the server is still open.
    pub fn stands(&self, caller: &Caller) -> bool {
        if caller.name == LOCAL { self.is_open() } else { self.holder(&caller.name).is_some() }
    }

    /// The caller that has this key.
    pub fn holder_of(&self, secret: &str) -> Option<Caller> {
        let admission = self.admission.load();
        let held = verify(&admission.by_id, secret)?;
        held.note_use();
        Some(held.caller())
    }

    /// Describes a key that a request sent and that is unknown, revoked or expired.
    pub fn wrong_key(&self, secret: &str) -> WrongKey {
        let admission = self.admission.load();
        match admission.by_id.get(id_in(secret)) {
            Some(held) => WrongKey { workspace: held.key.workspace.clone(), id: Some(held.key.id.clone()) },
            None => WrongKey { workspace: WorkspaceName::default_workspace(), id: None },
        }
    }

    /// For routes that need no key: any client may use them once keys exist, and only this machine before.
    pub fn check_nearby(&self, asked: Credentials<'_>) -> Result<(), Problem> {
        let admission = self.admission.load();
        if self.is_open_with(&admission) { admission.listen.check_local(asked) } else { Ok(()) }
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

/// The key that a request has sent, valid or not.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, secret) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

/// The id of a key is in its secret.
fn id_in(secret: &str) -> &str {
    secret.strip_prefix("og_").and_then(|rest| rest.split_once('_')).map_or("", |(id, _)| id)
}

/// The check of an unknown key takes as long as the check of a wrong secret.
fn verify<'k>(keys: &'k HashMap<String, Held>, secret: &str) -> Option<&'k Held> {
    let held = keys.get(id_in(secret));
    let kept = held.map_or([0; 32], |held| held.key.hash);
    let equal: bool = kept.ct_eq(&hash(secret)).into();
    held.filter(|held| equal && held.is_live())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use oncegate::Time;

    use super::*;

    fn keys(listen: &str, keys: Vec<ApiKey>) -> Keys {
        let held = |key: ApiKey| (key.id.clone(), Held { key, label: None, used: Arc::default() });
        let by_id: HashMap<_, _> = keys.into_iter().map(held).collect();
        let listen = listen.parse::<SocketAddr>().unwrap().into();
        let admission = Admission { listen, seen: !by_id.is_empty(), marked: false, by_id: Arc::new(by_id) };
        Keys {
            admission: ArcSwap::from_pointee(admission),
            required: false,
            is_store_away: AtomicBool::new(false),
            reading: Default::default(),
        }
    }

    fn ask(keys: &Keys, uri: &Uri, headers: &HeaderMap) -> Result<Caller, Problem> {
        let peer = Peer::of_our_own();
        keys.authenticate(Credentials { uri, headers, version: Version::HTTP_11, peer: Some(&peer) })
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
            name: None,
            created_by: None,
            expires_at: None,
            last_used_at: None,
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
                ask(&open, &Uri::default(), &headers(request)).unwrap().workspace.as_str(),
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
                ask(&open, &Uri::default(), &headers(request)).unwrap_err().kind,
                Kind::Forbidden,
                "{request:?}"
            );
        }
        let elsewhere: Uri = "http://evil.example/api/claims".parse().unwrap();
        assert!(ask(&open, &elsewhere, &headers(&[("host", "localhost")])).is_err());
        let other = headers(&[("host", "localhost"), ("oncegate-workspace", "acme")]);
        assert_eq!(ask(&open, &Uri::default(), &other).unwrap().workspace.as_str(), "acme");
        let bad = headers(&[("host", "localhost"), ("oncegate-workspace", "a b")]);
        assert_eq!(ask(&open, &Uri::default(), &bad).unwrap_err().kind, Kind::InvalidRequest);
    }

    #[test]
    fn with_keys_only_a_live_key_is_answered_and_all_others_alike() {
        let (live, revoked, stranger) = (NewKey::generate(), NewKey::generate(), NewKey::generate());
        let closed = keys("0.0.0.0:4600", vec![kept(&live, None), kept(&revoked, Some(Time::from_micros(2)))]);
        let send = |value: &str| ask(&closed, &Uri::default(), &headers(&[("authorization", value)]));
        let caller = send(&format!("Bearer {}", live.secret)).unwrap();
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
        let without = ask(&closed, &Uri::default(), &headers(&[("host", "localhost:4600")])).unwrap_err();
        for value in wrong.iter().filter(|value| !value.ends_with(&live.secret) || value.starts_with("Basic")) {
            let problem = send(value).unwrap_err();
            assert_eq!((problem.kind, &problem.detail), (without.kind, &without.detail), "{value}");
        }
    }

    #[test]
    fn a_revoked_last_key_does_not_open_the_server() {
        let revoked = NewKey::generate();
        let closed = keys("127.0.0.1:4600", vec![kept(&revoked, Some(Time::from_micros(2)))]);
        assert!(!closed.is_open());
        assert_eq!(
            ask(&closed, &Uri::default(), &headers(&[("host", "localhost")])).unwrap_err().kind,
            Kind::Unauthorized
        );
    }

    #[test]
    fn a_key_is_refused_like_a_wrong_one_from_its_end_on() {
        let (over, later) = (NewKey::generate(), NewKey::generate());
        let ends_in = |new: &NewKey, span: Duration| {
            let now = SystemClock.now();
            let at = if span.is_zero() { now } else { now + span };
            ApiKey { expires_at: Some(at), ..kept(new, None) }
        };
        let hour = Duration::from_secs(3600);
        let closed = keys("0.0.0.0:4600", vec![ends_in(&over, Duration::ZERO), ends_in(&later, hour)]);
        let send =
            |secret: &str| ask(&closed, &Uri::default(), &headers(&[("authorization", &format!("Bearer {secret}"))]));
        assert!(send(&later.secret).is_ok());
        assert_eq!(send(&over.secret).unwrap_err().kind, Kind::Unauthorized);
        assert!(closed.holder(&over.id).is_none() && closed.holder_of(&over.secret).is_none());
    }

    #[test]
    fn the_use_of_a_key_is_noted_once_a_minute() {
        let (new, idle) = (NewKey::generate(), NewKey::generate());
        let at = |seconds: u64| Time::from_micros(1) + Duration::from_secs(seconds);
        let used = |last_used_at: Option<Time>| {
            let held = keys("0.0.0.0:4600", vec![ApiKey { last_used_at, ..kept(&new, None) }, kept(&idle, None)]);
            assert!(held.holder_of(&new.secret).is_some());
            held
        };
        let first = used(None);
        assert_eq!(first.take_used(at(0)), std::slice::from_ref(&new.id));
        assert!(first.take_used(at(0)).is_empty(), "it was not used again");
        let again = used(Some(at(0)));
        assert!(again.take_used(at(59)).is_empty());
        assert_eq!(again.take_used(at(60)), std::slice::from_ref(&new.id), "what was not noted is not lost");
    }

    #[test]
    fn where_keys_are_required_no_request_is_answered_without_one() {
        let required = Keys { required: true, ..keys("127.0.0.1:4600", vec![]) };
        assert!(!required.is_open() && required.never_existed());
        let local = headers(&[("host", "localhost")]);
        assert_eq!(ask(&required, &Uri::default(), &local).unwrap_err().kind, Kind::Unauthorized);
    }
}
