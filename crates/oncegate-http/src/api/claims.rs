//! `/api/claims`: claims for callers of any language.

pub mod batch;
mod body;
mod view;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use http_body_util::Either;
use oncegate::store::{Clock, Cursor, Query, Reading, Role, SystemClock};
use oncegate::{Answer, ClaimId, ClaimKey, Command, GuardName, StoreError, Verdict};
use serde::Deserialize;
use utoipa::IntoParams;

use super::extract::{self, Arriving, Json, One, Params, WithOutcome};
use super::page::{self, wrong_cursor};
use super::{Answered, App, CLAIMS_PATH, Exchange, Handle, Reply, Under, count_answer, operator};
use crate::audit::{Act, By, Receipt};
use crate::auth::{Caller, Credentials};
use crate::decisions::timeline::What;
use crate::problem::Problem;
use crate::task::to_the_end;
use crate::tenants::{Limit, Tenant};
use oncegate_transports::trace;

use body::{ClaimBody, FindBody, OwnerBody, ResolveBody, ToClaim};
pub use body::{check_note, guard, state};
pub use view::{ClaimView, PageView, cursor_of, parse_cursor};

/// A connection reuses the memory of at most this many headers.
const HEADERS_KEPT_MAX: usize = 32;

/// Claim a key
///
/// The first caller wins; later ones get the first one's outcome, or are told that it is under way.
#[utoipa::path(post, path = "/api/claims", tag = "claims", request_body = ClaimBody, responses(
    (status = 201, description = "Won: perform the effect, then settle.", body = view::Won),
    (status = 200, description = "A duplicate: settled already.", body = view::Duplicate),
    (status = 409, description = "`in-flight` (with Retry-After) or `held`."),
    (status = 422, description = "`fingerprint-mismatch`."),
    (status = 503, description = "The store cannot be asked.")))]
pub async fn create(State(app): State<Arc<App>>, Under(exchange): Under, request: Request) -> Response {
    let handle = Handle::new(app, exchange.connection.clone());
    claim(Arc::new(handle), request).await.map(Body::new)
}

/// The same for requests that bypass the router.
pub async fn claim<B: Arriving>(app: Arc<Handle>, request: Request<B>) -> Reply {
    let exchange = Exchange::new(app.connection.clone());
    let (asked, headers) = {
        let (mut parts, body) = request.into_parts();
        let asked = read_claim(&app, &exchange, &parts, body).await;
        // The request is dropped here. The memory of its headers is reused for the answer, and then for the next request,
        // unless there were many.
        parts.headers.clear();
        (asked, Some(parts.headers).filter(|headers| headers.capacity() <= HEADERS_KEPT_MAX).unwrap_or_default())
    };
    let answered = match asked {
        Ok(asked) => decide(&app, &exchange, &asked).await,
        Err(problem) => Err(problem),
    };
    let answer = match answered {
        Ok(answered) => answered.answer(headers),
        Err(problem) => problem.answer(headers),
    };
    // Only an outcome that another caller recorded can make this answer large.
    count_answer(&app, &exchange, true, answer.map(Either::Left))
}

async fn read_claim(app: &App, exchange: &Exchange, parts: &Parts, body: impl Arriving) -> Result<ToClaim, Problem> {
    trace::routed(&parts.method, CLAIMS_PATH);
    let caller = app.caller(Credentials::new(parts, Some(exchange.peer())), exchange)?;
    exchange.tenant(app).check_quota()?;
    let body: ClaimBody = extract::json(&parts.headers, body, app, exchange, app.config.limits.body_bytes).await?;
    body.check(&caller.workspace, &app.config)
}

/// Claims the key, waits if asked to, and builds the answer.
async fn decide(app: &App, exchange: &Exchange, claim: &ToClaim) -> Result<view::Answered, Problem> {
    let claimed = if claim.wait.is_zero() {
        app.ledger.claim(&claim.key, claim.terms.clone(), claim.wait).await
    } else {
        let _waiter = exchange.tenant(app).take(Limit::Waiters, 1)?;
        let left = exchange.client().left();
        // Boxed, because few requests wait, and the others should not carry the size of this future.
        Box::pin(app.ledger.claim_unless_left(&claim.key, claim.terms.clone(), claim.wait, left)).await
    };
    answered(exchange.tenant(app), claim, claimed)
}

fn answered(
    tenant: &Tenant,
    claim: &ToClaim,
    claimed: Result<Reading<Answer>, StoreError>,
) -> Result<view::Answered, Problem> {
    if let Ok(Reading { value: Answer::Won(_), .. }) = &claimed {
        tenant.stores(1, 0);
    }
    match claimed {
        Ok(reading) => view::answered(&claim.key, reading),
        Err(error) => unguarded(claim, error),
    }
}

