//! `http`: a POST to a provider's URL.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{HeaderValue, RETRY_AFTER};
use ipnet::IpNet;
use oncegate::WorkspaceName;
use oncegate_core::job::Failure;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;
use url::Url;
use uuid::Uuid;

use super::{Outgoing, Receipt, Sent};
use crate::outgoing::{self, NotPosted, Posted, post};

/// The most characters of a provider's message id that are kept.
pub const MESSAGE_ID_CHARS_MAX: usize = 512;

pub struct Provider {
    url: Url,
    authorization: Option<HeaderValue>,
    allow: Arc<[IpNet]>,
}

/// Nothing was sent: no connection could be made.
pub struct Unsent(pub String);

impl Provider {
    pub fn new(url: Url, authorization: Option<String>, allow: Arc<[IpNet]>) -> Result<Provider, String> {
        let authorization = authorization
            .map(|value| HeaderValue::from_str(&value).map_err(|_| "authorization_file: not a header's value"))
            .transpose()?;
        Ok(Provider { url, authorization, allow })
    }

    /// Sends a message with the provider's field names. A request waits for it, so a missing connection is a final failure;
    /// a later request may send.
    pub async fn send(&self, message: &Outgoing<'_>, names: &BTreeMap<String, String>, within: Duration) -> Sent {
        let body = serde_json::to_vec(&Named { message, names }).expect("fields are JSON");
        self.post(message.workspace, message.id, body, within)
            .await
            .unwrap_or_else(|Unsent(error)| Err(Failure::refused(error)))
    }

    /// Posts a body, and reads the provider's answer. If there was no connection, the caller decides what that means.
    pub async fn post(
        &self,
        workspace: &WorkspaceName,
        key: Uuid,
        body: Vec<u8>,
        within: Duration,
    ) -> Result<Sent, Unsent> {
        let mut more = vec![outgoing::workspace_header(workspace)];
        more.extend(self.authorization.iter().map(|value| ("authorization", value.clone())));
        match post(&self.url, key, &more, body.into(), &self.allow, within).await {
            Ok(posted) => Ok(read(&posted)),
            Err(NotPosted::Forbidden(error)) => Ok(Err(Failure::refused(error))),
            Err(NotPosted::Unsent(error)) => Err(Unsent(error)),
            Err(NotPosted::Broke(error)) => Ok(Err(Failure::unknown(error))),
        }
    }
}

/// A message with the provider's field names.
struct Named<'a> {
    message: &'a Outgoing<'a>,
    names: &'a BTreeMap<String, String>,
}

impl Serialize for Named<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = |ours: &'static str| self.names.get(ours).map_or(ours, String::as_str);
        let Outgoing { policy: _, workspace: _, id, channel, phone, email, text, attachments, metadata } = self.message;
        let mut fields = serializer.serialize_map(None)?;
        fields.serialize_entry(name("id"), id)?;
        fields.serialize_entry(name("channel"), channel)?;
        fields.serialize_entry(name("recipientPhone"), phone)?;
        fields.serialize_entry(name("recipientEmail"), email)?;
        fields.serialize_entry(name("message"), text)?;
        fields.serialize_entry(name("attachments"), attachments)?;
        fields.serialize_entry(name("metadata"), metadata)?;
        fields.end()
    }
}

/// Reads the provider's answer.
fn read(posted: &Posted) -> Sent {
    let error = posted.said("provider");
    let taken = || Ok(Receipt { provider_message_id: provider_id(&posted.body) });
    match posted.status.as_u16() {
        200..=299 => taken(),
        // The key belongs to this message alone, so a conflict means that the provider has the message already.
        409 => taken(),
        425 | 429 => Err(Failure::busy(error, posted.retry_in())),
        503 if posted.headers.contains_key(RETRY_AFTER) => Err(Failure::busy(error, posted.retry_in())),
        408 | 500..=599 => Err(Failure::unknown(error)),
        400..=499 => Err(Failure::refused(error)),
        // A redirection is not followed. The provider may have acted before it redirected.
        _ => Err(Failure::unknown(error)),
    }
}

