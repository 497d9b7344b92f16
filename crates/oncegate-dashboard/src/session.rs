//! The visitors of the dashboard.
//!
//! Where keys exist, a visitor logs in with a key and gets a session: a random secret in a cookie. The store keeps the secret's hash, with
//! an
//! expiry of its own. The session is valid on every replica, and ends with its key. While no key exists, the rules of the API apply: only
//! this
//! machine, and no pages of other sites.
//!
//! A request that changes something is accepted only from our own pages. The browser says where a request comes from, and a request without
//! that is refused.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use oncegate::store::{At, Change, Clock, Commit, Place, Record, Role, SystemClock};
use oncegate::{StoreError, WorkspaceName};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::parts::query;
use super::{Failed, Fields, Frame, Login, render};
use oncegate_http::app::App;
use oncegate_http::app::Under;
use oncegate_http::app::credentials;
use oncegate_http::app::exchange;
use oncegate_http::auth::{Caller, LOCAL, WORKSPACE_HEADER, hex, random};
use oncegate_http::problem::{Kind, Problem};

const KIND: &str = "session";
const COOKIE: &str = "oncegate_session";
const KEPT_FOR: Duration = Duration::from_secs(12 * 3600);

/// The workspace that a visitor has chosen, while there are no keys.
const WORKSPACE_COOKIE: &str = "oncegate_workspace";
/// How long a known session stays valid while the store is away: an incident is when the dashboard is needed.
const STANDS_WITHOUT_STORE: Duration = Duration::from_secs(600);
const SEEN_MAX: usize = 1_000;

/// A session belongs to one key: the id of the key, and the session's name.
type Session = (String, String);

/// Sessions that were found in the store, and when they were found.
#[derive(Default)]
pub struct Seen(Mutex<HashMap<Session, Instant>>);

impl Seen {
    fn add(&self, session: Session) {
        let mut seen = self.0.lock().expect("no holder of this lock panics");
        if seen.len() >= SEEN_MAX {
            seen.retain(|_, at| at.elapsed() < STANDS_WITHOUT_STORE);
        }
        if seen.len() < SEEN_MAX {
            seen.insert(session, Instant::now());
        }
    }

    fn has(&self, session: &Session) -> bool {
        let seen = self.0.lock().expect("no holder of this lock panics");
        seen.get(session).is_some_and(|at| at.elapsed() < STANDS_WITHOUT_STORE)
    }

    fn forget(&self, session: &Session) {
        self.0.lock().expect("no holder of this lock panics").remove(session);
    }
}

/// A visitor who may see the dashboard.
pub struct Visitor {
    pub caller: Caller,
    pub is_open: bool,
    /// The place of the session's record, if there is a session.
    pub session: Option<Place>,
}

impl Visitor {
    pub fn require(&self, role: Role) -> Result<(), Problem> {
        self.caller.require(role)
    }

    /// Whether the visitor may see what people did, and why: only a role that may do the same sees that.
    pub fn operates(&self) -> bool {
        self.caller.role >= Role::Operate
    }

    pub fn workspace(&self) -> &WorkspaceName {
        &self.caller.workspace
    }
}

impl FromRequestParts<Arc<App>> for Visitor {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Response> {
        let reads = matches!(parts.method, Method::GET | Method::HEAD);
        if !reads {
            check_ours(&parts.headers).map_err(refused)?;
        }
        let exchange = exchange(parts);
        let enter = async |visitor: Visitor| {
            app.enter(visitor.workspace(), &exchange)?;
            // Pages read the store: each waits for its workspace's turn.
            if reads {
                exchange.look_up(app).await?;
            }
            Ok::<_, Problem>(visitor)
        };
        match app.authenticate(credentials(parts)) {
            Ok(mut caller) => {
                // Only where no key was needed: a key has a workspace of its own.
                let is_open = caller.name == LOCAL;
                // A browser cannot send the header.
                let chosen = cookie(&parts.headers, WORKSPACE_COOKIE).and_then(|name| WorkspaceName::new(name).ok());
                if let Some(chosen) = chosen.filter(|_| is_open && !parts.headers.contains_key(WORKSPACE_HEADER)) {
                    caller.workspace = chosen;
                }
                return enter(Visitor { caller, is_open, session: None }).await.map_err(refused);
            }
            Err(problem) if app.keys.is_open() => return Err(refused(problem)),
            Err(_) => {}
        }
        match session(app, &parts.headers, reads).await {
            Ok(Some((caller, place))) => {
                enter(Visitor { caller, is_open: false, session: Some(place) }).await.map_err(refused)
            }
            Ok(None) if reads => {
                let to = parts.uri.path_and_query().map_or("/", |to| to.as_str());
                Err(see_other(&query("/login", [("to", to)])))
            }
            Ok(None) => Err(refused(Kind::Unauthorized.because("the session has ended: log in again"))),
            Err(problem) => Err(refused(problem)),
        }
    }
}

