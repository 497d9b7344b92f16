//! Channels: how a message leaves the server, and what its answer proves.
//!
//! Every send has one of three outcomes: sent, certainly not sent, or unknown. The outcome follows from how far the call
//! got. Channels never retry: the queue does.

pub mod http;
pub mod lines;
pub mod mail;
#[cfg(feature = "smtp")]
pub mod smtp;
#[cfg(not(feature = "smtp"))]
#[path = "smtp_absent.rs"]
pub mod smtp;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipnet::IpNet;
use oncegate::WorkspaceName;
use oncegate::messages::Attachment;
use oncegate::store::{Clock, SystemClock};
use oncegate::worker;
pub use oncegate::worker::{Outgoing, Receipt, Sent};
use oncegate_core::job::{Delivery, Failure};
use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::trace::{self, Ended};
use lines::JsonLines;
use oncegate_config::{self as config, ChannelKind, Config};
use oncegate_process::secret_file;

/// The fields of a message on its way out.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Fields<'a> {
    workspace: &'a str,
    id: Uuid,
    channel: &'a str,
    recipient_phone: Option<&'a str>,
    recipient_email: Option<&'a str>,
    message: &'a str,
    attachments: &'a [Attachment],
    metadata: Option<&'a RawValue>,
}

impl<'a> From<&Outgoing<'a>> for Fields<'a> {
    fn from(outgoing: &Outgoing<'a>) -> Self {
        let Outgoing { policy: _, workspace, id, channel, phone, email, text, attachments, metadata } = *outgoing;
        Fields {
            workspace: workspace.as_str(),
            id,
            channel,
            recipient_phone: phone,
            recipient_email: email,
            message: text,
            attachments,
            metadata,
        }
    }
}

fn to_mail<'a>(outgoing: &Outgoing<'a>) -> mail::Mail<'a> {
    let Outgoing { workspace, id, email, text, attachments, .. } = *outgoing;
    let attached: String = attachments.iter().map(|file| format!("\r\n{}", file.url)).collect();
    let text = if attached.is_empty() { text.to_owned() } else { format!("{text}\r\n{attached}") };
    mail::Mail { workspace, id, to: email, subject: None, text }
}

/// A line of `sends.jsonl`. It lets the first run work without an account at a provider.
#[derive(Serialize)]
struct Line<'a> {
    at: String,
    #[serde(flatten)]
    fields: Fields<'a>,
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
    async fn send_within(&self, message: &Outgoing<'_>, within: Duration) -> Sent {
        match &self.how {
            How::Log(log) => {
                let line = Line { at: SystemClock.now().to_string(), fields: message.into() };
                log.write(&line).map(|()| Receipt::default())
            }
            How::Http { provider, names } => provider.send(message, names, within).await,
            How::Smtp(server) => match server.send(&to_mail(message), within).await {
                Ok(()) => Ok(Receipt::default()),
                // A request waits for this send, so the failure is final; a later request may send.
                Err(mail::NotMailed::Unreached(error)) => Err(Failure::refused(error)),
                Err(mail::NotMailed::Failed(failure)) => Err(failure),
            },
        }
    }

    fn kind(&self) -> &'static str {
        match self.how {
            How::Log(_) => "log",
            How::Http { .. } => "http",
            How::Smtp(_) => "smtp",
        }
    }
}

#[async_trait]
impl worker::Channel for Channel {
    /// Sends within this channel's time, or `within`, whichever is shorter.
    async fn send(&self, message: &Outgoing<'_>, within: Duration) -> Sent {
        let (name, id) = match message.policy {
            "reminder" => ("send reminder", "oncegate.reminder.id"),
            _ => ("send message", "oncegate.message.id"),
        };
        let about = &[(id, &message.id as _), ("oncegate.channel", &self.kind() as _)];
        let sending = self.send_within(message, within.min(self.timeout));
        trace::call(name, message.workspace, about, sending).await
    }

    fn delivery(&self) -> Delivery {
        self.delivery
    }

    fn needs_email(&self) -> bool {
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
}

impl worker::Channels for Channels {
    fn channel(&self, workspace: &WorkspaceName, name: &str) -> Option<&dyn worker::Channel> {
        let own = || self.of_workspaces.get(&(workspace.clone(), name.to_owned()));
        // Usually no workspace has its own settings, and the lookup is skipped.
        let own = if self.of_workspaces.is_empty() { None } else { own() };
        Some(own.or_else(|| self.by_name.get(name)).unwrap_or(&self.log))
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
