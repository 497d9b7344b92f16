//! Pages of records.

use axum::response::IntoResponse;
use oncegate::WorkspaceName;
use oncegate::document::{self, Document, Kept};
use oncegate::limits::{PAGE_DEFAULT, PAGE_MAX};
use oncegate::store::Listing;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;
use uuid::Uuid;

use super::extract::bad;
use super::{Answered, App};
use crate::problem::{Kind, Problem};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Page<V> {
    pub items: Vec<V>,
    pub next_cursor: Option<Uuid>,
}

/// The parameters of a list without a filter.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageParams {
    /// 1 to 500; 50 unless given.
    pub limit: Option<usize>,
    /// `nextCursor` of the page before.
    pub cursor: Option<String>,
}

/// Answers with a page.
pub fn listed<V: Serialize>(items: impl Iterator<Item = V>, next_cursor: Option<Uuid>) -> Answered {
    Ok(axum::Json(Page { items: items.collect(), next_cursor }).into_response())
}

/// Which records a page lists, and how many.
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
) -> Answered {
    let (limit, before) = (limit(wanted.limit)?, cursor(wanted.cursor)?);
    let listing = Listing { workspace, kind: D::KIND, list: wanted.list, state: wanted.state, limit, before };
    let document::Page { items, next } = document::list::<D>(&*app.store, listing).await?;
    let items = items.iter().map(view).collect::<Result<_, _>>();
    let items = items.map_err(|error| Kind::Internal.because(error.to_string()))?;
    Ok(axum::Json(Page { items, next_cursor: next }).into_response())
}

/// The number of items of a page.
pub fn limit(given: Option<usize>) -> Result<usize, Problem> {
    let limit = given.unwrap_or(PAGE_DEFAULT);
    match (1..=PAGE_MAX).contains(&limit) {
        true => Ok(limit),
        false => Err(bad(format!("limit: 1 to {PAGE_MAX}, not {limit}"))),
    }
}

/// The position at which the previous page ended.
pub fn cursor(given: Option<String>) -> Result<Option<Uuid>, Problem> {
    given.map(|cursor| cursor.parse().map_err(|_| wrong_cursor())).transpose()
}

pub fn wrong_cursor() -> Problem {
    bad("cursor: not one that a page before has given")
}

/// A string that is not a UUID gets the same answer as an id that does not exist.
pub fn id(given: &str, what: &str) -> Result<Uuid, Problem> {
    given.parse().map_err(|_| missing(what))
}

pub fn missing(what: &str) -> Problem {
    Kind::NotFound.because(format!("there is no such {what} in this workspace"))
}
