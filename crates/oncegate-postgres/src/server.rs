//! Where the server is, and how a connection to it begins.

use std::sync::Arc;
use std::time::Duration;

use oncegate_store::{Clock, StoreError};
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, SimpleQueryMessage, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::fault::{Fault, describe};
use crate::health::{Health, Identity};
use crate::tls::Asked;

const SESSION: &str = include_str!("../sql/session.sql");
const SESSION_STATE: &str = include_str!("../sql/session_state.sql");

/// The time limit to connect and set up the session.
pub(crate) const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// The pause between two attempts to connect.
pub(crate) const CONNECT_PAUSE: Duration = Duration::from_millis(250);
/// The time limit for any one statement. Less than the server's own limit in `session.sql`, so that the store gives up first.
pub(crate) const STATEMENT_WITHIN: Duration = Duration::from_millis(2500);
/// The time limit from the call to the answer. A commit that is still under way then may be written anyway.
pub(crate) const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// The default schema.
const SCHEMA: &str = "oncegate";
/// A PostgreSQL identifier has at most 63 bytes, and the channel's name needs some of them.
const SCHEMA_BYTES_MAX: usize = 48;

/// Measured with 256 callers: one pipeline is the fastest where a COMMIT takes 0.1 ms. Two pipelines lose little there, and gain where a COMMIT
/// takes 4 ms. More pipelines only divide the batches.
const PIPELINES: usize = 2;

/// How to open a store.
#[derive(Clone)]
pub struct Options {
    /// Tests inject their own time; otherwise the server's clock is used.
    pub clock: Option<Arc<dyn Clock>>,
    /// The schema for the tables, which should contain nothing else; `oncegate` by default. Created if it is missing.
    pub schema: Option<String>,
    /// Connections that write and commit, each a batch at a time. A few are enough, because commits that wait for the same one share
    /// its COMMIT.
    pub pipelines: usize,
    /// Whether to bring an old schema up to date. Otherwise it is refused.
    pub migrate: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { clock: None, schema: None, pipelines: PIPELINES, migrate: true }
    }
}

/// A connection whose driver is not running yet.
pub(crate) type Raw =
    (Client, tokio_postgres::Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>);

pub(crate) struct Server {
    config: Config,
    tls: MakeRustlsConnect,
    clock: Option<Arc<dyn Clock>>,
    pub schema: String,
    session: String,
    /// Host, port and database for messages, without credentials.
    pub place: String,
    pub health: Health,
}

impl Server {
    pub fn new(url: &str, options: &Options) -> Result<Server, StoreError> {
        let asked = Asked::of(url)?;
        let mut config: Config = asked.url.parse().map_err(|error: tokio_postgres::Error| {
            StoreError::Refused(format!("not a PostgreSQL URL that this build understands: {}", describe(&error)))
        })?;
        if config.get_hosts().len() > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if config.get_application_name().is_none() {
            config.application_name("oncegate");
        }
        config
            .connect_timeout(CONNECT_WITHIN)
            .tcp_user_timeout(Duration::from_secs(5))
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(2))
            .keepalives_retries(3);
        let schema = options.schema.as_deref().unwrap_or(SCHEMA).to_owned();
        check_schema(&schema)?;
        let session = format!("{SESSION}SET search_path = \"{schema}\";{SESSION_STATE}");
        let place = place(&config);
        let (tls, clock) = (asked.connector()?, options.clock.clone());
        Ok(Server { config, tls, clock, schema, session, place, health: Health::default() })
    }

    /// The time that a test injects; `None` to use the server's clock.
    pub fn injected_time(&self) -> Option<i64> {
        self.clock.as_ref().map(|clock| clock.now().micros())
    }

    /// Opens a connection. Its session is not set up, and its driver is not running yet.
    pub async fn connect(&self) -> Result<Raw, Fault> {
        let connecting = self.config.connect(self.tls.clone());
        let connected = tokio::time::timeout(CONNECT_WITHIN, connecting).await;
        let why = match connected {
            Ok(Ok(raw)) => return Ok(raw),
            Ok(Err(error)) => describe(&error),
            Err(_) => format!("no answer within {CONNECT_WITHIN:?}"),
        };
        Err(Fault::Gone(format!("cannot connect to {}: {why}", self.place)))
    }

    /// Sets up the session, and identifies the server. Refuses a server that does not accept writes, because its data may be outdated.
    pub async fn begin_session(&self, client: &Client) -> Result<Identity, Fault> {
        let begun = tokio::time::timeout(CONNECT_WITHIN, client.simple_query(&self.session)).await;
        let said = begun.map_err(|_| Fault::silent_for(CONNECT_WITHIN))??;
        let row = said.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let row = row.ok_or_else(|| Fault::Unable("the server did not tell its identity".into()))?;
        let place = &self.place;
        match (row.get("is_standby"), row.get("is_read_only")) {
            (Some("t"), _) => Err(Fault::Gone(format!(
                "{place} is a standby, which cannot be written to. hint: name the primary, or all hosts, in the URL"
            ))),
            (_, Some("t")) => Err(Fault::Gone(format!(
                "{place} is read-only (default_transaction_read_only is on), and Oncegate has to write"
            ))),
            _ => {
                let text = |column: &str| row.get(column).unwrap_or_default();
                let timeline = u32::from_str_radix(text("timeline"), 16);
                let timeline = timeline.map_err(|_| Fault::Unable("the server does not tell its timeline".into()))?;
                Ok(Identity { system: text("system").to_owned(), timeline, started: text("started").to_owned() })
            }
        }
    }
}

/// Accepts only names that need no quoting.
fn check_schema(schema: &str) -> Result<(), StoreError> {
    let well_formed = !schema.is_empty()
        && schema.len() <= SCHEMA_BYTES_MAX
        && !schema.starts_with(|first: char| first.is_ascii_digit())
        && schema.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if well_formed {
        return Ok(());
    }
    Err(StoreError::Refused(format!(
        "a schema's name is 1 to {SCHEMA_BYTES_MAX} characters of a-z, 0-9 and '_', not starting with a digit"
    )))
}

fn place(config: &Config) -> String {
    let hosts = config.get_hosts().iter().enumerate().map(|(i, host)| {
        let port = config.get_ports().get(i).or(config.get_ports().first()).copied().unwrap_or(5432);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            #[cfg(unix)]
            Host::Unix(path) => format!("{}:{port}", path.display()),
        }
    });
    let database = config.get_dbname().or(config.get_user()).unwrap_or("postgres");
    format!("{}/{database}", hosts.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_names_no_credentials() {
        let url = "postgres://ann:secret@db.example:6432/ledger";
        let server = Server::new(url, &Options::default()).unwrap();
        assert_eq!(server.place, "db.example:6432/ledger");
    }

    #[test]
    fn a_bad_url_is_refused_without_its_password() {
        let refused = Server::new("postgres://ann:secret@db.example:port/x", &Options::default()).err().unwrap();
        assert!(!refused.to_string().contains("secret"), "{refused}");
    }

    #[test]
    fn a_schema_needs_no_quoting() {
        for good in ["public", "oncegate_7", "_t"] {
            assert!(check_schema(good).is_ok(), "{good}");
        }
        for bad in ["", "7th", "a\"b", "A", "a b", &"x".repeat(SCHEMA_BYTES_MAX + 1)] {
            assert!(check_schema(bad).is_err(), "{bad}");
        }
    }
}
