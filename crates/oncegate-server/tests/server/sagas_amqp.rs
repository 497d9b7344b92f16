//! A real RabbitMQ: events from a queue, commands to a queue; redelivery, restarts, and a crash of the broker.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lapin::BasicProperties;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::support::broker::{publish, take_all};
use crate::support::{Broker, Home, SEARCH_IMPORT, Server, eventually};

const QUEUE: &str = "search-events";
const COMMANDS: &str = "commands";

fn home(broker: &Broker, more: &str) -> Home {
    home_at(&broker.url(), more)
}

fn home_at(url: &str, more: &str) -> Home {
    Home::with_config(&format!(
        r#"
[sagas]
files = [{SEARCH_IMPORT:?}]
[amqp]
url = {:?}
[[amqp.consume]]
queue = {QUEUE:?}
workspace = "default"
[actions]
lease = "2s"
[actions.type.StartParsingReferenceFile]
handler = "amqp"
routing_key = {COMMANDS:?}
max_attempts = 50
timeout = "2s"
{more}
"#,
        url
    ))
}

fn saved(search: &str, files: &[String]) -> Value {
    let data = json!({ "searchId": search, "projectId": "p", "searchName": "n", "referenceFiles": files });
    json!({ "type": "SearchUploadSaved", "id": format!("saved {search}"), "data": data })
}

fn parsed(search: &str, file: &str) -> Value {
    let data = json!({ "searchId": search, "fileId": file });
    json!({ "type": "ReferenceFileParsingCompleted", "id": format!("parsed {file}"), "data": data })
}

async fn becomes(server: &Server, search: &str, state: &str) -> Value {
    eventually(&format!("{search} is {state}"), || async {
        let reply = server.client().get(&format!("/api/sagas/search-import/{search}")).await;
        (reply.body["state"] == state).then_some(reply.body)
    })
    .await
}

async fn dead_letters(server: &Server) -> Vec<Value> {
    let page = server.client().get("/api/sagas/dead-letters").await.expect(200).body;
    page["items"].as_array().expect("a list").clone()
}

