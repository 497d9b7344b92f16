//! The server's router, and the answer to each request.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::header::{ACCEPT, CONNECTION};
use axum::http::{HeaderMap, HeaderValue, Method, Request, header};
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use http_body_util::Either;
use hyper::body::Incoming;
use tower::ServiceExt;

use oncegate_dashboard as dashboard;
use oncegate_http::api;
use oncegate_http::app::{App, CLAIMS_PATH, Exchange, Handle, Reply, count_answer, only_reads};
use oncegate_http::connection::Asked;
use oncegate_http::problem::{Kind, NO_SNIFF, NO_STORE, Problem};
use oncegate_http::routes::Route;

/// Every route of the server.
pub fn routes() -> impl Iterator<Item = &'static Route> {
    api::ROUTES.iter().chain(dashboard::ROUTES)
}

pub fn router(app: Arc<App>) -> Router {
    api::router()
        .merge(dashboard::router())
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(app)
}

/// Answers a request.
///
/// Most requests are claims. They bypass the router, which allocates new futures and bodies for each request. The memory
/// that a connection reuses from its last request is still in the processor's cache.
pub fn answer(app: &Arc<Handle>, router: &Router, request: Request<Incoming>) -> impl Future<Output = Reply> + use<> {
    let request = Asked::of(request);
    if request.method() == Method::POST && request.uri().path() == CLAIMS_PATH && !app.is_spare {
        return api::claim(app.clone(), request).left_future();
    }
    Box::pin(answer_routed(app.clone(), router.clone(), request)).right_future()
}

async fn answer_routed(app: Arc<Handle>, router: Router, request: Request<Asked>) -> Reply {
    if app.is_spare && !matches!(request.uri().path(), "/healthz" | "/readyz") {
        drop(request);
        let problem = Kind::ServerBusy.because("all connections are taken").retry_after(1);
        let mut reply = app.reply(problem.answer(HeaderMap::new()));
        reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return reply;
    }
    let exchange = Arc::new(Exchange::new(app.connection.clone()));
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(exchange.clone());
    // Every other answer is personal or short-lived.
    let may_be_kept = dashboard::may_be_kept(request.uri().path());
    let only_reads = only_reads(request.method(), request.uri().path());
    let mut response = router.oneshot(request).await.unwrap_or_else(|never| match never {});
    if !may_be_kept {
        response.headers_mut().insert(header::CACHE_CONTROL, NO_STORE);
    }
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, NO_SNIFF);
    count_answer(&app, &exchange, only_reads, response.map(Either::Right))
}

/// A page for a browser, a problem for any other client.
async fn no_such_path(headers: HeaderMap) -> Response {
    let problem = Kind::NotFound.because("there is no such path");
    let is_browser = headers.get(ACCEPT).is_some_and(|accept| accept.as_bytes().starts_with(b"text/html"));
    if is_browser { dashboard::Failed::from(problem).into_response() } else { problem.into_response() }
}

async fn no_such_method() -> Problem {
    Kind::MethodNotAllowed.because("this path does not take that method")
}
