//! Is the process there, is its store, and what has it counted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use oncegate::OnStoreError;
use oncegate::store::{Report, Store, StoreError};
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
    let mut ready = report(&*app.store).await?;
    if let Some(guards) = &app.messages.apart {
        match report(&**guards.store()).await {
            Ok(of_guards) => ready.warnings.extend(of_guards.warnings),
            // What it guards goes on without it.
            Err(error) if app.config.messages.store_error == OnStoreError::Open => {
                ready.warnings.push(format!("the guard store is away: {error}"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    let body = json!({"status": "ready", "store": ready.kind, "schemaVersion": ready.schema_version,
                      "storeTime": ready.now.to_string(), "warnings": ready.warnings});
    Ok(axum::Json(body).into_response())
}

async fn report(store: &dyn Store) -> Result<Report, StoreError> {
    let too_slow = |_| StoreError::Unavailable(format!("the store did not answer within {READY_TIMEOUT:?}"));
    tokio::time::timeout(READY_TIMEOUT, store.report()).await.map_err(too_slow)?
}

#[utoipa::path(get, path = "/metrics", tag = "health",
    responses((status = 200, description = "Prometheus text.", content_type = "text/plain")))]
pub async fn metrics(State(app): State<Arc<App>>, _: Nearby) -> impl IntoResponse {
    ([("content-type", "text/plain; version=0.0.4; charset=utf-8")], app.metrics.render())
}
