//! Which requests an open server answers: those that come directly from its own machine, its own user, and its own pages.

use std::fmt;
use std::net::SocketAddr;

use axum::http::{HeaderMap, HeaderName, Version, header};

use super::{Credentials, Peer};
use crate::problem::{Kind, Problem};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Headers that a proxy adds, besides all that begin with `x-forwarded-`.
const LEFT_BY_PROXIES: [HeaderName; 3] = [header::FORWARDED, header::VIA, HeaderName::from_static("x-real-ip")];
const X_FORWARDED: &str = "x-forwarded-";

/// How to end the open mode, for a caller behind a proxy.
const END: &str = "without keys the server answers only direct requests of its own machine. Behind a reverse proxy, make a key with \
                   `oncegate key create --workspace default --role admin`, and send it with each request";

/// The sign that a request came through a proxy. HTTP/1.0 counts as one, because nginx speaks it to its upstreams by default.
fn proxied(headers: &HeaderMap, version: Version) -> Option<String> {
    if version < Version::HTTP_11 {
        return Some("the request is in HTTP/1.0, as from a reverse proxy".into());
    }
    let mut names = headers.keys();
    let left = names.find(|name| LEFT_BY_PROXIES.contains(name) || name.as_str().starts_with(X_FORWARDED))?;
    Some(format!("the request has the header {left}, as from a reverse proxy"))
}

/// The address that the server listens on, as it is written in a URL.
#[derive(Clone)]
pub struct Listen {
    host: String,
    port: u16,
    is_loopback: bool,
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Self {
        let ip = address.ip();
        Listen {
            host: if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() },
            port: address.port(),
            is_loopback: ip.is_loopback(),
        }
    }
}

impl Listen {
    pub fn is_loopback(&self) -> bool {
        self.is_loopback
    }

    /// Refuses three kinds of requests. Pages of other sites (and names that resolve to this machine), which a local browser may have open.
    /// Reverse proxies on this machine, which forward requests from other machines. Other users of this machine.
    pub fn check_local(&self, asked: Credentials<'_>) -> Result<(), Problem> {
        let Credentials { uri, headers, version, peer } = asked;
        if let Some(trace) = proxied(headers, version) {
            return Err(Kind::BehindAProxy.because(format!("{trace}: {END}")));
        }
        if !peer.is_some_and(Peer::is_trusted) {
            return Err(Kind::BehindAProxy.because(format!(
                "the connection comes from another user of this machine, as from a reverse proxy, or was closed before its answer: {END}"
            )));
        }
        // A header that is sent twice, or that is not text, counts as wrong.
        let text = |name: HeaderName| {
            let mut values = headers.get_all(name).iter();
            let value = values.next()?;
            Some(value.to_str().ok().filter(|_| values.next().is_none()).unwrap_or_default())
        };
        let host = text(header::HOST).unwrap_or_default();
        if !self.is_named(host) || uri.authority().is_some_and(|name| !self.is_named(name.as_str())) {
            return Err(Kind::Forbidden.because(format!(
                "without keys the server answers as {}:{} or localhost, not as {host:?}",
                self.host, self.port
            )));
        }
        if let Some(site) = text(SEC_FETCH_SITE)
            && !matches!(site, "same-origin" | "none")
        {
            return Err(Kind::Forbidden.because("without keys the server does not answer cross-site requests"));
        }
        if let Some(origin) = text(header::ORIGIN)
            && origin.split_once("://").is_none_or(|(_, origin_host)| !origin_host.eq_ignore_ascii_case(host))
        {
            return Err(Kind::Forbidden.because("without keys the server does not answer cross-origin requests"));
        }
        Ok(())
    }

    fn is_named(&self, name: &str) -> bool {
        ["localhost", &self.host].into_iter().any(|host| match name.split_at_checked(host.len()) {
            Some((given, rest)) if given.eq_ignore_ascii_case(host) => {
                rest.is_empty() || rest.strip_prefix(':').is_some_and(|port| port.parse() == Ok(self.port))
            }
            _ => false,
        })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_came_through_a_proxy_is_known_by_any_of_its_traces() {
        let headers =
            |name: &'static str| HeaderMap::from_iter([(HeaderName::from_static(name), "x".parse().unwrap())]);
        for name in ["forwarded", "via", "x-real-ip", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-anything"] {
            assert!(proxied(&headers(name), Version::HTTP_11).is_some_and(|trace| trace.contains(name)), "{name}");
        }
        for name in ["host", "x-request-id", "forwarded-by-pigeon"] {
            assert_eq!(proxied(&headers(name), Version::HTTP_11), None, "{name}");
        }
        assert!(proxied(&HeaderMap::new(), Version::HTTP_10).is_some());
        assert_eq!(proxied(&HeaderMap::new(), Version::HTTP_2), None);
    }
}
