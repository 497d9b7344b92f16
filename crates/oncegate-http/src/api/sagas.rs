//! `/api/sagas`: instances, their history, and dead letters.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use oncegate::document;
use oncegate::sagas::{LetterState, NotRetried};
use oncegate::store::Role;
use serde::Deserialize;
use utoipa::IntoParams;

use super::extract::{NamedTwice, One, Params, one_of};
use super::page::{self, missing};
use super::{Answered, App, operator};
use crate::auth::Caller;
use crate::problem::{Kind, Problem};
use crate::sagas::{DeadLetterView, HandledView, InstanceView};
use crate::task::to_the_end;

/// The most lines of an instance's history that are shown.
pub const HISTORY_MAX: usize = 200;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListParams {
    /// A saga's name.
    definition: Option<String>,
    state: Option<String>,
    /// 1 to 500; 50 unless given.
    limit: Option<usize>,
    /// `nextCursor` of the page before.
    cursor: Option<String>,
}

/// List instances, newest first
#[utoipa::path(get, path = "/api/sagas", tag = "sagas", params(ListParams),
    responses((status = 200, description = "A page: `items` and `nextCursor`; there may be more as long as that is there, also if a page has few, or none.")))]
pub async fn list(State(app): State<Arc<App>>, caller: Caller, Params(params): Params<ListParams>) -> Answered {
    caller.require(Role::Operate)?;
    let (limit, before) = (page::limit(params.limit)?, page::cursor(params.cursor)?);
    let (saga, state) = (params.definition.as_deref(), params.state.as_deref());
    let page = app.sagas.sagas.list(&caller.workspace, saga, state, limit, before).await?;
    page::listed(page.items.iter().map(InstanceView::of), page.next)
}

/// Show an instance, with its history
#[utoipa::path(get, path = "/api/sagas/{definition}/{correlationId}", tag = "sagas",
    params(("definition" = String, Path), ("correlationId" = String, Path)), responses(
    (status = 200, description = "The instance.", body = InstanceView), (status = 404, description = "None.")))]
pub async fn show(State(app): State<Arc<App>>, caller: Caller, named: NamedTwice) -> Answered {
    let NamedTwice(saga, correlation_id) = named;
    let found =
        app.sagas.sagas.find(&caller.workspace, &saga, &correlation_id).await?.ok_or_else(|| missing("saga"))?;
    let history = app.sagas.sagas.history(&caller.workspace, &found, HISTORY_MAX).await?;
    Ok(axum::Json(InstanceView::of(&found).with_history(history)).into_response())
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LetterParams {
    /// A saga's name.
    definition: Option<String>,
    /// `open`, `retried` or `discarded`; open ones, unless given.
    status: Option<String>,
    /// 1 to 500; 50 unless given.
    limit: Option<usize>,
    /// `nextCursor` of the page before.
    cursor: Option<String>,
}

/// List dead letters, newest first
#[utoipa::path(get, path = "/api/sagas/dead-letters", tag = "sagas", params(LetterParams),
    responses((status = 200, description = "A page: `items` and `nextCursor`; there may be more as long as that is there, also if a page has few, or none.")))]
pub async fn list_letters(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(params): Params<LetterParams>,
) -> Answered {
    caller.require(Role::Operate)?;
    let (limit, before) = (page::limit(params.limit)?, page::cursor(params.cursor)?);
    let standing = one_of("status", params.status, LetterState::ALL, LetterState::as_str)?.unwrap_or(LetterState::Open);
    let saga = params.definition.as_deref();
    let document::Page { items: letters, next } =
        app.sagas.sagas.dead_letters(&caller.workspace, saga, Some(standing), limit, before).await?;
    page::listed(letters.into_iter().map(DeadLetterView::from), next)
}

/// Show a dead letter, with its event
#[utoipa::path(get, path = "/api/sagas/dead-letters/{id}", tag = "sagas", params(("id" = String, Path)), responses(
    (status = 200, description = "The dead letter.", body = DeadLetterView), (status = 404, description = "None.")))]
pub async fn show_letter(One { app, caller, id }: One) -> Answered {
    caller.require(Role::Operate)?;
    let letter = app.sagas.sagas.dead_letter(&caller.workspace, page::id(&id, "dead letter")?).await?;
    Ok(axum::Json(DeadLetterView::from(letter.ok_or_else(|| missing("dead letter"))?)).into_response())
}

/// Apply a dead letter's event again
///
/// If it is applied, ignored or a duplicate now, it is a dead letter no more; else it stays one, with the reason of today.
#[utoipa::path(post, path = "/api/sagas/dead-letters/{id}/retry", tag = "sagas", params(("id" = String, Path)), responses(
    (status = 200, description = "What became of it.", body = HandledView), (status = 404, description = "None."),
    (status = 409, description = "`wrong-status`: it is settled already, or no event.")))]
pub async fn retry_letter(One { app, caller, id }: One) -> Answered {
    let (by, id) = (operator(&caller, None)?, page::id(&id, "dead letter")?);
    let retry = async move { Ok(app.sagas.retry(&app.audit, &caller.workspace, id, &by, None).await?) };
    Ok(axum::Json(HandledView::from(to_the_end(retry).await?)).into_response())
}

/// Discard a dead letter: its event will not be applied
#[utoipa::path(post, path = "/api/sagas/dead-letters/{id}/discard", tag = "sagas", params(("id" = String, Path)), responses(
    (status = 200, description = "The dead letter.", body = DeadLetterView), (status = 404, description = "None."),
    (status = 409, description = "`wrong-status`: it is settled already.")))]
pub async fn discard_letter(One { app, caller, id }: One) -> Answered {
    let (by, id) = (operator(&caller, None)?, page::id(&id, "dead letter")?);
    let discard = async move { Ok(app.sagas.discard(&app.audit, &caller.workspace, id, &by, None).await?) };
    Ok(axum::Json(DeadLetterView::from(to_the_end(discard).await?)).into_response())
}

impl From<NotRetried> for Problem {
    fn from(not: NotRetried) -> Self {
        match not {
            NotRetried::Missing => missing("dead letter"),
            NotRetried::Settled(_) | NotRetried::NoEvent => Kind::WrongStatus.because(not.to_string()),
            NotRetried::Store(error) => error.into(),
        }
    }
}
