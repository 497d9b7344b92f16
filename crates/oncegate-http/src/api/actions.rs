//! `/api/actions`: actions that run later.

mod body;
pub mod remote;

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use oncegate::actions::{Filter, Outcome, Refused, ScheduleError, Scheduled, Status, check_name};
use oncegate::store::Role;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::extract::{Json, One, Params, one_of};
use super::page::{self, missing};
use super::{Answered, App, operator, shown};
use crate::actions::{ActionView, Verb};
use crate::audit::By;
use crate::auth::Caller;
use crate::problem::{Kind, Problem};
use oncegate_process::crash;

use body::ScheduleBody;
pub use remote::{complete, fail, lease, renew};

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduledView {
    id: Uuid,
    /// `created`; `updated`: the action that stands carries this payload now; `dropped`: it keeps the first one.
    outcome: &'static str,
    run_at: String,
    revision: i64,
}

impl From<Scheduled> for ScheduledView {
    fn from(scheduled: Scheduled) -> Self {
        let Scheduled { id, outcome, run_at, revision } = scheduled;
        ScheduledView { id, outcome: outcome.as_str(), run_at: run_at.to_string(), revision }
    }
}

impl From<ScheduleError> for Problem {
    fn from(error: ScheduleError) -> Self {
        match error {
            ScheduleError::Invalid(detail) => Kind::InvalidRequest.because(detail),
            ScheduleError::TooLarge(_) => Kind::PayloadTooLarge.because(error.to_string()),
            ScheduleError::TooMany { .. } => Kind::ScheduleLimit.because(format!("{error} (`limits.schedules`)")),
            ScheduleError::Store(error) => error.into(),
        }
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Missing => missing("action"),
            Refused::Status(..) => Kind::WrongStatus.because(refused.to_string()),
            Refused::Store(error) => error.into(),
        }
    }
}

/// Schedule an action
///
/// The same type and `payload.entityId` (and `payload.entityType`) within the window is one action, which carries the newest payload.
#[utoipa::path(post, path = "/api/actions", tag = "actions", request_body = ScheduleBody, responses(
    (status = 201, description = "A new action.", body = ScheduledView),
    (status = 200, description = "Coalesced into the waiting action.", body = ScheduledView)))]
pub async fn create(State(app): State<Arc<App>>, caller: Caller, Json(body): Json<ScheduleBody>) -> Answered {
    let schedule = body.check(&app.config.actions)?;
    crash::point("action.received").await;
    let scheduled = app.actions.schedule(&caller.workspace, schedule).await?;
    crash::point("action.committed").await;
    let status = if scheduled.outcome == Outcome::Created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, axum::Json(ScheduledView::from(scheduled))).into_response())
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
pub struct ListParams {
    /// `pending`, `running`, `failed`, `completed`, `dead`, `unknown` or `cancelled`.
    pub status: Option<String>,
    #[serde(rename = "type")]
    #[param(rename = "type")]
    pub action_type: Option<String>,
    pub entity_id: Option<String>,
    /// Ticks of this schedule that have run.
    pub schedule_id: Option<String>,
    /// 1 to 500; 50 unless given.
    pub limit: Option<usize>,
    /// `nextCursor` of the page before.
    pub cursor: Option<String>,
}

/// List actions, newest first
#[utoipa::path(get, path = "/api/actions", tag = "actions", params(ListParams),
    responses((status = 200, description = "A page: `items` and `nextCursor`; there may be more as long as that is there, also if a page has few, or none.")))]
pub async fn list(State(app): State<Arc<App>>, caller: Caller, Params(params): Params<ListParams>) -> Answered {
    caller.require(Role::Operate)?;
    let listed = app.actions.actions.list(&caller.workspace, &filter(params)?).await?;
    page::listed(listed.items.iter().map(ActionView::from), listed.next)
}

