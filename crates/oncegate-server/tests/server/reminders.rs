//! Reminders over HTTP, on one server and on two: created, sent when due, moved and cancelled in time and too late, and missed.
#![cfg(feature = "crash-points")]

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{On, PostOffice, eventually, from_now, on_both, outcomes, reminder, with};

on_both![
    one_is_set_and_the_same_again_gets_it,
    ten_posts_at_once_are_one_reminder_and_one_send,
    it_is_sent_when_it_is_due_under_its_key,
    it_is_moved_and_reworded_until_it_is_sent,
    it_is_cancelled_until_it_is_sent,
    a_refused_connection_is_tried_again_within_the_grace_and_missed_after_it,
    a_provider_that_said_no_is_asked_again_within_the_grace,
    what_may_have_arrived_is_never_sent_again_and_is_seen_to_be_missed,
    what_nobody_could_send_in_time_is_missed,
];

const HOUR: Duration = Duration::from_secs(3600);

fn tomorrow(booking: &str, text: &str) -> Value {
    with(reminder(booking, "sms", text), json!({"sendAt": from_now(HOUR * 24)}))
}

async fn listed(office: &PostOffice, query: &str) -> Vec<Value> {
    let page = office.client(1).get(&format!("/api/reminders?{query}")).await.expect(200).body;
    page["items"].as_array().expect("items").iter().map(|item| item["id"].clone()).collect()
}

/// Waits until all servers together have counted this many: they count after the commit that callers see.
async fn counted(office: &PostOffice, event: &str, count: usize) {
    let line = format!("oncegate_reminder_events_total{{event=\"{event}\"}} ");
    eventually(&format!("{count} {event}"), || async {
        let mut found = 0;
        for number in 0..office.servers.len() {
            let metrics = office.client(number).get("/metrics").await.expect(200).text;
            let of_one = metrics.lines().find_map(|found| found.strip_prefix(&line)?.parse::<usize>().ok());
            found += of_one.unwrap_or(0);
        }
        assert!(found <= count, "{found} {event}");
        (found == count).then_some(())
    })
    .await;
}

async fn one_is_set_and_the_same_again_gets_it(on: On) {
    let office = PostOffice::open(on).await;
    let body = json!({
        "bookingId": "b 17", "kind": "day before", "sendAt": "2090-11-15T09:30:00+01:00", "channel": "sms",
        "recipientPhone": "+15550100", "recipientEmail": "ann@home.test", "message": "At nine.",
    });
    let made = office.client(0).post("/api/reminders", &body).await.expect(201).body;
    let expected = json!({
        "id": made["id"], "bookingId": "b 17", "kind": "day before", "state": "scheduled", "reminderSent": false,
        "sendAt": "2090-11-15T08:30:00.000Z", "channel": "sms", "recipientPhone": "+15550100",
        "recipientEmail": "ann@home.test", "message": "At nine.", "deliveries": [], "createdAt": made["createdAt"],
    });
    assert_eq!(made, expected);
    assert!(made["id"].is_string() && made["createdAt"].is_string());
    // Other fields do not matter: the booking and the kind identify a reminder.
    for (turn, again) in [body.clone(), with(body.clone(), json!({"message": "At ten."}))].iter().enumerate() {
        assert_eq!(office.client(turn + 1).post("/api/reminders", again).await.expect(200).body, made);
    }
    assert_eq!(office.reminder(made["id"].as_str().expect("an id")).await, made);
    let mut plain = tomorrow("b 17", "At nine.");
    let second = office.client(1).post("/api/reminders", &plain).await.expect(201).body;
    assert_eq!((&second["kind"], second["recipientEmail"].is_null()), (&json!("reminder"), true));
    plain["kind"] = json!("reminder");
    assert_eq!(office.client(0).post("/api/reminders", &plain).await.expect(200).body, second);
    // Newest first, a page at a time.
    assert_eq!(listed(&office, "bookingId=b%2017").await, [second["id"].clone(), made["id"].clone()]);
    assert_eq!(listed(&office, "bookingId=b").await, [json!(null); 0]);
    assert_eq!(listed(&office, "state=missed").await, [json!(null); 0]);
    let first = office.client(0).get("/api/reminders?limit=1&state=scheduled").await.expect(200).body;
    assert_eq!(first["items"], json!([second]));
    let cursor = first["nextCursor"].as_str().expect("a second page");
    assert_eq!(listed(&office, &format!("limit=1&cursor={cursor}")).await, [made["id"].clone()]);
    counted(&office, "reminder.set", 2).await;
    counted(&office, "reminder.duplicate", 3).await;
}

