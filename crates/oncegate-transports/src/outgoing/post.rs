//! Sends a POST over a connection of its own.
//!
//! A receiver may close a kept-alive connection just as the next request goes out. Then it is unknown whether that request
//! arrived. If a new connection cannot be made, nothing was sent for certain.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{HeaderMap, Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use url::{Position, Url};
use uuid::Uuid;

use super::{NoConnection, connect};
use crate::trace;

/// How much of an answer is read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// How much of an error answer is kept.
const ERROR_CHARS_MAX: usize = 300;

/// The receiver's answer.
pub struct Posted {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// There was no answer.
#[derive(Debug, thiserror::Error)]
pub enum NotPosted {
    /// The address may not be called.
    #[error("{0}")]
    Forbidden(String),
    /// Nothing was sent.
    #[error("{0}")]
    Unsent(String),
    /// The request may have arrived.
    #[error("{0}")]
    Broke(String),
}

impl Posted {
    /// The receiver's `Retry-After`, if it is in seconds.
    pub fn retry_in(&self) -> Option<Duration> {
        let value = self.headers.get(RETRY_AFTER)?.to_str().ok()?;
        Some(Duration::from_secs(value.trim().parse().ok()?))
    }

    /// The answer's status, and the start of its body.
    pub fn said(&self, who: &str) -> String {
        let said = String::from_utf8_lossy(&self.body);
        let said: String = said.trim().chars().take(ERROR_CHARS_MAX).collect();
        match said.is_empty() {
            true => format!("the {who} answered {}", self.status),
            false => format!("the {who} answered {}: {said}", self.status),
        }
    }
}

/// Posts JSON under a key that is the same on every attempt.
pub async fn post(
    url: &Url,
    key: Uuid,
    more: &[(&'static str, HeaderValue)],
    body: Bytes,
    allow: &[IpNet],
    within: Duration,
) -> Result<Posted, NotPosted> {
    exchange(url, request(key, more, body), allow, within).await
}

/// Sends a request to the URL's host, and reads the answer.
pub async fn exchange(
    url: &Url,
    request: Request<Full<Bytes>>,
    allow: &[IpNet],
    within: Duration,
) -> Result<Posted, NotPosted> {
    let deadline = Instant::now() + within;
    let stream = match timeout_at(deadline, connect(url, allow)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error @ NoConnection::Refused(_))) => return Err(NotPosted::Forbidden(error.to_string())),
        Ok(Err(error)) => return Err(NotPosted::Unsent(error.to_string())),
        Err(_) => return Err(NotPosted::Unsent(format!("no connection within {within:?}"))),
    };
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| NotPosted::Unsent(error.to_string()))?;
    // The connection ends with this request, even if the request is dropped.
    let _connection = Aborted(tokio::spawn(connection));
    // From here on the request may have arrived, whatever fails.
    match timeout_at(deadline, sender.send_request(addressed(url, request))).await {
        Ok(Ok(response)) => {
            let (head, body) = response.into_parts();
            // The status counts, even if the body breaks off or does not end.
            let body = timeout_at(deadline, Limited::new(body, ANSWER_BYTES_MAX).collect()).await;
            let body = body.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
            Ok(Posted { status: head.status, headers: head.headers, body })
        }
        Ok(Err(error)) => Err(NotPosted::Broke(format!("the connection broke: {error}"))),
        Err(_) => Err(NotPosted::Broke(format!("no answer within {within:?}"))),
    }
}

struct Aborted<T>(JoinHandle<T>);

impl<T> Drop for Aborted<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn addressed(url: &Url, mut request: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    let path = url[Position::BeforePath..Position::AfterQuery].parse();
    *request.uri_mut() = path.expect("a URL's path is a path");
    let host = &url[Position::BeforeHost..Position::AfterPort];
    let host = HeaderValue::from_str(host).expect("a URL's host is a header's value");
    request.headers_mut().insert(HOST, host);
    request
}

fn request(key: Uuid, more: &[(&'static str, HeaderValue)], body: Bytes) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = Method::POST;
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("oncegate/", env!("CARGO_PKG_VERSION"))));
    let key = HeaderValue::from_str(&key.to_string()).expect("an id is a header's value");
    headers.insert("idempotency-key", key);
    headers.extend(more.iter().map(|(name, value)| (hyper::header::HeaderName::from_static(name), value.clone())));
    trace::pass_on(headers);
    request
}
