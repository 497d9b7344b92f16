//! The real binary, killed at every point between a request and its answer, started again, and asked again.
#![cfg(feature = "crash-points")]

mod support;

use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::{Value, json};
use support::{Client, Database, On, PATIENCE, PostOffice, Reply, eventually, on_both, sms, with};

/// Before and after every durable step and the call to the provider.
const POINTS: [&str; 7] = [
    "message.received",
    "message.claimed",
    "message.written",
    "message.committed",
    "message.sending",
    "message.sent",
    "message.finished",
];
const LEASE: Duration = Duration::from_secs(1);
/// On a busy machine a look at the queue, a send and an answer take this much.
const MARGIN: Duration = Duration::from_secs(3);

const CONFIG: &str = "lease = \"1s\"\nwait = \"100ms\"\nsend_wait = \"2s\"";

on_both![
    with_a_key_there_is_one_message_and_at_most_one_send_whatever_the_point,
    without_a_key_there_is_one_message_too,
];

/// Asks until the first request's key is no longer in flight.
async fn ask_until_answered(client: &mut Client, body: &Value) -> (Reply, Duration) {
    let asked = Instant::now();
    loop {
        let reply = client.post("/api/messages", body).await;
        if reply.status != 409 {
            return (reply, asked.elapsed());
        }
        assert!(asked.elapsed() < PATIENCE, "{reply:?}");
    }
}

/// The server dies at the point, and the request with it.
async fn crash_at(office: &PostOffice, point: &str, key: Option<&str>, body: &Value) {
    let mut server = office.serve(&[("ONCEGATE_TEST_CRASH_AT", point)]);
    let mut client = server.client();
    if let Some(key) = key {
        client = client.header("idempotency-key", key);
    }
    let sent = client.try_send(Method::POST, "/api/messages", Some(body.to_string().into())).await;
    assert!(sent.is_err(), "{point}: {sent:?}");
    assert!(!server.wait(MARGIN).success(), "{point}: it was killed");
}

async fn messages(office: &PostOffice) -> Vec<Value> {
    let page = office.client(0).get("/api/messages?limit=500").await.expect(200);
    page.body["items"].as_array().expect("items").clone()
}

async fn with_a_key_there_is_one_message_and_at_most_one_send_whatever_the_point(on: On) {
    let office = PostOffice::open_with(on, CONFIG).await;
    for point in POINTS {
        for channel in ["sms", "keyed"] {
            let text = format!("{point} by {channel}");
            let body = with(sms("+15550100", &text), json!({"channel": channel}));
            let key = format!("{point}-{channel}");
            crash_at(&office, point, Some(&key), &body).await;
            let mut client = office.client(1).header("idempotency-key", &key);
            let (reply, waited) = ask_until_answered(&mut client, &body).await;
            assert!(waited < LEASE + MARGIN, "{text}: stuck for {waited:?}");
            let id = reply.body["message"]["_id"].as_str().unwrap_or_else(|| panic!("{text}: {reply:?}")).to_owned();
            let status = reply.body["status"].as_str().expect("a status").to_owned();
            assert!(reply.body["duplicateOnly"].is_null(), "{text}: it is the first's own answer: {reply:?}");
            // The key says the same from now on.
            let replay = client.post("/api/messages", &body).await;
            assert_eq!((replay.status, &replay.text), (reply.status, &reply.text), "{text}");
            let own: Vec<_> = messages(&office).await.into_iter().filter(|item| item["message"] == text).collect();
            assert_eq!((own.len(), &own[0]["_id"], &own[0]["status"]), (1, &json!(id), &json!(status)), "{text}");
            let (arrived, effects) = (office.provider.arrivals(&text).len(), office.provider.effects(&text));
            match channel {
                // Whoever knows the key again gets it again, and it was sent once.
                "keyed" => assert_eq!((effects, status.as_str()), (1, "sent"), "{text}"),
                // Otherwise never twice; and where nobody can say, that is what it says.
                _ => {
                    assert!(arrived <= 1, "{text}: sent {arrived} times");
                    assert!(status == "sent" && arrived == 1 || status == "unknown", "{text}: {status}");
                }
            }
        }
    }
}

async fn without_a_key_there_is_one_message_too(on: On) {
    let office = PostOffice::open_with(on, CONFIG).await;
    for point in POINTS {
        let text = format!("{point} without a key");
        let body = with(sms("+15550100", &text), json!({"channel": "keyed"}));
        crash_at(&office, point, None, &body).await;
        let again = office.client(1).post("/api/messages", &body).await;
        assert!(matches!(again.status, 200 | 201), "{text}: {again:?}");
        eventually("it is sent", || async {
            let path = format!("/api/messages/{}", again.body["message"]["_id"].as_str().expect("an id"));
            (office.client(0).get(&path).await.body["status"] == "sent").then_some(())
        })
        .await;
        let own: Vec<_> = messages(&office).await.into_iter().filter(|item| item["message"] == text).collect();
        assert_eq!((own.len(), office.provider.effects(&text)), (1, 1), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_post_is_one_transaction_and_its_end_another() {
    let database = Database::create().await;
    let store = format!("store = {:?}\n", database.url());
    let client = database.connect().await;
    let office = PostOffice::start(&store, "", 1, vec![database]).await;
    let transactions = async |of: &str| {
        let sql = format!("SELECT DISTINCT xmin::text FROM ({of}) AS written (xmin)");
        let rows = client.query(&sql, &[]).await.expect("reads");
        rows.iter().map(|row| row.get(0)).collect::<Vec<String>>()
    };
    const EVERYTHING: &str = "SELECT xmin FROM oncegate.claims UNION ALL SELECT xmin FROM oncegate.records
        UNION ALL SELECT xmin FROM oncegate.record_names UNION ALL SELECT xmin FROM oncegate.record_lists
        UNION ALL SELECT xmin FROM oncegate.jobs";
    let slow = tokio::spawn({
        let mut client = office.client(0).header("idempotency-key", "k");
        async move { client.post("/api/messages", &sms("+1", "counted#slow")).await }
    });
    eventually("it is being sent", || async { (!office.provider.arrivals("counted#slow").is_empty()).then_some(()) })
        .await;
    // Two claims, a lead, a thread, a message, their names and list, and the job: by one transaction.
    let accepted = transactions(EVERYTHING).await;
    let rows = client.query_one(&format!("SELECT count(*) FROM ({EVERYTHING}) AS rows"), &[]).await.expect("counts");
    assert_eq!((accepted.len(), rows.get::<_, i64>(0)), (1, 9));
    slow.await.expect("does not panic").expect(201);
    // The message, its key's answer and the end of the job: by one other.
    let all = transactions(EVERYTHING).await;
    assert_eq!(all.len(), 2, "{all:?}");
    let finished = transactions(
        "SELECT xmin FROM oncegate.records WHERE kind = 'message'
         UNION ALL SELECT xmin FROM oncegate.claims WHERE guard = 'idempotency'",
    )
    .await;
    assert!(finished.len() == 1 && finished != accepted, "{finished:?}");
    let jobs = client.query_one("SELECT count(*) FROM oncegate.jobs", &[]).await.expect("counts");
    assert_eq!(jobs.get::<_, i64>(0), 0);
}
