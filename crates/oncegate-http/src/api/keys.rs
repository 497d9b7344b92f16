//! `/api/keys`: the keys of the caller's own workspace.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use oncegate::Time;
use oncegate::store::{ApiKey, Clock, Role, SystemClock};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::extract::{Json, One, Params, bad};
use super::page::{self, PageParams, wrong_cursor};
use super::{Answered, App, check_note};
use crate::audit::By;
use crate::auth::{Caller, LOCAL};
use crate::keys::{self, Made, NotChanged, Terms};
use crate::problem::{Kind, Problem};
use crate::task::to_the_end;

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Key)]
pub struct KeyView<'a> {
    id: &'a str,
    workspace: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    /// `send`, `operate` or `admin`.
    role: &'static str,
    /// `live`, `expired` or `revoked`.
    state: &'static str,
    created_at: String,
    /// The key, or the person at the command line, that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    created_by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// Written once a minute at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_used_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<String>,
}

impl<'a> KeyView<'a> {
    pub fn of(key: &'a ApiKey, now: Time) -> KeyView<'a> {
        let text = |at: Option<Time>| at.map(|at| at.to_string());
        KeyView {
            id: &key.id,
            workspace: key.workspace.as_str(),
            name: key.name.as_deref(),
            role: key.role.as_str(),
            state: keys::state(key, now),
            created_at: key.created_at.to_string(),
            created_by: key.created_by.as_deref(),
            expires_at: text(key.expires_at),
            last_used_at: text(key.last_used_at),
            revoked_at: text(key.revoked_at),
        }
    }
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = NewKey)]
pub struct NewKeyView<'a> {
    id: &'a str,
    workspace: &'a str,
    name: Option<&'a str>,
    role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// The key itself. It is shown once, and kept nowhere.
    key: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct KeysView<'a> {
    items: Vec<KeyView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<&'a str>,
}

/// List the workspace's keys, newest first, without their secrets
#[utoipa::path(get, path = "/api/keys", tag = "keys", params(PageParams),
    responses((status = 200, description = "A page: `items`, and `nextCursor` as long as there are more.")))]
pub async fn list(State(app): State<Arc<App>>, caller: Caller, Params(params): Params<PageParams>) -> Answered {
    caller.require(Role::Admin)?;
    let limit = page::limit(params.limit)?;
    let (keys, now) = (keys::list(&*app.store, &caller.workspace).await?, SystemClock.now());
    let from = match params.cursor {
        None => 0,
        Some(cursor) => {
            let last = keys.iter().position(|key| key.id == cursor);
            last.ok_or_else(wrong_cursor)? + 1
        }
    };
    let shown = &keys[from..keys.len().min(from + limit)];
    let next_cursor = shown.last().filter(|_| from + limit < keys.len()).map(|last| last.id.as_str());
    let items = shown.iter().map(|key| KeyView::of(key, now)).collect();
    Ok(axum::Json(KeysView { items, next_cursor }).into_response())
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schema(as = MakeKey)]
pub struct CreateBody {
    /// What people call it.
    name: String,
    /// `send`, `operate` or `admin`.
    role: String,
    /// A time, `2027-01-31T00:00:00Z`, or how long from now, `90d`. It never ends, if this is left out.
    expires_at: Option<String>,
}

/// Make a key of the workspace
///
/// The answer has the key itself, once. While the server is open, the first key is made here too: it is an admin key, and ends the open mode.
#[utoipa::path(post, path = "/api/keys", tag = "keys", request_body = CreateBody, responses(
    (status = 201, description = "The key.", body = NewKeyView)))]
pub async fn create(State(app): State<Arc<App>>, caller: Caller, Json(body): Json<CreateBody>) -> Answered {
    caller.require(Role::Admin)?;
    let bad_field = |field: &'static str| move |wrong: String| bad(format!("{field}: {wrong}"));
    let now = SystemClock.now();
    let terms = Terms {
        workspace: caller.workspace.clone(),
        role: keys::role(&body.role).map_err(bad_field("role"))?,
        name: Some(keys::name(&body.name).map_err(bad_field("name"))?),
        expires_at: body
            .expires_at
            .as_deref()
            .map(|end| keys::end(end, now))
            .transpose()
            .map_err(bad_field("expiresAt"))?,
    };
    let Made { key, secret } = make(app, caller, terms).await?;
    let view = NewKeyView {
        id: &key.id,
        workspace: key.workspace.as_str(),
        name: key.name.as_deref(),
        role: key.role.as_str(),
        expires_at: key.expires_at.map(|at| at.to_string()),
        key: &secret,
    };
    Ok((StatusCode::CREATED, axum::Json(view)).into_response())
}

/// Creates a key that this server accepts at once.
pub async fn make(app: Arc<App>, caller: Caller, terms: Terms) -> Result<Made, Problem> {
    let is_first = caller.name == LOCAL;
    if is_first && (terms.role != Role::Admin || terms.expires_at.is_some()) {
        return Err(bad("role: the first key is an admin key without an end; it makes the others"));
    }
    to_the_end(async move {
        if is_first {
            // While the server is open, a request may name a workspace that does not exist yet.
            app.store.create_workspace(&terms.workspace).await?;
        }
        let made = keys::create(&*app.store, &app.audit, &By::from(&caller), terms).await?;
        app.keys.made_one();
        app.refresh_keys().await;
        Ok(made)
    })
    .await
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RevokeParams {
    /// Why, for the audit log.
    note: Option<String>,
}

/// Revoke a key of the workspace
#[utoipa::path(delete, path = "/api/keys/{id}", tag = "keys", params(("id" = String, Path), RevokeParams), responses(
    (status = 200, description = "Revoked.", body = KeyView), (status = 404, description = "There is no live key with this id.")))]
pub async fn revoke(One { app, caller, id }: One, Params(params): Params<RevokeParams>) -> Answered {
    caller.require(Role::Admin)?;
    check_note(params.note.as_deref())?;
    let key = end(app, caller, id, params.note).await?;
    Ok(axum::Json(KeyView::of(&key, SystemClock.now())).into_response())
}

/// Revokes a key; this server refuses it at once.
pub async fn end(app: Arc<App>, caller: Caller, id: String, why: Option<String>) -> Result<ApiKey, Problem> {
    to_the_end(async move {
        let place = (&caller.workspace, id.as_str());
        let key = keys::revoke(&*app.store, &app.audit, &By::from(&caller), place, why.as_deref()).await?;
        app.refresh_keys().await;
        Ok(key)
    })
    .await
}

impl From<NotChanged> for Problem {
    fn from(not: NotChanged) -> Self {
        match not {
            NotChanged::NoWorkspace(_) | NotChanged::NoKey(_) => Kind::NotFound.because(not.to_string()),
            NotChanged::TooManyLive | NotChanged::TooMany => Kind::QuotaExceeded.because(not.to_string()),
            NotChanged::Store(error) => error.into(),
        }
    }
}
