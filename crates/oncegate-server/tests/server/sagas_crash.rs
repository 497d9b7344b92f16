//! The real binary, killed around an event's commit, and around its commands.
#![cfg(feature = "crash-points")]

use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};

use crate::support::{On, PATIENCE, Server, Workshop, eventually, on_both};

on_both![
    killed_before_the_commit_nothing_was_sent,
    killed_after_the_commit_its_commands_are_delivered,
    killed_while_a_command_is_delivered_it_arrives_under_its_key,
    killed_around_a_timer_it_fires_once,
];

fn saved(search: &str) -> Value {
    let data = json!({ "searchId": search, "projectId": "p", "searchName": "n", "referenceFiles": [format!("{search} a"), format!("{search} b")] });
    json!({ "type": "SearchUploadSaved", "id": search, "data": data })
}

/// The keys under which a search's files arrived, in order.
fn arrived(shop: &Workshop, search: &str) -> Vec<(String, String)> {
    let all = shop.provider.all().into_iter().filter(|arrived| arrived.body["searchId"] == search);
    all.map(|arrived| (arrived.body["fileId"].as_str().expect("a file").to_owned(), arrived.key)).collect()
}

/// Both files have arrived, each under one key: the one in the history.
async fn both_arrive(shop: &Workshop, search: &str) {
    eventually(&format!("{search}: both have arrived"), || async {
        let mut files: Vec<String> = arrived(shop, search).into_iter().map(|(file, _)| file).collect();
        files.sort();
        files.dedup();
        (files.len() == 2).then_some(())
    })
    .await;
    let mut keys: Vec<String> = arrived(shop, search).into_iter().map(|(_, key)| key).collect();
    keys.sort();
    keys.dedup();
    let history = shop.search(search).await["history"].clone();
    let mut sent: Vec<&str> = history[0]["commands"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|command| command["id"].as_str())
        .collect();
    sent.sort_unstable();
    assert_eq!(keys, sent, "{search}");
}

/// A server that dies at the point when it gets the event. On PostgreSQL, the other server continues.
async fn crash_at(shop: &mut Workshop, point: &str, event: &Value) {
    let mut doomed = shop.serve(&[("ONCEGATE_TEST_CRASH_AT", point)]);
    let asked = doomed.client().try_send(Method::POST, "/api/events", Some(event.to_string().into())).await;
    assert!(!doomed.wait(PATIENCE).success(), "{point}: it was killed, {asked:?}");
}

/// One server, which has to be started again; or two, of which the other continues.
fn survivors(shop: &mut Workshop, on: On) -> Vec<Server> {
    match on {
        On::Sqlite => {
            shop.servers.clear();
            vec![]
        }
        On::Postgres => vec![shop.servers.remove(0)],
    }
}

async fn killed_before_the_commit_nothing_was_sent(on: On) {
    let mut shop = Workshop::open(on).await;
    shop.servers.clear();
    crash_at(&mut shop, "saga.received", &saved("s")).await;
    shop.servers = vec![shop.serve(&[])];
    shop.client(0).get("/api/sagas/search-import/s").await.expect_problem(404, "not-found");
    let waiting = shop.client(0).get("/api/actions?type=StartParsingReferenceFile").await.expect(200).body;
    assert_eq!((&waiting["items"], arrived(&shop, "s")), (&json!([]), vec![]));
    // A sender without an answer sends the event again.
    assert_eq!(shop.event(0, &saved("s")).await["result"], "applied");
    both_arrive(&shop, "s").await;
}

async fn killed_after_the_commit_its_commands_are_delivered(on: On) {
    let mut shop = Workshop::open_with(on, "lease = \"1s\"", "").await;
    let survivors = survivors(&mut shop, on);
    shop.servers.clear();
    crash_at(&mut shop, "saga.committed", &saved("s")).await;
    // After a restart, or by the other server.
    shop.servers = if survivors.is_empty() { vec![shop.serve(&[])] } else { survivors };
    both_arrive(&shop, "s").await;
    assert_eq!(shop.event(0, &saved("s")).await["result"], "duplicate");
    assert_eq!(shop.search("s").await["history"].as_array().map(Vec::len), Some(1));
}

async fn killed_while_a_command_is_delivered_it_arrives_under_its_key(on: On) {
    let mut shop = Workshop::open_with(on, "lease = \"1s\"", "").await;
    for point in ["action.leased", "action.running", "action.ran", "action.finished"] {
        let survivors = survivors(&mut shop, on);
        // The other servers are stopped meanwhile, so that the doomed server delivers.
        survivors.iter().for_each(|server| server.signal(rustix::process::Signal::STOP));
        shop.servers.clear();
        crash_at(&mut shop, point, &saved(point)).await;
        survivors.iter().for_each(|server| server.signal(rustix::process::Signal::CONT));
        shop.servers = if survivors.is_empty() { vec![shop.serve(&[])] } else { survivors };
        both_arrive(&shop, point).await;
    }
}

async fn killed_around_a_timer_it_fires_once(on: On) {
    let mut shop = Workshop::open_with(on, "lease = \"1s\"", "").await;
    for point in ["saga.leased", "saga.fired"] {
        shop.set_clock_ahead(Duration::ZERO);
        shop.servers.clear();
        let mut doomed = shop.serve(&[("ONCEGATE_TEST_CRASH_AT", point)]);
        let started = json!({ "type": "SearchUploadStarted", "id": point, "data": { "searchId": point } });
        doomed.client().post("/api/events", &started).await.expect(200);
        shop.set_clock_ahead(Duration::from_secs(3600));
        assert!(!doomed.wait(PATIENCE).success(), "{point}: it was killed");
        shop.servers = vec![shop.serve(&[])];
        let search = eventually(&format!("{point}: it has timed out"), || async {
            let search = shop.search(point).await;
            (search["state"] == "Error").then_some(search)
        })
        .await;
        let events: Vec<&Value> =
            search["history"].as_array().expect("a list").iter().map(|line| &line["event"]).collect();
        assert_eq!(events, ["SearchUploadStarted", "UploadTimeout"], "{point}");
    }
}
