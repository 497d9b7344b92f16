//! Actions to exchanges, with the broker's confirmation.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use oncegate_core::job::Failure;
use serde_json::value::RawValue;

use super::connect::Connector;
use crate::actions::Effect;
use crate::channels::{busy, refused, unknown};
use crate::config::SecretUrl;
use crate::outgoing::WORKSPACE;

/// Messages are written to disk.
const PERSISTENT: u8 = 2;

/// A connection to a broker, made when it is needed, and made anew when it is gone.
pub struct Publisher {
    line: tokio::sync::Mutex<Line>,
    /// Channels that nobody publishes on. There is one for each publish that is under way: what comes back, and what goes wrong on a channel, is of
    /// that one alone.
    idle: Mutex<Vec<Channel>>,
}

struct Line {
    connector: Connector,
    connection: Option<Connection>,
}

impl Publisher {
    pub fn new(url: SecretUrl) -> Arc<Publisher> {
        let line = Line { connector: Connector::new(url, "oncegate".into()), connection: None };
        Arc::new(Publisher { line: tokio::sync::Mutex::new(line), idle: Mutex::default() })
    }

    /// Publishes an action's payload; its message id is the key that is the same on every try.
    pub async fn publish(
        &self,
        exchange: &str,
        routing_key: &str,
        effect: Effect<'_>,
        within: Duration,
    ) -> Result<Option<Box<RawValue>>, Failure> {
        // Before it is published nothing has happened.
        let channel = match tokio::time::timeout(within, self.channel()).await {
            Ok(channel) => channel.map_err(|why| busy(why, None))?,
            Err(_) => return Err(busy(format!("no channel to the broker within {within:?}"), None)),
        };
        let mut headers = FieldTable::default();
        headers.insert(WORKSPACE.into(), AMQPValue::LongString(effect.workspace.as_str().into()));
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_delivery_mode(PERSISTENT)
            .with_message_id(effect.effect_key.to_string().into())
            .with_type(effect.action_type.into())
            .with_headers(headers);
        // One that no queue takes comes back, and is no success.
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let payload = effect.payload.get().as_bytes();
        let published = async {
            channel.basic_publish(exchange.into(), routing_key.into(), options, payload, properties).await?.await
        };
        let Ok(confirmed) = tokio::time::timeout(within, published).await else {
            return Err(unknown(format!("the broker did not confirm within {within:?}")));
        };
        let read = read(confirmed, exchange, routing_key);
        if channel.status().connected() {
            self.idle.lock().expect("no holder of this lock panics").push(channel);
        }
        read.map(|()| None)
    }

    async fn channel(&self) -> Result<Channel, String> {
        let mut line = self.line.lock().await;
        let Line { connector, connection } = &mut *line;
        if !connection.as_ref().is_some_and(|open| open.status().connected()) {
            *connection = Some(connector.connect().await?);
        }
        let open = connection.as_ref().expect("it is there, or was made just now");
        if open.status().blocked() {
            return Err("the broker takes nothing at the moment".into());
        }
        let idle = || self.idle.lock().expect("no holder of this lock panics").pop();
        while let Some(channel) = idle() {
            if channel.status().connected() {
                return Ok(channel);
            }
        }
        let channel = open.create_channel().await.map_err(|error| error.to_string())?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(|error| error.to_string())?;
        Ok(channel)
    }
}

/// What the broker said of one message.
fn read(confirmed: lapin::Result<Confirmation>, exchange: &str, routing_key: &str) -> Result<(), Failure> {
    // The queue, or the exchange, may be made tomorrow.
    let later = |error: String| Err(Failure { is_final: false, ..refused(error) });
    match confirmed {
        Ok(Confirmation::Ack(None)) => Ok(()),
        Ok(Confirmation::Ack(Some(returned)) | Confirmation::Nack(Some(returned))) => {
            let why = returned.reply_text.as_str();
            later(format!("no queue takes {routing_key:?} from exchange {exchange:?}: {why}"))
        }
        Ok(Confirmation::Nack(None)) => Err(busy("the broker did not take it", None)),
        Ok(Confirmation::NotRequested) => Err(unknown("the broker does not confirm")),
        // It has closed the channel, over this message.
        Err(error) if error.is_amqp_soft_error() => later(format!("the broker refused it: {error}")),
        Err(error) => Err(unknown(format!("the connection to the broker broke: {error}"))),
    }
}
