//! `oncegate serve`: opens the store, listens, answers, and stops without losing work.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderValue, Request, header};
use futures::FutureExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::server::graceful::GracefulShutdown;
use metrics::{Gauge, gauge};
use oncegate::messages::{self, Messages};
use oncegate::store::{MainStore, Store, Usage, UsageFrom};
use oncegate::{Ledger, StoreError, WorkspaceName};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use oncegate::worker::Queue;
use oncegate_config::Config;
use oncegate_http::actions::Actions;
use oncegate_http::api;
use oncegate_http::app::{App, Handle, Reply};
use oncegate_http::audit::Audit;
use oncegate_http::auth::{Keys, Peer};
use oncegate_http::connection::{self, Connection, Newcomers};
use oncegate_http::decisions::timeline::{self, Timelines};
use oncegate_http::decisions::{Decisions, tally};
use oncegate_http::first_key::{self, FirstKey};
use oncegate_http::intake;
use oncegate_http::jobs::ServerWatcher;
use oncegate_http::metrics_listener;
use oncegate_http::observe::{self, Responses};
use oncegate_http::problem::Kind;
use oncegate_http::reminders::Reminders;
use oncegate_http::sagas::{self, Sagas};
use oncegate_http::sends::Sends;
use oncegate_http::telemetry::{self, Telemetry};
use oncegate_http::tenants::Tenants;
use oncegate_http::tls::Tls;
use oncegate_process::failure::Failure;
use oncegate_transports::brokers::Consumers;
use oncegate_transports::channels::Channels;
use oncegate_transports::check_built;
use oncegate_transports::trace;
use oncegate_transports::trace_export;

/// Connections beyond `limits.connections`, for health checks.
const SPARE_CONNECTIONS: usize = 64;
/// The share of all connections that may have no workspace yet when there is no free connection: one in this many.
const NEWCOMERS_SHARE: usize = 4;
/// The minimum time of each newcomer, however many arrive: after a network outage all clients reconnect at once.
const NEWCOMERS_PATIENCE: Duration = Duration::from_secs(2);
/// The minimum time between two measurements of the workspaces' stored data.
const MEASURE_EVERY: Duration = Duration::from_secs(30);
/// A measurement takes at most one part in this many of the time.
const MEASURE_SHARE: u32 = 10;
/// How long running requests, and the work that they started, may take to finish once the server stops.
const STOP_GRACE: Duration = Duration::from_secs(8);
/// How long the store may take to close after that: all requests are answered, and counts are not worth more time.
const CLOSE_GRACE: Duration = Duration::from_millis(1500);
/// Sends whose lease has ended that are handled at once, apart from new sends: a reconcile hook that hangs blocks no other send.
const TENDERS: usize = 32;
/// The time beyond the hook's time-out for recording the hook's answer.
const TENDED_WITHIN: Duration = Duration::from_secs(20);
/// How soon a key that another server created or revoked is noticed.
const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// The pause after an error of `accept` (for example too many open files).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// `announce` is called once the server listens.
pub async fn serve(
    config: Config,
    decisions: Arc<Decisions>,
    announce: impl FnOnce(&Config, SocketAddr, bool),
) -> Result<(), Failure> {
    check_built(&config)?;
    let metrics = telemetry::install_metrics();
    let traces = trace_export::start()?;
    let tls = config.tls.as_ref().map(|files| Tls::open(files).map(Arc::new)).transpose();
    let tls = tls.map_err(|error| Failure::new(format!("[tls]: {error}")))?;
    allow_many_files(config.limits.connections);
    for weakness in config.weaknesses() {
        tracing::warn!(event = "config.weakness", key = weakness.key, weakness = %weakness);
    }
    let store = oncegate_http::stores::open_store(&config).await?;
    warn_of_weaknesses(&*store).await;
    let guards = oncegate_http::stores::open_guards(&config).await?;
    if let Some(guards) = &guards {
        warn_of_weaknesses(&**guards).await;
    }
    let app = start(config, store, guards, metrics, decisions).await?;
    let listener = TcpListener::bind(app.config.listen).await.map_err(|error| {
        Failure::new(format!("cannot listen on {}: {error}", app.config.listen))
            .hint("--listen 127.0.0.1:0 takes a free port")
    })?;
    let address = listener.local_addr().map_err(|error| Failure::new(format!("no local address: {error}")))?;
    app.keys.listens_on(address);
    // Before any process can know of this server: from then on, a signal may arrive.
    let signals = Signals::listen().map_err(|error| Failure::new(format!("cannot listen for signals: {error}")))?;
    if let Some(listen) = app.config.metrics.listen {
        let started = metrics_listener::start(listen, app.metrics.clone()).await;
        let address = started.map_err(|error| Failure::new(format!("cannot listen on {listen}: {error}")))?;
        tracing::info!(event = "metrics.listening", %address);
    }
    // Only after every step that can fail: work that is started must also be ended.
    let messages = app.messages.messages.clone();
    tokio::spawn(messages.queue().clone().keep_leasing(vec![messages::JOB.into()], messages));
    let watcher = Arc::new(ServerWatcher);
    app.actions.start(watcher.clone());
    app.sagas.start();
    app.sends.start(watcher.clone());
    app.reminders.start(watcher);
    let consumers = intake::start(&app.config, &app.sagas, &app.tenants);
    let (store, version) = (&app.config.store, env!("CARGO_PKG_VERSION"));
    tracing::info!(event = "server.listening", %address, %store, version);
    announce(&app.config, address, app.keys.is_open());
    let refresher = tokio::spawn(refresh(app.clone(), tls.clone()));
    let measurer = tokio::spawn(measure(app.clone()));
    let told_to_stop = Arc::new(Notify::new());
    let recorder = tokio::spawn(record(app.clone(), told_to_stop.clone()));
    accept_until_stopped(listener, Connections::new(app.clone(), tls), signals, consumers).await;
    refresher.abort();
    measurer.abort();
    told_to_stop.notify_one();
    let close = async {
        // The recorder is notified, not aborted: it writes what it has already taken out of the queue.
        let _ = recorder.await;
        app.messages.messages.main().close().await;
        if let Some(separate) = app.messages.messages.separate() {
            separate.close().await;
        }
    };
    let flush = async {
        if let Some(traces) = traces {
            traces.stop(CLOSE_GRACE).await;
        }
    };
    let (closed, ()) = tokio::join!(tokio::time::timeout(CLOSE_GRACE, close), flush);
    if closed.is_err() {
        tracing::warn!(event = "server.store_not_closed", after = ?CLOSE_GRACE);
    }
    tracing::info!(event = "server.stopped");
    Ok(())
}

