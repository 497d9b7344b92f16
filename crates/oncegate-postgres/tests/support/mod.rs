//! A schema of its own for each test, on the server that `ONCEGATE_TEST_POSTGRES` names.

// Each test file uses a part of this.
#![allow(dead_code)]

pub mod proxy;

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use oncegate_postgres::{Options, PostgresStore};
use oncegate_store::ManualClock;
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, NoTls};

pub fn server_url() -> String {
    std::env::var("ONCEGATE_TEST_POSTGRES")
        .expect("ONCEGATE_TEST_POSTGRES is not set: these tests need the URL of a PostgreSQL server, as superuser")
}

/// A connection of the test's own.
pub async fn connect() -> Client {
    let (client, connection) = tokio_postgres::connect(&server_url(), NoTls).await.expect("the server is there");
    tokio::spawn(connection);
    client
}

/// What is announced on a channel from now on.
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
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let reset = format!("DROP SCHEMA IF EXISTS {name} CASCADE; CREATE SCHEMA {name}");
        connect().await.batch_execute(&reset).await.expect("a superuser creates schemas");
        Schema { name }
    }

    pub fn options(&self, clock: Option<Arc<ManualClock>>) -> Options {
        Options { clock, schema: Some(self.name.clone()), ..Options::default() }
    }

    pub async fn open(&self, clock: Option<Arc<ManualClock>>) -> PostgresStore {
        PostgresStore::open(&server_url(), self.options(clock)).await.expect("opens")
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let drop_schema = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.name);
        // On a thread of its own: this one may be inside a runtime, which must not be blocked on.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async { connect().await.batch_execute(&drop_schema).await })
        });
        let dropped = dropping.join();
        if !std::thread::panicking() {
            dropped.expect("does not panic").expect("the schema can be dropped");
        }
    }
}
