//! The dashboard's visitors: logged in with a key, on every replica, and for how long.

use std::time::Duration;

use serde_json::json;

use crate::support::{Database, Follower, Home, On, Reply, Server, Workshop, claim_of, eventually, on_both};

on_both! {
    a_session_stands_on_every_replica_until_it_is_left_or_twelve_hours_are_over,
    a_session_falls_with_its_key_and_sees_its_own_workspace_alone,
}

fn cookie_of(answer: &Reply) -> Vec<&str> {
    answer.header("set-cookie").expect("a cookie").split("; ").collect()
}

/// The session of this cookie, under the id of another key.
fn forged(cookie: &str, other_id: &str) -> String {
    let secret = cookie.rsplit('.').next().expect("there is a last part");
    format!("oncegate_session={other_id}.{secret}")
}

/// A server on this database, the cookie of a session, and the same session forged under the id of another workspace's key.
async fn serve_with_sessions(database: &Database) -> (Home, Server, String, String) {
    let home = Home::with_config(&format!("store = {:?}", database.url()));
    let (_, own) = home.make_key("acme", "send");
    let (other_id, _) = home.make_key("other", "admin");
    let server = home.serve();
    let cookie = server.client().log_in(&own).await;
    let forged = forged(&cookie, &other_id);
    (home, server, cookie, forged)
}

async fn a_session_stands_on_every_replica_until_it_is_left_or_twelve_hours_are_over(on: On) {
    const HOURS: Duration = Duration::from_secs(12 * 3600);
    let shop = Workshop::open(on).await;
    let (id, key) = shop.known_key("acme").await;
    let sent_away = shop.client(0).get("/claims?guard=g").await.expect(303);
    assert_eq!(sent_away.header("location"), Some("/login?to=%2Fclaims%3Fguard%3Dg"));
    shop.client(0).get("/login?to=%2Fclaims").await.expect_page(200);
    shop.client(0).submit("/login", &[("key", "og_wrong")]).await.expect_page(401);
    shop.client(0).submit("/login", &[]).await.expect_page(401);

    let answer = shop.client(0).submit("/login", &[("key", &key), ("to", "/claims?guard=g")]).await.expect(303);
    assert_eq!(answer.header("location"), Some("/claims?guard=g"));
    let cookie = cookie_of(&answer);
    assert_eq!(&cookie[1..], ["Path=/", "HttpOnly", "SameSite=Lax", "Max-Age=43200"]);
    let (name, value) = cookie[0].split_once('=').expect("a cookie has a value");
    assert!(name == "oncegate_session" && !value.contains(&key) && !key.contains(&value[id.len() + 1..]), "{value}");
    let secure = shop.client(0).header("x-forwarded-proto", "https").submit("/login", &[("key", &key)]).await;
    assert_eq!(cookie_of(&secure.expect(303)).last(), Some(&"Secure"));
    let evil = shop.client(0).submit("/login", &[("key", &key), ("to", "//evil.example/")]).await;
    assert_eq!(evil.expect(303).header("location"), Some("/"));

    let visitor = |number: usize, cookie: &str| shop.client(number).header("cookie", &format!("a=b; {cookie}"));
    let cookie = cookie[0].to_owned();
    for number in 0..2 {
        let page = visitor(number, &cookie).get("/claims").await.expect_page(200).text;
        assert!(page.contains("acme"), "{page}");
        visitor(number, &cookie).get("/api/claims").await.expect_problem(401, "unauthorized");
        visitor(number, &cookie).get("/api/decisions").await.expect_problem(401, "unauthorized");
    }
    for forged in [format!("oncegate_session={id}."), format!("oncegate_session={id}.0"), "oncegate_session=x.y".into()]
    {
        visitor(0, &forged).get("/claims").await.expect(303);
    }

    let other = shop.client(0).log_in(&key).await;
    let left = visitor(1, &other).submit("/logout", &[]).await.expect(303);
    assert!(cookie_of(&left).contains(&"Max-Age=0") && left.header("location") == Some("/login"), "{left:?}");
    for number in 0..2 {
        visitor(number, &other).get("/claims").await.expect(303);
    }
    shop.set_clock_ahead(HOURS - Duration::from_secs(60));
    visitor(1, &cookie).get("/claims").await.expect_page(200);
    shop.set_clock_ahead(HOURS + Duration::from_secs(60));
    for number in 0..2 {
        assert!(visitor(number, &cookie).get("/claims").await.expect(303).header("location").is_some());
        visitor(number, &cookie).submit("/claims/x/forget", &[("reason", "r")]).await.expect_page(401);
    }
}

