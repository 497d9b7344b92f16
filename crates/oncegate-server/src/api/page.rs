//! Pages of records.

use axum::response::{IntoResponse, Response};
use oncegate::WorkspaceName;
use oncegate::limits::{PAGE_DEFAULT, PAGE_MAX};
use oncegate::store::Listing;
use serde::Serialize;
use uuid::Uuid;

use super::App;
use crate::messages::document::{Document, Kept};
use crate::problem::{Kind, Problem};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Page<V> {
    items: Vec<V>,
    next_cursor: Option<Uuid>,
}

/// Which records, and how many of them.
pub struct Wanted {
    pub list: Option<String>,
    pub state: Option<String>,
    pub limit: Option<usize>,
    pub cursor: Option<String>,
}

/// A page of documents, newest first, each as `view` shows it.
pub async fn page<D: Document, V: Serialize>(
    app: &App,
    workspace: WorkspaceName,
    wanted: Wanted,
    view: impl for<'a> Fn(&'a Kept<D>) -> serde_json::Result<V>,
) -> Result<Response, Problem> {
    let limit = wanted.limit.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Kind::InvalidRequest.because(format!("limit: 1 to {PAGE_MAX}, not {limit}")));
    }
    let bad_cursor = |_| Kind::InvalidRequest.because("cursor: not one that a page before has given");
    let before = wanted.cursor.map(|cursor| cursor.parse().map_err(bad_cursor)).transpose()?;
    let listing = Listing { workspace, kind: D::KIND, list: wanted.list, state: wanted.state, limit, before };
    let listed = app.store.list(listing).await?;
    let kept = listed.records.into_iter().map(Kept::<D>::read).collect::<Result<Vec<_>, _>>()?;
    let items = kept.iter().map(view).collect::<serde_json::Result<Vec<_>>>();
    let items = items.map_err(|error| Kind::Internal.because(error.to_string()))?;
    Ok(axum::Json(Page { items, next_cursor: listed.next }).into_response())
}

/// What is no id is the id of nothing.
pub fn id(given: &str, what: &str) -> Result<Uuid, Problem> {
    given.parse().map_err(|_| missing(what))
}

pub fn missing(what: &str) -> Problem {
    Kind::NotFound.because(format!("there is no such {what} in this workspace"))
}
