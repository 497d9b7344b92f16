//! Outgoing requests: webhooks as an independent implementation verifies them, their allowed targets, and mail.
#![cfg(feature = "crash-points")]

use serde_json::{Value, json};
use standardwebhooks::Webhook;

use crate::support::{Home, MailServer, On, Server, Workshop, eventually};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEXT_SECRET: &str = "whsec_bmV4dCBzZWNyZXQgb2YgdGhpcnR5LXR3byBieXRlcyE=";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_verifies_and_its_id_is_the_same_on_every_try() {
    let shop = Workshop::open(On::Sqlite).await;
    // The signature covers the exact bytes, so the payload must not be reformatted.
    let payload = r#"{"text": "signed#503-once",  "big": 12345678901234567890123, "é": 1.50}"#;
    let body = format!(r#"{{"actionType":"hook","payload":{payload}}}"#);
    let made = shop.client(0).send(hyper::Method::POST, "/api/actions", Some(body.into())).await.expect(201);
    shop.becomes(&made.text("id"), "completed").await;
    let arrived = shop.provider.all();
    assert_eq!(arrived.len(), 2);
    let hook = Webhook::new(SECRET).expect("a secret");
    for once in &arrived {
        hook.verify(once.text.as_bytes(), &once.headers).expect("verifies");
        assert_eq!(once.text, payload);
        assert_eq!(once.headers["webhook-id"], made.text("id").as_str());
        assert_eq!(once.key, made.text("id"), "the Idempotency-Key too");
        let changed = once.text.replace("signed", "forged");
        assert!(hook.verify(changed.as_bytes(), &once.headers).is_err());
    }
    assert!(Webhook::new(NEXT_SECRET).expect("a secret").verify(payload.as_bytes(), &arrived[0].headers).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_secret_is_changed_both_verify() {
    let mut shop = Workshop::open(On::Sqlite).await;
    shop.home.write_secret("secret", &format!("{NEXT_SECRET}\n{SECRET}\n"));
    shop.servers = vec![shop.serve(&[])];
    let id = shop.now("hook", json!({"text": "both"})).await;
    shop.becomes(&id, "completed").await;
    let arrived = &shop.provider.arrivals("both")[0];
    for secret in [SECRET, NEXT_SECRET] {
        Webhook::new(secret).expect("a secret").verify(arrived.text.as_bytes(), &arrived.headers).expect("verifies");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirection_is_not_followed() {
    let shop = Workshop::open_with(On::Sqlite, "max_attempts = 1", "").await;
    let elsewhere = format!("http://{}/elsewhere", shop.provider.address);
    let id = shop.now("hook", json!({"text": "go#moved", "location": elsewhere})).await;
    let ended = shop.becomes(&id, "unknown").await;
    assert!(ended["error"].as_str().is_some_and(|error| error.contains("302")), "{ended}");
    assert_eq!(shop.provider.all().len(), 1);
}

/// A server without allowed addresses, and a type whose payload names the URL.
fn strict() -> (Home, Server) {
    let home = Home::with_config(
        "[actions]\nmax_attempts = 1\n[actions.type.\"call\"]\nhandler = \"webhook\"\nallow_payload_url = true\n",
    );
    let server = home.serve();
    (home, server)
}

async fn ended(server: &Server, payload: Value) -> Value {
    let body = json!({"actionType": "call", "payload": payload});
    let id = server.client().post("/api/actions", &body).await.expect(201).text("id");
    eventually("it has ended", || async {
        let action = server.client().get(&format!("/api/actions/{id}")).await.expect(200).body;
        action["endedAt"].is_string().then_some(action)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payloads_url_does_not_reach_what_only_this_machine_can_reach() {
    let (_home, server) = strict();
    let port = server.address.port();
    let refused = [
        format!("http://127.0.0.1:{port}/api/claims"),
        format!("http://localhost:{port}/"),
        format!("http://[::1]:{port}/"),
        format!("http://[::ffff:127.0.0.1]:{port}/"),
        format!("http://[::7f00:1]:{port}/"),
        format!("http://2130706433:{port}/"),
        format!("http://0x7f.1:{port}/"),
        format!("http://0.0.0.0:{port}/"),
        "http://10.0.0.1/".into(),
        "http://172.16.0.1/".into(),
        "http://192.168.1.1/".into(),
        "http://169.254.169.254/latest/meta-data/".into(),
        "http://168.63.129.16/".into(),
        "http://[fd00:ec2::254]/".into(),
        "http://[fe80::1]/".into(),
        "http://[64:ff9b::7f00:1]/".into(),
    ];
    for url in refused {
        let action = ended(&server, json!({"url": url})).await;
        let error = action["error"].as_str().unwrap_or_default();
        assert!(action["status"] == "dead" && error.contains("is not one to call"), "{url}: {action}");
    }
    let wrong = [
        json!({"url": "ftp://example.com/"}),
        json!({"url": "http://user:secret@example.com/"}),
        json!({"url": "not a url"}),
        json!({"url": 5}),
        json!({"url": format!("http://example.com/{}", "x".repeat(70_000))}),
        json!({}),
        json!("text"),
    ];
    for payload in wrong {
        let action = ended(&server, payload.clone()).await;
        let error = action["error"].as_str().unwrap_or_default();
        assert!(action["status"] == "dead" && error.contains("url"), "{action}");
        assert!(!error.contains("secret"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payloads_url_is_called_where_that_is_allowed_and_only_there() {
    let types = "[actions.type.\"call\"]\nhandler = \"webhook\"\nallow_payload_url = true\n";
    let mut shop = Workshop::open_with(On::Sqlite, "", types).await;
    let url = format!("http://{}/theirs", shop.provider.address);
    // A payload may not name an address that only the configuration may use, unless a setting allows it.
    let id = shop.now("call", json!({"url": url, "text": "refused"})).await;
    let dead = shop.becomes(&id, "dead").await;
    assert!(dead["error"].as_str().is_some_and(|error| error.contains("is not one to call")), "{dead}");
    assert_eq!(shop.provider.all().len(), 0);
    shop.servers = vec![shop.serve(&[("ONCEGATE_OUTGOING_ALLOW_PAYLOAD", "127.0.0.0/8")])];
    let id = shop.now("call", json!({"url": url, "text": "theirs"})).await;
    shop.becomes(&id, "completed").await;
    assert!(shop.provider.arrivals("theirs")[0].headers.get("webhook-signature").is_none(), "there is no secret");
    let id = shop.now("hook", json!({"url": "http://10.0.0.1/", "text": "ours"})).await;
    shop.becomes(&id, "completed").await;
    assert_eq!(shop.provider.arrivals("ours").len(), 1, "where the config says, whatever the payload says");
    // The receiver's answer is hidden from callers that can choose the URL.
    let id = shop.now("call", json!({"url": url, "text": "gone#410"})).await;
    let dead = shop.becomes(&id, "dead").await;
    assert_eq!(dead["error"], "the receiver answered 410 Gone");
    let id = shop.now("hook", json!({"text": "gone#410"})).await;
    let dead = shop.becomes(&id, "dead").await;
    assert!(
        dead["error"].as_str().is_some_and(|error| error.starts_with("the receiver answered 410 Gone: {")),
        "{dead}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mail_is_sent_under_one_id_and_tried_again_when_the_server_is_away() {
    let mail = MailServer::start();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr()).expect("a port");
    let table = |name: &str, url: String| {
        format!(
            "[actions.type.{name}]\nhandler = \"email\"\nurl = {url:?}\nfrom = \"Acme <hello@acme.test>\"\nmax_attempts = 2\n"
        )
    };
    let types = table("mail", format!("smtp://127.0.0.1:{}", mail.port)) + &table("away", format!("smtp://{closed}"));
    let shop = Workshop::open_with(On::Sqlite, "", &types).await;
    let id = shop.now("mail", json!({"to": "ada@example.test", "subject": "Soon", "text": "Your trial ends."})).await;
    shop.becomes(&id, "completed").await;
    let arrived = eventually("the mail", || async { mail.mails("Your trial ends.").first().cloned() }).await;
    let text = arrived["text"].as_str().expect("a text");
    assert!(text.contains("Subject: Soon") && text.contains("Your trial ends.") && text.contains(&id), "{text}");
    let id = shop.now("away", json!({"to": "ada@example.test", "text": "x"})).await;
    let dead = shop.becomes(&id, "dead").await;
    assert_eq!(dead["tries"].as_array().map(Vec::len), Some(2), "{dead}");
    let id = shop.now("mail", json!({"subject": "to nobody"})).await;
    let dead = shop.becomes(&id, "dead").await;
    assert_eq!(dead["attempt"], 1, "the same again would not help: {dead}");
}

#[test]
fn a_type_that_is_configured_wrongly_is_refused_at_the_start_and_named() {
    let cases = [
        ("[actions.type.a]\nhandler = \"webhook\"\n", "has no `url`"),
        ("[actions.type.a]\nhandler = \"webhok\"\n", "did you mean \"webhook\"?"),
        ("[actions.type.a]\nhandler = \"webhook\"\nurl = \"http://10.0.0.1/\"\n", "not called unless it is allowed"),
        ("[actions.type.a]\nhandler = \"log\"\nurl = \"http://example.com/\"\n", "means nothing to \"log\""),
        ("[actions.type.a]\nfrom = \"x@y.test\"\n", "means nothing to"),
        ("[actions.type.a]\ndelivery = \"twice\"\n", "at_least_once"),
        ("[actions.type.a]\nwindow_seconds = \"5s\"\n", "a number of seconds"),
        ("[actions]\nworkers = 0\n", "the least is 1"),
        ("[actions.type.a]\nhandler = \"email\"\nurl = \"smtp://example.com\"\n", "has no `from`"),
    ];
    for (config, what) in cases {
        let ran = Home::with_config(config).run(["config", "check"]);
        assert!(ran.code == 2 && ran.stderr.contains(what), "{config}: {ran:?}");
    }
    let home = Home::with_config(
        "[actions.type.a]\nhandler = \"webhook\"\nurl = \"https://example.com/\"\nsecret_file = \"s\"\n",
    );
    home.write_secret("s", "not a secret");
    let ran = home.run(["serve", "--listen", "127.0.0.1:0"]);
    assert!(ran.code == 1 && ran.stderr.contains("whsec_") && !ran.stderr.contains("not a secret"), "{ran:?}");
}
