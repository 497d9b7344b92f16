//! `/api/events`: events that other systems report.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use oncegate::sagas::{Event, Notification};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::extract::{Params, RawEvents, bad};
use super::{Answered, App, Exchange, Under};
use crate::auth::Caller;
use crate::events::{EVENTS_MAX, EventBody, Media, Received, read, read_binary};
use crate::problem::Problem;
use crate::sagas::HandledView;

/// Apply an event, or up to 500 of them
///
/// Ours, or CloudEvents 1.0: structured, batched, or in binary mode. Those about one instance are applied in their order. Events that come again, and
/// those that change nothing any more, are no errors.
#[utoipa::path(post, path = "/api/events", tag = "sagas", request_body = EventBody, responses(
    (status = 200, description = "What became of it; for a list, a list.", body = HandledView)))]
pub async fn create(State(app): State<Arc<App>>, Under(exchange): Under, caller: Caller, raw: RawEvents) -> Answered {
    // Only plain JSON can be in binary mode: a structured CloudEvent may repeat its attributes in its headers.
    let binary = if raw.media == Media::Json { read_binary(&raw.headers, &raw.bytes) } else { None };
    let Received { events, is_list } = match binary {
        Some(event) => Received { events: vec![event?], is_list: false },
        None => read(raw.media, &raw.bytes)?,
    };
    let mut views = handle(&app, &exchange, &caller, events).await?;
    match (is_list, views.pop()) {
        (false, Some(view)) => Ok(axum::Json(view).into_response()),
        (_, last) => {
            views.extend(last);
            Ok(axum::Json(views).into_response())
        }
    }
}

async fn handle(
    app: &App,
    exchange: &Exchange,
    caller: &Caller,
    events: Vec<Event>,
) -> Result<Vec<HandledView>, Problem> {
    let tenant = exchange.tenant(app);
    tenant.owe(events.len().saturating_sub(1));
    let events: Vec<_> = events.into_iter().map(Arc::new).collect();
    let handled = app.sagas.handle(&caller.workspace, &events, tenant.lookups()).await?;
    Ok(handled.into_iter().filter_map(HandledView::of).collect())
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct S3Params {
    /// The saga that makes events of the notification.
    saga: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct S3View {
    /// One for each record that became an event.
    items: Vec<HandledView>,
    /// Records that the saga has no use for.
    skipped: usize,
}

/// Take a notification of S3, as AWS sends it
///
/// The saga's `[[s3]]` rules say which records become which events. An event's id is made of bucket, sequencer, version and key.
#[utoipa::path(post, path = "/api/events/s3", tag = "sagas", params(S3Params),
    request_body(content = Object, description = "`{\"Records\": […]}`"), responses(
    (status = 200, description = "What became of each record.", body = S3View)))]
pub async fn s3(
    State(app): State<Arc<App>>,
    Under(exchange): Under,
    caller: Caller,
    Params(params): Params<S3Params>,
    raw: RawEvents,
) -> Answered {
    let names = || {
        let sagas = app.sagas.sagas.definitions().iter().filter(|saga| saga.takes_s3());
        sagas.map(|saga| saga.name()).collect::<Vec<_>>().join(", ")
    };
    let name = params.saga.ok_or_else(|| bad(format!("saga: which one? There are: {}", names())))?;
    let definition = app.sagas.sagas.definition(&name).filter(|saga| saga.takes_s3());
    let definition =
        definition.ok_or_else(|| bad(format!("saga: {name:?} has no [[s3]] rules here. There are: {}", names())))?;
    let notification = Notification::read(&raw.bytes).map_err(|error| bad(error.to_string()))?;
    if notification.records.len() > EVENTS_MAX {
        return Err(bad(format!("Records: at most {EVENTS_MAX}; these are {}", notification.records.len())));
    }
    let records = notification.records.clone();
    let tenant = exchange.tenant(&app);
    tenant.owe(notification.records.len().saturating_sub(1));
    let (mut events, mut unfit) = (vec![], vec![]);
    let told = app.sagas.sagas.events_of(&caller.workspace, definition, notification).await?;
    for (record, event) in records.iter().zip(told) {
        match event {
            Ok(event) => events.extend(event),
            // A bad record is kept, and does not stop the others.
            Err(why) => {
                unfit.push((serde_json::to_string(record).expect("a record is JSON"), why));
            }
        }
    }
    let skipped = records.len() - events.len() - unfit.len();
    let mut handled = app.sagas.handle_in(&caller.workspace, definition, &events, tenant.lookups()).await?;
    for (raw, why) in unfit {
        handled.push(app.sagas.bury_raw(&caller.workspace, raw, why).await?);
    }
    let items = handled.into_iter().map(HandledView::from).collect();
    Ok(axum::Json(S3View { items, skipped }).into_response())
}
