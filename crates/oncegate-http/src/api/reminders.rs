//! `/api/reminders`: one reminder for each booking and kind, created before it is due.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use oncegate::WorkspaceName;
use oncegate::messages::Refused;
use oncegate::reminders::{DEFAULT_KIND, Edit, Filter, Kept, New, NotChanged, Set, State as ReminderState, Text};
use oncegate::store::Role;
use oncegate::worker::Channels as _;
use oncegate::{GuardName, Time};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::extract::{Json, One, Params, bad, one_of};
use super::messages::ResolveBody;
use super::page::{self, missing};
use super::{Answered, App, operator, shown, shown_with};
use crate::auth::Caller;
use crate::messages::body::{check_text, email, phone};
use crate::problem::{Kind, Problem};
use crate::reminders::{Event, ReminderView};
use oncegate_process::crash;
use oncegate_transports::channels::Channels;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "an object with `bookingId`, `sendAt`, `channel` and `message`"
)]
pub struct SetBody {
    booking_id: String,
    /// Which of a booking's reminders; `reminder`, if it is left out.
    kind: Option<String>,
    /// RFC 3339.
    send_at: String,
    /// A channel of `[messages.channel]`.
    channel: String,
    recipient_phone: Option<String>,
    recipient_email: Option<String>,
    message: String,
}

impl SetBody {
    fn check(self, workspace: &WorkspaceName, channels: &Channels) -> Result<New, Problem> {
        check_text("message", &self.message)?;
        let text = Text {
            channel: self.channel,
            phone: phone("recipientPhone", self.recipient_phone)?,
            email: email("recipientEmail", self.recipient_email)?,
            message: self.message,
        };
        check_reach(&text, workspace, channels).map_err(bad)?;
        Ok(New {
            booking: id("bookingId", self.booking_id)?,
            kind: id("kind", self.kind.unwrap_or_else(|| DEFAULT_KIND.into()))?,
            send_at: time(&self.send_at)?,
            text,
        })
    }
}

fn id(field: &str, text: String) -> Result<String, Problem> {
    Ok(oncegate::sends::checked(field, text)?)
}

fn time(text: &str) -> Result<Time, Problem> {
    Time::parse(text).ok_or_else(|| bad(format!("sendAt: {text:?} is not a time; one is \"2026-11-15T09:30:00Z\"")))
}

fn check_reach(text: &Text, workspace: &WorkspaceName, channels: &Channels) -> Result<(), String> {
    GuardName::new(&text.channel).map_err(|error| format!("channel: {error}"))?;
    if text.phone.is_none() && text.email.is_none() {
        return Err("the recipient is missing: give recipientPhone or recipientEmail".into());
    }
    match channels.channel(workspace, &text.channel).is_some_and(|channel| channel.needs_email()) {
        true if text.email.is_none() => Err(Refused::NoAddress(text.channel.clone()).to_string()),
        _ => Ok(()),
    }
}

impl From<NotChanged> for Problem {
    fn from(not_changed: NotChanged) -> Self {
        match not_changed {
            NotChanged::Missing => missing("reminder"),
            NotChanged::Wrong(why) => Kind::WrongStatus.because(why),
            NotChanged::TooLate(_) | NotChanged::Invalid(_) => bad(not_changed.to_string()),
            NotChanged::Store(error) => error.into(),
        }
    }
}

/// Set a reminder
///
/// One for each booking and kind: the same again gets the one that is there, however it stands.
#[utoipa::path(post, path = "/api/reminders", tag = "reminders", request_body = SetBody, responses(
    (status = 201, description = "A new one.", body = ReminderView),
    (status = 200, description = "The one that is there already, unchanged.", body = ReminderView)))]
pub async fn create(State(app): State<Arc<App>>, caller: Caller, Json(body): Json<SetBody>) -> Answered {
    let new = body.check(&caller.workspace, &app.reminders.channels)?;
    crash::point("reminder.received").await;
    let set = app.reminders.reminders.set(&caller.workspace, &new).await?;
    crash::point("reminder.committed").await;
    let (status, event, kept) = match set {
        Set::Made(kept) => (StatusCode::CREATED, Event::Set, kept),
        Set::Found(kept) => (StatusCode::OK, Event::Duplicate, kept),
        Set::TooLate => return Err(bad(format!("sendAt: {} is over, by more than the grace", new.send_at))),
    };
    event.tell(&caller.workspace, kept.id);
    shown_with(status, &ReminderView::from(&kept), caller.role)
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EditBody {
    send_at: Option<String>,
    channel: Option<String>,
    recipient_phone: Option<String>,
    recipient_email: Option<String>,
    message: Option<String>,
}

/// Move or reword a reminder
///
/// Until its flag is set. What is left out stays as it is. One that was cancelled is scheduled anew.
#[utoipa::path(put, path = "/api/reminders/{id}", tag = "reminders", params(("id" = String, Path)), request_body = EditBody, responses(
    (status = 200, description = "The reminder.", body = ReminderView), (status = 404, description = "None."),
    (status = 409, description = "`wrong-status`: it is too late.")))]
