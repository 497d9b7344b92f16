//! Responses: reads them up to a limit, stores them as outcomes, and replays them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::header::{
    AGE, CONTENT_LENGTH, CONTENT_TYPE, DATE, HeaderName, HeaderValue, LOCATION, RETRY_AFTER, SET_COOKIE,
    WWW_AUTHENTICATE,
};
use http::response::Parts;
use http::{HeaderMap, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use oncegate_core::ClaimKey;
use oncegate_core::limits::OUTCOME_BYTES_MAX;
use serde::{Deserialize, Serialize};

use super::{BoxError, ResponseBody};

const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// The longest `Location` that a tombstone stores.
const TOMBSTONE_HEADER_BYTES_MAX: usize = 8 * 1024;

/// Statuses that say that the request was refused before anything happened.
///
/// 400, 404 and 422 are among them, since axum's extractors and routers return them before the handler begins. A handler
/// that returns them after it has done something must leave them out.
const NOT_STARTED: [StatusCode; 10] = [
    StatusCode::BAD_REQUEST,
    StatusCode::UNAUTHORIZED,
    StatusCode::FORBIDDEN,
    StatusCode::NOT_FOUND,
    StatusCode::METHOD_NOT_ALLOWED,
    StatusCode::PAYLOAD_TOO_LARGE,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    StatusCode::UNPROCESSABLE_ENTITY,
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::SERVICE_UNAVAILABLE,
];

/// The responses that are not stored.
#[derive(Clone)]
pub enum NotStarted {
    Statuses(Vec<StatusCode>),
    /// All but those with the statuses for which this returns true.
    Unless(Arc<dyn Fn(StatusCode) -> bool + Send + Sync>),
}

impl Default for NotStarted {
    fn default() -> Self {
        NotStarted::Statuses(NOT_STARTED.into())
    }
}

impl NotStarted {
    /// Whether the response says that nothing happened. A 503 says so only with `Retry-After`: without it, the service may have
    /// failed half-way.
    pub fn says(&self, response: &Parts) -> bool {
        match self {
            NotStarted::Statuses(statuses) => {
                let may_be_half_way = response.status == StatusCode::SERVICE_UNAVAILABLE;
                statuses.contains(&response.status) && (!may_be_half_way || response.headers.contains_key(RETRY_AFTER))
            }
            NotStarted::Unless(keeps) => !keeps(response.status),
        }
    }
}

/// The head of a stored response: one line of JSON, followed by the body unchanged.
#[derive(Serialize, Deserialize)]
pub struct Kept {
    status: u16,
    headers: Vec<(String, String)>,
    /// The response was too large to store. A repeated request is only told that the request was done, and never runs.
    tombstone: bool,
}

impl Kept {
    /// Encodes a response for storage. A response that was not read to its end becomes a tombstone.
    pub fn of(parts: &Parts, body: Option<&[u8]>) -> Bytes {
        let whole = body.map(|body| Kept::encode(parts, false, body)).filter(|kept| kept.len() <= OUTCOME_BYTES_MAX);
        whole.unwrap_or_else(|| Kept::encode(parts, true, &[])).into()
    }

    fn encode(parts: &Parts, tombstone: bool, body: &[u8]) -> Vec<u8> {
        let of_a_tombstone = |value: &str| value.len() <= TOMBSTONE_HEADER_BYTES_MAX;
        let headers = replayed(&parts.headers)
            .filter(|(name, value)| !tombstone || *name == LOCATION && of_a_tombstone(value))
            .map(|(name, value)| (name.to_string(), value.to_owned()))
            .collect();
        let head = Kept { status: parts.status.as_u16(), headers, tombstone };
        let mut kept = serde_json::to_vec(&head).expect("a head is JSON");
        kept.push(b'\n');
        kept.extend_from_slice(body);
        kept
    }
}

/// The headers that describe the response, without those of a single exchange or connection.
fn replayed(headers: &HeaderMap) -> impl Iterator<Item = (&HeaderName, &str)> {
    const OF_ONE_EXCHANGE: [HeaderName; 5] = [AGE, DATE, SET_COOKIE, CONTENT_LENGTH, WWW_AUTHENTICATE];
    const OF_THE_HOP: [&str; 7] =
        ["connection", "keep-alive", "transfer-encoding", "upgrade", "trailer", "te", "server-timing"];
    headers
        .iter()
        .filter(|(name, _)| !OF_ONE_EXCHANGE.contains(name) && !OF_THE_HOP.contains(&name.as_str()))
        .filter_map(|(name, value)| Some((name, value.to_str().ok()?)))
}

pub fn replay(kept: &Bytes) -> Response<ResponseBody> {
    let end = kept.iter().position(|byte| *byte == b'\n');
    let head = end.and_then(|end| Some((end, serde_json::from_slice::<Kept>(&kept[..end]).ok()?)));
    let Some((end, head)) = head else { return resolved(kept.clone()) };
    let mut response = if head.tombstone {
        refusal(StatusCode::CONFLICT, "it was done before; its response was too large to keep")
    } else {
        let mut response = Response::new(whole(kept.slice(end + 1..)));
        *response.status_mut() = StatusCode::from_u16(head.status).unwrap_or(StatusCode::OK);
        response
    };
    for (name, value) in head.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().append(name, value);
        }
    }
    as_replayed(response)
}

