//! Traces, where the standard `OTEL_*` variables enable them: a span for each request of the API, and for each effect that runs here.
//!
//! A claim has a trace of its own, whose ids are derived from the claim and its owner's token. So a duplicate knows where its claim was
//! won,
//! even on another replica and after a restart, and nothing is stored for it.
//!
//! A span never contains: texts, addresses, recipients, parts of keys, payloads, and the answers of receivers.

mod ended;
mod queue;
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
use opentelemetry_sdk::trace::Sampler;

pub use ended::Ended;
pub use queue::{DROPPED, Spans};
pub use span::Span;

use span::Tracer;

/// Set once, where traces are on.
static TRACER: OnceLock<Tracer> = OnceLock::new();

tokio::task_local! {
    /// The current task's span. Never set where traces are off.
    static CURRENT: Arc<Span>;
}

const METHOD: &str = "http.request.method";
const ROUTE: &str = "http.route";
const WORKSPACE: &str = "oncegate.workspace";

/// The subject of an effect, as attributes of its span.
type About<'a> = &'a [(&'static str, &'a (dyn Display + Sync))];

/// Turns traces on: from now on, finished spans go to this queue.
pub fn turn_on(sampler: Sampler, spans: Spans) {
    let started = TRACER.set(Tracer::new(sampler, spans));
    assert!(started.is_ok(), "a server is started once");
}

/// The span of a request of the API.
pub fn request<B>(request: &Request<B>) -> Option<Arc<Span>> {
    let tracer = TRACER.get()?;
    if !request.uri().path().starts_with("/api/") {
        return None;
    }
    // A client can send any word as a method, and a span's name must not be a client's word.
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

/// Names the span of a routed request: by its route, and never by its path.
pub fn routed(method: &Method, route: &str) {
    if let Some(span) = current() {
        span.rename(format!("{method} {route}"));
        span.set(ROUTE, route.to_owned());
    }
}

/// Adds the workspace of the authenticated caller.
pub fn asked_by(workspace: &WorkspaceName) {
    if let Some(span) = current() {
        span.set(WORKSPACE, workspace.to_string());
    }
}

/// Runs `run` within this span.
pub fn within<F: Future>(span: Option<Arc<Span>>, run: F) -> impl Future<Output = F::Output> {
    match span {
        Some(span) => Either::Left(CURRENT.scope(span, run)),
        None => Either::Right(run),
    }
}

/// For a task of its own: its work belongs to the span of the code that starts it.
pub fn carried<F: Future>(run: F) -> impl Future<Output = F::Output> {
    within(current(), run)
}

/// The span of a call to the outside.
pub fn call<F: Future<Output: Ended>>(
    name: &'static str,
    workspace: &WorkspaceName,
    about: About,
    run: F,
) -> impl Future<Output = F::Output> + use<F> {
    effect(name, SpanKind::Client, workspace, about, run)
}

/// The span of incoming work.
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
        let mut cut = FailsIfCut(Some(span.clone()));
        let done = CURRENT.scope(span.clone(), run).await;
        cut.0 = None;
        if let Some(word) = done.failed() {
            span.fail(word);
        }
        span.end();
        done
    })
}

/// An effect that is dropped before its end may have happened: its span fails.
struct FailsIfCut(Option<Arc<Span>>);

impl Drop for FailsIfCut {
    fn drop(&mut self) {
        if let Some(span) = &self.0 {
            span.fail("unknown");
        }
    }
}

/// Adds the current span to the headers of an outgoing request.
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

/// Records a decision on a claim in the request's span. The winner's request also exports the claim's own span.
pub fn decided(decided: &Decided<'_>) {
    let Some(span) = current() else { return };
    span.told(decided.key, decided.answer.name());
    if let (Answer::Won(claim), Some(tracer)) = (decided.answer, TRACER.get()) {
        tracer.won(claim, &span);
    }
}

/// A read-only lookup found another owner's claim: its span links to the span where the claim was won.
pub fn met(claim: &Claim, now: Time) {
    if let Some(span) = current() {
        span.met(claim, now);
    }
}

fn current() -> Option<Arc<Span>> {
    CURRENT.try_with(Arc::clone).ok()
}
