//! Each effect names its workspace, and each workspace may have its own secrets and receivers.
#![cfg(feature = "crash-points")]

use std::time::Duration;

use hyper::HeaderMap;
use serde_json::{Value, json};
use standardwebhooks::Webhook;

use crate::support::broker::take;
use crate::support::{ACME_SECRET, Broker, Client, Home, MailServer, Nats, On, Provider, SECRET, Workshop, eventually};

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

/// The same headers for a receiver that verifies the workspace.
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
    let Two { shop: _shop, mut ours, mut acme } = Two::open(&types).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs RabbitMQ: run make test"]
async fn a_message_to_rabbitmq_names_the_workspace_of_its_action() {
    let broker = Broker::start().await;
    let channel = broker.declare("effects").await;
    let types = format!(
        "[amqp]\nurl = {:?}\n[actions.type.queued]\nhandler = \"amqp\"\nrouting_key = \"effects\"\n",
        broker.url()
    );
    let Two { shop: _shop, mut ours, mut acme } = Two::open(&types).await;
    assert_eq!(run(&mut ours, "queued", json!("ours")).await["status"], "completed");
    assert_eq!(run(&mut acme, "queued", json!("theirs")).await["status"], "completed");
    let taken = take(&channel, "effects", Duration::from_secs(2)).await;
    let taken: Vec<_> = taken.iter().map(|one| (one.workspace.as_deref(), one.body.clone())).collect();
    assert_eq!(taken, [(Some("default"), json!("ours")), (Some("acme"), json!("theirs"))]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs NATS: run make test"]
async fn a_message_to_nats_names_the_workspace_of_its_action() {
    let nats = Nats::start().await;
    nats.make_stream("EFFECTS", "effects").await;
    let types =
        format!("[nats]\nurl = {:?}\n[actions.type.streamed]\nhandler = \"nats\"\nsubject = \"effects\"\n", nats.url());
    let Two { shop: _shop, mut ours, mut acme } = Two::open(&types).await;
    assert_eq!(run(&mut ours, "streamed", json!("ours")).await["status"], "completed");
    assert_eq!(run(&mut acme, "streamed", json!("theirs")).await["status"], "completed");
    let messages = nats.messages("EFFECTS").await;
    let named = messages.iter().map(|message| {
        let workspace = message.headers.as_ref().and_then(|headers| headers.get("Oncegate-Workspace"));
        (workspace.map(|name| name.as_str()), serde_json::from_slice(&message.payload).expect("JSON"))
    });
    let named: Vec<(Option<&str>, Value)> = named.collect();
    assert_eq!(named, [(Some("default"), json!("ours")), (Some("acme"), json!("theirs"))]);
}

#[test]
fn a_workspace_with_its_own_url_has_its_own_secret() {
    let hook = "[actions.type.hook]\nhandler = \"webhook\"\nurl = \"https://example.com/\"\nsecret_file = \"s\"\n";
    let mail = "[actions.type.mail]\nhandler = \"email\"\nurl = \"smtps://example.com\"\nfrom = \"a@b.test\"\nusername = \"u\"\npassword_file = \"s\"\n";
    let by_http = "[actions.type.mail]\nhandler = \"email\"\nurl = \"https://example.com\"\nfrom = \"a@b.test\"\nauthorization_file = \"s\"\n";
    let sms = "[messages.channel.sms]\nkind = \"http\"\nurl = \"https://example.com/\"\nauthorization_file = \"s\"\n";
    let letter = "[messages.channel.sms]\nkind = \"smtp\"\nurl = \"smtps://example.com\"\nfrom = \"a@b.test\"\nusername = \"u\"\npassword_file = \"s\"\n";
    for (all, table, url, secret) in [
        (hook, "actions.type.hook", "https://acme.test/", "secret_file"),
        (mail, "actions.type.mail", "smtps://acme.test", "password_file"),
        (by_http, "actions.type.mail", "https://acme.test/", "authorization_file"),
        (sms, "messages.channel.sms", "https://acme.test/", "authorization_file"),
        (letter, "messages.channel.sms", "smtps://acme.test", "password_file"),
    ] {
        let own = format!("{all}[workspace.acme.{table}]\nurl = {url:?}\n");
        let refused = Home::with_config(&own).run(["config", "check"]);
        let what = format!("[workspace.acme.{table}] has a `url` of its own, and the `{secret}` of [{table}]");
        let hint = format!("write {secret} in [workspace.acme.{table}], too");
        assert!(refused.code == 2 && refused.stderr.contains(&what) && refused.stderr.contains(&hint), "{refused:?}");
        Home::with_config(&format!("{own}{secret} = \"acme\"\n")).run(["config", "check"]).expect_code(0);
        // Its own secret for the shared URL is allowed.
        let secret_alone = format!("{all}[workspace.acme.{table}]\n{secret} = \"acme\"\n");
        Home::with_config(&secret_alone).run(["config", "check"]).expect_code(0);
    }
}

#[test]
fn credentials_in_urls_are_not_shown_also_where_the_url_has_no_scheme() {
    let config = r#"
[nats]
url = "ann:geheim@192.0.2.7:4222"
[messages.channel.sms]
kind = "http"
url = "https:sms.example.com/send?key=geheim"
"#;
    let home = Home::with_config(config);
    let shown = home.run(["config", "show"]).expect_code(0);
    assert!(shown.stdout.contains("url = \"***@192.0.2.7:4222\""), "{shown:?}");
    assert!(shown.stdout.contains("url = \"https:sms.example.com/send?key=***\""), "{shown:?}");
    let checked = home.run(["config", "check"]).expect_code(0);
    assert!(checked.stderr.contains("the broker at 192.0.2.7 is not encrypted"), "{checked:?}");
    // RabbitMQ's URL needs a scheme.
    let refused = Home::with_config("[amqp]\nurl = \"ann:geheim@192.0.2.7/v\"\n").run(["config", "show"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    for ran in [&shown, &checked, &refused] {
        assert!(!format!("{ran:?}").contains("geheim"), "{ran:?}");
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
