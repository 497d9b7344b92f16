//! Responses: read whole, kept as an outcome, given again.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, DATE, HeaderName, HeaderValue, LOCATION, RETRY_AFTER, SET_COOKIE};
use http::response::Parts;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use oncegate_core::limits::OUTCOME_BYTES_MAX;
use serde::{Deserialize, Serialize};

use super::BoxError;

/// A body that has been read to its end.
pub type Whole = Full<Bytes>;

const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// What a tombstone may keep of `Location`.
const TOMBSTONE_HEADER_BYTES_MAX: usize = 8 * 1024;

/// What is kept: this as a line of JSON, then the body as it was.
#[derive(Serialize, Deserialize)]
pub struct Kept {
    status: u16,
    headers: Vec<(String, String)>,
    /// Too large to keep: whoever repeats the request learns that it happened, and no more. Never a second run.
    tombstone: bool,
}

impl Kept {
    /// The response, and what to keep of it.
    pub async fn of(response: Response<Whole>) -> (Response<Whole>, Bytes) {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_or_else(|never| match never {}, |body| body.to_bytes());
        let whole = Kept::encode(&parts, false, &body);
        let kept = if whole.len() <= OUTCOME_BYTES_MAX { whole } else { Kept::encode(&parts, true, &[]) };
        (Response::from_parts(parts, Full::new(body)), kept.into())
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

/// Headers that say something about the answer, and not about that one exchange.
fn replayed(headers: &HeaderMap) -> impl Iterator<Item = (&HeaderName, &str)> {
    const OF_THE_HOP: [&str; 6] = ["connection", "keep-alive", "transfer-encoding", "upgrade", "trailer", "te"];
    headers
        .iter()
        .filter(|(name, _)| ![DATE, SET_COOKIE, CONTENT_LENGTH].contains(name) && !OF_THE_HOP.contains(&name.as_str()))
        .filter_map(|(name, value)| Some((name, value.to_str().ok()?)))
}

pub fn replay(kept: &Bytes) -> Response<Whole> {
    let unreadable = || refusal(StatusCode::CONFLICT, "it was done before, and its response cannot be read");
    let Some(end) = kept.iter().position(|byte| *byte == b'\n') else { return unreadable() };
    let Ok(head) = serde_json::from_slice::<Kept>(&kept[..end]) else { return unreadable() };
    let mut response = if head.tombstone {
        refusal(StatusCode::CONFLICT, "it was done before; its response was too large to keep")
    } else {
        let mut response = Response::new(Full::new(kept.slice(end + 1..)));
        *response.status_mut() = StatusCode::from_u16(head.status).unwrap_or(StatusCode::OK);
        response
    };
    for (name, value) in head.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().append(name, value);
        }
    }
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

/// Statuses that say: nothing happened. What they refused is new the next time.
pub fn is_refusal(status: StatusCode) -> bool {
    matches!(status.as_u16(), 400 | 401 | 404 | 413 | 429 | 503)
}

/// The response with its body read to the end; one that breaks off is a gateway's error: something may have happened.
pub async fn whole<R>(response: Response<R>) -> Response<Whole>
where
    R: http_body::Body<Error: Into<BoxError>>,
{
    let (parts, body) = response.into_parts();
    match body.collect().await {
        Ok(body) => Response::from_parts(parts, Full::new(body.to_bytes())),
        Err(_) => refusal(StatusCode::BAD_GATEWAY, "the response broke off"),
    }
}

pub fn refusal(status: StatusCode, detail: &str) -> Response<Whole> {
    let title = status.canonical_reason().unwrap_or_default();
    let body = serde_json::json!({"type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail});
    let mut response = Response::new(Full::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}

pub fn in_flight() -> Response<Whole> {
    come_back(refusal(StatusCode::CONFLICT, "the first request is still under way"))
}

pub fn store_away() -> Response<Whole> {
    come_back(refusal(StatusCode::SERVICE_UNAVAILABLE, "the store cannot be asked; nothing was done"))
}

fn come_back(mut response: Response<Whole>) -> Response<Whole> {
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}
