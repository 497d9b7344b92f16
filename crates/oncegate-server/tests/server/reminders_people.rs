//! What people may and may not do with reminders: bad input, roles, workspaces, sending a missed one by hand, the command line.
#![cfg(feature = "crash-points")]

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Home, On, PostOffice, Reply, eventually, from_now, on_both, outcomes, reminder, with};

on_both![
    what_cannot_be_right_is_refused_by_name_and_leaves_nothing,
    a_person_has_a_missed_one_sent_and_it_is_written_down_who_and_why,
    two_persons_at_once_have_it_sent_once,
    a_missed_one_is_let_be_and_nothing_brings_it_back,
    what_belongs_to_another_workspace_is_not_there,
    the_command_line_lists_shows_cancels_and_sends,
];

const DAY: Duration = Duration::from_secs(24 * 3600);
const NOBODY: &str = "01990000-0000-7000-8000-000000000000";

fn tomorrow(booking: &str) -> Value {
    with(reminder(booking, "sms", "At nine."), json!({"sendAt": from_now(DAY)}))
}

/// A missed reminder; the next try succeeds.
async fn missed(office: &PostOffice, booking: &str) -> String {
    let id = office.remind(&reminder(booking, "sms", &format!("{booking}#cut-once"))).await;
    office.reminder_becomes(&id, "missed").await;
    id
}

async fn what_cannot_be_right_is_refused_by_name_and_leaves_nothing(on: On) {
    let mail = "[messages.channel.mail]\nkind = \"smtp\"\nurl = \"smtp://127.0.0.1:1\"\nfrom = \"a@b.test\"";
    let office = PostOffice::open_with(on, mail).await;
    let mut client = office.client(0);
    for field in ["bookingId", "sendAt", "channel", "message"] {
        let mut body = tomorrow("b");
        body.as_object_mut().expect("an object").remove(field);
        client.post("/api/reminders", &body).await.expect_invalid(&format!("`{field}`"));
    }
    let long = |chars: usize| "x".repeat(chars);
    let cases = [
        ("bookingId", json!({"bookingId": ""})),
        ("bookingId", json!({"bookingId": long(257)})),
        ("bookingId", json!({"bookingId": "a\u{0}b"})),
        ("bookingId", json!({"bookingId": 17})),
        ("kind", json!({"kind": ""})),
        ("kind", json!({"kind": "a\nb"})),
        ("kind", json!({"kind": long(257)})),
        ("sendAt", json!({"sendAt": ""})),
        ("sendAt", json!({"sendAt": "tomorrow"})),
        ("sendAt", json!({"sendAt": "2026-11-15T09:30:00"})),
        ("sendAt", json!({"sendAt": "2026-02-30T09:30:00Z"})),
        ("sendAt", json!({"sendAt": 1_790_000_000})),
        ("sendAt", json!({"sendAt": "0001-01-01T00:00:00Z"})),
        ("sendAt", json!({"sendAt": "2020-01-01T00:00:00Z"})),
        ("channel", json!({"channel": ""})),
        ("channel", json!({"channel": "no good"})),
        ("channel", json!({"channel": long(65)})),
        ("recipientPhone", json!({"recipientPhone": ""})),
        ("recipientPhone", json!({"recipientPhone": " +1"})),
        ("recipientPhone", json!({"recipientPhone": "+1\u{0}"})),
        ("recipientEmail", json!({"recipientEmail": "ann"})),
        ("recipientEmail", json!({"recipientEmail": "ann@"})),
        ("recipientEmail", json!({"channel": "mail"})),
        ("recipientPhone or recipientEmail", json!({"recipientPhone": null})),
        ("message", json!({"message": ""})),
        ("message", json!({"message": long(64 * 1024 + 1)})),
        ("`colour`", json!({"colour": "red"})),
    ];
    for (named, wrong) in &cases {
        client.post("/api/reminders", &with(tomorrow("b"), wrong.clone())).await.expect_invalid(named);
    }
    assert_eq!(client.get("/api/reminders").await.expect(200).body["items"], json!([]));
    let id = office.remind(&tomorrow("b")).await;
    let (path, before) = (format!("/api/reminders/{id}"), office.reminder(&id).await);
    // Fields that cannot be changed are unknown to an edit, so their cases are left out.
    let edits = cases.iter().filter(|(named, _)| !named.contains(" or ") && *named != "bookingId" && *named != "kind");
    for (named, wrong) in edits {
        client.put(&path, wrong).await.expect_invalid(named);
    }
    for (named, wrong) in [("`bookingId`", json!({"bookingId": "c"})), ("`kind`", json!({"kind": "c"}))] {
        client.put(&path, &wrong).await.expect_invalid(named);
    }
    assert_eq!(office.reminder(&id).await, before);
    client.post(&format!("{path}/send"), &json!({"note": long(1025)})).await.expect_invalid("note");
    client.post(&format!("{path}/send"), &json!({"why": "x"})).await.expect_invalid("`why`");
    for (named, query) in [
        ("state", "state=gone"),
        ("limit", "limit=0"),
        ("limit", "limit=501"),
        ("cursor", "cursor=x"),
        ("colour", "colour=red"),
        ("bookingId", "bookingId=a%00b"),
    ] {
        client.get(&format!("/api/reminders?{query}")).await.expect_invalid(named);
    }
    for nobody in [NOBODY, "nonsense"] {
        let path = format!("/api/reminders/{nobody}");
        client.get(&path).await.expect_problem(404, "not-found");
        client.put(&path, &json!({"message": "x"})).await.expect_problem(404, "not-found");
        client.delete(&path).await.expect_problem(404, "not-found");
        client.post(&format!("{path}/send"), &json!({})).await.expect_problem(404, "not-found");
    }
    // The latest possible day, and the maximum lengths.
    let far = json!({"bookingId": "é".repeat(256), "sendAt": "9999-12-30T00:00:00Z", "message": long(64 * 1024)});
    office.remind(&with(tomorrow("b"), far)).await;
    assert!(office.provider.all().is_empty());
}

