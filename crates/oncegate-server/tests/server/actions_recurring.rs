//! Schedules: each tick runs once, on any number of servers, and the handling of missed ticks.
#![cfg(feature = "crash-points")]

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{On, Workshop, eventually, on_both};

on_both![
    a_thousand_ticks_of_a_fast_schedule_run_once_each,
    what_was_missed_while_everything_was_down_runs_once,
    a_schedule_is_shown_cancelled_and_keeps_the_time_of_its_place,
    a_schedule_runs_no_more_often_than_it_may,
    a_workspace_has_no_more_schedules_than_it_may_also_when_calls_race,
    the_limit_of_schedules_is_counted_for_its_workspace_and_leaves_others_alone,
    a_schedule_that_catches_up_makes_no_runs_of_the_time_before_it,
];

async fn a_thousand_ticks_of_a_fast_schedule_run_once_each(on: On) {
    const TICKS: usize = 1000;
    let shop = Workshop::open(on).await;
    let body = json!({"actionType": "note", "payload": {}, "recurringInterval": "10ms", "catchUp": true});
    let schedule = shop.schedule(&body).await.expect(201).text("id");
    // On a slow disk the schedule falls behind, and catches up later.
    for part in 1..=5 {
        eventually("more ticks", || async { (shop.noted().len() >= TICKS * part / 5).then_some(()) }).await;
    }
    shop.client(1).post(&format!("/api/actions/{schedule}/cancel"), &json!({})).await.expect(200);
    let noted = shop.noted();
    let keys: BTreeSet<&str> = noted.iter().map(|line| line["effectKey"].as_str().expect("a key")).collect();
    assert_eq!(keys.len(), noted.len(), "each once");
    // No tick is left out: they are 10 ms apart.
    let mut due = vec![];
    let mut cursor = String::new();
    loop {
        let page =
            shop.client(0).get(&format!("/api/actions?scheduleId={schedule}&limit=500{cursor}")).await.expect(200).body;
        for tick in page["items"].as_array().expect("items") {
            assert_eq!(tick["status"], "completed");
            assert!(keys.contains(tick["id"].as_str().expect("an id")));
            due.push(oncegate::Time::parse(tick["runAt"].as_str().expect("a time")).expect("a time"));
        }
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(due.len(), noted.len());
    assert!(due.windows(2).all(|pair| pair[0].since(pair[1]) == Duration::from_millis(10)));
    // Every server has run ticks.
    for server in &shop.servers {
        server.logged("action.completed", 10).await;
    }
}

async fn what_was_missed_while_everything_was_down_runs_once(on: On) {
    let mut shop = Workshop::open(on).await;
    let body = json!({"actionType": "note", "payload": {"n": 1}, "recurringInterval": "hourly"});
    let schedule = shop.schedule(&body).await.expect(201).text("id");
    eventually("the first tick", || async { (shop.noted().len() == 1).then_some(()) }).await;
    shop.servers.clear();
    shop.set_clock_ahead(Duration::from_secs(5 * 3600 + 60));
    shop.servers = vec![shop.serve(&[]), shop.serve(&[])];
    eventually("the one that makes up for them", || async { (shop.noted().len() == 2).then_some(()) }).await;
    let live = shop.becomes(&schedule, "pending").await;
    let time = |text: &Value| oncegate::Time::parse(text.as_str().expect("a time")).expect("a time");
    let hours = time(&live["runAt"]).since(time(&live["createdAt"])).as_secs_f64() / 3600.0;
    assert!((hours - 6.0).abs() < 0.001, "{hours}: the next one is when it would have been");
    assert_eq!(shop.noted().len(), 2);
}

async fn a_schedule_is_shown_cancelled_and_keeps_the_time_of_its_place(on: On) {
    let shop = Workshop::open(on).await;
    let body =
        json!({"actionType": "note", "payload": {}, "recurringInterval": "30 9 * * 1-5", "timezone": "Europe/Berlin"});
    let made = shop.schedule(&body).await.expect(201);
    assert_ne!(shop.schedule(&body).await.expect(201).text("id"), made.text("id"), "each call makes a new one");
    // 09:30 in Berlin is 08:30 in the winter and 07:30 in the summer.
    let run_at = made.text("runAt");
    assert!(run_at.contains("T08:30:00.000Z") || run_at.contains("T07:30:00.000Z"), "{run_at}");
    let shown = shop.show(&made.text("id")).await;
    assert_eq!(
        (shown["recurringInterval"].clone(), shown["timezone"].clone()),
        (json!("30 9 * * 1-5"), json!("Europe/Berlin"))
    );
    shop.client(1).post(&format!("/api/actions/{}/run-now", made.text("id")), &json!({})).await.expect(200);
    eventually("it runs now", || async { (shop.noted().len() == 1).then_some(()) }).await;
    let live = shop.becomes(&made.text("id"), "pending").await;
    assert_eq!(live["runAt"], run_at, "and when it is due");
    let gone = shop.client(0).post(&format!("/api/actions/{}/cancel", made.text("id")), &json!({})).await.expect(200);
    assert_eq!(gone.text("status"), "cancelled");
}

/// A shop with the default limits of schedules, except for their number.
async fn limited(on: On, schedules: &str) -> Workshop {
    let mut shop = Workshop::open(on).await;
    let limits = [("ONCEGATE_LIMITS_SCHEDULE_INTERVAL", "1m"), ("ONCEGATE_LIMITS_SCHEDULES", schedules)];
    shop.servers = shop.servers.iter().map(|_| shop.serve(&limits)).collect();
    shop
}

fn every(interval: &str) -> Value {
    json!({"actionType": "note", "payload": {}, "recurringInterval": interval, "runAt": "2036-01-01T00:00:00Z"})
}

async fn a_schedule_runs_no_more_often_than_it_may(on: On) {
    let shop = limited(on, "1000").await;
    for interval in ["10ms", "59s"] {
        shop.schedule(&every(interval)).await.expect_invalid("recurringInterval: at least 1m");
    }
    shop.schedule(&every("1m")).await.expect(201);
    shop.schedule(&every("* * * * *")).await.expect(201);
    let mut shop = shop;
    shop.servers = vec![shop.serve(&[("ONCEGATE_LIMITS_SCHEDULE_INTERVAL", "20m")])];
    shop.schedule(&every("*/15 * * * *")).await.expect_invalid("recurringInterval: at least 20m");
    shop.schedule(&every("*/30 * * * *")).await.expect(201);
}

async fn a_workspace_has_no_more_schedules_than_it_may_also_when_calls_race(on: On) {
    let shop = limited(on, "5").await;
    let racing = (0..20).map(|number| {
        let mut client = shop.client(number);
        async move { client.post("/api/actions", &every("1h")).await }
    });
    let answered = futures::future::join_all(racing).await;
    let made: Vec<String> = answered.iter().filter(|reply| reply.status == 201).map(|reply| reply.text("id")).collect();
    assert_eq!(made.len(), 5, "{answered:?}");
    let refused = answered.into_iter().find(|reply| reply.status != 201).expect("the others");
    let refused = refused.expect_problem(429, "schedule-limit");
    assert!(refused.body["detail"].as_str().is_some_and(|detail| detail.contains("at most 5")), "{refused:?}");
    // An action that runs once does not count.
    shop.schedule(&json!({"actionType": "note", "payload": {}})).await.expect(201);
    // A cancelled schedule makes room for another.
    shop.client(0).post(&format!("/api/actions/{}/cancel", made[0]), &json!({})).await.expect(200);
    eventually("there is room", || async { (shop.schedule(&every("1h")).await.status == 201).then_some(()) }).await;
    eventually("and no more", || async { (shop.schedule(&every("1h")).await.status == 429).then_some(()) }).await;
}

async fn the_limit_of_schedules_is_counted_for_its_workspace_and_leaves_others_alone(on: On) {
    let shop = limited(on, "1").await;
    let mut busy = shop.client(0).header("oncegate-workspace", "busy");
    let mut calm = shop.client(0).header("oncegate-workspace", "calm");
    busy.post("/api/actions", &every("1h")).await.expect(201);
    busy.post("/api/actions", &every("1h")).await.expect_problem(429, "schedule-limit");
    calm.post("/api/actions", &every("1h")).await.expect(201);
    let metrics = shop.client(0).get("/metrics").await.expect(200).text;
    assert!(metrics.contains("oncegate_workspace_limited_total{limit=\"schedules\"} 1"), "{metrics}");
    let limited = &shop.servers[0].logged("workspace.limited", 1).await[0];
    assert_eq!((&limited["workspace"], &limited["limit"]), (&json!("busy"), &json!("schedules")));
}

async fn a_schedule_that_catches_up_makes_no_runs_of_the_time_before_it(on: On) {
    let shop = limited(on, "1000").await;
    let body = |catch_up: bool| json!({"actionType": "note", "payload": {}, "recurringInterval": "1m", "runAt": "2020-01-01T00:00:00Z", "catchUp": catch_up});
    shop.schedule(&body(true)).await.expect_invalid("runAt: with catchUp at most 1m ago");
    let schedule = shop.schedule(&body(false)).await.expect(201).text("id");
    eventually("one run stands for all", || async { (shop.noted().len() == 1).then_some(()) }).await;
    let live = shop.becomes(&schedule, "pending").await;
    let time = |text: &Value| oncegate::Time::parse(text.as_str().expect("a time")).expect("a time");
    assert!(time(&live["runAt"]) > time(&live["createdAt"]), "the next run is not in the past: {live}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_may_only_send_can_cancel_what_was_scheduled_and_nothing_else() {
    let shop = Workshop::open(On::Sqlite).await;
    let (_, operate) = shop.known_key("default").await;
    let (_, send) = shop.home.make_key("acme", "send");
    let mut sender = shop.servers[0].client_with(&send);
    let made = eventually("the key is known", || {
        let mut sender = shop.servers[0].client_with(&send);
        async move { Some(sender.post("/api/actions", &every("1h")).await).filter(|reply| reply.status == 201) }
    })
    .await;
    let path = |verb: &str| format!("/api/actions/{}/{verb}", made.text("id"));
    for verb in ["run-now", "retry"] {
        sender.post(&path(verb), &json!({})).await.expect_problem(403, "forbidden");
    }
    let mut other = shop.servers[0].client_with(&operate);
    other.post(&path("cancel"), &json!({})).await.expect_problem(404, "not-found");
    assert_eq!(sender.post(&path("cancel"), &json!({})).await.expect(200).body["status"], "cancelled");
}
