//! A separate schema or database for each test, on the server that `ONCEGATE_TEST_POSTGRES` names.

pub mod cluster;
pub mod proxy;

use std::future::poll_fn;
use std::process::Command as Process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use oncegate_postgres::{Options, PostgresStore};
use oncegate_store::{Clock, ManualClock};
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, NoTls};

pub fn server_url() -> String {
    std::env::var("ONCEGATE_TEST_POSTGRES")
        .expect("ONCEGATE_TEST_POSTGRES is not set: these tests need the URL of a PostgreSQL server, as superuser")
}

/// A connection for the test itself.
pub async fn connect() -> Client {
    connect_to(&server_url()).await
}

async fn connect_to(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the server is there");
    tokio::spawn(connection);
    client
}

/// For settings of a whole server. The test, the only one of its module, runs itself again on a separate server, and fails if that run
/// fails. On the separate server this returns true.
pub fn is_on_a_server_of_its_own(module: &str) -> bool {
    const OWN_SERVER: &str = "ONCEGATE_TEST_OWN_SERVER";
    if std::env::var_os(OWN_SERVER).is_some() {
        return true;
    }
    let run = Process::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/with-postgres"))
        .arg(std::env::current_exe().expect("is a program"))
        .args(["--ignored", "--nocapture", &format!("{module}::")])
        .env(OWN_SERVER, "yes")
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(said.contains("1 passed; 0 failed"), "{said}{}", String::from_utf8_lossy(&run.stderr));
    false
}

/// A name that no other test uses.
fn fresh_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("test_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Receives the announcements on a channel from now on.
pub async fn listen(channel: &str) -> mpsc::UnboundedReceiver<String> {
    let (client, mut connection) = tokio_postgres::connect(&server_url(), NoTls).await.expect("the server is there");
    let (heard, hearing) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(announced) = message {
                let _ = heard.send(announced.payload().to_owned());
            }
        }
    });
    client.batch_execute(&format!("LISTEN \"{channel}\"")).await.expect("listens");
    // The connection ends with its client.
    std::mem::forget(client);
    hearing
}

/// Dropped with the test.
pub struct Schema {
    pub name: String,
}

impl Schema {
    pub async fn create() -> Schema {
        let name = fresh_name();
        let reset = format!("DROP SCHEMA IF EXISTS {name} CASCADE; CREATE SCHEMA {name}");
        connect().await.batch_execute(&reset).await.expect("a superuser creates schemas");
        Schema { name }
    }

    pub fn options(&self, clock: Option<Arc<ManualClock>>) -> Options {
        let clock = clock.map(|clock| clock as Arc<dyn Clock>);
        Options { clock, schema: Some(self.name.clone()), ..Options::default() }
    }

    pub async fn open(&self, clock: Option<Arc<ManualClock>>) -> PostgresStore {
        PostgresStore::open(&server_url(), self.options(clock)).await.expect("opens")
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        clean_up(vec![format!("DROP SCHEMA IF EXISTS {} CASCADE", self.name)]);
    }
}

/// Removed together with the test, as is a role of the same name without any privilege.
pub struct Database {
    pub name: String,
}

impl Database {
    pub async fn create() -> Database {
        let name = fresh_name();
        let client = connect().await;
        for sql in [format!("CREATE DATABASE {name}"), format!("CREATE ROLE {name}")] {
            client.batch_execute(&sql).await.expect("is a superuser");
        }
        Database { name }
    }

    pub fn url(&self) -> String {
        let server = server_url();
        let (server, _) = server.rsplit_once('/').expect("a URL that names a database");
        format!("{server}/{}", self.name)
    }

    pub async fn connect(&self) -> Client {
        connect_to(&self.url()).await
    }

    pub async fn open(&self, clock: Option<Arc<ManualClock>>) -> PostgresStore {
        let clock = clock.map(|clock| clock as Arc<dyn Clock>);
        PostgresStore::open(&self.url(), Options { clock, ..Options::default() }).await.expect("opens")
    }

    /// All tables and indexes that are not the server's own.
    pub async fn relations(&self) -> Vec<String> {
        let sql = "SELECT nspname || '.' || relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace
                   WHERE nspname NOT IN ('pg_catalog', 'pg_toast', 'information_schema')";
        self.connect().await.query(sql, &[]).await.expect("reads").iter().map(|row| row.get(0)).collect()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let name = &self.name;
        clean_up(vec![format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"), format!("DROP ROLE IF EXISTS {name}")]);
    }
}

fn clean_up(statements: Vec<String>) {
    // On a separate thread, because this thread may be inside a runtime, which must not be blocked.
    let cleaning = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let client = connect().await;
            for sql in statements {
                client.batch_execute(&sql).await?;
            }
            Ok::<(), tokio_postgres::Error>(())
        })
    });
    let cleaned = cleaning.join();
    if !std::thread::panicking() {
        cleaned.expect("does not panic").expect("can be dropped");
    }
}
