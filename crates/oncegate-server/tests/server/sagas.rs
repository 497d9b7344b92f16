//! The included saga, through the API: events in every form, delivered commands, timers, removal, dead letters.

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};

use crate::support::{Home, On, SEARCH_IMPORT, Workshop, eventually, on_both, with};

const HOUR: Duration = Duration::from_secs(3600);
const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

on_both![
    a_search_goes_through_its_states_and_each_command_arrives_once,
    events_come_as_cloud_events_too,
    notifications_of_s3_become_events_once,
    an_upload_that_is_never_saved_times_out_and_is_removed_after_a_week,
    a_large_event_behaves_as_a_small_one_does,
    dead_letters_are_seen_retried_and_discarded,
];

fn event(name: &str, id: &str, data: Value) -> Value {
    json!({ "type": name, "id": id, "data": data })
}

fn saved(search: &str, files: &[&str]) -> Value {
    let data = json!({ "searchId": search, "projectId": "p", "searchName": "n", "referenceFiles": files });
    event("SearchUploadSaved", &format!("saved {search}"), data)
}

fn parsed(search: &str, file: &str) -> Value {
    event("ReferenceFileParsingCompleted", &format!("{search} {file}"), json!({ "searchId": search, "fileId": file }))
}

/// The arrivals of a search: the files, and the number of their keys.
fn arrived(shop: &Workshop, search: &str) -> (Vec<String>, usize) {
    let of_search = shop.provider.all().into_iter().filter(|arrived| arrived.body["searchId"] == search);
    let (mut files, mut keys): (Vec<String>, Vec<String>) =
        of_search.map(|arrived| (arrived.body["fileId"].as_str().expect("a file").to_owned(), arrived.key)).unzip();
    files.sort();
    keys.sort();
    keys.dedup();
    (files, keys.len())
}

async fn a_search_goes_through_its_states_and_each_command_arrives_once(on: On) {
    let shop = Workshop::open(on).await;
    let started = event("SearchUploadStarted", "1", json!({ "searchId": "s", "projectId": "p" }));
    assert_eq!(
        shop.event(0, &started).await,
        json!({ "saga": "search-import", "correlationId": "s", "result": "applied", "state": "Uploading" })
    );
    assert_eq!(shop.event(1, &started).await["result"], "duplicate");
    let all =
        json!([saved("s", &["a", "b"]), saved("s", &["a", "b"]), parsed("s", "a"), parsed("s", "b"), parsed("s", "b")]);
    let handled = shop.event(1, &all).await;
    let results: Vec<_> =
        handled.as_array().expect("a list").iter().map(|one| (&one["result"], &one["state"])).collect();
    let told = |result: &str, state: &str| (json!(result), json!(state));
    let expected = [
        told("applied", "Parsing"),
        told("duplicate", "Parsing"),
        told("applied", "Parsing"),
        told("applied", "Completed"),
        told("duplicate", "Completed"),
    ];
    assert_eq!(results, expected.iter().map(|(result, state)| (result, state)).collect::<Vec<_>>(), "in their order");
    eventually("both commands have arrived", || async { (arrived(&shop, "s").0.len() == 2).then_some(()) }).await;
    assert_eq!(arrived(&shop, "s"), (vec!["a".into(), "b".into()], 2));
    let search = shop.search("s").await;
    assert_eq!((&search["state"], &search["data"]["waiting"]), (&json!("Completed"), &json!([])));
    assert!(search["completedAt"].is_string() && search["expiresAt"].is_string());
    let history = search["history"].as_array().expect("a list").clone();
    let lines: Vec<_> = history.iter().map(|line| (&line["event"], &line["from"], &line["to"])).collect();
    assert_eq!(lines[0], (&json!("SearchUploadStarted"), &Value::Null, &json!("Uploading")));
    assert_eq!(lines[1], (&json!("SearchUploadSaved"), &json!("Uploading"), &json!("Parsing")));
    assert_eq!(history.len(), 4);
    // A command is an action, with the id that is in the history.
    let id = history[1]["commands"][0]["id"].as_str().expect("an id");
    assert_eq!(shop.becomes(id, "completed").await["actionType"], "StartParsingReferenceFile");
    let listed = shop.client(0).get("/api/sagas?definition=search-import&state=Completed").await.expect(200).body;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1));
    // An invalid name matches nothing, and disturbs no other instance.
    for path in ["/api/sagas/search-import/%00", "/api/sagas/%00/s", "/api/sagas/search-import/%ff"] {
        shop.client(0).get(path).await.expect_problem(404, "not-found");
    }
    for path in ["/api/sagas?definition=%00", "/api/sagas?state=%00", "/api/sagas/dead-letters?definition=%00"] {
        assert_eq!(shop.client(0).get(path).await.expect(200).body["items"], json!([]), "{path}");
    }
    let none = shop.client(0).get("/api/sagas?state=Parsing").await.expect(200).body;
    assert_eq!(none, json!({ "items": [], "nextCursor": null }));
    shop.client(0).get("/api/sagas/search-import/other").await.expect_problem(404, "not-found");
    // Duplicates are counted.
    eventually("duplicates are counted", || async {
        let history = shop.search("s").await["history"].clone();
        let counts: Vec<_> = history.as_array()?.iter().map(|line| line["duplicates"].as_i64()).collect();
        (counts == [Some(1), Some(1), Some(0), Some(1)]).then_some(())
    })
    .await;
}

