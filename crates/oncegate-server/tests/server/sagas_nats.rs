//! A real NATS with JetStream: events from a stream, commands to a stream, a server that is killed and started again.

use std::time::Duration;

#[cfg(feature = "crash-points")]
use async_nats::jetstream;
use async_nats::jetstream::Context;
use serde_json::{Value, json};

#[cfg(feature = "crash-points")]
use crate::support::PATIENCE;
use crate::support::{Home, Nats, SEARCH_IMPORT, Server, eventually};

fn home(nats: &Nats) -> Home {
    Home::with_config(&format!(
        r#"
[sagas]
files = [{SEARCH_IMPORT:?}]
[nats]
url = {:?}
[[nats.consume]]
stream = "EVENTS"
[actions]
lease = "2s"
[actions.type.StartParsingReferenceFile]
handler = "nats"
subject = "commands.parse"
max_attempts = 50
timeout = "2s"
"#,
        nats.url()
    ))
}

fn saved(search: &str) -> Value {
    let data =
        json!({ "searchId": search, "projectId": "p", "searchName": "n", "referenceFiles": [format!("{search} a")] });
    json!({ "type": "SearchUploadSaved", "id": format!("saved {search}"), "data": data })
}

async fn publish(context: &Context, body: &[u8]) {
    let published = context.publish("events.search", body.to_vec().into()).await.expect("it runs");
    published.await.expect("the stream has it");
}

async fn becomes(server: &Server, search: &str, state: &str) -> Value {
    eventually(&format!("{search} is {state}"), || async {
        let reply = server.client().get(&format!("/api/sagas/search-import/{search}")).await;
        (reply.body["state"] == state).then_some(reply.body)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs NATS: run make test"]
async fn the_credentials_of_the_url_are_sent_and_not_shown() {
    let servers: [(&str, &[&str]); 2] =
        [("geheim@", &["--auth", "geheim"]), ("ann:ge%3Aheim@", &["--user", "ann", "--pass", "ge:heim"])];
    for (credentials, arguments) in servers {
        let nats = Nats::start_with(credentials, arguments).await;
        nats.make_stream("EVENTS", "events.>").await;
        let home = home(&nats);
        let server = home.serve();
        publish(&nats.context().await, saved("s").to_string().as_bytes()).await;
        becomes(&server, "s", "Parsing").await;
        let shown = home.run(["config", "show"]).expect_code(0).stdout;
        assert!(shown.contains("nats://") && !shown.contains("heim"), "{shown}");
        let (_, logged) = server.stop();
        assert!(!logged.contains("heim"), "{logged}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs NATS: run make test"]
async fn events_are_consumed_and_commands_published_also_after_a_restart() {
    let mut nats = Nats::start().await;
    nats.make_stream("EVENTS", "events.>").await;
    let home = home(&nats);
    let server = home.serve();
    let context = nats.context().await;
    // Sent twice: the second event is a duplicate. An invalid event is kept.
    for body in [saved("s").to_string(), saved("s").to_string(), "not JSON".into()] {
        publish(&context, body.as_bytes()).await;
    }
    let search = becomes(&server, "s", "Parsing").await;
    let letters = eventually("what is no event is a dead letter", || async {
        let page = server.client().get("/api/sagas/dead-letters").await.expect(200).body;
        page["items"].as_array().filter(|items| !items.is_empty()).cloned()
    })
    .await;
    assert_eq!(letters[0]["raw"], "not JSON");
    // No stream takes its command yet: the command is retried until one does.
    let waiting = eventually("a try has failed", || async {
        let page = server.client().get("/api/actions?status=failed").await.expect(200).body;
        page["items"].as_array().and_then(|items| items.first().cloned())
    })
    .await;
    assert_eq!(waiting["error"], "no stream takes \"commands.parse\"");
    nats.make_stream("COMMANDS", "commands.>").await;
    // A NATS server that is killed and started again loses nothing, and neither does Oncegate.
    nats.kill();
    nats.run().await;
    let context = nats.context().await;
    for number in 0..20 {
        publish(&context, saved(&format!("r{number}")).to_string().as_bytes()).await;
    }
    for number in 0..20 {
        becomes(&server, &format!("r{number}"), "Parsing").await;
    }
    eventually("all commands are published", || async {
        let page = server.client().get("/api/actions?status=completed&limit=500").await.expect(200).body;
        (page["items"].as_array().map(Vec::len) == Some(21)).then_some(())
    })
    .await;
    let mut taken = vec![];
    for message in nats.messages("COMMANDS").await {
        let id = message.headers.as_ref().and_then(|headers| headers.get("Nats-Msg-Id")).map(ToString::to_string);
        let body: Value = serde_json::from_slice(&message.payload).expect("JSON");
        let workspace = message.headers.as_ref().and_then(|headers| headers.get("Oncegate-Workspace"));
        assert_eq!(workspace.map(|name| name.as_str()), Some("default"), "each says whose it is");
        taken.push((id.expect("it has one"), body));
    }
    assert_eq!(taken.len(), 21, "each once: the stream knows a key again");
    let of_s: Vec<&str> = taken.iter().filter(|(_, body)| body["searchId"] == "s").map(|(id, _)| id.as_str()).collect();
    assert_eq!(json!(of_s), json!([search["history"][0]["commands"][0]["id"]]));
    let (status, log) = server.stop();
    assert!(status.success() && !log.contains("\"level\":\"error\""), "{log}");
}

#[cfg(feature = "crash-points")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs NATS: run make test"]
async fn a_consumer_that_dies_before_its_acknowledgement_does_nothing_twice() {
    let nats = Nats::start().await;
    nats.make_stream("EVENTS", "events.>").await;
    nats.make_stream("COMMANDS", "commands.>").await;
    // The redelivery comes soon, and not after half a minute.
    let config = jetstream::consumer::pull::Config {
        durable_name: Some("oncegate".into()),
        ack_wait: Duration::from_secs(1),
        ..Default::default()
    };
    nats.context().await.create_consumer_on_stream(config, "EVENTS").await.expect("a consumer");
    let home = home(&nats);
    let mut doomed = home.serve_with(&[("ONCEGATE_TEST_CRASH_AT", "broker.handled")]);
    publish(&nats.context().await, saved("s").to_string().as_bytes()).await;
    assert!(!doomed.wait(PATIENCE).success(), "it died between the commit and the acknowledgement");
    let server = home.serve();
    assert_eq!(server.logged("saga.duplicate", 1).await[0]["state"], "Parsing");
    assert_eq!(becomes(&server, "s", "Parsing").await["history"].as_array().map(Vec::len), Some(1));
}
