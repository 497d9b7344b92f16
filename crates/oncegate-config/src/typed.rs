//! The configuration as the program uses it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use oncegate::actions::Mode as Folding;
use oncegate::messages::Options as MessageOptions;
use oncegate::sends::Lost;
use oncegate_core::job::Delivery;
use oncegate_core::{GuardName, Policy, WorkspaceName};
use url::Url;

use super::secret_url::SecretUrl;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub listen: SocketAddr,
    pub store: SecretUrl,
    /// Where claims are kept, if not in `store`.
    pub guard_store: Option<SecretUrl>,
    pub data_dir: PathBuf,
    pub auth: Auth,
    pub metrics: Metrics,
    pub limits: Limits,
    /// None: the listener speaks plain HTTP.
    pub tls: Option<Tls>,
    pub claims: Claims,
    pub outgoing: Outgoing,
    pub messages: Messages,
    pub actions: Actions,
    pub sends: Sends,
    pub reminders: Reminders,
    pub sagas: Sagas,
    pub amqp: Amqp,
    pub nats: Nats,
    pub privacy: Privacy,
    pub log: Log,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auth {
    /// The server is never open: its first start makes a key.
    pub required: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// The address of the separate metrics listener, which needs no key.
    pub listen: Option<SocketAddr>,
}

impl Config {
    /// The scheme of the server's own URLs.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub body_bytes: usize,
    /// The maximum body of an event.
    pub event_body_bytes: usize,
    pub connections: usize,
    /// The maximum number of steps that the expressions of one event may take.
    pub saga_steps: u64,
    /// The maximum number of recurring schedules of each workspace, and the shortest interval of one.
    pub schedules: usize,
    pub schedule_interval: Duration,
    /// Requests a second for each workspace. None: no limit.
    pub rate: Option<u32>,
    pub workspace: WorkspaceLimits,
}

/// The limits of one workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceLimits {
    pub connections: usize,
    pub requests: usize,
    pub waiters: usize,
    pub followers: usize,
    pub lookups: usize,
    pub body_bytes: usize,
    pub answer_bytes: usize,
    /// None: no limit.
    pub claims: Option<u64>,
    pub stored_bytes: Option<u64>,
}

impl WorkspaceLimits {
    /// Whether the workspace has reached its limit.
    pub fn is_reached_by(&self, claims: u64, bytes: u64) -> bool {
        self.claims.is_some_and(|max| claims >= max) || self.stored_bytes.is_some_and(|max| bytes >= max)
    }
}

/// The files of the listener's certificate and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The policy of every guard without its own.
    pub policy: Policy,
    pub guards: BTreeMap<GuardName, Policy>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Private addresses that payloads may name.
    pub allow_payload: Vec<IpNet>,
    pub allow: Vec<IpNet>,
    pub timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Messages {
    pub options: MessageOptions,
    pub workers: usize,
    /// A channel without an entry writes to the log of sends.
    pub channels: BTreeMap<String, Channel>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    pub kind: ChannelKind,
    /// The kinds for workspaces that have their own settings.
    pub of_workspaces: BTreeMap<WorkspaceName, ChannelKind>,
    /// The provider accepts one Idempotency-Key once, so a request that may have arrived can be sent again.
    pub honours_key: bool,
    pub timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelKind {
    Log,
    Http {
        url: Url,
        authorization_file: Option<PathBuf>,
        /// The provider's names of fields, where they differ from ours.
        fields: BTreeMap<String, String>,
    },
    Smtp {
        url: Url,
        from: String,
        subject: Option<String>,
        username: Option<String>,
        password_file: Option<PathBuf>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actions {
    pub lease: Duration,
    pub workers: usize,
    /// The settings of every type without its own.
    pub general: ActionType,
    pub types: BTreeMap<String, ActionType>,
}

impl Actions {
    pub fn of_type(&self, name: &str) -> &ActionType {
        self.types.get(name).unwrap_or(&self.general)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionType {
    /// None: remote workers run it.
    pub handler: Option<HandlerKind>,
    /// The handlers for workspaces that have their own settings.
    pub of_workspaces: BTreeMap<WorkspaceName, HandlerKind>,
    pub window: Duration,
    pub mode: Folding,
    pub max_attempts: i32,
    pub delivery: Delivery,
    pub timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandlerKind {
    Log,
    Webhook {
        /// None: the payload names the URL.
        url: Option<Url>,
        allow_payload_url: bool,
        secret_file: Option<PathBuf>,
    },
    Email {
        url: Url,
        from: String,
        username: Option<String>,
        password_file: Option<PathBuf>,
        /// The credentials of a provider that takes mail over HTTP.
        authorization_file: Option<PathBuf>,
    },
    /// The action becomes an event.
    Saga {
        /// None: the action's type is the event's.
        event: Option<String>,
    },
    /// It is published to a stream.
    Nats {
        /// None: the action's type is the subject.
        subject: Option<String>,
    },
    /// It is published to an exchange.
    Amqp {
        exchange: String,
        /// None: the action's type is the routing key.
        routing_key: Option<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sends {
    pub lost: Lost,
    pub lease: Duration,
    pub keep: Duration,
    pub reconcile_url: Option<Url>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reminders {
    pub grace: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sagas {
    pub files: Vec<PathBuf>,
    /// The wait of an event after each conflict.
    pub retries: Vec<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amqp {
    pub url: Option<SecretUrl>,
    pub consume: Vec<Consume>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nats {
    pub url: Option<SecretUrl>,
    pub consume: Vec<ConsumeStream>,
}

/// A stream whose messages are events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumeStream {
    pub stream: String,
    pub durable: String,
    pub workspace: WorkspaceName,
    pub prefetch: u16,
}

/// A queue whose messages are events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consume {
    pub queue: String,
    pub workspace: WorkspaceName,
    pub prefetch: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Privacy {
    /// Whether the parts of keys are stored, for guards without their own setting.
    pub store_parts: bool,
    pub store_outcome_body: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    pub format: LogFormat,
    pub level: LogLevel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Json,
    Pretty,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Config {
    /// The policy of a guard: its own if it has one, else the general one.
    pub fn policy(&self, guard: &GuardName) -> &Policy {
        self.claims.guards.get(guard).unwrap_or(&self.claims.policy)
    }
}
