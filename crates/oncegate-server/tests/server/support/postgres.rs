//! A database for each test, on the server that `ONCEGATE_TEST_POSTGRES` names; or a whole private server, which a test
//! may crash.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use oncegate_lab::postgres;
use tempfile::TempDir;
use tokio_postgres::{Client, Config, NoTls};

/// Dropped with the test.
pub struct Database {
    name: String,
}

fn server() -> Config {
    let url = std::env::var("ONCEGATE_TEST_POSTGRES")
        .expect("ONCEGATE_TEST_POSTGRES is not set: these tests need the URL of a PostgreSQL server, as superuser");
    url.parse().expect("a postgres:// URL")
}

async fn connect() -> Client {
    let (client, connection) = server().connect(NoTls).await.expect("the server is there");
    tokio::spawn(connection);
    client
}

impl Database {
    pub async fn create() -> Database {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("oncegate_it_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        connect().await.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("a superuser creates databases");
        Database { name }
    }

    /// The server's URL with this database's name in place of its own.
    pub fn url(&self) -> String {
        let server = std::env::var("ONCEGATE_TEST_POSTGRES").expect("it was there a moment ago");
        let (base, options) = match server.split_once('?') {
            Some((base, options)) => (base, format!("?{options}")),
            None => (server.as_str(), String::new()),
        };
        let host_at = base.find("://").map_or(0, |at| at + 3);
        let host = base[host_at..].find('/').map_or(base, |end| &base[..host_at + end]);
        format!("{host}/{}{options}", self.name)
    }

    /// The test's own connection.
    pub async fn connect(&self) -> Client {
        let (client, connection) = server().dbname(&self.name).connect(NoTls).await.expect("the server is there");
        tokio::spawn(connection);
        client
    }

    /// Ends all connections, and refuses new ones.
    pub async fn go_away(&self) {
        let name = &self.name;
        let server = connect().await;
        server.batch_execute(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false")).await.expect("a superuser may");
        let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'");
        server.batch_execute(&end).await.expect("a superuser may");
    }

    pub async fn come_back(&self) {
        let allow = format!("ALTER DATABASE {} ALLOW_CONNECTIONS true", self.name);
        connect().await.batch_execute(&allow).await.expect("a superuser may");
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let drop_database = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        // On a thread of its own: this one may be inside a runtime, which must not be blocked.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async { connect().await.batch_execute(&drop_database).await })
        });
        let dropped = dropping.join();
        if !std::thread::panicking() {
            dropped.expect("does not panic").expect("the database can be dropped");
        }
    }
}

/// A private server. It is stopped with the test.
pub struct Cluster {
    folder: TempDir,
    port: u16,
}

impl Cluster {
    pub fn start() -> Cluster {
        // Bound and released, to find a free port.
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr()).expect("a free port");
        let cluster = Cluster { folder: TempDir::new().expect("a temporary folder"), port: port.port() };
        postgres::hand_over(cluster.folder.path()).expect("the folder is ours");
        run(cluster.program("initdb").args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale"]));
        cluster.start_again();
        cluster
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Ends all processes at once, as a crash does: nothing is finished and nothing is flushed.
    pub fn crash(&self) {
        run(self.program("pg_ctl").args(["-m", "immediate", "-w", "stop"]));
    }

    /// Returns when the server has recovered and accepts connections.
    pub fn start_again(&self) {
        let (port, folder) = (self.port, self.folder.path().display());
        let options = format!("-p {port} -k {folder} -c listen_addresses=127.0.0.1");
        run(self
            .program("pg_ctl")
            .args(["-w", "-l"])
            .arg(self.folder.path().join("log"))
            .args(["-o", &options, "start"]));
    }

    fn program(&self, name: &str) -> Command {
        let mut command = postgres::program(name).expect("PostgreSQL is installed");
        command.current_dir(self.folder.path()).arg("-D").arg(self.folder.path().join("data"));
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The server may be down already.
        let _ = self.program("pg_ctl").args(["-m", "immediate", "-w", "stop"]).output();
    }
}

/// Runs a command to its end. Its output goes into a file, because a server that it starts would keep a pipe open.
fn run(command: &mut Command) {
    let mut said = tempfile::tempfile().expect("a temporary file");
    let into = || said.try_clone().expect("a file can be shared");
    let status = command.stdout(into()).stderr(into()).status().expect("the program is there");
    if !status.success() {
        let mut text = String::new();
        std::io::Seek::rewind(&mut said)
            .and_then(|()| std::io::Read::read_to_string(&mut said, &mut text))
            .expect("text");
        panic!("{command:?}: {status}: {text}");
    }
}