fn refused(problem: Problem) -> Response {
    Failed(problem).into_response()
}

pub fn see_other(to: &str) -> Response {
    (StatusCode::SEE_OTHER, [(header::LOCATION, to)]).into_response()
}

/// Refuses other sites' pages that post here with our visitor's cookie.
fn check_ours(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let is_ours = match text("sec-fetch-site") {
        Some(site) => site == "same-origin",
        // An old browser: the origin must be the host of the request.
        None => text("origin")
            .and_then(|origin| origin.split_once("://"))
            .is_some_and(|(_, origin_host)| text("host").is_some_and(|host| host.eq_ignore_ascii_case(origin_host))),
    };
    is_ours.then_some(()).ok_or_else(|| Kind::Forbidden.because("this is taken from our own pages alone"))
}

/// The name under which the store keeps a secret.
fn name_of(secret: &str) -> String {
    hex(&Sha256::digest(secret.as_bytes()))
}

/// The caller of the request's session, and the session's place. While the store is away, a known session may read. A store that is only
/// busy
/// does not allow that: an attacker who makes lookups fail must not change which requests are answered.
async fn session(app: &App, headers: &HeaderMap, reads: bool) -> Result<Option<(Caller, Place)>, Problem> {
    let Some((key, secret)) = cookie(headers, COOKIE).and_then(|value| value.split_once('.')) else { return Ok(None) };
    let Some(caller) = app.keys.holder(key) else { return Ok(None) };
    let name = name_of(secret);
    let place = Place { workspace: caller.workspace.clone(), kind: KIND, at: At::Name(name.clone()) };
    let session = (key.to_owned(), name);
    // A cookie that names a key costs a lookup, even if its secret is wrong. Only known sessions use the turns of the key's workspace. An
    // attacker who knows only the id of a key must not use them up.
    let is_known = app.part::<super::Shared>().sessions.has(&session);
    let tenant = if is_known { app.tenants.of(&caller.workspace) } else { app.tenants.others().clone() };
    let turn = tenant.lookup().await?;
    let found = find(app, &place, key).await;
    drop(turn);
    let stands = match found {
        Ok(record) => record.is_some(),
        Err(_) if reads && app.keys.is_store_away() && app.part::<super::Shared>().sessions.has(&session) => {
            return Ok(Some((caller, place)));
        }
        Err(error) => return Err(error.into()),
    };
    if stands {
        app.part::<super::Shared>().sessions.add(session);
    } else {
        app.part::<super::Shared>().sessions.forget(&session);
    }
    Ok(stands.then_some((caller, place)))
}

/// Whether a session is still valid. While the store is away, a session that was seen lately counts as valid.
pub async fn stands(app: &App, place: &Place, caller: &Caller) -> bool {
    match (find(app, place, &caller.name).await, &place.at) {
        (Ok(record), _) => record.is_some(),
        (Err(_), At::Name(name)) => {
            app.keys.is_store_away() && app.part::<super::Shared>().sessions.has(&(caller.name.clone(), name.clone()))
        }
        (Err(_), At::Id(_)) => false,
    }
}

async fn find(app: &App, place: &Place, key: &str) -> Result<Option<Record>, StoreError> {
    let found = app.store.find(std::slice::from_ref(place)).await?;
    let record = found.value.into_iter().next().flatten();
    // The store removes the record some time after its expiry. A record of another key is not this session.
    let is_ours =
        |record: &Record| record.expires_at.is_some_and(|ends| found.now < ends) && *record.body == *key.as_bytes();
    Ok(record.filter(is_ours))
}

fn cookie<'h>(headers: &'h HeaderMap, wanted: &str) -> Option<&'h str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies.flat_map(|cookies| cookies.split(';')).find_map(|cookie| {
        let (name, value) = cookie.trim().split_once('=')?;
        (name == wanted).then_some(value)
    })
}

fn set_cookie(app: &App, headers: &HeaderMap, name: &str, value: &str, kept_for: Duration) -> String {
    // Our own TLS, or that of a proxy in front. Of several values, the first one describes the browser's connection.
    let proto = headers.get("x-forwarded-proto").and_then(|proto| proto.to_str().ok());
    let is_secure = app.config.tls.is_some()
        || proto.is_some_and(|proto| proto.split(',').next().is_some_and(|first| first.trim() == "https"));
    let secure = if is_secure { "; Secure" } else { "" };
    format!("{name}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={}{secure}", kept_for.as_secs())
}

/// Allows only a path of this server.
fn way_back(to: &str) -> &str {
    let is_ours =
        to.starts_with('/') && !to.starts_with("//") && !to.contains('\\') && to.bytes().all(|b| b.is_ascii_graphic());
    if is_ours { to } else { "/" }
}

