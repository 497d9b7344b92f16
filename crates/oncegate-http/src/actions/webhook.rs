//! `webhook`: a POST of the payload, signed as Standard Webhooks.
//!
//! `webhook-id` and `Idempotency-Key` are the same on every attempt of one run. Each attempt has its own time and
//! signature.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use hyper::header::{HeaderValue, RETRY_AFTER};
use ipnet::IpNet;
use oncegate::WorkspaceName;
use oncegate::store::{Clock, SystemClock};
use oncegate_core::job::Failure;
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::Sha256;
use url::Url;
use uuid::Uuid;

use oncegate_transports::channels::secret;
use oncegate_transports::effect::Effect;
use oncegate_transports::outgoing::{self, NotPosted, Posted, post};

/// The longest URL that a payload may name.
const URL_BYTES_MAX: usize = 8 * 1024;
/// The header that signs the workspace in `Oncegate-Workspace`.
const WORKSPACE_SIGNATURE: &str = "oncegate-signature";
const SECRET_PREFIX: &str = "whsec_";
/// The size of a secret, in bytes.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

pub struct Webhook {
    url: Option<Url>,
    /// Every secret signs. During a rotation, a receiver needs to know only one of them.
    secrets: Vec<Vec<u8>>,
    /// Addresses that the configured URL may resolve to, besides public ones.
    allow: Arc<[IpNet]>,
    /// The same for URLs that payloads name. `None`: payloads may not name URLs.
    allow_payload: Option<Arc<[IpNet]>>,
}

impl Webhook {
    pub fn new(
        url: Option<Url>,
        secret_file: Option<&Path>,
        allow: Arc<[IpNet]>,
        allow_payload: Option<Arc<[IpNet]>>,
    ) -> Result<Webhook, String> {
        let text = secret(secret_file)?.unwrap_or_default();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let secrets: Vec<Vec<u8>> = lines.map(read_secret).collect::<Result<_, _>>()?;
        if secret_file.is_some() && secrets.is_empty() {
            return Err("secret_file: it is empty; a secret is whsec_… (base64)".into());
        }
        Ok(Webhook { url, secrets, allow, allow_payload })
    }

    pub async fn post(&self, effect: Effect<'_>, within: Duration) -> Result<Option<Box<RawValue>>, Failure> {
        let To { url, by } = self.url_for(effect.payload)?;
        let allow = match (by, &self.allow_payload) {
            (By::Payload, Some(allow)) => allow,
            _ => &self.allow,
        };
        let body = Bytes::from(effect.payload.get().to_owned());
        let headers = self.headers(effect.workspace, effect.effect_key, &body);
        match post(&url, effect.effect_key, &headers, body, allow, within).await {
            Ok(posted) => read(&posted, by),
            Err(NotPosted::Forbidden(error)) => Err(Failure::refused(error)),
            Err(NotPosted::Unsent(error)) => Err(Failure::busy(error, None)),
            Err(NotPosted::Broke(error)) => Err(Failure::unknown(error)),
        }
    }

    /// The URL from the configuration, or from the payload if that is allowed.
    fn url_for(&self, payload: &RawValue) -> Result<To, Failure> {
        #[derive(Default, Deserialize)]
        struct Addressed {
            url: Option<String>,
        }
        let wrong = || Failure::refused("payload.url: not an http or https URL, without a user or a password in it");
        let is_object = payload.get().starts_with('{');
        let addressed = match self.allow_payload.is_some() && is_object {
            true => serde_json::from_str::<Addressed>(payload.get()).map_err(|_| wrong())?,
            false => Addressed::default(),
        };
        let named = addressed.url;
        let Some(named) = named else {
            let url = self.url.clone();
            let url = url.ok_or_else(|| Failure::refused("the payload has no `url`, and neither has the config"))?;
            return Ok(To { url, by: By::Config });
        };
        let is_right = |url: &Url| {
            url.as_str().len() <= URL_BYTES_MAX
                && matches!(url.scheme(), "http" | "https")
                && url.has_host()
                && url.username().is_empty()
                && url.password().is_none()
        };
        let url = Url::parse(&named).ok().filter(is_right).ok_or_else(wrong)?;
        Ok(To { url, by: By::Payload })
    }

