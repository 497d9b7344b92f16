//! Spans, and the ids of claims' spans.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use axum::http::StatusCode;
use oncegate::{Claim, ClaimKey, State, Time};
use opentelemetry::trace::{
    Event, Link, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, Sampler, SamplingDecision, ShouldSample, SpanData};
use sha2::{Digest, Sha256};

use super::queue::Spans;
use super::{TRACER, WORKSPACE};

const GUARD: &str = "oncegate.guard";
const CLAIM: &str = "oncegate.claim.id";
const ANSWER: &str = "oncegate.answer";
const ATTEMPT: &str = "oncegate.claim.attempt";
const STATUS: &str = "http.response.status_code";
const ERROR: &str = "error.type";

/// The maximum events, and links, of one span: a batch has many claims.
const OF_EACH_MAX: usize = 128;
/// The prefix of the bytes from which a claim's ids are derived.
const CLAIM_TRACE: &[u8] = b"oncegate claim trace";

/// Makes spans.
pub struct Tracer {
    sampler: Sampler,
    ids: RandomIdGenerator,
    scope: InstrumentationScope,
    spans: Spans,
}

/// A running operation. Its span ends explicitly, or when the last holder drops it.
pub struct Span {
    context: SpanContext,
    /// The exported data. `None`: the span is not sampled, or has ended.
    data: Mutex<Option<SpanData>>,
}

impl Tracer {
    pub fn new(sampler: Sampler, spans: Spans) -> Tracer {
        let scope = InstrumentationScope::builder("oncegate").with_version(env!("CARGO_PKG_VERSION")).build();
        Tracer { sampler, ids: RandomIdGenerator::default(), scope, spans }
    }

    pub fn start(
        &self,
        name: impl Into<Cow<'static, str>>,
        kind: SpanKind,
        parent: Option<SpanContext>,
        about: Vec<KeyValue>,
    ) -> Arc<Span> {
        let name = name.into();
        let parent = parent.filter(SpanContext::is_valid);
        let trace_id = parent.as_ref().map_or_else(|| self.ids.new_trace_id(), SpanContext::trace_id);
        let within = parent.clone().map(|parent| Context::new().with_remote_span_context(parent));
        let sampled = self.sampler.should_sample(within.as_ref(), trace_id, &name, &kind, &about, &[]);
        let is_sampled = sampled.decision == SamplingDecision::RecordAndSample;
        let flags = TraceFlags::default().with_sampled(is_sampled);
        let context = SpanContext::new(trace_id, self.ids.new_span_id(), flags, false, sampled.trace_state);
        let data = is_sampled.then(|| SpanData {
            parent_span_id: parent.as_ref().map_or(SpanId::INVALID, SpanContext::span_id),
            parent_span_is_remote: parent.as_ref().is_some_and(SpanContext::is_remote),
            attributes: about,
            ..self.data(context.clone(), name, kind)
        });
        Arc::new(Span { context, data: Mutex::new(data) })
    }

    /// Exports a claim's own span, to which the spans of its duplicates link. It links to the winner's span.
    pub fn won(&self, claim: &Claim, winner: &Span) {
        if !winner.context.is_sampled() {
            return;
        }
        let mut won = self.data(claim_context(claim), "claim".into(), SpanKind::Internal);
        won.attributes = about(&claim.key);
        won.attributes.push(KeyValue::new(WORKSPACE, claim.key.workspace.to_string()));
        won.attributes.push(KeyValue::new(ATTEMPT, i64::from(claim.attempt)));
        won.links.links.push(Link::with_context(winner.context.clone()));
        self.spans.add(won);
    }

    /// A span that begins and ends now.
    fn data(&self, span_context: SpanContext, name: Cow<'static, str>, span_kind: SpanKind) -> SpanData {
        let now = SystemTime::now();
        SpanData {
            span_context,
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind,
            name,
            start_time: now,
            end_time: now,
            attributes: vec![],
            dropped_attributes_count: 0,
            events: Default::default(),
            links: Default::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        }
    }
}

impl Span {
    pub fn context(&self) -> &SpanContext {
        &self.context
    }

    pub fn rename(&self, name: String) {
        self.edit(|data| data.name = name.into());
    }