/// The filter of a list of actions.
pub fn filter(params: ListParams) -> Result<Filter, Problem> {
    let ListParams { status, action_type, entity_id, schedule_id, limit, cursor } = params;
    let status = one_of("status", status, Status::ALL, Status::as_str)?;
    for (field, name) in [("type", &action_type), ("entityId", &entity_id)] {
        name.as_ref().map_or(Ok(()), |name| check_name(field, name))?;
    }
    Ok(Filter {
        status,
        action_type,
        entity_id,
        // A `scheduleId` that is not a UUID belongs to no schedule, so the list is empty.
        schedule: schedule_id.map(|id| id.parse().unwrap_or(Uuid::nil())),
        limit: page::limit(limit)?,
        before: page::cursor(cursor)?,
    })
}

/// Show an action, with its revisions' times and its tries
#[utoipa::path(get, path = "/api/actions/{id}", tag = "actions", params(("id" = String, Path)), responses(
    (status = 200, description = "The action.", body = ActionView), (status = 404, description = "None.")))]
pub async fn show(One { app, caller, id }: One) -> Answered {
    let found = app.actions.actions.find(&caller.workspace, page::id(&id, "action")?).await?;
    shown(&ActionView::from(&found.ok_or_else(|| missing("action"))?), caller.role)
}

/// Cancel an action that has not started, or a schedule
#[utoipa::path(post, path = "/api/actions/{id}/cancel", tag = "actions", params(("id" = String, Path)), responses(
    (status = 200, description = "The action: cancelled, or unknown, if it had begun and its worker was lost.", body = ActionView), (status = 404, description = "None."),
    (status = 409, description = "`wrong-status`: it is running, or over.")))]
pub async fn cancel(one: One) -> Answered {
    // Any key of the workspace may cancel: it can also schedule.
    told(one, Verb::Cancel, None).await
}

/// An operation that needs the role `operate`.
async fn by_hand(one: One, verb: Verb, note: Option<String>) -> Answered {
    operator(&one.caller, note.as_deref())?;
    told(one, verb, note).await
}

async fn told(One { app, caller, id }: One, verb: Verb, note: Option<String>) -> Answered {
    let id = page::id(&id, "action")?;
    let (by, audit) = (By::from(&caller), app.audit.clone());
    let found = app.actions.clone().by_hand(audit, caller.workspace, id, verb, by, note).await?;
    Ok(axum::Json(ActionView::from(&found)).into_response())
}

/// Try an action again that is dead, unknown or cancelled, from its first try on
#[utoipa::path(post, path = "/api/actions/{id}/retry", tag = "actions", params(("id" = String, Path)), responses(
    (status = 200, description = "The action, pending.", body = ActionView), (status = 404, description = "None."),
    (status = 409, description = "`wrong-status`: it is under way, or has succeeded.")))]
pub async fn retry(one: One) -> Answered {
    by_hand(one, Verb::Retry, None).await
}

/// Run an action now that is to run later
#[utoipa::path(post, path = "/api/actions/{id}/run-now", tag = "actions", params(("id" = String, Path)), responses(
    (status = 200, description = "The action, due.", body = ActionView), (status = 404, description = "None."),
    (status = 409, description = "`wrong-status`: it is running, or over.")))]
pub async fn run_now(one: One) -> Answered {
    by_hand(one, Verb::RunNow, None).await
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object with `as`: \"done\" or \"not_done\"")]
#[schema(as = ResolveAction)]
pub struct ResolveBody {
    r#as: As,
    /// Why, for the log and for the next person who looks.
    note: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Done)]
enum As {
    /// It happened: it is completed.
    Done,
    /// It did not happen, and is not to: it is cancelled.
    NotDone,
}

/// Settle an action that is dead or unknown, without another try
#[utoipa::path(post, path = "/api/actions/{id}/resolve", tag = "actions", params(("id" = String, Path)), request_body = ResolveBody, responses(
    (status = 200, description = "The action: completed, or cancelled.", body = ActionView), (status = 404, description = "None."),
    (status = 409, description = "`wrong-status`: it is neither dead nor unknown.")))]
pub async fn resolve(one: One, Json(body): Json<ResolveBody>) -> Answered {
    let verb = match body.r#as {
        As::Done => Verb::Done,
        As::NotDone => Verb::LetBe,
    };
    by_hand(one, verb, body.note).await
}
