//! The audit log: each act, its person and its reason are stored before the act, and a removed or changed line is reported.

use serde_json::{Value, json};

use crate::support::{Database, Home, On, Workshop, claim_of, eventually, on_both};

on_both! {
    what_people_do_is_in_the_log_with_who_and_why_and_the_chain_is_whole,
    what_send_keys_see_names_nobody,
}

fn lines(page: &Value) -> Vec<Value> {
    page["items"].as_array().expect("a list").clone()
}

fn events(page: &Value) -> Vec<String> {
    lines(page).iter().map(|line| line["event"].as_str().expect("an event").to_owned()).collect()
}

async fn what_people_do_is_in_the_log_with_who_and_why_and_the_chain_is_whole(on: On) {
    let shop = Workshop::open(on).await;
    let (key, operate) = shop.known_key("acme").await;
    let mut client = shop.servers[0].client_with(&operate);
    let (id, _) = client.win(&claim_of("g", "k")).await;
    client.delete(&format!("/api/claims/{id}?guard=g&note=it%20never%20came")).await.expect(200);
    let later = json!({"actionType": "note", "payload": {"entityId": "e"}, "windowSeconds": 3600});
    let action = client.post("/api/actions", &later).await.expect(201).text("id");
    let mut other = shop.servers[shop.servers.len() - 1].client_with(&operate);
    other.post(&format!("/api/actions/{action}/cancel"), &json!({})).await.expect(200);
    // A failed act is in the log, too.
    client.delete(&format!("/api/claims/{id}?guard=g")).await.expect_problem(404, "not-found");

    let page = client.get("/api/audit").await.expect(200).body;
    assert_eq!(
        events(&page),
        ["audit.forget", "audit.forget", "audit.action_cancelled", "audit.forget", "audit.key_created"]
    );
    let all = lines(&page);
    let forgotten = &all[3];
    assert!(forgotten["by"] == key.as_str() && forgotten["why"] == "it never came", "{forgotten}");
    assert!(forgotten["subject"] == id.as_str() && forgotten["about"]["guard"] == "g", "{forgotten}");
    assert!(all[0]["result"] == "failed" && all[0]["of"] == all[1]["seq"], "{page}");
    let told = &shop.servers[0].logged("audit.forget", 1).await[0];
    assert!(told["auditSeq"] == forgotten["seq"] && told["auditHash"] == forgotten["hash"], "{told} {forgotten}");
    assert_eq!(told["by"], key.as_str());

    let first = client.get("/api/audit?limit=2").await.expect(200).body;
    let rest =
        client.get(&format!("/api/audit?limit=500&cursor={}", first["nextCursor"].as_str().expect("a cursor"))).await;
    assert_eq!([lines(&first), lines(&rest.expect(200).body)].concat(), all);
    client.get("/api/audit?limit=0").await.expect_invalid("limit");
    client.get("/api/audit?cursor=x").await.expect_invalid("cursor");

    // The command line writes to the same chain.
    let (second, _) = client.win(&claim_of("g", "k")).await;
    let forget = ["claims", "forget", &second, "--workspace", "acme", "--guard", "g", "--note", "by hand"];
    shop.home.run(forget).expect_code(0);
    let list = ["audit", "list", "--workspace", "acme", "--json"];
    let listed = shop.home.run(list).expect_code(0).json();
    assert!(listed["items"][0]["why"] == "by hand" && listed["items"][0]["seq"] == 6, "{listed}");
    let whole = shop.home.run(["audit", "verify", "--workspace", "acme", "--json"]).expect_code(0).json();
    assert_eq!(whole[0]["lines"], 6, "{whole}");
    let anchor = format!("{}:{}", told["auditSeq"], told["auditHash"].as_str().expect("a hash"));
    shop.home.run(["audit", "verify", "--workspace", "acme", "--anchor", &anchor]).expect_code(0);
    let strange = format!("2:{}", "0".repeat(64));
    let named = shop.home.run(["audit", "verify", "--workspace", "acme", "--anchor", &strange]);
    assert!(named.expect_failure(1, "removed or changed", "auditHash").stdout.contains("line 2"));

    // Another workspace has a chain of its own.
    let (_, theirs) = shop.known_key("other").await;
    let theirs = shop.servers[0].client_with(&theirs).get("/api/audit").await.expect(200).body;
    assert_eq!(events(&theirs), ["audit.key_created"]);
}

