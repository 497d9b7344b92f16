//! A guard store apart from the main store: SQLite beside PostgreSQL, in both combinations.
#![cfg(feature = "crash-points")]

use std::time::{Duration, Instant};

use futures::future::join_all;
use hyper::Method;
use serde_json::{Value, json};

use crate::support::{Database, PostOffice, Server, eventually, sms, with};

const MARGIN: Duration = Duration::from_secs(3);

/// Which of the two is the guard store.
#[derive(Clone, Copy, Debug)]
enum Guards {
    Sqlite,
    Postgres,
}

impl Guards {
    async fn office(self, messages: &str) -> (PostOffice, Database) {
        let database = Database::create().await;
        let (postgres, sqlite) = (database.url(), "sqlite:apart.db");
        let (main, guards) = match self {
            Guards::Sqlite => (postgres.as_str(), sqlite),
            Guards::Postgres => (sqlite, postgres.as_str()),
        };
        let top = format!("store = {main:?}\nguard_store = {guards:?}\n");
        (PostOffice::start(&top, messages, 1, vec![]).await, database)
    }
}

/// Two servers with one main store and one guard store, in two databases.
async fn two_servers(messages: &str, variables: &[(&str, &str)]) -> (PostOffice, Server, [Database; 2]) {
    let databases = [Database::create().await, Database::create().await];
    let top = format!("store = {:?}\nguard_store = {:?}\n", databases[0].url(), databases[1].url());
    let office = PostOffice::start(&top, messages, 1, vec![]).await;
    let other = office.serve(variables);
    (office, other, databases)
}

macro_rules! both_ways {
    ($($test:ident,)*) => {
        $(mod $test {
            use super::Guards;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "needs PostgreSQL: run make test"]
            async fn with_sqlite_as_the_guard_store() {
                super::$test(Guards::Sqlite).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "needs PostgreSQL: run make test"]
            async fn with_postgres_as_the_guard_store() {
                super::$test(Guards::Postgres).await;
            }
        })*
    };
}

both_ways![duplicates_are_stopped_as_with_one_store, a_crash_between_the_stores_ends_in_one_message,];

async fn duplicates_are_stopped_as_with_one_store(guards: Guards) {
    let (office, _database) = guards.office("").await;
    let posts = (0..20).map(|caller| {
        let mut client = office.client(caller);
        async move { client.post("/api/messages", &sms("+1", "apart")).await }
    });
    let replies = join_all(posts).await;
    let firsts: Vec<_> = replies.iter().filter(|reply| reply.body["duplicateOnly"].is_null()).collect();
    assert_eq!((firsts.len(), firsts[0].status), (1, 201), "{firsts:?}");
    assert!(
        replies.iter().all(|reply| reply.body["message"]["_id"] == firsts[0].body["message"]["_id"]),
        "{replies:?}"
    );
    assert_eq!(office.provider.arrivals("apart").len(), 1);
    // The claim is in the guard store, where every server sees it.
    let find = json!({"guard": "message", "key": ["+1", null, "apart"]});
    let claim = office.client(0).post("/api/claims/find", &find).await.expect(200);
    assert_eq!(
        (claim.text("state"), claim.text("outcome")),
        ("done".into(), firsts[0].body["message"]["_id"].as_str().expect("an id").into())
    );
    // After the window it is another message. A surely failed send leaves no claim. An idempotency key works as usual.
    office.set_clock_ahead(Duration::from_secs(15 * 60 + 1));
    assert!(office.post(&sms("+1", "apart")).await.expect(200).body["duplicateOnly"].is_null());
    for turn in 1..=2 {
        office.post(&sms("+1", "apart#400")).await.expect(502);
        assert_eq!(office.provider.arrivals("apart#400").len(), turn);
    }
    let first = office.post_with_key("k", &sms("+2", "keyed")).await.expect(201);
    assert_eq!(office.post_with_key("k", &sms("+2", "keyed")).await.text, first.text);
    // A key's claim is beside its message, and a lookup finds it there.
    let find = json!({"guard": "idempotency", "key": ["POST", "/api/messages", "k"]});
    assert_eq!(office.client(0).post("/api/claims/find", &find).await.expect(200).text("state"), "done");
}

