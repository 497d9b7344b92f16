//! Is the process there, is its store, and what has it counted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::response::IntoResponse;
use oncegate::OnStoreError;
use oncegate::store::{Report, Role, Store, StoreError};
use serde_json::json;

use super::{Answered, App, Insight, credentials};
use crate::metrics_listener;
use crate::problem::Kind;

const READY_TIMEOUT: Duration = Duration::from_secs(3);

#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, description = "The process answers.")))]
pub async fn healthz() -> &'static str {
    "ok\n"
}

#[utoipa::path(get, path = "/readyz", tag = "health",
    responses((status = 200, description = "The store answers. A key of the role `operate` is told more."), (status = 503, description = "It does not.")))]
pub async fn readyz(State(app): State<Arc<App>>, Insight(sees): Insight) -> Answered {
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
    if !sees {
        return Ok(axum::Json(json!({"status": "ready"})).into_response());
    }
    let body = json!({"status": "ready", "store": ready.kind, "schemaVersion": ready.schema_version,
                      "storeTime": ready.now.to_string(), "warnings": ready.warnings});
    Ok(axum::Json(body).into_response())
}

async fn report(store: &dyn Store) -> Result<Report, StoreError> {
    let too_slow = |_| StoreError::Unavailable(format!("the store did not answer within {READY_TIMEOUT:?}"));
    tokio::time::timeout(READY_TIMEOUT, store.report()).await.map_err(too_slow)?
}

#[utoipa::path(get, path = "/metrics", tag = "health", responses(
    (status = 200, description = "Prometheus text.", content_type = "text/plain"),
    (status = 401, description = "Keys exist, and the request has none. `[metrics] listen` has a listener that needs none."),
    (status = 403, description = "The key's role is not `operate` or `admin`.")))]
pub async fn metrics(State(app): State<Arc<App>>, parts: Parts) -> Answered {
    // Not one of the workspace's requests: its rate does not stop a scraper.
    app.authenticate(credentials(&parts))?.require(Role::Operate)?;
    Ok(([(CONTENT_TYPE, metrics_listener::CONTENT)], app.metrics.render()).into_response())
}
