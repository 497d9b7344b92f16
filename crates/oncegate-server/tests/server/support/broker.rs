//! The test's own RabbitMQ: in a temporary folder, on free ports, stopped with the test.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tempfile::TempDir;

/// How long a broker may take to start, on a busy machine.
const START_MAX: Duration = Duration::from_secs(90);

pub struct Broker {
    folder: TempDir,
    port: u16,
    dist_port: u16,
    names_port: u16,
    /// The registry of Erlang's nodes (`epmd`); a private one, so that none stays behind.
    names: Child,
    server: Option<Child>,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

fn program() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/rabbitmq/lib").expect("there is no RabbitMQ: run make test");
    let found = versions.filter_map(Result::ok).map(|version| version.path().join("sbin/rabbitmq-server"));
    found.filter(|path| path.exists()).max().expect("there is no RabbitMQ: run make test")
}

impl Broker {
    pub async fn start() -> Broker {
        let names_port = free_port();
        let mut names = Command::new("epmd");
        names.args(["-port", &names_port.to_string(), "-address", "127.0.0.1"]).stderr(Stdio::null());
        let mut broker = Broker {
            folder: TempDir::new().expect("a temporary folder"),
            port: free_port(),
            dist_port: free_port(),
            names_port,
            names: names.spawn().expect("RabbitMQ brings Erlang, and that epmd"),
            server: None,
        };
        broker.run().await;
        broker
    }

    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    pub fn url(&self) -> String {
        format!("amqp://{}/%2f", self.address())
    }

    async fn run(&mut self) {
        let folder = self.folder.path();
        let at = |name: &str| folder.join(name);
        let log = std::fs::File::create(at("said")).expect("the folder is ours");
        let mut command = Command::new(program());
        command
            .env("HOME", folder)
            .env("ERL_EPMD_PORT", self.names_port.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODENAME", format!("oncegate{}@localhost", self.port))
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", self.port.to_string())
            .env("RABBITMQ_DIST_PORT", self.dist_port.to_string())
            .env("RABBITMQ_MNESIA_BASE", at("mnesia"))
            .env("RABBITMQ_LOG_BASE", at("log"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", at("plugins"))
            .env("RABBITMQ_CONFIG_FILE", at("none"))
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            // The broker's child processes must end with it.
            .process_group(0);
        self.server = Some(command.spawn().expect("it was found"));
        let deadline = Instant::now() + START_MAX;
        while Connection::connect(&self.url(), ConnectionProperties::default()).await.is_err() {
            let said = || std::fs::read_to_string(at("said")).unwrap_or_default();
            assert!(Instant::now() < deadline, "RabbitMQ did not start: {}", said());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let group = Pid::from_raw(server.id().try_into().expect("a process id")).expect("not zero");
            let _ = kill_process_group(group, Signal::KILL);
            let _ = server.wait();
        }
    }

    /// Kills the broker, and starts it again with its stored data.
    pub async fn restart(&mut self) {
        self.kill();
        self.run().await;
    }

    /// A channel with publisher confirms, on a connection of its own.
    pub async fn channel(&self) -> Channel {
        let connection = Connection::connect(&self.url(), ConnectionProperties::default()).await.expect("it runs");
        let channel = connection.create_channel().await.expect("a channel");
        channel.confirm_select(ConfirmSelectOptions::default()).await.expect("it confirms");
        // The channel keeps the connection alive.
        std::mem::forget(connection);
        channel
    }

    pub async fn declare(&self, queue: &str) -> Channel {
        let channel = self.channel().await;
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        channel.queue_declare(queue.into(), options, FieldTable::default()).await.expect("a queue");
        channel
    }

    /// How many messages wait in a queue.
    pub async fn waiting(&self, queue: &str) -> u32 {
        let options = QueueDeclareOptions { passive: true, ..Default::default() };
        let declared = self.channel().await.queue_declare(queue.into(), options, FieldTable::default()).await;
        declared.expect("it is there").message_count()
    }
}

/// Publishes to a queue, and returns whether the broker has confirmed.
pub async fn publish(channel: &Channel, queue: &str, body: &[u8], properties: BasicProperties) -> bool {
    let properties = properties.with_delivery_mode(2);
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    let published = channel.basic_publish("".into(), queue.into(), options, body, properties).await;
    match published {
        Ok(confirm) => confirm.await.is_ok_and(|confirmed| confirmed.is_ack()),
        Err(_) => false,
    }
}

/// A message, and the workspace that its header names.
pub struct Taken {
    pub workspace: Option<String>,
    pub id: String,
    pub body: Value,
}

/// Takes messages of the default workspace until none arrives for a while; returns their ids and bodies.
pub async fn take_all(channel: &Channel, queue: &str, patience: Duration) -> Vec<(String, Value)> {
    let default = |Taken { workspace, id, body }| {
        assert_eq!(workspace.as_deref(), Some("default"), "each names its workspace");
        (id, body)
    };
    take(channel, queue, patience).await.into_iter().map(default).collect()
}

/// Takes messages from a queue until none arrives for a while.
pub async fn take(channel: &Channel, queue: &str, patience: Duration) -> Vec<Taken> {
    let options = BasicConsumeOptions::default();
    let consumer = channel.basic_consume(queue.into(), "test".into(), options, FieldTable::default()).await;
    let mut consumer = consumer.expect("the queue is there");
    let mut taken = vec![];
    while let Ok(Some(Ok(delivery))) = tokio::time::timeout(patience, consumer.next()).await {
        let id = delivery.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default();
        let headers = delivery.properties.headers().as_ref();
        let workspace = match headers.and_then(|headers| headers.inner().get("oncegate-workspace")) {
            Some(AMQPValue::LongString(workspace)) => Some(workspace.to_string()),
            _ => None,
        };
        let body = serde_json::from_slice(&delivery.data).expect("JSON");
        taken.push(Taken { workspace, id, body });
        delivery.ack(BasicAckOptions::default()).await.expect("the broker is there");
    }
    taken
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
        let _ = self.names.kill();
        let _ = self.names.wait();
    }
}
