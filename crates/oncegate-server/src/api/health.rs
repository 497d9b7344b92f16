//! Is the process there, is its store, and what has it counted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use serde_json::json;

use super::{Answered, App, Nearby};
use crate::problem::Kind;

const READY_TIMEOUT: Duration = Duration::from_secs(3);

#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, description = "The process answers.")))]
pub async fn healthz() -> &'static str {
    "ok\n"
}

#[utoipa::path(get, path = "/readyz", tag = "health",
    responses((status = 200, description = "The store answers."), (status = 503, description = "It does not.")))]
pub async fn readyz(State(app): State<Arc<App>>, _: Nearby) -> Answered {
    if app.stopping.load(Ordering::SeqCst) {
        return Err(Kind::StoreUnavailable.because("the server is stopping").retry_after(1));
    }
    match tokio::time::timeout(READY_TIMEOUT, app.ledger.store().report()).await {
        Ok(report) => {
            let report = report?;
            let body = json!({"status": "ready", "store": report.kind, "schemaVersion": report.schema_version,
                              "storeTime": report.now.to_string(), "warnings": report.warnings});
            Ok(axum::Json(body).into_response())
        }
        Err(_) => Err(Kind::StoreUnavailable
            .because(format!("the store did not answer within {READY_TIMEOUT:?}"))
            .retry_after(1)),
    }
}

#[utoipa::path(get, path = "/metrics", tag = "health",
    responses((status = 200, description = "Prometheus text.", content_type = "text/plain")))]
pub async fn metrics(State(app): State<Arc<App>>, _: Nearby) -> impl IntoResponse {
    ([("content-type", "text/plain; version=0.0.4; charset=utf-8")], app.metrics.render())
}
