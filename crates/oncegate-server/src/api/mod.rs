//! The HTTP API: one file per resource.

mod actions;
mod audit;
mod claims;
mod decisions;
mod docs;
mod events;
mod extract;
mod health;
mod keys;
mod leads;
mod messages;
mod page;
mod reminders;
mod sagas;
mod sends;

use std::convert::Infallible;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock};

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, MatchedPath};
use axum::http::header::{ACCEPT, CONNECTION};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::FutureExt;
use http_body_util::{Either, Full};
use hyper::body::{Body as _, Incoming};
use metrics_exporter_prometheus::PrometheusHandle;
use oncegate::actions::GUARD as SLOTS;
use oncegate::reminders::GUARD as REMINDERS;
use oncegate::sagas::GUARD as INBOX;
use oncegate::sends::GUARD as SENDS;
use oncegate::store::{Clock, MainStore, Role, StoreError, SystemClock};
use oncegate::{GuardName, Ledger, WorkspaceName};
use tokio::sync::OwnedSemaphorePermit;
use tower::ServiceExt;

pub use actions::filter as action_filter;
pub use audit::{AuditView, cursor as audit_cursor};
pub use claims::{
    ClaimView, PageView, by_hand, check_note, cursor as claim_cursor, cursor_of, guard as claim_guard, parse_cursor,
    state as claim_state,
};
pub use docs::description;
pub use extract::{RawForm, Shape, parse as read_json};
pub use keys::{KeyView, end as end_key, make as make_key};
pub use page::{Page, cursor as page_cursor, id as page_id, missing};
pub use sagas::HISTORY_MAX;
pub use sends::esp_id;

use crate::actions::Runner;
use crate::audit::Audit;
use crate::auth::{Caller, Credentials, Keys, Peer, bearer};
use crate::config::Config;
use crate::connection;
use crate::connection::{Asked, Client, Connection};
use crate::dashboard;
use crate::decisions::Decisions;
use crate::decisions::timeline::Timelines;
use crate::messages::{GUARD as MESSAGES, IDEMPOTENCY, Messages};
use crate::observe::Responses;
use crate::problem::{Kind, NO_SNIFF, NO_STORE, Problem, Whole};
use crate::reminders::Desk;
use crate::routes::{Needs, routes};
use crate::sagas::Director;
use crate::sends::SendLog;
use crate::tenants::{Limit, Room, Taken, Tenant, Tenants, Unread};
use crate::trace;

/// The state that every request uses.
pub struct App {
    pub config: Config,
    pub keys: Keys,
    pub audit: Arc<Audit>,
    pub store: Arc<dyn MainStore>,
    /// The ledger over the store that keeps the claims.
    pub ledger: Arc<Ledger>,
    pub messages: Arc<Messages>,
    pub actions: Arc<Runner>,
    pub sagas: Arc<Director>,
    pub sends: Arc<SendLog>,
    pub reminders: Arc<Desk>,
    /// The recent decisions of this server, for `oncegate tail` and the dashboard.
    pub decisions: Arc<Decisions>,
    pub timelines: Arc<Timelines>,
    pub dashboard: dashboard::Shared,
    pub readiness: health::Readiness,
    pub metrics: PrometheusHandle,
    pub tenants: Tenants,
    pub responses: Responses,
    /// The server accepts no more requests.
    pub stopping: AtomicBool,
}

impl App {
    /// Writes a part of the pending timeline notes and, if `counts` is set, the counters. They are for people only, so no
    /// request waits for them. True: there is more to write.
    pub async fn record(&self, counts: bool) -> Result<bool, StoreError> {
        self.audit.write_behind(self.stopping.load(Ordering::SeqCst)).await;
        let noted = self.timelines.write().await;
        let counted = match counts {
            true => self.decisions.tally.write(&*self.store, SystemClock.now()).await,
            false => Ok(()),
        };
        counted.and(noted).inspect_err(|error| tracing::warn!(event = "decisions.not_recorded", %error))
    }

    /// Every endpoint of `/api` calls this first. Nothing is read before the caller is known.
    fn caller(&self, credentials: Credentials<'_>, exchange: &Exchange) -> Result<Caller, Problem> {
        let caller = self.authenticate(credentials)?;
        trace::asked_by(&caller.workspace);
        self.enter(&caller.workspace, exchange)?;
        Ok(caller)
    }

