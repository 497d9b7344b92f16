//! Every error that a caller can get, and the page that explains it.
//!
//! Errors are RFC 9457 documents. A problem's kind has a name, a title, a status and a hint; its
//! `type` is a page that this same server serves. Adding a kind here is all it takes.

use std::borrow::Cow;
use std::sync::LazyLock;
use std::time::Instant;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::Full;
use oncegate::{Refusal, StoreError};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::brake::Brake;

macro_rules! kinds {
    ($($kind:ident $name:literal $status:literal $title:literal, $hint:literal, $page:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind { $($kind,)* }

        impl Kind {
            pub const ALL: &[Kind] = &[$(Kind::$kind,)*];

            pub const fn name(self) -> &'static str { match self { $(Kind::$kind => $name,)* } }
            pub const fn title(self) -> &'static str { match self { $(Kind::$kind => $title,)* } }
            pub const fn hint(self) -> &'static str { match self { $(Kind::$kind => $hint,)* } }
            /// The meaning of the problem and what to do, for its page.
            pub const fn page(self) -> &'static str { match self { $(Kind::$kind => $page,)* } }
            const fn code(self) -> u16 { match self { $(Kind::$kind => $status,)* } }
        }
    };
}

kinds! {
    InvalidRequest "invalid-request" 400 "The request is not valid",
        "See /openapi.json for what this endpoint takes.",
        "A field is missing, unknown, of the wrong type or out of its range, or the body is not JSON. `detail` names the field, what was wrong and what would be right. Nothing was claimed and nothing was stored: correct the request and send it again.";
    Unauthorized "unauthorized" 401 "The API key is missing or not valid",
        "Send `Authorization: Bearer og_…`; `oncegate key create --workspace NAME` makes a key.",
        "The request had no API key, or its key does not exist or is revoked. The answer is the same in all these cases.";
    Forbidden "forbidden" 403 "Not allowed",
        "Use a key with a larger role, or, without keys, call the server by its loopback address.",
        "The key's role does not cover this (send < operate < admin), the key belongs to another workspace than the one named, or the server has no keys yet and the request did not come straight to its loopback address: while no key exists it answers only local, same-site requests.";
    BehindAProxy "behind-a-proxy" 403 "A server without keys is not open through a proxy",
        "Make a key: `oncegate key create --workspace default --role admin`. Send it as `Authorization: Bearer og_…`.",
        "No key exists, so the server answers only direct requests of its own machine and its own user. This one came through a reverse proxy (it has one of the headers Forwarded, X-Forwarded-*, X-Real-IP or Via, or is in HTTP/1.0), or from another user of the machine. Behind a reverse proxy every caller needs a key.";
    NotFound "not-found" 404 "Not found",
        "Ids belong to one workspace and one guard; a claim whose window has ended is gone.",
        "The path does not exist, or the workspace has nothing with this id. Things of another workspace, and claims whose window has ended, count as missing.";
    MethodNotAllowed "method-not-allowed" 405 "This path does not have that method",
        "See /openapi.json for what this path takes.",
        "The path exists with other methods.";
    RequestTimeout "request-timeout" 408 "The request arrived too slowly",
        "Send the whole body within 30 s.",
        "The server waits 10 s for the headers and 30 s for the body, then closes the connection. Nothing was claimed.";
    InFlight "in-flight" 409 "Another caller owns this key",
        "Ask again after `Retry-After`, or pass `waitSeconds` to be woken when it settles.",
        "The key has a live owner that has not settled yet. Do not perform the effect. If the owner dies, its lease ends and, where the guard allows it, the next caller takes over.";
    SendBusy "send-busy" 409 "Another worker is sending it",
        "Put the job back, and ask again after `Retry-After`.",
        "Another worker has begun this send, and its lease has not ended. Do not send. After it has sent, the next worker is told to skip. If it dies, `[sends] lost` decides what happens after its lease.";
    Held "held" 409 "It is unknown whether the effect happened",
        "Look at the effect's receiver, then `POST /api/claims/{id}/resolve` or `oncegate claims resolve`.",
        "The owner's lease ended before it settled the claim, or it settled as unknown. The effect may have happened, and this guard does not allow a take-over. A person or a program that asked the receiver resolves the claim as done or not done.";
    Fenced "fenced" 409 "No longer the owner",
        "Stop. Claim again only if you have not made the effect.",
        "The token is outdated or was never given, the lease has ended, or the claim was settled otherwise. A caller that was paused past its lease is no longer the owner: what it writes is refused and changed nothing.";
    IdempotencyKeyInFlight "idempotency-key-in-flight" 409 "The first request with this key has not ended",
        "Ask again after `Retry-After`: you get the answer to the first request.",
        "The first request with this Idempotency-Key did not end within `[messages] wait`. This request did nothing. If the server of the first request has died, the answer is rebuilt from the message after its lease. The message is never sent a second time.";
    WrongStatus "wrong-status" 409 "Wrong state for this operation",
        "Read it first: a worker or another person may have changed it meanwhile.",
        "Only a waiting action can be cancelled or run now. Only an action that ended without success, or an open dead letter, can be retried. Only a dead or unknown action, an unknown message, and an unknown or lost send can be resolved. A reminder can be changed or cancelled until its flag is set; a missed one can be sent or resolved. `detail` has the present state. Nothing was changed.";
    NotUnknown "not-unknown" 409 "Only an unknown claim can be resolved",
        "Read the claim first: it may have settled meanwhile. To free a key, delete its claim.",
        "Only a claim whose effect may or may not have happened can be resolved. This claim is in another state.";
    PayloadTooLarge "payload-too-large" 413 "The body is too large",
        "The limit is `[limits] body`, of events `event_body`, in the server's configuration.",
        "The body is larger than the limit. It was refused before all of it was read, and nothing was claimed.";
    UnsupportedMediaType "unsupported-media-type" 415 "The body is not declared as JSON",
        "Send `Content-Type: application/json`.",
        "This endpoint takes JSON.";
    FingerprintMismatch "fingerprint-mismatch" 422 "The key was used for another request",
        "Use a new key for a new request.",
        "A live claim under this key was made from a different fingerprint: the same key, but not the same request. Nothing was changed.";
    IdempotencyKeyReused "idempotency-key-reused" 422 "The key was used with another body",
        "Use a new Idempotency-Key for a new request; repeat a request byte for byte.",
        "An Idempotency-Key names one request in one workspace on one path, for 24 hours from its first use. This body differs from the first one. Nothing was done.";
    RateLimited "rate-limited" 429 "Too many requests from this workspace",
        "Send less; `Retry-After` has the pause. The rate is `[limits] rate`.",
        "The workspace exceeds its configured rate. Nothing was claimed.";
    WorkspaceLimit "workspace-limit" 429 "The workspace is at one of its limits",
        "Ask again after `Retry-After`; `detail` names the limit and its setting.",
        "What one workspace may use at once is limited: connections, requests in flight, callers that wait, followers of streams, bytes of bodies and of answers, lookups. Other workspaces are not affected. Nothing was claimed and nothing was stored. The limits are settings under `[limits.workspace]`.";
    QuotaExceeded "quota-exceeded" 429 "The workspace has stored too much",
        "Wait until something expires, forget claims, shorten their windows, or raise `limits.workspace.claims` or `limits.workspace.stored`.",
        "The claims and records of this workspace have reached its quota, in number or in bytes; `detail` has both numbers. New ones are refused until some expire. Owners can still settle, renew and release their claims. The stored data is measured every 30 seconds, or less often if measuring takes long.";
    ScheduleLimit "schedule-limit" 429 "The workspace has too many recurring schedules",
        "Cancel schedules that are not needed any more, or raise `limits.schedules`; `detail` has the number.",
        "The number of recurring schedules in a workspace is limited, and this workspace has reached the limit. Nothing was written. Waiting does not help; cancel one.";
    Internal "internal" 500 "A defect in the server",
        "Look for the request id in the server's log.",
        "The server could not handle the request. The claim shows whether anything was written, so a retry under the same key is safe.";
    ServerBusy "server-busy" 503 "All connections of the server are taken",
        "Ask again after `Retry-After`, close idle connections, or raise `limits.connections`.",
        "The server has reached `limits.connections`. A few spare connections get this answer and are closed, so that `/healthz` and `/readyz` still work. Nothing was done.";
    StoreUnavailable "store-unavailable" 503 "The store is unavailable",
        "Ask again after `Retry-After`: a retry under the same key is safe.",
        "The store is away, overloaded or read-only, or the server is stopping. Nothing was written.";
    StoreUnknown "store-unknown" 503 "It is unknown whether the store wrote",
        "Ask again after `Retry-After`: a retry under the same key is safe.",
        "The answer of the store was lost: the connection broke, the store crashed, or a standby did not confirm in time. The write happened completely or not at all. A retry under the same key finds out which. If this request won the claim, the key is in flight until its lease ends.";
}

impl Kind {
    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.code()).expect("the table has valid codes")
    }

    pub fn named(name: &str) -> Option<Kind> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    fn words(self) -> &'static Words {
        static WORDS: LazyLock<Vec<Words>> = LazyLock::new(|| Kind::ALL.iter().copied().map(Words::of).collect());
        &WORDS[self as usize]
    }

    pub fn because(self, detail: impl Into<Cow<'static, str>>) -> Problem {
        Problem {
            kind: self,
            detail: detail.into(),
            cause: None,
            retry_after_seconds: None,
            more: vec![],
            request_id: uuid::Uuid::now_v7(),
        }
    }
}

