//! Reads bodies and query strings. Everything has a limit, and refusals name the field.
//!
//! A large body waits for room in its workspace's memory before it is read, and again before it is parsed. The memory that
//! its JSON will take is counted first.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::BoxError;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Frame};
use oncegate::limits::OUTCOME_BYTES_MAX;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use super::{App, Exchange, exchange};
use crate::auth::Caller;
use crate::events::Media;
use crate::json::{Shape, parse, read};
use crate::problem::{Kind, Problem};
use crate::tenants::{Share, UNIT_BYTES};

/// How long a body may take to arrive.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The memory of one value or name, besides its text: the value, its place in a list or an object, and a copy for an
/// expression to read.
const VALUE_BYTES: usize = 160;

/// While a large body holds room, at least `BODY_WINDOW_BYTES` of it must arrive in each window.
const BODY_WINDOW: Duration = Duration::from_secs(5);
const BODY_WINDOW_BYTES: usize = 32 * 1024;
/// The largest form that a page posts.
const FORM_BYTES_MAX: usize = 64 * 1024;
/// The rest of a body that brings an outcome, around the outcome.
const ENVELOPE_BYTES: usize = 4 * 1024;
/// The largest body with an outcome that a workspace over its quota may still store.
const SMALL_OUTCOME_BYTES: usize = 4 * 1024;

/// A body that can be read, of whatever type.
pub trait Arriving: Body<Data = Bytes, Error: Into<BoxError>> + Unpin + Send {}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin + Send> Arriving for B {}

/// A JSON body.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        json(&parts.headers, body, app, &exchange(&parts), app.config.limits.body_bytes).await.map(Json)
    }
}

/// A JSON body that may bring an outcome, even if the limit for other bodies is lower.
pub struct WithOutcome<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for WithOutcome<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let limit = app.config.limits.body_bytes.max(OUTCOME_BYTES_MAX + ENVELOPE_BYTES);
        let (parts, body) = request.into_parts();
        let exchange = exchange(&parts);
        let bytes = json_bytes(&parts.headers, body, app, &exchange, limit).await?;
        let tenant = exchange.tenant(app);
        if bytes.len() > SMALL_OUTCOME_BYTES {
            // An owner can always settle its claim, over the quota with a smaller outcome.
            tenant.check_quota()?;
        }
        let read = parse(&bytes)?;
        tenant.stores(0, bytes.len());
        Ok(WithOutcome(read))
    }
}

/// The fields of a form that a page has posted.
pub struct RawForm(pub Bytes);

impl FromRequest<Arc<App>> for RawForm {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        const FORM: &str = "application/x-www-form-urlencoded";
        let (parts, form) = request.into_parts();
        let declared = declared(&parts.headers);
        if declared.is_none_or(|declared| declared.split(';').next() != Some(FORM)) {
            return Err(wrong_type(declared, FORM));
        }
        body(&parts.headers, form, app, &exchange(&parts), FORM_BYTES_MAX).await.map(RawForm)
    }
}

/// A body that is declared as JSON, not yet parsed.
pub struct RawJson(pub Bytes);

impl FromRequest<Arc<App>> for RawJson {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let exchange = exchange(&parts);
        let bytes = json_bytes(&parts.headers, body, app, &exchange, app.config.limits.body_bytes).await?;
        exchange.tenant(app).stores(1, bytes.len());
        Ok(RawJson(bytes))
    }
}

/// A body of events, not yet parsed, and its headers.
pub struct RawEvents {
    pub headers: HeaderMap,
    pub media: Media,
    pub bytes: Bytes,
}

