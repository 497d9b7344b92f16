//! All settings.
//!
//! A new setting is a line here and a field of [`Config`](super::Config). A segment `*`
//! stands for a name that the user chooses.

use std::time::Duration;

use oncegate_core::limits::{LEASE_MAX, SPAN_MIN, WAIT_MAX, WINDOW_MAX};

use super::error::nearest;
use super::path::KeyPath;
use super::value::Kind;

#[derive(Debug)]
pub struct Setting {
    /// The dotted key; a segment `*` is a name that the user chooses.
    pub key: &'static str,
    pub kind: Kind,
    /// The default as it would be written, without quotes. A setting under `*` has none: its missing value comes from elsewhere.
    pub default: Option<&'static str>,
    /// One line for people.
    pub doc: &'static str,
    /// The value must not be shown or repeated in an error.
    pub secret: bool,
}

/// The segment that matches a name that the user chooses.
pub const ANY: &str = "*";

/// Tables that are written as a list, `[[…]]`: their names are numbers, from 1 on.
const LISTS: [&str; 2] = ["amqp.consume", "nats.consume"];

pub fn is_list(table: &KeyPath) -> bool {
    LISTS.contains(&table.to_string().as_str())
}

const KIB: u64 = 1024;
const BODY: Kind = Kind::Size { min: KIB, max: 64 * KIB * KIB };
const CONNECTIONS: Kind = Kind::Integer { min: 1, max: 1_000_000 };
const COUNT: Kind = Kind::Integer { min: 1, max: 1_000_000 };
const MEMORY: Kind = Kind::Size { min: 64 * KIB, max: 256 * KIB * KIB };
const QUOTA: Kind = Kind::Integer { min: 0, max: u64::MAX >> 1 };
const STORED: Kind = Kind::Size { min: 0, max: u64::MAX >> 1 };
const RATE: Kind = Kind::Integer { min: 0, max: 1_000_000 };
const SAGA_STEPS: Kind = Kind::Integer { min: 1000, max: 1_000_000_000_000 };
const SCHEDULES: Kind = Kind::Integer { min: 0, max: 10_000 };
const SCHEDULE_INTERVAL: Kind = Kind::Duration { min: SPAN_MIN, max: WINDOW_MAX };
const WINDOW: Kind = Kind::Duration { min: SPAN_MIN, max: WINDOW_MAX };
const LEASE: Kind = Kind::Duration { min: SPAN_MIN, max: LEASE_MAX };
const LOST: Kind = Kind::Choice(&["take_over", "hold"]);
const STORE_ERROR: Kind = Kind::Choice(&["closed", "open"]);
const WAIT: Kind = Kind::Duration { min: Duration::ZERO, max: WAIT_MAX };
const TIMEOUT: Kind = Kind::Duration { min: Duration::from_millis(100), max: Duration::from_secs(600) };
const WORKERS: Kind = Kind::Integer { min: 1, max: 100_000 };
const MODE: Kind = Kind::Choice(&["enforce", "observe", "off"]);
const FAILED: Kind = Kind::Choice(&["release", "hold"]);
const CHANNEL: Kind = Kind::Choice(&["http", "smtp", "log"]);
const WINDOW_SECONDS: Kind = Kind::Seconds { max: WINDOW_MAX };
const ATTEMPTS: Kind = Kind::Integer { min: 1, max: 1000 };
const FOLDING: Kind = Kind::Choice(&["replace", "keep_first", "debounce", "merge", "off"]);
const HANDLER: Kind = Kind::Choice(&["webhook", "email", "log", "saga", "amqp", "nats"]);
const LOST_SEND: Kind = Kind::Choice(&["resend", "skip", "hold"]);
const RETRIES: Kind = Kind::Millis { max: Duration::from_secs(60) };
const PREFETCH: Kind = Kind::Integer { min: 1, max: 10_000 };
const DELIVERY: Kind = Kind::Choice(&["at_least_once", "at_most_once"]);
const LOG_FORMAT: Kind = Kind::Choice(&["json", "pretty"]);
const LOG_LEVEL: Kind = Kind::Choice(&["error", "warn", "info", "debug", "trace"]);

