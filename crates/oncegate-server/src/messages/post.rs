//! The body of a POST, and its checks.

use oncegate::limits::KEY_PART_BYTES_MAX;
use oncegate::{ClaimKey, GuardName, WorkspaceName};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use url::Url;
use utoipa::ToSchema;
use uuid::Uuid;

use super::document::{CrmIds, Kept, Lead};
use crate::channels::Attachment;
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
    attachments: Option<Vec<Attachment>>,
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

/// The recipient of a message, as the request names it.
#[derive(Clone, Debug)]
pub struct Contact {
    pub lead: Option<Uuid>,
    pub phone: Option<String>,
    pub email: Option<String>,
    pub name: Option<String>,
    pub crm: CrmIds,
}

/// A request that passed the checks that need no store.
#[derive(Clone, Debug)]
pub struct Post {
    pub contact: Contact,
    pub text: String,
    pub attachments: Vec<Attachment>,
    pub channel: Option<String>,
    pub metadata: Option<Box<RawValue>>,
    pub nonce: Option<String>,
}

fn bad(what: impl Into<String>) -> Problem {
    Kind::InvalidRequest.because(what.into())
}

impl Post {
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
            return Err(bad("who is it for? recipientPhone, recipientEmail or leadId: at least one of them"));
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

    /// The phone and the address that the message goes to: the request's, or the lead's if the request names only a lead.
    pub fn reached_at<'a>(&'a self, lead: Option<&'a Lead>) -> (Option<&'a str>, Option<&'a str>) {
        let Contact { phone, email, .. } = &self.contact;
        match (phone, email, lead) {
            (None, None, Some(lead)) => (lead.phone.as_deref(), lead.email.as_deref()),
            _ => (phone.as_deref(), email.as_deref()),
        }
    }

    pub fn channel_name(&self, has_phone: bool) -> &str {
        self.channel.as_deref().unwrap_or(if has_phone { "sms" } else { "email" })
    }

    /// Two requests with the same key are the same message. The key is made of the contact and the text, byte for byte, as
    /// the request gives them. If the request names only a lead, the contact is the lead's phone, or its email if it has no
    /// phone.
    pub fn key<'a>(&'a self, workspace: &WorkspaceName, lead: Option<&'a Lead>) -> (ClaimKey, Vec<Option<&'a str>>) {
        let is_named = self.contact.phone.is_some() || self.contact.email.is_some();
        let (phone, email) = self.reached_at(lead);
        let email = email.filter(|_| is_named || phone.is_none());
        let mut parts = vec![phone, email, Some(self.text.as_str())];
        // The same parts as `POST /api/claims/find` is given: without a nonce there are three.
        parts.extend(self.nonce.as_deref().map(Some));
        (ClaimKey::of(workspace, &super::GUARD, &parts), parts)
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
            true => Err(bad("who is it? phone or email: at least one of them")),
            false => Ok(contact),
        }
    }
}

impl Contact {
    /// The lead that is created if none exists.
    pub fn new_lead(&self, workspace: &WorkspaceName, created_us: i64) -> Kept<Lead> {
        let Contact { phone, email, name, crm, .. } = self.clone();
        Kept::new(workspace, Lead { phone, email, name, crm, created_us })
    }
}

/// A string that is not a UUID gets the same answer as the id of a missing lead.
fn lead_id(id: &str) -> Result<Uuid, Problem> {
    id.parse().map_err(|_| no_lead(id))
}

pub fn no_lead(id: impl std::fmt::Display) -> Problem {
    Kind::NotFound.because(format!("leadId: there is no lead {id} in this workspace"))
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

fn attachments(attachments: Vec<Attachment>) -> Result<Vec<Attachment>, Problem> {
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
    Ok(attachments)
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
