//! Bodies and query strings, read with a limit on everything and refused by name.

use std::sync::Arc;
use std::time::Duration;

use axum::BoxError;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::{Buf, Bytes};
use futures::FutureExt;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Frame};
use oncegate::limits::OUTCOME_BYTES_MAX;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::App;
use crate::events::Media;
use crate::problem::{Kind, Problem};

/// How long a body may take to arrive.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How deep JSON may be nested.
pub const JSON_DEPTH_MAX: usize = 64;

/// What large bodies may take of the memory at once, all together; more wait for their turn.
const BODIES_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Bodies up to this fit into what a connection buffers anyway.
const SMALL_BODY_BYTES: usize = 64 * 1024;
/// Around an outcome: the rest of the body that brings it.
const ENVELOPE_BYTES: usize = 4 * 1024;

/// The memory that large bodies share.
pub struct Bodies(Arc<Semaphore>);

impl Default for Bodies {
    fn default() -> Self {
        Bodies(Arc::new(Semaphore::new(BODIES_BYTES_MAX / SMALL_BODY_BYTES)))
    }
}

impl Bodies {
    /// Room for a body of this length, once there is some.
    async fn room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        if bytes <= SMALL_BODY_BYTES {
            return None;
        }
        let units = bytes.div_ceil(SMALL_BODY_BYTES).min(BODIES_BYTES_MAX / SMALL_BODY_BYTES);
        Some(self.0.clone().acquire_many_owned(units as u32).await.expect("never closed"))
    }
}

/// A body that can be read, whoever brings it.
pub trait Arriving: Body<Data = Bytes, Error: Into<BoxError>> + Unpin + Send {}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin + Send> Arriving for B {}

/// A JSON body.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        json(&parts.headers, body, app, app.config.limits.body_bytes).await.map(Json)
    }
}

/// A JSON body that may bring an outcome, however low the limit for others is.
pub struct WithOutcome<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for WithOutcome<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let limit = app.config.limits.body_bytes.max(OUTCOME_BYTES_MAX + ENVELOPE_BYTES);
        let (parts, body) = request.into_parts();
        json(&parts.headers, body, app, limit).await.map(WithOutcome)
    }
}

/// The fields of a form that a page has posted.
pub struct RawForm(pub Bytes);

impl FromRequest<Arc<App>> for RawForm {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        const FORM: &str = "application/x-www-form-urlencoded";
        let (Parts { headers, .. }, form) = request.into_parts();
        let declared = declared(&headers);
        if declared.is_none_or(|declared| declared.split(';').next() != Some(FORM)) {
            return Err(wrong_type(declared, FORM));
        }
        body(&headers, form, &app.bodies, SMALL_BODY_BYTES).await.map(RawForm)
    }
}

/// A body that is declared as JSON, as it came.
pub struct RawJson(pub Bytes);

impl FromRequest<Arc<App>> for RawJson {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        json_bytes(&parts.headers, body, app, app.config.limits.body_bytes).await.map(RawJson)
    }
}

/// A body of events, as it came, and what its headers say.
pub struct RawEvents {
    pub headers: HeaderMap,
    pub media: Media,
    pub bytes: Bytes,
    /// What is read from it takes as much again, until it is answered.
    _room: Option<OwnedSemaphorePermit>,
}

impl FromRequest<Arc<App>> for RawEvents {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let (Parts { headers, .. }, events) = request.into_parts();
        let media = Media::of(declared(&headers).unwrap_or_default()).ok_or_else(|| {
            let right = "application/json, application/cloudevents+json or application/cloudevents-batch+json";
            wrong_type(declared(&headers), right)
        })?;
        let bytes = body(&headers, events, &app.bodies, app.config.limits.event_body_bytes).await?;
        let _room = app.bodies.room(bytes.len()).await;
        Ok(RawEvents { headers, media, bytes, _room })
    }
}

fn declared(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok())
}

fn wrong_type(declared: Option<&str>, right: &str) -> Problem {
    Kind::UnsupportedMediaType.because(match declared {
        Some(declared) => format!("the content type is {declared:?}; it should be {right}"),
        None => format!("the request has no content type; it should be {right}"),
    })
}

/// What is in a JSON body.
pub async fn json<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: impl Arriving,
    app: &App,
    limit: usize,
) -> Result<T, Problem> {
    parse(&json_bytes(headers, body, app, limit).await?)
}

async fn json_bytes(headers: &HeaderMap, json: impl Arriving, app: &App, limit: usize) -> Result<Bytes, Problem> {
    let declared = declared(headers);
    if !declared.is_some_and(|declared| Media::of(declared) == Some(Media::Json)) {
        return Err(wrong_type(declared, "application/json"));
    }
    body(headers, json, &app.bodies, limit).await
}