impl FromRequest<Arc<App>> for RawEvents {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let (parts, events) = request.into_parts();
        let exchange = exchange(&parts);
        let headers = parts.headers;
        let media = Media::of(declared(&headers).unwrap_or_default()).ok_or_else(|| {
            let right = "application/json, application/cloudevents+json or application/cloudevents-batch+json";
            wrong_type(declared(&headers), right)
        })?;
        let bytes = body(&headers, events, app, &exchange, app.config.limits.event_body_bytes).await?;
        weigh(&bytes, app, &exchange).await?;
        exchange.tenant(app).stores(1, bytes.len());
        Ok(RawEvents { headers, media, bytes })
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

/// Parses a JSON body.
pub fn json<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: impl Arriving,
    app: &App,
    exchange: &Exchange,
    limit: usize,
) -> impl Future<Output = Result<T, Problem>> {
    // Not in an async block, which would reserve room for all of these twice.
    json_bytes(headers, body, app, exchange, limit).map(|bytes| read(&bytes?))
}

/// The bytes of a JSON body, after its memory was reserved.
async fn json_bytes(
    headers: &HeaderMap,
    json: impl Arriving,
    app: &App,
    exchange: &Exchange,
    limit: usize,
) -> Result<Bytes, Problem> {
    let declared = declared(headers);
    if !declared.is_some_and(|declared| Media::of(declared) == Some(Media::Json)) {
        return Err(wrong_type(declared, "application/json"));
    }
    let bytes = body(headers, json, app, exchange, limit).await?;
    if bytes.len() > SMALL_JSON_BYTES {
        Box::pin(weigh(&bytes, app, exchange)).await?;
    } else {
        Shape::of(&bytes).check()?;
    }
    Ok(bytes)
}

/// JSON up to this size takes little memory, whatever it contains.
const SMALL_JSON_BYTES: usize = 8 * 1024;

/// Waits for room in the workspace's memory: for the parsed JSON until the request is answered, and for an answer that
/// repeats it until that is read.
async fn weigh(json: &[u8], app: &App, exchange: &Exchange) -> Result<(), Problem> {
    let shape = Shape::of(json);
    shape.check()?;
    let tenant = exchange.tenant(app);
    exchange.hold(tenant.room(Share::Parsed, json.len() + shape.values * VALUE_BYTES).await?);
    if json.len() > UNIT_BYTES {
        exchange.hold_answer(app, json.len()).await?;
    }
    Ok(())
}

/// Reads the whole body. Refuses a body that is too slow or too large; a declared length is checked before anything is
/// read.
async fn body(
    headers: &HeaderMap,
    body: impl Arriving,
    app: &App,
    exchange: &Exchange,
    limit: usize,
) -> Result<Bytes, Problem> {
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if declared.is_some_and(|length: u64| length > limit as u64) {
        return Err(too_large(limit));
    }
    let declared = declared.map(|length| length as usize);
    let mut body = Limited::new(body, limit);
    // A small body usually arrives with its headers, in one piece: then there is no wait and no copy. A large body is not
    // requested before there is room.
    let is_small = declared.is_some_and(|length| length <= UNIT_BYTES);
    let first = if is_small { body.frame().now_or_never().flatten() } else { None };
    match first {
        Some(Ok(first)) if body.is_end_stream() => Ok(first.into_data().unwrap_or_default()),
        first => Box::pin(in_pieces(first, body, app, exchange, declared, limit)).await,
    }
}

fn too_large(limit: usize) -> Problem {
    Kind::PayloadTooLarge.because(format!("the body is over the limit of {limit} bytes"))
}

