//! `oncegate serve`: opens the store, listens, answers, and stops without losing anything.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderMap, Request, Response};
use bytes::Bytes;
use futures::FutureExt;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use metrics::gauge;
use oncegate::Ledger;
use oncegate::store::{MainStore, Store};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::actions::Runner;
use crate::api::{self, App, Bodies, Handle};
use crate::auth::Keys;
use crate::channels::Channels;
use crate::cli::Failure;
use crate::config::Config;
use crate::connection::{self, Head, Last, Stop};
use crate::decisions::timeline::{self, Timelines};
use crate::decisions::{Decisions, tally};
use crate::messages::{self, Messages};
use crate::observe::{self, Responses, Telemetry};
use crate::patience::Patient;
use crate::problem::Kind;
use crate::rate::Rates;
use crate::reminders::Desk;
use crate::sagas::{self, Director};
use crate::sends::SendLog;
use crate::trace;
use crate::transports::Consumers;
use crate::worker::Worker;

/// Bytes of headers, and of what a connection buffers.
const CONNECTION_BUFFER_BYTES: usize = 64 * 1024;
/// How long requests under way, and what they have begun, may take to finish once the server is told to stop.
const STOP_GRACE: Duration = Duration::from_secs(8);
/// How long the store may take to be let go after that: all was answered, and counts are not worth more.
const CLOSE_GRACE: Duration = Duration::from_millis(1500);
/// Sends that are seen to at once, apart from what is sent: a reconcile hook that hangs is in nobody's way.
const TENDERS: usize = 32;
/// Beyond the hook's time: what it takes to write down what it said.
const TENDED_WITHIN: Duration = Duration::from_secs(20);
/// How soon a key made or revoked elsewhere is noticed.
const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// After an error of `accept` (too many open files, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// `announce` is called once it listens.
pub async fn serve(
    config: Config,
    decisions: Arc<Decisions>,
    announce: impl FnOnce(&Config, SocketAddr),
) -> Result<(), Failure> {
    let metrics = observe::install_metrics();
    let traces = trace::start()?;
    allow_many_files(config.limits.connections);
    let store = crate::cli::open_store(&config).await?;
    warn_of_weaknesses(&*store).await;
    let guards = crate::cli::open_guards(&config).await?;
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
    // Before anybody can know that we are here: whoever does may tell us to stop.
    let signals = Signals::listen().map_err(|error| Failure::new(format!("cannot listen for signals: {error}")))?;
    // Not before it is sure that we are here to stay: what is begun is to be ended.
    tokio::spawn(app.messages.worker.clone().keep_leasing(vec![messages::JOB.into()], app.messages.clone()));
    app.actions.start();
    app.sagas.start();
    app.sends.start();
    app.reminders.start();
    let consumers = Consumers::start(&app.config, &app.sagas);
    let (store, version) = (&app.config.store, env!("CARGO_PKG_VERSION"));
    tracing::info!(event = "server.listening", %address, %store, version);
    announce(&app.config, address);
    let refresher = tokio::spawn(refresh(app.clone()));
    let told_to_stop = Arc::new(Notify::new());
    let recorder = tokio::spawn(record(app.clone(), told_to_stop.clone()));
    accept_until_stopped(listener, app.clone(), signals, consumers).await;
    refresher.abort();
    told_to_stop.notify_one();
    let close = async {
        // Told, not aborted: what it has taken out to write, it writes.
        let _ = recorder.await;
        app.messages.main.close().await;
        if let Some(apart) = &app.messages.apart {
            apart.close().await;
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
    let keys = Keys::load(&*store, config.listen).await?;
    if keys.is_open() && !config.listen.ip().is_loopback() {
        return Err(Failure::new(format!(
            "refusing to listen on {}: no API key exists, and anybody could ask",
            config.listen
        ))
        .hint("oncegate key create --workspace default"));
    }
    let rates = Rates::new(config.limits.rate.map_or(0, u64::from));
    let timelines = Arc::new(Timelines::new(store.clone(), &observe::replica()));
    let telemetry = Arc::new(Telemetry::new(timelines.clone()));
    let main = Arc::new(Ledger::start(store.clone(), telemetry.clone()));
    let apart = guards.map(|guards| Arc::new(Ledger::start(guards, telemetry)));
    let ledger = apart.clone().unwrap_or_else(|| main.clone());
    let worker = Worker::new(store.clone(), main.waiters().clone(), config.messages.lease, config.messages.workers);
    let engine = sagas::engine(&config, store.clone(), main.clone()).map_err(crate::cli::not_loaded)?;
    let channels = Arc::new(Channels::open(&config).map_err(Failure::new)?);
    let tenders = Worker::new(store.clone(), main.waiters().clone(), config.outgoing.timeout + TENDED_WITHIN, TENDERS);
    let sends = SendLog::new(&config, store.clone(), main.clone(), tenders);
    let reminders = Desk::new(&config, store.clone(), main.clone(), channels.clone(), worker.clone());
    let actions = Runner::open(&config, store.clone(), main.clone(), &engine, &sends).map_err(Failure::new)?;
    let sagas = Director::new(engine, store.clone(), actions.worker.clone());
    let messages = Arc::new(Messages {
        config: config.messages.clone(),
        store_parts: config.privacy.store_parts,
        store_outcome_body: config.privacy.store_outcome_body,
        store: store.clone(),
        main,
        apart,
        channels,
        worker,
        over: Default::default(),
        room: Arc::new(Semaphore::new(config.limits.connections)),
    });
    Ok(Arc::new(App {
        config,
        keys,
        store,
        ledger,
        messages,
        actions,
        sagas,
        sends,
        reminders,
        decisions,
        timelines,
        dashboard: Default::default(),
        metrics,
        rates,
        bodies: Bodies::default(),
        responses: Responses::default(),
        stopping: AtomicBool::new(false),
    }))
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

/// To people, on standard error.
pub fn announce(config: &Config, address: SocketAddr) {
    eprintln!("oncegate {} listens on http://{address}", env!("CARGO_PKG_VERSION"));
    eprintln!("  store  {}", config.store);
    eprintln!("  see    http://{address}/");
    eprintln!(
        "  try    curl -s http://{address}/api/messages -H 'content-type: application/json' \
         -d '{{\"recipientPhone\":\"+15550100\",\"message\":\"Your table is ready.\"}}'"
    );
}

/// What has to be done now and then: the keys may have changed, and what was measured is to be added up.
async fn refresh(app: Arc<App>) {
    loop {
        tokio::time::sleep(REFRESH_EVERY).await;
        app.metrics.run_upkeep();
        if let Err(error) = app.keys.refresh(&*app.store).await {
            tracing::warn!(event = "keys.not_refreshed", %error);
        }
    }
}

/// Writes down what was counted and noted, for people to look at; the rest of it when the server stops.
async fn record(app: Arc<App>, told_to_stop: Arc<Notify>) {
    let tally_every = tally::WRITE_EVERY.as_secs() / timeline::WRITE_EVERY.as_secs();
    let mut second = 0;
    while tokio::time::timeout(timeline::WRITE_EVERY, told_to_stop.notified()).await.is_err() {
        second += 1;
        app.record(second % tally_every == 0).await;
    }
    while app.record(true).await {}
}

/// What tells the server to stop.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Signals> {
        Ok(Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }
}

async fn accept_until_stopped(listener: TcpListener, app: Arc<App>, mut signals: Signals, consumers: Consumers) {
    let connections = Connections {
        router: api::router(app.clone()),
        app: app.clone(),
        stop: Arc::default(),
        places: Arc::new(Semaphore::new(app.config.limits.connections)),
    };
    loop {
        // A place first: while all are taken, clients wait in the backlog and not in our memory.
        let accepted = async {
            let place = connections.places.clone().acquire_owned().await.expect("never closed");
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
    app.messages.main.stop_waiting();
    app.ledger.stop_waiting();
    let deadline = tokio::time::Instant::now() + STOP_GRACE;
    app.messages.worker.stop_by(deadline);
    app.actions.worker.stop_by(deadline);
    app.sends.worker.stop_by(deadline);
    let stopped = tokio::spawn(tokio::time::timeout_at(deadline, consumers.stop()));
    if tokio::time::timeout_at(deadline, connections.end()).await.is_err() {
        tracing::warn!(event = "server.connections_cut", after = ?STOP_GRACE);
    }
    // What is not acknowledged goes back to its queue.
    let _ = stopped.await;
    app.messages.worker.finish_by(deadline).await;
    app.actions.worker.finish_by(deadline).await;
    app.sends.worker.finish_by(deadline).await;
}

struct Connections {
    app: Arc<App>,
    router: axum::Router,
    stop: Arc<Stop>,
    places: Arc<Semaphore>,
}

impl Connections {
    fn serve(&self, stream: TcpStream, place: OwnedSemaphorePermit) {
        // Answers are small and written whole.
        let _ = stream.set_nodelay(true);
        let head = Arc::new(Head::default());
        let (app, router) = (Arc::new(Handle::new(self.app.clone(), head.clone())), self.router.clone());
        let of_answers = head.clone();
        let service = service_fn(move |request| answer(&app, &router, &of_answers, request));
        let connection = http1::Builder::new()
            // [`Patient`] notices clients that close their side, and [`connection::run`] slow heads.
            .half_close(true)
            .header_read_timeout(None)
            .max_buf_size(CONNECTION_BUFFER_BYTES)
            .serve_connection(TokioIo::new(Patient::new(stream, head.clone())), service);
        let connection = connection::run(connection, head, self.stop.clone());
        tokio::spawn(async move {
            let open = gauge!("oncegate_http_connections");
            open.increment(1.0);
            if let Err(error) = connection.await {
                tracing::debug!(event = "http.connection_ended", %error);
            }
            open.decrement(1.0);
            drop(place);
        });
    }

    /// Tells them to end, and waits until all have.
    async fn end(&self) {
        self.stop.tell();
        let places = u32::try_from(self.app.config.limits.connections).expect("not that many connections");
        let _all = self.places.acquire_many(places).await.expect("never closed");
    }
}

type Answered = Response<Last<Either<Full<Bytes>, Body>>>;

/// Whatever happens, an answer: a panic is a defect of ours, and the client is told so.
fn answer(
    app: &Arc<Handle>,
    router: &axum::Router,
    head: &Arc<Head>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Answered, Infallible>> + use<> {
    let asked = Instant::now();
    let (number, asker, head) = (head.arrives(), app.clone(), head.clone());
    let span = trace::request(&request);
    let answering = trace::within(span.clone(), api::answer(app, router, request));
    // Not in an async block, which would have room for it twice: before it waits, and while it does.
    AssertUnwindSafe(answering).catch_unwind().map(move |answered| {
        let panicked =
            |_| Kind::Internal.because("the request ended in a panic").answer(HeaderMap::new()).map(Either::Left);
        let response = answered.unwrap_or_else(panicked);
        asker.responses.count(response.status(), asked.elapsed());
        if let Some(span) = span {
            span.answered(response.status());
        }
        Ok(response.map(|body| Last::new(body, number, head)))
    })
}

/// Each connection is an open file; the usual soft limit is far below what the hard one allows.
fn allow_many_files(connections: usize) {
    let limit = getrlimit(Resource::Nofile);
    // Where it cannot be raised, connections beyond it wait to be accepted.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let allowed = getrlimit(Resource::Nofile).current;
    if allowed.is_some_and(|allowed| allowed < connections as u64) {
        tracing::warn!(event = "server.few_files", allowed, connections);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It is moved for each request, and each connection has one: of many, they have to fit into the processor's cache together.
    #[test]
    fn what_a_connection_keeps_for_a_request_is_small() {
        fn size<F>(_: impl Fn(&Arc<Handle>, &axum::Router, &Arc<Head>, Request<Incoming>) -> F) -> usize {
            size_of::<F>()
        }
        let bytes = size(answer);
        assert!(bytes <= 1600, "{bytes} bytes");
    }
}
