//! `[actions]` and `[actions.type.NAME]`: what belongs to which handler.

use std::collections::BTreeMap;

use oncegate::actions::Mode;
use oncegate_core::WorkspaceName;
use oncegate_core::job::Delivery;

use super::build::{Table, of_workspaces, strangers, table_of};
use super::channel::STARTTLS;
use super::error::ConfigError;
use super::layers::Layers;
use super::path::KeyPath;

use super::typed::{ActionType, Actions, HandlerKind};

/// The path of the types' tables.
const TYPES: [&str; 2] = ["actions", "type"];
/// The settings of a type that apply to one handler only.
const OF_WEBHOOK: &[&str] = &["url", "allow_payload_url", "secret_file", "timeout"];
const OF_EMAIL: &[&str] = &["url", "from", "username", "password_file", "authorization_file", "timeout"];
/// The settings of an email handler that apply to mail servers only, and to providers only.
const OF_SMTP: &[&str] = &["username", "password_file"];
const OF_HTTP: &[&str] = &["authorization_file"];
const OF_SAGA: &[&str] = &["event"];
const OF_AMQP: &[&str] = &["exchange", "routing_key", "timeout"];
const OF_NATS: &[&str] = &["subject", "timeout"];

pub fn build(layers: &Layers) -> Actions {
    let general = general(layers);
    let read = |(name, table): (String, Table<'_>)| {
        let of_workspaces = handlers_of_workspaces(layers, &name, &table)
            .into_iter()
            .filter_map(|(workspace, handler)| Some((workspace, handler.expect("its table has been checked")?)));
        let of_workspaces = of_workspaces.collect();
        let of_type = table.action_type().expect("its table has been checked");
        (name, ActionType { of_workspaces, ..of_type })
    };
    Actions {
        lease: general.span("lease"),
        workers: general.count("workers"),
        general: general.action_type().expect("it has no handler"),
        types: types(layers).map(read).collect(),
    }
}

pub fn check(layers: &Layers) -> Vec<ConfigError> {
    let mut errors = strangers(layers, &TYPES, "type");
    for (name, table) in types(layers) {
        // An error in the type's own table would repeat for each workspace, so it is reported once.
        match table.action_type() {
            Err(error) => errors.push(error),
            Ok(_) => {
                let handlers = handlers_of_workspaces(layers, &name, &table);
                errors.extend(handlers.into_iter().filter_map(|(_, handler)| handler.err()));
            }
        }
    }
    errors
}

/// The handlers of a type for the workspaces that have their own settings for it.
fn handlers_of_workspaces(
    layers: &Layers,
    name: &str,
    table: &Table<'_>,
) -> Vec<(WorkspaceName, Result<Option<HandlerKind>, ConfigError>)> {
    let handler = |(workspace, types): (WorkspaceName, KeyPath)| {
        let is_set = layers.names_in(&types).contains(&name);
        is_set.then(|| (workspace, table.of_workspace(types.child(name)).handler()))
    };
    of_workspaces(layers, &TYPES).into_iter().filter_map(handler).collect()
}

fn general(layers: &Layers) -> Table<'_> {
    table_of(layers, "actions")
}

fn types(layers: &Layers) -> impl Iterator<Item = (String, Table<'_>)> {
    let types = KeyPath::of(&TYPES);
    let of_type = move |name: &str| {
        (name.to_owned(), Table { layers, own: types.child(name), general: KeyPath::of(&["actions"]), over: None })
    };
    layers.names_in(&KeyPath::of(&TYPES)).into_iter().map(of_type)
}

impl Table<'_> {
    fn action_type(&self) -> Result<ActionType, ConfigError> {
        let outgoing = Table { general: KeyPath::of(&["outgoing"]), ..self.clone() };
        Ok(ActionType {
            handler: self.handler()?,
            of_workspaces: BTreeMap::new(),
            window: self.seconds("window_seconds"),
            mode: Mode::parse(self.text("mode")).expect("one of its names"),
            max_attempts: i32::try_from(self.count("max_attempts")).unwrap_or(i32::MAX),
            delivery: match self.maybe_text("delivery") {
                Some("at_most_once") => Delivery::AtMostOnce,
                _ => Delivery::AtLeastOnce,
            },
            timeout: outgoing.span("timeout"),
        })
    }

    /// Refuses settings that belong to another handler.
    fn refuse_all_but(&self, own: &[&str], handler: &str) -> Result<(), ConfigError> {
        [OF_WEBHOOK, OF_EMAIL, OF_SAGA, OF_AMQP, OF_NATS]
            .iter()
            .try_for_each(|others| self.refuse(others, own, handler))
    }

    fn handler(&self) -> Result<Option<HandlerKind>, ConfigError> {
        Ok(Some(match self.maybe_text("handler") {
            Some("webhook") => {
                self.refuse_all_but(OF_WEBHOOK, "webhook")?;
                self.refuse_secret_of_all("secret_file")?;
                let allow_payload_url = self.maybe_flag("allow_payload_url").unwrap_or(false);
                let may_be_missing = allow_payload_url && self.maybe_text("url").is_none();
                let url = match may_be_missing {
                    true => None,
                    false => Some(self.url(&["http", "https"], "https://example.com/hooks")?),
                };
                HandlerKind::Webhook {
                    url,
                    allow_payload_url,
                    secret_file: self.maybe_text("secret_file").map(Into::into),
                }
            }
            Some("email") => {
                self.refuse_all_but(OF_EMAIL, "email")?;
                let url = self.url(&["smtp", "smtps", STARTTLS, "http", "https"], "smtp://127.0.0.1:2525")?;
                match url.scheme() {
                    "http" | "https" => {
                        self.refuse(OF_SMTP, &[], "a provider's HTTP API")?;
                        self.refuse_secret_of_all("authorization_file")?;
                    }
                    _ => {
                        self.refuse(OF_HTTP, &[], "a mail server")?;
                        self.refuse_secret_of_all("password_file")?;
                    }
                }
                HandlerKind::Email {
                    url,
                    from: self.from()?,
                    username: self.maybe_text("username").map(str::to_owned),
                    password_file: self.maybe_text("password_file").map(Into::into),
                    authorization_file: self.maybe_text("authorization_file").map(Into::into),
                }
            }
            Some("saga") => {
                self.refuse_all_but(OF_SAGA, "saga")?;
                HandlerKind::Saga { event: self.maybe_text("event").map(str::to_owned) }
            }
            Some("amqp") => {
                self.refuse_all_but(OF_AMQP, "amqp")?;
                let broker = Table { own: KeyPath::of(&["amqp"]), over: None, ..self.clone() };
                if broker.maybe_text("url").is_none() {
                    return Err(broker.missing("url", "amqp://127.0.0.1:5672/%2f"));
                }
                HandlerKind::Amqp {
                    exchange: self.maybe_text("exchange").unwrap_or_default().to_owned(),
                    routing_key: self.maybe_text("routing_key").map(str::to_owned),
                }
            }
            Some("nats") => {
                self.refuse_all_but(OF_NATS, "nats")?;
                let broker = Table { own: KeyPath::of(&["nats"]), over: None, ..self.clone() };
                if broker.maybe_text("url").is_none() {
                    return Err(broker.missing("url", "nats://127.0.0.1:4222"));
                }
                HandlerKind::Nats { subject: self.maybe_text("subject").map(str::to_owned) }
            }
            name => {
                self.refuse_all_but(&[], name.unwrap_or("a remote worker"))?;
                return Ok(name.map(|_| HandlerKind::Log));
            }
        }))
    }
}
