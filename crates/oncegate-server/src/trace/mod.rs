//! Traces, where the standard `OTEL_*` variables ask for them: a span for each request of the API, and for each effect that is run here.
//!
//! A claim has a trace of its own, whose ids follow from the claim and its owner's token. So whoever meets a claim knows where it was won,
//! on another replica and after a restart too, and nothing is stored for it.
//!
//! Never in a span: texts, addresses, recipients, parts of keys, payloads, and what a receiver said.

mod ended;
mod export;
mod settings;
mod span;

use std::fmt::Display;
use std::sync::{Arc, OnceLock};

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use futures::future::Either;
use oncegate::{Answer, Claim, Decided, Time, WorkspaceName};
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanKind, TraceContextExt};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;

pub use ended::Ended;
pub use export::Exporting;
pub use span::Span;

use crate::cli::Failure;
use settings::Settings;
use span::Tracer;

/// Set once, where traces are on.
static TRACER: OnceLock<Tracer> = OnceLock::new();

tokio::task_local! {
    /// The span that what is done now belongs to. Never set where traces are off.
    static CURRENT: Arc<Span>;
}

const METHOD: &str = "http.request.method";
const ROUTE: &str = "http.route";
const WORKSPACE: &str = "oncegate.workspace";

/// What an effect's span says it is about.
type About<'a> = &'a [(&'static str, &'a (dyn Display + Sync))];

/// Begins to export, if the environment asks for it. What it asks for and cannot have is refused.
pub fn start() -> Result<Option<Exporting>, Failure> {
    let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let Some(settings) = Settings::read(variable)? else { return Ok(None) };
    let (spans, exporting) = export::start(&settings)?;
    let started = TRACER.set(Tracer::new(settings.sampler, spans));
    assert!(started.is_ok(), "a server is started once");
    Ok(Some(exporting))
}

/// The span of a request of the API.
pub fn request<B>(request: &Request<B>) -> Option<Arc<Span>> {
    let tracer = TRACER.get()?;
    if !request.uri().path().starts_with("/api/") {
        return None;
    }
    // Anybody's word can be a method, and a name is not to be anybody's word.
    let known = [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::PATCH, Method::HEAD, Method::OPTIONS];
    let method = known.into_iter().find(|known| known == request.method());
    let (name, method) = match &method {
        Some(method) => (method.to_string(), method.to_string()),
        None => ("HTTP".into(), "_OTHER".into()),
    };
    let asked =
        TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(request.headers()));
    let parent = asked.span().span_context().clone();
    Some(tracer.start(name, SpanKind::Server, Some(parent), vec![KeyValue::new(METHOD, method)]))
}

/// The request has found its way: the span is called by its route, and never by its path.
pub fn routed(method: &Method, route: &str) {
    if let Some(span) = current() {
        span.rename(format!("{method} {route}"));
        span.set(ROUTE, route.to_owned());
    }
}

/// It is known who asks.
pub fn asked_by(workspace: &WorkspaceName) {
    if let Some(span) = current() {
        span.set(WORKSPACE, workspace.to_string());
    }
}

/// Whatever is done by `run` belongs to this span.
pub fn within<F: Future>(span: Option<Arc<Span>>, run: F) -> impl Future<Output = F::Output> {
    match span {
        Some(span) => Either::Left(CURRENT.scope(span, run)),
        None => Either::Right(run),
    }
}

/// For a task of its own: what it does belongs to the span of whoever starts it.
pub fn carried<F: Future>(run: F) -> impl Future<Output = F::Output> {
    within(current(), run)
}

/// A call to the outside.
pub fn call<F: Future<Output: Ended>>(
    name: &'static str,
    workspace: &WorkspaceName,
    about: About,
    run: F,
) -> impl Future<Output = F::Output> + use<F> {
    effect(name, SpanKind::Client, workspace, about, run)
}

/// Something that came to us to be done.
pub fn work<F: Future<Output: Ended>>(
    name: &'static str,
    workspace: &WorkspaceName,
    about: About,
    run: F,
) -> impl Future<Output = F::Output> + use<F> {
    effect(name, SpanKind::Consumer, workspace, about, run)
}

fn effect<F: Future<Output: Ended>>(
    name: &'static str,
    kind: SpanKind,
    workspace: &WorkspaceName,
    about: About,
    run: F,
) -> impl Future<Output = F::Output> + use<F> {
    let Some(tracer) = TRACER.get() else { return Either::Left(run) };
    let mut attributes = vec![KeyValue::new(WORKSPACE, workspace.to_string())];
    attributes.extend(about.iter().map(|(name, value)| KeyValue::new(*name, value.to_string())));
    let span = tracer.start(name, kind, current().map(|span| span.context().clone()), attributes);
    Either::Right(async move {
        let done = CURRENT.scope(span.clone(), run).await;
        if let Some(word) = done.failed() {
            span.fail(word);
        }
        span.end();
        done
    })
}

/// Tells a receiver which span its request belongs to.
pub fn pass_on(headers: &mut HeaderMap) {
    if let Some(span) = current() {
        let context = span.context();
        let (trace, id, flags) = (context.trace_id(), context.span_id(), context.trace_flags().to_u8());
        let parent = HeaderValue::from_str(&format!("00-{trace}-{id}-{flags:02x}"));
        headers.insert("traceparent", parent.expect("ids are hex digits"));
        let state = Some(context.trace_state().header()).filter(|state| !state.is_empty());
        headers.extend(state.and_then(|state| Some((HeaderName::from_static("tracestate"), state.parse().ok()?))));
    }
}

/// Something was asked of a claim: the span of whoever asked says what they were told. The winner's exports the claim's own.
pub fn decided(decided: &Decided<'_>) {
    let Some(span) = current() else { return };
    span.told(decided.key, decided.answer.name());
    if let (Answer::Won(claim), Some(tracer)) = (decided.answer, TRACER.get()) {
        tracer.won(claim, &span);
    }
}

/// Somebody met another's claim: their span links to where it was won.
pub fn met(claim: &Claim, now: Time) {
    if let Some(span) = current() {
        span.met(claim, now);
    }
}

fn current() -> Option<Arc<Span>> {
    CURRENT.try_with(Arc::clone).ok()
}