async fn start(
    config: Config,
    store: Arc<dyn MainStore>,
    guards: Option<Arc<dyn Store>>,
    metrics: metrics_exporter_prometheus::PrometheusHandle,
    decisions: Arc<Decisions>,
) -> Result<Arc<App>, Failure> {
    let keys = Keys::load(&*store, config.listen, config.auth.required).await?;
    if keys.never_existed() && !config.auth.required && !config.listen.ip().is_loopback() {
        return Err(Failure::new(format!(
            "refusing to listen on {}: no API key exists, and anybody could ask",
            config.listen
        ))
        .hint("oncegate key create --workspace default --role admin"));
    }
    if keys.never_existed() && config.auth.required {
        make_first_key(&config, &store, &keys).await?;
    }
    let tenants = Tenants::new(&config.limits);
    let timelines = Arc::new(Timelines::new(store.clone(), &observe::replica()));
    let telemetry = Arc::new(Telemetry::new(timelines.clone()));
    let main = Arc::new(Ledger::start(store.clone(), telemetry.clone()));
    let apart = guards.map(|guards| Arc::new(Ledger::start(guards, telemetry)));
    let ledger = apart.clone().unwrap_or_else(|| main.clone());
    let queue =
        Queue::new(store.clone(), main.waiters().clone(), config.messages.options.lease, config.messages.workers);
    let engine = sagas::engine(&config, store.clone(), main.clone()).map_err(oncegate_http::sagas::not_loaded)?;
    let channels = Arc::new(Channels::open(&config).map_err(Failure::new)?);
    let tenders = Queue::new(store.clone(), main.waiters().clone(), config.outgoing.timeout + TENDED_WITHIN, TENDERS);
    let sends = Sends::new(&config, store.clone(), main.clone(), tenders);
    let reminders = Reminders::new(&config, store.clone(), main.clone(), channels.clone(), queue.clone());
    let actions = Actions::open(&config, store.clone(), main.clone(), &engine, &sends).map_err(Failure::new)?;
    let sagas = Sagas::new(engine, store.clone(), actions.queue.clone());
    let room = Arc::new(Semaphore::new(config.limits.connections));
    let options = config.messages.options.clone();
    let watcher = Arc::new(ServerWatcher);
    let messages = Messages::over(store.clone(), main, apart, channels, queue, options, watcher);
    let messages = Arc::new(oncegate_http::messages::Messages { messages, room });
    let mut parts = axum::http::Extensions::new();
    parts.insert(Arc::new(oncegate_dashboard::Shared::default()));
    parts.insert(Arc::new(api::Readiness::default()));
    Ok(Arc::new(App {
        config,
        keys,
        audit: sends.audit.clone(),
        store,
        ledger,
        messages,
        actions,
        sagas,
        sends,
        reminders,
        decisions,
        timelines,
        parts,
        metrics,
        tenants,
        responses: Responses::default(),
        stopping: AtomicBool::new(false),
    }))
}

