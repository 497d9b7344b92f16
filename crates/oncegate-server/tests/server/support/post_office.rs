//! Servers that send messages to a provider that counts: one on SQLite, or two on one PostgreSQL.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Client, Database, Home, Provider, Reply, Server};

pub struct PostOffice {
    pub servers: Vec<Server>,
    pub provider: Provider,
    pub home: Home,
    // The last field: databases are dropped after the servers are gone.
    _databases: Vec<Database>,
}

#[derive(Clone, Copy)]
pub enum On {
    Sqlite,
    /// Two servers that share it.
    Postgres,
}

impl PostOffice {
    pub async fn open(on: On) -> PostOffice {
        PostOffice::open_with(on, "").await
    }

    /// `messages` is the content of the table of that name.
    pub async fn open_with(on: On, messages: &str) -> PostOffice {
        match on {
            On::Sqlite => PostOffice::start("", messages, 1, vec![]).await,
            On::Postgres => {
                let database = Database::create().await;
                PostOffice::start(&format!("store = {:?}\n", database.url()), messages, 2, vec![database]).await
            }
        }
    }

    pub async fn start(top: &str, messages: &str, servers: usize, databases: Vec<Database>) -> PostOffice {
        let provider = Provider::start().await;
        let home = Home::with_config(&config(top, messages, &provider));
        let office = PostOffice { servers: vec![], provider, home, _databases: databases };
        office.set_clock_ahead(Duration::ZERO);
        let servers = (0..servers).map(|_| office.serve(&[])).collect();
        PostOffice { servers, ..office }
    }

    /// Another server, on the same stores, provider and clock.
    pub fn serve(&self, variables: &[(&str, &str)]) -> Server {
        self.home.serve_by_clock(variables)
    }

    /// A client of each server in turn.
    pub fn client(&self, number: usize) -> Client {
        self.servers[number % self.servers.len()].client()
    }

    pub async fn post(&self, body: &Value) -> Reply {
        self.client(0).post("/api/messages", body).await
    }

    pub async fn post_with_key(&self, key: &str, body: &Value) -> Reply {
        self.client(0).header("idempotency-key", key).post("/api/messages", body).await
    }

    /// Sets the stores' clock ahead of the real time.
    pub fn set_clock_ahead(&self, by: Duration) {
        self.home.set_clock_ahead(by);
    }
}

pub fn config(top: &str, messages: &str, provider: &Provider) -> String {
    // A port without a listener: bound and released.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr()).expect("a port");
    let (url, address) = (provider.url(), provider.address);
    // Shorter than the lease, and longer than the provider takes for slow messages, on a busy machine too.
    let timeout = match messages {
        short if short.contains("lease = \"1s\"") => "800ms",
        short if short.contains("lease = ") => "2s",
        _ => "5s",
    };
    format!(
        "{top}
[outgoing]
allow = [\"127.0.0.0/8\"]
timeout = {timeout:?}
[messages]
{messages}
[messages.channel.sms]
kind = \"http\"
url = {url:?}
[messages.channel.keyed]
kind = \"http\"
url = {url:?}
honours_key = true
[messages.channel.tls]
kind = \"http\"
url = \"https://{address}/\"
[messages.channel.closed]
kind = \"http\"
url = \"http://{closed}/\"
"
    )
}

/// A message to a phone.
pub fn sms(phone: &str, text: &str) -> Value {
    json!({"recipientPhone": phone, "message": text})
}