    /// Finds the caller. A wrong key counts as a failed login in the audit log.
    pub fn authenticate(&self, asked: Credentials<'_>) -> Result<Caller, Problem> {
        let answered = self.keys.authenticate(asked);
        if let Err(problem) = &answered
            && problem.kind == Kind::Unauthorized
            && let Some(secret) = bearer(asked.headers)
        {
            self.login_failed(secret, asked.peer);
        }
        answered
    }

    pub fn login_failed(&self, secret: &str, peer: Option<&Peer>) {
        let wrong = self.keys.wrong_key(secret);
        self.audit.logins.count(wrong.workspace, peer.and_then(Peer::ip), wrong.id);
    }

    /// Reads changed keys from the store, and writes which keys were used.
    pub async fn refresh_keys(&self) {
        if let Err(error) = self.keys.refresh(&*self.store).await {
            tracing::warn!(event = "keys.not_refreshed", %error);
        }
        let used = self.keys.take_used(SystemClock.now());
        if let Err(error) = self.store.touch_keys(&used).await {
            tracing::debug!(event = "keys.use_not_noted", %error);
        }
    }

    /// Takes a place for the request within the limits of its workspace, and pays from the workspace's rate.
    pub fn enter(&self, workspace: &WorkspaceName, exchange: &Exchange) -> Result<(), Problem> {
        self.enter_unpaid(workspace, exchange)?;
        exchange.tenant(self).pay()
    }

    /// The same without paying from the workspace's rate.
    fn enter_unpaid(&self, workspace: &WorkspaceName, exchange: &Exchange) -> Result<(), Problem> {
        let tenant = exchange.connection.tenant(&self.tenants, workspace)?;
        // A page may authenticate its caller twice, but takes one place.
        _ = exchange.place.set(tenant.take(Limit::Requests, 1)?);
        Ok(())
    }

    /// The ledger of a guard's claims: most of the server's own guards are in the main store, beside the records that they
    /// guard.
    pub fn ledger_of(&self, guard: Option<&GuardName>) -> &Ledger {
        if guard.is_some_and(is_kept_beside) { &self.messages.main } else { &self.ledger }
    }
}

/// A connection's own handle on the server. One shared reference count would move between processors with every request.
pub struct Handle {
    app: Arc<App>,
    connection: Arc<Connection>,
    /// All other places for connections are taken: this connection ends with its answer.
    pub is_spare: bool,
}

impl Handle {
    pub fn new(app: Arc<App>, connection: Arc<Connection>) -> Handle {
        Handle { app, connection, is_spare: false }
    }

    /// An answer that the server makes without a handler.
    pub fn reply(&self, whole: Whole) -> Reply {
        connection::Answer::of(whole.map(Either::Left), self.connection.clone(), None)
    }

    /// Whether the connection stays open after this answer. A connection that its workspace has no place for is closed.
    pub fn may_stay(&self, status: StatusCode) -> bool {
        !self.is_spare && (status != StatusCode::TOO_MANY_REQUESTS || self.connection.is_counted())
    }
}

/// A request in progress: its connection, and what it holds of its workspace's limits until it is answered.
pub struct Exchange {
    connection: Arc<Connection>,
    /// Set once the request's workspace is known.
    place: OnceLock<Taken>,
    /// Boxed, because most requests hold nothing, and each connection reserves the size of one request.
    held: Mutex<Option<Box<Held>>>,
}

#[derive(Default)]
struct Held {
    rooms: Vec<Room>,
    lookup: Option<OwnedSemaphorePermit>,
    unread: Option<Unread>,
}

impl Exchange {
    pub fn new(connection: Arc<Connection>) -> Exchange {
        Exchange { connection, place: OnceLock::new(), held: Mutex::default() }
    }

    pub fn client(&self) -> &Client {
        &self.connection.client
    }

    pub fn peer(&self) -> &Peer {
        &self.connection.peer
    }

    /// The request's workspace, or the shared one while the workspace is not known.
    pub fn tenant<'a>(&'a self, app: &'a App) -> &'a Arc<Tenant> {
        self.place.get().map_or(app.tenants.others(), Taken::tenant)
    }

    /// Holds the room until the request is answered.
    pub fn hold(&self, room: Room) {
        self.with_held(|held| held.rooms.push(room));
    }

    /// Waits for room for an answer before the answer is built.
    pub async fn hold_answer(&self, app: &App, bytes: usize) -> Result<(), Problem> {
        // Releases the room held so far. If requests held some and waited for more, they would wait for each other.
        self.with_held(|held| held.unread = None);
        let unread = self.tenant(app).answer_in_turn(bytes).await?;
        self.with_held(|held| held.unread = Some(unread));
        Ok(())
    }

