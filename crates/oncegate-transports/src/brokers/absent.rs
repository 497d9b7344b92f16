//! Stands in for a broker that this build leaves out. `check_built` refuses its settings before anything starts.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncegate_config::SecretUrl;
use oncegate_core::job::Failure;
use serde_json::value::RawValue;
use tokio::task::JoinSet;

use super::intake::{Broken, Intake, Source};
use crate::effect::Effect;

pub struct Publisher;

impl Publisher {
    pub fn new(_url: SecretUrl) -> Arc<Publisher> {
        Arc::new(Publisher)
    }

    pub async fn publish(
        &self,
        _to: impl Sized,
        _effect: Effect<'_>,
        _within: Duration,
    ) -> Result<Option<Box<RawValue>>, Failure> {
        Err(Failure::refused("this build of oncegate leaves the broker out"))
    }
}

pub struct Queue;

/// RabbitMQ has queues, and NATS has streams.
#[allow(unused_imports)]
pub use Queue as Stream;

impl Queue {
    pub fn new(_url: SecretUrl, _name: impl Sized) -> Queue {
        Queue
    }
}

#[async_trait]
impl Source for Queue {
    async fn consume(&mut self, _intake: &Arc<Intake>, _at_work: &mut JoinSet<()>) -> Broken {
        Broken::before("this build of oncegate leaves the broker out")
    }
}