async fn ten_posts_at_once_are_one_reminder_and_one_send(on: On) {
    let office = PostOffice::open(on).await;
    for round in 0..5 {
        let (booking, text) = (format!("b{round}"), format!("At {round}."));
        let posts = (0..10).map(|number| {
            let (mut client, body) = (office.client(number), reminder(&booking, "sms", &text));
            tokio::spawn(async move { client.post("/api/reminders", &body).await })
        });
        let mut replies = vec![];
        for post in posts.collect::<Vec<_>>() {
            replies.push(post.await.expect("does not panic"));
        }
        let id = replies[0].text("id");
        assert!(replies.iter().all(|reply| reply.text("id") == id), "{replies:?}");
        let mut statuses: Vec<u16> = replies.iter().map(|reply| reply.status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [&[200; 9][..], &[201]].concat());
        office.reminder_becomes(&id, "sent").await;
        assert_eq!(listed(&office, &format!("bookingId={booking}")).await, [json!(id)]);
        assert_eq!(office.provider.arrivals(&text).len(), 1);
        // Also when the reminder has ended.
        let late = office.client(1).post("/api/reminders", &reminder(&booking, "sms", &text)).await.expect(200).body;
        assert_eq!((late["id"].as_str(), late["state"].as_str()), (Some(id.as_str()), Some("sent")));
    }
    assert_eq!(office.provider.all().len(), 5);
}

async fn it_is_sent_when_it_is_due_under_its_key(on: On) {
    let office = PostOffice::open(on).await;
    let id = office.remind(&tomorrow("b", "At nine.")).await;
    let first = office.remind(&reminder("now", "sms", "At once.")).await;
    office.reminder_becomes(&first, "sent").await;
    let waits = office.reminder(&id).await;
    assert_eq!((&waits["state"], &waits["reminderSent"]), (&json!("scheduled"), &json!(false)));
    assert!(office.provider.arrivals("At nine.").is_empty());
    office.set_clock_ahead(HOUR * 24);
    let sent = office.reminder_becomes(&id, "sent").await;
    assert_eq!((&sent["reminderSent"], &sent["deliveries"][0]["outcome"]), (&json!(true), &json!("sent")));
    assert_eq!(sent["deliveries"][0]["providerMessageId"], format!("p-{id}"));
    assert_eq!((sent["deliveries"][0]["at"].is_string(), sent["endedAt"].is_string()), (true, true));
    assert_eq!(outcomes(&sent), [("sent".into(), None)]);
    let arrived = office.provider.arrivals("At nine.");
    assert_eq!((arrived.len(), &arrived[0].key), (1, &id));
    assert_eq!((&arrived[0].body["id"], &arrived[0].body["recipientPhone"]), (&json!(id), &json!("+15550100")));
    counted(&office, "reminder.sent", 2).await;
    // The log has no text and no address.
    for server in &office.servers {
        let log = format!("{:?}", server.log());
        assert!(!log.contains("At nine.") && !log.contains("+15550100"), "{log}");
    }
}

