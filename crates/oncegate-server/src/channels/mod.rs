//! Channels: how a message leaves the server, and what its answer proves.
//!
//! Every send has one of three outcomes: sent, certainly not sent, or unknown. The outcome follows from how far the call
//! got. Channels never retry: the queue does.

pub mod http;
pub mod lines;
pub mod smtp;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use oncegate::WorkspaceName;
use oncegate::store::{Clock, SystemClock};
pub use oncegate::worker::{Receipt, Sent};
use oncegate_core::job::{Delivery, Failure};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::config::{self, ChannelKind, Config};
use crate::secret_file;
use crate::trace::Ended;
use lines::JsonLines;

/// A message on its way out.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outgoing<'a> {
    /// The workspace of the message.
    #[serde(serialize_with = "crate::outgoing::serialize_workspace")]
    pub workspace: &'a WorkspaceName,
    /// The same on every attempt: the key by which the provider may recognise a retry.
    pub id: Uuid,
    pub channel: &'a str,
    #[serde(rename = "recipientPhone")]
    pub phone: Option<&'a str>,
    #[serde(rename = "recipientEmail")]
    pub email: Option<&'a str>,
    #[serde(rename = "message")]
    pub text: &'a str,
    pub attachments: &'a [Attachment],
    pub metadata: Option<&'a RawValue>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Attachment {
    /// http or https.
    pub url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filename: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
}

impl<'a> Outgoing<'a> {
    fn mail(&self) -> smtp::Mail<'a> {
        let attached: String = self.attachments.iter().map(|file| format!("\r\n{}", file.url)).collect();
        let text = if attached.is_empty() { self.text.to_owned() } else { format!("{}\r\n{attached}", self.text) };
        smtp::Mail { workspace: self.workspace, id: self.id, to: self.email, subject: None, text }
    }
}

/// A line of `sends.jsonl`. It lets the first run work without an account at a provider.
#[derive(Serialize)]
struct Line<'a> {
    at: String,
    #[serde(flatten)]
    message: &'a Outgoing<'a>,
}

impl Ended for Receipt {
    fn failed(&self) -> Option<&'static str> {
        None
    }
}

pub struct Channel {
    how: How,
    delivery: Delivery,
    timeout: Duration,
}

enum How {
    Log(Arc<JsonLines>),
    Http {
        provider: http::Provider,
        /// The provider's names of fields, where they differ from ours.
        names: BTreeMap<String, String>,
    },
    Smtp(smtp::MailServer),
}

impl Channel {
    /// Sends within this channel's time, or `within`, whichever is shorter.
    pub async fn send(&self, message: &Outgoing<'_>, within: Duration) -> Sent {
        let within = within.min(self.timeout);
        match &self.how {
            How::Log(log) => {
                log.write(&Line { at: SystemClock.now().to_string(), message }).map(|()| Receipt::default())
            }
            How::Http { provider, names } => provider.send(message, names, within).await,
            How::Smtp(server) => match server.send(&message.mail(), within).await {
                Ok(()) => Ok(Receipt::default()),
                // A request waits for this send, so the failure is final; a later request may send.
                Err(smtp::NotMailed::Unreached(error)) => Err(Failure::refused(error)),
                Err(smtp::NotMailed::Failed(failure)) => Err(failure),
            },
        }
    }

    pub fn kind(&self) -> &'static str {
        match self.how {
            How::Log(_) => "log",
            How::Http { .. } => "http",
            How::Smtp(_) => "smtp",
        }
    }

    /// A message that may have arrived is sent again only if the receiver honours its key.
    pub fn delivery(&self) -> Delivery {
        self.delivery
    }

    /// Whether the channel needs an email address to reach a recipient.
    pub fn needs_email(&self) -> bool {
        matches!(self.how, How::Smtp(_))
    }
}

/// All channels, by name. A channel without a table in the configuration writes to `sends.jsonl`.
pub struct Channels {
    by_name: BTreeMap<String, Channel>,
    /// The channels of workspaces that have settings of their own.
    of_workspaces: HashMap<(WorkspaceName, String), Channel>,
    log: Channel,
}

impl Channels {
    pub fn open(config: &Config) -> Result<Channels, String> {
        let log = Arc::new(JsonLines::open(&config.data_dir, "sends.jsonl")?);
        let allow: Arc<[IpNet]> = config.outgoing.allow.clone().into();
        let (mut by_name, mut of_workspaces) = (BTreeMap::new(), HashMap::new());
        for (name, channel) in &config.messages.channels {
            let opened = open(channel, &log, &allow).map_err(|error| format!("[messages.channel.{name}]: {error}"))?;
            by_name.insert(name.clone(), opened);
            for (workspace, kind) in &channel.of_workspaces {
                let own = config::Channel { kind: kind.clone(), ..channel.clone() };
                let opened = open(&own, &log, &allow)
                    .map_err(|error| format!("[workspace.{workspace}.messages.channel.{name}]: {error}"))?;
                of_workspaces.insert((workspace.clone(), name.clone()), opened);
            }
        }
        let log = Channel { how: How::Log(log), delivery: Delivery::AtMostOnce, timeout: config.outgoing.timeout };
        Ok(Channels { by_name, of_workspaces, log })
    }

    /// The channel with the settings of a workspace.
    pub fn of(&self, workspace: &WorkspaceName, name: &str) -> &Channel {
        let own = || self.of_workspaces.get(&(workspace.clone(), name.to_owned()));
        // Usually no workspace has its own settings, and the lookup is skipped.
        let own = if self.of_workspaces.is_empty() { None } else { own() };
        own.unwrap_or_else(|| self.get(name))
    }

    /// The channel with the settings that all workspaces share.
    pub fn get(&self, name: &str) -> &Channel {
        self.by_name.get(name).unwrap_or(&self.log)
    }
}

fn open(config: &config::Channel, log: &Arc<JsonLines>, allow: &Arc<[IpNet]>) -> Result<Channel, String> {
    let how = match &config.kind {
        ChannelKind::Log => How::Log(log.clone()),
        ChannelKind::Http { url, authorization_file, fields } => {
            let authorization = secret(authorization_file.as_deref())?;
            let provider = http::Provider::new(url.clone(), authorization, allow.clone())?;
            How::Http { provider, names: fields.clone() }
        }
        ChannelKind::Smtp { url, from, subject, username, password_file } => {
            let file = password_file.as_deref();
            let (subject, username) = (subject.clone(), username.clone());
            How::Smtp(smtp::MailServer::new(url.clone(), from, subject, username, file, allow.clone())?)
        }
    };
    let delivery = if config.honours_key { Delivery::AtLeastOnce } else { Delivery::AtMostOnce };
    Ok(Channel { how, delivery, timeout: config.timeout })
}

pub fn secret(file: Option<&Path>) -> Result<Option<String>, String> {
    file.map(secret_file::read).transpose()
}