/// Where keys are required, the first start creates one. Its secret goes to a file, and never to the log.
async fn make_first_key(config: &Config, store: &Arc<dyn MainStore>, keys: &Keys) -> Result<(), Failure> {
    let audit = Audit::new(store.clone());
    let made = first_key::make(&**store, &audit, &config.data_dir, &observe::replica()).await;
    let FirstKey { id, file, host, is_ours } =
        made.map_err(|error| Failure::new(error.to_string()).hint("oncegate doctor"))?;
    tracing::warn!(event = "auth.first_key", keyId = id, file = %file.display(), host, isOurs = is_ours);
    eprintln!("oncegate: the first admin key is in {} on {host}", file.display());
    Ok(keys.refresh(&**store).await?)
}

async fn warn_of_weaknesses(store: &dyn Store) {
    match store.report().await {
        Ok(report) => {
            for warning in &report.warnings {
                tracing::warn!(event = "store.warning", store = report.kind, warning);
            }
        }
        Err(error) => tracing::warn!(event = "store.error", %error),
    }
}

/// Prints the address for people, on standard error.
pub fn announce(config: &Config, address: SocketAddr, is_open: bool) {
    let scheme = config.scheme();
    eprintln!("oncegate {} listens on {scheme}://{address}", env!("CARGO_PKG_VERSION"));
    eprintln!("  store  {}", config.store);
    eprintln!("  see    {scheme}://{address}/");
    if is_open {
        eprintln!("  open   it answers only this machine's user without a key. To end that:");
        eprintln!("         oncegate key create --workspace default --role admin");
    }
    eprintln!(
        "  try    curl -s {scheme}://{address}/api/messages -H 'content-type: application/json' \
         -d '{{\"recipientPhone\":\"+15550100\",\"message\":\"Your table is ready.\"}}'"
    );
}

/// Periodic work: reads the keys again, and adds up metrics.
async fn refresh(app: Arc<App>, tls: Option<Arc<Tls>>) {
    loop {
        tokio::time::sleep(REFRESH_EVERY).await;
        app.metrics.run_upkeep();
        _ = tls.as_ref().map(|tls| tls.refresh());
        app.refresh_keys().await;
    }
}

/// Measures the stored data of the workspaces, for their quotas. To limit the load, each part is followed by a pause.
async fn measure(app: Arc<App>) {
    let mut stores: Vec<&dyn Store> = vec![&*app.store];
    stores.extend(app.messages.messages.separate().map(|separate| &**separate.store() as &dyn Store));
    while app.tenants.has_quota() {
        app.tenants.begin_to_measure();
        match usage(&stores).await {
            Ok(usage) => app.tenants.stored(&usage),
            Err(error) => tracing::warn!(event = "store.not_measured", %error),
        }
        tokio::time::sleep(MEASURE_EVERY).await;
    }
}

async fn usage(stores: &[&dyn Store]) -> Result<Vec<Usage>, StoreError> {
    let mut all: HashMap<WorkspaceName, Usage> = HashMap::new();
    for store in stores {
        let mut from = Some(UsageFrom::default());
        while let Some(part) = from {
            let asked = Instant::now();
            let part = store.usage(part).await?;
            for one in part.usage {
                let none = || Usage { workspace: one.workspace.clone(), claims: 0, bytes: 0 };
                let sum = all.entry(one.workspace.clone()).or_insert_with(none);
                sum.claims += one.claims;
                sum.bytes += one.bytes;
            }
            from = part.next;
            tokio::time::sleep(asked.elapsed() * (MEASURE_SHARE - 1)).await;
        }
    }
    Ok(all.into_values().collect())
}