/// The store is unreachable, or did not say whether it wrote: the guard's policy decides whether the effect may go ahead.
fn unguarded(claim: &ToClaim, error: StoreError) -> Result<view::Answered, Problem> {
    let open = claim.on_store_error == oncegate::OnStoreError::Open;
    if !open || matches!(error, StoreError::Refused(_) | StoreError::Unreadable(_)) {
        return Err(error.into());
    }
    let ClaimKey { workspace, guard, id } = &claim.key;
    metrics::counter!("oncegate_duplicate_guard_errors_total").increment(1);
    tracing::error!(event = "claim.duplicate_guard_error", %workspace, %guard, claimId = %id, %error);
    Ok(view::Answered::Unguarded(view::Unguarded::of(&claim.key)))
}

/// Find a claim by the parts of its key
#[utoipa::path(post, path = "/api/claims/find", tag = "claims", request_body = FindBody, responses(
    (status = 200, description = "The claim.", body = ClaimView), (status = 404, description = "None.")))]
pub async fn find(State(app): State<Arc<App>>, caller: Caller, Json(body): Json<FindBody>) -> Answered {
    let key = body.key(&caller.workspace)?;
    read(&app, &key).await
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListParams {
    guard: Option<String>,
    /// `in_flight`, `done`, `failed` or `unknown`.
    state: Option<String>,
    /// 1 to 500; 50 unless given.
    limit: Option<usize>,
    /// `nextCursor` of the page before.
    cursor: Option<String>,
}

/// List claims, newest first
///
/// Where few of many fit, a page may have fewer than were asked for, or none: there may be more as long as there is a `nextCursor`.
#[utoipa::path(get, path = "/api/claims", tag = "claims", params(ListParams),
    responses((status = 200, description = "A page.", body = PageView)))]
pub async fn list(State(app): State<Arc<App>>, caller: Caller, Params(params): Params<ListParams>) -> Answered {
    caller.require(Role::Operate)?;
    let limit = page::limit(params.limit)?;
    let query = Query {
        workspace: caller.workspace,
        guard: params.guard.as_deref().map(body::guard).transpose()?,
        state: params.state.as_deref().map(body::state).transpose()?,
        limit,
        after: params.cursor.as_deref().map(cursor).transpose()?,
    };
    let page = app.ledger_of(query.guard.as_ref()).store().scan(query).await?;
    Ok(axum::Json(PageView::of(&page)).into_response())
}

pub fn cursor(given: &str) -> Result<Cursor, Problem> {
    parse_cursor(given).ok_or_else(wrong_cursor)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct GuardParam {
    guard: String,
}

/// Show a claim
#[utoipa::path(get, path = "/api/claims/{id}", tag = "claims", params(("id" = String, Path), GuardParam), responses(
    (status = 200, description = "The claim.", body = ClaimView), (status = 404, description = "None.")))]
pub async fn show(One { app, caller, id }: One, Params(params): Params<GuardParam>) -> Answered {
    let key = key(&caller, &id, body::guard(&params.guard)?)?;
    read(&app, &key).await
}

async fn read(app: &App, key: &ClaimKey) -> Answered {
    let Reading { value, now } = app.ledger_of(Some(&key.guard)).read(key).await?;
    let claim = value.ok_or_else(|| Problem::from(oncegate::Refusal::Missing))?;
    Ok(axum::Json(ClaimView::of(&claim, now)).into_response())
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ForgetParams {
    guard: String,
    /// Why, for the log.
    note: Option<String>,
}

/// Forget a claim
///
/// Deletes the lock: the next caller wins. An owner that is still at work is fenced.
#[utoipa::path(delete, path = "/api/claims/{id}", tag = "claims", params(("id" = String, Path), ForgetParams),
    responses((status = 200, description = "Gone."), (status = 404, description = "None.")))]
pub async fn forget(One { app, caller, id }: One, Params(params): Params<ForgetParams>) -> Answered {
    let by = operator(&caller, params.note.as_deref())?;
    let key = key(&caller, &id, body::guard(&params.guard)?)?;
    by_hand(app, key, Command::Forget, by, params.note).await
}

/// Resolve an unknown claim
#[utoipa::path(post, path = "/api/claims/{id}/resolve", tag = "claims", params(("id" = String, Path)),
    request_body = ResolveBody, responses((status = 200, description = "Settled.", body = ClaimView), (status = 409, description = "`not-unknown`."),
    (status = 404, description = "None.")))]
pub async fn resolve(One { app, caller, id }: One, Json(body): Json<ResolveBody>) -> Answered {
    let by = operator(&caller, body.note.as_deref())?;
    let key = key(&caller, &id, body.guard()?)?;
    let resolve = Command::Resolve { done: body.is_done(), outcome: None };
    by_hand(app, key, resolve, by, body.note).await
}

