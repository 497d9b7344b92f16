//! Sends with an unknown outcome: a person settles them by the API and by the command line, and so does the reconcile hook.
#![cfg(feature = "crash-points")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::{Home, On, PATIENCE, Reply, Server, Workshop, eventually, on_both, serve_http, with};

on_both![
    a_person_settles_a_send_by_the_api,
    the_hook_is_asked_when_a_worker_comes_and_believed_if_it_is_clear,
    the_hook_is_asked_though_no_worker_comes,
    a_hook_that_was_asked_when_the_server_died_is_asked_again,
];

/// Answers as the recipient's name says, and records the requests.
struct Hook {
    address: SocketAddr,
    asked: Asked,
}

type Asked = Arc<Mutex<Vec<Value>>>;

impl Hook {
    async fn start() -> Hook {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let (address, asked) = (listener.local_addr().expect("an address"), Asked::default());
        let seen = asked.clone();
        serve_http(listener, move |request| answer(seen.clone(), request));
        Hook { address, asked }
    }

    fn config(&self) -> String {
        format!("[sends]\nlost = \"hold\"\nreconcile_url = \"http://{}/was-it-sent\"\n", self.address)
    }

    fn asked(&self, recipient: &str) -> Vec<Value> {
        let asked = self.asked.lock().expect("no holder panics");
        asked.iter().filter(|question| question["recipientId"] == recipient).cloned().collect()
    }

    async fn is_asked(&self, recipient: &str, times: usize) {
        eventually(&format!("{recipient} was asked about"), || async {
            (self.asked(recipient).len() >= times).then_some(())
        })
        .await;
    }
}