fn provider_id(body: &[u8]) -> Option<String> {
    message_id(serde_json::from_slice::<Value>(body).ok()?.get("id")?)
}

/// A provider's id of a message, without control characters and cut to the length that is kept.
pub fn message_id(id: &Value) -> Option<String> {
    let id = match id {
        Value::String(id) => id.clone(),
        Value::Number(id) => id.to_string(),
        _ => return None,
    };
    Some(id.chars().filter(|c| !c.is_control()).take(MESSAGE_ID_CHARS_MAX).collect())
}

#[cfg(test)]
mod tests {
    use hyper::{HeaderMap, StatusCode};
    use oncegate_core::job::{Failure, Reached};

    use super::*;

    fn status(code: u16, retry_after: Option<&'static str>) -> Sent {
        let mut headers = HeaderMap::new();
        headers.extend(retry_after.map(|value| (RETRY_AFTER, HeaderValue::from_static(value))));
        read(&Posted { status: StatusCode::from_u16(code).unwrap(), headers, body: Default::default() })
    }

    fn answered(status: StatusCode, body: &'static str) -> Sent {
        read(&Posted { status, headers: HeaderMap::new(), body: body.into() })
    }

    #[test]
    fn each_answer_is_read_as_sent_surely_unsent_or_unknown() {
        for code in [200, 201, 202, 204, 409] {
            assert!(status(code, None).is_ok(), "{code}");
        }
        let reading = |code, retry_after| {
            let Failure { reached, is_final, retry_in, .. } = status(code, retry_after).unwrap_err();
            (reached, is_final, retry_in)
        };
        for code in [400, 401, 403, 404, 410, 413, 422] {
            assert_eq!(reading(code, None), (Reached::No, true, None), "{code}");
        }
        assert_eq!(reading(429, None), (Reached::No, false, None));
        assert_eq!(reading(425, None), (Reached::No, false, None));
        assert_eq!(reading(429, Some("2")), (Reached::No, false, Some(Duration::from_secs(2))));
        assert_eq!(reading(503, Some("1")), (Reached::No, false, Some(Duration::from_secs(1))));
        // A `Retry-After` with a date proves as well that the message was not taken.
        assert_eq!(reading(503, Some("Sun, 06 Nov 1994 08:49:37 GMT")), (Reached::No, false, None));
        for code in [408, 500, 502, 503, 504, 302] {
            assert_eq!(reading(code, None), (Reached::Maybe, false, None), "{code}");
        }
    }

    #[tokio::test]
    async fn an_answer_is_an_answer_though_its_body_does_not_end() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            stream.write_all(b"HTTP/1.1 400 No\r\ncontent-length: 100\r\n\r\nbad\0number").await.unwrap();
            std::future::pending::<()>().await;
        });
        let allow = ["127.0.0.1/32".parse().unwrap()];
        let provider = Provider::new(url, None, Arc::from(allow)).unwrap();
        let workspace = WorkspaceName::new("default").unwrap();
        let message = Outgoing {
            policy: "message",
            workspace: &workspace,
            id: uuid::Uuid::nil(),
            channel: "sms",
            phone: Some("+1"),
            email: None,
            text: "x",
            attachments: &[],
            metadata: None,
        };
        let failure = provider.send(&message, &BTreeMap::new(), Duration::from_millis(300)).await.unwrap_err();
        assert_eq!((failure.reached, failure.is_final), (Reached::No, true), "{failure:?}");
    }

    #[test]
    fn an_error_can_be_kept_by_any_store() {
        let failure = answered(StatusCode::BAD_REQUEST, "bad\0number\x1b[2J").unwrap_err();
        assert!(failure.error.contains("bad number") && !failure.error.contains(char::is_control), "{failure:?}");
    }

    #[test]
    fn the_providers_id_is_kept_if_there_is_one() {
        let id = |body: &'static str| answered(StatusCode::OK, body).unwrap().provider_message_id;
        assert_eq!(id(r#"{"id":"SM1"}"#).as_deref(), Some("SM1"));
        assert_eq!(id(r#"{"id":17}"#).as_deref(), Some("17"));
        assert_eq!(id("thanks"), None);
        assert_eq!(id(r#"{"id":null}"#), None);
    }
}
