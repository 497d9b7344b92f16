//! A reminder in the API's form.

use oncegate::reminders::{Kept, Row};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::json::time;
use crate::sends::ResolvedView;

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReminderView<'a> {
    id: Uuid,
    booking_id: &'a str,
    kind: &'a str,
    /// `scheduled`, `sending`, `sent`, `missed` or `cancelled`.
    state: &'static str,
    /// Turns true before the carrier is called, and is never taken back.
    reminder_sent: bool,
    send_at: String,
    channel: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    recipient_phone: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recipient_email: Option<&'a str>,
    message: &'a str,
    /// The delivery log: the last calls of the carrier, and what became of them.
    deliveries: Vec<RowView<'a>>,
    /// Who had it sent by hand, after it was missed.
    #[serde(skip_serializing_if = "Option::is_none")]
    sent_by: Option<&'a str>,
    /// What a person said of it, since it was missed.
    #[serde(skip_serializing_if = "Option::is_none")]
    resolved: Option<ResolvedView<'a>>,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RowView<'a> {
    at: String,
    /// `sent` or `failed`.
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    /// Of one that failed. `no`: it surely reached no recipient; `maybe`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reached: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    provider_message_id: Option<&'a str>,
}

impl<'a> From<&'a Kept> for ReminderView<'a> {
    fn from(kept: &'a Kept) -> Self {
        let reminder = &kept.document;
        ReminderView {
            id: kept.id,
            booking_id: &reminder.booking,
            kind: &reminder.kind,
            state: reminder.state.as_str(),
            reminder_sent: reminder.reminder_sent(),
            send_at: time(reminder.send_at_us),
            channel: &reminder.text.channel,
            recipient_phone: reminder.text.phone.as_deref(),
            recipient_email: reminder.text.email.as_deref(),
            message: &reminder.text.message,
            deliveries: reminder.deliveries.iter().map(RowView::from).collect(),
            sent_by: reminder.sent_by.as_deref(),
            resolved: reminder.resolved.as_ref().map(ResolvedView::from),
            created_at: time(reminder.created_us),
            ended_at: reminder.ended_us.map(time),
        }
    }
}

impl<'a> From<&'a Row> for RowView<'a> {
    fn from(row: &'a Row) -> Self {
        let reached = if row.maybe { "maybe" } else { "no" };
        RowView {
            at: time(row.at_us),
            outcome: if row.error.is_some() { "failed" } else { "sent" },
            error: row.error.as_deref(),
            reached: row.error.as_ref().map(|_| reached),
            provider_message_id: row.provider_message_id.as_deref(),
        }
    }
}