/// The whole body, unless it is too large (said before it is read, where its length is declared) or too slow.
async fn body(headers: &HeaderMap, body: impl Arriving, bodies: &Bodies, limit: usize) -> Result<Bytes, Problem> {
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if declared.is_some_and(|length: u64| length > limit as u64) {
        return Err(too_large(limit));
    }
    let length = declared.map_or(limit, |length| length as usize);
    let mut body = Limited::new(body, limit);
    // A small one usually comes with its headers, in one piece: there is nothing to wait for then, and nothing to copy. A large one is not
    // asked for before there is room.
    let first = if length <= SMALL_BODY_BYTES { body.frame().now_or_never().flatten() } else { None };
    match first {
        Some(Ok(first)) if body.is_end_stream() => Ok(first.into_data().unwrap_or_default()),
        first => {
            let whole = Box::pin(in_pieces(first, body, bodies, length));
            let arrived = tokio::time::timeout(BODY_TIMEOUT, whole).await.map_err(|_| {
                Kind::RequestTimeout.because(format!("the body did not arrive within {BODY_TIMEOUT:?}"))
            })?;
            arrived.map_err(|error| match error.is::<LengthLimitError>() {
                true => too_large(limit),
                false => Kind::InvalidRequest.because(format!("the body could not be read: {error}")),
            })
        }
    }
}

fn too_large(limit: usize) -> Problem {
    Kind::PayloadTooLarge.because(format!("the body is over the limit of {limit} bytes"))
}

/// A body of which the first piece, if any, has been taken. What is no data in it are trailers, which say nothing to us.
async fn in_pieces(
    first: Option<Result<Frame<Bytes>, BoxError>>,
    body: Limited<impl Arriving>,
    bodies: &Bodies,
    length: usize,
) -> Result<Bytes, BoxError> {
    let _room = bodies.room(length).await;
    let first = first.transpose()?.and_then(|first| first.into_data().ok()).unwrap_or_default();
    let rest = body.collect().await?.aggregate();
    let length = first.len() + rest.remaining();
    Ok(first.chain(rest).copy_to_bytes(length))
}

pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    if is_too_deep(body) {
        return Err(Kind::InvalidRequest.because(format!("the JSON is nested over {JSON_DEPTH_MAX} deep")));
    }
    read(body)
}

/// What is in the JSON, or the path to the field that is not right.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| {
        // Read again, for the path to the field: only what is refused pays for it.
        let path = serde_path_to_error::deserialize::<_, T>(&mut serde_json::Deserializer::from_slice(body))
            .err()
            .map(|error| error.path().to_string())
            .filter(|path| path != ".")
            .map_or(String::new(), |path| format!("{path}: "));
        Kind::InvalidRequest.because(format!("{path}{error}"))
    })
}

/// Of JSON that has not been read.
pub fn is_too_deep(json: &[u8]) -> bool {
    depth_exceeds(json, JSON_DEPTH_MAX)
}

/// Before parsing: the nesting of brackets outside strings. (Whether they match is for the parser.)
fn depth_exceeds(json: &[u8], limit: usize) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                if depth > limit {
                    return true;
                }
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// So many seconds, or why not.
pub fn seconds(
    field: &str,
    value: Option<f64>,
    range: std::ops::RangeInclusive<Duration>,
) -> Result<Option<Duration>, String> {
    let Some(value) = value else { return Ok(None) };
    let span = Duration::try_from_secs_f64(value).ok().filter(|span| range.contains(span));
    let (min, max) = (range.start().as_secs_f64(), range.end().as_secs_f64());
    span.map(Some).ok_or_else(|| format!("{field}: {min} to {max} seconds, not {value}"))
}

/// A query string; unknown parameters are refused by name where the type says so.
pub struct Params<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Arc<App>> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Problem> {
        match Query::<T>::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Params(params)),
            Err(rejection) => {
                let why = rejection.body_text();
                let why = why.strip_prefix("Failed to deserialize query string: ").unwrap_or(&why).to_owned();
                Err(Kind::InvalidRequest.because(format!("the query: {why}")))
            }
        }
    }
}

/// Two names in a path.
pub struct NamedTwice(pub String, pub String);

impl FromRequestParts<Arc<App>> for NamedTwice {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let Path((first, second)) = Path::from_request_parts(parts, app).await.map_err(|_| no_text())?;
        Ok(NamedTwice(first, second))
    }
}

fn no_text() -> Problem {
    Kind::NotFound.because("the path is not UTF-8: there is nothing under it")
}

/// The name in a path. One that is not even text is the name of nothing.
pub struct Named(pub String);

impl FromRequestParts<Arc<App>> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let Path(name) = Path::from_request_parts(parts, app).await.map_err(|_| no_text())?;
        Ok(Named(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_is_counted_outside_strings_only() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(!depth_exceeds(nested(64).as_bytes(), 64));
        assert!(depth_exceeds(nested(65).as_bytes(), 64));
        let flat = format!("[{}]", vec!["{}"; 100].join(","));
        assert!(!depth_exceeds(flat.as_bytes(), 64));
        let text = format!(r#"["{}\"{}"]"#, "[".repeat(100), "{".repeat(100));
        assert!(!depth_exceeds(text.as_bytes(), 64));
    }

    #[test]
    fn what_is_refused_is_named() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Body {
            #[allow(dead_code)]
            key: Vec<Option<String>>,
        }
        let refused = |json: &str| parse::<Body>(json.as_bytes()).unwrap_err().detail.into_owned();
        assert!(refused(r#"{"key":["a",5]}"#).starts_with("key[1]: invalid type: integer `5`, expected a string"));
        assert!(refused(r#"{"keys":[]}"#).contains("unknown field `keys`, expected `key`"));
        assert!(refused("{}").contains("missing field `key`"));
        assert!(refused("{").contains("EOF while parsing"));
    }
}
