//! Actions over HTTP: scheduling, lists, a person's verbs, bad input, the command line.
#![cfg(feature = "crash-points")]

use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};

use crate::support::{On, Workshop, eventually, on_both, with};

on_both![
    duplicates_within_a_window_are_one_action_with_the_newest_payload,
    a_hundred_at_once_from_all_servers_are_one_action,
    what_fails_is_tried_again_then_dead_and_a_person_can_retry_it,
    what_is_dead_or_unknown_is_settled_by_a_person_without_another_try,
    one_of_settling_it_and_trying_it_again_wins,
    an_action_is_cancelled_run_now_and_listed,
    what_is_wrong_is_named_and_nothing_is_scheduled,
    the_log_and_the_counters_tell_the_share_of_duplicates,
];

fn about(id: &str, more: Value) -> Value {
    with(json!({"actionType": "note", "payload": {"entityId": id}}), more)
}

async fn duplicates_within_a_window_are_one_action_with_the_newest_payload(on: On) {
    let shop = Workshop::open(on).await;
    // Ten times as long as on the page, so that the machine's speed does not matter.
    let body = |n: u32| json!({"actionType": "note", "windowSeconds": 50, "payload": {"entityId": "7", "entityType": "lead", "n": n}});
    let first = shop.schedule(&body(0)).await.expect(201);
    assert_eq!((first.text("outcome"), &first.body["revision"]), ("created".into(), &json!(1)));
    let mut last = Value::Null;
    for (n, seconds) in [(2, 20), (4, 40)] {
        shop.set_clock_ahead(Duration::from_secs(seconds));
        // On two servers in turn.
        let again = shop.client(n as usize / 2).post("/api/actions", &body(n)).await.expect(200);
        assert_eq!((again.text("outcome"), again.text("id")), ("updated".into(), first.text("id")));
        assert_eq!(again.text("runAt"), first.text("runAt"));
        last = again.body["revision"].clone();
    }
    assert_eq!(last, 3);
    shop.set_clock_ahead(Duration::from_secs(60));
    let next = shop.schedule(&body(6)).await.expect(201);
    assert_ne!(next.text("id"), first.text("id"));
    let done = shop.becomes(&first.text("id"), "completed").await;
    assert_eq!((done["revision"].clone(), done["payload"]["n"].clone()), (json!(3), json!(4)));
    assert_eq!(done["revisions"].as_array().map(Vec::len), Some(3));
    shop.set_clock_ahead(Duration::from_secs(120));
    shop.becomes(&next.text("id"), "completed").await;
    let noted = shop.noted();
    assert_eq!(noted.iter().map(|line| line["payload"]["n"].clone()).collect::<Vec<_>>(), [4, 6]);
    assert_eq!(noted[0]["effectKey"], first.text("id"));
}

async fn a_hundred_at_once_from_all_servers_are_one_action(on: On) {
    let shop = Workshop::open(on).await;
    let calls = (0..100).map(|n: usize| {
        let mut client = shop.client(n);
        let body = json!({"actionType": "note", "windowSeconds": 60, "payload": {"entityId": "7", "n": n}});
        tokio::spawn(async move { client.post("/api/actions", &body).await })
    });
    let mut replies = vec![];
    for call in calls.collect::<Vec<_>>() {
        replies.push(call.await.expect("does not panic"));
    }
    assert_eq!(replies.iter().filter(|reply| reply.status == 201).count(), 1);
    assert!(replies.iter().all(|reply| matches!(reply.status, 200 | 201)));
    assert!(replies.iter().all(|reply| reply.body["id"] == replies[0].body["id"]), "one id");
    let last = replies.iter().position(|reply| reply.body["revision"] == 100).expect("each has a revision of its own");
    let shown = shop.show(&replies[0].text("id")).await;
    assert_eq!((shown["revision"].clone(), shown["payload"]["n"].clone()), (json!(100), json!(last)));
    let all = shop.client(0).get("/api/actions").await.expect(200);
    assert_eq!(all.body["items"].as_array().map(Vec::len), Some(1));
}

