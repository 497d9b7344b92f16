//! A store's URL, which hides its password.

use std::fmt;

/// A store's address with its password, which only [`SecretUrl::expose`] returns.
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

/// Hides the credentials of a URL. In a malformed URL it hides too much rather than too little.
pub(super) fn without_password(url: &str) -> String {
    // A file's path may contain an `@`, and has no password.
    if url.starts_with("sqlite:") {
        return url.to_owned();
    }
    let (start, rest) = split_scheme(url);
    let scheme = start.split(':').next().unwrap_or_default().to_ascii_lowercase();
    let (user, host) = match rest.rsplit_once('@') {
        // This `@` may be part of a password or of a parameter.
        Some((user, _)) if user.contains('?') => return format!("{start}***"),
        Some((user, host)) => (format!("{}@", shown_user(user, start, &scheme)), host),
        None => (String::new(), rest),
    };
    // Any parameter of an HTTP URL may be a secret, and so may its fragment. The same goes for a URL of unknown kind.
    let hides_all = matches!(scheme.as_str(), "" | "http" | "https");
    let host = host.split_once('#').filter(|_| hides_all).map_or(host, |(host, _)| host);
    let hidden: fn(&str) -> String = if hides_all { hidden_value } else { hidden_secret };
    let host = match host.split_once('?') {
        Some((host, query)) => format!("{host}?{}", query.split('&').map(hidden).collect::<Vec<_>>().join("&")),
        None => host.to_owned(),
    };
    format!("{start}{user}{host}")
}

/// The scheme with its slashes, and the rest. Parsers read `https:host`, `https:\\host` and `HTTPS://host` alike. The parser of NATS also
/// reads
/// `user:password@host`, which has no scheme.
fn split_scheme(url: &str) -> (&str, &str) {
    let Some((scheme, after)) = url.split_once(':') else { return ("", url) };
    let rest = after.trim_start_matches(['/', '\\']);
    let is_name =
        !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let is_http = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    match is_name && (rest.len() < after.len() || is_http) {
        true => url.split_at(url.len() - rest.len()),
        false => ("", url),
    }
}

fn shown_user(user: &str, start: &str, scheme: &str) -> String {
    let name = user.split_once(':').map(|(name, _)| name);
    match name {
        Some(name) if start.ends_with("://") => format!("{name}:***"),
        // For other schemes, a name alone may be a token.
        None if start.ends_with("://") && matches!(scheme, "postgres" | "postgresql" | "amqp" | "amqps") => {
            user.to_owned()
        }
        _ => "***".to_owned(),
    }
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
        // The parameter may be a token by itself.
        None if parameter.is_empty() => String::new(),
        None => "***".to_owned(),
    }
}

/// Words that occur in the names of secret parameters.
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
            ("https://u:ge#heim@h/hook", "https://u:***@h/hook"),
            ("HTTPS://h/hook?x=geheim", "HTTPS://h/hook?x=***"),
            ("https:h/hook?x=geheim", "https:h/hook?x=***"),
            (r"https:\\u:geheim@h/hook?x=geheim", r"https:\\***@h/hook?x=***"),
            ("ws://geheim@h", "ws://***@h"),
            // A URL without a scheme, which NATS accepts, or with a misspelt one.
            ("h:4222", "h:4222"),
            ("geheim@h:4222", "***@h:4222"),
            ("u:geheim@h:4222", "***@h:4222"),
            ("u:ge@heim@h:4222", "***@h:4222"),
            ("u:ge?heim@h:4222", "***"),
            ("u:ge#heim@h:4222", "***@h:4222"),
            ("u:geh://eim@h", "***@h"),
            ("nats:geheim@h", "***@h"),
            ("nats:/geheim@h", "nats:/***@h"),
            ("amqp:u:geheim@h/%2f", "***@h/%2f"),
            ("amqp//u:geheim@h/%2f", "***@h/%2f"),
            ("h/hook?geheim#geheim", "h/hook?***"),
            ("sqlite:/home/a@b/c.db", "sqlite:/home/a@b/c.db"),
        ] {
            assert_eq!(without_password(url), shown);
            assert_eq!(format!("{:?}", SecretUrl(url.into())), format!("SecretUrl({shown})"));
        }
    }
}
