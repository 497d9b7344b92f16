//! A real NATS with JetStream: events from a stream, commands to one, a server that is killed and started again.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use async_nats::ConnectOptions;
use async_nats::jetstream::{self, Context, stream};
use futures::StreamExt;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Home, PATIENCE, SEARCH_IMPORT, Server, eventually};

/// In a temporary folder, on a free port, ended with the test.
struct Nats {
    folder: TempDir,
    port: u16,
    /// What clients have to bring, as in a URL.
    credentials: &'static str,
    arguments: &'static [&'static str],
    server: Option<Child>,
}

impl Nats {
    async fn start() -> Nats {
        Nats::start_with("", &[]).await
    }

    async fn start_with(credentials: &'static str, arguments: &'static [&'static str]) -> Nats {
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port();
        let folder = TempDir::new().expect("a temporary folder");
        let mut nats = Nats { folder, port, credentials, arguments, server: None };
        nats.run().await;
        nats
    }

    async fn run(&mut self) {
        // Where Debian puts it, which is not in everybody's path.
        let debian = "/usr/sbin/nats-server";
        let program = if std::path::Path::new(debian).exists() { debian } else { "nats-server" };
        let mut command = Command::new(program);
        command.args(["-js", "-a", "127.0.0.1", "-p", &self.port.to_string(), "-sd"]).arg(self.folder.path());
        command.args(self.arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.server = Some(command.spawn().expect("there is no NATS: run make test"));
        let deadline = Instant::now() + PATIENCE;
        while self.connect().await.is_err() {
            assert!(Instant::now() < deadline, "NATS did not start");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }

    fn url(&self) -> String {
        format!("nats://{}127.0.0.1:{}", self.credentials, self.port)
    }

    /// The test's own client is told what is in the arguments.
    async fn connect(&self) -> Result<async_nats::Client, async_nats::ConnectError> {
        let options = match self.arguments {
            ["--auth", token] => ConnectOptions::with_token((*token).into()),
            ["--user", user, "--pass", password] => {
                ConnectOptions::with_user_and_password((*user).into(), (*password).into())
            }
            _ => ConnectOptions::new(),
        };
        options.connect(format!("nats://127.0.0.1:{}", self.port)).await
    }

    async fn context(&self) -> Context {
        jetstream::new(self.connect().await.expect("it runs"))
    }

    async fn make_stream(&self, name: &str, subject: &str) {
        let config = stream::Config { name: name.into(), subjects: vec![subject.into()], ..Default::default() };
        self.context().await.create_stream(config).await.expect("a stream");
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
    }
}

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
    // Twice: the second is a duplicate. What is no event is kept.
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
    // No stream takes its command yet: it is tried again until one does.
    let waiting = eventually("a try has failed", || async {
        let page = server.client().get("/api/actions?status=failed").await.expect(200).body;
        page["items"].as_array().and_then(|items| items.first().cloned())
    })
    .await;
    assert_eq!(waiting["error"], "no stream takes \"commands.parse\"");
    nats.make_stream("COMMANDS", "commands.>").await;
    // A server that is killed and started again loses nothing, and neither do we.
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
    let commands = context.get_stream("COMMANDS").await.expect("it is there");
    let consumer = commands
        .create_consumer(jetstream::consumer::pull::Config { durable_name: Some("test".into()), ..Default::default() })
        .await
        .expect("a consumer");
    let mut messages = consumer.fetch().max_messages(100).messages().await.expect("messages");
    let mut taken = vec![];
    while let Some(Ok(message)) = messages.next().await {
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
    // It comes again soon, and not after half a minute.
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