/// Forgets or resolves a claim on a person's request, with the person and the reason in the log.
pub async fn by_hand(app: Arc<App>, key: ClaimKey, command: Command, by: By, why: Option<String>) -> Answered {
    let (event, what) = match command {
        Command::Forget => ("audit.forget", What::Forgotten),
        _ => ("audit.resolve", What::Resolved),
    };
    to_the_end(async move {
        let ClaimKey { workspace, guard, id } = &key;
        let act = Act::new(event, workspace, ("claim", id), &by, why.as_deref()).about("guard", guard);
        let act = match &command {
            Command::Resolve { done, .. } => act.about("as", if *done { "done" } else { "not_done" }),
            _ => act,
        };
        let (response, Receipt { seq, hash }) = app.audit.act(act, apply(&app, &key, command)).await?;
        let by = &by.id;
        app.timelines.done_by(&key, what, SystemClock.now(), by, why.as_deref()).await;
        // Logged as a warning, so that no usual log level hides it.
        tracing::warn!(event, %workspace, %guard, claimId = %id, by, why, auditSeq = seq, auditHash = hash);
        Ok(response)
    })
    .await
}

/// Renew a lease
#[utoipa::path(post, path = "/api/claims/{id}/renew", tag = "claims", params(("id" = String, Path)), request_body = OwnerBody,
    responses((status = 200, description = "Renewed.", body = ClaimView), (status = 409, description = "`fenced`."), (status = 404, description = "None.")))]
pub async fn renew(One { app, caller, id }: One, Json(body): Json<OwnerBody>) -> Answered {
    body.refuse_outcome("renew")?;
    let key = key(&caller, &id, body.guard()?)?;
    apply(&app, &key, Command::Renew { token: body.token(), lease: body.lease()? }).await
}

/// Settle a claim as done
///
/// The outcome is what every later caller reads. The same settle again is a success.
#[utoipa::path(post, path = "/api/claims/{id}/settle", tag = "claims", params(("id" = String, Path)), request_body = OwnerBody,
    responses((status = 200, description = "Settled.", body = ClaimView), (status = 409, description = "`fenced`."), (status = 404, description = "None.")))]
pub async fn settle(one: One, WithOutcome(body): WithOutcome<OwnerBody>) -> Answered {
    settle_as(one, Verdict::Done, body).await
}

/// Settle a claim as failed
#[utoipa::path(post, path = "/api/claims/{id}/fail", tag = "claims", params(("id" = String, Path)), request_body = OwnerBody,
    responses((status = 200, description = "Settled.", body = ClaimView), (status = 409, description = "`fenced`."), (status = 404, description = "None.")))]
pub async fn fail(one: One, WithOutcome(body): WithOutcome<OwnerBody>) -> Answered {
    settle_as(one, Verdict::Failed, body).await
}

async fn settle_as(One { app, caller, id }: One, verdict: Verdict, body: OwnerBody) -> Answered {
    body.refuse_lease(if verdict == Verdict::Done { "settle" } else { "fail" })?;
    let key = key(&caller, &id, body.guard()?)?;
    let outcome = body.outcome(app.config.privacy.store_outcome_body)?;
    apply(&app, &key, Command::Settle { token: body.token(), verdict, outcome }).await
}

/// Release a claim
///
/// Nothing happened: the next caller may try.
#[utoipa::path(post, path = "/api/claims/{id}/release", tag = "claims", params(("id" = String, Path)), request_body = OwnerBody,
    responses((status = 200, description = "Released."), (status = 409, description = "`fenced`."), (status = 404, description = "None.")))]
pub async fn release(One { app, caller, id }: One, Json(body): Json<OwnerBody>) -> Answered {
    body.refuse_outcome("release")?;
    body.refuse_lease("release")?;
    let key = key(&caller, &id, body.guard()?)?;
    apply(&app, &key, Command::Release { token: body.token() }).await
}

async fn apply(app: &App, key: &ClaimKey, command: Command) -> Answered {
    let ends = matches!(command, Command::Release { .. } | Command::Forget);
    let Reading { value, now } = app.ledger_of(Some(&key.guard)).apply(key, command).await?;
    match value {
        Answer::Applied(_) if ends => Ok(axum::Json(view::Gone::of(key)).into_response()),
        Answer::Applied(claim) | Answer::Already(claim) => Ok(axum::Json(ClaimView::of(&claim, now)).into_response()),
        Answer::Refused(refusal) => Err(refusal.into()),
        other => unreachable!("not an answer to a verb: {other:?}"),
    }
}

/// An invalid id gets the same answer as an id that does not exist.
fn key(caller: &Caller, id: &str, guard: GuardName) -> Result<ClaimKey, Problem> {
    let id = ClaimId::parse(id).ok_or_else(|| Problem::from(oncegate::Refusal::Missing))?;
    Ok(ClaimKey { workspace: caller.workspace.clone(), guard, id })
}