/// For a request that a person resolved as done without an outcome.
pub fn resolved_without_outcome() -> Response<ResponseBody> {
    let detail = "this request was done; its response is not known";
    resolved(serde_json::json!({"done": true, "detail": detail}).to_string().into())
}

/// For the outcome with which a person, or a program, resolved the claim.
fn resolved(outcome: Bytes) -> Response<ResponseBody> {
    let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&outcome).is_ok();
    let mut response = Response::new(whole(outcome));
    let kind = if is_json { "application/json" } else { "application/octet-stream" };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    as_replayed(response)
}

fn as_replayed(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

/// A response, as far as the layer has read it.
pub enum Read<R> {
    Whole(Parts, Bytes),
    /// Larger than the limit. The rest is streamed.
    Part(Parts, Bytes, Pin<Box<R>>),
    BrokeOff,
}

impl<R> Read<R>
where
    R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    /// Reads to the end, or until the body is larger than `limit`.
    pub async fn of(response: Response<R>, limit: usize) -> Self {
        let (parts, body) = response.into_parts();
        let mut body = Box::pin(body);
        let mut read = BytesMut::new();
        loop {
            match body.frame().await {
                None => return Read::Whole(parts, read.freeze()),
                Some(Err(_)) => return Read::BrokeOff,
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        read.extend_from_slice(&data);
                    }
                }
            }
            if read.len() > limit {
                return Read::Part(parts, read.freeze(), body);
            }
        }
    }
}

/// A body: the part that was read, then the rest.
pub struct Rest<R> {
    pub read: Option<Bytes>,
    pub rest: Pin<Box<R>>,
}

impl<R> Body for Rest<R>
where
    R: Body<Data = Bytes, Error: Into<BoxError>>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.read.take() {
            Some(read) => Poll::Ready(Some(Ok(Frame::data(read)))),
            None => self.rest.as_mut().poll_frame(context).map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.read.as_ref().map_or(0, Bytes::len) as u64;
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(read));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(read));
        }
        hint
    }
}

pub fn passed<R>(response: Response<R>) -> Response<ResponseBody>
where
    R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    response.map(|body| body.map_err(Into::into).boxed_unsync())
}

pub fn whole(body: Bytes) -> ResponseBody {
    Full::new(body).map_err(|never| match never {}).boxed_unsync()
}

pub fn refusal(status: StatusCode, detail: &str) -> Response<ResponseBody> {
    problem(status, detail, None)
}

/// A refusal with the id of its claim, so that a person can find the claim.
pub fn refusal_of(claim: &ClaimKey, status: StatusCode, detail: &str) -> Response<ResponseBody> {
    problem(status, detail, Some(claim))
}

fn problem(status: StatusCode, detail: &str, claim: Option<&ClaimKey>) -> Response<ResponseBody> {
    let title = status.canonical_reason().unwrap_or_default();
    let mut body =
        serde_json::json!({"type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail});
    if let Some(claim) = claim {
        body["claim"] = claim.id.to_string().into();
    }
    let mut response = Response::new(whole(body.to_string().into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}

pub fn in_flight() -> Response<ResponseBody> {
    come_back(refusal(StatusCode::CONFLICT, "the first request is still under way"))
}

pub fn store_away() -> Response<ResponseBody> {
    come_back(refusal(StatusCode::SERVICE_UNAVAILABLE, "the store cannot be asked; nothing was done"))
}

fn come_back(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}
