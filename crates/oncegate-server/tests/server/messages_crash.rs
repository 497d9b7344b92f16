//! The real binary, killed at every point between a request and its answer, started again, and the request retried.
#![cfg(feature = "crash-points")]

use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::{Value, json};

use crate::support::{Client, Database, On, PATIENCE, PostOffice, Reply, eventually, on_both, sms, with};

/// Before and after every durable step and the call to the provider, of a request that sends at once.
const POINTS: [Point; 8] = [
    Point { name: "message.received", unkeyed: ("sent", 1) },
    Point { name: "message.claimed", unkeyed: ("sent", 1) },
    Point { name: "message.written", unkeyed: ("sent", 1) },
    // Accepted, and not begun: the message is sent after the restart.
    Point { name: "message.committed", unkeyed: ("sent", 1) },
    // Begun: from here on the message may have been sent.
    Point { name: "message.begun", unkeyed: ("unknown", 0) },
    Point { name: "message.sending", unkeyed: ("unknown", 0) },
    Point { name: "message.sent", unkeyed: ("unknown", 1) },
    Point { name: "message.finished", unkeyed: ("sent", 1) },
];

struct Point {
    name: &'static str,
    /// On a channel that honours no key: the message's final status, and how often it arrived.
    unkeyed: (&'static str, usize),
}

impl Point {
    /// The channels whose messages pass this point. A send under a key begins with its lease, without a commit of its own.
    fn channels(&self) -> &'static [&'static str] {
        if self.name == "message.begun" { &["sms"] } else { &["sms", "keyed"] }
    }
}

const LEASE: Duration = Duration::from_secs(1);
/// The time that a poll of the queue, a send and an answer take on a busy machine.
const MARGIN: Duration = Duration::from_secs(3);

const CONFIG: &str = "lease = \"1s\"\nwait = \"100ms\"\nsend_wait = \"2s\"";

on_both![
    with_a_key_there_is_one_message_and_at_most_one_send_whatever_the_point,
    without_a_key_there_is_one_message_too,
    what_waited_in_the_queue_is_sent_if_nobody_had_begun_and_unknown_if_somebody_had,
    a_request_paused_past_its_lease_before_it_begins_does_not_send_when_it_wakes,
    a_request_paused_past_its_lease_after_it_has_begun_does_not_send_when_it_wakes,
];

/// Retries until the first request's key is no longer in flight.
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

/// On SQLite the same server starts again; of two servers on one store, the other one continues.
fn start_again(office: &mut PostOffice) {
    if office.servers.is_empty() {
        office.servers = vec![office.serve(&[])];
    }
}

fn stop_the_only_server(office: &mut PostOffice) {
    if office.servers.len() == 1 {
        office.servers.clear();
    }
}

async fn messages(office: &PostOffice) -> Vec<Value> {
    let page = office.client(0).get("/api/messages?limit=500").await.expect(200);
    page.body["items"].as_array().expect("items").clone()
}

async fn with_a_key_there_is_one_message_and_at_most_one_send_whatever_the_point(on: On) {
    let mut office = PostOffice::open_with(on, CONFIG).await;
    for point in &POINTS {
        for channel in point.channels() {
            let Point { name: point, unkeyed } = point;
            let text = format!("{point} by {channel}");
            let body = with(sms("+15550100", &text), json!({"channel": channel}));
            let key = format!("{point}-{channel}");
            stop_the_only_server(&mut office);
            crash_at(&office, point, Some(&key), &body).await;
            start_again(&mut office);
            let mut client = office.client(1).header("idempotency-key", &key);
            let (reply, waited) = ask_until_answered(&mut client, &body).await;
            assert!(waited < LEASE + MARGIN, "{text}: stuck for {waited:?}");
            let id = reply.body["message"]["_id"].as_str().unwrap_or_else(|| panic!("{text}: {reply:?}")).to_owned();
            let status = reply.body["status"].as_str().expect("a status").to_owned();
            assert!(reply.body["duplicateOnly"].is_null(), "{text}: it is the first's own answer: {reply:?}");
            // From now on, the key gives the same answer.
            let replay = client.post("/api/messages", &body).await;
            assert_eq!((replay.status, &replay.text), (reply.status, &reply.text), "{text}");
            let own: Vec<_> = messages(&office).await.into_iter().filter(|item| item["message"] == text).collect();
            assert_eq!((own.len(), &own[0]["_id"], &own[0]["status"]), (1, &json!(id), &json!(status)), "{text}");
            let (arrived, effects) = (office.provider.arrivals(&text).len(), office.provider.effects(&text));
            match *channel {
                // A receiver that honours the key gets the message again, and has one effect.
                "keyed" => assert_eq!((effects, status.as_str()), (1, "sent"), "{text}"),
                // On other channels, never twice: a message that had not begun is sent, and one that had is unknown.
                _ => assert_eq!((status.as_str(), arrived), *unkeyed, "{text}"),
            }
        }
    }
}

