//! Leads, threads and messages as the store keeps them.

use oncegate::sends::Resolved;
use oncegate::store::{At, Place, Record};
use oncegate::{ClaimId, ClaimKey, GuardName, Time, WorkspaceName};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::channels::{Attachment, Outgoing};
use crate::problem::{Kind, Problem};

/// A type that is stored as a record.
pub trait Document: Serialize + DeserializeOwned {
    const KIND: &'static str;

    /// The state by which lists filter the documents.
    fn state(&self) -> Option<&'static str> {
        None
    }
}

/// A document with its workspace, id and version.
#[derive(Clone, Debug)]
pub struct Kept<D> {
    pub workspace: WorkspaceName,
    pub id: Uuid,
    pub version: i64,
    pub document: D,
}

impl<D: Document> Kept<D> {
    pub fn new(workspace: &WorkspaceName, document: D) -> Kept<D> {
        Kept { workspace: workspace.clone(), id: Uuid::now_v7(), version: 1, document }
    }

    /// The next version of the document.
    pub fn with(&self, document: D) -> Kept<D> {
        Kept { workspace: self.workspace.clone(), id: self.id, version: self.version + 1, document }
    }

    pub fn read(record: Record) -> Result<Kept<D>, Problem> {
        let Record { workspace, id, version, body, .. } = record;
        // The text of the JSON error is left out: it quotes the stored content.
        let broken = |error: serde_json::Error| {
            let (kind, column) = (D::KIND, error.column());
            Kind::Internal.because(format!("the {kind} {id} cannot be read, from its byte {column} on"))
        };
        Ok(Kept { workspace, id, version, document: serde_json::from_slice(&body).map_err(broken)? })
    }

    pub fn record(&self) -> Record {
        Record {
            workspace: self.workspace.clone(),
            kind: D::KIND,
            id: self.id,
            version: self.version,
            state: self.document.state().map(str::to_owned),
            expires_at: None,
            body: serde_json::to_vec(&self.document).expect("a document is JSON").into(),
        }
    }
}

pub fn by_id<D: Document>(workspace: &WorkspaceName, id: Uuid) -> Place {
    Place { workspace: workspace.clone(), kind: D::KIND, at: At::Id(id) }
}

pub fn by_name<D: Document>(workspace: &WorkspaceName, name: String) -> Place {
    Place { workspace: workspace.clone(), kind: D::KIND, at: At::Name(name) }
}

/// The name under which a lead or a thread is found by its phone number.
pub fn phone_name(phone: &str) -> String {
    format!("phone:{phone}")
}

pub fn email_name(email: &str) -> String {
    format!("email:{email}")
}

/// What other systems call a lead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CrmIds {
    pub ghl_contact_id: Option<String>,
    pub ghl_location_id: Option<String>,
    pub hs_contact_id: Option<String>,
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
    pub phone: Option<String>,
    pub email: Option<String>,
    pub name: Option<String>,
    pub crm: CrmIds,
    pub created_us: i64,
}

impl Document for Lead {
    const KIND: &'static str = "lead";
}

/// All messages to one phone, or to one address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    pub lead: Uuid,
    pub phone: Option<String>,
    pub email: Option<String>,
    pub created_us: i64,
}

impl Document for Thread {
    const KIND: &'static str = "thread";
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Status {
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

impl Status {
    pub const ALL: [Status; 5] = [Status::Queued, Status::Sending, Status::Sent, Status::Failed, Status::Unknown];

    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Queued => "queued",
            Status::Sending => "sending",
            Status::Sent => "sent",
            Status::Failed => "failed",
            Status::Unknown => "unknown",
        }
    }

    pub fn parse(name: &str) -> Option<Status> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }

    /// Whether it will change.
    pub const fn is_over(self) -> bool {
        matches!(self, Status::Sent | Status::Failed | Status::Unknown)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Message {
    pub status: Status,
    pub lead: Uuid,
    pub thread: Uuid,
    pub phone: Option<String>,
    pub email: Option<String>,
    pub text: String,
    pub channel: String,
    pub attachments: Vec<Attachment>,
    pub metadata: Option<Box<RawValue>>,
    pub error: Option<String>,
    pub created_us: i64,
    pub sent_us: Option<i64>,
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

    fn state(&self) -> Option<&'static str> {
        Some(self.status.as_str())
    }
}

impl Message {
    /// The name of the list of a lead's messages.
    pub fn list_of(lead: Uuid) -> String {
        format!("lead:{lead}")
    }
}

impl Kept<Message> {
    pub fn outgoing(&self) -> Outgoing<'_> {
        let Message { phone, email, text, channel, attachments, metadata, .. } = &self.document;
        Outgoing {
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

    pub fn guard_key(&self) -> Option<ClaimKey> {
        self.document.guard.as_ref().map(|id| id.key(&self.workspace, &super::GUARD))
    }

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

pub fn time(micros: i64) -> String {
    Time::from_micros(micros).to_string()
}