async fn a_person_has_a_missed_one_sent_and_it_is_written_down_who_and_why(on: On) {
    let mut office = PostOffice::open(on).await;
    let id = missed(&office, "b").await;
    let (_, sends) = office.home.make_key("default", "send");
    let (operator, operates) = office.home.make_key("default", "operate");
    // A server that knows the keys from its start.
    office.servers.clear();
    office.servers = vec![office.serve(&[])];
    let server = &office.servers[0];
    let (path, note) = (format!("/api/reminders/{id}"), json!({"note": "called them"}));
    server.client().post(&format!("{path}/send"), &note).await.expect_problem(401, "unauthorized");
    let mut sender = server.client_with(&sends);
    let settled = json!({"as": "not_sent"});
    for refused in [
        sender.post(&format!("{path}/send"), &note).await,
        sender.post(&format!("{path}/resolve"), &settled).await,
        sender.get("/api/reminders").await,
    ] {
        let refused = refused.expect_problem(403, "forbidden");
        assert!(refused.text("detail").contains("operate"), "{refused:?}");
    }
    // A program may do what the role `send` allows.
    assert_eq!(sender.get(&path).await.expect(200).body["state"], "missed");
    let other = sender.post("/api/reminders", &tomorrow("other")).await.expect(201).text("id");
    sender.put(&format!("/api/reminders/{other}"), &json!({"message": "At ten."})).await.expect(200);
    sender.delete(&format!("/api/reminders/{other}")).await.expect(200);
    assert_eq!(office.provider.arrivals("b#cut-once").len(), 1);
    let mut operates = server.client_with(&operates);
    let sending = operates.post(&format!("{path}/send"), &note).await.expect(200).body;
    assert_eq!((&sending["reminderSent"], &sending["sentBy"]), (&json!(true), &json!(operator)));
    let line = server.logged("audit.reminder_sent", 1).await.remove(0);
    assert_eq!((&line["reminderId"], &line["by"]), (&json!(id), &json!(operator)), "{line}");
    assert_eq!((&line["why"], &line["workspace"]), (&json!("called them"), &json!("default")), "{line}");
    let sent = eventually("it is sent", || async {
        let mut client = server.client_with(&sends);
        Some(client.get(&path).await.body).filter(|reminder| reminder["state"] == "sent")
    })
    .await;
    assert_eq!(outcomes(&sent), [("failed".into(), Some("maybe".into())), ("sent".into(), None)]);
    // A program sees the outcome, and not the person who acted.
    let names = |reply: &Reply| reply.text.contains(&operator) || reply.text.contains("called them");
    assert!(names(&operates.get(&path).await.expect(200)));
    for seen in [
        sender.get(&path).await,
        sender.post("/api/reminders", &reminder("b", "sms", "b#cut-once")).await,
        sender.put(&path, &json!({"message": "n"})).await,
        sender.delete(&path).await,
    ] {
        assert!(seen.status < 500 && !names(&seen), "{seen:?}");
    }
    let keys: Vec<String> = office.provider.arrivals("b#cut-once").into_iter().map(|arrived| arrived.key).collect();
    assert_eq!(keys, [id.clone(), id], "under the key that it had");
    operates.post(&format!("{path}/send"), &json!({})).await.expect_problem(409, "wrong-status");
    assert_eq!(server.log().iter().filter(|line| line["event"] == "audit.reminder_sent").count(), 1);
}

