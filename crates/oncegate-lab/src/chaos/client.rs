//! A JSON client that never retries by itself: the caller has to find out the outcome of a lost request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A stopped server does not answer. Longer than any pause that a request should survive.
const ANSWER_MAX: Duration = Duration::from_secs(8);

pub struct Client {
    address: SocketAddr,
    /// Counts answers with status 500. A server never gives one, whatever happens to its store.
    failures: Arc<AtomicU64>,
    connection: Option<SendRequest<Full<Bytes>>>,
}

/// An answer. Its status promises nothing about the store's state.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Nothing was written: the server could not be reached, or said that nothing was written.
    NotWritten,
    /// The write may have happened, or may yet happen.
    Unknown,
}

impl Answer {
    /// The name of a problem, such as `in-flight`.
    pub fn problem(&self) -> &str {
        self.body["type"].as_str().and_then(|name| name.strip_prefix("/problems/")).unwrap_or_default()
    }

    pub fn text(&self, name: &str) -> Option<String> {
        self.body[name].as_str().map(str::to_owned)
    }
}

impl Client {
    /// `failures` counts the answers with status 500.
    pub fn new(address: SocketAddr, failures: Arc<AtomicU64>) -> Client {
        Client { address, failures, connection: None }
    }

    pub async fn get(&mut self, path: &str) -> Result<Answer, Lost> {
        self.send(Method::GET, path, None, None).await
    }

    pub async fn delete(&mut self, path: &str) -> Result<Answer, Lost> {
        self.send(Method::DELETE, path, None, None).await
    }

    pub async fn post(&mut self, path: &str, body: &Value) -> Result<Answer, Lost> {
        self.send(Method::POST, path, Some(body), None).await
    }

    pub async fn post_with_key(&mut self, path: &str, body: &Value, key: Option<&str>) -> Result<Answer, Lost> {
        self.send(Method::POST, path, Some(body), key).await
    }

    async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        key: Option<&str>,
    ) -> Result<Answer, Lost> {
        let mut request = Request::builder().method(method).uri(path).header("host", self.address.to_string());
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let bytes = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let request = request.body(Full::new(bytes)).expect("paths and keys are of the driver's own making");
        self.connect().await?;
        let answered = timeout(ANSWER_MAX, self.exchange(request)).await;
        match answered {
            Ok(Some(answer)) => {
                let is_away = answer.status == 503;
                if answer.status == 500 {
                    self.failures.fetch_add(1, Ordering::Relaxed);
                }
                match answer.problem() {
                    "store-unavailable" if is_away => Err(Lost::NotWritten),
                    _ if is_away || answer.status == 500 => Err(Lost::Unknown),
                    _ => Ok(answer),
                }
            }
            Ok(None) | Err(_) => {
                self.connection = None;
                Err(Lost::Unknown)
            }
        }
    }

    /// A server that cannot be reached has not seen the request.
    async fn connect(&mut self) -> Result<(), Lost> {
        if let Some(sender) = &mut self.connection
            && sender.ready().await.is_ok()
        {
            return Ok(());
        }
        self.connection = None;
        let connected = timeout(ANSWER_MAX, TcpStream::connect(self.address)).await;
        let Ok(Ok(stream)) = connected else {
            // Wait, so that clients do not reconnect in a tight loop.
            tokio::time::sleep(Duration::from_millis(50)).await;
            return Err(Lost::NotWritten);
        };
        let _ = stream.set_nodelay(true);
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|_| Lost::NotWritten)?;
        tokio::spawn(connection);
        self.connection = Some(sender);
        Ok(())
    }

    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> Option<Answer> {
        let response = self.connection.as_mut()?.send_request(request).await.ok()?;
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.ok()?.to_bytes();
        Some(Answer { status: head.status.as_u16(), body: serde_json::from_slice(&bytes).unwrap_or_default() })
    }
}
