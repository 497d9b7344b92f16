//! `[metrics] listen`: a listener that answers `GET /metrics` and nothing else, without a key.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{ALLOW, CONNECTION, CONTENT_TYPE};
use axum::http::{Method, Request, Response, StatusCode};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// The maximum concurrent connections: a few scrapers.
const CONNECTIONS_MAX: usize = 16;
/// How long a connection may last. Each has one request.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
pub const CONTENT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Binds the address, and answers in the background until the process ends. Returns the bound address.
pub async fn start(listen: SocketAddr, metrics: PrometheusHandle) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    tokio::spawn(accept(listener, metrics));
    Ok(address)
}

async fn accept(listener: TcpListener, metrics: PrometheusHandle) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let metrics = metrics.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let answered = answer(&request, &metrics);
                async move { Ok::<_, Infallible>(answered) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            // A scraper that hangs is cut off; it connects again.
            let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
            drop(place);
        });
    }
}

fn answer(request: &Request<Incoming>, metrics: &PrometheusHandle) -> Response<Full<Bytes>> {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let (status, text) = match request.uri().path() {
        "/metrics" if reads => (StatusCode::OK, metrics.render()),
        "/metrics" => (StatusCode::METHOD_NOT_ALLOWED, "GET /metrics\n".into()),
        _ => (StatusCode::NOT_FOUND, "there is /metrics\n".into()),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, CONTENT.parse().expect("a content type is a header's value"));
    headers.insert(CONNECTION, "close".parse().expect("a word is a header's value"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, "GET".parse().expect("a word is a header's value"));
    }
    response
}
