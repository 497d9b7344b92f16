//! `/api/sends`, as workers of any language use it: on SQLite, and on two servers that share PostgreSQL.
#![cfg(feature = "crash-points")]

use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};

use crate::support::{Home, On, Reply, Workshop, claim_of, eventually, on_both, with};

on_both![
    of_30_workers_one_proceeds_the_rest_come_back_and_ten_deliveries_are_one_send,
    each_answer_is_as_the_page_says,
    a_worker_says_that_it_failed_and_that_it_lives,
    sends_are_listed_and_shown,
    metrics_count_what_became_of_sends,
];

fn to(recipient: &str) -> Value {
    json!({"campaignId": "spring", "recipientId": recipient})
}

async fn shop_with(on: On, lost: &str) -> Workshop {
    Workshop::open_with(on, "", &format!("[sends]\nlost = {lost:?}\n")).await
}

async fn begin(shop: &Workshop, number: usize, body: &Value) -> Reply {
    shop.client(number).post("/api/sends", body).await
}

/// Begins a send, which must be allowed, and returns its path and the worker's token.
async fn proceed(shop: &Workshop, body: &Value) -> (String, i64) {
    let told = begin(shop, 0, body).await.expect(201);
    (format!("/api/sends/{}", told.text("id")), told.body["token"].as_i64().expect("a token"))
}

#[track_caller]
fn is_busy(told: Reply) {
    let told = told.expect_problem(409, "send-busy");
    let seconds = told.header("retry-after").and_then(|text| text.parse::<u64>().ok());
    assert!(seconds.is_some_and(|seconds| (1..=61).contains(&seconds)), "{told:?}");
    assert_eq!(told.body["send"], "busy", "{told:?}");
}

async fn of_30_workers_one_proceeds_the_rest_come_back_and_ten_deliveries_are_one_send(on: On) {
    let shop = shop_with(on, "skip").await;
    for round in 0..3 {
        let body = to(&format!("recipient {round}"));
        let workers = (0..30).map(|number| {
            let (mut client, body) = (shop.client(number), body.clone());
            tokio::spawn(async move { client.post("/api/sends", &body).await })
        });
        let mut ours = vec![];
        for told in futures::future::join_all(workers).await {
            match told.expect("does not panic") {
                told if told.status == 201 => ours.push(told),
                told => is_busy(told),
            }
        }
        assert_eq!(ours.len(), 1, "round {round}: {ours:?}");
        let said = json!({"token": ours[0].body["token"], "espMessageId": "esp-1"});
        shop.client(1).post(&format!("/api/sends/{}/sent", ours[0].text("id")), &said).await.expect(200);
        let mut answers: Vec<Value> = vec![];
        for number in 0..10 {
            answers.push(begin(&shop, number, &body).await.expect(200).body);
        }
        answers.dedup();
        assert_eq!((answers.len(), &answers[0]["espMessageId"]), (1, &json!("esp-1")));
    }
}

async fn each_answer_is_as_the_page_says(on: On) {
    for lost in ["resend", "skip", "hold"] {
        let shop = shop_with(on, lost).await;
        let body = with(to("ada"), json!({"jobId": "job 1", "templateId": "welcome", "leaseSeconds": 30}));
        let first = begin(&shop, 0, &body).await.expect(201);
        let expected = json!({
            "send": "proceed", "id": first.body["id"], "token": first.body["token"], "attempt": 1,
            "providerKey": first.body["providerKey"], "leaseUntil": first.body["leaseUntil"],
        });
        assert_eq!(first.body, expected);
        assert!(["id", "providerKey"].iter().all(|field| first.text(field).parse::<uuid::Uuid>().is_ok()));
        is_busy(begin(&shop, 1, &to("ada")).await);
        // Its worker is silent for longer than its lease.
        shop.set_clock_ahead(Duration::from_secs(31));
        let next = begin(&shop, 1, &to("ada")).await;
        let path = format!("/api/sends/{}", first.text("id"));
        if lost == "resend" {
            let next = next.expect(201);
            assert_eq!((&next.body["attempt"], &next.body["providerKey"]), (&json!(2), &first.body["providerKey"]));
            let fenced = json!({"token": first.body["token"], "espMessageId": "esp-1"});
            shop.client(0).post(&format!("{path}/sent"), &fenced).await.expect_problem(409, "fenced");
            let said = json!({"token": next.body["token"], "espMessageId": "esp-1"});
            shop.client(0).post(&format!("{path}/sent"), &said).await.expect(200);
        } else {
            let unknown = json!({"send": "skip", "state": "unknown", "id": first.body["id"]});
            assert_eq!(next.expect(200).body, unknown);
            // The worker's own report is accepted, even late, because only the worker knows it.
            let said = json!({"token": first.body["token"], "espMessageId": "esp-1"});
            shop.client(0).post(&format!("{path}/sent"), &said).await.expect(200);
        }
        let shown = shop.client(1).get(&path).await.expect(200).body;
        let skip = json!({
            "send": "skip", "state": "sent", "id": first.body["id"], "espMessageId": "esp-1", "sentAt": shown["sentAt"],
        });
        assert_eq!(begin(&shop, 0, &to("ada")).await.expect(200).body, skip);
        assert_eq!(
            (&shown["state"], &shown["lost"], &shown["templateId"]),
            (&json!("sent"), &json!(lost), &json!("welcome"))
        );
        assert_eq!(shown["attempts"][0]["jobId"], "job 1");
    }
}

