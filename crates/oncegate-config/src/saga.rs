//! `[sagas]`, `[amqp]` and `[nats]`.

use oncegate_core::WorkspaceName;

use super::build::{Table, table_of};
use super::error::ConfigError;
use super::layers::Layers;
use super::path::KeyPath;
use super::secret_url::SecretUrl;
use super::typed::{Amqp, Consume, ConsumeStream, Nats, Sagas};

/// The default consumer of a stream.
const DURABLE: &str = "oncegate";
/// The default number of messages in work at once.
const PREFETCH: u16 = 32;

pub fn build(layers: &Layers) -> Sagas {
    let table = table_of(layers, "sagas");
    Sagas { files: table.texts("files").iter().map(Into::into).collect(), retries: table.millis("retry_ms").to_vec() }
}

pub fn build_amqp(layers: &Layers) -> Amqp {
    let url = table_of(layers, "amqp").maybe_text("url").map(|url| SecretUrl(url.to_owned()));
    let consume = |table: Table<'_>| table.consume().expect("its table has been checked");
    Amqp { url, consume: consumers(layers, "amqp").map(consume).collect() }
}

pub fn build_nats(layers: &Layers) -> Nats {
    let url = table_of(layers, "nats").maybe_text("url").map(|url| SecretUrl(url.to_owned()));
    let consume = |table: Table<'_>| table.consume_stream().expect("its table has been checked");
    Nats { url, consume: consumers(layers, "nats").map(consume).collect() }
}

pub fn check_nats(layers: &Layers) -> Result<(), ConfigError> {
    let nats = table_of(layers, "nats");
    let example = "nats://127.0.0.1:4222";
    if nats.maybe_text("url").is_some_and(|url| !is_nats(url)) {
        let at = nats.written("url").map_or_else(String::new, |(_, at)| at);
        // The error does not repeat the value: it may contain a password.
        return Err(ConfigError::new(at, "nats.url is no server's URL", format!("write {example:?}")));
    }
    for table in consumers(layers, "nats") {
        table.consume_stream()?;
        if nats.maybe_text("url").is_none() {
            return Err(nats.missing("url", example));
        }
    }
    Ok(())
}

pub fn check_amqp(layers: &Layers) -> Result<(), ConfigError> {
    let amqp = table_of(layers, "amqp");
    if let Some(url) = amqp.maybe_text("url") {
        // The broker's URL parser would read an IPv6 address as this machine.
        let has_name = url::Url::parse(url).is_ok_and(|url| url.host_str().is_some_and(|host| !host.starts_with('[')));
        if !has_name || !is_amqp(url) {
            let at = amqp.written("url").map_or_else(String::new, |(_, at)| at);
            let hint = r#"write "amqp://user:password@host:5672/%2f", with a name or an IPv4 address"#;
            // The error does not repeat the value: it may contain a password.
            return Err(ConfigError::new(at, "amqp.url is no broker's URL", hint));
        }
    }
    for table in consumers(layers, "amqp") {
        table.consume()?;
        if amqp.maybe_text("url").is_none() {
            return Err(amqp.missing("url", "amqp://127.0.0.1:5672/%2f"));
        }
    }
    Ok(())
}

/// Whether the client accepts this URL, or this address without a scheme.
fn is_nats(url: &str) -> bool {
    let url = if url.contains("://") { url.to_owned() } else { format!("nats://{url}") };
    url::Url::parse(&url).is_ok_and(|url| ["nats", "tls", "ws", "wss"].contains(&url.scheme()))
}

#[cfg(feature = "amqp")]
fn is_amqp(url: &str) -> bool {
    url.parse::<amq_protocol_uri::AMQPUri>().is_ok()
}

#[cfg(not(feature = "amqp"))]
fn is_amqp(_url: &str) -> bool {
    true
}

fn consumers<'a>(layers: &'a Layers, broker: &str) -> impl Iterator<Item = Table<'a>> + use<'a> {
    let consume = KeyPath::of(&[broker, "consume"]);
    let mut numbers = layers.names_in(&consume);
    numbers.sort_by_key(|number| number.parse::<usize>().unwrap_or(usize::MAX));
    numbers.into_iter().map(move |number| Table {
        layers,
        own: consume.child(number),
        general: consume.clone(),
        over: None,
    })
}

impl Table<'_> {
    fn consume(&self) -> Result<Consume, ConfigError> {
        let queue = self.maybe_text("queue").ok_or_else(|| self.missing("queue", "search-events"))?;
        Ok(Consume { queue: queue.to_owned(), workspace: self.workspace()?, prefetch: self.prefetch() })
    }

    fn consume_stream(&self) -> Result<ConsumeStream, ConfigError> {
        let stream = self.maybe_text("stream").ok_or_else(|| self.missing("stream", "SEARCHES"))?.to_owned();
        let durable = self.maybe_text("durable").unwrap_or(DURABLE).to_owned();
        Ok(ConsumeStream { stream, durable, workspace: self.workspace()?, prefetch: self.prefetch() })
    }

    fn prefetch(&self) -> u16 {
        self.maybe_count("prefetch").and_then(|count| u16::try_from(count).ok()).unwrap_or(PREFETCH)
    }

    fn workspace(&self) -> Result<WorkspaceName, ConfigError> {
        match self.maybe_text("workspace") {
            None => Ok(WorkspaceName::default_workspace()),
            Some(name) => WorkspaceName::new(name).map_err(|error| {
                let at = self.written("workspace").map_or_else(String::new, |(_, at)| at);
                ConfigError::new(at, error.to_string(), "write the name of a workspace")
            }),
        }
    }
}
