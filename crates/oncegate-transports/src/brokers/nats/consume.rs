//! Events from a stream, by a durable consumer.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::{self, AckKind, Message};
use async_trait::async_trait;
use futures::StreamExt;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::connect;
use crate::brokers::intake::{Broken, Incoming, Intake, Source};
use oncegate_config::SecretUrl;

/// How long a message may be in progress before it is delivered again. While the store is unreachable, the server reports
/// progress more often than that.
const ACK_WAIT: Duration = Duration::from_secs(30);
/// How soon a silent server is noticed.
const HEARTBEAT: Duration = Duration::from_secs(5);
const EXPIRES: Duration = Duration::from_secs(30);

/// A stream, and the durable consumer that reads it. The consumer is created if it does not exist.
pub struct Stream {
    url: SecretUrl,
    stream: String,
}

impl Stream {
    pub fn new(url: SecretUrl, stream: String) -> Stream {
        Stream { url, stream }
    }

    async fn open(&self, intake: &Intake) -> Result<pull::Stream, String> {
        let client = connect(&self.url, format!("oncegate {}", intake.queue)).await?;
        let stream = jetstream::new(client).get_stream(&self.stream).await.map_err(|error| error.to_string())?;
        let config = pull::Config {
            durable_name: Some(intake.queue.clone()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            ..Default::default()
        };
        let consumer = stream.get_or_create_consumer(&intake.queue, config).await.map_err(|error| error.to_string())?;
        let messages = consumer.stream().max_messages_per_batch(intake.at_once.into()).heartbeat(HEARTBEAT);
        messages.expires(EXPIRES).messages().await.map_err(|error| error.to_string())
    }
}

#[async_trait]
impl Source for Stream {
    async fn consume(&mut self, intake: &Arc<Intake>, at_work: &mut JoinSet<()>) -> Broken {
        match self.open(intake).await {
            Ok(messages) => consume(messages, intake, at_work).await,
            Err(why) => Broken::before(why),
        }
    }
}

async fn consume(mut messages: pull::Stream, intake: &Arc<Intake>, at_work: &mut JoinSet<()>) -> Broken {
    tracing::info!(event = "broker.consuming", queue = intake.queue);
    let places = Arc::new(Semaphore::new(intake.at_once.into()));
    loop {
        // A place is taken first, so that a fetched message is processed at once, and not delivered again meanwhile.
        let place = places.clone().acquire_owned().await.expect("never closed");
        tokio::select! {
            Some(_) = at_work.join_next() => {}
            message = messages.next() => match message {
                Some(Ok(message)) => {
                    let taken = intake.clone().take(message);
                    at_work.spawn(async move {
                        taken.await;
                        drop(place);
                    });
                }
                Some(Err(error)) => return Broken::after(error),
                None => return Broken::after("the stream has ended"),
            },
        }
    }
}

#[async_trait]
impl Incoming for Message {
    fn body(&self) -> &[u8] {
        &self.payload
    }

    fn content_type(&self) -> Option<&str> {
        self.headers.as_ref()?.get("Content-Type").map(|value| value.as_str())
    }

    fn id(&self) -> Option<&str> {
        self.headers.as_ref()?.get("Nats-Msg-Id").map(|value| value.as_str())
    }

    async fn in_progress(&self) {
        // If the server does not receive this, the message is delivered again, and is a duplicate.
        let _ = self.ack_with(AckKind::Progress).await;
    }

    async fn acknowledge(&self) -> bool {
        self.ack().await.is_ok()
    }

    async fn reject(&self) {
        let _ = self.ack_with(AckKind::Term).await;
    }
}
