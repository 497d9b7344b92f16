//! Actions to exchanges, with the broker's confirmation.

use std::sync::Arc;
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use oncegate_core::job::Failure;
use serde_json::value::RawValue;
use tokio::sync::Mutex;

use super::connect;
use crate::actions::Effect;
use crate::channels::{busy, refused, unknown};
use crate::config::SecretUrl;

/// Messages are written to disk.
const PERSISTENT: u8 = 2;

/// A connection to a broker, made when it is needed, and made anew when it is gone.
pub struct Publisher {
    url: SecretUrl,
    line: Mutex<Option<Arc<Line>>>,
}

struct Line {
    channel: Channel,
    /// The channel's, and kept with it.
    _connection: Connection,
}

impl Publisher {
    pub fn new(url: SecretUrl) -> Arc<Publisher> {
        Arc::new(Publisher { url, line: Mutex::new(None) })
    }

    /// Publishes an action's payload; its message id is the key that is the same on every try.
    pub async fn publish(
        &self,
        exchange: &str,
        routing_key: &str,
        effect: Effect<'_>,
        within: Duration,
    ) -> Result<Option<Box<RawValue>>, Failure> {
        match tokio::time::timeout(within, self.publish_now(exchange, routing_key, effect)).await {
            Ok(published) => published.map(|()| None),
            Err(_) => {
                self.hang_up().await;
                Err(unknown(format!("the broker did not confirm within {within:?}")))
            }
        }
    }

    async fn publish_now(&self, exchange: &str, routing_key: &str, effect: Effect<'_>) -> Result<(), Failure> {
        // Before it is published nothing has happened.
        let line = self.line().await.map_err(|why| busy(why, None))?;
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_delivery_mode(PERSISTENT)
            .with_message_id(effect.effect_key.to_string().into())
            .with_type(effect.action_type.into());
        // One that no queue takes comes back, and is no success.
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let payload = effect.payload.get().as_bytes();
        let published =
            line.channel.basic_publish(exchange.into(), routing_key.into(), options, payload, properties).await;
        let confirmed = match published {
            Ok(confirm) => confirm.await,
            Err(error) => Err(error),
        };
        match confirmed {
            Ok(Confirmation::Ack(None)) => Ok(()),
            Ok(Confirmation::Ack(Some(returned)) | Confirmation::Nack(Some(returned))) => {
                Err(refused_by_route(exchange, routing_key, returned.reply_text.as_str()))
            }
            Ok(Confirmation::Nack(None)) => Err(busy("the broker did not take it".to_owned(), None)),
            Ok(Confirmation::NotRequested) => Err(unknown("the broker does not confirm")),
            Err(error) => {
                self.hang_up().await;
                Err(unknown(format!("the connection to the broker broke: {error}")))
            }
        }
    }

    async fn line(&self) -> Result<Arc<Line>, String> {
        let mut line = self.line.lock().await;
        if let Some(line) = line.as_ref().filter(|line| line.channel.status().connected()) {
            return Ok(line.clone());
        }
        let connection = connect(&self.url, "oncegate").await?;
        let channel = connection.create_channel().await.map_err(|error| error.to_string())?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(|error| error.to_string())?;
        Ok(line.insert(Arc::new(Line { channel, _connection: connection })).clone())
    }

    async fn hang_up(&self) {
        *self.line.lock().await = None;
    }
}

/// The queue may be made tomorrow.
fn refused_by_route(exchange: &str, routing_key: &str, why: &str) -> Failure {
    let error = format!("no queue takes {routing_key:?} from exchange {exchange:?}: {why}");
    Failure { is_final: false, ..refused(error) }
}
