//! The queue behind messages: few slots, a server that is told to stop, and the command line's view of it.
#![cfg(feature = "crash-points")]

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::JoinHandle;

use crate::support::{Home, On, PostOffice, Reply, eventually, on_both, sms};

on_both![
    what_finds_no_slot_waits_in_the_queue_and_is_sent,
    told_to_stop_it_finishes_what_it_has_begun_and_leaves_the_rest_to_others,
    told_to_stop_it_answers_who_waits_for_what_its_worker_sends,
    without_kept_bodies_an_answer_is_told_again_from_the_message,
];

async fn status(office: &PostOffice, id: &str) -> String {
    office.client(0).get(&format!("/api/messages/{id}")).await.expect(200).text("status")
}

/// Posts on a task of its own while the test continues.
fn post_apart(office: &PostOffice, phone: &'static str, text: &'static str) -> JoinHandle<Reply> {
    let mut client = office.client(0);
    tokio::spawn(async move { client.post("/api/messages", &sms(phone, text)).await })
}

async fn is_being_sent(office: &PostOffice, text: &str) {
    eventually("it is being sent", || async { (!office.provider.arrivals(text).is_empty()).then_some(()) }).await;
}

/// The second server may lease a queued message at once, so its status is no evidence that it was accepted.
async fn is_accepted(office: &PostOffice, text: &str) {
    eventually("it is accepted", || async {
        let page = office.client(0).get("/api/messages").await.body;
        page["items"].as_array().is_some_and(|items| items.iter().any(|item| item["message"] == text)).then_some(())
    })
    .await;
}

async fn what_finds_no_slot_waits_in_the_queue_and_is_sent(on: On) {
    // One slot for each server.
    let office = PostOffice::open_with(on, "workers = 1").await;
    let posts = (0..6).map(|number| {
        let mut client = office.client(number);
        async move { client.post("/api/messages", &sms(&format!("+{number}"), &format!("queued {number}#slow"))).await }
    });
    let replies = futures::future::join_all(posts).await;
    for (number, reply) in replies.iter().enumerate() {
        assert!(matches!(reply.status, 201 | 202), "{reply:?}");
        let id = reply.body["message"]["_id"].as_str().expect("an id").to_owned();
        eventually("it is sent", || async { (status(&office, &id).await == "sent").then_some(()) }).await;
        assert_eq!(office.provider.arrivals(&format!("queued {number}#slow")).len(), 1);
    }
}

async fn told_to_stop_it_finishes_what_it_has_begun_and_leaves_the_rest_to_others(on: On) {
    let mut office = PostOffice::open_with(on, "workers = 1").await;
    let begun = post_apart(&office, "+1", "begun#slow");
    is_being_sent(&office, "begun#slow").await;
    let waiting = post_apart(&office, "+2", "waiting");
    is_accepted(&office, "waiting").await;
    let asked = Instant::now();
    let server = office.servers.remove(0);
    let (exit, _) = tokio::task::spawn_blocking(|| server.stop()).await.expect("stops");
    assert!(exit.success() && asked.elapsed() < Duration::from_secs(10), "{exit} after {:?}", asked.elapsed());
    assert_eq!(begun.await.expect("does not panic").expect(201).body["status"], "sent");
    // On two servers the other one may have taken the message by then.
    let waiting = waiting.await.expect("does not panic");
    assert!(matches!(waiting.status, 201 | 202), "{waiting:?}");
    office.servers.insert(0, office.serve(&[]));
    let id = waiting.body["message"]["_id"].as_str().expect("an id").to_owned();
    eventually("it is sent", || async { (status(&office, &id).await == "sent").then_some(()) }).await;
    assert_eq!((office.provider.arrivals("begun#slow").len(), office.provider.arrivals("waiting").len()), (1, 1));
}