async fn two_persons_at_once_have_it_sent_once(on: On) {
    let office = PostOffice::open(on).await;
    for round in 0..5 {
        let booking = format!("b{round}");
        let id = missed(&office, &booking).await;
        let sends = (0..4).map(|number| {
            let (mut client, path) = (office.client(number), format!("/api/reminders/{id}/send"));
            tokio::spawn(async move { client.post(&path, &json!({})).await.status })
        });
        let mut statuses = vec![];
        for send in sends.collect::<Vec<_>>() {
            statuses.push(send.await.expect("does not panic"));
        }
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409, 409, 409]);
        office.reminder_becomes(&id, "sent").await;
        assert_eq!(office.provider.arrivals(&format!("{booking}#cut-once")).len(), 2);
    }
}

async fn a_missed_one_is_let_be_and_nothing_brings_it_back(on: On) {
    let office = PostOffice::open(on).await;
    let id = missed(&office, "b").await;
    let path = format!("/api/reminders/{id}");
    let resolve = format!("{path}/resolve");
    // A program can cancel a future reminder; a missed reminder is for a person to handle.
    office.client(0).delete(&path).await.expect_problem(409, "wrong-status");
    let word = json!({"as": "not_sent", "note": "the day is over"});
    let cancelled = office.client(1).post(&resolve, &word).await.expect(200).body;
    assert_eq!((&cancelled["state"], &cancelled["reminderSent"]), (&json!("cancelled"), &json!(true)));
    assert_eq!(outcomes(&cancelled), [("failed".into(), Some("maybe".into()))], "what was tried stays written");
    assert_eq!(cancelled["resolved"]["note"], "the day is over");
    let mut client = office.client(0);
    assert_eq!(client.post(&resolve, &word).await.expect(200).body, cancelled, "said twice it is the same");
    client.post(&resolve, &json!({"as": "sent"})).await.expect_problem(409, "wrong-status");
    client.post(&format!("{path}/send"), &json!({})).await.expect_problem(409, "wrong-status");
    let moved =
        client.put(&path, &json!({"sendAt": tomorrow("b")["sendAt"]})).await.expect_problem(409, "wrong-status");
    assert!(moved.text("detail").contains("dismissed"), "{moved:?}");
    let line = office.servers[office.servers.len() - 1].logged("audit.reminder_resolved", 1).await.remove(0);
    assert_eq!((&line["sent"], &line["why"]), (&json!(false), &json!("the day is over")), "{line}");

    let other = missed(&office, "other").await;
    let sent = client.post(&format!("/api/reminders/{other}/resolve"), &json!({"as": "sent"})).await.expect(200).body;
    assert_eq!((&sent["state"], &sent["resolved"]["sent"]), (&json!("sent"), &json!(true)));
    let waits = client.post("/api/reminders", &tomorrow("waits")).await.expect(201).text("id");
    client
        .post(&format!("/api/reminders/{waits}/resolve"), &json!({"as": "sent"}))
        .await
        .expect_problem(409, "wrong-status");
    client.post("/api/reminders/nothing/resolve", &json!({"as": "sent"})).await.expect_problem(404, "not-found");
    assert_eq!(client.get("/api/reminders?state=missed").await.expect(200).body["items"], json!([]));
    assert_eq!(office.provider.arrivals("b#cut-once").len(), 1);
}

async fn what_belongs_to_another_workspace_is_not_there(on: On) {
    let mut office = PostOffice::open(on).await;
    let (_, ours) = office.home.make_key("acme", "admin");
    let (_, theirs) = office.home.make_key("umbrella", "admin");
    office.servers.clear();
    office.servers = vec![office.serve(&[])];
    let (mut owner, mut stranger) = (office.servers[0].client_with(&ours), office.servers[0].client_with(&theirs));
    let made = owner.post("/api/reminders", &tomorrow("b")).await.expect(201);
    let path = format!("/api/reminders/{}", made.text("id"));
    let nothing = [
        stranger.get(&path).await,
        stranger.put(&path, &json!({"message": "x"})).await,
        stranger.delete(&path).await,
        stranger.post(&format!("{path}/send"), &json!({})).await,
    ];
    for nothing in nothing {
        nothing.expect_problem(404, "not-found");
    }
    assert_eq!(stranger.get("/api/reminders?bookingId=b").await.expect(200).body["items"], json!([]));
    let own = stranger.post("/api/reminders", &tomorrow("b")).await.expect(201);
    assert_ne!(own.text("id"), made.text("id"), "their booking is another");
    assert_eq!(owner.get(&path).await.expect(200).body, made.body);
}

