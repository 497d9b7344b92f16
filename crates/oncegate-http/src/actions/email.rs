//! `email`: the payload's `to`, `subject` and `text`, by SMTP, or by a provider's HTTP API.
//!
//! An email of a campaign to a recipient (`campaignId` and `recipientId` in the payload) goes through the send log, as any
//! other worker's send would: this handler asks before it sends, and reports afterwards. So two actions for one recipient,
//! or an action that is run again, send one email.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use oncegate::sends::{Begin, Begun, NotTaken, Proceed};
use oncegate::{StoreError, Time, WorkspaceName};
use oncegate_core::job::{Failure, Reached};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use uuid::Uuid;

use super::NotRun;
use crate::sends::Sends;
use oncegate_config::HandlerKind;
use oncegate_process::crash;
use oncegate_transports::channels::http::Provider;
use oncegate_transports::channels::mail::{Mail, NotMailed};
use oncegate_transports::channels::smtp::MailServer;
use oncegate_transports::channels::{Receipt, secret};
use oncegate_transports::effect::Effect;

/// The send's lease is longer than its call by this margin, to leave time for writing the outcome. A longer configured
/// lease wins.
const LEASE_MARGIN: Duration = Duration::from_millis(200);

/// The longest pause before the handler asks again about a send that another worker has.
const BUSY_PAUSE: Duration = Duration::from_secs(5);
/// The pause between two attempts to write the outcome.
const WRITE_PAUSE: Duration = Duration::from_millis(100);

/// The send's lease by this worker's own clock, counted from before the request.
#[derive(Clone, Copy)]
struct Lease {
    until: Instant,
    /// The time limit of the call.
    within: Duration,
}

impl Lease {
    /// The time left for the call. Part of the lease is reserved for writing the outcome.
    fn for_call(self) -> Duration {
        let left = self.until.saturating_duration_since(Instant::now());
        self.within.min(left.saturating_sub(LEASE_MARGIN / 2))
    }

    fn is_over(self) -> bool {
        Instant::now() + WRITE_PAUSE >= self.until
    }
}

pub struct Email {
    by: By,
    sends: Arc<Sends>,
}

enum By {
    Smtp(MailServer),
    Http { provider: Provider, from: String },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Payload {
    to: String,
    subject: Option<String>,
    text: String,
    campaign_id: Option<String>,
    recipient_id: Option<String>,
    template_id: Option<String>,
}

/// The body of the request to a provider.
#[derive(Serialize)]
struct Posted<'a> {
    id: Uuid,
    from: &'a str,
    to: &'a str,
    subject: Option<&'a str>,
    text: &'a str,
}

impl Email {
    pub fn new(handler: &HandlerKind, allow: &Arc<[IpNet]>, sends: Arc<Sends>) -> Result<Email, String> {
        let HandlerKind::Email { url, from, username, password_file, authorization_file } = handler else {
            unreachable!("only an email's handler is made here")
        };
        let (url, allow) = (url.clone(), allow.clone());
        let by = match url.scheme() {
            "http" | "https" => {
                let authorization = secret(authorization_file.as_deref())?;
                By::Http { provider: Provider::new(url, authorization, allow)?, from: from.clone() }
            }
            _ => {
                let file = password_file.as_deref();
                By::Smtp(MailServer::new(url, from, None, username.clone(), file, allow)?)
            }
        };
        Ok(Email { by, sends })
    }

    /// Sends the email. Returns the outcome for people to see.
    pub async fn run(
        &self,
        workspace: &WorkspaceName,
        effect: Effect<'_>,
        within: Duration,
    ) -> Result<Option<Box<RawValue>>, NotRun> {
        let payload: Payload = serde_json::from_str(effect.payload.get())
            .map_err(|_| Failure::refused("the payload of an email has `to` and `text`, and maybe `subject`"))?;
        match (&payload.campaign_id, &payload.recipient_id) {
            (None, None) => Ok(self.send(workspace, &payload, effect.effect_key, within).await.map(|_| None)?),
            (Some(campaign), Some(recipient)) => {
                let lease = self.sends.sends.options().lease.max(within + LEASE_MARGIN);
                let begin = begin(campaign, recipient, &payload, effect.id, lease).map_err(Failure::refused)?;
                let ours = Lease { until: Instant::now() + lease, within };
                self.guarded(workspace, &begin, &payload, ours).await
            }
            _ => {
                Err(Failure::refused("the payload of an email has both `campaignId` and `recipientId`, or neither")
                    .into())
            }
        }
    }