async fn without_a_key_there_is_one_message_too(on: On) {
    let mut office = PostOffice::open_with(on, CONFIG).await;
    for Point { name: point, .. } in POINTS.iter().filter(|point| point.channels().contains(&"keyed")) {
        let text = format!("{point} without a key");
        let body = with(sms("+15550100", &text), json!({"channel": "keyed"}));
        stop_the_only_server(&mut office);
        crash_at(&office, point, None, &body).await;
        start_again(&mut office);
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

async fn what_waited_in_the_queue_is_sent_if_nobody_had_begun_and_unknown_if_somebody_had(on: On) {
    // One slot, which the first message takes.
    let config = "lease = \"1s\"\nwait = \"100ms\"\nsend_wait = \"100ms\"\nworkers = 1";
    let mut office = PostOffice::open_with(on, config).await;
    for (point, at_most_once) in [("message.leased", "sent"), ("message.begun", "unknown")] {
        for channel in ["sms", "keyed"] {
            let text = format!("{point} queued by {channel}");
            let body = with(sms("+15550100", &text), json!({"channel": channel}));
            // There is no other server that could take it.
            office.servers.clear();
            let mut server = office.serve(&[("ONCEGATE_TEST_CRASH_AT", point)]);
            // Its worker has polled the queue for the first time, for which it needs the slot.
            tokio::time::sleep(Duration::from_millis(300)).await;
            // On a keyed channel, so that this message does not pass the point itself.
            let first = tokio::spawn({
                let (mut client, busy) =
                    (server.client(), with(sms("+1", &format!("{text}#busy")), json!({"channel": "keyed"})));
                async move { client.try_send(Method::POST, "/api/messages", Some(busy.to_string().into())).await }
            });
            eventually("the slot is taken", || async {
                (!office.provider.arrivals(&format!("{text}#busy")).is_empty()).then_some(())
            })
            .await;
            // The message is accepted as queued, or its server dies before it answers.
            let accepted = server.client().try_send(Method::POST, "/api/messages", Some(body.to_string().into())).await;
            assert!(!server.wait(MARGIN).success(), "{text}: it was killed");
            let _ = first.await.expect("does not panic");
            if let Ok(accepted) = accepted {
                assert_eq!(accepted.status, 202, "{accepted:?}");
            }
            office.servers = vec![office.serve(&[])];
            // All messages, so that the next server to be killed starts with an empty queue.
            let over = eventually("they are over", || async {
                let all = messages(&office).await;
                let is_over = |item: &Value| matches!(item["status"].as_str(), Some("sent" | "failed" | "unknown"));
                all.iter().all(is_over).then(|| all.into_iter().find(|item| item["message"] == text))?
            })
            .await;
            let (expected, effects) = match channel {
                "keyed" => ("sent", 1),
                _ => (at_most_once, usize::from(at_most_once == "sent")),
            };
            assert_eq!((over["status"].as_str(), office.provider.effects(&text)), (Some(expected), effects), "{text}");
        }
    }
}

/// A server that pauses at the point for longer than its lease; returns the final status of its message, and how often it arrived.
async fn paused_at(on: On, point: &str) -> (String, usize) {
    let office = PostOffice::open_with(on, CONFIG).await;
    let paused = office.serve(&[("ONCEGATE_TEST_PAUSE_AT", &format!("{point}:{}", 2 * LEASE.as_millis()))]);
    let posted = Instant::now();
    let reply = paused.client().post("/api/messages", &sms("+1", "paused")).await;
    let id = reply.body["message"]["_id"].as_str().unwrap_or_else(|| panic!("{reply:?}")).to_owned();
    // The server has woken when it answers, or later.
    tokio::time::sleep((2 * LEASE + MARGIN).saturating_sub(posted.elapsed())).await;
    let message = paused.client().get(&format!("/api/messages/{id}")).await.expect(200);
    (message.text("status"), office.provider.arrivals("paused").len())
}

async fn a_request_paused_past_its_lease_before_it_begins_does_not_send_when_it_wakes(on: On) {
    // The worker that took over has sent the message.
    assert_eq!(paused_at(on, "message.committed").await, ("sent".into(), 1));
}

async fn a_request_paused_past_its_lease_after_it_has_begun_does_not_send_when_it_wakes(on: On) {
    assert_eq!(paused_at(on, "message.begun").await, ("unknown".into(), 0));
}

/// The number of transactions in the log of an SQLite file: a frame that ends a transaction has the file's size.
fn transactions_in(wal: &std::path::Path) -> usize {
    let log = std::fs::read(wal).expect("the store has a log");
    if log.is_empty() {
        return 0;
    }
    let page = u32::from_be_bytes(log[8..12].try_into().expect("four bytes")) as usize;
    let ends_one = |frame: &&[u8]| frame.len() > 8 && frame[4..8] != [0; 4];
    log[32..].chunks(24 + page).filter(ends_one).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_a_post_is_one_transaction_its_end_another_and_its_begin_one_more_where_no_key_is_honoured() {
    let office = PostOffice::open(On::Sqlite).await;
    let wal = office.home.path().join("oncegate-data/oncegate.db-wal");
    let mut before = transactions_in(&wal);
    for (channel, transactions) in [("keyed", 2), ("sms", 3)] {
        // To a known lead, the same number of transactions.
        for (text, status) in [("counted", 201), ("counted too", 200)] {
            let body = with(sms(&format!("+{transactions}"), text), json!({"channel": channel}));
            office.post_with_key(&format!("{channel}-{status}"), &body).await.expect(status);
            let written = transactions_in(&wal);
            assert_eq!(written - before, transactions, "{channel}: {text}");
            before = written;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_post_is_one_transaction_its_end_another_and_its_begin_one_more_where_no_key_is_honoured() {
    for (channel, begins) in [("keyed", 0), ("sms", 1)] {
        let database = Database::create().await;
        let store = format!("store = {:?}\n", database.url());
        let client = database.connect().await;
        let office = PostOffice::start(&store, "", 1, vec![database]).await;
        let transactions = async |of: &str| {
            let sql = format!("SELECT DISTINCT xmin::text FROM ({of}) AS written (xmin)");
            let rows = client.query(&sql, &[]).await.expect("reads");
            rows.iter().map(|row| row.get(0)).collect::<Vec<String>>()
        };
        const ACCEPTED: &str = "SELECT xmin FROM oncegate.claims UNION ALL SELECT xmin FROM oncegate.records
            UNION ALL SELECT xmin FROM oncegate.record_names UNION ALL SELECT xmin FROM oncegate.record_lists";
        const JOB: &str = "SELECT xmin FROM oncegate.jobs";
        let slow = tokio::spawn({
            let mut client = office.client(0).header("idempotency-key", "k");
            let body = with(sms("+1", "counted#slow"), json!({"channel": channel}));
            async move { client.post("/api/messages", &body).await }
        });
        let arrived = || async { (!office.provider.arrivals("counted#slow").is_empty()).then_some(()) };
        eventually("it is being sent", arrived).await;
        // Two claims, a lead, a thread, a message, their names and list: in one transaction.
        let accepted = transactions(ACCEPTED).await;
        let count = format!("SELECT count(*) FROM ({ACCEPTED}) AS rows");
        let rows = client.query_one(&count, &[]).await.expect("counts");
        assert_eq!((accepted.len(), rows.get::<_, i64>(0)), (1, 8), "{channel}");
        // The job: in the same transaction, unless its begin had to be recorded. Nothing else has a second version.
        assert_eq!(transactions(JOB).await == accepted, begins == 0, "{channel}");
        const VERSIONS: &str = "SELECT max(version) FROM (SELECT version FROM oncegate.claims UNION ALL
            SELECT version FROM oncegate.records) AS all_of_it";
        let version_of_job = "SELECT max(version) FROM oncegate.jobs";
        let version = async |sql: &str| client.query_one(sql, &[]).await.expect("reads").get::<_, i64>(0);
        assert_eq!((version(VERSIONS).await, version(version_of_job).await), (1, 1 + begins), "{channel}");
        slow.await.expect("does not panic").expect(201);
        // The message, its key's answer and the end of the job: in one other transaction.
        let all = transactions(ACCEPTED).await;
        assert_eq!(all.len(), 2, "{channel}: {all:?}");
        let finished = transactions(
            "SELECT xmin FROM oncegate.records WHERE kind = 'message'
             UNION ALL SELECT xmin FROM oncegate.claims WHERE guard = 'idempotency'",
        )
        .await;
        assert!(finished.len() == 1 && finished != accepted, "{channel}: {finished:?}");
        assert_eq!(version(VERSIONS).await, 2, "{channel}");
        let jobs = client.query_one("SELECT count(*) FROM oncegate.jobs", &[]).await.expect("counts");
        assert_eq!(jobs.get::<_, i64>(0), 0, "{channel}");
    }
}
