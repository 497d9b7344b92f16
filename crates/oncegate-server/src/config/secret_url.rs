//! A store's URL, whose password stays in it.

use std::fmt;

/// Where the store is, with its password, which only [`SecretUrl::expose`] gives away.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretUrl(pub(super) String);

impl SecretUrl {
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_password(&self.0))
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretUrl({self})")
    }
}

/// Hides the password of a URL, and rather too much than too little of one that is put together wrongly.
pub(super) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    // Of a URL of HTTP nobody knows which parameter is a secret, nor what a fragment is.
    let is_http = matches!(scheme, "http" | "https");
    let hidden: fn(&str) -> String = if is_http { hidden_value } else { hidden_secret };
    let rest = rest.split_once('#').filter(|_| is_http).map_or(rest, |(rest, _)| rest);
    let (user, host) = match rest.rsplit_once('@') {
        // Whose `@` that is cannot be told: a password's, or a parameter's.
        Some((user, _)) if user.contains('?') => return format!("{scheme}://***"),
        // Before a NATS server a name alone is a token.
        Some((user, host)) if matches!(scheme, "nats" | "tls") && !user.contains(':') => ("***@".to_owned(), host),
        Some((user, host)) => (format!("{}@", without_password_of(user)), host),
        None => (String::new(), rest),
    };
    let host = match host.split_once('?') {
        Some((host, query)) => format!("{host}?{}", query.split('&').map(hidden).collect::<Vec<_>>().join("&")),
        None => host.to_owned(),
    };
    format!("{scheme}://{user}{host}")
}

fn without_password_of(user: &str) -> String {
    user.split_once(':').map_or_else(|| user.to_owned(), |(name, _)| format!("{name}:***"))
}

/// A parameter of a URL, hidden if it is a password.
fn hidden_secret(parameter: &str) -> String {
    let is_secret = |name: &str| SECRET_NAMES.iter().any(|secret| name.to_ascii_lowercase().contains(secret));
    match parameter.split_once('=') {
        Some((name, _)) if is_secret(name) => format!("{name}=***"),
        _ => parameter.to_owned(),
    }
}

fn hidden_value(parameter: &str) -> String {
    match parameter.split_once('=') {
        Some((name, _)) => format!("{name}=***"),
        // It may be a token by itself.
        None if parameter.is_empty() => String::new(),
        None => "***".to_owned(),
    }
}

/// What the names of secret parameters have in them.
const SECRET_NAMES: [&str; 9] = ["password", "passwd", "pwd", "secret", "token", "key", "sig", "auth", "credential"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_hidden_wherever_it_stands() {
        for (url, shown) in [
            ("sqlite:a/b.db", "sqlite:a/b.db"),
            ("postgres://h/db", "postgres://h/db"),
            ("postgres://u@h/db", "postgres://u@h/db"),
            ("postgres://u:geheim@h:5432/db?x=1", "postgres://u:***@h:5432/db?x=1"),
            ("postgres://u:ge/he@im@h/db", "postgres://u:***@h/db"),
            ("postgres://u:geheim#?@h/db", "postgres://***"),
            ("postgres://h/db?user=u&password=geheim", "postgres://h/db?user=u&password=***"),
            ("postgres://u@h/db?sslpassword=geheim&x=1", "postgres://u@h/db?sslpassword=***&x=1"),
            ("postgres://h/db?password=ge@heim", "postgres://***"),
            ("nats://geheim@h:4222", "nats://***@h:4222"),
            ("nats://u:geheim@h:4222", "nats://u:***@h:4222"),
            (
                "postgres://h/db?token=geheim&apiKey=geheim&sslmode=require",
                "postgres://h/db?token=***&apiKey=***&sslmode=require",
            ),
            (
                "amqps://u:geheim@h/v?auth_mechanism=geheim&heartbeat=5",
                "amqps://u:***@h/v?auth_mechanism=***&heartbeat=5",
            ),
            ("https://h/hook?sig=geheim&x=geheim", "https://h/hook?sig=***&x=***"),
            ("https://h/hook?geheim", "https://h/hook?***"),
            ("https://h/hook?", "https://h/hook?"),
            ("https://h/hook?a=geheim#geheim", "https://h/hook?a=***"),
            ("https://h/hook", "https://h/hook"),
        ] {
            assert_eq!(without_password(url), shown);
            assert_eq!(format!("{:?}", SecretUrl(url.into())), format!("SecretUrl({shown})"));
        }
    }
}