async fn a_worker_says_that_it_failed_and_that_it_lives(on: On) {
    for (lost, state) in [("resend", "lost"), ("hold", "unknown")] {
        let shop = shop_with(on, lost).await;
        let (path, token) = proceed(&shop, &to("no")).await;
        let say =
            async |path: &str, verb: &str, body: Value| shop.client(1).post(&format!("{path}/{verb}"), &body).await;
        let no = json!({"token": token, "error": "refused\u{7} it", "reached": "no"});
        for _ in 0..2 {
            let failed = say(&path, "failed", no.clone()).await.expect(200).body;
            assert_eq!((&failed["state"], &failed["attempts"][0]["error"]), (&json!("failed"), &json!("refused  it")));
        }
        let again = begin(&shop, 0, &to("no")).await.expect(201);
        assert_eq!(again.body["attempt"], 2);
        say(&path, "failed", no).await.expect_problem(409, "fenced");

        let (path, token) = proceed(&shop, &to("maybe")).await;
        let maybe = json!({"token": token, "error": "cut", "reached": "maybe"});
        assert_eq!(say(&path, "failed", maybe).await.expect(200).body["state"], state);
        assert_eq!(begin(&shop, 1, &to("maybe")).await.status, if lost == "resend" { 201 } else { 200 });

        let (path, token) = proceed(&shop, &with(to("alive"), json!({"leaseSeconds": 20}))).await;
        let renewed = say(&path, "renew", json!({"token": token, "leaseSeconds": 600})).await.expect(200).body;
        assert_eq!(renewed["state"], "sending");
        shop.set_clock_ahead(Duration::from_secs(300));
        is_busy_for_long(begin(&shop, 0, &to("alive")).await);
        say(&path, "renew", json!({"token": token + 1})).await.expect_problem(409, "fenced");
        shop.set_clock_ahead(Duration::from_secs(601));
        say(&path, "renew", json!({"token": token})).await.expect_problem(409, "fenced");
        eventually("it is written down that the lease has ended", || async {
            let page = shop.client(1).get(&format!("/api/sends?state={state}")).await.expect(200).body;
            let items = page["items"].as_array().expect("items").clone();
            items.into_iter().find(|item| item["recipientId"] == "alive")
        })
        .await;
    }
}

#[track_caller]
fn is_busy_for_long(told: Reply) {
    let told = told.expect_problem(409, "send-busy");
    let seconds = told.header("retry-after").and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
    assert!((250..=301).contains(&seconds), "{told:?}");
}

async fn sends_are_listed_and_shown(on: On) {
    let shop = shop_with(on, "resend").await;
    let (sent, token) = proceed(&shop, &to("ada")).await;
    shop.client(0).post(&format!("{sent}/sent"), &json!({"token": token})).await.expect(200);
    proceed(&shop, &to("bob")).await;
    proceed(&shop, &json!({"campaignId": "a/b & c", "recipientId": "ada"})).await;
    let list = async |query: &str| {
        let page = shop.client(1).get(&format!("/api/sends{query}")).await.expect(200).body;
        let items = page["items"].as_array().expect("items").clone();
        let names = items.iter().map(|item| format!("{} {}", item["campaignId"], item["recipientId"]).replace('"', ""));
        (names.collect::<Vec<_>>(), page["nextCursor"].as_str().map(str::to_owned))
    };
    assert_eq!(list("").await.0, ["a/b & c ada", "spring bob", "spring ada"]);
    assert_eq!(list("?campaignId=spring").await.0, ["spring bob", "spring ada"]);
    assert_eq!(list("?campaignId=a%2Fb%20%26%20c&state=sending").await.0, ["a/b & c ada"]);
    assert_eq!(list("?campaignId=spring&state=sent").await.0, ["spring ada"]);
    assert!(list("?campaignId=autumn").await.0.is_empty());
    let (first, cursor) = list("?limit=2").await;
    assert_eq!(first.len(), 2);
    assert_eq!(
        list(&format!("?limit=2&cursor={}", cursor.expect("there is more"))).await,
        (vec!["spring ada".into()], None)
    );
    let shown = shop.client(1).get(&sent).await.expect(200).body;
    assert_eq!((&shown["state"], &shown["attempt"], &shown["espMessageId"]), (&json!("sent"), &json!(1), &Value::Null));
    for nothing in [uuid::Uuid::now_v7().to_string(), "nothing".into()] {
        shop.client(0).get(&format!("/api/sends/{nothing}")).await.expect_problem(404, "not-found");
        let word = json!({"token": 1});
        shop.client(0).post(&format!("/api/sends/{nothing}/sent"), &word).await.expect_problem(404, "not-found");
    }
}

