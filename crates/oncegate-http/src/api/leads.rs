//! `/api/leads` and `/api/threads`: the recipients of messages.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use oncegate::messages::{CrmIds, Kept, Lead, Thread};
use oncegate::store::Role;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::extract::{Json, One, Params};
use super::page::{self, PageParams, Wanted, missing};
use super::{Answered, App};
use crate::auth::Caller;
use crate::json::time;
use crate::messages::body::{CrmIdsView, LeadBody};

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeadView {
    #[serde(rename = "_id")]
    id: Uuid,
    workspace_id: String,
    phone: Option<String>,
    email: Option<String>,
    name: Option<String>,
    #[serde(flatten)]
    #[schema(value_type = CrmIdsView)]
    crm: CrmIds,
    created_at: String,
}

impl From<&Kept<Lead>> for LeadView {
    fn from(kept: &Kept<Lead>) -> Self {
        let Lead { phone, email, name, crm, created_us } = kept.document.clone();
        let workspace_id = kept.workspace.to_string();
        LeadView { id: kept.id, workspace_id, phone, email, name, crm, created_at: time(created_us) }
    }
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadView {
    #[serde(rename = "_id")]
    id: Uuid,
    workspace_id: String,
    lead_id: Uuid,
    recipient_phone: Option<String>,
    recipient_email: Option<String>,
    created_at: String,
}

impl From<&Kept<Thread>> for ThreadView {
    fn from(kept: &Kept<Thread>) -> Self {
        let Thread { lead, phone, email, created_us } = kept.document.clone();
        ThreadView {
            id: kept.id,
            workspace_id: kept.workspace.to_string(),
            lead_id: lead,
            recipient_phone: phone,
            recipient_email: email,
            created_at: time(created_us),
        }
    }
}

/// Make a lead, or get the one that there is
#[utoipa::path(post, path = "/api/leads", tag = "leads", request_body = LeadBody, responses(
    (status = 201, description = "A new lead.", body = LeadView),
    (status = 200, description = "The lead with this phone, or else with this email; with what is new of it.", body = LeadView)))]
pub async fn create(State(app): State<Arc<App>>, caller: Caller, Json(body): Json<LeadBody>) -> Answered {
    let contact = body.check()?;
    let (lead, is_new) = app.messages.messages.lead(&caller.workspace, &contact).await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, axum::Json(LeadView::from(&lead))).into_response())
}

/// Show a lead
#[utoipa::path(get, path = "/api/leads/{id}", tag = "leads", params(("id" = String, Path)), responses(
    (status = 200, description = "The lead.", body = LeadView), (status = 404, description = "None.")))]
pub async fn show(One { app, caller, id }: One) -> Answered {
    let found = app.messages.messages.find::<Lead>(&caller.workspace, page::id(&id, "lead")?).await?;
    let lead = found.ok_or_else(|| missing("lead"))?;
    Ok(axum::Json(LeadView::from(&lead)).into_response())
}

/// List leads, newest first
#[utoipa::path(get, path = "/api/leads", tag = "leads", params(PageParams),
    responses((status = 200, description = "A page: `items` and `nextCursor`; there may be more as long as that is there, also if a page has few, or none.")))]
pub async fn list(State(app): State<Arc<App>>, caller: Caller, Params(params): Params<PageParams>) -> Answered {
    caller.require(Role::Operate)?;
    let wanted = Wanted { list: None, state: None, limit: params.limit, cursor: params.cursor };
    page::page::<Lead, _>(&app, caller.workspace, wanted, |lead| Ok(LeadView::from(lead))).await
}

/// Show a thread
#[utoipa::path(get, path = "/api/threads/{id}", tag = "leads", params(("id" = String, Path)), responses(
    (status = 200, description = "The thread.", body = ThreadView), (status = 404, description = "None.")))]
pub async fn show_thread(One { app, caller, id }: One) -> Answered {
    let found = app.messages.messages.find::<Thread>(&caller.workspace, page::id(&id, "thread")?).await?;
    let thread = found.ok_or_else(|| missing("thread"))?;
    Ok(axum::Json(ThreadView::from(&thread)).into_response())
}