/// How long a stopping server retries to write the rest while the store fails, and the pause between the tries.
const LAST_TRIES_FOR: Duration = Duration::from_secs(2);
const LAST_TRIES_PAUSE: Duration = Duration::from_millis(200);

/// Writes counts and timelines, which are for display; when the server stops, it writes the rest.
async fn record(app: Arc<App>, told_to_stop: Arc<Notify>) {
    let tally_every = tally::WRITE_EVERY.as_secs() / timeline::WRITE_EVERY.as_secs();
    let mut second = 0;
    while tokio::time::timeout(timeline::WRITE_EVERY, told_to_stop.notified()).await.is_err() {
        second += 1;
        // A failed write is retried the next time.
        let _ = app.record(second % tally_every == 0).await;
    }
    let give_up_at = Instant::now() + LAST_TRIES_FOR;
    loop {
        match app.record(true).await {
            Ok(true) => {}
            Err(_) if Instant::now() < give_up_at => tokio::time::sleep(LAST_TRIES_PAUSE).await,
            Ok(false) | Err(_) => return,
        }
    }
}

/// The signals that stop the server.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Signals> {
        Ok(Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }
}

async fn accept_until_stopped(
    listener: TcpListener,
    connections: Connections,
    mut signals: Signals,
    consumers: Consumers,
) {
    let app = connections.app.clone();
    loop {
        let accepted = async {
            // Waits for a free place before it accepts.
            let place = connections.place().await;
            (listener.accept().await, place)
        };
        tokio::select! {
            (accepted, place) = accepted => match accepted {
                Ok((stream, _)) => connections.serve(stream, place),
                Err(error) => {
                    tracing::warn!(event = "server.accept_failed", %error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            _ = signals.terminate.recv() => break,
            _ = signals.interrupt.recv() => break,
        }
    }
    tracing::info!(event = "server.stopping");
    drop(listener);
    app.stopping.store(true, Ordering::SeqCst);
    app.messages.messages.main().stop_waiting();
    app.ledger.stop_waiting();
    let deadline = tokio::time::Instant::now() + STOP_GRACE;
    app.messages.messages.queue().stop_by(deadline);
    app.actions.queue.stop_by(deadline);
    app.sends.queue.stop_by(deadline);
    let stopped = tokio::spawn(tokio::time::timeout_at(deadline, consumers.stop()));
    drop(connections.starting);
    if tokio::time::timeout_at(deadline, connections.stop.shutdown()).await.is_err() {
        tracing::warn!(event = "server.connections_cut", after = ?STOP_GRACE);
    }
    // An unacknowledged message returns to its queue.
    let _ = stopped.await;
    app.messages.messages.queue().finish_by(deadline).await;
    app.actions.queue.finish_by(deadline).await;
    app.sends.queue.finish_by(deadline).await;
}

struct Connections {
    app: Arc<App>,
    router: axum::Router,
    tls: Option<Arc<Tls>>,
    stop: GracefulShutdown,
    /// Ends TLS handshakes when it is dropped.
    starting: watch::Sender<()>,
    places: Arc<Semaphore>,
    newcomers: Newcomers,
    spare: Arc<Semaphore>,
    spare_newcomers: Newcomers,
}

/// A connection's place among the concurrent connections.
struct Place {
    _permit: OwnedSemaphorePermit,
    /// All regular places are taken: requests on this connection get an error, except for health checks.
    is_spare: bool,
}

impl Connections {
    fn new(app: Arc<App>, tls: Option<Arc<Tls>>) -> Connections {
        let connections = app.config.limits.connections;
        Connections {
            router: crate::router::router(app.clone()),
            tls,
            stop: GracefulShutdown::new(),
            starting: watch::Sender::default(),
            places: Arc::new(Semaphore::new(connections)),
            newcomers: Newcomers::new(connections / NEWCOMERS_SHARE, NEWCOMERS_PATIENCE),
            spare: Arc::new(Semaphore::new(SPARE_CONNECTIONS)),
            // While all spare places are taken, none is accepted that could push one out. So there is no minimum time.
            spare_newcomers: Newcomers::new(SPARE_CONNECTIONS / NEWCOMERS_SHARE, Duration::ZERO),
            app,
        }
    }

    /// While there is none, clients wait in the backlog and use no memory of the server.
    async fn place(&self) -> Place {
        let (places, spare) = (self.places.clone(), self.spare.clone());
        tokio::select! {
            biased;
            permit = places.acquire_owned() => Place { _permit: permit.expect("never closed"), is_spare: false },
            permit = spare.acquire_owned() => Place { _permit: permit.expect("never closed"), is_spare: true },
        }
    }

    fn serve(&self, stream: TcpStream, mut place: Place) {
        // Answers are small and written in one piece.
        let _ = stream.set_nodelay(true);
        if place.is_spare
            && let Ok(permit) = self.places.clone().try_acquire_owned()
        {
            place = Place { _permit: permit, is_spare: false };
        }
        let connection = Arc::new(Connection::new(Peer::of(&stream)));
        let mut handle = Handle::new(self.app.clone(), connection.clone());
        handle.is_spare = place.is_spare;
        let is_spare = handle.is_spare;
        let (app, router, served) = (Arc::new(handle), self.router.clone(), connection.clone());
        let service = service_fn(move |request: Request<Incoming>| answer(&app, &router, request));
        let (tls, stop, mut starting) = (self.tls.clone(), self.stop.watcher(), self.starting.subscribe());
        let task = tokio::spawn(async move {
            // Both are dropped if the task is aborted.
            let (_open, _place) = (OpenConnection::new(), place);
            let serves = async {
                let Some(tls) = tls else { return connection::serve(stream, served, stop, service).await };
                let agreed = tokio::select! {
                    agreed = tls.accept(stream) => agreed,
                    // A server that stops takes no more requests.
                    _ = starting.changed() => return Ok(()),
                };
                match agreed {
                    Ok(stream) => connection::serve(stream, served, stop, service).await,
                    Err(error) => {
                        tracing::debug!(event = "http.no_tls", %error);
                        Ok(())
                    }
                }
            };
            if let Err(error) = serves.await {
                tracing::debug!(event = "http.connection_ended", %error);
            }
        });
        connection.is_served_by(task.abort_handle());
        if is_spare {
            self.newcomers.make_room();
            self.spare_newcomers.admit(&connection);
        } else {
            self.newcomers.admit(&connection);
        }
    }
}

/// A connection in the metric of open connections, until it is dropped.
struct OpenConnection(Gauge);

impl OpenConnection {
    fn new() -> OpenConnection {
        let open = gauge!("oncegate_http_connections");
        open.increment(1.0);
        OpenConnection(open)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// Always returns an answer: a panic is a defect of the server, and the client gets a problem.
fn answer(
    app: &Arc<Handle>,
    router: &axum::Router,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Reply, Infallible>> + use<> {
    let asked = Instant::now();
    let asker = app.clone();
    let span = trace::request(&request);
    let answering = trace::within(span.clone(), crate::router::answer(app, router, request));
    // Not in an async block, which would reserve space for the future twice.
    AssertUnwindSafe(answering).catch_unwind().map(move |answered| {
        let panicked = |_| asker.reply(Kind::Internal.because("the request ended in a panic").answer(HeaderMap::new()));
        let mut response = answered.unwrap_or_else(panicked);
        if !asker.may_stay(response.status()) {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        asker.responses.count(response.status(), asked.elapsed());
        if let Some(span) = span {
            span.answered(response.status());
        }
        Ok(response)
    })
}

/// Each connection is an open file; the usual soft limit is far below the hard limit.
fn allow_many_files(connections: usize) {
    let limit = getrlimit(Resource::Nofile);
    // If the limit cannot be raised, further connections wait to be accepted.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let allowed = getrlimit(Resource::Nofile).current;
    if allowed.is_some_and(|allowed| allowed < connections as u64) {
        tracing::warn!(event = "server.few_files", allowed, connections);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The future is moved for each request, and each connection has one. With many connections they must fit into the processor's cache
    /// together.
    #[test]
    fn what_a_connection_keeps_for_a_request_is_small() {
        fn size<F>(_: impl Fn(&Arc<Handle>, &axum::Router, Request<Incoming>) -> F) -> usize {
            size_of::<F>()
        }
        let bytes = size(answer);
        assert!(bytes <= 1664, "{bytes} bytes");
    }
}