    async fn guarded(
        &self,
        workspace: &WorkspaceName,
        begin: &Begin,
        payload: &Payload,
        ours: Lease,
    ) -> Result<Option<Box<RawValue>>, NotRun> {
        crash::point("send.asking").await;
        let begun = self.sends.begin(workspace, begin).await;
        crash::point("send.begun").await;
        let said = match begun.map_err(|error| Failure::busy(error.to_string(), None))? {
            Begun::Proceed(proceed) => return Ok(self.proceed(workspace, &proceed, payload, ours).await?),
            // The other worker may finish before its lease ends.
            Begun::Busy { lease_left } => {
                let (why, wait) = ("another worker is at this send", lease_left.min(BUSY_PAUSE));
                return Err(NotRun::PutOff { why, wait });
            }
            Begun::Sent(sent) => {
                let at = Time::from_micros(sent.sent_us).to_string();
                json!({"send": "skip", "state": "sent", "sendId": sent.id, "sentAt": at})
            }
            Begun::Unknown { id } => {
                let why = format!("the send {id} is unknown: it may have been sent, and is not sent again");
                return Err(Failure { is_final: true, ..Failure::unknown(why) }.into());
            }
        };
        Ok(Some(to_raw_value(&said).expect("an object is JSON")))
    }

    async fn proceed(
        &self,
        workspace: &WorkspaceName,
        proceed: &Proceed,
        payload: &Payload,
        ours: Lease,
    ) -> Result<Option<Box<RawValue>>, Failure> {
        let Proceed { id, token, provider_key, .. } = proceed;
        let sent = match ours.for_call() {
            // This worker was paused past its lease: another one may have begun.
            Duration::ZERO => Err(Failure::busy("the lease ended before the provider was called", None)),
            within => self.send(workspace, payload, *provider_key, within).await,
        };
        crash::point("send.sent").await;
        // If this write fails, the send looks as if this worker had died. The next run of the action resolves it.
        let written = loop {
            let written = match &sent {
                Ok(receipt) => {
                    let id_of_provider = receipt.provider_message_id.clone();
                    self.sends.sends.sent(workspace, *id, *token, id_of_provider).await
                }
                Err(failure) => {
                    let Failure { error, reached, .. } = failure.clone();
                    self.sends.sends.failed(workspace, *id, *token, error, reached).await
                }
            };
            let written = self.sends.told(workspace, *id, written);
            match &written {
                Err(NotTaken::Store(StoreError::Unavailable(_) | StoreError::Unknown(_))) if !ours.is_over() => {
                    tokio::time::sleep(WRITE_PAUSE).await;
                }
                _ => break written,
            }
        };
        crash::point("send.settled").await;
        // An email that may have been sent is never reported as unsent, whatever the outcome of the write.
        let reached = sent.as_ref().map_or_else(|failure| failure.reached, |_| Reached::Maybe);
        let kept = written.map_err(|error| Failure { reached, ..Failure::busy(error.to_string(), None) })?;
        sent.map_err(|failure| Failure { is_final: failure.is_final && failure.reached == Reached::No, ..failure })?;
        let said = json!({"send": "sent", "sendId": id, "attempt": kept.document.attempt});
        Ok(Some(to_raw_value(&said).expect("an object is JSON")))
    }

    async fn send(
        &self,
        workspace: &WorkspaceName,
        payload: &Payload,
        key: Uuid,
        within: Duration,
    ) -> Result<Receipt, Failure> {
        let (to, subject) = (payload.to.as_str(), payload.subject.as_deref());
        match &self.by {
            By::Smtp(server) => {
                let mail = Mail { workspace, id: key, to: Some(to), subject, text: payload.text.clone() };
                server.send(&mail, within).await.map(|()| Receipt::default()).map_err(|error| match error {
                    NotMailed::Unreached(error) => Failure::busy(error, None),
                    NotMailed::Failed(failure) => failure,
                })
            }
            By::Http { provider, from } => {
                let posted = Posted { id: key, from, to, subject, text: &payload.text };
                let body = serde_json::to_vec(&posted).expect("an email is JSON");
                provider
                    .post(workspace, key, body, within)
                    .await
                    .unwrap_or_else(|unsent| Err(Failure::busy(unsent.0, None)))
            }
        }
    }
}

fn begin(campaign: &str, recipient: &str, payload: &Payload, action: Uuid, lease: Duration) -> Result<Begin, String> {
    let mut begin = Begin::new(campaign, recipient).and_then(|begin| begin.job(action.to_string()));
    if let Some(template) = &payload.template_id {
        begin = begin.and_then(|begin| begin.template(template));
    }
    begin.and_then(|begin| begin.lease(lease)).map_err(|error| error.to_string())
}
