//! What leaves us says whose it is, and each workspace may have secrets and receivers of its own.
#![cfg(feature = "crash-points")]

use hyper::HeaderMap;
use serde_json::{Value, json};
use standardwebhooks::Webhook;

use crate::support::{ACME_SECRET, Client, Home, MailServer, On, Provider, SECRET, Workshop, eventually};

/// A server with two workspaces, and a client of each.
struct Two {
    shop: Workshop,
    ours: Client,
    acme: Client,
}

impl Two {
    async fn open(types: &str) -> Two {
        let shop = Workshop::open_with(On::Sqlite, "max_attempts = 1", types).await;
        let (_, ours) = shop.known_key("default").await;
        let (_, acme) = shop.known_key("acme").await;
        let (ours, acme) = (shop.servers[0].client_with(&ours), shop.servers[0].client_with(&acme));
        Two { shop, ours, acme }
    }
}

/// Runs an action to its end.
async fn run(client: &mut Client, action_type: &str, payload: Value) -> Value {
    let body = json!({"actionType": action_type, "payload": payload});
    let id = client.post("/api/actions", &body).await.expect(201).text("id");
    for _ in 0.. {
        let action = client.get(&format!("/api/actions/{id}")).await.expect(200).body;
        if action["endedAt"].is_string() {
            return action;
        }
        tokio::task::yield_now().await;
    }
    unreachable!("it ends, or the test is stopped")
}

