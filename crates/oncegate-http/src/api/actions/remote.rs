//! The API for remote workers: they wait for actions, and report the outcomes.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use oncegate::Token;
use oncegate::actions::{Applied, Done, Leased, check_name};
use oncegate::limits::{LEASE_MAX, SPAN_MIN, WAIT_MAX};
use oncegate::store::Role;
use oncegate_core::job::{Command, Failure, Reached};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::actions::{Event, LeaseRequest};
use crate::api::extract::{Json, One, bad, seconds};
use crate::api::page::{self, missing};
use crate::api::{Answered, App, Under};
use crate::auth::Caller;
use crate::problem::{Kind, Problem};
use crate::tenants::Limit;

const TYPES_MAX: usize = 100;
const LEASED_MAX: usize = 100;
const ERROR_CHARS_MAX: usize = 1000;
/// The longest delay that a worker may ask for before the next attempt.
const RETRY_IN_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object with `types`")]
pub struct LeaseBody {
    /// 1 to 100 of them.
    types: Vec<String>,
    /// 1 to 100; 1 unless given.
    max: Option<usize>,
    /// How long the worker may be silent before it counts as dead; `[actions] lease`, unless given.
    lease_seconds: Option<f64>,
    /// How long to wait for the first, up to 60; not at all, unless given.
    wait_seconds: Option<f64>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeasedView {
    id: Uuid,
    /// To be brought with every word about it.
    token: i64,
    action_type: String,
    #[schema(value_type = Object)]
    payload: Box<RawValue>,
    revision: i64,
    attempt: i32,
    /// The same on every try: pass it to the system that you call.
    effect_key: Uuid,
    lease_until: String,
}

impl From<&Leased> for LeasedView {
    fn from(leased: &Leased) -> Self {
        let Leased { job, action } = leased;
        LeasedView {
            id: job.id,
            token: job.token.0,
            action_type: action.action_type.clone(),
            payload: action.payload.clone(),
            revision: action.revision,
            attempt: job.tried,
            effect_key: leased.effect_key(),
            lease_until: job.lease_until.to_string(),
        }
    }
}

/// Lease due actions, or wait for some
#[utoipa::path(post, path = "/api/actions/lease", tag = "actions", request_body = LeaseBody, responses(
    (status = 200, description = "What was leased; empty, if the wait is over.", body = Vec<LeasedView>)))]
pub async fn lease(
    State(app): State<Arc<App>>,
    Under(exchange): Under,
    caller: Caller,
    Json(body): Json<LeaseBody>,
) -> Answered {
    caller.require(Role::Operate)?;
    if !(1..=TYPES_MAX).contains(&body.types.len()) {
        return Err(bad(format!("types: 1 to {TYPES_MAX} of them, not {}", body.types.len())));
    }
    for name in &body.types {
        check_name("types", name)?;
    }
    let max = body.max.unwrap_or(1);
    if !(1..=LEASED_MAX).contains(&max) {
        return Err(bad(format!("max: 1 to {LEASED_MAX}, not {max}")));
    }
    let request = LeaseRequest {
        workspace: caller.workspace,
        types: body.types,
        max,
        lease: seconds("leaseSeconds", body.lease_seconds, SPAN_MIN..=LEASE_MAX)?.unwrap_or(app.config.actions.lease),
        wait: seconds("waitSeconds", body.wait_seconds, Duration::ZERO..=WAIT_MAX)?.unwrap_or_default(),
    };
    let _waiter = (!request.wait.is_zero()).then(|| exchange.tenant(&app).take(Limit::Waiters, 1)).transpose()?;
    let (mut answer, answered) = oneshot::channel();
    let actions = app.actions.clone();
    // Runs on a task of its own: a worker that hangs up ends its wait, and nothing else.
    tokio::spawn(async move {
        let leased = actions.lease(&request, answer.closed()).await;
        // Actions that were leased for a worker that has left are given back.
        let _ = answer.send(leased);
    });
    let leased = tokio::select! {
        biased;
        // A worker that closes its side of the connection has most often died. If it still reads, it may ask again.
        () = exchange.client().left() => vec![],
        leased = answered => {
            let leased = leased.map_err(|_| Kind::Internal.because("the request ended in a panic"))??;
            // If there is no room for the answer, the actions are given back.
            exchange.hold_ready_answer(&app, leased.bytes())?;
            leased.take()
        }
    };
    Ok(axum::Json(leased.iter().map(LeasedView::from).collect::<Vec<_>>()).into_response())
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object with `token`")]
#[schema(as = RenewAction)]
pub struct RenewBody {
    token: i64,
    /// From now on; `[actions] lease`, unless given.
    lease_seconds: Option<f64>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object with `token`")]
pub struct CompleteBody {
    token: i64,
    /// Kept with the action, for people.
    #[schema(value_type = Option<Object>)]
    result: Option<Box<RawValue>>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object with `token`, `error` and `reached`")]
pub struct FailBody {
    token: i64,
    error: String,
    /// `no`: it surely did not happen; `maybe`.
    reached: String,
    retry_in_seconds: Option<f64>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WordView {
    id: Uuid,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_until: Option<String>,
    /// When it is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at: Option<String>,
}

/// Say that a worker is still at it
#[utoipa::path(post, path = "/api/actions/{id}/renew", tag = "actions", params(("id" = String, Path)),
    request_body = RenewBody, responses(
    (status = 200, description = "The lease is longer.", body = WordView), (status = 404, description = "None."),
    (status = 409, description = "`fenced`: the lease is another's, or over.")))]
pub async fn renew(one: One, Json(body): Json<RenewBody>) -> Answered {
    let lease = seconds("leaseSeconds", body.lease_seconds, SPAN_MIN..=LEASE_MAX)?;
    let lease = lease.unwrap_or(one.app.config.actions.lease);
    say(one, Command::Renew { token: Token(body.token), lease }).await
}

/// Say that an action is done
#[utoipa::path(post, path = "/api/actions/{id}/complete", tag = "actions", params(("id" = String, Path)),
    request_body = CompleteBody, responses(
    (status = 200, description = "Completed; also if it was so already, by this same lease.", body = WordView),
    (status = 404, description = "None."), (status = 409, description = "`fenced`: the lease is another's, or over.")))]