async fn metrics_count_what_became_of_sends(on: On) {
    let shop = shop_with(on, "hold").await;
    // An id is hexadecimal, so no part of it is this name.
    let (path, token) = proceed(&shop, &to("zoe")).await;
    let mut client = shop.client(0);
    client.post("/api/sends", &to("zoe")).await.expect(409);
    client.post(&format!("{path}/renew"), &json!({"token": token})).await.expect(200);
    client.post(&format!("{path}/sent"), &json!({"token": token})).await.expect(200);
    client.post(&format!("{path}/sent"), &json!({"token": token, "espMessageId": "x"})).await.expect(409);
    client.post("/api/sends", &to("zoe")).await.expect(200);
    let metrics = client.get("/metrics").await.expect(200).text;
    let counts = [("send.begun", 1), ("send.skipped", 2), ("send.renewed", 1), ("send.sent", 1), ("send.fenced", 1)];
    for (event, count) in counts {
        let line = format!("oncegate_send_events_total{{event=\"{event}\"}} {count}");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
    let stopped = "oncegate_duplicates_stopped_total{guard=\"send\"} 2";
    assert!(metrics.contains(stopped), "{stopped}: {metrics}");
    assert!(
        shop.servers.iter().all(|server| !format!("{:?}", server.log()).contains("zoe")),
        "recipients are not logged"
    );
}

#[tokio::test]
async fn what_cannot_be_right_is_a_400_that_names_it_and_leaves_nothing_behind() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let long = "x".repeat(257);
    for field in ["campaignId", "recipientId", "jobId", "templateId"] {
        for wrong in [json!(""), json!(long), json!("a\nb"), json!("a\u{0}"), json!(5), json!({}), json!(["a"])] {
            client.post("/api/sends", &with(to("ada"), json!({field: wrong}))).await.expect_invalid(field);
        }
    }
    for wrong in [json!(0), json!(-1), json!(3601), json!(1e300), json!("60"), json!([])] {
        client
            .post("/api/sends", &with(to("ada"), json!({"leaseSeconds": wrong})))
            .await
            .expect_invalid("leaseSeconds");
    }
    client.post("/api/sends", &json!({"campaignId": "spring"})).await.expect_invalid("`recipientId`");
    client.post("/api/sends", &json!({"recipientId": "ada"})).await.expect_invalid("`campaignId`");
    client.post("/api/sends", &with(to("ada"), json!({"colour": "red"}))).await.expect_invalid("`colour`");
    client
        .post("/api/sends", &json!([]))
        .await
        .expect_invalid("expected an object with `campaignId` and `recipientId`");
    let listed = client.get("/api/sends").await.expect(200);
    assert_eq!(listed.body["items"], json!([]));
    // 256 characters are allowed, whatever their length in bytes.
    client.post("/api/sends", &to(&"ä".repeat(256))).await.expect(201);

    let told = client.post("/api/sends", &to("ada")).await.expect(201);
    let (path, token) = (format!("/api/sends/{}", told.text("id")), told.body["token"].clone());
    let before = client.get(&path).await.expect(200).body;
    let wrong = [
        ("sent", json!({}), "`token`"),
        ("sent", json!({"token": "1"}), "token"),
        ("sent", json!({"token": 1.5}), "token"),
        ("sent", json!({"token": token, "espMessageId": "x".repeat(513)}), "espMessageId"),
        ("sent", json!({"token": token, "espMessageId": "a\u{1b}[2J"}), "espMessageId"),
        ("sent", json!({"token": token, "espMessageId": 7}), "espMessageId"),
        ("sent", json!({"token": token, "reached": "no"}), "`reached`"),
        ("failed", json!({"token": token, "reached": "no"}), "`error`"),
        ("failed", json!({"token": token, "error": "x"}), "`reached`"),
        ("failed", json!({"token": token, "error": "x", "reached": "yes"}), "reached"),
        ("failed", json!({"token": token, "error": "x", "reached": true}), "reached"),
        ("failed", json!({"error": "x", "reached": "no"}), "`token`"),
        ("renew", json!({"leaseSeconds": 5}), "`token`"),
        ("renew", json!({"token": token, "leaseSeconds": 0}), "leaseSeconds"),
        ("renew", json!({"token": token, "leaseSeconds": 3601}), "leaseSeconds"),
        ("resolve", json!({}), "`as`"),
        ("resolve", json!({"as": "done"}), "done"),
        ("resolve", json!({"as": "not_sent", "espMessageId": "x"}), "espMessageId"),
        ("resolve", json!({"as": "sent", "note": "x".repeat(64 * 1024)}), "note"),
        ("resolve", json!({"as": "sent", "token": token}), "`token`"),
    ];
    for (verb, body, named) in wrong {
        client.post(&format!("{path}/{verb}"), &body).await.expect_invalid(named);
    }
    for (query, named) in [
        ("state=gone", "state"),
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("cursor=x", "cursor"),
        ("campaign=x", "campaign"),
    ] {
        client.get(&format!("/api/sends?{query}")).await.expect_invalid(named);
    }
    assert_eq!(client.get(&path).await.expect(200).body, before);
    client.send(Method::PUT, &path, Some("{}".into())).await.expect(405);
}

