//! The HTTP API: one file per resource.

mod actions;
mod audit;
mod claims;
mod decisions;
mod docs;
mod events;
mod extract;
mod health;
mod keys;
mod leads;
mod messages;
mod page;
mod reminders;
mod sagas;
mod sends;

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use oncegate::store::Role;

pub use actions::{ListParams as ActionParams, filter as action_filter};
pub use audit::{AuditView, cursor as audit_cursor};
pub use claims::claim;
pub use claims::{
    ClaimView, PageView, by_hand, check_note, cursor as claim_cursor, cursor_of, guard as claim_guard, parse_cursor,
    state as claim_state,
};
pub use decisions::follower;
pub use docs::description;
pub use extract::RawForm;
pub use health::Readiness;
pub use keys::{KeyView, end as end_key, make as make_key};
pub use page::{Page, cursor as page_cursor, id as page_id, missing};
pub use sagas::HISTORY_MAX;
pub use sends::esp_id;

use crate::app::{App, CLAIMS_PATH, Exchange, Handle, Insight, Nearby, Reply, Under, count_answer, exchange};
use crate::audit::By;
use crate::auth::Caller;
use crate::problem::{Kind, Problem};
use crate::routes::{Needs, routes};

const NOTHING: Needs = Needs::Nothing;
const SEND: Needs = Needs::Key(Role::Send);
const OPERATE: Needs = Needs::Key(Role::Operate);
const ADMIN: Needs = Needs::Key(Role::Admin);

routes! {
    "/api/actions" => { get OPERATE => actions::list, post SEND => actions::create, }
    "/api/actions/lease" => { post OPERATE => actions::lease, }
    "/api/actions/{id}" => { get SEND => actions::show, }
    "/api/actions/{id}/cancel" => { post SEND => actions::cancel, }
    "/api/actions/{id}/complete" => { post OPERATE => actions::complete, }
    "/api/actions/{id}/fail" => { post OPERATE => actions::fail, }
    "/api/actions/{id}/renew" => { post OPERATE => actions::renew, }
    "/api/actions/{id}/retry" => { post OPERATE => actions::retry, }
    "/api/actions/{id}/run-now" => { post OPERATE => actions::run_now, }
    "/api/actions/{id}/resolve" => { post OPERATE => actions::resolve, }
    "/api/audit" => { get OPERATE => audit::list, }
    // A POST of a claim bypasses the router (see `answer`), but the path has to know that method.
    CLAIMS_PATH => { get OPERATE => claims::list, post SEND => claims::create, }
    "/api/claims/batch" => { post SEND => claims::batch::batch, }
    "/api/claims/find" => { post SEND => claims::find, }
    "/api/claims/{id}" => { get SEND => claims::show, delete OPERATE => claims::forget, }
    "/api/claims/{id}/renew" => { post SEND => claims::renew, }
    "/api/claims/{id}/settle" => { post SEND => claims::settle, }
    "/api/claims/{id}/fail" => { post SEND => claims::fail, }
    "/api/claims/{id}/release" => { post SEND => claims::release, }
    "/api/claims/{id}/resolve" => { post OPERATE => claims::resolve, }
    "/api/decisions" => { get SEND => decisions::follow, }
    "/api/events" => { post SEND => events::create, }
    "/api/events/s3" => { post SEND => events::s3, }
    "/api/keys" => { get ADMIN => keys::list, post ADMIN => keys::create, }
    "/api/keys/{id}" => { delete ADMIN => keys::revoke, }
    "/api/leads" => { get OPERATE => leads::list, post SEND => leads::create, }
    "/api/leads/{id}" => { get SEND => leads::show, }
    "/api/messages" => { get OPERATE => messages::list, post SEND => messages::create, }
    "/api/messages/{id}" => { get SEND => messages::show, }
    "/api/messages/{id}/resolve" => { post OPERATE => messages::resolve, }
    "/api/reminders" => { get OPERATE => reminders::list, post SEND => reminders::create, }
    "/api/reminders/{id}" => {
        get SEND => reminders::show, put SEND => reminders::edit, delete SEND => reminders::cancel,
    }
    "/api/reminders/{id}/send" => { post OPERATE => reminders::send, }
    "/api/reminders/{id}/resolve" => { post OPERATE => reminders::resolve, }
    "/api/sends" => { get OPERATE => sends::list, post SEND => sends::begin, }
    "/api/sends/{id}" => { get SEND => sends::show, }
    "/api/sends/{id}/failed" => { post SEND => sends::failed, }
    "/api/sends/{id}/renew" => { post SEND => sends::renew, }
    "/api/sends/{id}/resolve" => { post OPERATE => sends::resolve, }
    "/api/sends/{id}/sent" => { post SEND => sends::sent, }
    "/api/sagas" => { get OPERATE => sagas::list, }
    "/api/sagas/dead-letters" => { get OPERATE => sagas::list_letters, }
    "/api/sagas/dead-letters/{id}" => { get OPERATE => sagas::show_letter, }
    "/api/sagas/dead-letters/{id}/discard" => { post OPERATE => sagas::discard_letter, }
    "/api/sagas/dead-letters/{id}/retry" => { post OPERATE => sagas::retry_letter, }
    "/api/sagas/{definition}/{correlation_id}" => { get SEND => sagas::show, }
    "/api/threads/{id}" => { get SEND => leads::show_thread, }
    "/healthz" => { get NOTHING => health::healthz, }
    "/metrics" => { get OPERATE => health::metrics, }
    "/openapi.json" => { get NOTHING => docs::openapi, }
    // A key of the role `operate` gets more details.
    "/readyz" => { get NOTHING => health::readyz, }
}

/// The router of the API.
pub fn router() -> axum::Router<Arc<App>> {
    routed()
}

type Answered = Result<Response, Problem>;

/// The person who acts on a record, if the role and the note allow the act.
fn operator(caller: &Caller, note: Option<&str>) -> Result<By, Problem> {
    caller.require(Role::Operate)?;
    check_note(note)?;
    Ok(By::from(caller))
}

/// Answers with a document. The person who settled it, and the reason, are shown only to roles that may settle it too.
fn shown(view: &impl serde::Serialize, role: Role) -> Answered {
    shown_with(StatusCode::OK, view, role)
}

fn shown_with(status: StatusCode, view: &impl serde::Serialize, role: Role) -> Answered {
    if role >= Role::Operate {
        return Ok((status, axum::Json(view)).into_response());
    }
    let mut document = serde_json::to_value(view).map_err(|error| Kind::Internal.because(error.to_string()))?;
    if let Some(resolved) = document.get_mut("resolved").and_then(serde_json::Value::as_object_mut) {
        resolved.retain(|field, _| !["by", "note"].contains(&field.as_str()));
    }
    if let Some(fields) = document.as_object_mut() {
        fields.remove("sentBy");
    }
    Ok((status, axum::Json(document)).into_response())
}
