//! Leads, threads and messages as the store keeps them.

use oncegate_core::{ClaimId, ClaimKey, GuardName, WorkspaceName};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::channel::{Attachment, Outgoing};
use crate::document::{Document, Kept, Resolved};

/// The name under which a lead or a thread is found by its phone number.
pub fn phone_name(phone: &str) -> String {
    format!("phone:{phone}")
}

/// The name under which a lead or a thread is found by its email address.
pub fn email_name(email: &str) -> String {
    format!("email:{email}")
}

/// What other systems call a lead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CrmIds {
    /// The contact in GoHighLevel.
    pub ghl_contact_id: Option<String>,
    /// The location in GoHighLevel.
    pub ghl_location_id: Option<String>,
    /// The contact in HubSpot.
    pub hs_contact_id: Option<String>,
    /// The portal in HubSpot.
    pub hs_portal_id: Option<String>,
}

impl CrmIds {
    /// The ids of `newer`, and for those that it lacks, the ids that are known already.
    pub fn updated(&self, newer: &CrmIds) -> CrmIds {
        let either = |new: &Option<String>, old: &Option<String>| new.clone().or_else(|| old.clone());
        CrmIds {
            ghl_contact_id: either(&newer.ghl_contact_id, &self.ghl_contact_id),
            ghl_location_id: either(&newer.ghl_location_id, &self.ghl_location_id),
            hs_contact_id: either(&newer.hs_contact_id, &self.hs_contact_id),
            hs_portal_id: either(&newer.hs_portal_id, &self.hs_portal_id),
        }
    }
}

/// A person, by phone and email.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lead {
    /// The phone number.
    pub phone: Option<String>,
    /// The email address.
    pub email: Option<String>,
    /// The name of the person.
    pub name: Option<String>,
    /// What other systems call the person.
    pub crm: CrmIds,
    /// When the lead was created.
    pub created_us: i64,
}

impl Document for Lead {
    const KIND: &'static str = "lead";
}

/// All messages to one phone, or to one address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// The id of the lead.
    pub lead: Uuid,
    /// The phone number that all its messages go to.
    pub phone: Option<String>,
    /// The address that all its messages go to, if there is no phone number.
    pub email: Option<String>,
    /// When the thread was created.
    pub created_us: i64,
}

impl Document for Thread {
    const KIND: &'static str = "thread";
}

/// The status of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// In the queue.
    Queued,
    /// A worker has it.
    Sending,
    /// The channel has taken it, or a person has resolved it as sent.
    Sent,
    /// It surely did not leave us.
    Failed,
    /// It may have left us. It is not sent again.
    Unknown,
}

impl Status {
    /// All statuses.
    pub const ALL: [Status; 5] = [Status::Queued, Status::Sending, Status::Sent, Status::Failed, Status::Unknown];

    /// The name of the status, as the API shows it and the stores write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Queued => "queued",
            Status::Sending => "sending",
            Status::Sent => "sent",
            Status::Failed => "failed",
            Status::Unknown => "unknown",
        }
    }

    /// The status with this name; `None` if no status has it.
    pub fn parse(name: &str) -> Option<Status> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }

    /// Whether it will change.
    pub const fn is_over(self) -> bool {
        matches!(self, Status::Sent | Status::Failed | Status::Unknown)
    }
}

/// A text to a person.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Message {
    /// The status of the message.
    pub status: Status,
    /// The id of the recipient's lead.
    pub lead: Uuid,
    /// The id of its thread.
    pub thread: Uuid,
    /// The phone number that it goes to.
    pub phone: Option<String>,
    /// The address that it goes to.
    pub email: Option<String>,
    /// The text.
    pub text: String,
    /// The name of the channel.
    pub channel: String,
    /// The files to attach.
    pub attachments: Vec<Attachment>,
    /// A JSON object of the caller.
    pub metadata: Option<Box<RawValue>>,
    /// Why the last attempt failed.
    pub error: Option<String>,
    /// When it was accepted.
    pub created_us: i64,
    /// When it was sent; `None` before that.
    pub sent_us: Option<i64>,
    /// The provider's id of the message, if the provider gave one.
    pub provider_message_id: Option<String>,
    /// Whether the message's commit also created its lead. The answer says so.
    pub lead_is_new: bool,
    /// The claim of the duplicate guard; `None` if the message was accepted without one.
    pub guard: Option<Hex>,
    /// The claim of its Idempotency-Key.
    pub key: Option<Hex>,
    /// What a person found out about the message while it was unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Resolved>,
}

impl Document for Message {
    const KIND: &'static str = "message";

    fn state(&self) -> Option<String> {
        Some(self.status.as_str().to_owned())
    }
}

impl Message {
    /// The name of the list of a lead's messages.
    pub fn list_of(lead: Uuid) -> String {
        format!("lead:{lead}")
    }
}

impl Kept<Message> {
    pub(super) fn outgoing(&self) -> Outgoing<'_> {
        let Message { phone, email, text, channel, attachments, metadata, .. } = &self.document;
        Outgoing {
            policy: "message",
            workspace: &self.workspace,
            id: self.id,
            channel,
            phone: phone.as_deref(),
            email: email.as_deref(),
            text,
            attachments,
            metadata: metadata.as_deref(),
        }
    }

    /// The key of its duplicate claim; `None` if it was accepted without one.
    pub fn guard_key(&self) -> Option<ClaimKey> {
        self.document.guard.as_ref().map(|id| id.key(&self.workspace, &super::GUARD))
    }

    /// The key of its Idempotency-Key's claim; `None` if it came without one.
    pub fn idempotency_key(&self) -> Option<ClaimKey> {
        self.document.key.as_ref().map(|id| id.key(&self.workspace, &super::IDEMPOTENCY))
    }
}

/// A claim's id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hex(String);

impl Hex {
    pub fn of(key: &ClaimKey) -> Hex {
        Hex(key.id.to_string())
    }

    fn key(&self, workspace: &WorkspaceName, guard: &GuardName) -> ClaimKey {
        let id = ClaimId::parse(&self.0).expect("only ids are written here");
        ClaimKey { workspace: workspace.clone(), guard: guard.clone(), id }
    }
}

/// The message written last under a claim that is kept in a separate guard store. A request with a smaller token was
/// paused, and writes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    pub token: i64,
    pub message: Uuid,
    pub at_us: i64,
}

impl Document for Fence {
    const KIND: &'static str = "fence";
}

impl Fence {
    /// The fence's id follows from the claim's id.
    pub fn id_of(key: &ClaimKey) -> Uuid {
        let bytes = key.id.as_bytes();
        Uuid::from_slice(&bytes[..16]).expect("16 bytes are an id")
    }
}
