//! Publishes actions to a stream, with its acknowledgement. The effect key is also the message's id: within its window, a
//! stream stores the message once.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::{self, Context, message::PublishMessage};
use oncegate_core::job::Failure;
use serde_json::value::RawValue;
use tokio::sync::Mutex;

use super::connect;
use crate::effect::Effect;
use oncegate_config::SecretUrl;

pub struct Publisher {
    url: SecretUrl,
    context: Mutex<Option<Context>>,
}

impl Publisher {
    pub fn new(url: SecretUrl) -> Arc<Publisher> {
        Arc::new(Publisher { url, context: Mutex::new(None) })
    }

    pub async fn publish(
        &self,
        subject: &str,
        effect: Effect<'_>,
        within: Duration,
    ) -> Result<Option<Box<RawValue>>, Failure> {
        // Nothing has happened before the message is published.
        let context = match tokio::time::timeout(within, self.context()).await {
            Ok(context) => context.map_err(|why| Failure::busy(why, None))?,
            Err(_) => return Err(Failure::busy(format!("no connection within {within:?}"), None)),
        };
        let message = PublishMessage::build()
            .payload(effect.payload.get().to_owned().into())
            .message_id(effect.effect_key.to_string())
            .header("Content-Type", "application/json")
            .header("Oncegate-Type", effect.action_type)
            .header("Oncegate-Workspace", effect.workspace.as_str());
        let published = async { context.send_publish(subject.to_owned(), message).await?.await };
        match tokio::time::timeout(within, published).await {
            Ok(Ok(_)) => Ok(None),
            Ok(Err(error)) => Err(match error.kind() {
                // No stream has this subject. The failure is not final: a stream may be created later.
                PublishErrorKind::StreamNotFound => {
                    Failure { is_final: false, ..Failure::refused(format!("no stream takes {subject:?}")) }
                }
                _ => Failure::unknown(format!("the stream did not acknowledge: {error}")),
            }),
            Err(_) => Err(Failure::unknown(format!("the stream did not acknowledge within {within:?}"))),
        }
    }

    async fn context(&self) -> Result<Context, String> {
        let mut context = self.context.lock().await;
        if let Some(open) = context.as_ref() {
            return Ok(open.clone());
        }
        let made = jetstream::new(connect(&self.url, "oncegate".into()).await?);
        Ok(context.insert(made).clone())
    }
}
