//! The real binary, killed at every point between a request and its answer, started again, and asked again.
#![cfg(feature = "crash-points")]

use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::{Value, json};

use crate::support::{Client, Database, On, PATIENCE, PostOffice, Reply, eventually, on_both, sms, with};

/// Before and after every durable step and the call to the provider, of a request that begins to send at once.
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
    what_waited_in_the_queue_is_sent_if_nobody_had_begun_and_unknown_if_somebody_had,
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

/// On one store the same server is started again; of two that share one, the other goes on.
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
    for point in POINTS {
        for channel in ["sms", "keyed"] {
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
    let mut office = PostOffice::open_with(on, CONFIG).await;
    for point in POINTS {
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
    // One slot, which the first one has.
    let config = "lease = \"1s\"\nwait = \"100ms\"\nsend_wait = \"100ms\"\nworkers = 1";
    let mut office = PostOffice::open_with(on, config).await;
    for (point, at_most_once) in [("message.leased", "sent"), ("message.begun", "unknown")] {
        for channel in ["sms", "keyed"] {
            let text = format!("{point} queued by {channel}");
            let body = with(sms("+15550100", &text), json!({"channel": channel}));
            // Nobody else is there to take it.
            office.servers.clear();
            let mut server = office.serve(&[("ONCEGATE_TEST_CRASH_AT", point)]);
            // Its worker has had its first look at the queue, for which it needs the slot.
            tokio::time::sleep(Duration::from_millis(300)).await;
            let first = tokio::spawn({
                let (mut client, busy) = (server.client(), sms("+1", &format!("{text}#busy")));
                async move { client.try_send(Method::POST, "/api/messages", Some(busy.to_string().into())).await }
            });
            eventually("the slot is taken", || async {
                (!office.provider.arrivals(&format!("{text}#busy")).is_empty()).then_some(())
            })
            .await;
            // It is answered as it stands, or its server dies first.
            let accepted = server.client().try_send(Method::POST, "/api/messages", Some(body.to_string().into())).await;
            assert!(!server.wait(MARGIN).success(), "{text}: it was killed");
            let _ = first.await.expect("does not panic");
            if let Ok(accepted) = accepted {
                assert_eq!(accepted.status, 202, "{accepted:?}");
            }
            office.servers = vec![office.serve(&[])];
            // All of them: the next server to be killed is to find an empty queue.
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

/// How many transactions are in the log of an SQLite file: frames that end one say how large the file is then.
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
async fn on_sqlite_a_post_is_one_transaction_and_its_end_another() {
    let office = PostOffice::open(On::Sqlite).await;
    let wal = office.home.path().join("oncegate-data/oncegate.db-wal");
    let before = transactions_in(&wal);
    office.post_with_key("k", &sms("+1", "counted")).await.expect(201);
    assert_eq!(transactions_in(&wal) - before, 2);
    // To a lead that is known it is the same; a replay and a duplicate write nothing that anybody waits for.
    office.post_with_key("k2", &sms("+1", "counted too")).await.expect(200);
    assert_eq!(transactions_in(&wal) - before, 4);
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
    // And nothing of it is the second version of anything.
    const VERSIONS: &str = "SELECT max(version) FROM (SELECT version FROM oncegate.claims UNION ALL
        SELECT version FROM oncegate.records UNION ALL SELECT version FROM oncegate.jobs) AS all_of_it";
    assert_eq!(client.query_one(VERSIONS, &[]).await.expect("reads").get::<_, i64>(0), 1);
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
    assert_eq!(client.query_one(VERSIONS, &[]).await.expect("reads").get::<_, i64>(0), 2);
    let jobs = client.query_one("SELECT count(*) FROM oncegate.jobs", &[]).await.expect("counts");
    assert_eq!(jobs.get::<_, i64>(0), 0);
}