/// The parts that are the same in every problem of a kind, as JSON.
struct Words {
    r#type: Box<RawValue>,
    title: Box<RawValue>,
    hint: Box<RawValue>,
}

impl Words {
    fn of(kind: Kind) -> Words {
        let json = |text: &str| to_raw_value(text).expect("text is JSON");
        Words {
            r#type: json(&format!("/problems/{}", kind.name())),
            title: json(kind.title()),
            hint: json(kind.hint()),
        }
    }
}

/// One error for one caller.
#[derive(Debug)]
pub struct Problem {
    pub kind: Kind,
    pub detail: Cow<'static, str>,
    /// Only for the log: it may name the store's host.
    cause: Option<String>,
    pub retry_after_seconds: Option<u64>,
    /// Further members for programs, beside the standard members.
    more: Vec<(&'static str, Value)>,
    request_id: uuid::Uuid,
}

impl Problem {
    /// Adds the cause, for a caller that may see internals of the system.
    pub fn with_its_cause(self) -> Self {
        let detail = self.cause.clone().map_or(self.detail, Cow::Owned);
        Problem { detail, ..self }
    }

    pub fn retry_after(self, seconds: u64) -> Self {
        Problem { retry_after_seconds: Some(seconds.max(1)), ..self }
    }

    /// Sets the cause that the log adds to the detail.
    fn caused_by(self, cause: String) -> Self {
        Problem { cause: Some(cause), ..self }
    }