async fn events_come_as_cloud_events_too(on: On) {
    let shop = Workshop::open(on).await;
    let data = saved("c", &["a"])["data"].clone();
    let cloud = json!({
        "specversion": "1.0", "type": "SearchUploadSaved", "source": "/uploads", "id": "7", "data": data,
        "time": "2026-11-15T09:30:00Z", "datacontenttype": "application/json",
    });
    let mut structured = shop.client(0).header("content-type", "application/cloudevents+json; charset=utf-8");
    assert_eq!(structured.post("/api/events", &cloud).await.expect(200).body["result"], "applied");
    let mut batched = shop.client(1).header("content-type", "application/cloudevents-batch+json");
    let answered = batched.post("/api/events", &json!([cloud, cloud])).await.expect(200).body;
    assert_eq!((&answered[0]["result"], &answered[1]["result"]), (&json!("duplicate"), &json!("duplicate")));
    let mut binary = shop
        .client(0)
        .header("ce-specversion", "1.0")
        .header("ce-type", "SearchUploadSaved")
        .header("ce-source", "/uploads")
        .header("ce-id", "7");
    assert_eq!(binary.post("/api/events", &data).await.expect(200).body["result"], "duplicate");
    // The same id from another source is another event.
    let elsewhere = with(cloud.clone(), json!({ "source": "/elsewhere" }));
    assert_eq!(structured.post("/api/events", &elsewhere).await.expect(200).body["result"], "ignored");
    structured.post("/api/events", &json!([cloud])).await.expect_invalid("cloudevents-batch+json");
    structured
        .post("/api/events", &with(cloud.clone(), json!({ "specversion": "0.3" })))
        .await
        .expect_invalid("specversion: 1.0");
    let mut plain = shop.client(0).header("content-type", "text/plain");
    plain.post("/api/events", &cloud).await.expect_problem(415, "unsupported-media-type");
}

async fn notifications_of_s3_become_events_once(on: On) {
    let shop = Workshop::open(on).await;
    let record = |key: &str, sequencer: &str| {
        json!({
            "eventVersion": "2.1", "eventSource": "aws:s3", "awsRegion": "eu-west-1", "eventTime": "2026-11-15T09:30:00.000Z",
            "eventName": "ObjectCreated:Put", "userIdentity": { "principalId": "AWS:x" },
            "s3": { "s3SchemaVersion": "1.0", "bucket": { "name": "uploads", "arn": "arn:aws:s3:::uploads" },
                    "object": { "key": key, "size": 7, "eTag": "e", "versionId": "v1", "sequencer": sequencer } },
        })
    };
    let document = json!({ "Records": [record("searches/p/one+and+only/a.pdf", "01"), record("searches/p/two/a.pdf", "02"), record("x", "03")] });
    let path = "/api/events/s3?saga=search-import";
    let first = shop.client(0).post(path, &document).await.expect(200).body;
    let told = |body: &Value| {
        body["items"].as_array().expect("a list").iter().map(|one| one["result"].clone()).collect::<Vec<_>>()
    };
    assert_eq!((told(&first), &first["skipped"]), (vec![json!("applied"), json!("applied")], &json!(1)));
    let again = shop.client(1).post(path, &document).await.expect(200).body;
    assert_eq!(told(&again), ["duplicate", "duplicate"]);
    let search = shop.client(0).get("/api/sagas/search-import/one%20and%20only").await.expect(200).body;
    assert_eq!((&search["state"], &search["data"]["projectId"]), (&json!("Uploading"), &json!("p")));
    let test = json!({ "Service": "Amazon S3", "Event": "s3:TestEvent", "Time": "2026-11-15T09:30:00.000Z", "Bucket": "uploads",
                       "RequestId": "5582815E1AEA5ADF", "HostId": "8cLeGAmw098X5cv4Zkwcmo8vvZa3eH3eKxsPzbB9wrR" });
    assert_eq!(shop.client(0).post(path, &test).await.expect(200).body, json!({ "items": [], "skipped": 0 }));
    shop.client(0).post("/api/events/s3", &document).await.expect_invalid("saga: which one? There are: search-import");
    shop.client(0)
        .post("/api/events/s3?saga=other", &document)
        .await
        .expect_invalid("\"other\" has no [[s3]] rules here");
    shop.client(0).post(path, &json!({ "Records": 7 })).await.expect_invalid("no notification of S3");
}