async fn it_is_moved_and_reworded_until_it_is_sent(on: On) {
    let office = PostOffice::open(on).await;
    let id = office.remind(&tomorrow("b", "At nine.")).await;
    let path = format!("/api/reminders/{id}");
    let before = office.reminder(&id).await;
    let send_at = from_now(HOUR * 48);
    let moved = office.client(1).put(&path, &json!({"sendAt": send_at})).await.expect(200).body;
    assert_eq!(moved, with(before, json!({"sendAt": send_at})));
    let new =
        json!({"message": "At ten.", "channel": "keyed", "recipientPhone": "+15550199", "recipientEmail": "a@b.test"});
    let reworded = office.client(0).put(&path, &new).await.expect(200).body;
    assert_eq!(reworded, with(moved, new));
    assert_eq!(office.reminder(&id).await, reworded);
    assert_eq!(office.client(0).put(&path, &json!({})).await.expect(200).body, reworded, "nothing is to be another");
    office.client(0).put(&path, &json!({"sendAt": "2020-01-01T00:00:00Z"})).await.expect_invalid("sendAt");
    // Its first due time passes.
    office.set_clock_ahead(HOUR * 25);
    let other = office.remind(&with(reminder("now", "sms", "At once."), json!({"sendAt": from_now(HOUR * 25)}))).await;
    office.reminder_becomes(&other, "sent").await;
    assert_eq!(office.reminder(&id).await, reworded);
    office.set_clock_ahead(HOUR * 48);
    office.reminder_becomes(&id, "sent").await;
    assert!(office.provider.arrivals("At nine.").is_empty());
    let arrived = office.provider.arrivals("At ten.");
    assert_eq!((arrived.len(), &arrived[0].body["recipientPhone"]), (1, &json!("+15550199")));
    for late in [json!({"message": "At noon."}), json!({"sendAt": from_now(HOUR * 72)})] {
        let refused = office.client(1).put(&path, &late).await.expect_problem(409, "wrong-status");
        assert!(refused.text("detail").contains("it is sent"), "{refused:?}");
    }
    // Also long after.
    office.set_clock_ahead(HOUR * 72);
    office.client(1).put(&path, &json!({"message": "At noon."})).await.expect_problem(409, "wrong-status");
}

async fn it_is_cancelled_until_it_is_sent(on: On) {
    let office = PostOffice::open(on).await;
    let body = tomorrow("b", "At nine.");
    let id = office.remind(&body).await;
    let path = format!("/api/reminders/{id}");
    let cancelled = office.client(1).delete(&path).await.expect(200).body;
    assert_eq!((&cancelled["state"], cancelled["endedAt"].is_string()), (&json!("cancelled"), true));
    assert_eq!(office.client(0).delete(&path).await.expect(200).body, cancelled, "again is right");
    assert_eq!(office.client(0).post("/api/reminders", &body).await.expect(200).body, cancelled, "and stays so");
    office.set_clock_ahead(HOUR * 24);
    let due = json!({"sendAt": from_now(HOUR * 24)});
    let other = office.remind(&with(reminder("now", "sms", "At once."), due.clone())).await;
    office.reminder_becomes(&other, "sent").await;
    assert!(office.provider.arrivals("At nine.").is_empty(), "its time has come, and nobody sends it");
    let revived = office.client(1).put(&path, &due).await.expect(200).body;
    assert_eq!((&revived["state"], &revived["endedAt"]), (&json!("scheduled"), &json!(null)));
    office.reminder_becomes(&id, "sent").await;
    assert_eq!(office.provider.arrivals("At nine.").len(), 1);
    let refused = office.client(0).delete(&path).await.expect_problem(409, "wrong-status");
    assert!(refused.text("detail").contains("it is sent"), "{refused:?}");
    // Also while the carrier has the request.
    let slow = office.remind(&with(reminder("slow", "sms", "At noon.#slow"), due)).await;
    eventually("it is there", || async { (!office.provider.arrivals("At noon.#slow").is_empty()).then_some(()) }).await;
    let path = format!("/api/reminders/{slow}");
    let refused = [
        office.client(0).delete(&path).await,
        office.client(1).put(&path, &json!({"message": "Not yet."})).await,
        office.send_reminder(&slow, "now").await,
    ];
    for refused in refused {
        assert!(refused.expect_problem(409, "wrong-status").text("detail").contains("it is sending"));
    }
    assert_eq!(office.reminder(&slow).await["reminderSent"], true, "before it is known to be");
    office.reminder_becomes(&slow, "sent").await;
    assert_eq!(office.provider.arrivals("At noon.#slow").len(), 1);
}

async fn a_refused_connection_is_tried_again_within_the_grace_and_missed_after_it(on: On) {
    let office = PostOffice::open_with(on, "[reminders]\ngrace = \"4s\"").await;
    let id = office.remind(&reminder("b", "closed", "nobody there")).await;
    let tried = eventually("it is tried again", || async {
        Some(office.reminder(&id).await).filter(|reminder| outcomes(reminder).len() >= 2)
    })
    .await;
    assert_eq!(tried["reminderSent"], true);
    let missed = office.reminder_becomes(&id, "missed").await;
    assert!(outcomes(&missed).iter().all(|row| *row == ("failed".into(), Some("no".into()))), "{missed}");
    assert!(missed["deliveries"][0]["error"].as_str().is_some_and(|error| !error.is_empty()), "{missed}");
    assert_eq!((&missed["reminderSent"], missed["endedAt"].is_string()), (&json!(true), true));
    let time = |text: &Value| text.as_str().and_then(oncegate::Time::parse).expect("a time");
    let took = time(&missed["endedAt"]).since(time(&missed["sendAt"]));
    // A try that began within the grace may end after it, by the time-out of a call.
    assert!(took <= Duration::from_secs(4 + 2), "{missed}");
    assert_eq!(listed(&office, "state=missed").await, [json!(id)]);
}

