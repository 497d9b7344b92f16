//! The answers to a POST, and how an answer is kept for replays.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use oncegate::messages::{self, Attachment, CrmIds, Kept, Lead, Message, Status};

use super::body::{AttachmentBody, CrmIdsView, StatusView};
use crate::json::time;
use crate::sends::ResolvedView;

const DUPLICATE: HeaderName = HeaderName::from_static("oncegate-duplicate");
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// An answer about a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    head: Head,
    body: Bytes,
}

/// The line of JSON that is kept before the body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    status: u16,
    duplicate: bool,
    message: Option<Uuid>,
}

/// A message as everybody sees it.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MessageView<'a> {
    #[serde(rename = "_id")]
    id: Uuid,
    workspace_id: &'a str,
    lead_id: Uuid,
    thread_id: Uuid,
    recipient_phone: Option<&'a str>,
    recipient_email: Option<&'a str>,
    message: &'a str,
    channel: &'a str,
    #[schema(value_type = Vec<AttachmentBody>)]
    attachments: &'a [Attachment],
    #[schema(value_type = Option<Object>)]
    metadata: Option<&'a RawValue>,
    #[schema(value_type = StatusView)]
    status: Status,
    error: Option<&'a str>,
    created_at: String,
    sent_at: Option<String>,
    provider_message_id: Option<&'a str>,
    /// What a person said of it, since it was unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    resolved: Option<ResolvedView<'a>>,
}

impl<'a> From<&'a Kept<Message>> for MessageView<'a> {
    fn from(kept: &'a Kept<Message>) -> Self {
        let message = &kept.document;
        MessageView {
            id: kept.id,
            workspace_id: kept.workspace.as_str(),
            lead_id: message.lead,
            thread_id: message.thread,
            recipient_phone: message.phone.as_deref(),
            recipient_email: message.email.as_deref(),
            message: &message.text,
            channel: &message.channel,
            attachments: &message.attachments,
            metadata: message.metadata.as_deref(),
            status: message.status,
            error: message.error.as_deref(),
            created_at: time(message.created_us),
            sent_at: message.sent_us.map(time),
            provider_message_id: message.provider_message_id.as_deref(),
            resolved: message.resolved.as_ref().map(ResolvedView::from),
        }
    }
}

impl MessageView<'_> {
    fn without_names(self) -> Self {
        MessageView { resolved: self.resolved.map(ResolvedView::without_names), ..self }
    }
}

/// What a POST is answered with.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PostView<'a> {
    success: bool,
    #[schema(value_type = Option<StatusView>)]
    status: Option<Status>,
    /// Why it failed, or cannot be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    /// It was not sent again.
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicate_only: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicate_message: Option<String>,
    /// The original's, where it is a duplicate.
    message: Option<MessageView<'a>>,
    lead_id: Option<Uuid>,
    #[serde(flatten)]
    #[schema(value_type = CrmIdsView)]
    crm: CrmIds,
}

impl messages::Reply for Reply {
    fn to_first(message: &Kept<Message>, lead: &Kept<Lead>) -> Reply {
        let status = match message.document.status {
            Status::Sent if message.document.lead_is_new => StatusCode::CREATED,
            Status::Sent => StatusCode::OK,
            Status::Queued | Status::Sending => StatusCode::ACCEPTED,
            Status::Failed | Status::Unknown => StatusCode::BAD_GATEWAY,
        };
        Reply::new(status, Some(message.id), false, &view(message, lead))
    }

    /// In the form of the first answer, unless a person has settled the message since.
    fn told_again(message: &Kept<Message>, lead: &Kept<Lead>, like: Option<&Reply>) -> Reply {
        let told = match like {
            Some(like) if like.head.duplicate => Reply::to_duplicate(message, lead, 0),
            _ => Reply::to_first(message, lead),
        };
        match like.filter(|_| message.document.resolved.is_none()) {
            Some(like) => Reply { head: like.head.clone(), body: told.body },
            None => told,
        }
    }

    fn to_duplicate(message: &Kept<Message>, lead: &Kept<Lead>, age_seconds: u64) -> Reply {
        let ago = if age_seconds == 1 { "1 second".to_owned() } else { format!("{age_seconds} seconds") };
        let sentence = format!("The same message was accepted {ago} ago; it was not sent again.");
        let view = PostView { duplicate_only: Some(true), duplicate_message: Some(sentence), ..view(message, lead) };
        Reply::new(StatusCode::OK, Some(message.id), true, &view)
    }

    fn to_pending_duplicate() -> Reply {
        let sentence = "The same message is being accepted by another request; it was not sent again.".to_owned();
        let view = PostView {
            success: true,
            status: None,
            error: None,
            duplicate_only: Some(true),
            duplicate_message: Some(sentence),
            message: None,
            lead_id: None,
            crm: CrmIds::default(),
        };
        Reply::new(StatusCode::OK, None, true, &view)
    }

    fn keep(&self, with_body: bool) -> Bytes {
        let mut kept = serde_json::to_vec(&self.head).expect("a head is JSON");
        kept.push(b'\n');
        if with_body {
            kept.extend_from_slice(&self.body);
        }
        kept.into()
    }

    /// The body is empty if it was left out.
    fn read(kept: &Bytes) -> Option<Reply> {
        let end = kept.iter().position(|byte| *byte == b'\n')?;
        Some(Reply { head: serde_json::from_slice(&kept[..end]).ok()?, body: kept.slice(end + 1..) })
    }

    fn to_be_told_from(&self) -> Option<Uuid> {
        self.head.message.filter(|_| self.body.is_empty())
    }
}

impl Reply {
    fn new(status: StatusCode, message: Option<Uuid>, duplicate: bool, view: &PostView<'_>) -> Reply {
        let body = serde_json::to_vec(view).expect("an answer is JSON").into();
        Reply { head: Head { status: status.as_u16(), duplicate, message }, body }
    }
}

/// The response to a post. A header marks a replay.
pub fn response(answered: messages::Answered<Reply>) -> Response {
    let mut response = answered.reply.into_response();
    if answered.is_replay {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

fn view<'a>(message: &'a Kept<Message>, lead: &Kept<Lead>) -> PostView<'a> {
    let status = message.document.status;
    let is_lost = matches!(status, Status::Failed | Status::Unknown);
    PostView {
        success: !is_lost,
        status: Some(status),
        error: message.document.error.as_deref().filter(|_| is_lost),
        duplicate_only: None,
        duplicate_message: None,
        message: Some(MessageView::from(message).without_names()),
        lead_id: Some(lead.id),
        crm: lead.document.crm.clone(),
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = StatusCode::from_u16(self.head.status).unwrap_or(StatusCode::OK);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.head.duplicate {
            headers.insert(DUPLICATE, HeaderValue::from_static("true"));
        }
        response
    }
}
