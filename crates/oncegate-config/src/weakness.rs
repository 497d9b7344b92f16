//! Weaknesses of a configuration: values that let others read, change or take something.

use std::fmt;
use std::net::IpAddr;

use url::{Host, Url};

use super::typed::{ChannelKind, Config, HandlerKind};

/// A connection without encryption, or a limit that does not limit, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weakness {
    /// The setting.
    pub key: String,
    pub what: String,
    pub hint: &'static str,
}

impl fmt::Display for Weakness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.key, self.what, self.hint)
    }
}

const MAIL_HINT: &str = "write smtps:// or smtp+starttls://";
const STORE_HINT: &str = "add ?sslmode=verify-full";
const BROKER_HINT: &str = "write amqps:// or tls://";
const PROVIDER_HINT: &str = "write https://";

impl Config {
    /// The weaknesses, in the order of the settings. Connections within this machine are left out.
    pub fn weaknesses(&self) -> Vec<Weakness> {
        let mut found = vec![];
        if self.limits.workspace.connections >= self.limits.connections {
            let what = format!("one workspace may take all {} connections", self.limits.connections);
            let hint = "write less than limits.connections";
            found.push(Weakness { key: "limits.workspace.connections".into(), what, hint });
        }
        for (key, url) in [("store", Some(&self.store)), ("guard_store", self.guard_store.as_ref())] {
            found.extend(url.and_then(|url| of_store(key, url.expose())));
        }
        for (name, channel) in &self.messages.channels {
            found.extend(of_channel(&format!("messages.channel.{name}.url"), &channel.kind));
            for (workspace, kind) in &channel.of_workspaces {
                found.extend(of_channel(&format!("workspace.{workspace}.messages.channel.{name}.url"), kind));
            }
        }
        for (name, of_type) in &self.actions.types {
            found.extend(
                of_type.handler.as_ref().and_then(|kind| of_handler(&format!("actions.type.{name:?}.url"), kind)),
            );
            for (workspace, kind) in &of_type.of_workspaces {
                found.extend(of_handler(&format!("workspace.{workspace}.actions.type.{name:?}.url"), kind));
            }
        }
        for (key, url) in [("amqp.url", self.amqp.url.as_ref()), ("nats.url", self.nats.url.as_ref())] {
            found.extend(url.and_then(|url| of_broker(key, url.expose())));
        }
        found
    }
}

fn weakness(key: &str, what: String, hint: &'static str) -> Option<Weakness> {
    Some(Weakness { key: key.to_owned(), what, hint })
}

fn of_store(key: &str, url: &str) -> Option<Weakness> {
    let url = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "postgres" | "postgresql"))?;
    let is_encrypted = url.query_pairs().any(|(name, value)| name == "sslmode" && value != "disable");
    let named = url.query_pairs().find(|(name, _)| name == "host").map(|(_, host)| host.into_owned());
    let host = named.or_else(|| url.host_str().map(str::to_owned)).unwrap_or_default();
    // A path is a socket of this machine.
    let is_near = host.is_empty() || host.starts_with('/') || host.starts_with("%2F") || is_loopback(&host);
    let what = || format!("the connection to PostgreSQL at {host} is not encrypted");
    if is_encrypted || is_near { None } else { weakness(key, what(), STORE_HINT) }
}

fn of_channel(key: &str, kind: &ChannelKind) -> Option<Weakness> {
    match kind {
        ChannelKind::Log => None,
        ChannelKind::Http { url, authorization_file, .. } => of_provider(key, url, authorization_file.is_some()),
        ChannelKind::Smtp { url, .. } => of_mail(key, url),
    }
}

fn of_handler(key: &str, kind: &HandlerKind) -> Option<Weakness> {
    match kind {
        HandlerKind::Email { url, authorization_file, .. } if url.scheme().starts_with("http") => {
            of_provider(key, url, authorization_file.is_some())
        }
        HandlerKind::Email { url, .. } => of_mail(key, url),
        _ => None,
    }
}

fn of_mail(key: &str, url: &Url) -> Option<Weakness> {
    let host = url.host_str().filter(|host| url.scheme() == "smtp" && !is_loopback(host))?;
    let what = format!(
        "mail to {host} is encrypted only if the server offers it, and anybody in between can take the offer out"
    );
    weakness(key, what, MAIL_HINT)
}

fn of_provider(key: &str, url: &Url, has_authorization: bool) -> Option<Weakness> {
    let host = url.host_str().filter(|host| url.scheme() == "http" && has_authorization && !is_loopback(host))?;
    weakness(key, format!("the Authorization header is sent to {host} without encryption"), PROVIDER_HINT)
}

fn of_broker(key: &str, url: &str) -> Option<Weakness> {
    // NATS accepts an address without a scheme, too.
    let url = if url.contains("://") { Url::parse(url) } else { Url::parse(&format!("nats://{url}")) };
    let url = url.ok().filter(|url| matches!(url.scheme(), "amqp" | "nats"))?;
    let host = url.host_str().filter(|host| !is_loopback(host))?;
    weakness(key, format!("the connection to the broker at {host} is not encrypted"), BROKER_HINT)
}

fn is_loopback(host: &str) -> bool {
    match Host::parse(host) {
        Ok(Host::Ipv4(address)) => address.is_loopback(),
        Ok(Host::Ipv6(address)) => address.is_loopback(),
        _ => host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_leaves_this_machine_in_the_clear_is_a_weakness() {
        for url in [
            "sqlite:a.db",
            "postgres://u:p@localhost/db",
            "postgres://127.0.0.1/db",
            "postgres://[::1]/db",
            "postgres:///db?host=/run/postgresql",
            "postgres://%2Frun%2Fpostgresql/db",
            "postgres://db.example.com/db?sslmode=verify-full",
            "postgres://db.example.com/db?sslmode=require",
        ] {
            assert_eq!(of_store("store", url), None, "{url}");
        }
        for url in ["postgres://u:geheim@db.example.com/db", "postgresql://10.0.0.7/db?sslmode=disable"] {
            let weakness = of_store("store", url).expect(url).to_string();
            assert!(weakness.contains("sslmode=verify-full") && !weakness.contains("geheim"), "{weakness}");
        }
        let mail = |url: &str| of_mail("k", &url.parse().unwrap()).is_some();
        assert!(mail("smtp://mail.example.com") && mail("smtp://10.0.0.1:2525"));
        assert!(!mail("smtp://127.0.0.1:2525") && !mail("smtps://mail.example.com"));
        assert!(!mail("smtp+starttls://mail.example.com") && !mail("smtp://localhost"));
        let provider = |url: &str, has| of_provider("k", &url.parse().unwrap(), has).is_some();
        assert!(provider("http://example.com", true) && !provider("http://example.com", false));
        assert!(!provider("https://example.com", true) && !provider("http://127.0.0.1", true));
        assert!(of_broker("k", "amqp://u:p@mq.example.com").is_some() && of_broker("k", "nats://h").is_some());
        assert!(of_broker("k", "u:p@h:4222").is_some() && of_broker("k", "127.0.0.1:4222").is_none());
        assert!(of_broker("k", "amqps://mq.example.com").is_none() && of_broker("k", "nats://[::1]:4222").is_none());
    }
}
