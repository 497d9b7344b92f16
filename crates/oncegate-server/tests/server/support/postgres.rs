//! A database of its own for each test, on the server that `ONCEGATE_TEST_POSTGRES` names.

use std::sync::atomic::{AtomicU32, Ordering};

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

    /// A connection of the test's own.
    pub async fn connect(&self) -> Client {
        let (client, connection) = server().dbname(&self.name).connect(NoTls).await.expect("the server is there");
        tokio::spawn(connection);
        client
    }

    /// To everybody connected to it, and to everybody who tries.
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
        // On a thread of its own: this one may be inside a runtime, which must not be blocked on.
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