async fn a_crash_between_the_stores_ends_in_one_message(guards: Guards) {
    let (mut office, _database) = guards.office("lease = \"1s\"\nwait = \"100ms\"\nsend_wait = \"2s\"").await;
    for (number, point) in
        ["message.claimed", "message.written", "message.committed", "message.sent"].into_iter().enumerate()
    {
        let text = format!("apart {point}");
        let body = with(sms(&format!("+{number}"), &text), json!({"channel": "keyed"}));
        // Only one process at a time can open the file.
        office.servers.clear();
        let mut server = office.serve(&[("ONCEGATE_TEST_CRASH_AT", point)]);
        let sent = server.client().try_send(Method::POST, "/api/messages", Some(body.to_string().into())).await;
        assert!(sent.is_err(), "{point}: {sent:?}");
        assert!(!server.wait(MARGIN).success());
        office.servers = vec![office.serve(&[])];
        let asked = Instant::now();
        // The claim's owner is gone: until its lease is over, the answer is "in flight".
        let reply = eventually("the message", || async {
            let reply = office.post(&body).await;
            reply.body["message"].is_object().then_some(reply)
        })
        .await;
        assert!(asked.elapsed() < Duration::from_secs(1) + MARGIN, "{point}: {:?}", asked.elapsed());
        let id = reply.body["message"]["_id"].as_str().expect("an id");
        eventually("it is sent", || async {
            (office.client(0).get(&format!("/api/messages/{id}")).await.body["status"] == "sent").then_some(())
        })
        .await;
        let all = office.client(0).get("/api/messages?limit=500").await.expect(200);
        let own = all.body["items"].as_array().expect("items").iter().filter(|item| item["message"] == text).count();
        assert_eq!((own, office.provider.effects(&text)), (1, 1), "{point}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn whoever_was_paused_past_its_lease_is_stopped_by_the_fence() {
    let paused = [("ONCEGATE_TEST_PAUSE_AT", "message.claimed:2500")];
    let (office, other, _databases) = two_servers("lease = \"1s\"\nwait = \"200ms\"", &paused).await;
    let body = sms("+1", "overtaken");
    let late = tokio::spawn({
        let (mut client, body) = (other.client(), body.clone());
        async move { client.post("/api/messages", &body).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let first = eventually("a take-over", || async {
        let reply = office.post(&body).await;
        reply.body["message"].is_object().then_some(reply)
    })
    .await;
    assert!(first.body["duplicateOnly"].is_null(), "{first:?}");
    let late = late.await.expect("does not panic").expect(200);
    assert_eq!(
        (&late.body["duplicateOnly"], &late.body["message"]["_id"]),
        (&json!(true), &first.body["message"]["_id"])
    );
    assert_eq!(office.provider.arrivals("overtaken").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_duplicate_of_what_is_not_written_yet_gets_nulls_after_its_wait_and_is_woken_when_it_is() {
    let paused = [("ONCEGATE_TEST_PAUSE_AT", "message.claimed:5000")];
    let (office, other, _databases) = two_servers("", &paused).await;
    let body = sms("+1", "not yet#slow");
    let original = tokio::spawn({
        let (mut client, body) = (other.client(), body.clone());
        async move { (client.post("/api/messages", &body).await, Instant::now()) }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let asked = Instant::now();
    let pending = office.post(&body).await.expect(200);
    let waited = asked.elapsed();
    assert!(waited >= Duration::from_secs(3) && waited < Duration::from_millis(3500), "{waited:?}");
    assert_eq!((&pending.body["duplicateOnly"], pending.header("oncegate-duplicate")), (&json!(true), Some("true")));
    for field in ["message", "leadId", "ghlContactId", "ghlLocationId", "hsContactId", "hsPortalId"] {
        assert_eq!(pending.body[field], Value::Null, "{field}: {pending:?}");
    }
    office.servers[0].logged("message.api.duplicate_pending", 1).await;
    // The next caller waits, and the commit wakes it.
    let woken = tokio::spawn({
        let (mut client, body) = (office.client(0), body.clone());
        async move { (client.post("/api/messages", &body).await.expect(200), Instant::now()) }
    });
    // The send begins right after the commit, and takes longer than the rest of this test.
    while office.provider.arrivals("not yet#slow").is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let committed = Instant::now();
    let (woken, at) = woken.await.expect("does not panic");
    let apart = at.saturating_duration_since(committed);
    assert!(apart < Duration::from_millis(50), "woken {apart:?} after the original was written");
    let (first, answered) = original.await.expect("does not panic");
    assert!(answered - at > Duration::from_secs(1), "long before it was sent");
    assert_eq!(woken.body["message"]["_id"], first.expect(201).body["message"]["_id"]);
    let line = &office.servers[0].logged("message.api.duplicate_blocked", 1).await[0];
    assert_eq!(line["mode"], "lock_resolved_polled");
    assert_eq!(office.provider.arrivals("not yet#slow").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn without_its_guard_store_it_sends_on_and_says_so_and_guards_again_when_it_is_back() {
    let (office, guards) = Guards::Postgres.office("").await;
    let body = sms("+1", "open");
    office.post(&body).await.expect(201);
    let stopped = "oncegate_duplicates_stopped_total{guard=\"message\"} 1";
    assert_eq!(office.post(&body).await.expect(200).body["duplicateOnly"], true);
    let metrics = office.client(0).get("/metrics").await.text;
    assert!(metrics.lines().any(|line| line == stopped), "counted once: {metrics}");
    guards.go_away().await;
    let unguarded = office.post(&body).await.expect(200);
    assert!(unguarded.body["duplicateOnly"].is_null(), "{unguarded:?}");
    assert_eq!(office.provider.arrivals("open").len(), 2);
    office.servers[0].logged("message.api.duplicate_guard_error", 1).await;
    let metrics = office.client(0).get("/metrics").await.text;
    let counted = "oncegate_message_events_total{event=\"message.api.duplicate_guard_error\"}";
    assert!(metrics.lines().any(|line| line.starts_with(counted) && !line.ends_with(" 0")), "{metrics}");
    guards.come_back().await;
    let back = Instant::now();
    eventually("it guards again", || async {
        let reply = office.post(&body).await.expect(200);
        (reply.body["duplicateOnly"] == true).then_some(())
    })
    .await;
    assert!(back.elapsed() < Duration::from_secs(10), "{:?}", back.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_server_starts_without_its_guard_store_is_ready_and_guards_when_it_has_come() {
    let (mut office, guards) = Guards::Postgres.office("").await;
    office.servers.clear();
    guards.go_away().await;
    office.servers = vec![office.serve(&[])];
    let ready = office.client(0).get("/readyz").await.expect(200);
    assert!(ready.body["warnings"].to_string().contains("guard store"), "{ready:?}");
    office.post(&sms("+1", "early")).await.expect(201);
    guards.come_back().await;
    let back = Instant::now();
    let body = sms("+1", "guarded");
    eventually("it guards", || async { (office.post(&body).await.body["duplicateOnly"] == true).then_some(()) }).await;
    assert!(back.elapsed() < Duration::from_secs(10), "{:?}", back.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn without_its_guard_store_it_refuses_where_the_config_says_so() {
    let (office, guards) = Guards::Postgres.office("store_error = \"closed\"").await;
    guards.go_away().await;
    office.client(0).get("/readyz").await.expect_problem(503, "store-unavailable");
    let refused = office.post_with_key("k", &sms("+1", "closed")).await.expect_problem(503, "store-unavailable");
    assert!(refused.header("retry-after").is_some());
    assert!(office.provider.arrivals("closed").is_empty());
    office.servers[0].logged("message.api.duplicate_guard_error", 1).await;
    guards.come_back().await;
    eventually("it is back", || async {
        (office.post_with_key("k", &sms("+1", "closed")).await.status == 201).then_some(())
    })
    .await;
    assert_eq!(office.provider.arrivals("closed").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn whoever_took_over_and_could_not_look_leaves_the_claim_to_be_taken_over_again() {
    let paused = [("ONCEGATE_TEST_PAUSE_AT", "message.claimed:1000")];
    let (office, other, databases) = two_servers("lease = \"3s\"\nwait = \"200ms\"", &paused).await;
    let body = with(sms("+1", "taken over twice"), json!({"channel": "keyed"}));
    // The message is written, and the guard store does not have its outcome.
    let mut first = office.serve(&[("ONCEGATE_TEST_CRASH_AT", "message.written")]);
    let sent = first.client().try_send(Method::POST, "/api/messages", Some(body.to_string().into())).await;
    assert!(sent.is_err(), "{sent:?}");
    assert!(!first.wait(MARGIN).success());
    tokio::time::sleep(Duration::from_millis(3100)).await;
    // The claim is taken over; then the main store is away when the fence is checked.
    let second = tokio::spawn({
        let (mut client, body) = (other.client(), body.clone());
        async move { client.post("/api/messages", &body).await }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    databases[0].go_away().await;
    second.await.expect("does not panic").expect_problem(503, "store-unavailable");
    databases[0].come_back().await;
    let third = eventually("the original", || async {
        let reply = office.post(&body).await;
        reply.body["message"].is_object().then_some(reply)
    })
    .await;
    assert_eq!(third.body["duplicateOnly"], true, "{third:?}");
    let all = office.client(0).get("/api/messages?limit=500").await.expect(200);
    assert_eq!(
        (all.body["items"].as_array().expect("items").len(), office.provider.effects("taken over twice")),
        (1, 1)
    );
}
