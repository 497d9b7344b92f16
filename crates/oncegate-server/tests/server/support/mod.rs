//! The real binary in a folder of its own, and a small JSON client for it.
//!
//! Every wait has a time-out, and nothing outlives its test: a server is killed, by its own
//! process id, when its handle is dropped.

// Without crash points some of it is unused.
#![cfg_attr(not(feature = "crash-points"), allow(dead_code, unused_imports, unused_macros))]

mod bookings;
pub mod broker;
mod client;
mod follower;
mod home;
mod http;
mod load;
mod nats;
mod nginx;
mod post_office;
mod postgres;
mod provider;
mod raw;
mod server;
mod smtp;
mod workshop;

pub use bookings::{from_now, outcomes, reminder};
pub use broker::Broker;
pub use client::{Client, Reply};
pub use follower::Follower;
pub use home::{Home, Ran, Running};
pub use http::serve_http;
pub use load::{Faults, Ledger, claims_and_settles, verify};
pub use nats::Nats;
pub use nginx::Nginx;
pub use post_office::{On, PostOffice, sms};
pub use postgres::{Cluster, Database};
pub use provider::Provider;
pub use raw::Raw;
pub use server::{Server, collect, wait};
pub use smtp::MailServer;
pub use workshop::{ACME_SECRET, SEARCH_IMPORT, SECRET, Workshop};

use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Longer than any successful step takes, on a busy machine too.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Retries until `look` returns a value; the panic after the time-out names `what`.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Makes a test of each function, on SQLite and on two servers that share PostgreSQL.
macro_rules! on_both {
    ($($test:ident,)*) => {
        mod on_sqlite {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test(crate::support::On::Sqlite).await;
                }
            )*
        }

        mod on_two_servers_and_postgres {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                #[ignore = "needs PostgreSQL: run make test"]
                async fn $test() {
                    super::$test(crate::support::On::Postgres).await;
                }
            )*
        }
    };
}
pub(crate) use on_both;

/// The body of a claim on a key of one part.
pub fn claim_of(guard: &str, part: &str) -> Value {
    json!({"guard": guard, "key": [part]})
}

/// `base` with the fields of `more` laid over it.
pub fn with(mut base: Value, more: Value) -> Value {
    let fields = base.as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    base
}
