//! Events from queues.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt;
use lapin::Connection;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions};
use lapin::types::FieldTable;
use oncegate::StoreError;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::connect::{CONNECT_TIMEOUT, Connector};
use crate::config::{Amqp, Consume};
use crate::crash;
use crate::events::{Media, Received, is_good_id, read};
use crate::sagas::Director;

/// Between two attempts to connect.
const RECONNECT_MIN: Duration = Duration::from_millis(200);
const RECONNECT_MAX: Duration = Duration::from_secs(5);
/// Between two attempts to commit what a message brought, while the store is away. It is not given back to its queue meanwhile: a broker may
/// count how often it is, and drop it.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Those who consume, until they are stopped.
pub struct Consumers {
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Consumers {
    /// Takes no more messages, and waits for those that are at work.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Begins to consume what the configuration names.
pub fn start(config: &Amqp, body_max: usize, director: &Arc<Director>) -> Consumers {
    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    for queue in &config.consume {
        let Some(url) = config.url.clone() else { continue };
        let connector = Connector::new(url, format!("oncegate {}", queue.queue));
        let consumer =
            Consumer { queue: queue.clone(), body_max, director: director.clone(), stopped: stopped.clone() };
        tasks.spawn(Arc::new(consumer).keep_consuming(connector));
    }
    Consumers { stop, tasks }
}

struct Consumer {
    queue: Consume,
    /// Larger messages are not even read.
    body_max: usize,
    director: Arc<Director>,
    stopped: watch::Receiver<bool>,
}

impl Consumer {
    /// Returns when it is told to stop.
    async fn stopped(&self) {
        // If there is nobody left to tell it, that is the same.
        let _ = self.stopped.clone().wait_for(|stopped| *stopped).await;
    }

    /// Until it is told to stop; where the connection breaks, over a new one.
    async fn keep_consuming(self: Arc<Self>, mut connector: Connector) {
        let mut pause = RECONNECT_MIN;
        loop {
            let opened = tokio::select! {
                opened = self.open(&mut connector) => opened,
                () = self.stopped() => return,
            };
            let why = match opened {
                Ok((connection, deliveries)) => {
                    pause = RECONNECT_MIN;
                    tracing::info!(event = "amqp.consuming", queue = self.queue.queue);
                    let ended = self.consume(deliveries).await;
                    let _ = connection.close(200, "stopping".into()).await;
                    match ended {
                        Some(why) => why,
                        None => return,
                    }
                }
                Err(why) => {
                    pause = (pause * 2).min(RECONNECT_MAX);
                    why
                }
            };
            tracing::warn!(event = "amqp.disconnected", queue = self.queue.queue, why);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stopped() => return,
            }
        }
    }

    async fn open(&self, connector: &mut Connector) -> Result<(Connection, lapin::Consumer), String> {
        let connection = connector.connect().await?;
        let Consume { queue, prefetch, .. } = &self.queue;
        let consumed = async {
            let channel = connection.create_channel().await?;
            // So many at work: the rest wait with the broker.
            channel.basic_qos(*prefetch, BasicQosOptions::default()).await?;
            let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
            channel.basic_consume(queue.as_str().into(), "oncegate".into(), options, arguments).await
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, consumed).await {
            Ok(Ok(deliveries)) => Ok((connection, deliveries)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("the broker said nothing for {CONNECT_TIMEOUT:?}")),
        }
    }

    /// Why the deliveries have ended; nothing, if it was told to stop.
    async fn consume(self: &Arc<Self>, mut deliveries: lapin::Consumer) -> Option<String> {
        let mut at_work = JoinSet::new();
        let ended = loop {
            tokio::select! {
                () = self.stopped() => break None,
                Some(_) = at_work.join_next() => {}
                delivery = deliveries.next() => match delivery {
                    Some(Ok(delivery)) => {
                        at_work.spawn(self.clone().take(delivery));
                    }
                    Some(Err(error)) => break Some(error.to_string()),
                    None => break Some("the broker has ended the consumer".into()),
                },
            }
        };
        // Those that are not acknowledged go back to the queue by themselves.
        while at_work.join_next().await.is_some() {}
        ended
    }

    /// One message: what it brings is committed before it is acknowledged.
    async fn take(self: Arc<Self>, delivery: Delivery) {
        let queue = &self.queue.queue;
        let mut pause = RETRY_MIN;
        loop {
            match self.handle(&delivery).await {
                Ok(()) => break,
                // It can never be kept here. The broker may have a place for such messages.
                Err(error @ StoreError::Refused(_)) => {
                    tracing::error!(event = "amqp.rejected", queue, %error);
                    let _ = delivery.reject(BasicRejectOptions { requeue: false }).await;
                    return;
                }
                Err(error) => tracing::warn!(event = "amqp.not_committed", queue, %error),
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(RETRY_MAX),
                () = self.stopped() => return,
            }
        }
        crash::point("amqp.handled").await;
        if !matches!(delivery.ack(BasicAckOptions::default()).await, Ok(true)) {
            // It comes again, and is a duplicate.
            tracing::info!(event = "amqp.not_acknowledged", queue);
        }
    }

    async fn handle(&self, delivery: &Delivery) -> Result<(), StoreError> {
        let (workspace, body) = (&self.queue.workspace, &delivery.data);
        let content_type = delivery.properties.content_type().as_ref().map(|text| text.as_str());
        let media = match content_type {
            // Many senders say nothing.
            None | Some("") => Some(Media::Json),
            Some(content_type) => Media::of(content_type),
        };
        let received = match media {
            _ if body.len() > self.body_max => {
                Err(format!("it has {} bytes; events have at most {}", body.len(), self.body_max))
            }
            Some(media) => read(media, body).map_err(|problem| problem.detail.into_owned()),
            None => Err(format!("the content type is {content_type:?}; it should be application/json")),
        };
        match received {
            Ok(Received { events, is_list }) => {
                let id = delivery.properties.message_id().as_ref().map(|id| id.as_str()).filter(|id| is_good_id(id));
                let named = events.into_iter().enumerate().map(|(i, event)| match id {
                    Some(id) if event.id.is_none() => {
                        event.id(if is_list { format!("{id}#{i}") } else { id.to_owned() })
                    }
                    _ => event,
                });
                self.director.handle(workspace, &named.collect::<Vec<_>>()).await.map(drop)
            }
            // Nobody else will look at it.
            Err(why) => self.director.bury_raw(workspace, text_of(body), why).await.map(drop),
        }
    }
}

/// As text, whatever it is.
fn text_of(body: &[u8]) -> String {
    match std::str::from_utf8(body) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("base64:{}", STANDARD.encode(body)),
    }
}