/// Reads a body whose first piece may have been taken already. Trailers are ignored.
///
/// A body that declares its length waits for room for all of it. Any other body waits once it is no longer small, for as
/// much as it may take. If bodies held a part of their room and waited for the rest, they would wait for each other.
async fn in_pieces(
    first: Option<Result<Frame<Bytes>, BoxError>>,
    mut body: Limited<impl Arriving>,
    app: &App,
    exchange: &Exchange,
    declared: Option<usize>,
    limit: usize,
) -> Result<Bytes, Problem> {
    let tenant = exchange.tenant(app);
    let mut room = declared.unwrap_or(UNIT_BYTES);
    exchange.hold(tenant.room(Share::Bodies, room).await?);
    let mut ends = Instant::now() + BODY_TIMEOUT;
    let mut whole = BytesMut::with_capacity(room.min(limit));
    let (mut next, mut window, mut came) = (first, Instant::now() + BODY_WINDOW, 0);
    loop {
        let frame = match next.take() {
            Some(frame) => frame,
            None => match timeout_at(window.min(ends), body.frame()).await {
                Ok(None) => return Ok(whole.freeze()),
                Ok(Some(frame)) => frame,
                Err(_) if Instant::now() >= ends => {
                    let late = format!("the body did not arrive within {BODY_TIMEOUT:?}");
                    return Err(Kind::RequestTimeout.because(late));
                }
                Err(_) if room > UNIT_BYTES && came < BODY_WINDOW_BYTES => {
                    let slow = format!("less than {BODY_WINDOW_BYTES} bytes of the body came within {BODY_WINDOW:?}");
                    return Err(Kind::RequestTimeout.because(slow));
                }
                Err(_) => {
                    (window, came) = (Instant::now() + BODY_WINDOW, 0);
                    continue;
                }
            },
        };
        let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
            true => too_large(limit),
            false => bad(format!("the body could not be read: {error}")),
        })?;
        let piece = frame.into_data().unwrap_or_default();
        came += piece.len();
        if whole.len() + piece.len() > room {
            let waits = Instant::now();
            exchange.hold(tenant.room(Share::Bodies, limit).await?);
            room = limit;
            // Nothing was read during the wait, so the wait does not count.
            ends += waits.elapsed();
            (window, came) = (Instant::now() + BODY_WINDOW, 0);
        }
        whole.extend_from_slice(&piece);
    }
}

/// The refusal of a field, or of a parameter.
pub fn bad(detail: impl Into<Cow<'static, str>>) -> Problem {
    Kind::InvalidRequest.because(detail)
}

/// Converts a number of seconds to a duration within a range, or says why it is wrong.
pub fn seconds(
    field: &str,
    value: Option<f64>,
    range: std::ops::RangeInclusive<Duration>,
) -> Result<Option<Duration>, Problem> {
    let Some(value) = value else { return Ok(None) };
    let span = Duration::try_from_secs_f64(value).ok().filter(|span| range.contains(span));
    let (min, max) = (range.start().as_secs_f64(), range.end().as_secs_f64());
    span.map(Some).ok_or_else(|| bad(format!("{field}: {min} to {max} seconds, not {value}")))
}

/// The value that has the given name; `None` if no name is given.
pub fn one_of<T: Copy, const N: usize>(
    field: &str,
    given: Option<String>,
    all: [T; N],
    as_str: fn(T) -> &'static str,
) -> Result<Option<T>, Problem> {
    let Some(name) = given else { return Ok(None) };
    let found = all.into_iter().find(|value| as_str(*value) == name);
    found.map(Some).ok_or_else(|| bad(format!("{field}: one of {}, not {name:?}", all.map(as_str).join(", "))))
}

/// A query string. Unknown parameters are refused by name, if the type denies them.
pub struct Params<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Arc<App>> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Problem> {
        match Query::<T>::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Params(params)),
            Err(rejection) => {
                let why = rejection.body_text();
                let why = why.strip_prefix("Failed to deserialize query string: ").unwrap_or(&why).to_owned();
                Err(bad(format!("the query: {why}")))
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

/// A request about one record: its caller, and the id in its path. An id that is not UTF-8 gets the same answer as a
/// missing one.
pub struct One {
    pub app: Arc<App>,
    pub caller: Caller,
    pub id: String,
}

impl FromRequestParts<Arc<App>> for One {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let Path(id) = Path::from_request_parts(parts, app).await.map_err(|_| no_text())?;
        Ok(One { app: app.clone(), caller, id })
    }
}