async fn an_upload_that_is_never_saved_times_out_and_is_removed_after_a_week(on: On) {
    let shop = Workshop::open(on).await;
    let started = event("SearchUploadStarted", "1", json!({ "searchId": "s" }));
    shop.event(0, &started).await;
    assert!(shop.search("s").await["timers"]["UploadTimeout"].is_string());
    shop.set_clock_ahead(HOUR);
    let search = eventually("the upload has timed out", || async {
        let search = shop.search("s").await;
        (search["state"] == "Error").then_some(search)
    })
    .await;
    assert_eq!(search["history"][1]["event"], "UploadTimeout");
    assert_eq!(shop.event(1, &started).await["result"], "duplicate");
    shop.set_clock_ahead(HOUR + WEEK + Duration::from_secs(60));
    shop.client(0).get("/api/sagas/search-import/s").await.expect_problem(404, "not-found");
    // The instance is removed, not only hidden: its inbox records are swept.
    eventually("its inbox is empty", || async {
        let claims = shop.client(0).get("/api/claims?guard=saga").await.expect(200).body;
        (claims["items"] == json!([])).then_some(())
    })
    .await;
    assert_eq!(shop.event(0, &started).await["result"], "applied", "it is another upload");
}

async fn a_large_event_behaves_as_a_small_one_does(on: On) {
    let shop = Workshop::open(on).await;
    let mut large = saved("large", &["a", "b"]);
    large["data"]["document"] = json!("x".repeat(1_500_000));
    let first = shop.event(0, &large).await;
    assert_eq!((&first["result"], &first["state"]), (&json!("applied"), &json!("Parsing")));
    assert_eq!(shop.event(1, &large).await["result"], "duplicate");
    eventually("both commands have arrived", || async { (arrived(&shop, "large").0.len() == 2).then_some(()) }).await;
    large["data"]["document"] = json!("x".repeat(4 * 1024 * 1024));
    // The server does not read the whole body: its answer may arrive before the client has finished writing.
    if let Ok(answer) = shop.client(0).try_send(Method::POST, "/api/events", Some(large.to_string().into())).await {
        answer.expect_problem(413, "payload-too-large");
    }
}

async fn dead_letters_are_seen_retried_and_discarded(on: On) {
    let shop = Workshop::open(on).await;
    let early = shop.event(0, &parsed("s", "a")).await;
    assert_eq!(
        (&early["result"], &early["reason"]),
        (&json!("dead_letter"), &json!("event ReferenceFileParsingCompleted is not accepted in state none"))
    );
    let letter = early["deadLetterId"].as_str().expect("an id").to_owned();
    let unknown = shop.event(1, &event("Unheard", "1", json!({ "a": 1 }))).await;
    assert_eq!((&unknown["saga"], &unknown["reason"]), (&Value::Null, &json!("no saga knows the event Unheard")));
    let mut client = shop.client(1);
    let listed = client.get("/api/sagas/dead-letters").await.expect(200).body;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2));
    let of_saga = client.get("/api/sagas/dead-letters?definition=search-import").await.expect(200).body;
    assert_eq!(of_saga["items"][0]["event"], parsed("s", "a"), "the event is there, whole");
    shop.event(0, &saved("s", &["a", "b"])).await;
    let retried = client.post(&format!("/api/sagas/dead-letters/{letter}/retry"), &json!({})).await.expect(200).body;
    assert_eq!((&retried["result"], &retried["state"]), (&json!("applied"), &json!("Parsing")));
    client
        .post(&format!("/api/sagas/dead-letters/{letter}/retry"), &json!({}))
        .await
        .expect_problem(409, "wrong-status");
    assert_eq!(client.get(&format!("/api/sagas/dead-letters/{letter}")).await.expect(200).body["status"], "retried");
    let other = unknown["deadLetterId"].as_str().expect("an id");
    let discarded = client.post(&format!("/api/sagas/dead-letters/{other}/discard"), &json!({})).await.expect(200).body;
    assert_eq!(discarded["status"], "discarded");
    assert_eq!(client.get("/api/sagas/dead-letters").await.expect(200).body["items"], json!([]));
    client.post("/api/sagas/dead-letters/nothing/retry", &json!({})).await.expect_problem(404, "not-found");
    client.get("/api/sagas/dead-letters?status=lost").await.expect_invalid("status: one of open, retried, discarded");
}

