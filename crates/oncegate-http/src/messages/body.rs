//! The bodies of posts and of leads, and their checks.

use oncegate::GuardName;
use oncegate::limits::KEY_PART_BYTES_MAX;
use oncegate::messages::{Attachment, Contact, CrmIds, Post, Refused};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use url::Url;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::json;
use crate::problem::{Kind, Problem};

pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
pub const ATTACHMENTS_MAX: usize = 10;
pub const METADATA_BYTES_MAX: usize = 16 * 1024;
const URL_BYTES_MAX: usize = 2048;
const CONTACT_BYTES_MAX: usize = 254;
const NAME_BYTES_MAX: usize = 255;
const NONCE_BYTES_MAX: usize = 255;

const _: () = assert!(MESSAGE_BYTES_MAX <= KEY_PART_BYTES_MAX);

#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object with `message` and a recipient")]
pub struct PostBody {
    /// The text: 1 byte to 64 KiB.
    message: String,
    recipient_phone: Option<String>,
    recipient_email: Option<String>,
    lead_id: Option<String>,
    recipient_name: Option<String>,
    attachments: Option<Vec<AttachmentBody>>,
    /// `sms` if there is a phone, else `email`, unless said otherwise.
    channel: Option<String>,
    /// An object of up to 16 KiB, kept and passed on.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Box<RawValue>>,
    ghl_contact_id: Option<String>,
    ghl_location_id: Option<String>,
    hs_contact_id: Option<String>,
    hs_portal_id: Option<String>,
    /// Any text: with it the message is another one, and is sent although it is the same.
    allow_duplicate: Option<String>,
}

/// A lead as `POST /api/leads` takes it.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object with `phone` or `email`")]
pub struct LeadBody {
    phone: Option<String>,
    email: Option<String>,
    name: Option<String>,
    ghl_contact_id: Option<String>,
    ghl_location_id: Option<String>,
    hs_contact_id: Option<String>,
    hs_portal_id: Option<String>,
}

/// A file to attach.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = Attachment)]
pub struct AttachmentBody {
    /// http or https.
    url: String,
    filename: Option<String>,
    content_type: Option<String>,
}

/// What other systems call a lead.
#[derive(ToSchema)]
#[schema(as = CrmIds, rename_all = "camelCase")]
#[expect(dead_code, reason = "it describes `CrmIds` in the OpenAPI document")]
pub struct CrmIdsView {
    ghl_contact_id: Option<String>,
    ghl_location_id: Option<String>,
    hs_contact_id: Option<String>,
    hs_portal_id: Option<String>,
}

#[derive(ToSchema)]
#[schema(as = Status, rename_all = "lowercase")]
pub enum StatusView {
    /// In the queue.
    Queued,
    /// A worker has it.
    Sending,
    Sent,
    /// It surely did not leave us.
    Failed,
    /// It may have left us. It is not sent again.
    Unknown,
}

fn bad(what: impl Into<String>) -> Problem {
    Kind::InvalidRequest.because(what.into())
}

impl PostBody {
    pub fn read(body: &[u8]) -> Result<Post, Problem> {
        let body: PostBody = json::parse(body)?;
        check_text("message", &body.message)?;
        let lead = body.lead_id.as_deref().map(lead_id).transpose()?;
        let contact = Contact {
            lead,
            phone: phone("recipientPhone", body.recipient_phone)?,
            email: email("recipientEmail", body.recipient_email)?,
            name: text("recipientName", body.recipient_name, NAME_BYTES_MAX)?,
            crm: crm(body.ghl_contact_id, body.ghl_location_id, body.hs_contact_id, body.hs_portal_id)?,
        };
        if contact.lead.is_none() && contact.phone.is_none() && contact.email.is_none() {
            return Err(bad("the recipient is missing: give recipientPhone, recipientEmail or leadId"));
        }
        if let Some(channel) = &body.channel {
            GuardName::new(channel).map_err(|error| bad(format!("channel: {error}")))?;
        }
        Ok(Post {
            contact,
            text: body.message,
            attachments: attachments(body.attachments.unwrap_or_default())?,
            channel: body.channel,
            metadata: body.metadata.as_deref().map(metadata).transpose()?,
            nonce: text("allowDuplicate", body.allow_duplicate, NONCE_BYTES_MAX)?,
        })
    }
}

impl LeadBody {
    pub fn check(self) -> Result<Contact, Problem> {
        let contact = Contact {
            lead: None,
            phone: contact("phone", self.phone, |_| true)?,
            email: contact("email", self.email, is_email)?,
            name: text("name", self.name, NAME_BYTES_MAX)?,
            crm: crm(self.ghl_contact_id, self.ghl_location_id, self.hs_contact_id, self.hs_portal_id)?,
        };
        match contact.phone.is_none() && contact.email.is_none() {
            true => Err(bad("the lead has no address: give phone or email")),
            false => Ok(contact),
        }
    }
}

