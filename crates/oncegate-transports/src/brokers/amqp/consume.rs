//! Events from queues.

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions};
use lapin::types::FieldTable;
use lapin::{Connection, Consumer};
use tokio::task::JoinSet;

use super::connect::{CONNECT_TIMEOUT, Connector};
use crate::brokers::intake::{Broken, Incoming, Intake, Source};
use oncegate_config::SecretUrl;

/// A queue, and the connection to its broker.
pub struct Queue {
    connector: Connector,
    connection: Option<Connection>,
}

impl Queue {
    pub fn new(url: SecretUrl, queue: &str) -> Queue {
        Queue { connector: Connector::new(url, format!("oncegate {queue}")), connection: None }
    }
}

#[async_trait]
impl Source for Queue {
    async fn consume(&mut self, intake: &Arc<Intake>, at_work: &mut JoinSet<()>) -> Broken {
        match open(&mut self.connector, intake).await {
            Ok((connection, deliveries)) => {
                self.connection = Some(connection);
                consume(deliveries, intake, at_work).await
            }
            Err(why) => Broken::before(why),
        }
    }
}

async fn open(connector: &mut Connector, intake: &Intake) -> Result<(Connection, Consumer), String> {
    let connection = connector.connect().await?;
    let consumed = async {
        let channel = connection.create_channel().await?;
        channel.basic_qos(intake.at_once, BasicQosOptions::default()).await?;
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        channel.basic_consume(intake.queue.as_str().into(), "oncegate".into(), options, arguments).await
    };
    match tokio::time::timeout(CONNECT_TIMEOUT, consumed).await {
        Ok(Ok(deliveries)) => Ok((connection, deliveries)),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("the broker said nothing for {CONNECT_TIMEOUT:?}")),
    }
}

async fn consume(mut deliveries: Consumer, intake: &Arc<Intake>, at_work: &mut JoinSet<()>) -> Broken {
    tracing::info!(event = "broker.consuming", queue = intake.queue);
    loop {
        tokio::select! {
            Some(_) = at_work.join_next() => {}
            delivery = deliveries.next() => match delivery {
                Some(Ok(delivery)) => {
                    at_work.spawn(intake.clone().take(delivery));
                }
                Some(Err(error)) => return Broken::after(error),
                None => return Broken::after("the broker has ended the consumer"),
            },
        }
    }
}

#[async_trait]
impl Incoming for Delivery {
    fn body(&self) -> &[u8] {
        &self.data
    }

    fn content_type(&self) -> Option<&str> {
        self.properties.content_type().as_ref().map(|text| text.as_str())
    }

    fn id(&self) -> Option<&str> {
        self.properties.message_id().as_ref().map(|id| id.as_str())
    }

    async fn acknowledge(&self) -> bool {
        matches!(self.ack(BasicAckOptions::default()).await, Ok(true))
    }

    async fn reject(&self) {
        // If the broker does not receive this, it delivers the message again.
        let _ = self.acker.reject(BasicRejectOptions { requeue: false }).await;
    }
}
