//! Actions to exchanges, with the broker's confirmation.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use oncegate_core::job::Failure;
use serde_json::value::RawValue;

use super::connect::Connector;
use crate::effect::Effect;
use crate::outgoing::WORKSPACE;
use oncegate_config::SecretUrl;

/// An exchange, and a routing key.
type Address<'a> = (&'a str, &'a str);

/// The delivery mode that makes the broker write messages to disk.
const PERSISTENT: u8 = 2;

/// A connection to a broker, made when it is needed, and again after it is lost.
pub struct Publisher {
    line: tokio::sync::Mutex<Line>,
    /// Channels that are not in use. Each publish has a channel of its own, so that a returned message, or an error that
    /// closes the channel, belongs to that publish alone.
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

    /// Publishes an action's payload. The message id is the effect key, the same on every attempt.
    pub async fn publish(
        &self,
        (exchange, routing_key): Address<'_>,
        effect: Effect<'_>,
        within: Duration,
    ) -> Result<Option<Box<RawValue>>, Failure> {
        // Nothing has happened before the message is published.
        let channel = match tokio::time::timeout(within, self.channel()).await {
            Ok(channel) => channel.map_err(|why| Failure::busy(why, None))?,
            Err(_) => return Err(Failure::busy(format!("no channel to the broker within {within:?}"), None)),
        };
        let mut headers = FieldTable::default();
        headers.insert(WORKSPACE.into(), AMQPValue::LongString(effect.workspace.as_str().into()));
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_delivery_mode(PERSISTENT)
            .with_message_id(effect.effect_key.to_string().into())
            .with_type(effect.action_type.into())
            .with_headers(headers);
        // With `mandatory`, a message that no queue takes comes back, and counts as a failure.
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let payload = effect.payload.get().as_bytes();
        let published = async {
            channel.basic_publish(exchange.into(), routing_key.into(), options, payload, properties).await?.await
        };
        let Ok(confirmed) = tokio::time::timeout(within, published).await else {
            return Err(Failure::unknown(format!("the broker did not confirm within {within:?}")));
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

/// Reads the broker's confirmation of a message.
fn read(confirmed: lapin::Result<Confirmation>, exchange: &str, routing_key: &str) -> Result<(), Failure> {
    // The failure is not final: the queue or the exchange may be created later.
    let later = |error: String| Err(Failure { is_final: false, ..Failure::refused(error) });
    match confirmed {
        Ok(Confirmation::Ack(None)) => Ok(()),
        Ok(Confirmation::Ack(Some(returned)) | Confirmation::Nack(Some(returned))) => {
            let why = returned.reply_text.as_str();
            later(format!("no queue takes {routing_key:?} from exchange {exchange:?}: {why}"))
        }
        Ok(Confirmation::Nack(None)) => Err(Failure::busy("the broker did not take it", None)),
        Ok(Confirmation::NotRequested) => Err(Failure::unknown("the broker does not confirm")),
        // The broker has closed the channel because of this message.
        Err(error) if error.is_amqp_soft_error() => later(format!("the broker refused it: {error}")),
        Err(error) => Err(Failure::unknown(format!("the connection to the broker broke: {error}"))),
    }
}
