//! `/api/messages`: a text to a person, sent once.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use oncegate::messages::{Asked, Message, Status};
use oncegate::store::Role;
use oncegate::{WRONG_KEY, idempotency_key};
use serde::Deserialize;
use serde::de::IgnoredAny;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::extract::{Json, One, Params, RawJson};
use super::page::{self, Wanted, missing};
use super::sends::WasSent;
use super::{Answered, App, operator, shown};
use crate::auth::{Caller, hex};
use crate::json;
use crate::messages::body::PostBody;
use crate::messages::reply::{MessageView, PostView, response};
use crate::problem::{Kind, Problem};
use oncegate_transports::trace;

const PATH: &str = "/api/messages";

/// Send a message
///
/// The same message to the same person within the window is sent once. A later post of it gets the first one back. With an
/// `Idempotency-Key`, the same request is answered the same for 24 hours.
#[utoipa::path(post, path = "/api/messages", tag = "messages", request_body = PostBody,
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible characters, quoted or bare.")), responses(
    (status = 200, description = "Sent to a lead that was known; or a duplicate, with `duplicateOnly`.", body = PostView),
    (status = 201, description = "Sent, to a new lead.", body = PostView),
    (status = 202, description = "Accepted; the send is not over yet.", body = PostView),
    (status = 404, description = "There is no such lead."),
    (status = 409, description = "`idempotency-key-in-flight` (with Retry-After)."),
    (status = 422, description = "`idempotency-key-reused`."),
    (status = 502, description = "The send failed, or may have happened: `status` tells.", body = PostView)))]
pub async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    RawJson(body): RawJson,
) -> Answered {
    let asked = match key(&headers)? {
        Some(key) => {
            // A body that is not JSON gets that answer, whatever its key was used for.
            json::parse::<IgnoredAny>(&body)?;
            Some(Asked::new(&caller.workspace, &["POST", PATH, key], hex(&Sha256::digest(&body))))
        }
        None => None,
    };
    let too_many = |_| Kind::StoreUnavailable.because("too many requests are under way").retry_after(1);
    let room = app.messages.room.clone().try_acquire_owned().map_err(too_many)?;
    let messages = app.messages.messages.clone();
    let post = match PostBody::read(&body) {
        Ok(post) => post,
        // A known key is answered first.
        Err(problem) => {
            let Some(asked) = &asked else { return Err(problem) };
            return messages.answer_of_key(asked).await?.map(response).ok_or(problem);
        }
    };
    let (answer, answered) = oneshot::channel();
    // Runs on a task of its own: a client that hangs up does not stop its request.
    // Boxed, because the future is large, and a task is moved a few times before it runs.
    tokio::spawn(trace::carried(Box::pin(async move {
        messages.post_to_end(caller.workspace, asked, post, answer).await;
        drop(room);
    })));
    let ended = |_| Kind::Internal.because("the request ended in a panic");
    Ok(response(answered.await.map_err(ended)??))
}

fn key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let wrong = |why: &'static str| Kind::InvalidRequest.because(why);
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(wrong(WRONG_KEY));
    }
    let value = value.to_str().map_err(|_| wrong(WRONG_KEY))?;
    idempotency_key(value).map(Some).map_err(wrong)
}

/// Show a message
#[utoipa::path(get, path = "/api/messages/{id}", tag = "messages", params(("id" = String, Path)), responses(
    (status = 200, description = "The message.", body = MessageView), (status = 404, description = "None.")))]
pub async fn show(One { app, caller, id }: One) -> Answered {
    let found = app.messages.messages.find::<Message>(&caller.workspace, page::id(&id, "message")?).await?;
    let message = found.ok_or_else(|| missing("message"))?;
    shown(&MessageView::from(&message), caller.role)
}

/// What a person found out at the carrier.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object with `as`: \"sent\" or \"not_sent\"")]
#[schema(as = ResolveDelivery)]
pub struct ResolveBody {
    r#as: WasSent,
    /// Why, for the log and for the next person who looks.
    pub note: Option<String>,
}

impl ResolveBody {
    pub fn is_sent(&self) -> bool {
        self.r#as.is_sent()
    }
}

/// Settle a message that may or may not have been sent
#[utoipa::path(post, path = "/api/messages/{id}/resolve", tag = "messages", params(("id" = String, Path)), request_body = ResolveBody, responses(
    (status = 200, description = "The message: sent, or failed; where `failed = \"release\"`, posting it again sends it.", body = MessageView), (status = 404, description = "None."),
    (status = 409, description = "`wrong-status`: it is not unknown.")))]
pub async fn resolve(One { app, caller, id }: One, Json(body): Json<ResolveBody>) -> Answered {
    let by = operator(&caller, body.note.as_deref())?;
    let (audit, id) = (app.audit.clone(), page::id(&id, "message")?);
    let message = app.messages.resolve_by_hand(audit, caller.workspace, id, body.is_sent(), by, body.note).await?;
    Ok(axum::Json(MessageView::from(&message)).into_response())
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
pub struct ListParams {
    lead_id: Option<String>,
    /// `queued`, `sending`, `sent`, `failed` or `unknown`.
    status: Option<String>,
    /// 1 to 500; 50 unless given.
    limit: Option<usize>,
    /// `nextCursor` of the page before.
    cursor: Option<String>,
}

/// List messages, newest first
#[utoipa::path(get, path = "/api/messages", tag = "messages", params(ListParams),
    responses((status = 200, description = "A page: `items` and `nextCursor`; there may be more as long as that is there, also if a page has few, or none.")))]
pub async fn list(State(app): State<Arc<App>>, caller: Caller, Params(params): Params<ListParams>) -> Answered {
    caller.require(Role::Operate)?;
    let status = |name: String| match Status::parse(&name) {
        Some(_) => Ok(name),
        None => {
            Err(Kind::InvalidRequest.because(format!("status: queued, sending, sent, failed or unknown, not {name:?}")))
        }
    };
    // A `leadId` that is not a UUID belongs to no lead, so the list is empty.
    let lead = params.lead_id.map(|id| id.parse().unwrap_or(Uuid::nil()));
    let wanted = Wanted {
        list: lead.map(Message::list_of),
        state: params.status.map(status).transpose()?,
        limit: params.limit,
        cursor: params.cursor,
    };
    let view = |message: &_| serde_json::value::to_raw_value(&MessageView::from(message));
    page::page::<Message, _>(&app, caller.workspace, wanted, view).await
}
