//! `/api/sends`: workers in any language ask before they send, and report afterwards.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use oncegate::limits::{LEASE_MAX, SPAN_MIN};
use oncegate::sends::{Begin, Begun, Filter, InvalidBegin, Kept, NotTaken, Proceed, Sent, State as SendState, checked};
use oncegate::store::Reading;
use oncegate::store::Role;
use oncegate::{Time, Token};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::actions::remote::{error_text, reached};
use super::extract::{Json, One, Params, bad, one_of, seconds};
use super::page::{self, missing};
use super::{Answered, App, operator, shown};
use crate::auth::Caller;
use crate::problem::{Kind, Problem};
use crate::sends::SendView;
use crate::task::to_the_end;
use oncegate_process::crash;
use oncegate_transports::channels::http::MESSAGE_ID_CHARS_MAX;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object with `campaignId` and `recipientId`")]
pub struct BeginBody {
    campaign_id: String,
    recipient_id: String,
    /// The job of your queue, for people to find it.
    job_id: Option<String>,
    template_id: Option<String>,
    /// How long this worker may be silent before it counts as dead; `[sends] lease`, unless given.
    lease_seconds: Option<f64>,
}

impl BeginBody {
    fn check(self) -> Result<Begin, Problem> {
        let mut begin = Begin::new(self.campaign_id, self.recipient_id)?;
        if let Some(job) = self.job_id {
            begin = begin.job(job)?;
        }
        if let Some(template) = self.template_id {
            begin = begin.template(template)?;
        }
        match lease(self.lease_seconds)? {
            Some(lease) => Ok(begin.lease(lease)?),
            None => Ok(begin),
        }
    }
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProceedView {
    /// `proceed`.
    send: &'static str,
    id: Uuid,
    /// To be brought with every word about this attempt.
    token: i64,
    /// To be handed to the provider: the same over every attempt.
    provider_key: Uuid,
    /// More than 1: an earlier worker may have sent it.
    attempt: i32,
    lease_until: String,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SkipView {
    /// `skip`.
    send: &'static str,
    /// `sent` or `unknown`.
    state: &'static str,
    id: Uuid,
    #[serde(skip_serializing_if = "Option::is_none")]
    esp_message_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sent_at: Option<String>,
}

impl From<InvalidBegin> for Problem {
    fn from(invalid: InvalidBegin) -> Self {
        Kind::InvalidRequest.because(invalid.to_string())
    }
}

impl From<NotTaken> for Problem {
    fn from(not_taken: NotTaken) -> Self {
        match not_taken {
            NotTaken::Missing => missing("send"),
            NotTaken::Fenced(refusal) => Kind::Fenced.because(refusal.to_string()),
            NotTaken::Wrong(why) => Kind::WrongStatus.because(why),
            NotTaken::Store(error) => error.into(),
        }
    }
}

fn lease(given: Option<f64>) -> Result<Option<std::time::Duration>, Problem> {
    seconds("leaseSeconds", given, SPAN_MIN..=LEASE_MAX)
}

/// Checks a provider's id of a send: its length, and that it can be shown to people.
pub fn esp_id(given: Option<String>) -> Result<Option<String>, String> {
    match given.as_ref().is_some_and(|id| id.chars().count() > MESSAGE_ID_CHARS_MAX || id.contains(char::is_control)) {
        true => Err(format!("at most {MESSAGE_ID_CHARS_MAX} characters, none of them a control character")),
        false => Ok(given),
    }
}

fn checked_esp_id(given: Option<String>) -> Result<Option<String>, Problem> {
    esp_id(given).map_err(|wrong| bad(format!("espMessageId: {wrong}")))
}

/// Ask whether to send
///
/// One send for each campaign and recipient. The worker that is told to proceed sends, with the provider key, and reports the result.
#[utoipa::path(post, path = "/api/sends", tag = "sends", request_body = BeginBody, responses(
    (status = 201, description = "Proceed: send it, then say so.", body = ProceedView),
    (status = 200, description = "Skip: it was sent, or may have been. Acknowledge the job.", body = SkipView),
    (status = 409, description = "`send-busy`, with Retry-After: another worker is at it. Put the job back.")))]
