//! `/api/audit`: what people did in the workspace, and why.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use oncegate::store::Role;
use serde::Serialize;
use utoipa::ToSchema;

use super::extract::Params;
use super::page::{self, PageParams, wrong_cursor};
use super::{Answered, App};
use crate::audit::{self, Line};
use crate::auth::Caller;
use crate::problem::Problem;

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AuditPage)]
pub struct AuditView {
    items: Vec<Line>,
    next_cursor: Option<String>,
}

impl From<audit::Page> for AuditView {
    fn from(page: audit::Page) -> Self {
        AuditView { items: page.lines, next_cursor: page.next.map(|seq| seq.to_string()) }
    }
}

/// List the audit log of the workspace, newest first
///
/// A line is written before its act. Lines are a chain: `prev` is the `hash` of the line before. `oncegate audit verify` checks it.
#[utoipa::path(get, path = "/api/audit", tag = "audit", params(PageParams),
    responses((status = 200, description = "A page.", body = AuditView)))]
pub async fn list(State(app): State<Arc<App>>, caller: Caller, Params(params): Params<PageParams>) -> Answered {
    caller.require(Role::Operate)?;
    let limit = page::limit(params.limit)?;
    let page = audit::list(&*app.store, &caller.workspace, limit, cursor(params.cursor.as_deref())?).await?;
    Ok(axum::Json(AuditView::from(page)).into_response())
}

/// The cursor of a page: the number of the line before which the page begins.
pub fn cursor(given: Option<&str>) -> Result<Option<u64>, Problem> {
    given.map(|cursor| cursor.parse().map_err(|_| wrong_cursor())).transpose()
}