    /// Takes room at once for an answer that is ready. The request fails if there is no room.
    pub fn hold_ready_answer(&self, app: &App, bytes: usize) -> Result<(), Problem> {
        if bytes > COUNTED_ANSWER_BYTES {
            let unread = self.tenant(app).answer(bytes)?;
            self.with_held(|held| held.unread = Some(unread));
        }
        Ok(())
    }

    /// Waits for a lookup permit of the workspace.
    pub async fn look_up(&self, app: &App) -> Result<(), Problem> {
        let lookup = self.tenant(app).lookup().await?;
        self.with_held(|held| held.lookup = Some(lookup));
        Ok(())
    }

    fn with_held(&self, change: impl FnOnce(&mut Held)) {
        change(self.held().get_or_insert_default());
    }

    fn held(&self) -> MutexGuard<'_, Option<Box<Held>>> {
        self.held.lock().expect("no holder of this lock panics")
    }
}

impl Deref for Handle {
    type Target = App;

    fn deref(&self) -> &App {
        &self.app
    }
}

/// Whether a guard's claims are in the main store, whatever the guard store is: they are written in one commit with the
/// records that they guard.
pub fn is_kept_beside(guard: &GuardName) -> bool {
    *guard != *MESSAGES && is_own(guard)
}

/// The server's own guards. Callers cannot make or settle claims under them.
pub static OWN_GUARDS: [&LazyLock<GuardName>; 6] = [&MESSAGES, &IDEMPOTENCY, &SLOTS, &INBOX, &SENDS, &REMINDERS];

pub fn is_own(guard: &GuardName) -> bool {
    OWN_GUARDS.iter().any(|own| ***own == *guard)
}

const NOTHING: Needs = Needs::Nothing;
const SEND: Needs = Needs::Key(Role::Send);
const OPERATE: Needs = Needs::Key(Role::Operate);
const ADMIN: Needs = Needs::Key(Role::Admin);

routes! {
    "/api/actions" => { get OPERATE => actions::list, post SEND => actions::create, }
    "/api/actions/lease" => { post OPERATE => actions::lease, }
    "/api/actions/{id}" => { get SEND => actions::show, }
    "/api/actions/{id}/cancel" => { post SEND => actions::cancel, }
    "/api/actions/{id}/complete" => { post OPERATE => actions::complete, }
    "/api/actions/{id}/fail" => { post OPERATE => actions::fail, }
    "/api/actions/{id}/renew" => { post OPERATE => actions::renew, }
    "/api/actions/{id}/retry" => { post OPERATE => actions::retry, }
    "/api/actions/{id}/run-now" => { post OPERATE => actions::run_now, }
    "/api/actions/{id}/resolve" => { post OPERATE => actions::resolve, }
    "/api/audit" => { get OPERATE => audit::list, }
    // A POST of a claim bypasses the router (see `answer`), but the path has to know that method.
    claims::PATH => { get OPERATE => claims::list, post SEND => claims::create, }
    "/api/claims/batch" => { post SEND => claims::batch::batch, }
    "/api/claims/find" => { post SEND => claims::find, }
    "/api/claims/{id}" => { get SEND => claims::show, delete OPERATE => claims::forget, }
    "/api/claims/{id}/renew" => { post SEND => claims::renew, }
    "/api/claims/{id}/settle" => { post SEND => claims::settle, }
    "/api/claims/{id}/fail" => { post SEND => claims::fail, }
    "/api/claims/{id}/release" => { post SEND => claims::release, }
    "/api/claims/{id}/resolve" => { post OPERATE => claims::resolve, }
    "/api/decisions" => { get SEND => decisions::follow, }
    "/api/events" => { post SEND => events::create, }
    "/api/events/s3" => { post SEND => events::s3, }
    "/api/keys" => { get ADMIN => keys::list, post ADMIN => keys::create, }
    "/api/keys/{id}" => { delete ADMIN => keys::revoke, }
    "/api/leads" => { get OPERATE => leads::list, post SEND => leads::create, }
    "/api/leads/{id}" => { get SEND => leads::show, }
    "/api/messages" => { get OPERATE => messages::list, post SEND => messages::create, }
    "/api/messages/{id}" => { get SEND => messages::show, }
    "/api/messages/{id}/resolve" => { post OPERATE => messages::resolve, }
    "/api/reminders" => { get OPERATE => reminders::list, post SEND => reminders::create, }
    "/api/reminders/{id}" => {
        get SEND => reminders::show, put SEND => reminders::edit, delete SEND => reminders::cancel,
    }
    "/api/reminders/{id}/send" => { post OPERATE => reminders::send, }
    "/api/reminders/{id}/resolve" => { post OPERATE => reminders::resolve, }
    "/api/sends" => { get OPERATE => sends::list, post SEND => sends::begin, }
    "/api/sends/{id}" => { get SEND => sends::show, }
    "/api/sends/{id}/failed" => { post SEND => sends::failed, }
    "/api/sends/{id}/renew" => { post SEND => sends::renew, }
    "/api/sends/{id}/resolve" => { post OPERATE => sends::resolve, }
    "/api/sends/{id}/sent" => { post SEND => sends::sent, }
    "/api/sagas" => { get OPERATE => sagas::list, }
    "/api/sagas/dead-letters" => { get OPERATE => sagas::list_letters, }
    "/api/sagas/dead-letters/{id}" => { get OPERATE => sagas::show_letter, }
    "/api/sagas/dead-letters/{id}/discard" => { post OPERATE => sagas::discard_letter, }
    "/api/sagas/dead-letters/{id}/retry" => { post OPERATE => sagas::retry_letter, }
    "/api/sagas/{definition}/{correlation_id}" => { get SEND => sagas::show, }
    "/api/threads/{id}" => { get SEND => leads::show_thread, }
    "/healthz" => { get NOTHING => health::healthz, }
    "/metrics" => { get OPERATE => health::metrics, }
    "/openapi.json" => { get NOTHING => docs::openapi, }
    // A key of the role `operate` gets more details.
    "/readyz" => { get NOTHING => health::readyz, }
}