    /// Names the invalid field.
    pub fn of(self, field: &str) -> Self {
        Problem { detail: format!("{field}: {}", self.detail).into(), ..self }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.more.push((name, value.into()));
        self
    }

    /// Logs the problem with its request id. Some server errors a second are logged, and errors of callers at the level `debug`.
    pub fn log(&self) {
        let (problem, status, request_id) = (self.kind.name(), self.kind.code(), self.request_id);
        static BRAKE: Brake = Brake::new();
        if status >= 500 {
            if let Some(left_out) = BRAKE.admit(Instant::now()) {
                let (detail, cause) = (&self.detail, &self.cause);
                tracing::error!(event = "http.problem", problem, status, requestId = %request_id, %detail, cause, leftOut = left_out);
            }
        } else {
            // Without the detail: it repeats the caller's input, which may be personal data.
            tracing::debug!(event = "http.problem", problem, status, requestId = %request_id);
        }
    }
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut document = serializer.serialize_map(None)?;
        let Words { r#type, title, hint } = self.kind.words();
        document.serialize_entry("type", r#type)?;
        document.serialize_entry("title", title)?;
        document.serialize_entry("status", &self.kind.code())?;
        document.serialize_entry("detail", &self.detail)?;
        document.serialize_entry("hint", hint)?;
        document.serialize_entry("requestId", &self.request_id)?;
        if let Some(seconds) = self.retry_after_seconds {
            document.serialize_entry("retryAfterSeconds", &seconds)?;
        }
        for (name, value) in &self.more {
            document.serialize_entry(name, value)?;
        }
        document.end()
    }
}

/// Answers are personal, or valid only for a moment: no cache may keep them.
pub const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
/// Browsers must not guess another content type.
pub const NO_SNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// A complete answer with a body of a known type, which needs no box.
pub type Whole = Response<Full<Bytes>>;

const LARGE_ANSWER_BYTES: usize = 64 * 1024;

/// `headers` is an empty map whose memory is reused.
pub fn whole(status: StatusCode, content_type: &'static str, mut json: Vec<u8>, mut headers: HeaderMap) -> Whole {
    // A large buffer has grown to up to twice its length, and a slow client keeps it in memory.
    if json.len() > LARGE_ANSWER_BYTES {
        json.shrink_to_fit();
    }
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, NO_STORE);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, NO_SNIFF);
    let mut response = Response::new(json.into());
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    response
}

/// An answer as JSON. The initial buffer is large enough for most answers.
pub fn to_json(answer: &impl Serialize) -> Vec<u8> {
    let mut json = Vec::with_capacity(768);
    serde_json::to_writer(&mut json, answer).expect("answers are JSON");
    json
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.answer(HeaderMap::new()).map(Body::new)
    }
}

impl Problem {
    /// `headers` is an empty map whose memory is reused.
    pub fn answer(self, headers: HeaderMap) -> Whole {
        self.log();
        let (status, retry_after) = (self.kind.status(), self.retry_after_seconds);
        let mut response = whole(status, "application/problem+json", to_json(&self), headers);
        let headers = response.headers_mut();
        if let Some(seconds) = retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // The rest of the body is not read, so the connection is closed.
        if matches!(status, StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT) {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Refused(detail) => Kind::InvalidRequest.because(detail),
            StoreError::Unreadable(detail) => Kind::Internal.because(detail),
            StoreError::Unavailable(_) => {
                let away = Kind::StoreUnavailable.because("the store is unavailable; the server's log says why");
                away.caused_by(error.to_string()).retry_after(1)
            }
            StoreError::Unknown(_) => {
                let unknown =
                    Kind::StoreUnknown.because("the store did not say whether it wrote; the server's log says why");
                unknown.caused_by(error.to_string()).retry_after(1)
            }
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let kind = match refusal {
            Refusal::Missing => Kind::NotFound,
            Refusal::NotUnknown { .. } => Kind::NotUnknown,
            Refusal::TokenOutdated { .. }
            | Refusal::TokenUnknown { .. }
            | Refusal::LeaseEnded { .. }
            | Refusal::Settled { .. }
            | Refusal::SettledOtherwise { .. } => Kind::Fenced,
        };
        kind.because(refusal.to_string())
    }
}