/// The same headers, as a receiver reads them that wants to be sure of the workspace.
fn with_workspace(headers: &HeaderMap, workspace: &str) -> HeaderMap {
    let id = headers["webhook-id"].to_str().expect("an id");
    let mut composed = HeaderMap::new();
    composed.insert("webhook-id", format!("{workspace}/{id}").parse().expect("a value"));
    composed.insert("webhook-timestamp", headers["webhook-timestamp"].clone());
    composed.insert("webhook-signature", headers["oncegate-signature"].clone());
    composed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_of_two_workspaces_are_told_apart_and_verify_with_secrets_of_their_own() {
    let of_acme = Provider::start().await;
    let types = format!(
        "[workspace.acme.actions.type.\"hook\"]\nurl = \"http://{}/acme\"\nsecret_file = \"acme-secret\"\n",
        of_acme.address
    );
    let Two { shop, mut ours, mut acme } = Two::open(&types).await;
    assert_eq!(run(&mut ours, "hook", json!({"text": "ours"})).await["status"], "completed");
    assert_eq!(run(&mut acme, "hook", json!({"text": "theirs"})).await["status"], "completed");
    assert_eq!((shop.provider.all().len(), of_acme.all().len()), (1, 1), "each at its own receiver");
    for (arrived, workspace, secret, other) in [
        (&shop.provider.arrivals("ours")[0], "default", SECRET, ACME_SECRET),
        (&of_acme.arrivals("theirs")[0], "acme", ACME_SECRET, SECRET),
    ] {
        let (own, other) = (Webhook::new(secret).expect("a secret"), Webhook::new(other).expect("a secret"));
        let body = arrived.text.as_bytes();
        assert_eq!(arrived.headers["oncegate-workspace"], workspace);
        own.verify(body, &arrived.headers).expect("a receiver that knows nothing of workspaces verifies it");
        assert!(other.verify(body, &arrived.headers).is_err());
        own.verify(body, &with_workspace(&arrived.headers, workspace)).expect("and one that does");
        for forged in ["default", "acme", "other"].iter().filter(|name| **name != workspace) {
            assert!(own.verify(body, &with_workspace(&arrived.headers, forged)).is_err(), "{forged}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_channels_reminders_and_mails_name_their_workspace_and_have_its_settings() {
    let mail = MailServer::start();
    let sms = Provider::start().await;
    let types = format!(
        r#"
[messages.channel.sms]
kind = "http"
url = "http://{sms}/sms"
[workspace.acme.messages.channel.sms]
url = "http://{sms}/acme"
authorization_file = "acme-token"
[actions.type.mail]
handler = "email"
url = "smtp://127.0.0.1:{port}"
from = "Acme <hello@acme.test>"
[workspace.acme.actions.type.mail]
from = "Acme Inc <inc@acme.test>"
"#,
        sms = sms.address,
        port = mail.port
    );
    let Two { mut ours, mut acme, .. } = Two::open(&types).await;
    for (client, text) in [(&mut ours, "ours"), (&mut acme, "theirs")] {
        client.post("/api/messages", &json!({"recipientPhone": "+15550100", "message": text})).await;
    }
    let of = |text: &'static str| eventually("the message", || async { sms.arrivals(text).first().cloned() });
    let (from_ours, from_acme) = (of("ours").await, of("theirs").await);
    assert_eq!(
        (&from_ours.headers["oncegate-workspace"], from_ours.authorization),
        (&"default".parse().unwrap(), None)
    );
    assert_eq!(from_acme.headers["oncegate-workspace"], "acme");
    assert_eq!(from_acme.authorization.as_deref(), Some("Bearer acme"));
    for (client, text, from) in [(&mut ours, "To ours.", "hello@acme.test"), (&mut acme, "To theirs.", "inc@acme.test")]
    {
        let ended = run(client, "mail", json!({"to": "ada@example.test", "subject": "Soon", "text": text})).await;
        assert_eq!(ended["status"], "completed", "{ended}");
        let arrived = eventually("the mail", || async { mail.mails(text).first().cloned() }).await;
        let workspace = if from.starts_with("hello") { "default" } else { "acme" };
        let header = format!("Oncegate-Workspace: {workspace}");
        assert!(arrived["text"].as_str().is_some_and(|text| text.contains(&header)), "{arrived}");
        assert_eq!(arrived["from"], from);
    }
}

#[test]
fn settings_of_a_workspace_are_checked_as_those_of_all_are() {
    let hook = "[actions.type.hook]\nhandler = \"webhook\"\nurl = \"https://example.com/\"\n";
    for (config, what) in [
        ("[workspace.acme.actions.type.hook]\nurl = \"https://example.com/\"\n".to_owned(), "which is not there"),
        ("[workspace.acme.messages.channel.sms]\nurl = \"https://example.com/\"\n".to_owned(), "which is not there"),
        (format!("{hook}[workspace.acme.actions.type.hook]\nurl = \"http://10.0.0.1/\"\n"), "unless it is allowed"),
        (format!("{hook}[workspace.acme.actions.type.hook]\nfrom = \"a@b.test\"\n"), "means nothing to"),
        (format!("{hook}[workspace.acme.actions.type.hook]\nurls = \"https://example.com/\"\n"), "did you mean `"),
        (format!("{hook}[workspace.\"a b\".actions.type.hook]\nurl = \"https://example.com/\"\n"), "workspace"),
    ] {
        let ran = Home::with_config(&config).run(["config", "check"]);
        assert!(ran.code == 2 && ran.stderr.contains(what), "{config}: {ran:?}");
    }
    let right = format!("{hook}[workspace.acme.actions.type.hook]\nurl = \"https://acme.example.com/\"\n");
    let shown = Home::with_config(&right).run(["config", "show"]).expect_code(0).stdout;
    assert!(shown.contains("[workspace.acme.actions.type.hook]"), "{shown}");
}

#[test]
fn connections_in_the_clear_are_warned_of_and_secrets_that_everybody_may_read_are_refused() {
    let home = Home::with_config(
        r#"
store = "postgres://u:geheim@192.0.2.7/db"
[messages.channel.mail]
kind = "smtp"
url = "smtp://mail.example.com"
from = "a@b.test"
[messages.channel.sms]
kind = "http"
url = "http://sms.example.com/send?key=geheim"
authorization_file = "token"
"#,
    );
    let checked = home.run(["config", "check"]).expect_code(0);
    for part in ["192.0.2.7 is not encrypted; add ?sslmode=verify-full", "smtp+starttls://", "sms.example.com without"]
    {
        assert!(checked.stderr.contains(part), "{part}: {checked:?}");
    }
    let shown = home.run(["config", "show"]).expect_code(0);
    for ran in [&checked, &shown] {
        assert!(!format!("{ran:?}").contains("geheim"), "{ran:?}");
    }
    assert!(shown.stdout.contains("http://sms.example.com/send?key=***"), "{shown:?}");
    let home = Home::with_config(
        "[actions.type.hook]\nhandler = \"webhook\"\nurl = \"https://example.com/\"\nsecret_file = \"secret\"\n",
    );
    std::fs::write(home.path().join("secret"), SECRET).expect("the folder is ours");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(home.path().join("secret"), mode).expect("the file is ours");
    let ran = home.run(["serve", "--listen", "127.0.0.1:0"]);
    assert!(ran.code == 1 && ran.stderr.contains("chmod 600") && !ran.stderr.contains("whsec_"), "{ran:?}");
}
