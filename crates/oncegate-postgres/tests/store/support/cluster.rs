//! A test's own PostgreSQL cluster, which it may crash, restart and promote.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use oncegate_lab::postgres::{hand_over, program};
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

pub struct Cluster {
    folder: TempDir,
    pub port: u16,
}

impl Cluster {
    /// A cluster with these settings in its configuration file.
    pub fn start(settings: &str) -> Cluster {
        let cluster = Cluster::in_a_folder();
        let data = cluster.data();
        let made = cluster.run(
            "initdb",
            &["-D", text(&data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"],
        );
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let settings = format!("listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\n{settings}\n");
        cluster.configure(&settings);
        cluster.up();
        cluster
    }

    /// A standby that follows this cluster under this name.
    pub fn standby(&self, name: &str) -> Cluster {
        let standby = Cluster::in_a_folder();
        let data = standby.data();
        let from = format!("host=127.0.0.1 port={} user=postgres application_name={name}", self.port);
        let copied = standby.run("pg_basebackup", &["-D", text(&data), "-d", &from, "-R", "-c", "fast", "--no-sync"]);
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        standby.up();
        standby
    }

    fn in_a_folder() -> Cluster {
        // Each test program starts counting at a port derived from its process id, below the ports that the system assigns itself.
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let folder = tempfile::tempdir().expect("a folder");
        hand_over(folder.path()).expect("the folder is ours");
        let spread = (std::process::id() % 100) as u16 * 100 + NEXT.fetch_add(1, Ordering::Relaxed) * 7;
        let port = (0..5_000).map(|i| 11_000 + (spread + i) % 9_000).find(|port| is_free(*port));
        Cluster { folder, port: port.expect("a free port") }
    }

    pub fn configure(&self, settings: &str) {
        let path = self.data().join("postgresql.conf");
        let before = fs::read_to_string(&path).expect("reads");
        fs::write(path, format!("{before}\n{settings}\n")).expect("writes");
    }

    pub fn up(&self) {
        let (data, log) = (self.data(), self.folder.path().join("log"));
        let options = format!("-p {}", self.port);
        let args = ["-D", text(&data), "-l", text(&log), "-w", "-t", "30", "-o", &options, "start"];
        let started = self.run("pg_ctl", &args);
        assert!(started.status.success(), "{}", fs::read_to_string(&log).unwrap_or_default());
    }

    /// Simulates a failure of the machine: no checkpoint, and no message to clients. SIGKILL would not even let the postmaster end its
    /// children.
    pub fn crash(&self) {
        self.stop("immediate");
    }

    pub fn restart(&self) {
        self.stop("fast");
        self.up();
    }

    pub fn stop(&self, mode: &str) {
        let stopped = self.run("pg_ctl", &["-D", text(&self.data()), "-m", mode, "-w", "stop"]);
        assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    }

    pub fn reload(&self) {
        assert!(self.run("pg_ctl", &["-D", text(&self.data()), "reload"]).status.success());
    }

    pub fn promote(&self) {
        assert!(self.run("pg_ctl", &["-D", text(&self.data()), "-w", "promote"]).status.success());
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    pub async fn connect(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.url(), NoTls).await.expect("the server is there");
        tokio::spawn(connection);
        client
    }

    /// Waits until a query, run as a superuser, returns true.
    pub async fn wait_until(&self, sql: &str) {
        let client = self.connect().await;
        for _ in 0..1_500 {
            if client.query_one(sql, &[]).await.expect("reads").get::<_, bool>(0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never so: {sql}");
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn run(&self, name: &str, args: &[&str]) -> Output {
        let mut command = program(name).expect("PostgreSQL is installed");
        command.args(args).current_dir(self.folder.path()).output().expect("runs")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.run("pg_ctl", &["-D", text(&self.data()), "-m", "immediate", "stop"]);
    }
}

fn is_free(port: u16) -> bool {
    std::net::TcpListener::bind(("127.0.0.1", port)).is_ok()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}