async fn what_send_keys_see_names_nobody(on: On) {
    let shop = Workshop::open(on).await;
    let (key, operate) = shop.known_key("acme").await;
    let (_, send) = shop.home.make_key("acme", "send");
    let server = &shop.servers[0];
    let mut operator = server.client_with(&operate);
    let (id, _) = operator.win(&claim_of("g", "k")).await;
    operator.delete(&format!("/api/claims/{id}?guard=g&note=ann%20asked")).await.expect(200);
    let cookie = eventually("the key is known", || async {
        let answer = server.client().submit("/login", &[("key", &send)]).await;
        answer.header("set-cookie").map(|cookie| cookie.split(';').next().expect("a value").to_owned())
    })
    .await;
    let names = |text: &str| text.contains("ann asked") || text.contains(&key);
    let mut visitor = server.client().header("cookie", &cookie);
    let path = format!("/claims/{id}?guard=g");
    for path in [path.as_str(), "/decisions", "/"] {
        let page = visitor.get(path).await.expect_page(200).text;
        assert!(!names(&page), "{path}: {page}");
    }
    let forgotten = visitor.get(&path).await.expect_page(200).text;
    assert!(forgotten.to_lowercase().contains("forg"), "what happened is told: {forgotten}");
    visitor.get("/audit").await.expect_page(403);
    server.client_with(&send).get("/api/audit").await.expect_problem(403, "forbidden");
    let seen = server.client().header("cookie", &server.client().log_in(&operate).await).get(&path).await;
    assert!(names(&seen.expect_page(200).text), "the role that may do the same sees who did it");
}

#[tokio::test]
async fn failed_logins_are_counted_together_and_name_the_key_that_was_tried() {
    let home = Home::new();
    let (id, key) = home.make_key("acme", "operate");
    let (_, default) = home.make_key("default", "operate");
    let server = home.serve();
    let wrong = format!("og_{id}_{}", "0".repeat(64));
    // The first failure is logged at once, the others are counted.
    for _ in 0..20 {
        server.client_with(&wrong).get("/api/claims").await.expect(401);
        server.client_with("og_nobody_knows").claim(&claim_of("g", "k")).await.expect(401);
    }
    server.client().submit("/login", &[("key", &wrong)]).await.expect_page(401);
    // A request without a key is no failed login.
    server.client().get("/api/claims").await.expect(401);
    let of = async |key: &str| {
        eventually("a failed login is in the log", || async {
            let page = server.client_with(key).get("/api/audit").await.expect(200).body;
            lines(&page).into_iter().find(|line| line["event"] == "audit.login_failed")
        })
        .await
    };
    let line = of(&key).await;
    assert!(line["subject"] == id.as_str() && line["by"] == "127.0.0.1", "{line}");
    let unknown = of(&default).await;
    assert!(unknown["subject"] == "unknown", "a key that does not exist is of no workspace: {unknown}");
    let (_, written) = server.stop();
    assert!(!written.contains(&"0".repeat(64)), "the secret is nowhere");
    // The count is written before the server ends.
    let server = home.serve();
    let page = server.client_with(&key).get("/api/audit").await.expect(200).body;
    let failed: Vec<Value> = lines(&page).into_iter().filter(|line| line["event"] == "audit.login_failed").collect();
    let times = failed.iter().map(|line| line["about"]["times"].as_str().unwrap().parse::<u64>().unwrap());
    assert_eq!(times.sum::<u64>(), 21, "{page}");
    assert!(failed.len() <= 2, "{page}");
}

