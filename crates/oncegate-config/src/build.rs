//! Builds the typed configuration from values, and checks values against each other.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use oncegate::messages::{Mode, Options as MessageOptions};
use oncegate_core::{GuardName, Lost, OnFailure, OnStoreError, Policy, WorkspaceName};

use super::error::ConfigError;
use super::layers::{Entry, Layers, Origin};
use super::path::KeyPath;
use super::secret_url::SecretUrl;
use super::typed::{
    Auth, Channel, ChannelKind, Claims, Config, Limits, Log, LogFormat, LogLevel, Messages, Metrics, Outgoing, Privacy,
    Reminders, Tls, WorkspaceLimits,
};
use super::value::Value;
use super::{action, saga, send};
use oncegate_core::units::show_duration;

/// Builds the configuration from its values.
pub fn build(layers: &Layers) -> Config {
    let top = Table { layers, own: KeyPath::default(), general: KeyPath::default(), over: None };
    let limits = Table { own: KeyPath::of(&["limits"]), ..top.clone() };
    let privacy = Table { own: KeyPath::of(&["privacy"]), ..top.clone() };
    let outgoing = Table { own: KeyPath::of(&["outgoing"]), ..top.clone() };
    let log = Table { own: KeyPath::of(&["log"]), ..top.clone() };
    Config {
        listen: top.address("listen"),
        store: SecretUrl(top.text("store").to_owned()),
        guard_store: top.maybe_text("guard_store").map(|url| SecretUrl(url.to_owned())),
        data_dir: top.text("data_dir").into(),
        auth: Auth { required: table_of(layers, "auth").flag("required") },
        metrics: Metrics { listen: table_of(layers, "metrics").maybe_address("listen") },
        limits: Limits {
            body_bytes: limits.count("body"),
            event_body_bytes: limits.count("event_body"),
            connections: limits.count("connections"),
            saga_steps: limits.count("saga_steps") as u64,
            schedules: limits.count("schedules"),
            schedule_interval: limits.span("schedule_interval"),
            rate: u32::try_from(limits.count("rate")).ok().filter(|rate| *rate > 0),
            workspace: workspace_limits(layers),
        },
        tls: tls(layers).expect("what goes together was checked before"),
        claims: Claims {
            policy: claims_table(layers).policy(),
            guards: guard_tables(layers).map(|(guard, table)| (guard, table.policy())).collect::<BTreeMap<_, _>>(),
        },
        outgoing: Outgoing {
            allow: outgoing.networks("allow"),
            allow_payload: outgoing.networks("allow_payload"),
            timeout: outgoing.span("timeout"),
        },
        messages: messages_table(layers).messages(),
        actions: action::build(layers),
        sends: send::build(layers).expect("its table has been checked"),
        reminders: Reminders { grace: table_of(layers, "reminders").span("grace") },
        sagas: saga::build(layers),
        amqp: saga::build_amqp(layers),
        nats: saga::build_nats(layers),
        privacy: Privacy {
            store_parts: privacy.flag("store_parts"),
            store_outcome_body: privacy.flag("store_outcome_body"),
        },
        log: Log { format: log.log_format(), level: log.log_level() },
    }
}

/// Checks relations between values that are valid by themselves.
pub fn check_relations(layers: &Layers, errors: &mut Vec<ConfigError>) {
    errors.extend(claims_table(layers).lease_fits().err());
    errors.extend(guard_tables(layers).filter_map(|(_, table)| table.lease_fits().err()));
    errors.extend(messages_table(layers).lease_fits().err());
    errors.extend(messages_table(layers).wait_fits().err());
    errors.extend(tls(layers).err());
    errors.extend(send::build(layers).err());
    errors.extend(action::check(layers));
    errors.extend(saga::check_amqp(layers).err());
    errors.extend(saga::check_nats(layers).err());
    let lease = messages_table(layers).span("lease");
    for (_, table) in channel_tables(layers) {
        errors.extend(table.channel().and_then(|channel| table.timeout_fits(channel.timeout, lease)).err());
    }
    for (name, table) in channel_tables(layers) {
        errors.extend(channel_kinds_of_workspaces(layers, &name, &table).filter_map(|(_, kind)| kind.err()));
    }
    errors.extend(strangers(layers, &CHANNELS, "channel"));
}