async fn a_provider_that_said_no_is_asked_again_within_the_grace(on: On) {
    let office = PostOffice::open(on).await;
    for text in ["busy#429-once", "busy#503-once"] {
        let id = office.remind(&reminder(text, "sms", text)).await;
        let sent = office.reminder_becomes(&id, "sent").await;
        assert_eq!(outcomes(&sent), [("failed".into(), Some("no".into())), ("sent".into(), None)]);
        let arrived = office.provider.arrivals(text);
        assert!(arrived.len() == 2 && arrived.iter().all(|arrived| arrived.key == id), "under one key: {arrived:?}");
    }
    counted(&office, "reminder.failed", 2).await;
}

async fn what_may_have_arrived_is_never_sent_again_and_is_seen_to_be_missed(on: On) {
    let office = PostOffice::open(on).await;
    let mut ids = vec![];
    // A provider that honours keys makes no difference: the flag is set.
    for (channel, text) in [("sms", "?#cut"), ("sms", "?#500"), ("sms", "?#hang"), ("keyed", "!#cut")] {
        let id = office.remind(&reminder(&format!("{channel} {text}"), channel, text)).await;
        let missed = office.reminder_becomes(&id, "missed").await;
        assert_eq!(outcomes(&missed), [("failed".into(), Some("maybe".into()))], "{text}");
        assert_eq!(missed["reminderSent"], true);
        ids.insert(0, json!(id));
    }
    assert_eq!(listed(&office, "state=missed").await, ids);
    counted(&office, "reminder.missed", 4).await;
    // The log is written in the background.
    let lines = eventually("each is told", || async {
        let log = office.servers.iter().flat_map(|server| server.log());
        let lines: Vec<Value> = log.filter(|line| line["event"] == "reminder.missed").collect();
        (lines.len() == 4).then_some(lines)
    })
    .await;
    assert!(lines.iter().all(|line| line["level"] == "error" && line["hint"].is_string()), "{lines:?}");
    assert!(ids.iter().all(|id| lines.iter().any(|line| line["reminderId"] == *id)), "{lines:?}");
    // After any possible backoff, and while another reminder is sent.
    office.set_clock_ahead(Duration::from_secs(120));
    let other = office.remind(&reminder("after", "sms", "after")).await;
    office.reminder_becomes(&other, "sent").await;
    for text in ["?#cut", "?#500", "?#hang", "!#cut"] {
        assert_eq!(office.provider.arrivals(text).len(), 1, "{text}");
    }
}

async fn what_nobody_could_send_in_time_is_missed(on: On) {
    let mut office = PostOffice::open(on).await;
    let id = office.remind(&tomorrow("b", "At nine.")).await;
    let body = tomorrow("b", "At nine.");
    office.servers.clear();
    office.set_clock_ahead(HOUR * 25);
    office.servers = vec![office.serve(&[])];
    let missed = office.reminder_becomes(&id, "missed").await;
    assert_eq!(
        (&missed["reminderSent"], outcomes(&missed)),
        (&json!(false), vec![("failed".into(), Some("no".into()))])
    );
    counted(&office, "reminder.missed", 1).await;
    assert!(office.provider.all().is_empty());
    // A retry of the same request gets the missed reminder. A different request that is equally late is refused.
    assert_eq!(office.client(0).post("/api/reminders", &body).await.expect(200).body, missed);
    let late = with(body, json!({"bookingId": "c"}));
    office.client(0).post("/api/reminders", &late).await.expect_invalid("sendAt");
    office.send_reminder(&id, "the queue was down").await.expect(200);
    let sent = office.reminder_becomes(&id, "sent").await;
    assert_eq!((&sent["reminderSent"], office.provider.arrivals("At nine.").len()), (&json!(true), 1));
}