    fn headers(&self, workspace: &WorkspaceName, key: Uuid, body: &[u8]) -> Vec<(&'static str, HeaderValue)> {
        let id = key.to_string();
        let seconds = (SystemClock.now().micros() / 1_000_000).to_string();
        let value = |text: &str| HeaderValue::from_str(text).expect("an id, a number or base64");
        let mut headers = vec![("webhook-id", value(&id)), ("webhook-timestamp", value(&seconds))];
        headers.push(outgoing::workspace_header(workspace));
        if !self.secrets.is_empty() {
            let signed = |id: &str| {
                let signatures: Vec<_> = self.secrets.iter().map(|secret| sign(secret, id, &seconds, body)).collect();
                value(&signatures.join(" "))
            };
            headers.push(("webhook-signature", signed(&id)));
            // The same signature over an id that includes the workspace. It is a header of its own, so that receivers
            // without support for workspaces keep working.
            headers.push((WORKSPACE_SIGNATURE, signed(&format!("{workspace}/{id}"))));
        }
        headers
    }
}

/// The target of a webhook, and where its URL comes from.
struct To {
    url: Url,
    by: By,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Config,
    Payload,
}

fn read_secret(line: &str) -> Result<Vec<u8>, String> {
    let wrong = || "secret_file: a secret is whsec_ and 24 to 64 bytes in base64, one a line".to_owned();
    let encoded = line.strip_prefix(SECRET_PREFIX).ok_or_else(wrong)?;
    let secret = STANDARD.decode(encoded).map_err(|_| wrong())?;
    Some(secret).filter(|secret| SECRET_BYTES.contains(&secret.len())).ok_or_else(wrong)
}

fn sign(secret: &[u8], id: &str, seconds: &str, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key of any length will do");
    for part in [id.as_bytes(), b".", seconds.as_bytes(), b".", body] {
        mac.update(part);
    }
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

/// Reads the receiver's answer. Most refusals may be gone on a retry; only 410 Gone is final.
fn read(posted: &Posted, by: By) -> Result<Option<Box<RawValue>>, Failure> {
    // A payload's author may make the server call any allowed URL, and must not read that server's answer through us.
    let error = match by {
        By::Config => posted.said("receiver"),
        By::Payload => format!("the receiver answered {}", posted.status),
    };
    match posted.status.as_u16() {
        200..=299 => {
            let result = format!(r#"{{"status":{}}}"#, posted.status.as_u16());
            Ok(Some(RawValue::from_string(result).expect("is JSON")))
        }
        410 => Err(Failure::refused(error)),
        408 => Err(Failure::unknown(error)),
        400..=499 => Err(Failure::busy(error, posted.retry_in())),
        503 if posted.headers.contains_key(RETRY_AFTER) => Err(Failure::busy(error, posted.retry_in())),
        // A redirection is not followed. The receiver may have acted before it redirected.
        _ => Err(Failure::unknown(error)),
    }
}

#[cfg(test)]
mod tests {
    use hyper::{HeaderMap, StatusCode};
    use oncegate_core::job::Reached;

    use super::*;

    #[test]
    fn each_answer_is_read_as_done_surely_not_or_unknown() {
        let answered = |code: u16, retry_after: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.extend(retry_after.map(|value| (RETRY_AFTER, HeaderValue::from_static(value))));
            read(&Posted { status: StatusCode::from_u16(code).unwrap(), headers, body: Bytes::new() }, By::Config)
        };
        for code in [200, 201, 202, 204] {
            assert!(answered(code, None).is_ok(), "{code}");
        }
        let reading = |code, retry_after| {
            let failure = answered(code, retry_after).unwrap_err();
            (failure.reached, failure.is_final, failure.retry_in.map(|span| span.as_secs()))
        };
        for code in [400, 401, 404, 409, 422] {
            assert_eq!(reading(code, None), (Reached::No, false, None), "{code}");
        }
        assert_eq!(reading(410, None), (Reached::No, true, None));
        assert_eq!(reading(429, Some("7")), (Reached::No, false, Some(7)));
        assert_eq!(reading(503, Some("3")), (Reached::No, false, Some(3)));
        for code in [301, 302, 307, 308, 408, 500, 502, 503, 504] {
            assert_eq!(reading(code, None), (Reached::Maybe, false, None), "{code}");
        }
    }

    #[test]
    fn a_secret_is_a_prefix_and_base64_of_a_good_length() {
        assert_eq!(read_secret(&format!("whsec_{}", STANDARD.encode([7; 24]))), Ok(vec![7; 24]));
        let (short, long) = (STANDARD.encode([7; 23]), STANDARD.encode([7; 65]));
        for bad in
            ["", "whsec_", "whsec_???", &STANDARD.encode([7; 24]), &format!("whsec_{short}"), &format!("whsec_{long}")]
        {
            assert!(read_secret(bad).is_err(), "{bad}");
        }
    }
}