pub async fn edit(One { app, caller, id }: One, Json(body): Json<EditBody>) -> Answered {
    body.message.as_deref().map_or(Ok(()), |message| check_text("message", message))?;
    let edit = Edit {
        send_at: body.send_at.as_deref().map(time).transpose()?,
        channel: body.channel,
        phone: phone("recipientPhone", body.recipient_phone)?,
        email: email("recipientEmail", body.recipient_email)?,
        message: body.message,
    };
    let id = page::id(&id, "reminder")?;
    let check = |text: &Text| check_reach(text, &caller.workspace, &app.reminders.channels);
    let kept = app.reminders.reminders.edit(&caller.workspace, id, &edit, check).await?;
    Event::Moved.tell(&caller.workspace, id);
    shown(&ReminderView::from(&kept), caller.role)
}

/// Cancel a reminder
#[utoipa::path(delete, path = "/api/reminders/{id}", tag = "reminders", params(("id" = String, Path)), responses(
    (status = 200, description = "Cancelled; also if it was so already.", body = ReminderView), (status = 404, description = "None."),
    (status = 409, description = "`wrong-status`: it is too late.")))]
pub async fn cancel(One { app, caller, id }: One) -> Answered {
    let id = page::id(&id, "reminder")?;
    let kept = app.reminders.reminders.cancel(&caller.workspace, id).await?;
    Event::Cancelled.tell(&caller.workspace, id);
    shown(&ReminderView::from(&kept), caller.role)
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SendBody {
    /// Why, for the log.
    note: Option<String>,
}

/// Send a reminder that was missed
///
/// A person's decision: if it may have reached the recipient, look there first. It goes out under the same key as before.
#[utoipa::path(post, path = "/api/reminders/{id}/send", tag = "reminders", params(("id" = String, Path)), request_body = SendBody, responses(
    (status = 200, description = "It is being sent.", body = ReminderView), (status = 404, description = "None."),
    (status = 409, description = "`wrong-status`: it was not missed.")))]
pub async fn send(One { app, caller, id }: One, Json(body): Json<SendBody>) -> Answered {
    let by = operator(&caller, body.note.as_deref())?;
    let (reminders, id) = (app.reminders.clone(), page::id(&id, "reminder")?);
    answered(&reminders.send_by_hand(app.audit.clone(), caller.workspace, id, by, body.note).await?)
}

/// Settle a reminder that was missed, without sending it
///
/// `sent`: the carrier has it after all. `not_sent`: it is let be, and cancelled for good.
#[utoipa::path(post, path = "/api/reminders/{id}/resolve", tag = "reminders", params(("id" = String, Path)), request_body = ResolveBody, responses(
    (status = 200, description = "The reminder: sent, or cancelled.", body = ReminderView), (status = 404, description = "None."),
    (status = 409, description = "`wrong-status`: it was not missed.")))]
pub async fn resolve(One { app, caller, id }: One, Json(body): Json<ResolveBody>) -> Answered {
    let by = operator(&caller, body.note.as_deref())?;
    let (reminders, id) = (app.reminders.clone(), page::id(&id, "reminder")?);
    answered(&reminders.resolve_by_hand(app.audit.clone(), caller.workspace, id, body.is_sent(), by, body.note).await?)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
pub struct ListParams {
    booking_id: Option<String>,
    /// `scheduled`, `sending`, `sent`, `missed` or `cancelled`.
    state: Option<String>,
    /// 1 to 500; 50 unless given.
    limit: Option<usize>,
    /// `nextCursor` of the page before.
    cursor: Option<String>,
}

/// List reminders, newest first
#[utoipa::path(get, path = "/api/reminders", tag = "reminders", params(ListParams),
    responses((status = 200, description = "A page: `items` and `nextCursor`; there may be more as long as that is there, also if a page has few, or none.")))]
pub async fn list(State(app): State<Arc<App>>, caller: Caller, Params(params): Params<ListParams>) -> Answered {
    caller.require(Role::Operate)?;
    let filter = Filter {
        booking: params.booking_id.map(|booking| id("bookingId", booking)).transpose()?,
        state: one_of("state", params.state, ReminderState::ALL, ReminderState::as_str)?,
        limit: page::limit(params.limit)?,
        before: page::cursor(params.cursor)?,
    };
    let listed = app.reminders.reminders.list(&caller.workspace, &filter).await?;
    page::listed(listed.items.iter().map(ReminderView::from), listed.next)
}

/// Show a reminder, with its delivery log
#[utoipa::path(get, path = "/api/reminders/{id}", tag = "reminders", params(("id" = String, Path)), responses(
    (status = 200, description = "The reminder.", body = ReminderView), (status = 404, description = "None.")))]
pub async fn show(One { app, caller, id }: One) -> Answered {
    let found = app.reminders.reminders.find(&caller.workspace, page::id(&id, "reminder")?).await?;
    shown(&ReminderView::from(&found.ok_or_else(|| missing("reminder"))?), caller.role)
}

fn answered(kept: &Kept) -> Answered {
    Ok(axum::Json(ReminderView::from(kept)).into_response())
}