async fn what_fails_is_tried_again_then_dead_and_a_person_can_retry_it(on: On) {
    let shop = Workshop::open_with(on, "max_attempts = 2", "").await;
    let id = shop.now("hook", json!({"text": "refused#422"})).await;
    let dead = shop.becomes(&id, "dead").await;
    assert_eq!((dead["attempt"].clone(), dead["maxAttempts"].clone()), (json!(2), json!(2)));
    let tries = dead["tries"].as_array().expect("tries").clone();
    assert_eq!(tries.iter().map(|failed| failed["reached"].clone()).collect::<Vec<_>>(), ["no", "no"]);
    assert!(dead["error"].as_str().is_some_and(|error| error.contains("422")));
    let keys: Vec<_> = shop.provider.arrivals("refused#422").into_iter().map(|arrived| arrived.key).collect();
    assert_eq!(keys, [id.as_str(), id.as_str()], "under one key");
    shop.client(1).post(&format!("/api/actions/{id}/retry"), &json!({})).await.expect(200);
    eventually("it is tried again", || async { (shop.provider.arrivals("refused#422").len() > 2).then_some(()) }).await;
    shop.becomes(&id, "dead").await;
    assert_eq!(shop.provider.effects("refused#422"), 1, "the same key still");
    // An unknown outcome is retried under its key, and is unknown in the end.
    let id = shop.now("hook", json!({"text": "broken#500"})).await;
    let unknown = shop.becomes(&id, "unknown").await;
    assert_eq!(unknown["tries"][0]["reached"], "maybe");
    // An action that must not happen twice is not retried.
    let id = shop.now("once", json!({"text": "once#500"})).await;
    shop.becomes(&id, "unknown").await;
    assert_eq!(shop.provider.arrivals("once#500").len(), 1);
    let id = shop.now("once", json!({"text": "refused once#429-once"})).await;
    shop.becomes(&id, "completed").await;
    assert_eq!(
        shop.provider.arrivals("refused once#429-once").len(),
        2,
        "what surely did not happen may be tried again"
    );
}

async fn what_is_dead_or_unknown_is_settled_by_a_person_without_another_try(on: On) {
    let shop = Workshop::open_with(on, "max_attempts = 1", "").await;
    let resolve = async |id: &str, body: Value| shop.client(1).post(&format!("/api/actions/{id}/resolve"), &body).await;
    let ended = [("hook", "no#422", "dead"), ("once", "maybe#500", "unknown")];
    for (found, status) in [("done", "completed"), ("not_done", "cancelled")] {
        for (action_type, text, was) in ended {
            let text = format!("{found} {text}");
            let id = shop.now(action_type, json!({"text": text})).await;
            let before = shop.becomes(&id, was).await;
            let settled = resolve(&id, json!({"as": found, "note": "looked"})).await.expect(200).body;
            let error = if found == "done" { &Value::Null } else { &before["error"] };
            assert_eq!((&settled["status"], &settled["error"]), (&json!(status), error));
            assert_eq!(settled["resolved"]["was"], was);
            assert_eq!((&settled["resolved"]["note"], &settled["tries"]), (&json!("looked"), &before["tries"]));
            // The acknowledgement may be lost, so the same resolution succeeds again; a different one is refused.
            assert_eq!(resolve(&id, json!({"as": found})).await.expect(200).body, settled);
            let other = if found == "done" { "not_done" } else { "done" };
            resolve(&id, json!({"as": other})).await.expect_problem(409, "wrong-status");
            let listed = shop.client(0).get(&format!("/api/actions?status={was}")).await.expect(200).body;
            assert_eq!(listed["items"], json!([]), "it waits for nobody any more");
            assert_eq!(shop.provider.arrivals(&text).len(), 1);
        }
    }
    let line = shop.servers[shop.servers.len() - 1].logged("audit.action_done", 1).await.remove(0);
    assert_eq!(line["why"], "looked", "{line}");

    let waits = shop.schedule(&about("1", json!({"delaySeconds": 3600}))).await.expect(201).text("id");
    resolve(&waits, json!({"as": "done"})).await.expect_problem(409, "wrong-status");
    resolve("nothing", json!({"as": "done"})).await.expect_problem(404, "not-found");
    for (body, names) in [(json!({}), "`as`"), (json!({"as": "sent"}), "sent"), (json!({"as": "done", "n": 1}), "`n`")]
    {
        let refused = resolve(&waits, body).await.expect_problem(400, "invalid-request");
        assert!(refused.text("detail").contains(names), "{refused:?}");
    }
    // The same from the shell.
    let id = shop.now("hook", json!({"text": "shell#422"})).await;
    shop.becomes(&id, "dead").await;
    let settled = shop.home.run(["actions", "resolve", &id, "--as", "not_done", "--note", "too late", "--json"]);
    let settled = settled.expect_code(0);
    assert_eq!(
        (&settled.json()["status"], &settled.json()["resolved"]["note"]),
        (&json!("cancelled"), &json!("too late"))
    );
    assert!(settled.stderr.contains("resolved as not_done by"), "{settled:?}");
    let hint = format!("oncegate actions show {id}");
    shop.home.run(["actions", "resolve", &id, "--as", "done"]).expect_failure(1, "is cancelled", &hint);
}