pub async fn begin(State(app): State<Arc<App>>, caller: Caller, Json(body): Json<BeginBody>) -> Answered {
    let begin = body.check()?;
    crash::point("send.received").await;
    let begun = app.sends.begin(&caller.workspace, &begin).await?;
    crash::point("send.committed").await;
    let (status, skip) = match begun {
        Begun::Proceed(Proceed { id, token, provider_key, attempt, lease_until }) => {
            let lease_until = lease_until.to_string();
            let view = ProceedView { send: "proceed", id, token: token.0, provider_key, attempt, lease_until };
            return Ok((StatusCode::CREATED, axum::Json(view)).into_response());
        }
        Begun::Sent(Sent { id, esp_message_id, sent_us }) => {
            let sent_at = Some(Time::from_micros(sent_us).to_string());
            (StatusCode::OK, SkipView { send: "skip", state: "sent", id, esp_message_id, sent_at })
        }
        Begun::Unknown { id } => {
            let view = SkipView { send: "skip", state: "unknown", id, esp_message_id: None, sent_at: None };
            (StatusCode::OK, view)
        }
        Begun::Busy { lease_left } => {
            let problem = Kind::SendBusy.because("another worker is at this send, and its lease has not ended");
            return Err(problem.with("send", "busy").retry_after(lease_left.as_secs() + 1));
        }
    };
    Ok((status, axum::Json(skip)).into_response())
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object with `token`")]
pub struct SentBody {
    token: i64,
    /// What the provider calls it.
    esp_message_id: Option<String>,
}

/// Say that it was sent
///
/// The same word again is a success. So is one after the lease, as long as no other worker has begun.
#[utoipa::path(post, path = "/api/sends/{id}/sent", tag = "sends", params(("id" = String, Path)), request_body = SentBody, responses(
    (status = 200, description = "Sent.", body = SendView), (status = 404, description = "None."),
    (status = 409, description = "`fenced`: another worker has begun it, or it was settled otherwise.")))]
pub async fn sent(One { app, caller, id }: One, Json(body): Json<SentBody>) -> Answered {
    let (esp_message_id, id) = (checked_esp_id(body.esp_message_id)?, page::id(&id, "send")?);
    let (workspace, token) = (&caller.workspace, Token(body.token));
    told(&app, &caller, id, app.sends.sends.sent(workspace, id, token, esp_message_id).await)
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object with `token`, `error` and `reached`")]
pub struct FailedBody {
    token: i64,
    error: String,
    /// `no`: the provider surely did not take it; `maybe`.
    reached: String,
}

/// Report that it was not sent, or that it may have been sent
#[utoipa::path(post, path = "/api/sends/{id}/failed", tag = "sends", params(("id" = String, Path)), request_body = FailedBody, responses(
    (status = 200, description = "`failed`: the next worker may try; else by `lost`.", body = SendView), (status = 404, description = "None."),
    (status = 409, description = "`fenced`: another worker has begun it, or it was settled otherwise.")))]
pub async fn failed(One { app, caller, id }: One, Json(body): Json<FailedBody>) -> Answered {
    let (reached, error) = (reached(&body.reached)?, error_text(&body.error));
    let id = page::id(&id, "send")?;
    let (workspace, token) = (&caller.workspace, Token(body.token));
    told(&app, &caller, id, app.sends.sends.failed(workspace, id, token, error, reached).await)
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object with `token`")]
#[schema(as = RenewSend)]
pub struct RenewBody {
    token: i64,
    /// From now on; as it was begun with, unless given.
    lease_seconds: Option<f64>,
}

/// Say that a worker is still at it
#[utoipa::path(post, path = "/api/sends/{id}/renew", tag = "sends", params(("id" = String, Path)), request_body = RenewBody, responses(
    (status = 200, description = "The lease is longer.", body = SendView), (status = 404, description = "None."),
    (status = 409, description = "`fenced`: the lease is another's, or over.")))]
