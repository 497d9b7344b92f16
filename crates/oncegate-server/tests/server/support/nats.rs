//! The test's own NATS server.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use async_nats::ConnectOptions;
use async_nats::jetstream::{self, Context, consumer, stream};
use futures::StreamExt;
use tempfile::TempDir;

use super::PATIENCE;

/// In a temporary folder, on a free port, stopped with the test.
pub struct Nats {
    folder: TempDir,
    port: u16,
    /// The clients' credentials, as in a URL.
    credentials: &'static str,
    arguments: &'static [&'static str],
    server: Option<Child>,
}

impl Nats {
    pub async fn start() -> Nats {
        Nats::start_with("", &[]).await
    }

    pub async fn start_with(credentials: &'static str, arguments: &'static [&'static str]) -> Nats {
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port();
        let folder = TempDir::new().expect("a temporary folder");
        let mut nats = Nats { folder, port, credentials, arguments, server: None };
        nats.run().await;
        nats
    }

    pub async fn run(&mut self) {
        // Debian's path, which is not in every user's `PATH`.
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

    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }

    pub fn url(&self) -> String {
        format!("nats://{}127.0.0.1:{}", self.credentials, self.port)
    }

    /// Connects the test's own client, with the credentials from the server's arguments.
    pub async fn connect(&self) -> Result<async_nats::Client, async_nats::ConnectError> {
        let options = match self.arguments {
            ["--auth", token] => ConnectOptions::with_token((*token).into()),
            ["--user", user, "--pass", password] => {
                ConnectOptions::with_user_and_password((*user).into(), (*password).into())
            }
            _ => ConnectOptions::new(),
        };
        options.connect(format!("nats://127.0.0.1:{}", self.port)).await
    }

    pub async fn context(&self) -> Context {
        jetstream::new(self.connect().await.expect("it runs"))
    }

    pub async fn make_stream(&self, name: &str, subject: &str) {
        let config = stream::Config { name: name.into(), subjects: vec![subject.into()], ..Default::default() };
        self.context().await.create_stream(config).await.expect("a stream");
    }

    /// All messages of a stream.
    pub async fn messages(&self, stream: &str) -> Vec<jetstream::Message> {
        let stream = self.context().await.get_stream(stream).await.expect("it is there");
        let config = consumer::pull::Config { durable_name: Some("test".into()), ..Default::default() };
        let consumer = stream.create_consumer(config).await.expect("a consumer");
        let messages = consumer.fetch().max_messages(100).messages().await.expect("messages");
        messages.filter_map(|message| std::future::ready(message.ok())).collect().await
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
    }
}
