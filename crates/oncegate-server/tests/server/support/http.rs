//! An HTTP server in the process of the tests.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Answers the requests that come to this listener, until the task is aborted.
pub fn serve_http<Answered>(
    listener: TcpListener,
    answer: impl Fn(Request<Incoming>) -> Answered + Clone + Send + 'static,
) -> JoinHandle<()>
where
    Answered: Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send + 'static,
{
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service_fn(answer.clone());
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    })
}
