//! Keys over HTTP, on the dashboard and on the command line: admin keys create, list, expire and revoke keys, only in their own workspace.

use serde_json::{Value, json};

use crate::support::{Database, Home, On, Server, Workshop, eventually, on_both};

on_both! {
    an_admin_key_makes_lists_and_revokes_the_keys_of_its_workspace,
    the_last_use_of_a_key_is_noted,
}

fn ids(keys: &Value) -> Vec<&str> {
    keys["items"].as_array().expect("a list").iter().map(|key| key["id"].as_str().expect("an id")).collect()
}

async fn an_admin_key_makes_lists_and_revokes_the_keys_of_its_workspace(on: On) {
    let shop = Workshop::open(on).await;
    let (own, admin) = shop.known_key_of("acme", "admin").await;
    let (others, theirs) = shop.known_key_of("other", "admin").await;
    let mut client = shop.servers[0].client_with(&admin);
    let body = json!({"name": "the till", "role": "operate", "expiresAt": "90d"});
    let made = client.post("/api/keys", &body).await.expect(201);
    let (id, secret) = (made.text("id"), made.text("key"));
    assert!(secret.starts_with("og_") && made.text("workspace") == "acme" && made.text("name") == "the till");
    // The server that made the key accepts it at once.
    shop.servers[0].client_with(&secret).get("/api/claims").await.expect(200);
    for server in &shop.servers {
        eventually("every server knows it", || async {
            (server.client_with(&secret).get("/api/claims").await.status == 200).then_some(())
        })
        .await;
    }
    let listed = client.get("/api/keys").await.expect(200);
    assert_eq!(ids(&listed.body), [id.as_str(), own.as_str()], "newest first, and of this workspace alone");
    let key = &listed.body["items"][0];
    assert!(key["createdBy"] == own.as_str() && key["role"] == "operate" && key["state"] == "live", "{key}");
    assert!(
        key["expiresAt"].is_string() && !listed.text.contains(secret.rsplit('_').next().expect("a last part")),
        "{listed:?}"
    );

    let first = client.get("/api/keys?limit=1").await.expect(200);
    assert_eq!(ids(&first.body), [id.as_str()]);
    let next = client.get(&format!("/api/keys?cursor={}", first.text("nextCursor"))).await.expect(200);
    assert!(ids(&next.body) == [own.as_str()] && next.body.get("nextCursor").is_none(), "{next:?}");
    client.get("/api/keys?limit=0").await.expect_invalid("limit");
    client.get(&format!("/api/keys?cursor={others}")).await.expect_invalid("cursor");

    // No other role, and no other workspace.
    for method in ["GET", "POST"] {
        let mut operator = shop.servers[0].client_with(&secret);
        let refused = match method {
            "GET" => operator.get("/api/keys").await,
            _ => operator.post("/api/keys", &json!({"name": "n", "role": "admin"})).await,
        };
        assert!(refused.expect_problem(403, "forbidden").text("detail").contains("admin"));
    }
    let mut stranger = shop.servers[0].client_with(&theirs);
    assert_eq!(ids(&stranger.get("/api/keys").await.expect(200).body), [others.as_str()]);
    stranger.delete(&format!("/api/keys/{id}")).await.expect_problem(404, "not-found");

    let gone = client.delete(&format!("/api/keys/{id}?note=lost")).await.expect(200);
    assert_eq!(gone.text("state"), "revoked");
    shop.servers[0].client_with(&secret).get("/api/claims").await.expect(401);
    client.delete(&format!("/api/keys/{id}")).await.expect_problem(404, "not-found");
    for (wrong, named) in [
        (json!({"role": "send"}), "name"),
        (json!({"name": "", "role": "send"}), "name"),
        (json!({"name": "a", "role": "king"}), "role"),
        (json!({"name": "a", "role": "send", "expiresAt": "yesterday"}), "expiresAt"),
        (json!({"name": "a", "role": "send", "expiresAt": "2020-01-01T00:00:00Z"}), "expiresAt"),
        (json!({"name": "a", "role": "send", "workspace": "other"}), "workspace"),
    ] {
        client.post("/api/keys", &wrong).await.expect_invalid(named);
    }
}

async fn the_last_use_of_a_key_is_noted(on: On) {
    let shop = Workshop::open(on).await;
    let (id, admin) = shop.known_key_of("acme", "admin").await;
    eventually("its use is noted", || async {
        let keys = shop.servers[0].client_with(&admin).get("/api/keys").await.expect(200).body;
        let key = keys["items"].as_array()?.iter().find(|key| key["id"] == id.as_str())?.clone();
        key["lastUsedAt"].is_string().then_some(())
    })
    .await;
}

