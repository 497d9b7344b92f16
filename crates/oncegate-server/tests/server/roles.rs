//! Every route and every form, in every role. The server itself lists its routes: a new route without a line here fails.

use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};

use crate::support::{Client, Home, Reply, Server, claim_of, eventually, from_now, sms};

/// The request of a route: its path with all names filled in, and its body.
struct Sample {
    path: String,
    body: Option<Value>,
    /// A form of the dashboard.
    form: Option<Vec<(&'static str, String)>>,
}

/// Existing objects of one workspace.
struct Things {
    claim: String,
    action: String,
    message: String,
    lead: String,
    thread: String,
    reminder: String,
    send: String,
    key: String,
}

fn tomorrow(booking: &str) -> Value {
    let send_at = from_now(Duration::from_secs(24 * 3600));
    json!({"bookingId": booking, "channel": "sms", "recipientPhone": "+1", "message": "m", "sendAt": send_at})
}

const NONE: &str = "01990000-0000-7000-8000-000000000000";

impl Things {
    /// New objects on each call.
    async fn make(client: &mut Client, number: usize, key: &str) -> Things {
        let (claim, _) = client.win(&claim_of("g", &format!("k{number}"))).await;
        let later = json!({"actionType": "note", "payload": {"entityId": number.to_string()}, "windowSeconds": 3600});
        let action = client.post("/api/actions", &later).await.expect(201).text("id");
        let sent = client.post("/api/messages", &sms(&format!("+1555{number:07}"), "hello")).await.expect(201).body;
        let of = |field: &str| sent["message"][field].as_str().expect("an id").to_owned();
        let send = json!({"campaignId": "c", "recipientId": number.to_string()});
        let send = client.post("/api/sends", &send).await;
        assert!(matches!(send.status, 200 | 201), "{send:?}");
        let reminder = client.post("/api/reminders", &tomorrow(&number.to_string())).await;
        assert!(matches!(reminder.status, 200 | 201), "{reminder:?}");
        Things {
            claim,
            action,
            message: of("_id"),
            lead: of("leadId"),
            thread: of("threadId"),
            reminder: reminder.text("id"),
            send: send.text("id"),
            key: key.to_owned(),
        }
    }

    /// Whether the path contains one of them.
    fn are_in(&self, route: &str) -> bool {
        route.contains("{id}") && !self.path(route).contains(NONE)
    }

    /// A path with its names filled in. A route without an object of ours gets a name that does not exist.
    fn path(&self, route: &str) -> String {
        let id = match route.trim_start_matches("/api").split('/').nth(1) {
            Some("claims") => &self.claim,
            Some("actions") => &self.action,
            Some("messages") => &self.message,
            Some("leads") => &self.lead,
            Some("threads") => &self.thread,
            Some("reminders") => &self.reminder,
            Some("sends") => &self.send,
            Some("keys") => &self.key,
            _ => NONE,
        };
        let path =
            route.replace("{id}", id).replace("{verb}", if route.contains("reminders") { "cancel" } else { "retry" });
        path.replace("{name}", "not-found")
            .replace("{file}", "app.css")
            .replace("{*file}", "start")
            .replace("{saga}", "none")
            .replace("{definition}", "none")
            .replace("{correlation_id}", "none")
    }