pub async fn login_page(State(app): State<Arc<App>>, Fields(fields): Fields) -> Response {
    let to = fields.get("to").map_or("/", |to| way_back(to)).to_owned();
    if app.keys.is_open() {
        return see_other(&to);
    }
    render(StatusCode::OK, &Login { frame: Frame::bare("Log in"), to, wrong: false })
}

pub async fn login(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    Under(exchange): Under,
    Fields(fields): Fields,
) -> Result<Response, Failed> {
    check_ours(&headers)?;
    let to = fields.get("to").map_or("/", |to| way_back(to)).to_owned();
    let Some(caller) = fields.get("key").and_then(|key| app.keys.holder_of(key.trim())) else {
        app.login_failed(fields.get("key").map_or("", |key| key.trim()), Some(exchange.peer()));
        let again = Login { frame: Frame::bare("Log in"), to, wrong: true };
        return Ok(render(StatusCode::UNAUTHORIZED, &again));
    };
    app.enter(&caller.workspace, &exchange)?;
    app.tenants.of(&caller.workspace).check_quota()?;
    let secret = random::<32>();
    let record = Record {
        workspace: caller.workspace.clone(),
        kind: KIND,
        id: Uuid::now_v7(),
        version: 1,
        state: None,
        body: caller.name.clone().into(),
        expires_at: Some(SystemClock.now() + KEPT_FOR),
    };
    let made = Change::Create { record, names: vec![name_of(&secret)], lists: vec![] };
    app.store.commit(Commit { ops: vec![], changes: vec![made] }).await?;
    tracing::info!(event = "session.begun", workspace = %caller.workspace, by = caller.name);
    let cookie = set_cookie(&app, &headers, COOKIE, &format!("{}.{secret}", caller.name), KEPT_FOR);
    Ok(([(header::SET_COOKIE, cookie)], see_other(&to)).into_response())
}

pub async fn logout(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, Failed> {
    check_ours(&headers)?;
    if let Some((caller, place)) = session(&app, &headers, false).await?
        && let At::Name(name) = &place.at
    {
        app.part::<super::Shared>().sessions.forget(&(caller.name.clone(), name.clone()));
        if let Some(record) = find(&app, &place, &caller.name).await? {
            let removed = Change::Remove { record, names: vec![name.clone()], lists: vec![] };
            app.store.commit(Commit { ops: vec![], changes: vec![removed] }).await?;
        }
    }
    Ok(([(header::SET_COOKIE, set_cookie(&app, &headers, COOKIE, "", Duration::ZERO))], see_other("/login"))
        .into_response())
}

/// Chooses another workspace, while there are no keys. A key has its own workspace.
pub async fn choose_workspace(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response, Failed> {
    if !visitor.is_open {
        return Err(Kind::Forbidden.because("the workspace is the key's").into());
    }
    let name = WorkspaceName::new(fields.text("workspace"));
    let name = name.map_err(|error| Kind::InvalidRequest.because(format!("workspace: {error}")))?;
    let cookie = set_cookie(&app, &headers, WORKSPACE_COOKIE, name.as_str(), KEPT_FOR);
    Ok(([(header::SET_COOKIE, cookie)], see_other("/")).into_response())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn only_our_own_pages_may_post() {
        let ours = [
            &[("sec-fetch-site", "same-origin")][..],
            &[("host", "h:1"), ("origin", "http://h:1")],
            &[("host", "h"), ("origin", "https://H")],
        ];
        for ours in ours {
            assert!(check_ours(&headers(ours)).is_ok(), "{ours:?}");
        }
        let others = [
            &[][..],
            &[("host", "h:1")],
            &[("sec-fetch-site", "cross-site"), ("host", "h"), ("origin", "http://h")],
            &[("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "none")],
            &[("host", "h:1"), ("origin", "http://h:2")],
            &[("host", "h:1"), ("origin", "null")],
            &[("origin", "http://h:1")],
        ];
        for others in others {
            assert!(check_ours(&headers(others)).is_err(), "{others:?}");
        }
    }

    #[test]
    fn a_login_leads_back_to_our_own_pages_alone() {
        for to in
            ["//evil.example", "https://evil.example", "/\\evil.example", "", "javascript:x", "/a\r\nb", "/€", "/\u{1}"]
        {
            assert_eq!(way_back(to), "/", "{to}");
        }
        assert_eq!(way_back("/claims?guard=a"), "/claims?guard=a");
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        assert_eq!(cookie(&headers(&[("cookie", "a=b; oncegate_session=k.s; c=d")]), COOKIE), Some("k.s"));
        assert_eq!(cookie(&headers(&[("cookie", "xoncegate_session=k.s")]), COOKIE), None);
    }
}