#[tokio::test]
async fn a_line_that_was_removed_or_changed_is_named_by_the_command_line() {
    let home = Home::new();
    for _ in 0..4 {
        home.make_key("acme", "admin");
    }
    let verify = ["audit", "verify", "--workspace", "acme"];
    home.run(verify).expect_code(0);
    let file = home.store_files().into_iter().find(|file| file.extension().is_some_and(|end| end == "db"));
    let other = rusqlite::Connection::open(file.expect("the store is there")).expect("opens");
    let of_line = "id = (SELECT id FROM record_names WHERE kind = 'audit' AND name = ?1 AND workspace = 'acme')";
    let name = |seq: u64| format!("{seq:020}");
    let change = format!(
        "UPDATE records SET body = CAST(replace(CAST(body AS TEXT), 'admin', 'send') AS BLOB) WHERE kind = 'audit' AND {of_line}"
    );
    assert_eq!(other.execute(&change, [name(2)]).expect("changes"), 1);
    let named = home.run(verify).expect_failure(1, "removed or changed", "auditHash");
    assert!(named.stdout.contains("line 2"), "{named:?}");
    let remove = format!("DELETE FROM records WHERE kind = 'audit' AND {of_line}");
    assert_eq!(other.execute(&remove, [name(1)]).expect("removes"), 1);
    let named = home.run(["audit", "verify", "--json"]);
    assert_eq!(named.code, 1);
    let acme = named.json().as_array().expect("a list").iter().find(|found| found["workspace"] == "acme").cloned();
    assert_eq!(acme.expect("it is checked")["brokenAt"], 1, "{named:?}");
}

/// A key without a line would be a hole in the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn an_act_whose_line_cannot_be_written_is_not_done() {
    let database = Database::create().await;
    let home = Home::with_config(&format!("store = {:?}", database.url()));
    let (_, admin) = home.make_key("acme", "admin");
    let server = home.serve();
    let mut client = server.client_with(&admin);
    let (id, _) = client.win(&claim_of("g", "k")).await;
    let locker = database.connect().await;
    locker
        .batch_execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'full'; END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON oncegate.records FOR EACH ROW WHEN (NEW.kind = 'audit')
             EXECUTE FUNCTION refuse()",
        )
        .await
        .expect("a superuser may");
    let refused = client.delete(&format!("/api/claims/{id}?guard=g")).await;
    assert!(refused.status == 503 || refused.status == 400, "{refused:?}");
    let refused = client.post("/api/keys", &json!({"name": "n", "role": "send"})).await;
    assert!(refused.status == 503 || refused.status == 400, "{refused:?}");
    locker.batch_execute("DROP TRIGGER refuse ON oncegate.records").await.expect("a superuser may");
    client.show("g", &id).await.expect(200);
    let keys = client.get("/api/keys").await.expect(200).body;
    assert_eq!(keys["items"].as_array().map(Vec::len), Some(1), "{keys}");
    assert!(lines(&client.get("/api/audit").await.expect(200).body).len() == 1);
}

#[tokio::test]
async fn what_can_be_done_to_no_action_writes_no_line() {
    let home = Home::new();
    let (_, admin) = home.make_key("default", "admin");
    let (_, send) = home.make_key("default", "send");
    let server = home.serve();
    let (mut client, mut people) = (server.client_with(&send), server.client_with(&admin));
    let nothing = format!("/api/actions/{}/cancel", uuid::Uuid::now_v7());
    client.post(&nothing, &json!({})).await.expect(404);
    let action = json!({"actionType": "note", "payload": {"entityId": "e"}, "windowSeconds": 3600});
    let made = client.post("/api/actions", &action).await.expect(201).text("id");
    let cancel = format!("/api/actions/{made}/cancel");
    client.post(&cancel, &json!({})).await.expect(200);
    for _ in 0..3 {
        client.post(&cancel, &json!({})).await.expect_problem(409, "wrong-status");
    }
    let audited = events(&people.get("/api/audit").await.expect(200).body);
    let of_actions: Vec<_> = audited.iter().filter(|event| event.starts_with("audit.action")).collect();
    assert_eq!(of_actions, ["audit.action_cancelled"], "{audited:?}");
}