pub async fn complete(one: One, Json(body): Json<CompleteBody>) -> Answered {
    let command = Command::Complete { token: Token(body.token) };
    say(one, Done { command, result: body.result }).await
}

/// Say that a try has failed
#[utoipa::path(post, path = "/api/actions/{id}/fail", tag = "actions", params(("id" = String, Path)),
    request_body = FailBody, responses(
    (status = 200, description = "It is tried again (`failed`), or over (`dead`, `unknown`).", body = WordView),
    (status = 404, description = "None."), (status = 409, description = "`fenced`: the lease is another's, or over.")))]
pub async fn fail(one: One, Json(body): Json<FailBody>) -> Answered {
    let (reached, error) = (reached(&body.reached)?, error_text(&body.error));
    let retry_in = seconds("retryInSeconds", body.retry_in_seconds, Duration::ZERO..=RETRY_IN_MAX)?;
    let failure = Failure { error, reached, is_final: false, retry_in };
    say(one, Command::Fail { token: Token(body.token), failure }).await
}

/// Whether a worker's attempt had an effect.
pub fn reached(word: &str) -> Result<Reached, Problem> {
    match word {
        "no" => Ok(Reached::No),
        "maybe" => Ok(Reached::Maybe),
        other => Err(bad(format!("reached: \"no\" or \"maybe\", not {other:?}"))),
    }
}

/// The part of a worker's error that is kept.
pub fn error_text(error: &str) -> String {
    error.chars().take(ERROR_CHARS_MAX).collect::<String>().replace(char::is_control, " ")
}

/// Applies a worker's report on an action that it has leased.
async fn say(One { app, caller, id }: One, done: impl Into<Done>) -> Answered {
    caller.require(Role::Operate)?;
    let (id, done) = (page::id(&id, "action")?, done.into());
    let is_renewal = matches!(done.command, Command::Renew { .. });
    let result = done.result.filter(|_| app.actions.keeps_results);
    let (applied, action_type) = app.actions.actions.apply_to(&caller.workspace, id, Done { result, ..done }).await?;
    let told = |event: Event, id: Uuid| event.tell(&caller.workspace, id, &action_type);
    let view = match applied {
        Applied::Kept(job) if is_renewal => {
            let lease_until = Some(job.lease_until.to_string());
            WordView { id, status: "running", lease_until, run_at: None }
        }
        Applied::Kept(job) => {
            told(Event::Failed, id);
            WordView { id, status: "failed", lease_until: None, run_at: Some(job.due_at.to_string()) }
        }
        Applied::Ended(status, ended) => {
            told(Event::Ended(status), ended);
            WordView { id, status: status.as_str(), lease_until: None, run_at: None }
        }
        Applied::Already(status, _) => WordView { id, status: status.as_str(), lease_until: None, run_at: None },
        // A report that comes too late changes nothing.
        Applied::Refused(refusal) => {
            told(Event::LeaseLost, id);
            return Err(Kind::Fenced.because(refusal.to_string()));
        }
        Applied::Missing => return Err(missing("action")),
    };
    Ok(axum::Json(view).into_response())
}