async fn answer(asked: Asked, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    assert_eq!(request.headers()["oncegate-workspace"], "default", "each question says whose it is");
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let question: Value = serde_json::from_slice(&body).expect("a question is JSON");
    let recipient = question["recipientId"].as_str().unwrap_or_default().to_owned();
    let times = {
        let mut asked = asked.lock().expect("no holder panics");
        asked.push(question);
        asked.iter().filter(|question| question["recipientId"] == recipient).count()
    };
    let answers: BTreeMap<&str, &str> = [
        ("yes", r#"{"sent":true,"espMessageId":"esp-7"}"#),
        ("yes-later", r#"{"sent":true}"#),
        ("no", r#"{"sent":false}"#),
        ("no-at-once", r#"{"sent":false}"#),
        ("null", r#"{"sent":null}"#),
        ("500", r#"{"sent":true}"#),
    ]
    .into();
    if recipient == "hang" || recipient == "yes-later" && times == 1 {
        std::future::pending::<()>().await;
    }
    let mut response = Response::new(Full::new(Bytes::from(answers.get(&*recipient).copied().unwrap_or("what?"))));
    if recipient == "500" {
        *response.status_mut() = hyper::StatusCode::INTERNAL_SERVER_ERROR;
    }
    Ok(response)
}

fn to(recipient: &str) -> Value {
    json!({"campaignId": "spring", "recipientId": recipient})
}

async fn begin(shop: &Workshop, recipient: &str) -> Reply {
    shop.client(1).post("/api/sends", &to(recipient)).await
}

/// A send whose worker reported an unknown outcome. Returns its path.
async fn unknown(shop: &Workshop, recipient: &str) -> String {
    let told = begin(shop, recipient).await.expect(201);
    let path = format!("/api/sends/{}", told.text("id"));
    let maybe = json!({"token": told.body["token"], "error": "cut", "reached": "maybe"});
    shop.client(0).post(&format!("{path}/failed"), &maybe).await.expect(200);
    path
}

async fn becomes(shop: &Workshop, path: &str, state: &str) -> Value {
    eventually(&format!("{path} is {state}"), || async {
        let shown = shop.client(0).get(path).await.expect(200).body;
        (shown["state"] == state).then_some(shown)
    })
    .await
}

async fn a_person_settles_a_send_by_the_api(on: On) {
    let shop = Workshop::open_with(on, "", "[sends]\nlost = \"hold\"\n").await;
    let resolve = async |path: &str, body: Value| shop.client(0).post(&format!("{path}/resolve"), &body).await;
    let path = unknown(&shop, "sent").await;
    let body = json!({"as": "sent", "espMessageId": "esp-1", "note": "it is at the provider"});
    let resolved = resolve(&path, body.clone()).await.expect(200).body;
    assert_eq!((&resolved["state"], &resolved["espMessageId"]), (&json!("sent"), &json!("esp-1")));
    assert_eq!(resolved["resolved"]["note"], "it is at the provider");
    resolve(&path, body).await.expect_problem(409, "wrong-status");
    assert_eq!(begin(&shop, "sent").await.expect(200).body["espMessageId"], "esp-1");

    let path = unknown(&shop, "not sent").await;
    // Two people at once, with different answers.
    let (mut one, mut other) = (shop.client(0), shop.client(1));
    let (yes, no) = (json!({"as": "sent"}), json!({"as": "not_sent"}));
    let verb = format!("{path}/resolve");
    let (yes, no) = tokio::join!(one.post(&verb, &yes), other.post(&verb, &no));
    let mut statuses = [yes.status, no.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409], "{yes:?} {no:?}");
    let next = begin(&shop, "not sent").await;
    assert_eq!(next.status, if no.status == 200 { 201 } else { 200 }, "{next:?}");

    let path = unknown(&shop, "again").await;
    resolve(&path, json!({"as": "not_sent", "note": "it bounced"})).await.expect(200);
    let line = eventually("the audit line, with why", || async {
        let log = shop.servers[0].log().into_iter();
        log.filter(|line| line["event"] == "audit.send_resolved").find(|line| line["why"] == "it bounced")
    })
    .await;
    assert_eq!((&line["by"], &line["sent"], &line["level"]), (&json!("local"), &json!(false), &json!("warn")));
    let next = begin(&shop, "again").await.expect(201);
    assert_eq!(next.body["attempt"], 2);
    resolve(&path, json!({"as": "sent"})).await.expect_problem(409, "wrong-status");
}

async fn the_hook_is_asked_when_a_worker_comes_and_believed_if_it_is_clear(on: On) {
    let hook = Hook::start().await;
    let mut shop = Workshop::open_with(on, "", &hook.config()).await;
    // Their workers fall silent: while no server runs, no sweep happens.
    let mut keys = BTreeMap::new();
    for recipient in ["yes", "no", "null", "500", "hang", "nonsense"] {
        let told = begin(&shop, recipient).await.expect(201);
        keys.insert(recipient, (told.body["providerKey"].clone(), told.text("id")));
    }
    let servers = shop.servers.len();
    shop.servers.clear();
    shop.set_clock_ahead(Duration::from_secs(61));
    shop.servers = (0..servers).map(|_| shop.serve(&[])).collect();
    for (recipient, (key, id)) in &keys {
        let told = begin(&shop, recipient).await;
        let question = hook.asked(recipient).first().cloned().expect("it was asked");
        let expected = json!({
            "id": id, "providerKey": key, "campaignId": "spring", "recipientId": recipient, "templateId": null, "attempt": 1,
        });
        assert_eq!(question, expected);
        match *recipient {
            "yes" => assert_eq!(told.expect(200).body["espMessageId"], "esp-7"),
            "no" => {
                let told = told.expect(201);
                assert_eq!((&told.body["attempt"], &told.body["providerKey"]), (&json!(2), key));
                begin(&shop, recipient).await.expect_problem(409, "send-busy");
            }
            _ => {
                let unknown = json!({"send": "skip", "state": "unknown", "id": id});
                assert_eq!(told.expect(200).body, unknown, "{recipient}");
            }
        }
    }
    let settled = shop.client(0).get(&format!("/api/sends/{}", keys["yes"].1)).await.expect(200).body;
    assert_eq!((&settled["resolved"]["by"], &settled["resolved"]["sent"]), (&json!("reconcile hook"), &json!(true)));
    // While the server itself is late, the worker asks.
    shop.servers.clear();
    shop.servers = vec![shop.serve(&[("ONCEGATE_TEST_PAUSE_AT", "send.leased:60000")])];
    let short = with(to("no-at-once"), json!({"leaseSeconds": 0.3}));
    shop.client(0).post("/api/sends", &short).await.expect(201);
    let next = eventually("the lease ends", || async {
        let told = begin(&shop, "no-at-once").await;
        (told.status != 409).then_some(told)
    })
    .await;
    assert_eq!((next.status, &next.body["attempt"], hook.asked("no-at-once").len()), (201, &json!(2), 1));
}

async fn the_hook_is_asked_though_no_worker_comes(on: On) {
    let hook = Hook::start().await;
    let shop = Workshop::open_with(on, "", &hook.config()).await;
    // Its worker reported the unknown outcome, or fell silent.
    let yes = unknown(&shop, "yes").await;
    becomes(&shop, &yes, "sent").await;
    let null = unknown(&shop, "null").await;
    let short = with(to("no"), json!({"leaseSeconds": 0.05}));
    let no = shop.client(0).post("/api/sends", &short).await.expect(201).text("id");
    becomes(&shop, &format!("/api/sends/{no}"), "failed").await;
    assert_eq!(begin(&shop, "no").await.expect(201).body["attempt"], 2);
    // The hook does not know yet, and is asked again after a minute.
    hook.is_asked("null", 1).await;
    shop.set_clock_ahead(Duration::from_secs(61));
    hook.is_asked("null", 2).await;
    assert_eq!(becomes(&shop, &null, "unknown").await["resolved"], Value::Null);
}

async fn a_hook_that_was_asked_when_the_server_died_is_asked_again(on: On) {
    let hook = Hook::start().await;
    let mut shop = Workshop::open_with(on, "", &hook.config()).await;
    let servers = shop.servers.len();
    let held = unknown(&shop, "yes-later").await;
    hook.is_asked("yes-later", 1).await;
    shop.servers.drain(..).for_each(Server::kill);
    shop.set_clock_ahead(Duration::from_secs(600));
    shop.servers = (0..servers).map(|_| shop.serve(&[])).collect();
    becomes(&shop, &held, "sent").await;
    // Killed after the lease's end was recorded, and before the hook was asked.
    shop.servers.clear();
    let mut server = shop.serve(&[("ONCEGATE_TEST_CRASH_AT", "send.tended")]);
    // Long enough for the answer to arrive before the crash.
    let short = with(to("yes"), json!({"leaseSeconds": 5}));
    let id = server.client().post("/api/sends", &short).await.expect(201).text("id");
    assert!(!server.wait(PATIENCE).success(), "it was killed");
    assert!(hook.asked("yes").is_empty());
    shop.servers = (0..servers).map(|_| shop.serve(&[])).collect();
    becomes(&shop, &format!("/api/sends/{id}"), "sent").await;
}

#[tokio::test]
async fn people_list_show_and_settle_at_the_command_line() {
    let home = Home::with_config("[sends]\nlost = \"hold\"\n");
    let server = home.serve();
    let mut client = server.client();
    let mut ids = vec![];
    for recipient in ["ada", "bob", "cleo"] {
        let told = client.post("/api/sends", &to(recipient)).await.expect(201);
        let maybe = json!({"token": told.body["token"], "error": "cut", "reached": "maybe"});
        if recipient != "cleo" {
            client.post(&format!("/api/sends/{}/failed", told.text("id")), &maybe).await.expect(200);
        }
        ids.push(told.text("id"));
    }
    let [ada, bob, cleo] = <[String; 3]>::try_from(ids).expect("three");
    let list = |more: &[&str]| home.run([&["sends", "list", "--json"], more].concat()).expect_code(0).json();
    assert_eq!(list(&[]), client.get("/api/sends").await.expect(200).body);
    assert_eq!(list(&["--state", "sending"])["items"][0]["id"], json!(cleo));
    assert_eq!(list(&["--campaign", "spring", "--limit", "1"])["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(list(&["--campaign", "autumn"])["items"], json!([]));
    assert_eq!(list(&["--workspace", "other"])["items"], json!([]));
    let table = home.run(["sends", "list"]).expect_code(0).stdout;
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[0].contains("ID") && lines[0].contains("RECIPIENT") && lines.len() == 4, "{table}");
    assert!(lines[1].contains(&cleo) && lines[1].contains("sending") && lines[1].contains("cleo"), "{table}");
    let shown = home.run(["sends", "show", &ada, "--json"]).expect_code(0).json();
    assert_eq!(shown, client.get(&format!("/api/sends/{ada}")).await.expect(200).body);
    let people = home.run(["sends", "show", &ada]).expect_code(0).stdout;
    assert!(people.contains("FIELD") && people.contains("unknown") && people.contains("providerKey"), "{people}");

    let resolve = |id: &str, more: &[&str]| home.run([&["sends", "resolve", id], more].concat());
    let ran =
        resolve(&ada, &["--as", "sent", "--esp-message-id", "esp-1", "--note", "it is there", "--json"]).expect_code(0);
    assert_eq!((&ran.json()["state"], &ran.json()["espMessageId"]), (&json!("sent"), &json!("esp-1")));
    assert!(ran.stderr.contains(&ada) && ran.stderr.contains("resolved as sent by"), "{ran:?}");
    assert!(ran.stderr.contains("it is there"), "{ran:?}");
    assert_eq!(client.post("/api/sends", &to("ada")).await.expect(200).body["espMessageId"], "esp-1");
    let ran = resolve(&bob, &["--as", "not_sent"]).expect_code(0);
    assert!(ran.stdout.contains("failed") && ran.stderr.contains("resolved as not_sent"), "{ran:?}");
    assert_eq!(client.post("/api/sends", &to("bob")).await.expect(201).body["attempt"], 2);

    let hint = |verb: &str| format!("oncegate sends {verb}");
    resolve(&ada, &["--as", "sent"]).expect_failure(1, "it is sent", &hint("show"));
    resolve(&cleo, &["--as", "sent"]).expect_failure(1, "it is sending", &hint("show"));
    let nothing = uuid::Uuid::now_v7().to_string();
    for id in [nothing.as_str(), "nothing"] {
        home.run(["sends", "show", id]).expect_failure(3, "no send", &hint("list"));
        resolve(id, &["--as", "sent"]).expect_failure(3, "no send", &hint("list"));
    }
    resolve(&ada, &["--as", "sent", "--workspace", "other"]).expect_failure(3, "no send", &hint("list"));
    for wrong in [&["--as", "done"][..], &["--as", "not_sent", "--esp-message-id", "x"], &[]] {
        assert!(resolve(&cleo, wrong).expect_code(2).stdout.is_empty(), "{wrong:?}");
    }
    for wrong in ["a\u{1b}[2J", &"x".repeat(513)] {
        let ran = resolve(&cleo, &["--as", "sent", "--esp-message-id", wrong]).expect_code(2);
        assert!(ran.stderr.contains("esp-message-id"), "{ran:?}");
    }
    for wrong in [&["--state", "gone"][..], &["--limit", "0"], &["--limit", "501"], &["--cursor", "x"]] {
        assert!(home.run([&["sends", "list"], wrong].concat()).expect_code(2).stdout.is_empty(), "{wrong:?}");
    }
}