const fn setting(key: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Setting {
    Setting { key, kind, default: Some(default), doc, secret: false }
}

const fn override_of(key: &'static str, kind: Kind, doc: &'static str) -> Setting {
    Setting { key, kind, default: None, doc, secret: false }
}

/// All settings, in the order in which they are shown.
pub static SETTINGS: &[Setting] = &[
    setting("listen", Kind::Address, "127.0.0.1:4600", "the address to listen on; port 0 takes a free one"),
    Setting {
        secret: true,
        ..setting("store", Kind::StoreUrl, "sqlite:oncegate-data/oncegate.db", "where everything is kept")
    },
    Setting {
        secret: true,
        default: None,
        ..setting("guard_store", Kind::StoreUrl, "", "where claims are kept, if not in `store`")
    },
    setting(
        "data_dir",
        Kind::Text,
        "oncegate-data",
        "the folder of the embedded store, where `store` does not say otherwise, and of `sends.jsonl` and `actions.jsonl`",
    ),
    setting("auth.required", Kind::Bool, "false", "whether every request needs a key, from the first start on"),
    Setting {
        default: None,
        ..setting(
            "metrics.listen",
            Kind::Address,
            "",
            "an address where /metrics needs no key; none, if it is left out",
        )
    },
    setting("limits.body", BODY, "1MiB", "the largest request body"),
    setting("limits.event_body", BODY, "4MiB", "the largest body of events"),
    setting("limits.connections", CONNECTIONS, "10000", "connections at once"),
    setting("limits.saga_steps", SAGA_STEPS, "1000000", "steps that the expressions of one event may take"),
    setting("limits.schedules", SCHEDULES, "1000", "recurring schedules of each workspace"),
    setting("limits.schedule_interval", SCHEDULE_INTERVAL, "1m", "the shortest interval of a recurring schedule"),
    setting("limits.rate", RATE, "0", "requests a second for each workspace, items of lists included; 0 is no limit"),
    setting("limits.workspace.connections", COUNT, "2500", "connections of one workspace"),
    setting("limits.workspace.requests", COUNT, "2500", "requests in flight of one workspace"),
    setting("limits.workspace.waiters", COUNT, "2000", "callers of one workspace that wait for a claim or an action"),
    setting("limits.workspace.followers", COUNT, "64", "live views and `oncegate tail`s of one workspace"),
    setting("limits.workspace.lookups", COUNT, "16", "lookups of one workspace at once; more wait for their turn"),
    setting(
        "limits.workspace.bodies",
        MEMORY,
        "64MiB",
        "bodies of one workspace that are being read; more wait for their turn",
    ),
    setting(
        "limits.workspace.answers",
        MEMORY,
        "48MiB",
        "large answers of one workspace that its clients have not read yet",
    ),
    setting(
        "limits.workspace.claims",
        QUOTA,
        "10000000",
        "claims and records that one workspace has stored; 0 is no limit",
    ),
    setting("limits.workspace.stored", STORED, "16GiB", "what one workspace has stored; 0 is no limit"),
    override_of("tls.certificate_file", Kind::Text, "the certificate chain (PEM) of the listener; it speaks TLS then"),
    override_of("tls.key_file", Kind::Text, "the private key (PEM) of the listener"),
    setting("claims.window", WINDOW, "24h", "how long a settled claim stops duplicates"),
    setting("claims.lease", LEASE, "30s", "how long an owner may be silent before it counts as dead"),
    setting("claims.lost", LOST, "take_over", "what happens to the claim of an owner that died"),
    setting("claims.store_error", STORE_ERROR, "closed", "what to do when the store is away"),
    override_of("claims.guard.*.window", WINDOW, "the same, for one guard"),
    override_of("claims.guard.*.lease", LEASE, "the same, for one guard"),
    override_of("claims.guard.*.lost", LOST, "the same, for one guard"),
    override_of("claims.guard.*.store_error", STORE_ERROR, "the same, for one guard"),
    override_of("claims.guard.*.store_parts", Kind::Bool, "privacy.store_parts, for one guard"),
    setting("outgoing.allow", Kind::Networks, "", "addresses to call although they are private, loopback or the like"),
    setting("outgoing.allow_payload", Kind::Networks, "", "the same, of URLs that payloads name (`allow_payload_url`)"),
    setting("outgoing.timeout", TIMEOUT, "10s", "how long a call may take"),
    setting("messages.mode", MODE, "enforce", "whether duplicates are stopped, only reported, or not looked for"),
    setting("messages.window", WINDOW, "15m", "how long the same message is a duplicate"),
    setting("messages.wait", WAIT, "3s", "how long a duplicate waits for a request that is still under way"),
    setting("messages.send_wait", WAIT, "10s", "how long a request waits for its send"),
    setting("messages.idempotency_window", WINDOW, "24h", "how long the answer to an Idempotency-Key is kept"),
    setting("messages.failed", FAILED, "release", "what a send that surely failed leaves to the next identical one"),
    setting("messages.store_error", STORE_ERROR, "open", "what a request does while the guard store is away"),
    setting("messages.lease", LEASE, "30s", "how long a sender may be silent before it counts as dead"),
    setting("messages.workers", WORKERS, "256", "sends at once"),
    override_of("messages.channel.*.kind", CHANNEL, "how the channel sends; log, if it is left out"),
    override_of("messages.channel.*.url", Kind::Text, "of the provider (http, https), or the server (smtp, smtps)"),
    override_of("messages.channel.*.honours_key", Kind::Bool, "the provider takes one Idempotency-Key once"),
    override_of("messages.channel.*.timeout", TIMEOUT, "outgoing.timeout, for one channel"),
    override_of("messages.channel.*.authorization_file", Kind::Text, "http: a file with the Authorization header"),
    override_of("messages.channel.*.from", Kind::Text, "smtp: the sender"),
    override_of("messages.channel.*.subject", Kind::Text, "smtp: the subject; the first line, if it is left out"),
    override_of("messages.channel.*.username", Kind::Text, "smtp: the user name"),
    override_of("messages.channel.*.password_file", Kind::Text, "smtp: a file with the password"),
    override_of("messages.channel.*.fields.id", Kind::Text, "http: what the provider calls it"),
    override_of("messages.channel.*.fields.channel", Kind::Text, "http: what the provider calls it"),
    override_of("messages.channel.*.fields.recipientPhone", Kind::Text, "http: what the provider calls it"),
    override_of("messages.channel.*.fields.recipientEmail", Kind::Text, "http: what the provider calls it"),
    override_of("messages.channel.*.fields.message", Kind::Text, "http: what the provider calls it"),
    override_of("messages.channel.*.fields.attachments", Kind::Text, "http: what the provider calls it"),
    override_of("messages.channel.*.fields.metadata", Kind::Text, "http: what the provider calls it"),
    setting("actions.window_seconds", WINDOW_SECONDS, "5", "how long duplicates fold into one action; 0 turns it off"),
    setting("actions.mode", FOLDING, "replace", "what duplicates become"),
    setting("actions.lease", LEASE, "30s", "how long a worker may be silent before it counts as dead"),
    setting("actions.max_attempts", ATTEMPTS, "5", "how often an action is tried"),
    setting("actions.workers", WORKERS, "16", "actions at once, of which one workspace has three quarters at most"),
    override_of("actions.type.*.handler", HANDLER, "who runs actions of this type; remote workers, if it is left out"),
    override_of(
        "actions.type.*.url",
        Kind::Text,
        "webhook: where to (http, https); email: the server (smtp, smtps), or the provider (http, https)",
    ),
    override_of("actions.type.*.allow_payload_url", Kind::Bool, "webhook: whether `payload.url` names the receiver"),
    override_of("actions.type.*.secret_file", Kind::Text, "webhook: a file with the secrets (whsec_…), one a line"),
    override_of("actions.type.*.timeout", TIMEOUT, "outgoing.timeout, for one type"),
    override_of("actions.type.*.window_seconds", WINDOW_SECONDS, "the same, for one type"),
    override_of("actions.type.*.mode", FOLDING, "the same, for one type"),
    override_of("actions.type.*.max_attempts", ATTEMPTS, "the same, for one type"),
    override_of("actions.type.*.delivery", DELIVERY, "whether a try that may have arrived is repeated"),
    override_of("actions.type.*.from", Kind::Text, "email: the sender"),
    override_of("actions.type.*.authorization_file", Kind::Text, "email by http: a file with the Authorization header"),
    override_of("actions.type.*.username", Kind::Text, "email: who signs in"),
    override_of("actions.type.*.password_file", Kind::Text, "email: a file with the password"),
    override_of("actions.type.*.event", Kind::Text, "saga: the event that it becomes; its type, if it is left out"),
    override_of("actions.type.*.exchange", Kind::Text, "amqp: where to; the default exchange, if it is left out"),
    override_of("actions.type.*.routing_key", Kind::Text, "amqp: under which key; the type, if it is left out"),
    override_of("actions.type.*.subject", Kind::Text, "nats: where to; the type, if it is left out"),
    setting("sends.lost", LOST_SEND, "resend", "what happens to a send whose worker died while sending"),
    setting("sends.lease", LEASE, "60s", "how long a worker may be silent before it counts as dead"),
    setting("sends.keep", WINDOW, "365d", "how long a send is kept, and is not sent again"),
    override_of("sends.reconcile_url", Kind::Text, "who is asked whether the provider has a send that is unknown"),
    setting("reminders.grace", WINDOW, "10m", "how late a reminder may be sent, and be tried again"),
    setting("sagas.files", Kind::Texts, "", "the definitions of sagas"),
    setting(
        "sagas.retry_ms",
        RETRIES,
        "100,200,500",
        "how long an event waits after each conflict before it is applied anew",
    ),
    Setting { secret: true, ..override_of("amqp.url", Kind::Text, "the broker: amqp://user:password@host:5672/vhost") },
    override_of("amqp.consume.*.queue", Kind::Text, "a queue whose messages are events, as for POST /api/events"),
    override_of("amqp.consume.*.workspace", Kind::Text, "whose events they are; default, if it is left out"),
    override_of("amqp.consume.*.prefetch", PREFETCH, "messages at once; 32, if it is left out"),
    Setting { secret: true, ..override_of("nats.url", Kind::Text, "the server: nats://user:password@host:4222") },
    override_of("nats.consume.*.stream", Kind::Text, "a stream whose messages are events, as for POST /api/events"),
    override_of(
        "nats.consume.*.durable",
        Kind::Text,
        "the consumer, which is made if it is not there; oncegate, if it is left out",
    ),
    override_of("nats.consume.*.workspace", Kind::Text, "whose events they are; default, if it is left out"),
    override_of("nats.consume.*.prefetch", PREFETCH, "messages at once; 32, if it is left out"),
    override_of("workspace.*.actions.type.*.url", Kind::Text, "actions.type.*.url, for one workspace"),
    override_of("workspace.*.actions.type.*.secret_file", Kind::Text, "the same, for one workspace"),
    override_of("workspace.*.actions.type.*.from", Kind::Text, "the same, for one workspace"),
    override_of("workspace.*.actions.type.*.authorization_file", Kind::Text, "the same, for one workspace"),
    override_of("workspace.*.actions.type.*.username", Kind::Text, "the same, for one workspace"),
    override_of("workspace.*.actions.type.*.password_file", Kind::Text, "the same, for one workspace"),
    override_of("workspace.*.messages.channel.*.url", Kind::Text, "messages.channel.*.url, for one workspace"),
    override_of("workspace.*.messages.channel.*.authorization_file", Kind::Text, "the same, for one workspace"),
    override_of("workspace.*.messages.channel.*.from", Kind::Text, "the same, for one workspace"),
    override_of("workspace.*.messages.channel.*.subject", Kind::Text, "the same, for one workspace"),
    override_of("workspace.*.messages.channel.*.username", Kind::Text, "the same, for one workspace"),
    override_of("workspace.*.messages.channel.*.password_file", Kind::Text, "the same, for one workspace"),
    setting("privacy.store_parts", Kind::Bool, "false", "whether the parts of a key are kept with its claim"),
    setting("privacy.store_outcome_body", Kind::Bool, "true", "whether the body of an outcome is kept"),
    setting("log.format", LOG_FORMAT, "json", "how log lines are written"),
    setting("log.level", LOG_LEVEL, "info", "the least that is logged"),
];

impl Setting {
    pub fn segments(&self) -> impl Iterator<Item = &'static str> {
        self.key.split('.')
    }

    /// Whether the value is a URL, with or without a scheme.
    pub fn is_url(&self) -> bool {
        self.key.ends_with("url")
    }

    pub fn is_override(&self) -> bool {
        self.segments().any(|segment| segment == ANY)
    }

    /// The setting's table, with `*` segments; empty at the top.
    pub fn table(&self) -> &'static str {
        self.key.rsplit_once('.').map_or("", |(table, _)| table)
    }

    /// The names in `path`, a path of this setting, that the user chose.
    pub fn names_chosen<'a>(&self, path: &'a KeyPath) -> impl Iterator<Item = &'a str> {
        self.segments().zip(path.segments()).filter(|(segment, _)| *segment == ANY).map(|(_, name)| name.as_str())
    }

    /// Whether `path` is this setting, or a prefix of it.
    fn begins_with(&self, path: &KeyPath) -> bool {
        let mut segments = self.segments();
        path.segments().iter().all(|named| segments.next().is_some_and(|segment| segment == ANY || segment == named))
    }
}