#[tokio::test]
async fn the_claims_of_sends_are_nobody_elses() {
    let home = Home::with_config("[sends]\nlost = \"hold\"\n");
    let server = home.serve();
    let mut client = server.client();
    let told = client.post("/api/sends", &with(to("ada"), json!({"leaseSeconds": 0.01}))).await.expect(201);
    let token = told.body["token"].as_i64().expect("a token");
    let claims = client.get("/api/claims?guard=send").await.expect(200).body;
    let id = claims["items"][0]["id"].as_str().expect("people can look at it").to_owned();
    client.claim(&claim_of("send", "x")).await.expect_invalid("guard");
    client.claim(&json!({"guard": "send", "key": ["spring", "ada"]})).await.expect_invalid("guard");
    for verb in ["settle", "renew", "release"] {
        client.owner(verb, "send", &id, token).await.expect_invalid("guard");
    }
    let resolve = json!({"guard": "send", "as": "done"});
    client.post(&format!("/api/claims/{id}/resolve"), &resolve).await.expect_invalid("guard");
    home.run(["claims", "resolve", &id, "--guard", "send", "--as", "done"]).expect_failure(
        2,
        "send",
        "oncegate sends resolve",
    );
    let told = client.post("/api/sends", &to("ada")).await;
    assert!(told.status != 201, "{told:?}");
}

#[tokio::test]
async fn each_workspace_has_its_own_and_workers_do_not_list_or_resolve() {
    let home = Home::with_config("[sends]\nlost = \"hold\"\n");
    let [(_, worker), (by, operator), (_, other)] = [("acme", "send"), ("acme", "operate"), ("other", "admin")]
        .map(|(workspace, role)| home.make_key(workspace, role));
    let server = home.serve();
    let [mut worker, mut operator, mut other] = [worker, operator, other].map(|key| server.client_with(&key));
    let told = worker.post("/api/sends", &to("ada")).await.expect(201);
    let (path, token) = (format!("/api/sends/{}", told.text("id")), told.body["token"].clone());
    for (verb, body) in [
        ("sent", json!({"token": token})),
        ("failed", json!({"token": token, "error": "x", "reached": "no"})),
        ("renew", json!({"token": token})),
        ("resolve", json!({"as": "sent"})),
    ] {
        other.post(&format!("{path}/{verb}"), &body).await.expect_problem(404, "not-found");
    }
    other.get(&path).await.expect_problem(404, "not-found");
    assert_eq!(other.get("/api/sends").await.expect(200).body["items"], json!([]));
    other.post("/api/sends", &to("ada")).await.expect(201);
    worker.get("/api/sends").await.expect_problem(403, "forbidden");
    worker
        .post(&format!("{path}/failed"), &json!({"token": token, "error": "x", "reached": "maybe"}))
        .await
        .expect(200);
    worker.post(&format!("{path}/resolve"), &json!({"as": "sent"})).await.expect_problem(403, "forbidden");
    let resolved = operator.post(&format!("{path}/resolve"), &json!({"as": "sent", "note": "at the provider"})).await;
    let resolved = resolved.expect(200).body;
    assert_eq!((&resolved["state"], &resolved["resolved"]["by"]), (&json!("sent"), &json!(by)));
    let line = server.logged("audit.send_resolved", 1).await.remove(0);
    assert_eq!((&line["by"], &line["why"], &line["sent"]), (&json!(by), &json!("at the provider"), &json!(true)));
    assert_eq!((&line["workspace"], &line["sendId"]), (&json!("acme"), &told.body["id"]));
    assert_eq!(worker.post("/api/sends", &to("ada")).await.expect(200).body["state"], "sent");
}
