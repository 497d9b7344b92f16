//! A send in the API's form.

use crate::json::time;
use oncegate::Time;
use oncegate::sends::{Attempt, Kept, Resolved};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SendView<'a> {
    id: Uuid,
    /// `sending`, `sent`, `failed` (surely unsent; the next worker may try), `lost` (it may have been sent; the next worker sends it again under the
    /// same key) or `unknown` (it may have been sent, and is not sent again until that is settled).
    state: &'static str,
    campaign_id: &'a str,
    recipient_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    template_id: Option<&'a str>,
    /// The same over every attempt.
    provider_key: Uuid,
    /// By which it was last begun: `resend`, `skip` or `hold`.
    lost: &'static str,
    /// How many workers have begun it.
    attempt: i32,
    /// The last of them.
    attempts: Vec<AttemptView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    esp_message_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sent_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resolved: Option<ResolvedView<'a>>,
    created_at: String,
    /// Until when it is kept, and not sent again.
    expires_at: String,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttemptView<'a> {
    attempt: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    job_id: Option<&'a str>,
    begun_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

#[derive(Serialize, ToSchema)]
pub struct ResolvedView<'a> {
    sent: bool,
    /// Left out, as is the note, of what keys with the role `send` are told.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'a str>,
    at: String,
}

impl<'a> SendView<'a> {
    pub fn of(kept: &'a Kept, now: Time) -> SendView<'a> {
        let send = &kept.document;
        let state = send.state_at(now);
        let is_at_work = state == oncegate::sends::State::Sending;
        SendView {
            id: kept.id,
            state: state.as_str(),
            campaign_id: &send.campaign,
            recipient_id: &send.recipient,
            template_id: send.template.as_deref(),
            provider_key: send.provider_key,
            lost: send.lost.as_str(),
            attempt: send.attempt,
            attempts: send.attempts.iter().map(AttemptView::from).collect(),
            lease_until: is_at_work.then(|| time(send.lease_until_us)),
            esp_message_id: send.esp_message_id.as_deref(),
            sent_at: send.sent_us.map(time),
            resolved: send.resolved.as_ref().map(ResolvedView::from),
            created_at: time(send.created_us),
            expires_at: time(send.expires_us),
        }
    }
}

impl<'a> From<&'a Attempt> for AttemptView<'a> {
    fn from(attempt: &'a Attempt) -> Self {
        AttemptView {
            attempt: attempt.number,
            job_id: attempt.job.as_deref(),
            begun_at: time(attempt.begun_us),
            ended_at: attempt.ended_us.map(time),
            error: attempt.error.as_deref(),
        }
    }
}

impl ResolvedView<'_> {
    /// The view for programs: the person and the note are for people only.
    pub fn without_names(self) -> Self {
        ResolvedView { by: None, note: None, ..self }
    }
}

impl<'a> From<&'a Resolved> for ResolvedView<'a> {
    fn from(resolved: &'a Resolved) -> Self {
        let Resolved { sent, by, note, at_us, .. } = resolved;
        ResolvedView { sent: *sent, by: Some(by), note: note.as_deref(), at: time(*at_us) }
    }
}
