//! The real binary, killed or paused at every point of a reminder's life: another server sends the reminder, or it is missed and reported.
#![cfg(feature = "crash-points")]

use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};

use crate::support::{On, PATIENCE, PostOffice, eventually, from_now, on_both, outcomes, reminder, with};

/// After this lease, the next worker takes over the job of the last one.
const LEASE: &str = "lease = \"1s\"\nwait = \"100ms\"\nsend_wait = \"500ms\"";
/// Longer than the lease, and a poll of the queue.
const PAUSE: &str = "4000";

on_both![
    killed_around_the_commit_there_is_one_reminder_if_it_was_acknowledged,
    killed_at_any_point_it_is_sent_or_it_was_missed,
    killed_while_a_person_has_it_sent_it_is_sent_or_missed_again,
    a_worker_that_was_paused_past_its_lease_does_not_send,
    told_to_stop_it_finishes_what_it_has_begun,
];

/// A server that dies at the point; returns the id of the reminder that was in work.
async fn crash_at(office: &mut PostOffice, point: &str, body: &Value) -> String {
    office.servers.clear();
    let mut server = office.serve(&[("ONCEGATE_TEST_CRASH_AT", point)]);
    // Due after it was acknowledged.
    let body = with(body.clone(), json!({"sendAt": from_now(Duration::from_millis(500))}));
    let id = server.client().post("/api/reminders", &body).await.expect(201).text("id");
    assert!(!server.wait(PATIENCE).success(), "{point}: it was killed");
    office.servers = vec![office.serve(&[])];
    id
}

async fn arrives(office: &PostOffice, text: &str) {
    eventually(&format!("{text} arrives"), || async { (!office.provider.arrivals(text).is_empty()).then_some(()) })
        .await;
}

async fn killed_around_the_commit_there_is_one_reminder_if_it_was_acknowledged(on: On) {
    let mut office = PostOffice::open_with(on, LEASE).await;
    for (point, is_there) in [("reminder.received", false), ("reminder.committed", true)] {
        office.servers.clear();
        let mut server = office.serve(&[("ONCEGATE_TEST_CRASH_AT", point)]);
        let body = reminder(point, "sms", point);
        let asked = server.client().try_send(Method::POST, "/api/reminders", Some(body.to_string().into())).await;
        assert!(asked.is_err() && !server.wait(PATIENCE).success(), "{point}: it was killed");
        office.servers = vec![office.serve(&[])];
        let listed = office.client(0).get(&format!("/api/reminders?bookingId={point}")).await.expect(200);
        assert_eq!(listed.body["items"].as_array().map(Vec::len), Some(usize::from(is_there)), "{point}");
        // A caller without an answer retries: there is still only one reminder.
        let again = office.client(0).post("/api/reminders", &body).await;
        assert_eq!(again.status, if is_there { 200 } else { 201 }, "{point}: {again:?}");
        // The dead server may have set the flag: its worker runs beside the request.
        let ended = eventually("it is over", || async {
            Some(office.reminder(&again.text("id")).await).filter(|reminder| reminder["endedAt"].is_string())
        })
        .await;
        match ended["state"].as_str() {
            Some("sent") => assert_eq!(office.provider.arrivals(point).len(), 1, "{ended}"),
            state => assert_eq!((state, is_there), (Some("missed"), true), "{ended}"),
        }
    }
}

async fn killed_at_any_point_it_is_sent_or_it_was_missed(on: On) {
    let mut office = PostOffice::open_with(on, LEASE).await;
    for (point, state, arrived) in [
        ("reminder.leased", "sent", 1),
        ("reminder.flagged", "missed", 0),
        ("in the call#hang", "missed", 1),
        ("reminder.called", "missed", 1),
        ("reminder.finished", "sent", 1),
    ] {
        let id = match point.ends_with("#hang") {
            false => crash_at(&mut office, point, &reminder(point, "sms", point)).await,
            true => {
                office.servers = vec![office.serve(&[])];
                let id = office.remind(&reminder(point, "sms", point)).await;
                arrives(&office, point).await;
                office.servers.remove(0).kill();
                office.servers = vec![office.serve(&[])];
                id
            }
        };
        let ended = office.reminder_becomes(&id, state).await;
        assert_eq!((office.provider.arrivals(point).len(), &ended["reminderSent"]), (arrived, &json!(true)), "{point}");
        if state == "sent" {
            assert_eq!(outcomes(&ended), [("sent".into(), None)], "{point}");
            continue;
        }
        assert_eq!(outcomes(&ended), [("failed".into(), Some("maybe".into()))], "{point}");
        assert_eq!(ended["deliveries"][0]["error"], "its worker was lost after the flag was set");
        let listed = office.client(0).get("/api/reminders?state=missed&limit=1").await.expect(200).body;
        assert_eq!(listed["items"], json!([ended]), "{point}: it is seen");
        assert_eq!(office.servers[0].logged("reminder.missed", 1).await[0]["reminderId"], json!(id));
        // It is counted before it is logged.
        let metrics = office.client(0).get("/metrics").await.text;
        let line = "oncegate_reminder_events_total{event=\"reminder.missed\"} 1";
        assert!(metrics.lines().any(|found| found == line), "{point}: {metrics}");
        // A person looks, and sends it: under the same key.
        office.send_reminder(&id, "looked").await.expect(200);
        let is_taken = !point.ends_with("#hang");
        let after = office.reminder_becomes(&id, if is_taken { "sent" } else { "missed" }).await;
        assert_eq!(outcomes(&after).len(), 2, "{point}");
        let keys: Vec<String> = office.provider.arrivals(point).into_iter().map(|arrived| arrived.key).collect();
        assert_eq!(keys, vec![id; arrived + 1], "{point}");
    }
}