/// The server's clock decides, without a new reading of the keys. The answer is the same as for a wrong key.
#[tokio::test]
async fn a_key_that_is_over_is_refused_like_a_wrong_one() {
    let home = Home::new();
    home.make_key("acme", "admin");
    let made =
        ["key", "create", "--workspace", "acme", "--role", "operate", "--name", "short", "--expires", "5s", "--json"];
    let made = home.run(made).expect_code(0).json();
    let (secret, ends) = (made["key"].as_str().expect("a key").to_owned(), made["expiresAt"].clone());
    assert!(ends.is_string(), "{made}");
    let server = home.serve();
    let cookie = server.client().submit("/login", &[("key", &secret)]).await;
    let wrong = server.client_with("og_a_b").get("/api/claims").await.expect_problem(401, "unauthorized");
    let over = eventually("the key is over", || async {
        let reply = server.client_with(&secret).get("/api/claims").await;
        (reply.status == 401).then_some(reply)
    })
    .await;
    assert_eq!(over.text("detail"), wrong.text("detail"));
    assert_eq!(over.text("title"), wrong.text("title"));
    if let Some(cookie) = cookie.header("set-cookie") {
        let cookie = cookie.split(';').next().expect("a value");
        server.client().header("cookie", cookie).get("/claims").await.expect(303);
    }
    server.client().submit("/login", &[("key", &secret)]).await.expect_page(401);
    let listed = home.run(["key", "list", "--json"]).expect_code(0).json();
    let short = listed.as_array().expect("a list").iter().find(|key| key["name"] == "short").expect("it is listed");
    assert_eq!(short["state"], "expired");
}

async fn ends_the_open_mode(home: &Home, server: &Server) {
    let mut local = server.client();
    local.post("/api/keys", &json!({"name": "first", "role": "send"})).await.expect_invalid("the first key");
    let made = local.post("/api/keys", &json!({"name": "first", "role": "admin"})).await.expect(201);
    let secret = made.text("key");
    // At once, and not a moment later.
    local.get("/api/claims").await.expect_problem(401, "unauthorized");
    local.post("/api/keys", &json!({"name": "second", "role": "admin"})).await.expect_problem(401, "unauthorized");
    server.client_with(&secret).post("/api/keys", &json!({"name": "second", "role": "send"})).await.expect(201);
    let listed = home.run(["key", "list", "--json"]).expect_code(0).json();
    assert_eq!(listed[0]["createdBy"], "local", "{listed}");
}

#[tokio::test]
async fn the_first_key_can_be_made_over_http_and_ends_the_open_mode() {
    let home = Home::new();
    ends_the_open_mode(&home, &home.serve()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn the_first_key_can_be_made_over_http_and_ends_the_open_mode_on_postgres() {
    let database = Database::create().await;
    let home = Home::with_config(&format!("store = {:?}", database.url()));
    ends_the_open_mode(&home, &home.serve()).await;
}

#[tokio::test]
async fn keys_are_made_and_revoked_on_the_dashboard_with_a_reason() {
    let home = Home::new();
    let (_, admin) = home.make_key("acme", "admin");
    let (_, operate) = home.make_key("acme", "operate");
    let server = home.serve();
    let operator = server.client().log_in(&operate).await;
    let page = server.client().header("cookie", &operator).get("/").await.expect_page(200).text;
    assert!(!page.contains("href=\"/keys\"") && page.contains("href=\"/audit\""), "{page}");
    server.client().header("cookie", &operator).get("/keys").await.expect_page(403);
    let cookie = server.client().log_in(&admin).await;
    let mut visitor = server.client().header("cookie", &cookie);
    let made = visitor.submit("/keys", &[("name", "the <till>"), ("role", "send"), ("expires", "30d")]).await;
    let made = made.expect_page(201).text;
    assert!(made.contains("the &#60;till&#62;") || made.contains("the &lt;till&gt;"), "{made}");
    let secret = made.split("<pre tabindex=\"0\">").nth(1).and_then(|rest| rest.split('<').next()).expect("the key");
    let id = secret.split('_').nth(1).expect("an id").to_owned();
    server.client_with(secret).post("/api/claims/find", &json!({"guard": "g", "key": ["k"]})).await.expect(404);
    let again = visitor.get("/keys").await.expect_page(200).text;
    assert!(again.contains(&id) && !again.contains(secret), "shown once");
    visitor.submit(&format!("/keys/{id}/revoke"), &[]).await.expect_page(400);
    visitor.submit(&format!("/keys/{id}/revoke"), &[("reason", "lost")]).await.expect(303);
    visitor.get(&format!("/keys/{id}?did=revoke")).await.expect_page(200);
    server.client_with(secret).get("/api/claims").await.expect(401);
    let log = visitor.get("/audit").await.expect_page(200).text;
    assert!(log.contains("key revoked") && log.contains("lost"), "{log}");
}
