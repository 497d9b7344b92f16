//! The built-in email worker, killed before, in and after the provider's call, and how another worker finishes: counted at the provider.
//!
//! The test hardly waits for leases: while their owner is gone, the clock is set past all of them.
#![cfg(feature = "crash-points")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use hyper::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{MailServer, On, PATIENCE, Provider, Server, Workshop, eventually, on_both, with};

on_both![
    killed_at_any_point_an_email_is_sent_as_often_as_its_policy_says,
    killed_after_the_call_a_mail_goes_by_its_policy_too,
    killed_around_the_commit_a_begun_send_is_a_worker_that_died,
    two_actions_for_one_recipient_send_one_email,
    what_was_sent_is_not_called_dead_when_the_word_about_it_is_not_taken,
];

/// In the provider's call, which is no crash point.
const IN_THE_CALL: &str = "in the call";
const POINTS: [&str; 5] = ["send.asking", "send.begun", IN_THE_CALL, "send.sent", "send.settled"];
/// Longer than all leases.
const LONG: Duration = Duration::from_secs(120);
/// So long that no live server loses a lease, however busy the machine is.
const LEASE: &str = "lease = \"60s\"";

fn types(lost: &str, url: &str) -> String {
    format!(
        "[actions.type.mail]\nhandler = \"email\"\nurl = {url:?}\nfrom = \"a@acme.test\"\ntimeout = \"30s\"\n[sends]\nlost = {lost:?}\n{LEASE}\n"
    )
}

async fn shop_over(on: On, provider: &Provider, lost: &str) -> Workshop {
    let url = format!("http://{}/mail", provider.address);
    Workshop::open_with(on, LEASE, &types(lost, &url)).await
}

fn mail(recipient: &str, text: &str) -> Value {
    let payload = json!({"to": "ada@example.test", "text": text, "campaignId": "spring", "recipientId": recipient});
    json!({"actionType": "mail", "payload": payload})
}

/// Runs the action on a server that it crashes, and then on others, after the end of all leases. Returns the action, once it has ended.
async fn killed_at(shop: &mut Workshop, provider: &Provider, point: &str, ahead: &mut Duration, body: &Value) -> Value {
    let servers = shop.servers.len();
    shop.servers.clear();
    let mut server = shop.serve(&[("ONCEGATE_TEST_CRASH_AT", point)]);
    // Due later, so that every server knows of the action before it is leased.
    let later = with(body.clone(), json!({"delaySeconds": LONG.as_secs()}));
    let id = server.client().post("/api/actions", &later).await.expect(201).text("id");
    *ahead += LONG;
    shop.set_clock_ahead(*ahead);
    if point == IN_THE_CALL {
        let text = body["payload"]["text"].as_str().expect("a text");
        eventually("the provider has it", || async { provider.arrivals(text).first().map(drop) }).await;
        server.kill();
    } else {
        assert!(!server.wait(PATIENCE).success(), "{point}: it was killed");
    }
    *ahead += LONG;
    shop.set_clock_ahead(*ahead);
    shop.servers = (0..servers).map(|_| shop.serve(&[])).collect();
    eventually(&format!("{point}: it has ended"), || async {
        let action = shop.show(&id).await;
        action["endedAt"].is_string().then_some(action)
    })
    .await
}

/// The one send to this recipient.
async fn send_to(shop: &Workshop, recipient: &str) -> Value {
    let page = shop.client(0).get("/api/sends?limit=500").await.expect(200).body;
    let mut items = page["items"].as_array().expect("items").clone();
    items.retain(|item| item["recipientId"] == recipient);
    assert_eq!(items.len(), 1, "{page}");
    items.remove(0)
}