/// A string that is not a UUID gets the same answer as the id of a missing lead.
fn lead_id(id: &str) -> Result<Uuid, Problem> {
    id.parse().map_err(|_| Refused::NoLead(id.to_owned()).into())
}

/// Checks a text that is sent to a person.
pub fn check_text(field: &str, text: &str) -> Result<(), Problem> {
    match text.len() {
        0 => Err(bad(format!("{field}: it is empty; 1 byte to 64 KiB of text"))),
        1..=MESSAGE_BYTES_MAX => Ok(()),
        found => Err(bad(format!("{field}: at most {MESSAGE_BYTES_MAX} bytes; this one has {found}"))),
    }
}

pub fn phone(field: &str, value: Option<String>) -> Result<Option<String>, Problem> {
    contact(field, value, |_| true)
}

pub fn email(field: &str, value: Option<String>) -> Result<Option<String>, Problem> {
    contact(field, value, is_email)
}

fn contact(field: &str, value: Option<String>, is_one: fn(&str) -> bool) -> Result<Option<String>, Problem> {
    let Some(value) = text(field, value, CONTACT_BYTES_MAX)? else { return Ok(None) };
    let is_plain = !value.contains(|c: char| c.is_control()) && value.trim() == value;
    match is_plain && is_one(&value) {
        true => Ok(Some(value)),
        false => Err(bad(format!("{field}: not one that can be reached"))),
    }
}

fn is_email(text: &str) -> bool {
    let parts = text.rsplit_once('@').map(|(user, host)| !user.is_empty() && !host.is_empty());
    parts == Some(true) && !text.contains(char::is_whitespace)
}

fn text(field: &str, value: Option<String>, max: usize) -> Result<Option<String>, Problem> {
    match value.as_ref().map(String::len) {
        Some(0) => Err(bad(format!("{field}: it is empty; leave it out, or write 1 to {max} bytes"))),
        Some(found) if found > max => Err(bad(format!("{field}: at most {max} bytes; this one has {found}"))),
        _ => Ok(value),
    }
}

fn crm(
    ghl_contact_id: Option<String>,
    ghl_location_id: Option<String>,
    hs_contact_id: Option<String>,
    hs_portal_id: Option<String>,
) -> Result<CrmIds, Problem> {
    Ok(CrmIds {
        ghl_contact_id: text("ghlContactId", ghl_contact_id, NAME_BYTES_MAX)?,
        ghl_location_id: text("ghlLocationId", ghl_location_id, NAME_BYTES_MAX)?,
        hs_contact_id: text("hsContactId", hs_contact_id, NAME_BYTES_MAX)?,
        hs_portal_id: text("hsPortalId", hs_portal_id, NAME_BYTES_MAX)?,
    })
}

fn attachments(attachments: Vec<AttachmentBody>) -> Result<Vec<Attachment>, Problem> {
    if attachments.len() > ATTACHMENTS_MAX {
        return Err(bad(format!("attachments: at most {ATTACHMENTS_MAX}; there are {}", attachments.len())));
    }
    for (place, file) in attachments.iter().enumerate() {
        let url = Url::parse(&file.url).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        if url.is_none() || file.url.len() > URL_BYTES_MAX {
            let what = format!("attachments[{place}].url: an http or https URL of at most {URL_BYTES_MAX} bytes");
            return Err(bad(what));
        }
        text(&format!("attachments[{place}].filename"), file.filename.clone(), NAME_BYTES_MAX)?;
        text(&format!("attachments[{place}].contentType"), file.content_type.clone(), NAME_BYTES_MAX)?;
    }
    let file = |AttachmentBody { url, filename, content_type }| Attachment { url, filename, content_type };
    Ok(attachments.into_iter().map(file).collect())
}

/// The metadata without white space between its parts, and otherwise as written: it goes into one line of a file.
fn metadata(metadata: &RawValue) -> Result<Box<RawValue>, Problem> {
    let found = metadata.get().len();
    if found > METADATA_BYTES_MAX {
        return Err(bad(format!("metadata: at most {METADATA_BYTES_MAX} bytes of JSON; this has {found}")));
    }
    // Metadata that a reader could not parse (half of a surrogate pair, a number out of range) is refused.
    let read: Result<Map<String, Value>, _> = serde_json::from_str(metadata.get());
    read.map_err(|error| bad(format!("metadata: not an object that can be read: {error}")))?;
    let (mut in_string, mut is_escaped) = (false, false);
    let is_kept = |c: &char| {
        let in_text = in_string;
        (in_string, is_escaped) = match c {
            _ if is_escaped => (true, false),
            '"' => (!in_string, false),
            '\\' => (in_string, in_string),
            _ => (in_string, false),
        };
        in_text || !c.is_ascii_whitespace()
    };
    let compact: String = metadata.get().chars().filter(is_kept).collect();
    RawValue::from_string(compact).map_err(|error| bad(format!("metadata: {error}")))
}
