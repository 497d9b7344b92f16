//! The workers of a campaign, on a queue that delivers at least once. They ask before they send, and report after that. Some die in
//! between.

use std::net::SocketAddr;
use std::time::Duration;

use hyper::Method;
use serde_json::json;

use super::caller::{Answer, Caller, Done, seconds};
use super::providers::{NO_MAILBOX, PARTNER_CAMPAIGN};
use oncegate_process::loopback::{NoAnswer, ask};

const EVERY: Duration = Duration::from_secs(3);
/// The lease, in seconds, of a worker that is about to die.
const SHORT_LEASE: f64 = 1.0;
/// Recipients of a campaign.
const RECIPIENTS: u64 = 200;

pub async fn work(caller: Caller, providers: SocketAddr) {
    caller.go_on(EVERY, async |caller: &mut Caller| act(caller, providers).await).await;
}

async fn act(caller: &mut Caller, providers: SocketAddr) -> Done {
    let number = caller.turn;
    let campaign = format!("spring-{}", 1 + number / RECIPIENTS);
    let recipient = format!("reader-{number}@example.com");
    let scene = caller.scene(&[6, 6, 3, 1, 1, 1, 3, 3]);
    let ask = |lease| begin(caller, &campaign, &recipient, lease);
    match scene {
        1 => {
            // The job is delivered again, although it was done.
            deliver(caller, providers, &ask(None).await?, &recipient).await?;
            ask(None).await.map(drop)
        }
        2 => {
            let (one, other) = tokio::join!(ask(None), ask(None));
            for asked in [one?, other?] {
                deliver(caller, providers, &asked, &recipient).await?;
            }
            Ok(())
        }
        3 => {
            // The worker dies after the call. The provider's log has the mail, so it counts as sent.
            mail(providers, &ask(Some(SHORT_LEASE)).await?, &recipient).await?;
            seconds(SHORT_LEASE + 0.5).await;
            ask(None).await.map(drop)
        }
        4 => {
            // The worker dies before the call. The provider's log has nothing, so the next worker sends, under the same key.
            ask(Some(SHORT_LEASE)).await?;
            seconds(SHORT_LEASE + 0.5).await;
            deliver(caller, providers, &ask(None).await?, &recipient).await
        }
        5 => {
            let nobody = format!("{NO_MAILBOX}{number}@example.com");
            deliver(caller, providers, &begin(caller, &campaign, &nobody, None).await?, &nobody).await
        }
        6 if caller.is_empty("/api/sends?state=unknown").await? => {
            // The worker dies, and this provider has no log to query: a person decides.
            let asked = begin(caller, PARTNER_CAMPAIGN, &recipient, Some(SHORT_LEASE)).await?;
            mail(providers, &asked, &recipient).await?;
            seconds(SHORT_LEASE + 0.5).await;
            begin(caller, PARTNER_CAMPAIGN, &recipient, None).await.map(drop)
        }
        7 => {
            // Two actions, one recipient: the server sends one mail.
            let payload = json!({"to": recipient, "subject": "Spring", "text": "It is here.", "campaignId": campaign, "recipientId": recipient});
            let action = json!({"actionType": "newsletter", "payload": payload});
            caller.post("/api/actions", &action).await?;
            caller.post("/api/actions", &action).await.map(drop)
        }
        _ => deliver(caller, providers, &ask(None).await?, &recipient).await,
    }
}

async fn begin(caller: &Caller, campaign: &str, recipient: &str, lease: Option<f64>) -> Result<Answer, NoAnswer> {
    let job = format!("job {}", caller.turn);
    let mut body = json!({"campaignId": campaign, "recipientId": recipient, "jobId": job, "templateId": "spring"});
    if let Some(lease) = lease {
        body["leaseSeconds"] = json!(lease);
    }
    caller.post("/api/sends", &body).await
}

/// If this worker may send: sends, and reports the result.
async fn deliver(caller: &Caller, providers: SocketAddr, asked: &Answer, recipient: &str) -> Done {
    if asked.status != 201 {
        return Ok(());
    }
    let (status, said) = mail(providers, asked, recipient).await?;
    let (token, id) = (&asked.body["token"], asked.text("id"));
    match status {
        200 => caller.post(&format!("/api/sends/{id}/sent"), &json!({"token": token, "espMessageId": said})).await,
        _ => {
            let failed = json!({"token": token, "error": format!("the provider answered {status}"), "reached": "no"});
            caller.post(&format!("/api/sends/{id}/failed"), &failed).await
        }
    }
    .map(drop)
}

/// Calls the provider under the key that all attempts share. Returns the status, and the provider's id of the mail.
async fn mail(providers: SocketAddr, asked: &Answer, recipient: &str) -> Result<(u16, String), NoAnswer> {
    let body = json!({"to": recipient, "text": "It is here."});
    let (status, text) = ask(providers, Method::POST, "/mail", Some(asked.text("providerKey")), Some(&body)).await?;
    let said: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    Ok((status, said["id"].as_str().unwrap_or_default().to_owned()))
}
