//! Servers that run actions and the included saga: one on SQLite, or two on one PostgreSQL, and a receiver of webhooks that counts.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Client, Database, Home, On, Provider, Reply, Server, eventually};

/// The included saga.
pub const SEARCH_IMPORT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sagas/search-import.toml");

/// The secret that webhooks are signed with.
pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The secret of another workspace.
pub const ACME_SECRET: &str = "whsec_bmV4dCBzZWNyZXQgb2YgdGhpcnR5LXR3byBieXRlcyE=";

pub struct Workshop {
    pub servers: Vec<Server>,
    pub provider: Provider,
    pub home: Home,
    // The last field: dropped after the servers are gone.
    database: Option<Database>,
}

impl Workshop {
    /// `actions` is the content of the table of that name, and `types` follows it.
    pub async fn open_with(on: On, actions: &str, types: &str) -> Workshop {
        let provider = Provider::start().await;
        let (database, servers) = match on {
            On::Sqlite => (None, 1),
            On::Postgres => (Some(Database::create().await), 2),
        };
        let store = database.as_ref().map_or(String::new(), |database| format!("store = {:?}\n", database.url()));
        let hook = format!("http://{}/hooks", provider.address);
        let home = Home::with_config(&format!(
            r#"{store}
[outgoing]
allow = ["127.0.0.0/8"]
timeout = "2s"
[limits]
schedule_interval = "10ms"
[actions]
{actions}
[actions.type."note"]
handler = "log"
[actions.type."hook"]
handler = "webhook"
url = {hook:?}
secret_file = "secret"
[actions.type."once"]
handler = "webhook"
url = {hook:?}
delivery = "at_most_once"
[actions.type."StartParsingReferenceFile"]
handler = "webhook"
url = {hook:?}
{types}
[sagas]
files = [{saga:?}]
"#,
            saga = SEARCH_IMPORT
        ));
        home.write_secret("secret", &format!("{SECRET}\n"));
        home.write_secret("acme-secret", ACME_SECRET);
        home.write_secret("acme-token", "Bearer acme");
        let shop = Workshop { servers: vec![], provider, home, database };
        shop.set_clock_ahead(Duration::ZERO);
        let servers = (0..servers).map(|_| shop.serve(&[])).collect();
        Workshop { servers, ..shop }
    }

    pub fn database(&self) -> Option<&Database> {
        self.database.as_ref()
    }

    pub async fn open(on: On) -> Workshop {
        Workshop::open_with(on, "", "").await
    }

    /// Another server, on the same store, receiver and clock.
    pub fn serve(&self, variables: &[(&str, &str)]) -> Server {
        self.home.serve_by_clock(variables)
    }

    /// A client of each server in turn.
    pub fn client(&self, number: usize) -> Client {
        self.servers[number % self.servers.len()].client()
    }

    /// A key that every server accepts.
    pub async fn known_key(&self, workspace: &str) -> (String, String) {
        self.known_key_of(workspace, "operate").await
    }

    /// The same, with a role that may list claims.
    pub async fn known_key_of(&self, workspace: &str, role: &str) -> (String, String) {
        let (id, key) = self.home.make_key(workspace, role);
        for server in &self.servers {
            eventually("the key is known", || async {
                let known = server.client_with(&key).get("/api/claims").await.status;
                let unknown = server.client().get("/api/claims").await.status;
                ((known, unknown) == (200, 401)).then_some(())
            })
            .await;
        }
        (id, key)
    }

    pub async fn schedule(&self, body: &Value) -> Reply {
        self.client(0).post("/api/actions", body).await
    }

    /// Schedules an action of this type, to run at once, without an entity.
    pub async fn now(&self, action_type: &str, payload: Value) -> String {
        self.schedule(&json!({"actionType": action_type, "payload": payload})).await.expect(201).text("id")
    }

    pub async fn show(&self, id: &str) -> Value {
        self.client(0).get(&format!("/api/actions/{id}")).await.expect(200).body
    }

    /// Waits until the action has this status, and returns it.
    pub async fn becomes(&self, id: &str, status: &str) -> Value {
        eventually(&format!("{id} is {status}"), || async {
            let action = self.show(id).await;
            (action["status"] == status).then_some(action)
        })
        .await
    }

    /// The lines that the `log` handler has written.
    pub fn noted(&self) -> Vec<Value> {
        self.home.noted()
    }

    /// Applies an event, or several, on one of the servers.
    pub async fn event(&self, number: usize, event: &Value) -> Value {
        self.client(number).post("/api/events", event).await.expect(200).body
    }

    /// The search's current state.
    pub async fn search(&self, id: &str) -> Value {
        self.client(0).get(&format!("/api/sagas/search-import/{id}")).await.expect(200).body
    }

    /// Sets the stores' clock ahead of the real time.
    pub fn set_clock_ahead(&self, by: Duration) {
        self.home.set_clock_ahead(by);
    }
}
