//! `[messages.channel.NAME]`: which settings belong to which kind of channel.

use std::collections::BTreeMap;
use std::time::Duration;

use url::{Host, Url};

use super::build::Table;
use super::error::ConfigError;
use super::networks::is_allowed;
use super::path::KeyPath;
use super::typed::{Channel, ChannelKind};
use oncegate_core::units::show_duration;

/// A URL scheme that requires STARTTLS: without encryption, no mail is sent.
pub const STARTTLS: &str = "smtp+starttls";

/// The settings of a channel that apply to one kind only.
const OF_HTTP: &[&str] = &["url", "authorization_file"];
const OF_SMTP: &[&str] = &["url", "from", "subject", "username", "password_file"];
/// The fields that a provider receives, by our names.
pub const FIELDS: [&str; 7] =
    ["id", "channel", "recipientPhone", "recipientEmail", "message", "attachments", "metadata"];

impl Table<'_> {
    pub fn channel(&self) -> Result<Channel, ConfigError> {
        let kind = match self.maybe_text("kind").unwrap_or("log") {
            "http" => {
                self.refuse(OF_SMTP, OF_HTTP, "http")?;
                self.refuse_secret_of_all("authorization_file")?;
                ChannelKind::Http {
                    url: self.url(&["http", "https"], "http://127.0.0.1:9000/sms")?,
                    authorization_file: self.maybe_text("authorization_file").map(Into::into),
                    fields: self.fields(),
                }
            }
            "smtp" => {
                self.refuse(OF_HTTP, OF_SMTP, "smtp")?;
                self.refuse_secret_of_all("password_file")?;
                ChannelKind::Smtp {
                    url: self.url(&["smtp", "smtps", STARTTLS], "smtp://127.0.0.1:2525")?,
                    from: self.from()?,
                    subject: self.maybe_text("subject").map(str::to_owned),
                    username: self.maybe_text("username").map(str::to_owned),
                    password_file: self.maybe_text("password_file").map(Into::into),
                }
            }
            "log" => {
                self.refuse(OF_HTTP, &[], "log")?;
                self.refuse(OF_SMTP, &[], "log")?;
                ChannelKind::Log
            }
            other => unreachable!("no kind of channel: {other}"),
        };
        let honours_key = self.maybe_flag("honours_key").unwrap_or(false);
        Ok(Channel { kind, honours_key, timeout: self.span("timeout"), of_workspaces: BTreeMap::new() })
    }

    /// The time-out must be shorter than the lease: otherwise a worker could still be sending after it has lost its lease.
    pub fn timeout_fits(&self, timeout: Duration, lease: Duration) -> Result<(), ConfigError> {
        if timeout < lease {
            return Ok(());
        }
        let (timeout, lease) = (show_duration(timeout), show_duration(lease));
        let at = self.written("timeout").or(self.written("kind")).map_or_else(|| self.own.to_string(), |(_, at)| at);
        let what =
            format!("the timeout of [{}] ({timeout}) is not shorter than the lease of [messages] ({lease})", self.own);
        Err(ConfigError::new(at, what, "write a shorter timeout, here or under [outgoing], or a longer lease"))
    }

    pub fn refuse(&self, others: &[&str], own: &[&str], kind: &str) -> Result<(), ConfigError> {
        let strange = others.iter().filter(|name| !own.contains(name)).find_map(|name| self.written(name));
        match strange {
            Some((name, at)) => {
                let what = format!("`{}.{name}` means nothing to {kind:?}", self.own);
                Err(ConfigError::new(at, what, "take it out, or say another `kind` or `handler`"))
            }
            None => Ok(()),
        }
    }

    /// Refuses a workspace's own URL without its own secret: the secret of all workspaces would be sent to that URL, or sign the requests
    /// to it.
    pub fn refuse_secret_of_all(&self, secret: &str) -> Result<(), ConfigError> {
        let Some(over) = &self.over else { return Ok(()) };
        let is_set = |table: &KeyPath| self.layers.get(&table.child(secret)).is_some();
        match self.layers.get(&over.child("url")) {
            Some(url) if is_set(&self.own) && !is_set(over) => {
                let what = format!("[{over}] has a `url` of its own, and the `{secret}` of [{}]", self.own);
                Err(ConfigError::new(&url.origin, what, format!("write {secret} in [{over}], too")))
            }
            _ => Ok(()),
        }
    }

    /// A setting that the user wrote in this table, and its place.
    pub fn written<'n>(&self, name: &'n str) -> Option<(&'n str, String)> {
        self.own_entry(name).map(|entry| (name, entry.origin.to_string()))
    }

    pub fn missing(&self, name: &str, example: &str) -> ConfigError {
        let at = self.written("kind").or(self.written("handler")).map_or_else(|| self.own.to_string(), |(_, at)| at);
        ConfigError::new(at, format!("[{}] has no `{name}`", self.own), format!("write {name} = {example:?}"))
    }

    pub fn url(&self, schemes: &[&str], example: &str) -> Result<Url, ConfigError> {
        self.url_of("url", schemes, example)
    }

    pub fn url_of(&self, name: &str, schemes: &[&str], example: &str) -> Result<Url, ConfigError> {
        let text = self.maybe_text(name).ok_or_else(|| self.missing(name, example))?;
        let at = self.written(name).map_or_else(String::new, |(_, at)| at);
        let wrong = |what: &str, hint: String| ConfigError::new(&at, format!("{}.{name} {what}", self.own), hint);
        let url = Url::parse(text).ok().filter(|url| schemes.contains(&url.scheme()) && url.has_host());
        let url = url.ok_or_else(|| wrong("is no URL that this can use", format!("write {example:?}")))?;
        // The file's content is shown, logged, and kept in backups.
        if url.password().is_some() || !url.username().is_empty() {
            let hint =
                "write `username` and `password_file` (mail), `authorization_file` (http), or `secret_file` (webhook)";
            return Err(wrong("has a user or a password in it", hint.into()));
        }
        let outgoing = Table { own: KeyPath::of(&["outgoing"]), over: None, ..self.clone() };
        let literal = match url.host() {
            Some(Host::Ipv4(address)) => Some(address.into()),
            Some(Host::Ipv6(address)) => Some(address.into()),
            _ => url.host_str().and_then(|host| host.parse().ok()),
        };
        match literal {
            Some(address) if !is_allowed(address, &outgoing.networks("allow")) => Err(wrong(
                "names an address that is not called unless it is allowed",
                format!("write allow = [\"{address}\"] under [outgoing]"),
            )),
            _ => Ok(url),
        }
    }

    pub fn from(&self) -> Result<String, ConfigError> {
        let example = "Acme <hello@acme.test>";
        let from = self.maybe_text("from").ok_or_else(|| self.missing("from", example))?;
        match check_sender(from) {
            Ok(()) => Ok(from.to_owned()),
            Err(error) => {
                let at = self.written("from").map_or_else(String::new, |(_, at)| at);
                let what = format!("{}.from is no sender: {error}", self.own);
                Err(ConfigError::new(at, what, format!("write from = {example:?}")))
            }
        }
    }

    fn fields(&self) -> BTreeMap<String, String> {
        let table = Table { own: self.own.child("fields"), over: None, ..self.clone() };
        let renamed = |name: &&str| Some(((*name).to_owned(), table.maybe_text(name)?.to_owned()));
        FIELDS.iter().filter_map(renamed).collect()
    }
}

#[cfg(feature = "smtp")]
fn check_sender(from: &str) -> Result<(), lettre::address::AddressError> {
    from.parse::<lettre::message::Mailbox>().map(drop)
}

#[cfg(not(feature = "smtp"))]
fn check_sender(_from: &str) -> Result<(), std::convert::Infallible> {
    Ok(())
}
