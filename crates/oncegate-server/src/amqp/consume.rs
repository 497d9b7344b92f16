//! Events from queues.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions};
use lapin::types::FieldTable;
use oncegate::StoreError;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{RECONNECT_MAX, RECONNECT_MIN, connect};
use crate::config::{Amqp, Consume, SecretUrl};
use crate::crash;
use crate::events::{Media, Received, read};
use crate::sagas::Director;

/// Before a message goes back to its queue that the store could not be asked about.
const PUT_BACK_PAUSE: Duration = Duration::from_millis(500);

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
pub fn start(config: &Amqp, director: &Arc<Director>) -> Consumers {
    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    for queue in &config.consume {
        let Some(url) = config.url.clone() else { continue };
        let consumer = Consumer { url, queue: queue.clone(), director: director.clone() };
        tasks.spawn(consumer.keep_consuming(stopped.clone()));
    }
    Consumers { stop, tasks }
}

struct Consumer {
    url: SecretUrl,
    queue: Consume,
    director: Arc<Director>,
}

impl Consumer {
    /// Until it is told to stop; where the connection breaks, over a new one.
    async fn keep_consuming(self, mut stopped: watch::Receiver<bool>) {
        let consumer = Arc::new(self);
        let mut pause = RECONNECT_MIN;
        while !*stopped.borrow() {
            match consumer.clone().consume(&mut stopped).await {
                Ok(()) => return,
                Err(Broken { why, has_worked }) => {
                    tracing::warn!(event = "amqp.disconnected", queue = consumer.queue.queue, why);
                    pause = if has_worked { RECONNECT_MIN } else { (pause * 2).min(RECONNECT_MAX) };
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = stopped.wait_for(|stopped| *stopped) => {}
            }
        }
    }

    async fn consume(self: Arc<Self>, stopped: &mut watch::Receiver<bool>) -> Result<(), Broken> {
        let Consume { queue, prefetch, .. } = &self.queue;
        let before = |error: lapin::Error| Broken { why: error.to_string(), has_worked: false };
        let name = format!("oncegate {queue}");
        let connection = connect(&self.url, &name).await.map_err(|why| Broken { why, has_worked: false })?;
        let channel = connection.create_channel().await.map_err(before)?;
        // So many at work: the rest wait with the broker.
        channel.basic_qos(*prefetch, BasicQosOptions::default()).await.map_err(before)?;
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        let tag = name.as_str().into();
        let mut deliveries =
            channel.basic_consume(queue.as_str().into(), tag, options, arguments).await.map_err(before)?;
        tracing::info!(event = "amqp.consuming", queue);
        let mut at_work = JoinSet::new();
        let ended = loop {
            tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => break Ok(()),
                Some(_) = at_work.join_next() => {}
                delivery = deliveries.next() => match delivery {
                    Some(Ok(delivery)) => {
                        at_work.spawn(self.clone().take(delivery));
                    }
                    Some(Err(error)) => break Err(Broken { why: error.to_string(), has_worked: true }),
                    None => break Err(Broken { why: "the broker has ended the consumer".into(), has_worked: true }),
                },
            }
        };
        // Those that are not acknowledged go back to the queue by themselves.
        while at_work.join_next().await.is_some() {}
        let _ = connection.close(200, "stopping".into()).await;
        ended
    }

    /// One message: what it brings is committed before it is acknowledged.
    async fn take(self: Arc<Self>, delivery: Delivery) {
        let queue = &self.queue.queue;
        let answered = match self.handle(&delivery).await {
            Ok(()) => {
                crash::point("amqp.handled").await;
                delivery.ack(BasicAckOptions::default()).await
            }
            Err(error) => {
                tracing::warn!(event = "amqp.put_back", queue, %error);
                tokio::time::sleep(PUT_BACK_PAUSE).await;
                delivery.nack(BasicNackOptions { requeue: true, ..Default::default() }).await
            }
        };
        if let Err(error) = answered {
            // It comes again, and is a duplicate.
            tracing::info!(event = "amqp.not_acknowledged", queue, %error);
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
            Some(media) => read(media, body).map_err(|problem| problem.detail.into_owned()),
            None => Err(format!("the content type is {content_type:?}; it should be application/json")),
        };
        match received {
            Ok(Received { mut events, is_list }) => {
                // What a message is known by, its only event is known by, too.
                if let (false, Some(id)) = (is_list, delivery.properties.message_id())
                    && let [event] = &mut events[..]
                {
                    event.id.get_or_insert_with(|| id.to_string());
                }
                self.director.handle(workspace, &events).await.map(drop)
            }
            // Nobody else will look at it.
            Err(why) => self.director.bury_raw(workspace, text_of(body), why).await.map(drop),
        }
    }
}

/// Why a connection is no more.
struct Broken {
    why: String,
    /// Whether it was there at all.
    has_worked: bool,
}

/// As text, whatever it is.
fn text_of(body: &[u8]) -> String {
    match std::str::from_utf8(body) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("base64:{}", STANDARD.encode(body)),
    }
}