/// A table at the top level.
pub(super) fn table_of<'a>(layers: &'a Layers, name: &str) -> Table<'a> {
    let own = KeyPath::of(&[name]);
    Table { layers, general: own.clone(), own, over: None }
}

fn workspace_limits(layers: &Layers) -> WorkspaceLimits {
    let table = Table { own: KeyPath::of(&["limits", "workspace"]), ..table_of(layers, "limits") };
    let quota = |name| Some(table.count(name) as u64).filter(|max| *max > 0);
    WorkspaceLimits {
        connections: table.count("connections"),
        requests: table.count("requests"),
        waiters: table.count("waiters"),
        followers: table.count("followers"),
        lookups: table.count("lookups"),
        body_bytes: table.count("bodies"),
        answer_bytes: table.count("answers"),
        claims: quota("claims"),
        stored_bytes: quota("stored"),
    }
}

/// Needs both files, or neither.
fn tls(layers: &Layers) -> Result<Option<Tls>, ConfigError> {
    let table = table_of(layers, "tls");
    match (table.maybe_text("certificate_file"), table.maybe_text("key_file")) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => Ok(Some(Tls { certificate: certificate.into(), key: key.into() })),
        (Some(_), None) => Err(table.missing("key_file", "tls/key.pem")),
        (None, Some(_)) => Err(table.missing("certificate_file", "tls/chain.pem")),
    }
}

fn messages_table(layers: &Layers) -> Table<'_> {
    table_of(layers, "messages")
}

/// The path of the channels' tables.
const CHANNELS: [&str; 2] = ["messages", "channel"];

/// The channel kinds of the workspaces that have their own settings for a channel.
fn channel_kinds_of_workspaces<'a>(
    layers: &'a Layers,
    name: &str,
    table: &Table<'a>,
) -> impl Iterator<Item = (WorkspaceName, Result<ChannelKind, ConfigError>)> {
    let of_channel = of_workspaces(layers, &CHANNELS).into_iter().filter_map(move |(workspace, channels)| {
        layers.names_in(&channels).contains(&name).then(|| {
            let channel = table.of_workspace(channels.child(name)).channel();
            (workspace, channel.map(|channel| channel.kind))
        })
    });
    of_channel.collect::<Vec<_>>().into_iter()
}

/// A channel's missing settings for outgoing calls come from `outgoing`.
pub(super) fn channel_tables(layers: &Layers) -> impl Iterator<Item = (String, Table<'_>)> {
    let channels = KeyPath::of(&CHANNELS);
    layers.names_in(&channels).into_iter().map(move |name| {
        let own = channels.child(name);
        (name.to_owned(), Table { layers, own, general: KeyPath::of(&["outgoing"]), over: None })
    })
}

fn claims_table(layers: &Layers) -> Table<'_> {
    table_of(layers, "claims")
}

fn guard_tables(layers: &Layers) -> impl Iterator<Item = (GuardName, Table<'_>)> {
    let guards = KeyPath::of(&["claims", "guard"]);
    layers.names_in(&guards).into_iter().map(move |name| {
        let guard = GuardName::new(name).expect("the names of guards are checked where they are read");
        (guard, Table { own: guards.child(name), ..claims_table(layers) })
    })
}

/// A table of the configuration; its missing values come from a more general table.
#[derive(Clone)]
pub(super) struct Table<'a> {
    pub layers: &'a Layers,
    pub own: KeyPath,
    pub general: KeyPath,
    /// A workspace's own table, which takes precedence.
    pub over: Option<KeyPath>,
}

/// The workspaces that have their own settings, and their name for this table.
pub(super) fn of_workspaces(layers: &Layers, table: &[&str]) -> Vec<(WorkspaceName, KeyPath)> {
    let workspaces = KeyPath::of(&["workspace"]);
    let named = layers.names_in(&workspaces).into_iter().map(|name| {
        let workspace = WorkspaceName::new(name).expect("the names of workspaces are checked where they are read");
        (workspace, table.iter().fold(workspaces.child(name), |path, name| path.child(name)))
    });
    named.collect()
}

