//! Brokers: the server consumes events from their queues, and publishes actions to them.
//!
//! A message is acknowledged once its events are committed. If the server dies before that, the message is delivered again,
//! and is a duplicate. A published message counts as delivered once the broker has confirmed it.

mod amqp;
mod intake;
mod nats;

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;

pub use amqp::Publisher as AmqpPublisher;
pub use nats::Publisher as NatsPublisher;

use crate::config::Config;
use crate::sagas::Director;
use crate::tenants::Tenants;
use intake::Intake;

/// The consumers, until they are stopped.
pub struct Consumers {
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Consumers {
    /// Starts to consume the queues that the configuration names.
    pub fn start(config: &Config, director: &Arc<Director>, tenants: &Tenants) -> Consumers {
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let body_max = config.limits.event_body_bytes;
        let intake = |queue: &str, workspace: &oncegate::WorkspaceName, at_once: u16| {
            let (queue, workspace, director) = (queue.to_owned(), workspace.clone(), director.clone());
            let tenant = tenants.of(&workspace);
            Arc::new(Intake { queue, workspace, tenant, at_once, body_max, director, stopped: stopped.clone() })
        };
        if let Some(url) = &config.amqp.url {
            for one in &config.amqp.consume {
                let intake = intake(&one.queue, &one.workspace, one.prefetch);
                tasks.spawn(intake.keep_consuming(amqp::Queue::new(url.clone(), &one.queue)));
            }
        }
        if let Some(url) = &config.nats.url {
            for one in &config.nats.consume {
                let intake = intake(&one.durable, &one.workspace, one.prefetch);
                tasks.spawn(intake.keep_consuming(nats::Stream::new(url.clone(), one.stream.clone())));
            }
        }
        Consumers { stop, tasks }
    }

    /// Takes no more messages, and waits for the messages in progress.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}