#[tokio::test]
async fn what_is_no_event_gets_a_clear_error_and_nothing_of_its_batch_is_applied() {
    let shop = Workshop::open(On::Sqlite).await;
    let mut client = shop.client(0);
    let mut refused = async |body: String, what: &str| {
        client.send(Method::POST, "/api/events", Some(Bytes::from(body))).await.expect_invalid(what);
    };
    refused("not JSON".into(), "expected").await;
    refused("{}".into(), "missing field `type`").await;
    refused(json!({ "type": "A", "dta": {} }).to_string(), "unknown field `dta`").await;
    refused(json!({ "type": 7 }).to_string(), "type: invalid type: integer `7`").await;
    refused(json!([saved("s", &["a"]), { "type": "" }]).to_string(), "[1].type: it is empty").await;
    refused(
        format!(r#"{{"type":"SearchUploadSaved","data":{}1{}}}"#, "[".repeat(100), "]".repeat(100)),
        "nested over 64 deep",
    )
    .await;
    refused(format!("[{}]", vec![saved("s", &["a"]).to_string(); 501].join(",")), "at most 500 events at once").await;
    shop.client(0).get("/api/sagas/search-import/s").await.expect_problem(404, "not-found");
    shop.client(0).get("/api/sagas?limit=0").await.expect_invalid("limit: 1 to 500");
    shop.client(0).get("/api/sagas?cursor=x").await.expect_invalid("cursor");
    shop.client(0).get("/api/sagas?colour=red").await.expect_invalid("unknown field `colour`");
    assert_eq!(shop.client(0).post("/api/events", &json!([])).await.expect(200).body, json!([]));
}

#[tokio::test]
async fn a_send_key_posts_events_and_an_operator_looks_at_them() {
    let home = Home::with_config(&format!("[sagas]\nfiles = [{SEARCH_IMPORT:?}]\n"));
    let (_, send) = home.make_key("default", "send");
    let (_, operate) = home.make_key("default", "operate");
    let (_, elsewhere) = home.make_key("elsewhere", "operate");
    let server = home.serve();
    let early = server.client_with(&send).post("/api/events", &parsed("s", "a")).await.expect(200).body;
    let letter = early["deadLetterId"].as_str().expect("an id").to_owned();
    server.client_with(&send).post("/api/events", &saved("s", &["a"])).await.expect(200);
    server.client_with(&send).get("/api/sagas").await.expect_problem(403, "forbidden");
    let retry = format!("/api/sagas/dead-letters/{letter}/retry");
    server.client_with(&send).post(&retry, &json!({})).await.expect_problem(403, "forbidden");
    server.client_with(&elsewhere).post(&retry, &json!({})).await.expect_problem(404, "not-found");
    server.client_with(&elsewhere).get("/api/sagas/search-import/s").await.expect_problem(404, "not-found");
    server.client().post("/api/events", &saved("s", &["a"])).await.expect_problem(401, "unauthorized");
    assert_eq!(server.client_with(&operate).post(&retry, &json!({})).await.expect(200).body["state"], "Completed");
    let audit = server.logged("audit.dead_letter_retried", 1).await;
    assert!(audit[0]["by"].as_str().is_some_and(|by| !by.is_empty()), "{audit:?}");
}

#[tokio::test]
async fn an_action_becomes_an_event_where_its_handler_is_a_saga() {
    let types = "[actions.type.\"search:saved\"]\nhandler = \"saga\"\nevent = \"SearchUploadSaved\"\n";
    let shop = Workshop::open_with(On::Sqlite, "", types).await;
    let id = shop.now("search:saved", saved("s", &["a"])["data"].clone()).await;
    let done = shop.becomes(&id, "completed").await;
    assert_eq!(done["result"], json!([{ "saga": "search-import", "result": "applied" }]));
    assert_eq!(shop.search("s").await["history"][0]["source"], "oncegate:action");
}

#[test]
fn the_command_line_checks_draws_and_shows() {
    let home = Home::with_config(&format!("[sagas]\nfiles = [{SEARCH_IMPORT:?}]\n"));
    let checked = home.run(["saga", "check", SEARCH_IMPORT]).expect_code(0);
    assert!(
        checked.stdout.contains("search-import is right; it sends StartParsingReferenceFile; kept for 7d"),
        "{checked:?}"
    );
    assert!(checked.stdout.contains("→ Completed or stays"), "{checked:?}");
    let broken =
        std::fs::read_to_string(SEARCH_IMPORT).expect("it ships").replace("to = \"Completed\"", "to = \"Complete\"");
    std::fs::write(home.path().join("broken.toml"), broken).expect("the folder is ours");
    let wrong = home.run(["saga", "check", SEARCH_IMPORT, "broken.toml"]).expect_code(1);
    assert!(wrong.stderr.contains("broken.toml:70: there is no state Complete; did you mean Completed?"), "{wrong:?}");
    assert!(wrong.stderr.contains("1 of 2 definitions cannot be used"), "{wrong:?}");
    let json = home.run(["saga", "check", "--json", "broken.toml"]).expect_code(1).json();
    assert_eq!((&json[0]["defects"][0]["line"], &json[0]["defects"][0]["state"]), (&json!(70), &json!("Complete")));
    let missing = home.run(["saga", "check", "nothing.toml", SEARCH_IMPORT]).expect_code(1);
    assert!(
        missing.stderr.contains("nothing.toml cannot be read") && missing.stdout.contains("is right"),
        "{missing:?}"
    );
    home.run(["saga", "diagram", "nothing.toml"]).expect_failure(3, "nothing.toml cannot be read", "[sagas] files");
    let svg = home.run(["saga", "diagram", SEARCH_IMPORT]).expect_code(0).stdout;
    assert!(svg.starts_with("<svg") && svg.contains("Parsing"));
    assert!(
        home.run(["saga", "diagram", SEARCH_IMPORT, "--as", "mermaid"])
            .expect_code(0)
            .stdout
            .starts_with("stateDiagram-v2")
    );
    // A server does not start with an invalid saga.
    home.configure("[sagas]\nfiles = [\"broken.toml\"]\n");
    let refused = home.run(["serve", "--listen", "127.0.0.1:0"]).expect_failure(
        1,
        "there is no state Complete",
        "oncegate saga check broken.toml",
    );
    assert!(refused.stdout.is_empty() || !refused.stdout.contains("server.listening"));
    home.run(["config", "check"]).expect_code(1);
}

#[tokio::test]
async fn the_command_line_lists_instances_and_settles_dead_letters() {
    let shop = Workshop::open(On::Sqlite).await;
    shop.event(0, &saved("s", &["a"])).await;
    let early = shop.event(0, &parsed("t", "a")).await;
    let letter = early["deadLetterId"].as_str().expect("an id");
    let listed = shop.home.run(["saga", "list", "--json"]).expect_code(0).json();
    assert_eq!(listed["items"][0]["correlationId"], "s");
    let shown = shop.home.run(["saga", "show", "search-import", "s"]).expect_code(0).stdout;
    assert!(shown.contains("Parsing") && shown.contains("SearchUploadSaved"), "{shown}");
    shop.home.run(["saga", "show", "search-import", "x"]).expect_failure(
        3,
        "no search-import of x",
        "oncegate saga list",
    );
    let letters = shop.home.run(["saga", "dead-letters", "list"]).expect_code(0).stdout;
    assert!(letters.contains(letter) && letters.contains("is not accepted in state none"), "{letters}");
    let again = shop.home.run(["saga", "dead-letters", "retry", letter, "--json"]).expect_code(1).json();
    assert_eq!(again["result"], "dead_letter", "it is still too early");
    shop.event(0, &saved("t", &["a"])).await;
    let retried = shop.home.run(["saga", "dead-letters", "retry", letter, "--json"]).expect_code(0).json();
    assert_eq!((&retried["result"], &retried["state"]), (&json!("applied"), &json!("Completed")));
    shop.home.run(["saga", "dead-letters", "discard", letter]).expect_failure(
        1,
        "it is retried already",
        "dead-letters show",
    );
}