async fn killed_at_any_point_an_email_is_sent_as_often_as_its_policy_says(on: On) {
    for lost in ["resend", "skip", "hold"] {
        let provider = Provider::start().await;
        let (mut shop, mut ahead) = (shop_over(on, &provider, lost).await, Duration::ZERO);
        for point in POINTS {
            let text = format!("{point}{}", if point == IN_THE_CALL { "#hang-once" } else { "" });
            let ended = killed_at(&mut shop, &provider, point, &mut ahead, &mail(point, &text)).await;
            let arrived = provider.arrivals(&text);
            let keys: BTreeSet<&str> = arrived.iter().map(|arrived| arrived.key.as_str()).collect();
            let send = send_to(&shop, point).await;
            // How often it arrived, how often it was begun, and the final states of the send and the action.
            let expected = match (point, lost) {
                ("send.asking" | "send.settled", _) => (1, 1, "sent", "completed"),
                ("send.begun", "resend") => (1, 2, "sent", "completed"),
                ("send.begun", _) => (0, 1, "unknown", "unknown"),
                (_, "resend") => (2, 2, "sent", "completed"),
                (_, _) => (1, 1, "unknown", "unknown"),
            };
            let (arrivals, attempts, state, status) = expected;
            let seen = (arrived.len(), &send["attempt"], &send["state"], &ended["status"]);
            assert_eq!(seen, (arrivals, &json!(attempts), &json!(state), &json!(status)), "{point}, {lost}: {ended}");
            // At most one effect, for a provider that honours the key.
            assert!(keys.iter().all(|key| send["providerKey"] == *key), "{point}, {lost}: {keys:?}");
            assert_eq!(send["espMessageId"].is_string(), state == "sent", "{point}, {lost}: {send}");
            if point == "send.settled" {
                assert_eq!(ended["result"]["send"], "skip", "{ended}");
            }
        }
        if lost == "hold" {
            a_person_may_have_it_sent_after_all(&shop, &provider).await;
        }
    }
}

async fn a_person_may_have_it_sent_after_all(shop: &Workshop, provider: &Provider) {
    let send = send_to(shop, "send.begun").await;
    let path = format!("/api/sends/{}/resolve", send["id"].as_str().expect("an id"));
    shop.client(0).post(&path, &json!({"as": "not_sent"})).await.expect(200);
    let id = shop.client(0).post("/api/actions", &mail("send.begun", "send.begun")).await.expect(201).text("id");
    shop.becomes(&id, "completed").await;
    assert_eq!(provider.arrivals("send.begun").len(), 1);
    assert_eq!(send_to(shop, "send.begun").await["attempt"], 2);
}

async fn killed_after_the_call_a_mail_goes_by_its_policy_too(on: On) {
    for (lost, mails, status) in [("resend", 2, "completed"), ("skip", 1, "unknown")] {
        let server = MailServer::start();
        let (unused, url) = (Provider::start().await, format!("smtp://127.0.0.1:{}", server.port));
        let mut shop = Workshop::open_with(on, LEASE, &types(lost, &url)).await;
        let ended =
            killed_at(&mut shop, &unused, "send.sent", &mut Duration::ZERO.clone(), &mail("ada", "Hello")).await;
        assert_eq!(ended["status"], status, "{lost}: {ended}");
        let send = send_to(&shop, "ada").await;
        let arrived = server.mails("Hello");
        assert_eq!(arrived.len(), mails, "{lost}");
        let key = send["providerKey"].as_str().expect("a key");
        assert!(arrived.iter().all(|mail| mail["text"].as_str().is_some_and(|text| text.contains(key))), "{arrived:?}");
    }
}

async fn killed_around_the_commit_a_begun_send_is_a_worker_that_died(on: On) {
    for lost in ["resend", "skip", "hold"] {
        let provider = Provider::start().await;
        let mut shop = shop_over(on, &provider, lost).await;
        let servers = shop.servers.len();
        for (point, is_begun) in [("send.received", false), ("send.committed", true)] {
            shop.servers.clear();
            let mut server = shop.serve(&[("ONCEGATE_TEST_CRASH_AT", point)]);
            let body = json!({"campaignId": "spring", "recipientId": point});
            let asked = server.client().try_send(Method::POST, "/api/sends", Some(body.to_string().into())).await;
            assert!(asked.is_err() && !server.wait(PATIENCE).success(), "{point}: it was killed");
            shop.servers = (0..servers).map(|_| shop.serve(&[])).collect();
            let again = shop.client(1).post("/api/sends", &body).await;
            if !is_begun {
                assert_eq!(again.expect(201).body["attempt"], 1);
                continue;
            }
            again.expect_problem(409, "send-busy");
            shop.set_clock_ahead(LONG);
            let later = shop.client(0).post("/api/sends", &body).await;
            match lost {
                "resend" => assert_eq!(later.expect(201).body["attempt"], 2),
                _ => assert_eq!(later.expect(200).body["state"], "unknown"),
            }
        }
    }
}

