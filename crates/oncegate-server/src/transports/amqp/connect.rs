//! Connections to a broker.

use std::time::Duration;

use lapin::{Connection, ConnectionProperties};
use tokio::task::JoinHandle;

use crate::config::SecretUrl;

/// How long a caller waits for a connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Makes connections, one at a time.
pub struct Connector {
    url: SecretUrl,
    name: String,
    /// A connection that is being made. If a silent broker exceeds the time-out, the next call waits for the same attempt:
    /// an attempt that has begun cannot be cancelled.
    pending: Option<JoinHandle<lapin::Result<Connection>>>,
}

impl Connector {
    pub fn new(url: SecretUrl, name: String) -> Connector {
        Connector { url, name, pending: None }
    }

    pub async fn connect(&mut self) -> Result<Connection, String> {
        let begin = || {
            let (url, name) = (self.url.expose().to_owned(), self.name.as_str().into());
            let options = ConnectionProperties::default().with_connection_name(name);
            tokio::spawn(async move { Connection::connect(&url, options).await })
        };
        let pending = self.pending.get_or_insert_with(begin);
        let Ok(connected) = tokio::time::timeout(CONNECT_TIMEOUT, pending).await else {
            return Err(format!("no connection to {} within {CONNECT_TIMEOUT:?}", self.url));
        };
        self.pending = None;
        match connected {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(format!("no connection to {}: {error}", self.url)),
            Err(_) => Err(format!("no connection to {}: the attempt was ended", self.url)),
        }
    }
}