    pub fn set(&self, name: &'static str, value: impl Into<Value>) {
        self.edit(|data| set(data, name, value.into()));
    }

    /// Marks the span as failed, with one fixed word of ours.
    pub fn fail(&self, word: &'static str) {
        self.edit(|data| {
            data.status = Status::error(word);
            set(data, ERROR, word.into());
        });
    }

    /// Ends the span of an answered request.
    pub fn answered(&self, status: StatusCode) {
        self.edit(|data| {
            set(data, STATUS, i64::from(status.as_u16()).into());
            if status.is_server_error() {
                data.status = Status::error("");
                set(data, ERROR, status.as_str().to_owned().into());
            }
        });
        self.end();
    }

    /// Records the answer that the caller got for a claim.
    pub fn told(&self, key: &ClaimKey, answer: &'static str) {
        self.edit(|data| {
            answer_first(data, key, answer);
            if data.events.len() < OF_EACH_MAX {
                let mut said = about(key);
                said.push(KeyValue::new(ANSWER, answer));
                data.events.events.push(Event::new("claim", SystemTime::now(), said, 0));
            } else {
                data.events.dropped_count += 1;
            }
        });
    }

    /// Records that the caller found this claim.
    pub fn met(&self, claim: &Claim, now: Time) {
        self.edit(|data| {
            let answer = match claim.state_at(now) {
                State::InFlight => "in_flight",
                State::Unknown => "held",
                State::Done | State::Failed => "duplicate",
            };
            answer_first(data, &claim.key, answer);
            if data.links.len() < OF_EACH_MAX {
                data.links.links.push(Link::new(claim_context(claim), about(&claim.key), 0));
            } else {
                data.links.dropped_count += 1;
            }
        });
    }

    /// Ends the span: later records are ignored.
    pub fn end(&self) {
        let data = self.data.lock().expect("no holder of this lock panics").take();
        if let (Some(data), Some(tracer)) = (data, TRACER.get()) {
            tracer.spans.add(SpanData { end_time: SystemTime::now(), ..data });
        }
    }

    fn edit(&self, edit: impl FnOnce(&mut SpanData)) {
        if let Some(data) = self.data.lock().expect("no holder of this lock panics").as_mut() {
            edit(data);
        }
    }
}

/// The last holder is gone, for example because a client hung up.
impl Drop for Span {
    fn drop(&mut self) {
        self.end();
    }
}

/// Sets an attribute; each name has one value.
fn set(data: &mut SpanData, name: &'static str, value: Value) {
    match data.attributes.iter_mut().find(|attribute| attribute.key.as_str() == name) {
        Some(attribute) => attribute.value = value,
        None => data.attributes.push(KeyValue::new(name, value)),
    }
}

/// The first claim of a span is the one whose attributes identify it.
fn answer_first(data: &mut SpanData, key: &ClaimKey, answer: &'static str) {
    let first = data.attributes.iter().find(|attribute| attribute.key.as_str() == CLAIM);
    if first.is_none_or(|first| *first.value.as_str() == *key.id.to_hex()) {
        set(data, GUARD, key.guard.to_string().into());
        set(data, CLAIM, key.id.to_string().into());
        set(data, ANSWER, answer.into());
    }
}

fn about(key: &ClaimKey) -> Vec<KeyValue> {
    vec![KeyValue::new(GUARD, key.guard.to_string()), KeyValue::new(CLAIM, key.id.to_string())]
}

/// The ids of a claim's own span. They are derived from the claim and its owner's token, so they need not be stored.
fn claim_context(claim: &Claim) -> SpanContext {
    let hash = Sha256::new()
        .chain_update(CLAIM_TRACE)
        .chain_update(claim.key.workspace.as_str())
        .chain_update(claim.key.id.as_bytes())
        .chain_update(claim.token.0.to_be_bytes())
        .finalize();
    let (trace, rest) = hash.split_first_chunk().expect("a hash is longer");
    let (span, _) = rest.split_first_chunk().expect("a hash is longer");
    let (trace, span) = (TraceId::from_bytes(*trace), SpanId::from_bytes(*span));
    SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::NONE)
}
