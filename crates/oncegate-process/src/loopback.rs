//! Both ends of HTTP on this machine, for simulated clients and providers: the drill and the demo.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::failure::Failure;

const ANSWERED_WITHIN: Duration = Duration::from_secs(15);
const BODY_BYTES_MAX: usize = 1024 * 1024;

/// There was no answer: it is unknown whether anything was done.
#[derive(Debug)]
pub struct NoAnswer;

/// Sends a request to a server that may die at any moment, on a connection of its own. Returns the status and the body.
pub async fn ask(
    address: SocketAddr,
    method: Method,
    path: &str,
    key: Option<&str>,
    body: Option<&Value>,
) -> Result<(u16, String), NoAnswer> {
    let asked = async {
        let stream = TcpStream::connect(address).await.ok()?;
        let (mut sender, connection) = client::handshake(TokioIo::new(stream)).await.ok()?;
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header(HOST, address.to_string());
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let bytes = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let response = sender.send_request(request.body(Full::new(bytes)).ok()?).await.ok()?;
        let status = response.status().as_u16();
        let text = response.into_body().collect().await.ok()?.to_bytes();
        Some((status, String::from_utf8_lossy(&text).into_owned()))
    };
    tokio::time::timeout(ANSWERED_WITHIN, asked).await.ok().flatten().ok_or(NoAnswer)
}

/// A request to a provider.
pub struct Call {
    pub path: String,
    /// The `Idempotency-Key` header.
    pub key: Option<String>,
    /// Null, if the body is no JSON.
    pub body: Value,
}

/// The answer of a provider.
pub type Told = (StatusCode, Value);

/// A provider, on a free port, until it is dropped.
pub struct Listener {
    pub address: SocketAddr,
    server: JoinHandle<()>,
}

impl Listener {
    /// Without an answer, the connection is cut.
    pub async fn start<F>(answer: impl Fn(Call) -> F + Clone + Send + 'static) -> Result<Listener, Failure>
    where
        F: Future<Output = Option<Told>> + Send + 'static,
    {
        let failed = |error: std::io::Error| Failure::new(format!("cannot listen on a loopback address: {error}"));
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answer = answer.clone();
                let service = service_fn(move |request| respond(answer.clone(), request));
                tokio::spawn(server::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(Listener { address, server })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn respond<F: Future<Output = Option<Told>>>(
    answer: impl Fn(Call) -> F,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, &'static str> {
    let key = request.headers().get("idempotency-key").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let path = request.uri().path().to_owned();
    let read = Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await;
    // The caller died before the body was complete: the request has not arrived.
    let body = read.map_err(|_| "not read to its end")?.to_bytes();
    let body = serde_json::from_slice(&body).unwrap_or_default();
    let (status, body) = answer(Call { path, key, body }).await.ok_or("cut")?;
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    Ok(response)
}