async fn a_session_falls_with_its_key_and_sees_its_own_workspace_alone(on: On) {
    let shop = Workshop::open(on).await;
    let (id, acme) = shop.known_key("acme").await;
    let (other_id, other) = shop.known_key("other").await;
    let (claim, _) = shop.servers[0].client_with(&other).win(&claim_of("charge", "of the other")).await;
    let mut theirs = shop.servers[0].client_with(&other);
    let action = json!({"actionType": "remote", "payload": {"entityId": "theirs"}});
    let action = theirs.post("/api/actions", &action).await.expect(201).text("id");
    let cookie = shop.client(0).log_in(&acme).await;
    let mut visitor = shop.client(1).header("cookie", &cookie);
    for list in ["/claims", "/actions", "/decisions", "/", "/search?q=theirs", "/actions?entityId=theirs"] {
        let page = visitor.get(list).await.expect_page(200).text;
        assert!(!page.contains(&claim) && !page.contains(&action), "{list}: {page}");
    }
    visitor.get(&format!("/claims/{claim}?guard=charge")).await.expect_page(404);
    visitor.get(&format!("/actions/{action}")).await.expect_page(404);
    let why = ("reason", "it is not mine");
    visitor.submit(&format!("/claims/{claim}/forget"), &[("guard", "charge"), why]).await.expect_page(404);
    visitor.submit(&format!("/actions/{action}/cancel"), &[why]).await.expect_page(404);
    // A session with another key's id is invalid: each session is bound to its key.
    let forged = forged(&cookie, &other_id);
    shop.client(0).header("cookie", &forged).get("/claims").await.expect(303);

    let mut live = Follower::open_with(shop.servers[0].address, "/live?on=decisions", &[("cookie", &cookie)]).await;
    shop.home.run(["key", "revoke", &id]).expect_code(0);
    for server in &shop.servers {
        eventually("the session is over", || async {
            (server.client().header("cookie", &cookie).get("/claims").await.status == 303).then_some(())
        })
        .await;
    }
    while live.next().await.is_some() {}
}

/// While the store is away, the server knows a session from its cache: only the one that it has seen, and only for its own key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn while_the_store_is_away_a_session_is_its_own_keys_and_only_reads() {
    let database = Database::create().await;
    let (_home, server, cookie, forged) = serve_with_sessions(&database).await;
    let visitor = |cookie: &str| server.client().header("cookie", cookie);
    assert!(visitor(&cookie).get("/decisions").await.expect_page(200).text.contains("acme"));
    database.go_away().await;
    visitor(&forged).get("/decisions").await.expect_page(503);
    visitor(&forged).submit("/claims/x/forget", &[("guard", "g"), ("reason", "r")]).await.expect_page(503);
    eventually("the server knows that the store is away", || async {
        (visitor(&cookie).get("/decisions").await.status == 200).then_some(())
    })
    .await;
    visitor(&forged).get("/decisions").await.expect_page(503);
    visitor(&cookie).submit("/claims/x/forget", &[("guard", "g"), ("reason", "r")]).await.expect_page(503);
    database.come_back().await;
    eventually("the forged session is known to be none", || async {
        (visitor(&forged).get("/decisions").await.status == 303).then_some(())
    })
    .await;
    visitor(&cookie).get("/decisions").await.expect_page(200);
}

/// Lookups fail while the store itself answers, as under a flood of lookups: then no session is known from the cache.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn while_lookups_fail_no_session_is_answered_from_memory() {
    let database = Database::create().await;
    let (_home, server, cookie, forged) = serve_with_sessions(&database).await;
    let visitor = |cookie: &str| server.client().header("cookie", cookie);
    visitor(&cookie).get("/decisions").await.expect_page(200);
    let mut live = Follower::open_with(server.address, "/live?on=decisions", &[("cookie", &cookie)]).await;
    let locker = database.connect().await;
    locker.batch_execute("BEGIN; LOCK TABLE oncegate.records IN ACCESS EXCLUSIVE MODE").await.expect("a superuser may");
    visitor(&forged).get("/decisions").await.expect_page(503);
    visitor(&cookie).get("/decisions").await.expect_page(503);
    // A stream ends with its session.
    while live.next().await.is_some() {}
    locker.batch_execute("ROLLBACK").await.expect("a superuser may");
    eventually("the session is found again", || async {
        (visitor(&cookie).get("/decisions").await.status == 200).then_some(())
    })
    .await;
    visitor(&forged).get("/decisions").await.expect(303);
}