async fn the_command_line_lists_shows_cancels_and_sends(on: On) {
    let office = PostOffice::open(on).await;
    let by_clock = office.home.path().join("clock").display().to_string();
    let run = |arguments: &[&str]| {
        let variables = [("ONCEGATE_TEST_CLOCK", by_clock.as_str()), ("USER", "ann")];
        office.home.run_with([&["reminders"], arguments].concat(), &variables)
    };
    let missed = missed(&office, "b").await;
    let waits = office.remind(&tomorrow("c c")).await;
    let table = run(&["list"]).expect_code(0).stdout;
    let lines: Vec<_> = table.lines().collect();
    assert!(lines.len() == 3 && lines[0].contains("ID") && lines[0].contains("SEND AT"), "{table}");
    assert!(lines[1].contains(&waits) && lines[1].contains("scheduled"), "{table}");
    assert!(lines[2].contains(&missed) && lines[2].contains("missed"), "{table}");
    let list = |more: &[&str]| run(&[&["list", "--json"], more].concat()).expect_code(0).json();
    assert_eq!(list(&[]), office.client(0).get("/api/reminders").await.body);
    assert_eq!(list(&["--state", "missed"])["items"][0]["id"], json!(missed));
    assert_eq!(list(&["--booking", "b"])["items"][0]["id"], json!(missed));
    assert_eq!(list(&["--workspace", "other"])["items"], json!([]));
    let first = list(&["--limit", "1"]);
    let cursor = first["nextCursor"].as_str().expect("a second page");
    assert_eq!(list(&["--limit", "1", "--cursor", cursor])["items"][0]["id"], json!(missed));
    assert!(run(&["list", "--limit", "1"]).expect_code(0).stdout.contains(&format!("--cursor {cursor}")));
    assert_eq!(run(&["show", &missed, "--json"]).expect_code(0).json(), office.reminder(&missed).await);
    let shown = run(&["show", &missed]).expect_code(0).stdout;
    assert!(shown.contains("reminderSent") && shown.contains("maybe"), "{shown}");

    let hint = format!("oncegate reminders show {missed}");
    run(&["cancel", &missed]).expect_failure(1, "it is missed", &hint);
    run(&["resolve", &waits, "--as", "sent"]).expect_failure(1, "it is scheduled", "oncegate reminders show");
    run(&["send", &waits]).expect_failure(1, "it is scheduled", "oncegate reminders show");
    let sent = run(&["send", &missed, "--note", "they asked", "--json"]).expect_code(0);
    assert_eq!((&sent.json()["id"], &sent.json()["sentBy"]), (&json!(missed), &json!("ann")));
    assert!(sent.stderr.contains(&format!("{missed} to be sent by ann: they asked")), "{sent:?}");
    office.reminder_becomes(&missed, "sent").await;
    assert_eq!(office.provider.arrivals("b#cut-once").len(), 2);
    run(&["send", &missed]).expect_failure(1, "it is sent", &hint);
    for _ in 0..2 {
        let cancelled = run(&["cancel", &waits, "--note", "moved away"]).expect_code(0);
        assert!(
            cancelled.stdout.contains("cancelled") && cancelled.stderr.contains("by ann: moved away"),
            "{cancelled:?}"
        );
    }
    assert_eq!(office.reminder(&waits).await["state"], "cancelled");

    for verb in ["show", "cancel", "send"] {
        for nobody in [NOBODY, "nonsense"] {
            let none = format!("no reminder {nobody} in workspace default");
            run(&[verb, nobody]).expect_failure(3, &none, "oncegate reminders list --workspace default");
        }
        run(&[verb, &waits, "--workspace", "other"]).expect_failure(3, "no reminder", "--workspace other");
        run(&[verb]).expect_code(2);
    }
    let long = "x".repeat(1025);
    for wrong in [
        &["list", "--state", "gone"][..],
        &["list", "--limit", "0"],
        &["list", "--cursor", "x"],
        &["list", "--workspace", "no good"],
        &["send", &waits, "--note", &long],
        &[],
    ] {
        let refused = run(wrong).expect_code(2);
        assert!(refused.stdout.is_empty() && !refused.stderr.is_empty(), "{wrong:?}: {refused:?}");
    }
}

#[test]
fn without_a_store_there_are_no_reminders_and_none_is_made() {
    let home = Home::new();
    assert!(!home.run(["reminders", "list"]).stderr.is_empty());
    assert!(!home.path().join("oncegate-data").exists());
}