async fn two_actions_for_one_recipient_send_one_email(on: On) {
    let provider = Provider::start().await;
    let shop = shop_over(on, &provider, "skip").await;
    let mut ids = vec![];
    for number in 0..10 {
        let made = shop.client(number).post("/api/actions", &mail("ada", "once")).await.expect(201);
        ids.push(made.text("id"));
    }
    for id in &ids {
        shop.becomes(id, "completed").await;
    }
    assert_eq!(provider.arrivals("once").len(), 1);
    // A send that the provider surely refused is retried, and succeeds.
    let again = shop.now("mail", mail("bob", "later#503-once")["payload"].clone()).await;
    shop.becomes(&again, "completed").await;
    assert_eq!((provider.arrivals("later#503-once").len(), provider.effects("later#503-once")), (2, 1));
    // A send that the provider may have accepted is not retried.
    let cut = shop.now("mail", mail("cleo", "cut#cut")["payload"].clone()).await;
    shop.becomes(&cut, "unknown").await;
    assert_eq!(
        (provider.arrivals("cut#cut").len(), send_to(&shop, "cleo").await["state"].clone()),
        (1, json!("unknown"))
    );
    // Without a recipient no guard is needed; an incomplete recipient is an error.
    let plain = shop.now("mail", json!({"to": "ada@example.test", "text": "plain"})).await;
    shop.becomes(&plain, "completed").await;
    let half = with(mail("x", "half")["payload"].clone(), json!({"recipientId": null}));
    let half = shop.now("mail", half).await;
    shop.becomes(&half, "dead").await;
    assert!(provider.arrivals("half").is_empty());
}

async fn what_was_sent_is_not_called_dead_when_the_word_about_it_is_not_taken(on: On) {
    let provider = Provider::start().await;
    let url = format!("http://{}/mail", provider.address);
    let types = types("hold", &url).replace("[sends]", "max_attempts = 1\n[sends]");
    let shop = Workshop::open_with(on, LEASE, &types).await;
    let id = shop.now("mail", mail("ada", "taken#slow")["payload"].clone()).await;
    eventually("the provider has it", || async { provider.arrivals("taken#slow").first().map(drop) }).await;
    // While the provider works, a person deletes the claim.
    let claims = shop.client(0).get("/api/claims?guard=send").await.expect(200).body;
    let claim = claims["items"][0]["id"].as_str().expect("an id");
    shop.home.run(["claims", "forget", claim, "--guard", "send"]).expect_code(0);
    let ended = eventually("it has ended", || async {
        let action = shop.show(&id).await;
        action["endedAt"].is_string().then_some(action)
    })
    .await;
    assert_eq!((&ended["status"], provider.arrivals("taken#slow").len()), (&json!("unknown"), 1), "{ended}");
}

/// Stopped in the provider's call, and woken after another worker has finished.
async fn asleep(lost: &str) {
    let provider = Provider::start().await;
    let url = format!("http://{}/mail", provider.address);
    // The pause must be longer than the lease.
    let short = |config: &str| config.replace("60s", "6s").replace("30s", "5s");
    let mut shop = Workshop::open_with(On::Postgres, &short(LEASE), &short(&types(lost, &url))).await;
    let awake: Server = shop.servers.remove(1);
    let sleeper = shop.servers.remove(0);
    awake.signal(Signal::STOP);
    let text = "asleep#hang-once";
    let id = sleeper.client().post("/api/actions", &mail("ada", text)).await.expect(201).text("id");
    eventually("the provider has it", || async { provider.arrivals(text).first().map(drop) }).await;
    sleeper.signal(Signal::STOP);
    let asleep_since = Instant::now();
    shop.set_clock_ahead(LONG);
    awake.signal(Signal::CONT);
    shop.servers = vec![awake];
    let (status, state, arrivals) = if lost == "resend" { ("completed", "sent", 2) } else { ("unknown", "unknown", 1) };
    shop.becomes(&id, status).await;
    tokio::time::sleep(Duration::from_secs(6).saturating_sub(asleep_since.elapsed())).await;
    sleeper.signal(Signal::CONT);
    // The server finds that it no longer owns the action, and does not report an outcome.
    sleeper.logged("action.lease_lost", 1).await;
    assert_eq!(shop.show(&id).await["status"], status);
    assert_eq!(send_to(&shop, "ada").await["state"], state);
    assert_eq!((provider.arrivals(text).len(), provider.effects(text)), (arrivals, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_worker_that_slept_through_its_lease_changes_nothing_when_it_wakes() {
    tokio::join!(asleep("resend"), asleep("hold"));
}
