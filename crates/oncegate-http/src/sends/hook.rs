//! The reconcile hook: a URL that is asked whether the provider has a send.

use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use oncegate::sends::Kept;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use url::Url;

use oncegate_transports::channels::http::message_id;
use oncegate_transports::outgoing::{NotPosted, post, workspace_header};
use oncegate_transports::trace::Ended;

pub struct Hook {
    url: Url,
    allow: Arc<[IpNet]>,
    timeout: Duration,
    /// Limits the concurrent calls of the hook.
    room: Semaphore,
}

/// The most concurrent calls. A hook that hangs must not delay every worker that asks whether to send.
const QUESTIONS_MAX: usize = 32;

/// The hook's answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// The provider has the send. The hook may give the provider's id.
    Sent(Option<String>),
    NotSent,
    /// The hook does not know, did not answer, or gave an invalid answer.
    Nothing(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    sent: Option<bool>,
    /// Any type is accepted, because only `sent` matters.
    #[serde(default)]
    esp_message_id: Value,
}

impl Ended for Said {
    fn failed(&self) -> Option<&'static str> {
        matches!(self, Said::Nothing(_)).then_some("no_answer")
    }
}

impl Hook {
    pub fn new(url: Url, allow: Arc<[IpNet]>, timeout: Duration) -> Hook {
        Hook { url, allow, timeout, room: Semaphore::new(QUESTIONS_MAX) }
    }

    pub async fn ask(&self, kept: &Kept) -> Said {
        let Ok(_place) = self.room.try_acquire() else {
            return Said::Nothing(format!("{QUESTIONS_MAX} questions are under way"));
        };
        let send = &kept.document;
        let question = json!({
            "id": kept.id, "providerKey": send.provider_key, "campaignId": send.campaign, "recipientId": send.recipient,
            "templateId": send.template, "attempt": send.attempt,
        });
        let body = question.to_string().into();
        match post(&self.url, send.provider_key, &[workspace_header(&kept.workspace)], body, &self.allow, self.timeout)
            .await
        {
            Ok(posted) if posted.status.is_success() => read(&posted.body),
            Ok(posted) => Said::Nothing(format!("the hook answered {}", posted.status)),
            Err(NotPosted::Forbidden(why) | NotPosted::Unsent(why) | NotPosted::Broke(why)) => Said::Nothing(why),
        }
    }
}

fn read(body: &[u8]) -> Said {
    match serde_json::from_slice(body) {
        Ok(Answer { sent: Some(true), esp_message_id }) => Said::Sent(message_id(&esp_message_id)),
        Ok(Answer { sent: Some(false), .. }) => Said::NotSent,
        Ok(Answer { sent: None, .. }) => Said::Nothing("the hook does not know".into()),
        Err(_) => Said::Nothing(r#"the hook's answer is not {"sent": true}, {"sent": false} or {"sent": null}"#.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_word_is_believed() {
        assert_eq!(read(br#"{"sent":true}"#), Said::Sent(None));
        assert_eq!(read(br#"{"sent":true,"espMessageId":"m1"}"#), Said::Sent(Some("m1".into())));
        assert_eq!(read(br#"{"sent":true,"espMessageId":7}"#), Said::Sent(Some("7".into())));
        assert_eq!(read(br#"{"sent":false}"#), Said::NotSent);
        for unclear in ["{\"sent\":null}", "{}", "", "true", r#"{"sent":"yes"}"#, r#"{"sent":1}"#] {
            assert!(matches!(read(unclear.as_bytes()), Said::Nothing(_)), "{unclear}");
        }
    }
}