pub async fn renew(One { app, caller, id }: One, Json(body): Json<RenewBody>) -> Answered {
    let lease = lease(body.lease_seconds)?;
    let (id, token) = (page::id(&id, "send")?, Token(body.token));
    told(&app, &caller, id, app.sends.sends.renew(&caller.workspace, id, token, lease).await)
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object with `as`: \"sent\" or \"not_sent\"")]
#[schema(as = ResolveSend)]
pub struct ResolveBody {
    r#as: WasSent,
    /// With `sent`: what the provider calls it.
    esp_message_id: Option<String>,
    /// Why, for the log and for the next person who looks.
    note: Option<String>,
}

/// What a person found out at the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WasSent {
    Sent,
    NotSent,
}

impl WasSent {
    pub fn is_sent(self) -> bool {
        self == WasSent::Sent
    }
}

/// Settle a send that may or may not have been sent
#[utoipa::path(post, path = "/api/sends/{id}/resolve", tag = "sends", params(("id" = String, Path)), request_body = ResolveBody, responses(
    (status = 200, description = "Settled.", body = SendView), (status = 404, description = "None."),
    (status = 409, description = "`wrong-status`: it is neither unknown nor lost.")))]
pub async fn resolve(One { app, caller, id }: One, Json(body): Json<ResolveBody>) -> Answered {
    let by = operator(&caller, body.note.as_deref())?;
    let sent = body.r#as.is_sent();
    if !sent && body.esp_message_id.is_some() {
        return Err(bad("espMessageId: what was not sent has none"));
    }
    let esp_message_id = checked_esp_id(body.esp_message_id)?;
    let (id, workspace) = (page::id(&id, "send")?, caller.workspace);
    let resolve = async move { Ok(app.sends.resolve(&workspace, id, sent, esp_message_id, by, body.note).await?) };
    written(&to_the_end(resolve).await?, caller.role)
}

/// The answer to a worker's report.
fn told(app: &App, caller: &Caller, id: Uuid, told: Result<Kept, NotTaken>) -> Answered {
    written(&app.sends.told(&caller.workspace, id, told)?, caller.role)
}

/// The send as it was just written.
fn written(kept: &Kept, role: Role) -> Answered {
    shown(&SendView::of(kept, Time::LONG_AGO), role)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
pub struct ListParams {
    campaign_id: Option<String>,
    /// `sending`, `sent`, `failed`, `lost` or `unknown`.
    state: Option<String>,
    /// 1 to 500; 50 unless given.
    limit: Option<usize>,
    /// `nextCursor` of the page before.
    cursor: Option<String>,
}

/// List sends, newest first
#[utoipa::path(get, path = "/api/sends", tag = "sends", params(ListParams),
    responses((status = 200, description = "A page: `items` and `nextCursor`; there may be more as long as that is there, also if a page has few, or none.")))]
pub async fn list(State(app): State<Arc<App>>, caller: Caller, Params(params): Params<ListParams>) -> Answered {
    caller.require(Role::Operate)?;
    let filter = Filter {
        campaign: params.campaign_id.map(|id| checked("campaignId", id)).transpose()?,
        state: one_of("state", params.state, SendState::ALL, SendState::as_str)?,
        limit: page::limit(params.limit)?,
        before: page::cursor(params.cursor)?,
    };
    let Reading { value: listed, now } = app.sends.sends.list(&caller.workspace, &filter).await?;
    page::listed(listed.items.iter().map(|kept| SendView::of(kept, now)), listed.next)
}

/// Show a send, with its attempts
#[utoipa::path(get, path = "/api/sends/{id}", tag = "sends", params(("id" = String, Path)), responses(
    (status = 200, description = "The send.", body = SendView), (status = 404, description = "None.")))]
pub async fn show(One { app, caller, id }: One) -> Answered {
    let found = app.sends.sends.find(&caller.workspace, page::id(&id, "send")?).await?;
    let (kept, now) = found.ok_or_else(|| missing("send"))?;
    shown(&SendView::of(&kept, now), caller.role)
}