    /// The request of each route. None: the route is new, and has no line here.
    fn sample(&self, method: &str, route: &str) -> Option<Sample> {
        let path = self.path(route);
        let plain = |path: String| Some(Sample { path, body: None, form: None });
        let json = |body: Value| Some(Sample { path: path.clone(), body: Some(body), form: None });
        let form = |fields: &[(&'static str, &str)]| {
            let fields = fields.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
            Some(Sample { path: path.clone(), body: None, form: Some(fields) })
        };
        let owner = || json!({"guard": "g", "token": 1});
        let why = [("reason", "r")];
        match (method, route) {
            ("GET", "/api/claims/{id}" | "/claims/{id}") => plain(format!("{path}?guard=g")),
            ("DELETE", "/api/claims/{id}") => plain(format!("{path}?guard=g")),
            ("GET", "/live") => plain("/live?on=decisions".into()),
            ("GET", "/search") => plain("/search?q=x".into()),
            ("GET", _) => plain(path),
            ("DELETE", "/api/keys/{id}" | "/api/reminders/{id}") => plain(path),
            ("POST", "/api/claims") => json(claim_of("g", "another")),
            ("POST", "/api/claims/batch") => json(json!([claim_of("g", "batch")])),
            ("POST", "/api/claims/find") => json(claim_of("g", "k")),
            (
                "POST",
                "/api/claims/{id}/renew"
                | "/api/claims/{id}/settle"
                | "/api/claims/{id}/fail"
                | "/api/claims/{id}/release",
            ) => json(owner()),
            ("POST", "/api/claims/{id}/resolve") => json(json!({"guard": "g", "as": "done"})),
            ("POST", "/api/actions") => json(json!({"actionType": "note", "payload": {}})),
            ("POST", "/api/actions/lease") => json(json!({"types": ["remote"], "max": 1})),
            ("POST", "/api/actions/{id}/complete" | "/api/actions/{id}/renew") => json(json!({"token": 1})),
            ("POST", "/api/actions/{id}/fail") => json(json!({"token": 1, "error": "e", "reached": "no"})),
            ("POST", "/api/actions/{id}/cancel" | "/api/actions/{id}/retry" | "/api/actions/{id}/run-now") => {
                json(json!({}))
            }
            ("POST", "/api/actions/{id}/resolve") => json(json!({"as": "done"})),
            ("POST", "/api/events") => json(json!({"eventType": "E", "correlationId": "c", "data": {}})),
            ("POST", "/api/events/s3") => json(json!({"Records": []})),
            ("POST", "/api/keys") => json(json!({"name": "n", "role": "send"})),
            ("POST", "/api/leads") => json(json!({"phone": "+15550111"})),
            ("POST", "/api/messages") => json(sms("+15550122", "again")),
            ("POST", "/api/messages/{id}/resolve") => json(json!({"as": "sent"})),
            ("POST", "/api/reminders") => {
                json(json!({"bookingId": "c", "channel": "sms", "recipientPhone": "+1", "message": "m",
                "sendAt": from_now(std::time::Duration::from_secs(86_400))}))
            }
            ("PUT", "/api/reminders/{id}") => json(json!({"message": "n"})),
            ("POST", "/api/reminders/{id}/send") => json(json!({})),
            ("POST", "/api/reminders/{id}/resolve") => json(json!({"as": "sent"})),
            ("POST", "/api/sends") => json(json!({"campaignId": "c", "recipientId": "s"})),
            ("POST", "/api/sends/{id}/failed") => json(json!({"token": 1, "error": "e", "reached": "no"})),
            ("POST", "/api/sends/{id}/renew" | "/api/sends/{id}/sent") => json(json!({"token": 1})),
            ("POST", "/api/sends/{id}/resolve") => json(json!({"as": "sent"})),
            ("POST", "/api/sagas/dead-letters/{id}/discard" | "/api/sagas/dead-letters/{id}/retry") => json(json!({})),
            ("POST", "/claims/{id}/forget") => form(&[("guard", "g"), ("reason", "r")]),
            ("POST", "/claims/{id}/resolve") => form(&[("guard", "g"), ("as", "done"), ("reason", "r")]),
            ("POST", "/messages/{id}/resolve" | "/sends/{id}/resolve") => form(&[("as", "sent"), ("reason", "r")]),
            ("POST", "/actions/{id}/{verb}" | "/dead-letters/{id}/{verb}" | "/reminders/{id}/{verb}") => form(&why),
            ("POST", "/keys") => form(&[("name", "n"), ("role", "send")]),
            ("POST", "/keys/{id}/revoke") => form(&why),
            ("POST", "/login" | "/logout" | "/workspace") => form(&[("workspace", "acme")]),
            _ => None,
        }
    }
}

async fn ask(mut client: Client, method: &str, sample: &Sample) -> Reply {
    match (&sample.form, &sample.body) {
        (Some(fields), _) => {
            let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
            client.submit(&sample.path, &fields).await
        }
        (None, body) => {
            let method: Method = method.parse().expect("a method");
            client.send(method, &sample.path, body.as_ref().map(|body| body.to_string().into())).await
        }
    }
}

/// A stream, whose answer lasts as long as its caller listens.
fn is_stream(route: &str) -> bool {
    matches!(route, "/live" | "/api/decisions")
}

async fn status(server: &Server, key: Option<&str>, method: &str, route: &str, sample: &Sample) -> u16 {
    if is_stream(route) {
        let mut raw = crate::support::Raw::connect(server.address).await;
        let key = key.map_or(String::new(), |key| format!("authorization: Bearer {key}\r\n"));
        let request = format!("GET {} HTTP/1.1\r\nhost: {}\r\n{key}\r\n", sample.path, server.address);
        raw.write(request.as_bytes()).await;
        return raw.read_status().await;
    }
    let client = key.map_or_else(|| server.client(), |key| server.client_with(key));
    ask(client, method, sample).await.status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_answers_the_roles_that_it_is_for_and_no_others() {
    const ROLES: [&str; 3] = ["send", "operate", "admin"];
    let home = Home::with_config("[actions.type.\"note\"]\nhandler = \"log\"\n");
    let routes = home.run(["routes"]).expect_code(0).json();
    let routes = routes.as_array().expect("a list");
    assert!(routes.len() > 80, "{}", routes.len());
    let keys = ROLES.map(|role| home.make_key("acme", role).1);
    let (_, others) = home.make_key("umbrella", "admin");
    let (_, maker) = home.make_key("acme", "admin");
    let expiring = ["key", "create", "--workspace", "acme", "--role", "admin", "--expires", "1s", "--json"];
    let expired = home.run(expiring).expect_code(0).json()["key"].as_str().expect("a key").to_owned();
    let server = home.serve();
    eventually("the key is over", || async {
        (server.client_with(&expired).get("/api/keys").await.status == 401).then_some(())
    })
    .await;
    let mut wrong = vec![];
    let mut new = vec![];
    for (number, route) in routes.iter().enumerate() {
        let text = |field: &str| route[field].as_str().unwrap_or_default();
        let (method, path, needs, role) = (text("method"), text("path"), text("needs"), text("role"));
        let victim = server.client_with(&maker).post("/api/keys", &json!({"name": "victim", "role": "send"})).await;
        let victim = victim.expect(201).text("id");
        // Each route has its own objects, so that a route that removes them does not disturb another.
        let things = match needs {
            "nothing" => None,
            _ => Some(Things::make(&mut server.client_with(&maker), number, &victim).await),
        };
        let empty = Things::none(&victim);
        let things = things.as_ref().unwrap_or(&empty);
        let Some(sample) = things.sample(method, path) else {
            new.push(format!("{method} {path}"));
            continue;
        };
        let what = format!("{method} {path}");
        let mut expect = |who: &str, status: u16, fits: bool| {
            if !fits {
                wrong.push(format!("{what} as {who}: {status}"));
            }
        };
        let stranger = |status: u16| match (needs, method) {
            ("nothing", _) => !matches!(status, 403),
            ("session", "GET") => status == 303,
            _ => status == 401,
        };
        // No cookie is needed: a key may do what its session may do.
        for (who, key) in
            [("no key", None), ("a wrong key", Some("og_a_b")), ("an expired key", Some(expired.as_str()))]
        {
            let status = status(&server, key, method, path, &sample).await;
            expect(who, status, stranger(status));
        }
        if needs != "nothing" && path.contains("{id}") && !is_stream(path) && !path.contains("dead-letters") {
            let status = status(&server, Some(&others), method, path, &sample).await;
            expect("another workspace's admin", status, matches!(status, 404));
        }
        let least = ROLES.iter().position(|one| *one == role);
        for (rank, key) in keys.iter().enumerate() {
            let status = status(&server, Some(key), method, path, &sample).await;
            let may = least.is_none_or(|least| rank >= least);
            // The key decides the workspace: no caller can choose another one where keys exist.
            let is_refused = matches!(status, 401 | 403);
            let fits = if path == "/workspace" { status == 403 } else { is_refused != may || needs == "nothing" };
            // An object that the lowest allowed role finds may be gone for the next role.
            let finds = least != Some(rank) || status != 404 || !things.are_in(path);
            expect(ROLES[rank], status, fits && finds && status < 500);
            if needs == "nothing" || is_stream(path) {
                continue;
            }
            // A session has its key's role on the dashboard, and none on the API. Each route has a session of its own: one logs out.
            let cookie = server.client().log_in(key).await;
            let status = ask(server.client().header("cookie", &cookie), method, &sample).await.status;
            let is_refused = matches!(status, 401 | 403);
            let fits = match (needs, path) {
                ("key", _) => status == 401,
                (_, "/workspace") => status == 403,
                _ => is_refused != may,
            };
            expect(&format!("the session of {}", ROLES[rank]), status, fits && status < 500);
        }
    }
    assert!(new.is_empty(), "new routes without a line here: {new:#?}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

impl Things {
    fn none(victim: &str) -> Things {
        let none = || NONE.to_owned();
        Things {
            claim: "0".repeat(64),
            action: none(),
            message: none(),
            lead: none(),
            thread: none(),
            reminder: none(),
            send: none(),
            key: victim.to_owned(),
        }
    }
}

/// Once keys exist, a caller without a key learns nothing of tenants or hosts from the routes that need no key.
#[tokio::test]
async fn without_a_key_the_server_says_that_it_is_ready_and_no_more() {
    let home = Home::with_config("[metrics]\nlisten = \"127.0.0.1:0\"\n");
    let (_, send) = home.make_key("acme", "send");
    let (_, operate) = home.make_key("acme", "operate");
    let server = home.serve();
    server.client_with(&operate).win(&claim_of("a-tenants-guard", "k")).await;
    for key in ["", "og_a_b", &send] {
        let ready = server.client_with(key).get("/readyz").await.expect(200);
        assert_eq!(ready.body, json!({"status": "ready"}));
    }
    assert_eq!(server.client_with(&operate).get("/readyz").await.expect(200).body["store"], "sqlite");
    server.client().get("/metrics").await.expect_problem(401, "unauthorized");
    server.client_with(&send).get("/metrics").await.expect_problem(403, "forbidden");
    let counted = |text: &str| text.contains("a-tenants-guard");
    eventually("the claim is counted", || async {
        counted(&server.client_with(&operate).get("/metrics").await.expect(200).text).then_some(())
    })
    .await;
    // The separate listener needs no key.
    let told = &server.logged("metrics.listening", 1).await[0];
    let address = told["address"].as_str().and_then(|address| address.parse().ok()).expect("an address");
    let mut scraper = Client::new(address);
    assert!(counted(&scraper.get("/metrics").await.expect(200).text));
    scraper.get("/api/claims").await.expect(404);
    scraper.post("/metrics", &json!({})).await.expect(405);
}

#[tokio::test]
async fn no_answer_is_kept_by_a_cache_or_read_as_something_else() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    let answers = [
        client.claim(&claim_of("g", "k")).await.expect(201),
        client.claim(&claim_of("g", "k")).await.expect(409),
        client.claim(&json!({})).await.expect(400),
        client.get("/api/claims").await.expect(200),
        client.get("/api/nothing").await.expect(404),
        client.get("/").await.expect(200),
        client.get("/login").await.expect(303),
        client.get("/readyz").await.expect(200),
        client.get("/metrics").await.expect(200),
    ];
    for answer in answers {
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{answer:?}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{answer:?}");
    }
    let kept = client.get("/assets/app.css").await.expect(200);
    assert!(kept.header("cache-control").is_some_and(|kept| kept.contains("immutable")), "{kept:?}");
}

/// The store's host is in the log, and not in an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_problem_of_the_store_does_not_name_its_host() {
    let database = crate::support::Database::create().await;
    let home = Home::with_config(&format!("store = {:?}", database.url()));
    let (_, send) = home.make_key("default", "send");
    let (_, operate) = home.make_key("default", "operate");
    let server = home.serve();
    let (mut client, mut people) = (server.client_with(&send), server.client_with(&operate));
    client.claim(&claim_of("g", "before")).await.expect(201);
    database.go_away().await;
    let name = database.url().rsplit('/').next().expect("a name").split('?').next().expect("a name").to_owned();
    for answer in
        [server.client().get("/readyz").await, people.get("/api/claims").await, client.claim(&claim_of("g", "k")).await]
    {
        let answer = answer.expect_problem(503, "store-unavailable");
        assert!(!answer.text.contains("127.0.0.1") && !answer.text.contains(&name), "{answer:?}");
    }
    let seen = people.get("/readyz").await.expect_problem(503, "store-unavailable");
    assert!(seen.text.contains(&name), "people on call see why: {seen:?}");
    let told = &server.logged("http.problem", 1).await[0];
    assert!(told["cause"].is_string(), "{told}");
    database.come_back().await;
}