/// Reports settings of a workspace for something that does not exist.
pub(super) fn strangers(layers: &Layers, table: &[&str], what: &str) -> Vec<ConfigError> {
    let known = layers.names_in(&KeyPath::of(table));
    let mut errors = vec![];
    for (workspace, of_workspace) in of_workspaces(layers, table) {
        for name in layers.names_in(&of_workspace).into_iter().filter(|name| !known.contains(name)) {
            let own = of_workspace.child(name);
            let at = layers.iter().find(|(path, _)| path.segments().starts_with(own.segments()));
            let at = at.map_or_else(|| own.to_string(), |(_, entry)| entry.origin.to_string());
            let message = format!("the workspace {workspace} has settings for the {what} {name:?}, which is not there");
            errors.push(ConfigError::new(at, message, format!("write [{}] first", KeyPath::of(table).child(name))));
        }
    }
    errors
}

impl<'a> Table<'a> {
    fn messages(&self) -> Messages {
        let channel = |(name, table): (String, Table<'a>)| {
            let of_workspaces = channel_kinds_of_workspaces(self.layers, &name, &table)
                .map(|(workspace, kind)| (workspace, kind.expect("what goes together was checked before")));
            let of_workspaces = of_workspaces.collect();
            let channel = table.channel().expect("what goes together was checked before");
            (name, Channel { of_workspaces, ..channel })
        };
        let privacy = Table { general: KeyPath::of(&["privacy"]), ..self.clone() };
        let options = MessageOptions {
            mode: match self.text("mode") {
                "observe" => Mode::Observe,
                "off" => Mode::Off,
                _ => Mode::Enforce,
            },
            window: self.span("window"),
            wait: self.span("wait"),
            send_wait: self.span("send_wait"),
            idempotency_window: self.span("idempotency_window"),
            failed: match self.text("failed") {
                "hold" => OnFailure::Keep,
                _ => OnFailure::Release,
            },
            store_error: self.store_error(),
            lease: self.span("lease"),
            store_parts: privacy.flag("store_parts"),
            keep_answers: privacy.flag("store_outcome_body"),
        };
        Messages {
            options,
            workers: self.count("workers"),
            channels: channel_tables(self.layers).map(channel).collect(),
        }
    }

    fn store_error(&self) -> OnStoreError {
        match self.text("store_error") {
            "open" => OnStoreError::Open,
            _ => OnStoreError::Closed,
        }
    }