async fn told_to_stop_it_answers_who_waits_for_what_its_worker_sends(on: On) {
    let mut office = PostOffice::open_with(on, "workers = 1").await;
    let first = post_apart(&office, "+1", "first#slow");
    is_being_sent(&office, "first#slow").await;
    // There is no slot, so the request does not send the message itself.
    let second = post_apart(&office, "+2", "second#slow");
    is_being_sent(&office, "second#slow").await;
    let server = office.servers.remove(0);
    let (exit, _) = tokio::task::spawn_blocking(|| server.stop()).await.expect("stops");
    assert!(exit.success(), "{exit}");
    for post in [first, second] {
        assert_eq!(post.await.expect("does not panic").expect(201).body["status"], "sent");
    }
}

async fn without_kept_bodies_an_answer_is_told_again_from_the_message(on: On) {
    let office = PostOffice::open_with(on, "[privacy]\nstore_outcome_body = false").await;
    let first = office.post_with_key("k", &sms("+1", "told again")).await.expect(201);
    let again = office.post_with_key("k", &sms("+1", "told again")).await.expect(201);
    assert_eq!((again.header("idempotent-replayed"), &again.text), (Some("true"), &first.text));
    let other = office.post_with_key("k2", &sms("+1", "told again")).await.expect(200);
    let other_again = office.post_with_key("k2", &sms("+1", "told again")).await.expect(200);
    assert_eq!(other_again.header("oncegate-duplicate"), Some("true"));
    assert_eq!(other_again.body["message"], other.body["message"]);
    assert_eq!(office.provider.arrivals("told again").len(), 1);
    // Also its status, once a person has settled it.
    let unknown = office.post_with_key("k3", &sms("+1", "settled#500")).await.expect(502);
    let resolve = format!("/api/messages/{}/resolve", unknown.body["message"]["_id"].as_str().expect("an id"));
    office.client(0).post(&resolve, &json!({"as": "sent"})).await.expect(200);
    let told = office.post_with_key("k3", &sms("+1", "settled#500")).await.expect(200);
    assert_eq!((&told.body["success"], &told.body["status"]), (&json!(true), &json!("sent")), "{told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_large_messages_ends_early_and_the_next_goes_on_from_there() {
    let office = PostOffice::open(On::Sqlite).await;
    let large = "x".repeat(60_000);
    let posts = (0..120).map(|number| {
        let (mut client, text) = (office.client(0), format!("{number} {large}"));
        async move { client.post("/api/messages", &sms("+1", &text)).await.status }
    });
    let posted = futures::future::join_all(posts).await;
    assert!(posted.iter().all(|status| matches!(status, 200 | 201)), "{posted:?}");
    let first = office.client(0).get("/api/messages?limit=500").await.expect(200);
    let count = |reply: &Reply| reply.body["items"].as_array().map_or(0, Vec::len);
    assert!(count(&first) < 120 && first.text.len() < 8 * 1024 * 1024, "{} in {}", count(&first), first.text.len());
    let rest = office.client(0).get(&format!("/api/messages?limit=500&cursor={}", first.text("nextCursor"))).await;
    assert_eq!((count(&first) + count(&rest), &rest.body["nextCursor"]), (120, &serde_json::Value::Null));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_lists_and_shows_messages() {
    let office = PostOffice::open(On::Sqlite).await;
    let sent = office.post(&sms("+1", "shown")).await.expect(201);
    let failed = office.post(&sms("+1", "shown#400")).await.expect(502);
    let run = async |arguments: &'static [&'static str], more: Vec<String>| {
        let all: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).chain(more).collect();
        office.home.run(all)
    };
    let listed = run(&["messages", "list", "--json"], vec![]).await.expect_code(0).json();
    let ids: Vec<_> = listed["items"].as_array().expect("items").iter().map(|item| item["_id"].clone()).collect();
    assert_eq!(ids, [failed.body["message"]["_id"].clone(), sent.body["message"]["_id"].clone()]);
    let table = run(&["messages", "list", "--status", "failed"], vec![]).await.expect_code(0).stdout;
    assert!(table.contains("400") && !table.contains(" sent "), "{table}");
    let of_lead = run(&["messages", "list", "--json", "--lead"], vec![sent.text("leadId")]).await.expect_code(0).json();
    assert_eq!(of_lead["items"].as_array().map(Vec::len), Some(2));
    let id = sent.body["message"]["_id"].as_str().expect("an id").to_owned();
    let shown = run(&["messages", "show", "--json"], vec![id]).await.expect_code(0).json();
    assert_eq!(shown, sent.body["message"]);
    run(&["messages", "show", "7"], vec![]).await.expect_failure(3, "no message 7", "oncegate messages list");
    run(&["messages", "list", "--status", "lost"], vec![]).await.expect_code(2);
    run(&["messages", "list", "--limit", "0"], vec![]).await.expect_code(2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_gets_its_own_names_and_a_secret_from_a_file() {
    let office = PostOffice::open(On::Sqlite).await;
    office.home.write_secret("secret", "Bearer s3cr3t\n");
    office.home.configure(&format!(
        "[outgoing]\nallow = [\"127.0.0.1\"]\n[messages.channel.sms]\nkind = \"http\"\nurl = {:?}\n\
         authorization_file = \"secret\"\nfields.message = \"text\"\nfields.recipientPhone = \"to\"\n",
        office.provider.url()
    ));
    let server = office.serve(&[]);
    server.client().post("/api/messages", &sms("+1", "by other names")).await.expect(201);
    let arrived = &office.provider.arrivals("by other names")[0];
    assert_eq!((&arrived.body["to"], arrived.authorization.as_deref()), (&json!("+1"), Some("Bearer s3cr3t")));
    assert!(arrived.body.get("recipientPhone").is_none() && arrived.body.get("message").is_none());
    let shown = office.home.run(["config", "show"]).expect_code(0).stdout;
    assert!(shown.contains("authorization_file = \"secret\"") && !shown.contains("s3cr3t"), "{shown}");
}

#[test]
fn a_channel_that_cannot_work_is_refused_with_its_line() {
    let refused = |toml: &str, what: &str, hint: &str| {
        let home = Home::with_config(toml);
        home.run(["config", "check"]).expect_failure(2, what, hint);
    };
    let sms = "[messages.channel.sms]\n";
    refused(&format!("{sms}kind = \"http\""), "oncegate.toml:2:8: [messages.channel.sms] has no `url`", "write url");
    refused(&format!("{sms}kind = \"http\"\nurl = \"ftp://x\""), "oncegate.toml:3:7", "http://");
    refused(
        &format!("{sms}kind = \"http\"\nurl = \"http://10.0.0.1/\""),
        "not called unless",
        "allow = [\"10.0.0.1\"]",
    );
    refused(&format!("{sms}kind = \"http\"\nurl = \"http://u:p@x.test/\""), "password", "authorization_file");
    refused(&format!("{sms}kind = \"smtp\"\nurl = \"smtp://127.0.0.1\"\n"), "not called unless", "allow");
    refused(&format!("{sms}kind = \"smtp\"\nurl = \"smtp://x.test\"\n"), "has no `from`", "Acme");
    refused(&format!("{sms}kind = \"smtp\"\nurl = \"smtp://x.test\"\nfrom = \"nobody\""), "from", "Acme");
    refused(&format!("{sms}kind = \"log\"\nurl = \"http://x.test\""), "means nothing", "kind");
    refused(&format!("{sms}kind = \"htpt\""), "\"htpt\"", "did you mean \"http\"?");
    refused(&format!("{sms}fields.phone = \"to\""), "messages.channel.sms.fields.phone", "recipientPhone");
    refused("[outgoing]\nallow = \"127.0.0.1\"", "a list of networks", "127.0.0.0/8");
    refused("[outgoing]\nallow = [\"everybody\"]", "everybody", "127.0.0.0/8");
    refused("[messages]\nwait = \"30s\"", "not shorter than its lease", "shorter wait");
    refused("[messages]\nlease = \"1h\"\nwindow = \"1m\"", "is longer than its window", "lease");
}
