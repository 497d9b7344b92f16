//! Channels: how a message leaves the process, and what its answer proves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncegate_core::WorkspaceName;
use oncegate_core::job::{Delivery, Failure};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

/// A message on its way to its recipient.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The policy that sends it: `message` or `reminder`.
    pub policy: &'static str,
    /// The workspace of the message.
    pub workspace: &'a WorkspaceName,
    /// The same on every attempt: the key by which the provider may recognise a retry.
    pub id: Uuid,
    /// The name of the channel.
    pub channel: &'a str,
    /// The phone number of the recipient.
    pub phone: Option<&'a str>,
    /// The email address of the recipient.
    pub email: Option<&'a str>,
    /// The text of the message.
    pub text: &'a str,
    /// The files to attach.
    pub attachments: &'a [Attachment],
    /// A JSON object of the caller, to pass on.
    pub metadata: Option<&'a RawValue>,
}

/// A file to attach, by its URL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// http or https.
    pub url: String,
    /// The name of the file, if it is not the URL's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filename: Option<String>,
    /// The media type of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
}

/// The provider has taken a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The provider's id of the message.
    pub provider_message_id: Option<String>,
}

/// The outcome of an attempt to send. A [`Failure`] says whether the message may have been sent.
pub type Sent = Result<Receipt, Failure>;

/// Sends messages to their recipients. A channel never retries: the queue does.
#[async_trait]
pub trait Channel: Send + Sync + 'static {
    /// Sends within this time.
    async fn send(&self, outgoing: &Outgoing<'_>, within: Duration) -> Sent;

    /// Whether a message that may have arrived is sent again. Only if the receiver honours [`Outgoing::id`] as its key.
    fn delivery(&self) -> Delivery {
        Delivery::AtMostOnce
    }

    /// Whether the channel needs an email address to reach a recipient.
    fn needs_email(&self) -> bool {
        false
    }
}

/// The channels, by name.
pub trait Channels: Send + Sync + 'static {
    /// The channel of this name, with the settings of the workspace; `None` if there is none.
    fn channel(&self, workspace: &WorkspaceName, name: &str) -> Option<&dyn Channel>;
}

impl Channels for BTreeMap<String, Arc<dyn Channel>> {
    fn channel(&self, _workspace: &WorkspaceName, name: &str) -> Option<&dyn Channel> {
        self.get(name).map(|channel| &**channel)
    }
}

/// Sends through the channel that the message names. A channel that takes longer is cut off.
pub(crate) async fn send(channels: &dyn Channels, outgoing: &Outgoing<'_>, within: Duration) -> Sent {
    let Some(channel) = channels.channel(outgoing.workspace, outgoing.channel) else {
        return Err(Failure::refused(format!("this worker has no channel {:?}", outgoing.channel)));
    };
    tokio::time::timeout(within, channel.send(outgoing, within))
        .await
        .unwrap_or_else(|_| Err(Failure::unknown(format!("the channel did not answer within {within:?}"))))
}
