//! Whether the process and its store answer, and the metrics.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::response::IntoResponse;
use oncegate::OnStoreError;
use oncegate::store::{Report, Role, Store, StoreError};
use serde_json::json;

use super::{Answered, App, Insight, exchange};
use crate::app::credentials;
use crate::metrics_listener;
use crate::problem::{Kind, Problem};

const READY_TIMEOUT: Duration = Duration::from_secs(3);
/// How long requests without a key share one answer.
const READY_FOR: Duration = Duration::from_millis(100);

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
    if !sees {
        app.part::<Readiness>().latest(&app).await?;
        return Ok(axum::Json(json!({"status": "ready"})).into_response());
    }
    let ready = probe(&app).await.map_err(|error| Problem::from(error).with_its_cause())?;
    let body = json!({"status": "ready", "store": ready.kind, "schemaVersion": ready.schema_version,
                      "storeTime": ready.now.to_string(), "warnings": ready.warnings});
    Ok(axum::Json(body).into_response())
}

/// The reports of both stores.
async fn probe(app: &App) -> Result<Report, StoreError> {
    let mut ready = report(&*app.store).await?;
    if let Some(guards) = app.messages.messages.separate() {
        match report(&**guards.store()).await {
            Ok(of_guards) => ready.warnings.extend(of_guards.warnings),
            // With `store_error = "open"`, messages go on without the guard store.
            Err(error) if app.config.messages.options.store_error == OnStoreError::Open => {
                ready.warnings.push(format!("the guard store is away: {error}"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(ready)
}

/// The last probe of the stores. Requests without a key share its answer: each probe costs the store a little, and such
/// requests have no limit.
#[derive(Default)]
pub struct Readiness(tokio::sync::Mutex<Option<(Instant, Result<(), StoreError>)>>);

impl Readiness {
    async fn latest(&self, app: &App) -> Result<(), StoreError> {
        let mut last = self.0.lock().await;
        match &*last {
            Some((at, ready)) if at.elapsed() < READY_FOR => ready.clone(),
            _ => {
                let ready = probe(app).await.map(drop);
                *last = Some((Instant::now(), ready.clone()));
                ready
            }
        }
    }
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
    let caller = app.authenticate(credentials(&parts))?;
    caller.require(Role::Operate)?;
    // The workspace's rate does not limit a scraper.
    app.enter_unpaid(&caller.workspace, &exchange(&parts))?;
    Ok(([(CONTENT_TYPE, metrics_listener::CONTENT)], app.metrics.render()).into_response())
}
