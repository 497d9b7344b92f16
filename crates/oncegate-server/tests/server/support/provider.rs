//! A provider of messages that counts arrivals, and behaves as the text asks.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{HeaderMap, Request, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::serve_http;

/// A received request.
#[derive(Clone, Debug)]
pub struct Arrived {
    pub key: String,
    pub authorization: Option<String>,
    pub headers: HeaderMap,
    /// The body, unchanged.
    pub text: String,
    pub body: Value,
    /// How many requests of one entity were in progress at the same time.
    pub at_once: usize,
}

pub struct Provider {
    pub address: SocketAddr,
    arrived: Arc<Mutex<Vec<Arrived>>>,
    server: JoinHandle<()>,
}

impl Provider {
    pub async fn start() -> Provider {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let arrived: Arc<Mutex<Vec<Arrived>>> = Arc::default();
        let (seen, present) = (arrived.clone(), Present::default());
        let server = serve_http(listener, move |request| answer(seen.clone(), present.clone(), request));
        Provider { address, arrived, server }
    }

    pub fn url(&self) -> String {
        format!("http://{}/sms?from=test", self.address)
    }

    /// The requests with this text, whatever their answer was.
    pub fn arrivals(&self, text: &str) -> Vec<Arrived> {
        let arrived = self.arrived.lock().expect("no holder panics");
        let texts = |arrived: &&Arrived| arrived.body["message"] == text || arrived.body["text"] == text;
        arrived.iter().filter(texts).cloned().collect()
    }

    /// All requests.
    pub fn all(&self) -> Vec<Arrived> {
        self.arrived.lock().expect("no holder panics").clone()
    }

    /// How often the text takes effect at a provider that honours keys.
    pub fn effects(&self, text: &str) -> usize {
        let mut keys: Vec<_> = self.arrivals(text).into_iter().map(|arrived| arrived.key).collect();
        keys.sort();
        keys.dedup();
        keys.len()
    }
}

type Present = Arc<Mutex<BTreeMap<String, usize>>>;

/// A request in progress, for one entity.
struct Here(String, Present);

impl Here {
    fn enter(entity: String, present: Present) -> Here {
        *present.lock().expect("no holder panics").entry(entity.clone()).or_default() += 1;
        Here(entity, present)
    }

    fn at_once(&self) -> usize {
        self.1.lock().expect("no holder panics").get(&self.0).copied().unwrap_or(0)
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        if let Some(count) = self.1.lock().expect("no holder panics").get_mut(&self.0) {
            *count -= 1;
        }
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// A text may end in `#` and an instruction for the provider.
async fn answer(
    seen: Arc<Mutex<Vec<Arrived>>>,
    present: Present,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let (key, authorization) = (header("idempotency-key").unwrap_or_default(), header("authorization"));
    let headers = request.headers().clone();
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let whole = String::from_utf8_lossy(&body).into_owned();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let here = Here::enter(body["entityId"].to_string(), present);
    let text = body["message"].as_str().or(body["text"].as_str()).unwrap_or_default().to_owned();
    let body_location = body["location"].as_str().unwrap_or("/").to_owned();
    let tries = {
        let mut seen = seen.lock().expect("no holder panics");
        seen.push(Arrived { key: key.clone(), authorization, headers, text: whole, body, at_once: here.at_once() });
        seen.iter().filter(|arrived| arrived.key == key).count()
    };
    let status = |code: u16| {
        let mut response = Response::new(Full::new(Bytes::from(json!({"id": format!("p-{key}")}).to_string())));
        *response.status_mut() = code.try_into().expect("a status");
        response
    };
    let retry_after = |code: u16| {
        let mut response = status(code);
        response.headers_mut().insert("retry-after", "1".parse().expect("a value"));
        response
    };
    Ok(match text.rsplit_once('#').map_or("", |(_, what)| what) {
        // Accepted, and the connection closed before the answer.
        "cut" => panic!("cuts the connection"),
        "cut-once" if tries == 1 => panic!("cuts the connection"),
        "hang" => std::future::pending().await,
        "hang-once" if tries == 1 => std::future::pending().await,
        "moved" => {
            let mut response = status(302);
            let location = body_location.clone();
            response.headers_mut().insert("location", location.parse().expect("a value"));
            response
        }
        "short" => {
            tokio::time::sleep(Duration::from_millis(20)).await;
            status(200)
        }
        "busy" => {
            tokio::time::sleep(Duration::from_millis(500)).await;
            status(200)
        }
        "slow" => {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            status(200)
        }
        "429-once" if tries == 1 => status(429),
        "503-once" if tries == 1 => retry_after(503),
        what => match what.parse() {
            Ok(code) => status(code),
            Err(_) => status(200),
        },
    })
}