    /// The entry that is set in this table.
    pub fn own_entry(&self, name: &str) -> Option<&'a Entry> {
        let over = self.over.as_ref().and_then(|over| self.layers.get(&over.child(name)));
        over.or_else(|| self.layers.get(&self.own.child(name)))
    }

    /// The same table, with a workspace's own settings over it.
    pub fn of_workspace(&self, over: KeyPath) -> Table<'a> {
        Table { over: Some(over), ..self.clone() }
    }

    pub fn maybe_text(&self, name: &str) -> Option<&'a str> {
        match &self.own_entry(name)?.value {
            Value::Text(text) => Some(text),
            _ => unreachable!("{name} is text by the table of settings"),
        }
    }

    pub fn maybe_flag(&self, name: &str) -> Option<bool> {
        match self.own_entry(name)?.value {
            Value::Bool(flag) => Some(flag),
            _ => unreachable!("{name} is true or false by the table of settings"),
        }
    }

    pub fn networks(&self, name: &str) -> Vec<IpNet> {
        match &self.entry(name).value {
            Value::Networks(networks) => networks.clone(),
            _ => unreachable!("{name} is a list of networks by the table of settings"),
        }
    }

    fn policy(&self) -> Policy {
        Policy {
            window: self.span("window"),
            lease: self.span("lease"),
            lost: match self.text("lost") {
                "hold" => Lost::Hold,
                _ => Lost::TakeOver,
            },
            // The server itself runs nothing under these guards.
            max_run: None,
            on_failure: OnFailure::default(),
            on_store_error: self.store_error(),
            // The general switch is in the `privacy` table.
            store_parts: Table { general: KeyPath::of(&["privacy"]), ..self.clone() }.flag("store_parts"),
        }
    }

    /// A lease longer than its window would be cut short by the window.
    fn lease_fits(&self) -> Result<(), ConfigError> {
        let (lease, window) = (self.span("lease"), self.span("window"));
        let broken = |name| {
            let (own, general) = (self.own.child(name), self.general.child(name));
            self.layers.is_broken(&own) || (self.layers.get(&own).is_none() && self.layers.is_broken(&general))
        };
        // The error names the value that the user wrote here.
        let written = ["window", "lease"]
            .into_iter()
            .find_map(|name| self.layers.get(&self.own.child(name)).filter(|entry| entry.origin != Origin::Default));
        match written {
            Some(written) if lease > window && !broken("lease") && !broken("window") => {
                let (lease, window) = (show_duration(lease), show_duration(window));
                let what = format!("the lease of [{}] ({lease}) is longer than its window ({window})", self.own);
                let hint = format!("write lease = \"{window}\" or less, or a longer window");
                Err(ConfigError::new(&written.origin, what, hint))
            }
            _ => Ok(()),
        }
    }

    /// A caller that waits as long as the lease would take over the claim that it waits for.
    fn wait_fits(&self) -> Result<(), ConfigError> {
        let (lease, wait) = (self.span("lease"), self.span("wait"));
        let written = ["wait", "lease"]
            .into_iter()
            .find_map(|name| self.layers.get(&self.own.child(name)).filter(|entry| entry.origin != Origin::Default));
        match written {
            Some(written) if wait >= lease => {
                let (lease, wait) = (show_duration(lease), show_duration(wait));
                let what = format!("the wait of [{}] ({wait}) is not shorter than its lease ({lease})", self.own);
                Err(ConfigError::new(&written.origin, what, "write a shorter wait, or a longer lease"))
            }
            _ => Ok(()),
        }
    }

    fn entry(&self, name: &str) -> &'a Entry {
        let own = self.own_entry(name);
        own.or_else(|| self.layers.get(&self.general.child(name))).expect("a setting outside of `*` has a default")
    }

    fn address(&self, name: &str) -> SocketAddr {
        match self.entry(name).value {
            Value::Address(address) => address,
            _ => unreachable!("{name} is an address by the table of settings"),
        }
    }

    fn maybe_address(&self, name: &str) -> Option<SocketAddr> {
        match self.layers.get(&self.own.child(name))?.value {
            Value::Address(address) => Some(address),
            _ => unreachable!("{name} is an address by the table of settings"),
        }
    }

    pub fn count(&self, name: &str) -> usize {
        match self.entry(name).value {
            Value::Integer(count) | Value::Size(count) => usize::try_from(count).unwrap_or(usize::MAX),
            _ => unreachable!("{name} is a number by the table of settings"),
        }
    }

    fn flag(&self, name: &str) -> bool {
        match self.entry(name).value {
            Value::Bool(flag) => flag,
            _ => unreachable!("{name} is true or false by the table of settings"),
        }
    }

    pub fn span(&self, name: &str) -> Duration {
        match self.entry(name).value {
            Value::Duration(span) => span,
            _ => unreachable!("{name} is a duration by the table of settings"),
        }
    }

    pub fn text(&self, name: &str) -> &'a str {
        match &self.entry(name).value {
            Value::Text(text) => text,
            _ => unreachable!("{name} is text by the table of settings"),
        }
    }

    pub fn texts(&self, name: &str) -> &'a [String] {
        match &self.entry(name).value {
            Value::Texts(texts) => texts,
            _ => unreachable!("{name} is a list of texts by the table of settings"),
        }
    }

    pub fn millis(&self, name: &str) -> &'a [Duration] {
        match &self.entry(name).value {
            Value::Millis(spans) => spans,
            _ => unreachable!("{name} is a list of milliseconds by the table of settings"),
        }
    }

    pub fn maybe_count(&self, name: &str) -> Option<usize> {
        self.layers.get(&self.own.child(name)).map(|_| self.count(name))
    }

    pub fn seconds(&self, name: &str) -> Duration {
        match self.entry(name).value {
            Value::Seconds(span) => span,
            _ => unreachable!("{name} is a number of seconds by the table of settings"),
        }
    }

    fn log_format(&self) -> LogFormat {
        match self.text("format") {
            "pretty" => LogFormat::Pretty,
            _ => LogFormat::Json,
        }
    }

    fn log_level(&self) -> LogLevel {
        match self.text("level") {
            "error" => LogLevel::Error,
            "warn" => LogLevel::Warn,
            "debug" => LogLevel::Debug,
            "trace" => LogLevel::Trace,
            _ => LogLevel::Info,
        }
    }
}
