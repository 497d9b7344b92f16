//! What every request uses: the server's parts, the request's exchange with its client, and its caller.

use std::convert::Infallible;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use axum::body::Body;
use axum::extract::{FromRequestParts, MatchedPath};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, Method, Response, StatusCode};
use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::Body as _;
use metrics_exporter_prometheus::PrometheusHandle;
use oncegate::store::{Clock, MainStore, Role, StoreError, SystemClock};
use oncegate::{GuardName, Ledger, WorkspaceName};
use tokio::sync::OwnedSemaphorePermit;

use crate::actions::Actions;
use crate::audit::Audit;
use crate::auth::{Caller, Credentials, Keys, Peer, bearer};
use crate::connection::{self, Client, Connection};
use crate::decisions::Decisions;
use crate::decisions::timeline::Timelines;
use crate::messages::Messages;
use crate::observe::Responses;
use crate::own_guards::is_kept_beside;
use crate::problem::{Kind, Problem, Whole};
use crate::reminders::Reminders;
use crate::sagas::Sagas;
use crate::sends::Sends;
use crate::tenants::{Limit, Room, Taken, Tenant, Tenants, Unread};
use oncegate_config::Config;
use oncegate_transports::trace;

/// The state that every request uses.
pub struct App {
    pub config: Config,
    pub keys: Keys,
    pub audit: Arc<Audit>,
    pub store: Arc<dyn MainStore>,
    /// The ledger over the store that keeps the claims.
    pub ledger: Arc<Ledger>,
    pub messages: Arc<Messages>,
    pub actions: Arc<Actions>,
    pub sagas: Arc<Sagas>,
    pub sends: Arc<Sends>,
    pub reminders: Arc<Reminders>,
    /// The recent decisions of this server, for `oncegate tail` and the dashboard.
    pub decisions: Arc<Decisions>,
    pub timelines: Arc<Timelines>,
    /// The state of the modules above this one, by its type (see [`App::part`]).
    pub parts: Extensions,
    pub metrics: PrometheusHandle,
    pub tenants: Tenants,
    pub responses: Responses,
    /// The server accepts no more requests.
    pub stopping: AtomicBool,
}

impl App {
    /// The state of a module above this one.
    pub fn part<T: Send + Sync + 'static>(&self) -> &T {
        self.parts.get::<Arc<T>>().expect("`serve` sets every part")
    }

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
    pub fn caller(&self, credentials: Credentials<'_>, exchange: &Exchange) -> Result<Caller, Problem> {
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
    pub fn enter_unpaid(&self, workspace: &WorkspaceName, exchange: &Exchange) -> Result<(), Problem> {
        let tenant = exchange.connection.tenant(&self.tenants, workspace)?;
        // A page may authenticate its caller twice, but takes one place.
        _ = exchange.place.set(tenant.take(Limit::Requests, 1)?);
        Ok(())
    }

    /// The ledger of a guard's claims: most of the server's own guards are in the main store, beside the records that they
    /// guard.
    pub fn ledger_of(&self, guard: Option<&GuardName>) -> &Ledger {
        if guard.is_some_and(is_kept_beside) { self.messages.messages.main() } else { &self.ledger }
    }
}

/// A connection's own handle on the server. One shared reference count would move between processors with every request.
pub struct Handle {
    app: Arc<App>,
    pub connection: Arc<Connection>,
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
    pub connection: Arc<Connection>,
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

/// An answer as it leaves. Its body carries the share of its workspace's bytes that it takes.
pub type Reply = Response<connection::Answer<Either<Full<Bytes>, Body>>>;

/// Smaller answers are not counted: hyper buffers as much for a connection anyway.
const COUNTED_ANSWER_BYTES: usize = 64 * 1024;

/// Counts an answer among the bytes that the workspace's clients have not read. If there are too many, a request that
/// `only_reads` is refused and may be retried. A write is always answered: its answer was counted before it was built, or
/// takes the room that is left.
pub fn count_answer(
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

/// A POST that bypasses the router.
pub const CLAIMS_PATH: &str = "/api/claims";
/// A POST that only reads.
pub const FIND_PATH: &str = "/api/claims/find";

/// Whether a request changes nothing, so that even its ready answer may be refused.
pub fn only_reads(method: &Method, path: &str) -> bool {
    matches!(*method, Method::GET | Method::HEAD) || path == FIND_PATH
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