/// One test for all cases, because a broker takes seconds to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs RabbitMQ: run make test"]
async fn events_are_consumed_and_commands_published() {
    let mut broker = Broker::start().await;
    let channel = broker.declare(QUEUE).await;
    broker.declare(COMMANDS).await;
    let home = home(&broker, "");
    let server = home.serve();
    let plain = BasicProperties::default;

    // An event, with and without a content type, as a list, as a CloudEvent; a redelivery is a duplicate.
    assert!(publish(&channel, QUEUE, saved("s", &["s a".into(), "s b".into()]).to_string().as_bytes(), plain()).await);
    becomes(&server, "s", "Parsing").await;
    let both = json!([saved("s", &["s a".into()]), parsed("s", "s a")]).to_string();
    publish(&channel, QUEUE, both.as_bytes(), plain().with_content_type("application/json".into())).await;
    let cloud = json!({ "specversion": "1.0", "type": "ReferenceFileParsingCompleted", "source": "/x", "id": "1",
                        "data": { "searchId": "s", "fileId": "s b" } });
    publish(
        &channel,
        QUEUE,
        cloud.to_string().as_bytes(),
        plain().with_content_type("application/cloudevents+json".into()),
    )
    .await;
    let done = becomes(&server, "s", "Completed").await;
    assert_eq!(done["history"].as_array().map(Vec::len), Some(3));
    // A message whose event has no id uses the message's own id.
    let mut unnamed = saved("u", &["u a".into()]);
    unnamed.as_object_mut().expect("a map").remove("id");
    publish(&channel, QUEUE, unnamed.to_string().as_bytes(), plain().with_message_id("message 7".into())).await;
    assert_eq!(becomes(&server, "u", "Parsing").await["history"][0]["eventId"], "message 7");
    // An empty id counts as none; events of a list get different ids.
    let nameless = |search: &str| {
        let mut event = saved(search, &[]);
        event.as_object_mut().expect("a map").remove("id");
        event["type"] = json!("SearchUploadStarted");
        event
    };
    for search in ["n1", "n2"] {
        publish(&channel, QUEUE, nameless(search).to_string().as_bytes(), plain().with_message_id("".into())).await;
        becomes(&server, search, "Uploading").await;
    }
    let list = json!([nameless("l1"), nameless("l2")]).to_string();
    publish(&channel, QUEUE, list.as_bytes(), plain().with_message_id("list".into())).await;
    for (search, id) in [("l1", "list#0"), ("l2", "list#1")] {
        assert_eq!(becomes(&server, search, "Uploading").await["history"][0]["eventId"], id);
    }

    // An invalid event is kept unchanged, and blocks nothing.
    let deep = format!(r#"{{"type":"A","data":{}{}}}"#, "[".repeat(100), "]".repeat(100));
    let xml = plain().with_content_type("text/xml".into());
    publish(&channel, QUEUE, b"not JSON", plain()).await;
    publish(&channel, QUEUE, &[0xff, 0xfe], plain()).await;
    publish(&channel, QUEUE, deep.as_bytes(), plain()).await;
    publish(&channel, QUEUE, b"<event/>", xml).await;
    let letters = eventually("all four are dead letters", || async {
        let letters = dead_letters(&server).await;
        (letters.len() == 4).then_some(letters)
    })
    .await;
    let raw: BTreeSet<&str> = letters.iter().filter_map(|letter| letter["raw"].as_str()).collect();
    assert_eq!(raw, BTreeSet::from(["not JSON", "base64://4=", deep.as_str(), "<event/>"]));
    assert!(
        letters
            .iter()
            .any(|letter| letter["reason"].as_str().is_some_and(|reason| reason.contains("nested over 64 deep")))
    );
    let id = letters[0]["id"].as_str().expect("an id");
    server
        .client()
        .post(&format!("/api/sagas/dead-letters/{id}/retry"), &json!({}))
        .await
        .expect_problem(409, "wrong-status");
    eventually("the queue is empty", || async { (broker.waiting(QUEUE).await == 0).then_some(()) }).await;

    // Commands were published, with the action's id as the message's.
    let commands =
        eventually("three commands are published", || async { (broker.waiting(COMMANDS).await == 3).then_some(()) });
    commands.await;
    let taken = take_all(&broker.channel().await, COMMANDS, Duration::from_millis(500)).await;
    let sent: BTreeSet<&str> = done["history"][0]["commands"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|sent| sent["id"].as_str())
        .collect();
    let of_s: BTreeSet<&str> =
        taken.iter().filter(|(_, body)| body["searchId"] == "s").map(|(id, _)| id.as_str()).collect();
    assert_eq!(of_s, sent);

    mid_load(&mut broker, server).await;
}

/// The broker is killed and started again while events come in and commands go out: nothing is lost, and nothing happens twice in a saga.
async fn mid_load(broker: &mut Broker, server: Server) {
    const SEARCHES: usize = 60;
    let files = |number: usize| -> Vec<String> { (0..3).map(|file| format!("load {number}/{file}")).collect() };
    for round in 0..2 {
        let mut channel = broker.channel().await;
        for number in 0..SEARCHES {
            if round == 0 && number == SEARCHES / 2 {
                broker.restart().await;
                channel = broker.channel().await;
            }
            let search = format!("load{number}");
            let events = match round {
                0 => vec![saved(&search, &files(number))],
                _ => files(number).iter().map(|file| parsed(&search, file)).collect(),
            };
            for event in events {
                // Each event twice. The test publishes unconfirmed messages again, as any sender would.
                for _ in 0..2 {
                    while !publish(&channel, QUEUE, event.to_string().as_bytes(), BasicProperties::default()).await {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        channel = broker.channel().await;
                    }
                }
            }
        }
        // Files are parsed after all are saved: in any other order the events would be dead letters.
        let state = if round == 0 { "Parsing" } else { "Completed" };
        for number in 0..SEARCHES {
            let search = becomes(&server, &format!("load{number}"), state).await;
            let lines = search["history"].as_array().expect("a list").len();
            assert_eq!(lines, if round == 0 { 1 } else { 4 }, "{search}");
        }
    }
    assert_eq!(dead_letters(&server).await.len(), 4, "those of before");
    let reached = eventually("every command is published", || async {
        let actions =
            server.client().get("/api/actions?type=StartParsingReferenceFile&status=completed&limit=500").await;
        let count = actions.expect(200).body["items"].as_array().map_or(0, Vec::len);
        (count == 3 * SEARCHES + 3).then_some(())
    });
    reached.await;
    let taken = take_all(&broker.channel().await, COMMANDS, Duration::from_secs(1)).await;
    let mut keys: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (id, body) in taken {
        keys.entry(body["fileId"].as_str().expect("a file").to_owned()).or_default().insert(id);
    }
    assert_eq!(keys.len(), 3 * SEARCHES, "every command has arrived");
    assert!(keys.values().all(|ids| ids.len() == 1), "each under one key");
    let (status, log) = server.stop();
    assert!(status.success());
    assert!(log.contains("broker.disconnected"), "it has noticed");
    assert!(!log.contains("\"level\":\"error\""), "{log}");
}

#[cfg(feature = "crash-points")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs RabbitMQ: run make test"]
async fn a_consumer_that_dies_before_its_acknowledgement_does_nothing_twice() {
    let broker = Broker::start().await;
    let channel = broker.declare(QUEUE).await;
    broker.declare(COMMANDS).await;
    let home = home(&broker, "");
    let mut doomed = home.serve_with(&[("ONCEGATE_TEST_CRASH_AT", "broker.handled")]);
    assert!(
        publish(&channel, QUEUE, saved("s", &["s a".into()]).to_string().as_bytes(), BasicProperties::default()).await
    );
    assert!(!doomed.wait(crate::support::PATIENCE).success(), "it died between the commit and the acknowledgement");
    eventually("the message is back", || async { (broker.waiting(QUEUE).await == 1).then_some(()) }).await;
    let server = home.serve();
    let redelivered = server.logged("saga.duplicate", 1).await;
    assert_eq!(redelivered[0]["state"], "Parsing");
    assert_eq!(becomes(&server, "s", "Parsing").await["history"].as_array().map(Vec::len), Some(1));
    eventually("the queue is empty", || async { (broker.waiting(QUEUE).await == 0).then_some(()) }).await;
    let commands = take_all(&broker.channel().await, COMMANDS, Duration::from_secs(2)).await;
    assert_eq!(commands.iter().map(|(id, _)| id).collect::<BTreeSet<_>>().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs RabbitMQ: run make test"]
async fn a_command_that_no_queue_takes_is_tried_again_until_one_does() {
    let broker = Broker::start().await;
    broker.declare(QUEUE).await;
    let home = home(
        &broker,
        "[actions.type.lost]\nhandler = \"amqp\"\nexchange = \"nowhere\"\nmax_attempts = 1\n[actions.type.astray]\nhandler = \"amqp\"\nmax_attempts = 1\n",
    );
    let server = home.serve();
    server.client().post("/api/events", &saved("s", &["s a".into()])).await.expect(200);
    let waiting = eventually("a try has failed", || async {
        let page =
            server.client().get("/api/actions?type=StartParsingReferenceFile&status=failed").await.expect(200).body;
        page["items"].as_array().and_then(|items| items.first().cloned())
    })
    .await;
    let error = waiting["error"].as_str().expect("an error");
    assert!(error.starts_with("no queue takes \"commands\" from exchange \"\": NO_ROUTE"), "{error}");
    assert_eq!(waiting["tries"][0]["reached"], "no");
    broker.declare(COMMANDS).await;
    eventually("it is published", || async { (broker.waiting(COMMANDS).await == 1).then_some(()) }).await;
    // A missing exchange closes the channel, and nothing has happened.
    let id = server
        .client()
        .post("/api/actions", &json!({ "actionType": "lost", "payload": {} }))
        .await
        .expect(201)
        .text("id");
    eventually("it has ended", || async {
        let action = server.client().get(&format!("/api/actions/{id}")).await.expect(200).body;
        (action["status"] == "dead").then_some(())
    })
    .await;
    server.client().post("/api/events", &saved("t", &["t a".into()])).await.expect(200);
    eventually("the next is published", || async { (broker.waiting(COMMANDS).await == 2).then_some(()) }).await;
    // Many concurrent messages, of which every third cannot be routed: each returned message belongs to its own command.
    for number in 0..90 {
        let action_type = if number % 3 == 0 { "astray" } else { "StartParsingReferenceFile" };
        let body = json!({ "actionType": action_type, "payload": { "number": number } });
        server.client().post("/api/actions", &body).await.expect(201);
    }
    for (action_type, status, count) in [("astray", "dead", 30), ("StartParsingReferenceFile", "completed", 62)] {
        eventually(&format!("{count} of {action_type} are {status}"), || async {
            let path = format!("/api/actions?type={action_type}&status={status}&limit=500");
            let page = server.client().get(&path).await.expect(200).body;
            (page["items"].as_array().map(Vec::len) == Some(count)).then_some(())
        })
        .await;
    }
    assert_eq!(broker.waiting(COMMANDS).await, 62);
}

/// Decrypts what comes in, and passes it on to the broker. Returns the port, and the certificate that a client has to trust.
async fn encrypted(broker: &Broker) -> (u16, String) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).expect("a key");
    let key = PrivateKeyDer::from_pem_slice(signing_key.serialize_pem().as_bytes()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = versions.expect("versions").with_no_client_auth().with_single_cert(vec![cert.der().clone()], key);
    let acceptor = TlsAcceptor::from(Arc::new(config.expect("they belong together")));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let (port, broker) = (listener.local_addr().expect("it listens").port(), broker.address());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("it listens");
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut client) = acceptor.accept(stream).await else { return };
                let mut broker = TcpStream::connect(broker).await.expect("the broker runs");
                let _ = copy_bidirectional(&mut client, &mut broker).await;
            });
        }
    });
    (port, cert.pem())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs RabbitMQ: run make test"]
async fn an_encrypted_broker_is_used_if_its_certificate_is_trusted() {
    let broker = Broker::start().await;
    let channel = broker.declare(QUEUE).await;
    broker.declare(COMMANDS).await;
    let (port, certificate) = encrypted(&broker).await;
    let home = home_at(&format!("amqps://localhost:{port}/%2f"), "");
    std::fs::write(home.path().join("trusted.pem"), certificate).expect("the folder is ours");
    let trusted = home.path().join("trusted.pem").display().to_string();
    let stranger = home.serve();
    let event = saved("s", &["s a".into()]).to_string();
    assert!(publish(&channel, QUEUE, event.as_bytes(), BasicProperties::default()).await);
    eventually("the certificate is refused", || async {
        stranger.log().iter().any(|line| line["event"] == "broker.disconnected").then_some(())
    })
    .await;
    assert_eq!(broker.waiting(QUEUE).await, 1);
    drop(stranger);
    let server = home.serve_with(&[("SSL_CERT_FILE", trusted.as_str())]);
    becomes(&server, "s", "Parsing").await;
    eventually("the command is published", || async { (broker.waiting(COMMANDS).await == 1).then_some(()) }).await;
}
