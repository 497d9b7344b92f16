//! The logs and metrics of messages, which contain no text and no address.
#![cfg(feature = "crash-points")]

use serde_json::json;

use crate::support::{MailServer, On, PostOffice, sms, with};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs aiosmtpd: run make test"]
async fn every_outcome_is_logged_and_counted_and_no_text_or_address_is() {
    let mail = tokio::task::spawn_blocking(MailServer::start).await.expect("starts");
    let channel = format!(
        "[messages.channel.email]\nkind = \"smtp\"\nurl = \"smtp://127.0.0.1:{}\"\nfrom = \"a@acme.test\"\n",
        mail.port
    );
    let office = PostOffice::open_with(On::Sqlite, &channel).await;
    let secret = "s3cr3t";
    let texts = ["", "#400", "#500", "#429-once"].map(|what| format!("{secret}-text{what}"));
    for text in &texts {
        let body = with(
            sms(&format!("+{secret}"), text),
            json!({"recipientName": secret, "metadata": {"m": secret}, "hsContactId": secret}),
        );
        office.post_with_key(&format!("{secret}-key-{}", text.len()), &body).await;
        office.post(&body).await;
    }
    let to_nobody = json!({"recipientEmail": format!("nobody@{secret}.test"), "message": secret});
    office.post(&to_nobody).await.expect(502);
    office.post(&json!({"recipientEmail": secret, "message": secret})).await.expect_invalid("recipientEmail");
    office.post_with_key(&format!("{secret} key"), &sms("+1", secret)).await.expect_invalid("Idempotency-Key");
    let server = &office.servers[0];
    for (event, count) in [
        ("message.api.sent", 2),
        ("message.api.failed", 3),
        ("message.api.unknown", 1),
        ("message.api.duplicate_blocked", 3),
    ] {
        for line in server.logged(event, count).await {
            for field in ["workspace", "claimId", "messageId"] {
                assert!(line[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {line}");
            }
            assert!(line["ageSeconds"].is_number(), "{line}");
        }
    }
    let metrics = office.client(0).get("/metrics").await.text;
    for (event, count) in [("sent", 2), ("failed", 3), ("unknown", 1), ("duplicate_blocked", 3)] {
        let line = format!("oncegate_message_events_total{{event=\"message.api.{event}\"}} {count}");
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    assert!(!metrics.contains(secret), "{metrics}");
    let lines: Vec<_> = server.log();
    let told = lines.iter().find(|line| line.to_string().contains(secret));
    assert!(told.is_none(), "{told:?}");
}