async fn killed_while_a_person_has_it_sent_it_is_sent_or_missed_again(on: On) {
    let mut office = PostOffice::open_with(on, LEASE).await;
    for (point, state, arrived) in
        [("reminder.leased", "sent", 2), ("reminder.flagged", "missed", 1), ("reminder.called", "missed", 2)]
    {
        let text = format!("{point}#cut-once");
        let id = office.remind(&reminder(point, "sms", &text)).await;
        office.reminder_becomes(&id, "missed").await;
        office.servers.clear();
        let mut server = office.serve(&[("ONCEGATE_TEST_CRASH_AT", point)]);
        // The server may die before it has answered.
        let body = json!({"note": "now"}).to_string();
        let _ = server.client().try_send(Method::POST, &format!("/api/reminders/{id}/send"), Some(body.into())).await;
        assert!(!server.wait(PATIENCE).success(), "{point}: it was killed");
        office.servers = vec![office.serve(&[])];
        let ended = eventually("it is over", || async {
            Some(office.reminder(&id).await).filter(|reminder| reminder["endedAt"].is_string())
        })
        .await;
        let arrivals = office.provider.arrivals(&text).len();
        assert_eq!((ended["state"].as_str(), arrivals), (Some(state), arrived), "{point}: {ended}");
    }
}

/// In one process: the server's own worker takes over from the task that sleeps.
async fn a_worker_that_was_paused_past_its_lease_does_not_send(on: On) {
    let mut office = PostOffice::open_with(on, LEASE).await;
    for (point, state, arrived) in
        [("reminder.leased", "sent", 1), ("reminder.flagged", "missed", 0), ("reminder.called", "missed", 1)]
    {
        // To a provider, and to the file that the first run writes to.
        for channel in ["sms", "file"] {
            let text = format!("{point} by {channel}");
            office.servers.clear();
            office.servers = vec![office.serve(&[("ONCEGATE_TEST_PAUSE_AT", &format!("{point}:{PAUSE}"))])];
            let id = office.remind(&reminder(&text, channel, &text)).await;
            let before = office.reminder_becomes(&id, state).await;
            // The server does not end before the sleeping task has woken.
            let (status, log) = office.servers.remove(0).stop();
            assert!(status.success(), "{log}");
            assert_eq!(log.contains("reminder.lease_lost"), state == "missed", "{text}: {log}");
            let lines =
                std::fs::read_to_string(office.home.path().join("oncegate-data/sends.jsonl")).unwrap_or_default();
            let written = lines.lines().filter(|line| line.contains(&format!("\"{text}\""))).count();
            assert_eq!(office.provider.arrivals(&text).len() + written, arrived, "{text}");
            office.servers = vec![office.serve(&[])];
            let after = office.reminder(&id).await;
            match point {
                // A reminder that the carrier has accepted was not missed. Only the carrier's answer proves that, so it overrides the
                // earlier state.
                "reminder.called" => assert_eq!(after["state"], "sent", "{text}: {after}"),
                _ => assert_eq!(after, before, "{text}: nor does it say anything"),
            }
        }
    }
}

async fn told_to_stop_it_finishes_what_it_has_begun(on: On) {
    let mut office = PostOffice::open(on).await;
    office.servers.truncate(1);
    let id = office.remind(&reminder("b", "sms", "b#slow")).await;
    arrives(&office, "b#slow").await;
    let (status, log) = office.servers.remove(0).stop();
    assert!(status.success() && log.contains("reminder.sent"), "{log}");
    office.servers = vec![office.serve(&[])];
    assert_eq!(
        (office.reminder(&id).await["state"].as_str(), office.provider.arrivals("b#slow").len()),
        (Some("sent"), 1)
    );
}
