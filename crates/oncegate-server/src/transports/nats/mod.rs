//! NATS JetStream. The client makes its connections anew by itself.

mod consume;
mod publish;

use async_nats::{Client, ConnectOptions};

pub use consume::Stream;
pub use publish::Publisher;

use crate::config::SecretUrl;

async fn connect(url: &SecretUrl, name: String) -> Result<Client, String> {
    let connected = ConnectOptions::new().name(name).connect(url.expose()).await;
    connected.map_err(|error| format!("no connection to {url}: {error}"))
}
