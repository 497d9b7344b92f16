//! Which callers get an answer: only this machine while no key exists, and from then on only live keys, each in its
//! own workspace and within its role.

use hyper::Method;
use serde_json::json;

use crate::support::{Client, Home, Reply, claim_of, eventually};

#[tokio::test]
async fn without_keys_only_requests_of_this_machine_and_site_are_answered() {
    let home = Home::new();
    let server = home.serve();
    let port = server.address.port();
    let refused = [
        ("host", "evil.example".to_owned()),
        ("host", format!("localhost.evil.example:{port}")),
        ("host", format!("127.0.0.1:{}", port.wrapping_add(1))),
        ("origin", "http://evil.example".into()),
        ("origin", "null".into()),
        ("sec-fetch-site", "cross-site".into()),
        ("sec-fetch-site", "same-site".into()),
    ];
    for (name, value) in refused {
        let mut client = server.client().header(name, &value);
        client.claim(&claim_of("g", "k")).await.expect_problem(403, "forbidden");
        client.get("/api/claims").await.expect_problem(403, "forbidden");
    }
    assert_eq!(server.client().get("/api/claims").await.expect(200).body["items"], json!([]));
    let answered = [
        ("host", format!("localhost:{port}")),
        ("origin", format!("http://{}", server.address)),
        ("sec-fetch-site", "same-origin".into()),
        ("sec-fetch-site", "none".into()),
    ];
    for (name, value) in answered {
        server.client().header(name, &value).get("/api/claims").await.expect(200);
    }
}

/// Callers choose the names of guards, so the names are private to their workspace.
#[tokio::test]
async fn without_keys_other_sites_cannot_read_how_the_server_is_either() {
    let home = Home::new();
    let server = home.serve();
    for path in ["/metrics", "/readyz"] {
        server.client().header("host", "evil.example").get(path).await.expect_problem(403, "forbidden");
        server.client().get(path).await.expect(200);
    }
}

#[tokio::test]
async fn the_server_refuses_to_start_for_other_machines_until_a_key_exists() {
    let home = Home::new();
    let serve = ["serve", "--listen", "0.0.0.0:0"];
    home.run(serve).expect_failure(1, "no API key exists", "oncegate key create --workspace default");
}

#[tokio::test]
async fn no_key_a_wrong_one_and_a_revoked_one_are_refused_alike() {
    let home = Home::new();
    let (live, secret) = home.make_key("acme", "admin");
    let (revoked, dead) = home.make_key("acme", "admin");
    home.run(["key", "revoke", &revoked]).expect_code(0);
    let server = home.serve();
    server.client_with(&secret).get("/api/claims").await.expect(200);
    let (_, another) = secret.rsplit_once('_').unwrap();
    let strangers = [
        format!("Bearer {dead}"),
        format!("Bearer og_{live}_{}", "0".repeat(another.len())),
        format!("Bearer og_{}_{another}", "0".repeat(live.len())),
        format!("Bearer {}", &secret[..secret.len() - 1]),
        format!("Basic {secret}"),
        "Bearer".into(),
        "nonsense".into(),
    ];
    let without = comparable(server.client().claim(&claim_of("g", "k")).await);
    for value in strangers {
        let refused = server.client().header("authorization", &value).claim(&claim_of("g", "k")).await;
        assert_eq!(comparable(refused), without, "{value}");
    }
    // A caller without a key does not learn whether the claim exists.
    server.client().get(&format!("/api/claims/{}?guard=g", "0".repeat(64))).await.expect_problem(401, "unauthorized");
    assert_eq!(server.client_with(&secret).get("/api/claims").await.expect(200).body["items"], json!([]));
}

/// All of a 401 except the id of its request.
fn comparable(reply: Reply) -> (serde_json::Value, Option<String>) {
    let mut reply = reply.expect_problem(401, "unauthorized");
    reply.body.as_object_mut().expect("a problem is an object").remove("requestId");
    (reply.body.clone(), reply.header("www-authenticate").map(str::to_owned))
}

#[tokio::test]
async fn each_role_may_do_what_it_is_for_and_no_more() {
    let home = Home::new();
    let (_, send) = home.make_key("acme", "send");
    let (_, operate) = home.make_key("acme", "operate");
    let server = home.serve();
    let mut sender = server.client_with(&send);
    let (id, token) = sender.win(&claim_of("g", "k")).await;
    sender.owner("renew", "g", &id, token).await.expect(200);
    sender.settle("g", &id, token, &json!(1)).await.expect(200);
    sender.show("g", &id).await.expect(200);
    sender.post("/api/claims/find", &claim_of("g", "k")).await.expect(200);
    let resolve = json!({"guard": "g", "as": "done"});
    let refused = [
        sender.get("/api/claims").await,
        sender.delete(&format!("/api/claims/{id}?guard=g")).await,
        sender.post(&format!("/api/claims/{id}/resolve"), &resolve).await,
    ];
    for refused in refused {
        let refused = refused.expect_problem(403, "forbidden");
        assert!(refused.text("detail").contains("operate"), "{refused:?}");
    }
    let mut operator = server.client_with(&operate);
    operator.get("/api/claims").await.expect(200);
    operator.post(&format!("/api/claims/{id}/resolve"), &resolve).await.expect_problem(409, "not-unknown");
    operator.delete(&format!("/api/claims/{id}?guard=g")).await.expect(200);
}

