//! RabbitMQ: events from queues, and actions to exchanges.
//!
//! A message is acknowledged once what it brought is committed: if we die before that, it comes again, and is a duplicate. What is published
//! counts as delivered when the broker has confirmed it. A connection that breaks is made anew.

mod consume;
mod publish;

use std::time::Duration;

use lapin::{Connection, ConnectionProperties};

pub use consume::{Consumers, start};
pub use publish::Publisher;

use crate::config::SecretUrl;

/// Between two attempts to connect.
const RECONNECT_MIN: Duration = Duration::from_millis(200);
const RECONNECT_MAX: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

async fn connect(url: &SecretUrl, name: &str) -> Result<Connection, String> {
    let options = ConnectionProperties::default().with_connection_name(name.into());
    match tokio::time::timeout(CONNECT_TIMEOUT, Connection::connect(url.expose(), options)).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => Err(format!("no connection to {url}: {error}")),
        Err(_) => Err(format!("no connection to {url} within {CONNECT_TIMEOUT:?}")),
    }
}