async fn one_of_settling_it_and_trying_it_again_wins(on: On) {
    let shop = Workshop::open_with(on, "max_attempts = 1", "").await;
    for round in 0..10 {
        let text = format!("{round}#422");
        let id = shop.now("hook", json!({"text": text})).await;
        shop.becomes(&id, "dead").await;
        let (mut settler, mut retrier) = (shop.client(round), shop.client(round + 1));
        let (resolve, retry) = (format!("/api/actions/{id}/resolve"), format!("/api/actions/{id}/retry"));
        let (word, nothing) = (json!({"as": "done"}), json!({}));
        let (settled, retried) = tokio::join!(settler.post(&resolve, &word), retrier.post(&retry, &nothing));
        // A retried action may be dead again when a person settles it.
        let (tries, ends) = match (settled.status, retried.status) {
            (200, 409) => (1, "completed"),
            (409, 200) => (2, "dead"),
            (200, 200) => (2, "completed"),
            other => panic!("{other:?}: {settled:?} {retried:?}"),
        };
        shop.becomes(&id, ends).await;
        assert_eq!(shop.provider.arrivals(&text).len(), tries);
    }
}

async fn an_action_is_cancelled_run_now_and_listed(on: On) {
    let shop = Workshop::open(on).await;
    let later =
        async |entity: &str| shop.schedule(&about(entity, json!({"delaySeconds": 3600}))).await.expect(201).text("id");
    let (first, second) = (later("1").await, later("2").await);
    let verb = async |id: &str, verb: &str| {
        shop.client(0).send(Method::POST, &format!("/api/actions/{id}/{verb}"), None).await
    };
    assert_eq!(verb(&first, "cancel").await.expect(200).text("status"), "cancelled");
    verb(&first, "cancel").await.expect_problem(409, "wrong-status");
    verb(&first, "run-now").await.expect_problem(409, "wrong-status");
    verb(&second, "run-now").await.expect(200);
    shop.becomes(&second, "completed").await;
    verb(&second, "retry").await.expect_problem(409, "wrong-status");
    for verb_name in ["cancel", "retry", "run-now"] {
        verb("nothing", verb_name).await.expect_problem(404, "not-found");
        verb("01a1e0b4-fc69-77ad-85b2-691c443c2d29", verb_name).await.expect_problem(404, "not-found");
    }
    let list = async |query: &str| {
        let page = shop.client(0).get(&format!("/api/actions{query}")).await.expect(200).body;
        page["items"].as_array().expect("items").iter().map(|item| item["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(list("").await, [second.as_str(), first.as_str()]);
    assert_eq!(list("?status=cancelled").await, [first.as_str()]);
    assert_eq!(list("?entityId=2&type=note").await, [second.as_str()]);
    assert_eq!(list("?type=hook").await, [""; 0]);
    let page = shop.client(0).get("/api/actions?limit=1").await.expect(200).body;
    assert_eq!(page["nextCursor"], second);
    assert_eq!(list(&format!("?limit=1&cursor={second}")).await, [first.as_str()]);
    // The same from the shell.
    let store = ["--log", "json"];
    let listed = shop.home.run(["actions", "list", "--json"].iter().chain(&store)).expect_code(0).json();
    assert_eq!(listed["items"][0]["id"], second);
    let third = later("3").await;
    assert!(shop.home.run(["actions", "list"]).expect_code(0).stdout.contains(&third));
    let shown = shop.home.run(["actions", "show", &third, "--json"]).expect_code(0).json();
    assert_eq!(shown["status"], "pending");
    shop.home.run(["actions", "run-now", &third]).expect_code(0);
    shop.becomes(&third, "completed").await;
    let fourth = later("4").await;
    assert!(shop.home.run(["actions", "cancel", &fourth]).expect_code(0).stdout.contains("cancelled"));
    shop.home.run(["actions", "cancel", &fourth]).expect_failure(1, "the action is cancelled", "actions show");
    shop.home.run(["actions", "retry", &fourth]).expect_code(0);
    shop.home.run(["actions", "show", "nothing"]).expect_failure(3, "no action nothing", "actions list");
    shop.home.run(["actions", "list", "--status", "odd"]).expect_code(2);
}

async fn what_is_wrong_is_named_and_nothing_is_scheduled(on: On) {
    let shop = Workshop::open(on).await;
    let base = json!({"actionType": "note", "payload": {"entityId": "1"}});
    let cases = [
        (json!({"actionType": ""}), "actionType"),
        (json!({"actionType": 5}), "actionType"),
        (json!({"payload": {"entityId": []}}), "payload.entityId"),
        (json!({"runAt": "tomorrow"}), "runAt"),
        (json!({"runAt": 5}), "runAt"),
        (json!({"runAt": "2030-01-01T00:00:00Z", "delaySeconds": 1}), "one of them"),
        (json!({"delaySeconds": -1}), "delaySeconds"),
        (json!({"delaySeconds": 1e300}), "delaySeconds"),
        (json!({"windowSeconds": "5"}), "windowSeconds"),
        (json!({"windowSeconds": 1e300}), "windowSeconds"),
        (json!({"mode": "append"}), "mode"),
        (json!({"maxWaitSeconds": 5}), "maxWaitSeconds"),
        (json!({"mode": "debounce", "maxWaitSeconds": 0}), "maxWaitSeconds"),
        (json!({"recurringInterval": "often"}), "recurringInterval"),
        (json!({"recurringInterval": "daily", "timezone": "Mars"}), "timezone"),
        (json!({"timezone": "Europe/Berlin"}), "timezone"),
        (json!({"catchUp": true}), "catchUp"),
        (json!({"priority": 1}), "priority"),
    ];
    for (more, what) in cases {
        shop.schedule(&with(base.clone(), more)).await.expect_invalid(what);
    }
    shop.schedule(&json!({"payload": {}})).await.expect_invalid("actionType");
    shop.schedule(&json!({"actionType": "note"})).await.expect_invalid("payload");
    for query in ["status=odd", "limit=0", "limit=501", "cursor=x", "kind=a", "type=a%00b", "entityId=%00"] {
        let name = query.split('=').next().expect("a name");
        shop.client(0).get(&format!("/api/actions?{query}")).await.expect_invalid(name);
    }
    let lease = async |body: Value| shop.client(0).post("/api/actions/lease", &body).await;
    lease(json!({"types": []})).await.expect_invalid("types");
    lease(json!({"types": [""]})).await.expect_invalid("types");
    lease(json!({"types": ["a\u{0}"]})).await.expect_invalid("types");
    lease(json!({"types": ["a"], "max": 0})).await.expect_invalid("max");
    lease(json!({"types": ["a"], "leaseSeconds": 0})).await.expect_invalid("leaseSeconds");
    lease(json!({"types": ["a"], "waitSeconds": 61})).await.expect_invalid("waitSeconds");
    let word = async |verb: &str, body: Value| {
        shop.client(0).post(&format!("/api/actions/01a1e0b4-fc69-77ad-85b2-691c443c2d29/{verb}"), &body).await
    };
    word("complete", json!({"token": 1})).await.expect_problem(404, "not-found");
    word("complete", json!({})).await.expect_invalid("token");
    word("fail", json!({"token": 1, "error": "x", "reached": "perhaps"})).await.expect_invalid("reached");
    word("renew", json!({"token": 1, "leaseSeconds": -1})).await.expect_invalid("leaseSeconds");
    let all = shop.client(0).get("/api/actions").await.expect(200);
    assert_eq!(all.body["items"], json!([]));
    // Zero and less turn the window off.
    for seconds in [0, -1] {
        let off = with(base.clone(), json!({"windowSeconds": seconds}));
        assert_ne!(shop.schedule(&off).await.expect(201).text("id"), shop.schedule(&off).await.expect(201).text("id"));
    }
}

async fn the_log_and_the_counters_tell_the_share_of_duplicates(on: On) {
    let shop = Workshop::open(on).await;
    for n in 0..4 {
        let body = json!({"actionType": "note", "payload": {"entityId": "7", "secret": "do not log"}, "windowSeconds": 60, "delaySeconds": 5});
        let reply = shop.schedule(&body).await;
        assert_eq!(reply.status, if n == 0 { 201 } else { 200 });
    }
    shop.now("hook", json!({"text": "gone#410"})).await;
    let scheduled = shop.servers[0].logged("action.scheduled", 2).await;
    assert_eq!(scheduled[0]["actionType"], "note");
    let folded = shop.servers[0].logged("action.deduplicated", 3).await;
    assert_eq!(folded[2]["revision"], 4);
    assert_eq!(folded[2]["actionId"], scheduled[0]["actionId"]);
    let told = async |event: &str| {
        eventually(event, || async {
            shop.servers.iter().any(|server| server.log().iter().any(|line| line["event"] == event)).then_some(())
        })
        .await;
    };
    told("action.completed").await;
    told("action.dead").await;
    let metrics = shop.client(0).get("/metrics").await.expect(200).text;
    for (event, count) in [("scheduled", 2), ("deduplicated", 3)] {
        let line = format!("oncegate_action_events_total{{event=\"action.{event}\"}} {count}");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
    assert!(metrics.contains("oncegate_duplicates_stopped_total{guard=\"action\"} 3"), "{metrics}");
    for server in &shop.servers {
        assert!(!server.log().iter().any(|line| line.to_string().contains("do not log")));
    }
}