#[tokio::test]
async fn what_belongs_to_another_workspace_does_not_exist() {
    let home = Home::new();
    let (_, ours) = home.make_key("acme", "admin");
    let (_, theirs) = home.make_key("umbrella", "admin");
    let server = home.serve();
    let (id, token) = server.client_with(&ours).win(&claim_of("g", "k")).await;
    let mut stranger = server.client_with(&theirs);
    let nothing = [
        stranger.show("g", &id).await,
        stranger.delete(&format!("/api/claims/{id}?guard=g")).await,
        stranger.settle("g", &id, token, &json!(1)).await,
        stranger.owner("renew", "g", &id, token).await,
        stranger.owner("release", "g", &id, token).await,
        stranger.post(&format!("/api/claims/{id}/resolve"), &json!({"guard": "g", "as": "done"})).await,
        stranger.post("/api/claims/find", &claim_of("g", "k")).await,
    ];
    for nothing in nothing {
        nothing.expect_problem(404, "not-found");
    }
    assert_eq!(stranger.get("/api/claims").await.expect(200).body["items"], json!([]));
    stranger.win(&claim_of("g", "k")).await;
    let mut named = server.client_with(&ours).header("oncegate-workspace", "umbrella");
    named.claim(&claim_of("g", "other")).await.expect_problem(403, "forbidden");
    let mut own = server.client_with(&ours).header("oncegate-workspace", "acme");
    own.settle("g", &id, token, &json!(1)).await.expect(200);
}

#[tokio::test]
async fn keys_that_are_made_or_revoked_take_effect_on_a_running_server() {
    let home = Home::new();
    let server = home.serve();
    server.client().get("/api/claims").await.expect(200);
    let (id, secret) = home.make_key("acme", "operate");
    let status_becomes = async |client: &mut Client, status: u16| {
        let client = tokio::sync::Mutex::new(client);
        let seen = async || client.lock().await.send(Method::GET, "/api/claims", None).await.status == status;
        eventually(&format!("status {status}"), || async { seen().await.then_some(()) }).await;
    };
    status_becomes(&mut server.client(), 401).await;
    status_becomes(&mut server.client_with(&secret), 200).await;
    home.run(["key", "revoke", &id]).expect_code(0);
    status_becomes(&mut server.client_with(&secret), 401).await;
    // Without a live key the server stays closed, now and after a restart.
    server.client().get("/api/claims").await.expect(401);
    server.stop();
    home.serve().client().get("/api/claims").await.expect(401);
}

/// For example, by a restore of the wrong backup.
#[tokio::test]
async fn an_emptied_table_of_keys_does_not_open_a_running_server() {
    let home = Home::new();
    let (_, secret) = home.make_key("acme", "operate");
    let server = home.serve();
    server.client_with(&secret).get("/api/claims").await.expect(200);
    let file = home.store_files().into_iter().find(|file| file.extension().is_some_and(|end| end == "db"));
    let other = rusqlite::Connection::open(file.expect("the store is there")).expect("opens");
    assert_eq!(other.execute("DELETE FROM api_keys", []).expect("deletes"), 1);
    eventually("the key is gone", || async {
        (server.client_with(&secret).get("/api/claims").await.status == 401).then_some(())
    })
    .await;
    server.client().get("/api/claims").await.expect(401);
    server.client().get("/").await.expect(303);
}

#[tokio::test]
async fn a_key_is_nowhere_in_the_store_or_the_log_but_as_a_hash() {
    let home = Home::new();
    let (id, secret) = home.make_key("acme", "admin");
    let server = home.serve();
    server.client_with(&secret).claim(&claim_of("g", "k")).await.expect(201);
    let hidden = secret.rsplit_once('_').unwrap().1;
    let files = home.store_files();
    assert!(files.iter().any(|file| contains(&std::fs::read(file).unwrap(), &id)), "the search finds what is there");
    for file in files {
        assert!(!contains(&std::fs::read(&file).unwrap(), hidden), "{}", file.display());
    }
    let listed = home.run(["key", "list", "--json"]).expect_code(0);
    assert!(listed.stdout.contains(&id) && !listed.stdout.contains(hidden));
    let (_, written) = server.stop();
    assert!(!written.contains(hidden));
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}
