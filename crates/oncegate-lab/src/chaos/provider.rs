//! A provider that counts the calls, and reports at once a call that must not happen.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::dice::Dice;

/// The percentage of requests that are accepted and cut before the answer.
const CUT_PERCENT: usize = 2;
/// The percentage of requests that are answered late.
const SLOW_PERCENT: usize = 3;
const SLOW: Duration = Duration::from_millis(300);

/// One call of a server.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The Idempotency-Key.
    pub key: String,
    pub body: Value,
    pub at: Instant,
}

/// What a path promises about the effects of its calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Promise {
    /// The provider does not honour keys: one arrival for each effect.
    AtMostOnce,
    /// The provider honours keys: one key for each effect.
    OneKey,
    /// Each call is an effect of its own.
    None,
}

pub struct Provider {
    pub address: SocketAddr,
    /// Calls by path and effect.
    arrivals: Mutex<HashMap<(String, String), Vec<Arrival>>>,
    dice: Mutex<Dice>,
    violation: Box<dyn Fn(String) + Send + Sync>,
}

impl Provider {
    /// Calls `violation` when an effect happens twice.
    pub async fn start(
        seed: u64,
        violation: impl Fn(String) + Send + Sync + 'static,
    ) -> Result<Arc<Provider>, std::io::Error> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let provider = Arc::new(Provider {
            address: listener.local_addr()?,
            arrivals: Mutex::default(),
            dice: Mutex::new(Dice::of(seed, "provider", 0)),
            violation: Box::new(violation),
        });
        let serving = provider.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let provider = serving.clone();
                tokio::spawn(async move {
                    let service = service_fn(move |request| answer(provider.clone(), request));
                    // A connection that is cut on purpose ends in an error.
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Ok(provider)
    }

    pub fn arrivals(&self, path: &str, effect: &str) -> Vec<Arrival> {
        let arrivals = self.arrivals.lock().expect("no holder panics");
        arrivals.get(&(path.to_owned(), effect.to_owned())).cloned().unwrap_or_default()
    }

    pub fn count(&self) -> usize {
        self.arrivals.lock().expect("no holder panics").values().map(Vec::len).sum()
    }

    fn take(&self, path: &str, key: String, body: Value) {
        let (promise, effect) = effect(path, &body);
        let mut arrivals = self.arrivals.lock().expect("no holder panics");
        let of_effect = arrivals.entry((path.to_owned(), effect.clone())).or_default();
        of_effect.push(Arrival { key: key.clone(), body, at: Instant::now() });
        let is_wrong = match promise {
            Promise::AtMostOnce => of_effect.len() > 1,
            Promise::OneKey => of_effect.iter().any(|arrival| arrival.key != key),
            Promise::None => false,
        };
        if is_wrong {
            let what = match promise {
                Promise::OneKey => "an effect arrived under two keys",
                _ => "an effect arrived twice at a provider that does not honour keys",
            };
            let first = of_effect.first().map(|first| first.at);
            let lines = of_effect.iter().map(|arrival| {
                let later = first.map_or(Duration::ZERO, |first| arrival.at - first);
                format!("    {later:>12?} later, key {}: {}", arrival.key, arrival.body)
            });
            let lines: Vec<String> = lines.collect();
            (self.violation)(format!("{what}: {path} {effect}\n{}", lines.join("\n")));
        }
    }
}

/// What makes two calls the same effect.
fn effect(path: &str, body: &Value) -> (Promise, String) {
    let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    match path {
        "/plain" => (Promise::AtMostOnce, text("message")),
        "/keyed" => (Promise::OneKey, text("message")),
        "/once" => (Promise::AtMostOnce, text("text")),
        "/commands" => (Promise::OneKey, format!("{} {}", text("searchId"), text("fileId"))),
        _ => (Promise::None, text("entityId")),
    }
}

async fn answer(provider: Arc<Provider>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let key = request.headers().get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or_default().to_owned();
    let Ok(body) = request.into_body().collect().await else {
        // The body did not arrive completely, so the call counts as not arrived.
        return Ok(Response::new(Full::default()));
    };
    let body: Value = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
    provider.take(&path, key.clone(), body);
    let fate = provider.dice.lock().expect("no holder panics").below(100);
    if fate < CUT_PERCENT {
        // Ends the connection without an answer.
        std::panic::resume_unwind(Box::new("cut on purpose"));
    }
    if fate < CUT_PERCENT + SLOW_PERCENT {
        tokio::time::sleep(SLOW).await;
    }
    Ok(Response::new(Full::new(Bytes::from(json!({"id": format!("p-{key}")}).to_string()))))
}