pub fn router(app: Arc<App>) -> Router {
    routed()
        .merge(dashboard::router())
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(app)
}

/// Answers a request.
///
/// Most requests are claims. They bypass the router, which allocates new futures and bodies for each request. The memory
/// that a connection reuses from its last request is still in the processor's cache.
pub fn answer(app: &Arc<Handle>, router: &Router, request: Request<Incoming>) -> impl Future<Output = Reply> + use<> {
    let request = Asked::of(request);
    if request.method() == Method::POST && request.uri().path() == claims::PATH && !app.is_spare {
        return claims::claim(app.clone(), request).left_future();
    }
    Box::pin(answer_routed(app.clone(), router.clone(), request)).right_future()
}

async fn answer_routed(app: Arc<Handle>, router: Router, request: Request<Asked>) -> Reply {
    if app.is_spare && !matches!(request.uri().path(), "/healthz" | "/readyz") {
        drop(request);
        let problem = Kind::ServerBusy.because("all connections are taken").retry_after(1);
        let mut reply = app.reply(problem.answer(HeaderMap::new()));
        reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return reply;
    }
    let exchange = Arc::new(Exchange::new(app.connection.clone()));
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(exchange.clone());
    // Browsers may cache the assets. Every other answer is personal or short-lived.
    let is_asset = request.uri().path().starts_with(dashboard::ASSET_PATHS);
    let only_reads = only_reads(request.method(), request.uri().path());
    let mut response = router.oneshot(request).await.unwrap_or_else(|never| match never {});
    if !is_asset {
        response.headers_mut().insert(header::CACHE_CONTROL, NO_STORE);
    }
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, NO_SNIFF);
    count_answer(&app, &exchange, only_reads, response.map(Either::Right))
}

/// An answer as it leaves. Its body carries the share of its workspace's bytes that it takes.
pub type Reply = Response<connection::Answer<Either<Full<Bytes>, Body>>>;

/// Smaller answers are not counted: hyper buffers as much for a connection anyway.
const COUNTED_ANSWER_BYTES: usize = 64 * 1024;

/// Counts an answer among the bytes that the workspace's clients have not read. If there are too many, a request that
/// `only_reads` is refused and may be retried. A write is always answered: its answer was counted before it was built, or
/// takes the room that is left.
fn count_answer(
    app: &App,
    exchange: &Exchange,
    only_reads: bool,
    response: Response<Either<Full<Bytes>, Body>>,
) -> Reply {
    let connection = exchange.connection.clone();
    let counted = exchange.held().as_mut().and_then(|held| held.unread.take());
    let bytes = response.body().size_hint().exact().unwrap_or(0) as usize;
    let unread = match counted {
        Some(mut unread) => {
            unread.shrink_to(bytes);
            Some(unread)
        }
        // An answer without a workspace is static, or goes to a scraper.
        None if bytes <= COUNTED_ANSWER_BYTES || exchange.place.get().is_none() => None,
        None if only_reads => match exchange.tenant(app).answer(bytes) {
            Ok(unread) => Some(unread),
            Err(problem) => {
                let refused = problem.answer(HeaderMap::new()).map(Either::Left);
                return connection::Answer::of(refused, connection, None);
            }
        },
        None => exchange.tenant(app).answer_at_most(bytes),
    };
    connection::Answer::of(response, connection, unread.map(Arc::new))
}

