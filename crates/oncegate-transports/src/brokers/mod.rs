//! Brokers: the server consumes events from their queues, and publishes actions to them.
//!
//! A message is acknowledged once its events are committed. If the server dies before that, the message is delivered again,
//! and is a duplicate. A published message counts as delivered once the broker has confirmed it.

#[cfg(not(all(feature = "amqp", feature = "nats")))]
mod absent;
#[cfg(feature = "amqp")]
mod amqp;
mod intake;
#[cfg(feature = "nats")]
mod nats;

use std::sync::Arc;

use oncegate::WorkspaceName;
use oncegate_config::Config;
use tokio::sync::watch;
use tokio::task::JoinSet;

#[cfg(not(feature = "amqp"))]
use absent as amqp;
#[cfg(not(feature = "nats"))]
use absent as nats;
pub use amqp::Publisher as AmqpPublisher;
pub use intake::{Incoming, Intake, Taker};
pub use nats::Publisher as NatsPublisher;

/// The consumers, until they are stopped.
pub struct Consumers {
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Consumers {
    /// Starts to consume the queues that the configuration names. `taker` takes the messages of a workspace.
    pub fn start<T: Taker>(config: &Config, taker: impl Fn(&WorkspaceName) -> Arc<T>) -> Consumers {
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let intake = |queue: &str, workspace: &WorkspaceName, at_once: u16| {
            let queue = queue.to_owned();
            Arc::new(Intake { queue, at_once, taker: taker(workspace), stopped: stopped.clone() })
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