/// What a path in the configuration leads to.
pub enum Place {
    Value(&'static Setting),
    Table,
    Unknown,
}

pub fn place(path: &KeyPath) -> Place {
    let towards: Vec<_> = SETTINGS.iter().filter(|setting| setting.begins_with(path)).collect();
    match towards.iter().find(|setting| setting.segments().count() == path.segments().len()) {
        Some(setting) => Place::Value(setting),
        None if towards.is_empty() => Place::Unknown,
        None => Place::Table,
    }
}

/// Whether the user chooses the names in this table.
pub fn is_named_by_user(table: &KeyPath) -> bool {
    names_in(table).any(|name| name == ANY)
}

/// The valid names in a table, each as often as there are settings behind it.
fn names_in(table: &KeyPath) -> impl Iterator<Item = &'static str> {
    let depth = table.segments().len();
    SETTINGS
        .iter()
        .filter(|setting| setting.begins_with(table))
        .filter_map(move |setting| setting.segments().nth(depth))
}

/// The valid key that an unknown key most likely meant.
pub fn suggest(unknown: &KeyPath) -> String {
    let (table, written) = unknown.split_last().unwrap_or_default();
    if let Some(name) = nearest(written, names_in(&table)) {
        return format!("did you mean `{}`?", table.child(name));
    }
    let fixed = || SETTINGS.iter().filter(|setting| !setting.is_override());
    let elsewhere = fixed().find(|setting| setting.segments().last() == Some(written)).map(|setting| setting.key);
    match elsewhere.or_else(|| nearest(&unknown.to_string(), fixed().map(|setting| setting.key))) {
        Some(key) => format!("did you mean `{key}`?"),
        None => list_of(&table),
    }
}

fn list_of(table: &KeyPath) -> String {
    let mut names: Vec<_> = names_in(table).collect();
    names.dedup();
    match (names.join(", "), table.segments().is_empty()) {
        (names, true) => format!("there are: {names}"),
        (names, false) if names.is_empty() => list_of(&KeyPath::default()),
        (names, false) => format!("in [{table}] there are: {names}"),
    }
}
