//! The real binary, killed at every point of an action's life, and how another server finishes the action.
#![cfg(feature = "crash-points")]

use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};

use crate::support::{On, PATIENCE, Workshop, eventually, on_both};

/// Before and after every durable step and the call to the receiver.
const POINTS: [&str; 5] = ["action.leased", "action.begun", "action.running", "action.ran", "action.finished"];

on_both![
    killed_at_any_point_an_action_arrives_under_one_key_or_at_most_once,
    killed_around_the_commit_a_schedule_is_there_if_it_was_acknowledged,
    killed_at_any_point_a_tick_runs_under_its_key_and_the_schedule_goes_on,
];

/// A server that dies at the point; returns the id of the action that was in work.
async fn crash_at(shop: &mut Workshop, point: &str, body: &Value) -> String {
    shop.servers.clear();
    let mut server = shop.serve(&[("ONCEGATE_TEST_CRASH_AT", point)]);
    let mut client = server.client();
    let answer = client.try_send(Method::POST, "/api/actions", Some(body.to_string().into())).await;
    assert!(!server.wait(PATIENCE).success(), "{point}: it was killed");
    shop.servers = vec![shop.serve(&[])];
    match answer {
        Ok(answer) => answer.expect(201).text("id"),
        // On a busy machine the worker may come to the point before the answer is sent.
        Err(_) => {
            let page = shop.client(0).get("/api/actions?limit=500").await.expect(200).body;
            let items = page["items"].as_array().cloned().unwrap_or_default();
            let is_it =
                |item: &&Value| item["payload"]["text"] == body["payload"]["text"] && item["scheduleId"].is_null();
            items.iter().find(is_it).expect("it was accepted")["id"].as_str().expect("an id").to_owned()
        }
    }
}

async fn killed_at_any_point_an_action_arrives_under_one_key_or_at_most_once(on: On) {
    let mut shop = Workshop::open_with(on, "lease = \"1s\"", "").await;
    for point in POINTS {
        for action_type in ["hook", "once"] {
            // With at-least-once delivery, the lease also begins the try.
            if (point, action_type) == ("action.begun", "hook") {
                continue;
            }
            let text = format!("{point} {action_type}");
            let body = json!({"actionType": action_type, "payload": {"text": text}, "delaySeconds": 0.1});
            let id = crash_at(&mut shop, point, &body).await;
            let ended = eventually(&format!("{text} has ended"), || async {
                let action = shop.show(&id).await;
                action["endedAt"].is_string().then_some(action)
            })
            .await;
            let arrived = shop.provider.arrivals(&text);
            let keys: Vec<&str> = arrived.iter().map(|arrived| arrived.key.as_str()).collect();
            assert!(keys.iter().all(|key| *key == id), "{text}: {keys:?}");
            match (action_type, point) {
                ("hook", _) => {
                    assert_eq!(ended["status"], "completed", "{text}");
                    let is_known = matches!(point, "action.leased" | "action.running" | "action.finished");
                    assert_eq!(arrived.len(), if is_known { 1 } else { 2 }, "{text}");
                }
                // No worker had begun.
                (_, "action.leased") => assert_eq!((ended["status"].clone(), arrived.len()), (json!("completed"), 1)),
                (_, "action.finished") => assert_eq!((ended["status"].clone(), arrived.len()), (json!("completed"), 1)),
                (_, "action.ran") => assert_eq!((ended["status"].clone(), arrived.len()), (json!("unknown"), 1)),
                _ => assert_eq!((ended["status"].clone(), arrived.len()), (json!("unknown"), 0), "{text}"),
            }
        }
    }
}

async fn killed_around_the_commit_a_schedule_is_there_if_it_was_acknowledged(on: On) {
    let mut shop = Workshop::open(on).await;
    for (point, is_there) in [("action.received", false), ("action.committed", true)] {
        shop.servers.clear();
        let mut server = shop.serve(&[("ONCEGATE_TEST_CRASH_AT", point)]);
        let body = json!({"actionType": "hook", "windowSeconds": 60, "payload": {"entityId": point, "text": point}});
        let asked = server.client().try_send(Method::POST, "/api/actions", Some(body.to_string().into())).await;
        assert!(asked.is_err() && !server.wait(PATIENCE).success(), "{point}: it was killed");
        shop.servers = vec![shop.serve(&[])];
        let listed = shop.client(0).get(&format!("/api/actions?entityId={point}")).await.expect(200);
        assert_eq!(listed.body["items"].as_array().map(Vec::len), Some(usize::from(is_there)), "{point}");
        // A caller without an answer retries: there is still only one action.
        let again = shop.schedule(&body).await;
        assert_eq!(again.status, if is_there { 200 } else { 201 }, "{point}: {again:?}");
        shop.set_clock_ahead(Duration::from_secs(100));
        shop.becomes(&again.text("id"), "completed").await;
        assert_eq!(shop.provider.arrivals(point).len(), 1);
        shop.set_clock_ahead(Duration::ZERO);
    }
}

async fn killed_at_any_point_a_tick_runs_under_its_key_and_the_schedule_goes_on(on: On) {
    let mut shop = Workshop::open_with(on, "lease = \"1s\"", "").await;
    for point in ["action.leased", "action.ran", "action.finished"] {
        let body = json!({"actionType": "hook", "payload": {"text": point}, "recurringInterval": "hourly"});
        let schedule = crash_at(&mut shop, point, &body).await;
        let ticks = eventually(&format!("{point}: the tick has ended"), || async {
            let page = shop.client(0).get(&format!("/api/actions?scheduleId={schedule}")).await.expect(200).body;
            page["items"].as_array().cloned().filter(|ticks| !ticks.is_empty())
        })
        .await;
        assert_eq!((ticks.len(), ticks[0]["status"].clone()), (1, json!("completed")), "{point}");
        assert!(shop.provider.arrivals(point).iter().all(|arrived| ticks[0]["id"] == arrived.key.as_str()));
        let live = shop.show(&schedule).await;
        assert_eq!(live["status"], "pending", "{point}");
        shop.client(0).post(&format!("/api/actions/{schedule}/cancel"), &json!({})).await.expect(200);
    }
}