/// A page for a browser, a problem for any other client.
async fn no_such_path(headers: HeaderMap) -> Response {
    let problem = Kind::NotFound.because("there is no such path");
    let is_browser = headers.get(ACCEPT).is_some_and(|accept| accept.as_bytes().starts_with(b"text/html"));
    if is_browser { dashboard::Failed::from(problem).into_response() } else { problem.into_response() }
}

async fn no_such_method() -> Problem {
    Kind::MethodNotAllowed.because("this path does not take that method")
}

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        if let Some(route) = parts.extensions.get::<MatchedPath>() {
            trace::routed(&parts.method, route.as_str());
        }
        let exchange = exchange(parts);
        let caller = app.caller(credentials(parts), &exchange)?;
        let route = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
        if only_reads(&parts.method, route) {
            // Lists and pages need a lookup permit of their workspace.
            exchange.look_up(app).await?;
            return Ok(caller);
        }
        if parts.method == Method::POST && STORES.contains(&route) {
            exchange.tenant(app).check_quota()?;
        }
        // A write whose answer may be large takes its turn for the answer before it writes.
        Ok(caller)
    }
}

/// Whether a request changes nothing, so that even its ready answer may be refused.
fn only_reads(method: &Method, path: &str) -> bool {
    matches!(*method, Method::GET | Method::HEAD) || path == claims::FIND_PATH
}

/// The paths whose POST is refused if the workspace has stored too much. (A single claim does not come this way.)
const STORES: [&str; 8] = [
    "/api/actions",
    "/api/claims/batch",
    "/api/events",
    "/api/events/s3",
    "/api/leads",
    "/api/messages",
    "/api/reminders",
    "/api/sends",
];

/// The exchange of a request.
pub fn exchange(parts: &Parts) -> Arc<Exchange> {
    parts.extensions.get::<Arc<Exchange>>().expect("every request of the router has one").clone()
}

/// The parts of a request that identify its caller.
pub fn credentials(parts: &Parts) -> Credentials<'_> {
    Credentials::new(parts, parts.extensions.get::<Arc<Exchange>>().map(|exchange| exchange.peer()))
}

/// The exchange that a handler answers.
pub struct Under(pub Arc<Exchange>);

impl<S: Sync> FromRequestParts<S> for Under {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Under(exchange(parts)))
    }
}

/// Whether a caller may see the state of the system: with a key of the role `operate`, or while the server is open.
pub struct Insight(pub bool);

impl FromRequestParts<Arc<App>> for Insight {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let credentials = credentials(parts);
        app.keys.check_nearby(credentials)?;
        Ok(Insight(app.authenticate(credentials).is_ok_and(|caller| caller.role >= Role::Operate)))
    }
}

/// For pages that need no key but reveal something about the system. While there are no keys, only this machine sees them.
pub struct Nearby;

impl FromRequestParts<Arc<App>> for Nearby {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        app.keys.check_nearby(credentials(parts))?;
        Ok(Nearby)
    }
}

type Answered = Result<Response, Problem>;

/// Answers with a document. The person who settled it, and the reason, are shown only to roles that may settle it too.
fn shown(view: &impl serde::Serialize, role: Role) -> Answered {
    shown_with(StatusCode::OK, view, role)
}

fn shown_with(status: StatusCode, view: &impl serde::Serialize, role: Role) -> Answered {
    if role >= Role::Operate {
        return Ok((status, axum::Json(view)).into_response());
    }
    let mut document = serde_json::to_value(view).map_err(|error| Kind::Internal.because(error.to_string()))?;
    if let Some(resolved) = document.get_mut("resolved").and_then(serde_json::Value::as_object_mut) {
        resolved.retain(|field, _| !["by", "note"].contains(&field.as_str()));
    }
    if let Some(fields) = document.as_object_mut() {
        fields.remove("sentBy");
    }
    Ok((status, axum::Json(document)).into_response())
}
