//! The reconcile hook: an URL that is asked whether the provider has a send.

use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use oncegate::sends::Kept;
use serde::Deserialize;
use serde_json::json;
use url::Url;

use crate::outgoing::{NotPosted, post};

pub struct Hook {
    pub url: Url,
    pub allow: Arc<[IpNet]>,
    pub timeout: Duration,
}

/// What it said.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// The provider has it, and may have said under which id.
    Sent(Option<String>),
    NotSent,
    /// It does not know, did not answer, or said something else.
    Nothing(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    sent: Option<bool>,
    esp_message_id: Option<String>,
}

impl Hook {
    pub async fn ask(&self, kept: &Kept) -> Said {
        let send = &kept.send;
        let question = json!({
            "id": kept.id, "providerKey": send.provider_key, "campaignId": send.campaign, "recipientId": send.recipient,
            "templateId": send.template, "attempt": send.attempt,
        });
        let body = question.to_string().into();
        match post(&self.url, send.provider_key, &[], body, &self.allow, self.timeout).await {
            Ok(posted) if posted.status.is_success() => read(&posted.body),
            Ok(posted) => Said::Nothing(format!("the hook answered {}", posted.status)),
            Err(NotPosted::Forbidden(why) | NotPosted::Unsent(why) | NotPosted::Broke(why)) => Said::Nothing(why),
        }
    }
}

fn read(body: &[u8]) -> Said {
    match serde_json::from_slice(body) {
        Ok(Answer { sent: Some(true), esp_message_id }) => Said::Sent(esp_message_id),
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
        assert_eq!(read(br#"{"sent":false}"#), Said::NotSent);
        for unclear in ["{\"sent\":null}", "{}", "", "true", r#"{"sent":"yes"}"#, r#"{"sent":1}"#] {
            assert!(matches!(read(unclear.as_bytes()), Said::Nothing(_)), "{unclear}");
        }
    }
}
