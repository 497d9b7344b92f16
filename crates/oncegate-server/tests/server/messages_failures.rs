//! How a failure is classified: a surely unsent message never blocks a retry, and a message that may have been sent is never called failed.
#![cfg(feature = "crash-points")]

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{MailServer, On, PostOffice, Reply, eventually, on_both, sms, with};

on_both![
    what_was_surely_not_sent_is_failed_and_can_be_sent_again,
    a_provider_that_is_busy_is_asked_again,
    what_may_have_been_sent_is_unknown_and_not_sent_again,
    a_person_says_what_became_of_an_unknown_one,
    of_two_persons_at_once_one_has_settled_it,
    a_provider_that_honours_the_key_is_asked_again_under_it,
    a_failed_one_is_held_where_the_config_says_so,
    a_send_that_takes_long_is_answered_as_it_stands,
    observing_lets_duplicates_through_and_reports_them,
];

fn by(channel: &str, text: &str) -> Value {
    with(sms("+15550100", text), json!({"channel": channel}))
}

#[track_caller]
fn expect_failed(reply: &Reply, status: &str) {
    assert_eq!((reply.status, &reply.body["success"]), (502, &json!(false)), "{reply:?}");
    assert_eq!((&reply.body["status"], &reply.body["message"]["status"]), (&json!(status), &json!(status)));
    assert!(reply.body["error"].as_str().is_some_and(|error| !error.is_empty()), "{reply:?}");
    assert_eq!(reply.body["message"]["sentAt"], Value::Null);
}

async fn what_was_surely_not_sent_is_failed_and_can_be_sent_again(on: On) {
    let office = PostOffice::open(on).await;
    for (turn, text) in ["no#400", "no#401", "no#404", "no#422"].into_iter().enumerate() {
        for tries in 1..=2 {
            expect_failed(&office.client(turn).post("/api/messages", &by("sms", text)).await, "failed");
            assert_eq!(office.provider.arrivals(text).len(), tries, "{text}: one try each time, and no lock left");
        }
    }
    for turn in 0..2 {
        expect_failed(&office.client(turn).post("/api/messages", &by("closed", "nobody there")).await, "failed");
    }
    // A provider that does not speak the encryption that its URL asks for.
    for turn in 0..2 {
        expect_failed(&office.client(turn).post("/api/messages", &by("tls", "no handshake")).await, "failed");
    }
    assert!(office.provider.arrivals("no handshake").is_empty());
    // The claim is deleted, not only skipped.
    let find = json!({"guard": "message", "key": ["+15550100", null, "no#400"]});
    office.client(1).post("/api/claims/find", &find).await.expect_problem(404, "not-found");
}

async fn a_provider_that_is_busy_is_asked_again(on: On) {
    let office = PostOffice::open(on).await;
    for text in ["busy#429-once", "busy#503-once"] {
        let reply = office.post(&by("sms", text)).await;
        assert_eq!(reply.body["status"], "sent", "{reply:?}");
        let arrivals = office.provider.arrivals(text);
        assert_eq!(arrivals.len(), 2);
        assert_eq!(arrivals[0].key, arrivals[1].key, "every try has the same key");
    }
    expect_failed(&office.post(&by("sms", "busy#425")).await, "failed");
    assert_eq!(office.provider.arrivals("busy#425").len(), 3, "three tries");
    let again = office.post(&by("sms", "busy#425")).await;
    expect_failed(&again, "failed");
    assert_eq!(office.provider.arrivals("busy#425").len(), 6);
}

async fn what_may_have_been_sent_is_unknown_and_not_sent_again(on: On) {
    let office = PostOffice::open(on).await;
    for (turn, text) in ["?#500", "?#502", "?#503", "?#408", "?#302", "?#cut", "?#hang"].into_iter().enumerate() {
        expect_failed(&office.client(turn).post("/api/messages", &by("sms", text)).await, "unknown");
        let again = office.client(turn + 1).post("/api/messages", &by("sms", text)).await.expect(200);
        assert_eq!((&again.body["duplicateOnly"], &again.body["status"]), (&json!(true), &json!("unknown")));
        assert_eq!(office.provider.arrivals(text).len(), 1, "{text}");
    }
    // A duplicate of our own key means that the message was sent.
    assert_eq!(office.post(&by("sms", "have it#409")).await.body["status"], "sent");
}

async fn a_person_says_what_became_of_an_unknown_one(on: On) {
    let office = PostOffice::open(on).await;
    let unknown = async |text: &str| {
        let reply = office.post(&by("sms", text)).await;
        expect_failed(&reply, "unknown");
        reply.body["message"]["_id"].as_str().expect("an id").to_owned()
    };
    let resolve =
        async |id: &str, body: Value| office.client(1).post(&format!("/api/messages/{id}/resolve"), &body).await;
    let sent = unknown("it came#500").await;
    let settled = resolve(&sent, json!({"as": "sent", "note": "they have it"})).await.expect(200).body;
    assert_eq!((&settled["status"], &settled["resolved"]["note"]), (&json!("sent"), &json!("they have it")));
    assert!(settled["sentAt"].is_string() && settled["error"].is_null(), "{settled}");
    // The acknowledgement may be lost, so the same resolution succeeds again; a different one is refused.
    assert_eq!(resolve(&sent, json!({"as": "sent"})).await.expect(200).body, settled);
    resolve(&sent, json!({"as": "not_sent"})).await.expect_problem(409, "wrong-status");
    let again = office.client(1).post("/api/messages", &by("sms", "it came#500")).await.expect(200);
    assert_eq!((&again.body["duplicateOnly"], &again.body["status"]), (&json!(true), &json!("sent")));
    assert_eq!(office.provider.arrivals("it came#500").len(), 1);

    // An unsent message is sent when it is posted again (to a provider that never succeeds). The same holds under the key that got
    // "unknown".
    for key in [None, Some("k")] {
        let text = format!("it did not {key:?}#500");
        let post = async || match key {
            Some(key) => office.post_with_key(key, &by("sms", &text)).await,
            None => office.post(&by("sms", &text)).await,
        };
        let first = post().await;
        expect_failed(&first, "unknown");
        let id = first.body["message"]["_id"].as_str().expect("an id");
        assert_eq!(resolve(id, json!({"as": "not_sent"})).await.expect(200).body["status"], "failed");
        let again = post().await;
        expect_failed(&again, "unknown");
        assert_eq!((again.header("idempotent-replayed"), &again.body["duplicateOnly"]), (None, &Value::Null));
        assert_ne!(again.body["message"]["_id"], first.body["message"]["_id"]);
        assert_eq!(office.provider.arrivals(&text).len(), 2);
        let again = again.body["message"]["_id"].as_str().expect("an id");
        resolve(again, json!({"as": "sent"})).await.expect(200);
    }
    let listed = office.client(0).get("/api/messages?status=unknown").await.expect(200).body;
    assert_eq!(listed["items"], json!([]));
    let lines = office.servers[office.servers.len() - 1].logged("audit.message_resolved", 5).await;
    assert_eq!((&lines[0]["messageId"], &lines[0]["why"]), (&json!(sent), &json!("they have it")), "{lines:?}");
    let audited = lines.iter().filter(|line| line["messageId"] == json!(sent)).count();
    assert_eq!(audited, 1, "who says what was said before has changed nothing");

    let plain = office.post(&by("sms", "plain")).await;
    let plain = plain.body["message"]["_id"].as_str().expect("an id");
    resolve(plain, json!({"as": "sent"})).await.expect_problem(409, "wrong-status");
    resolve("nothing", json!({"as": "sent"})).await.expect_problem(404, "not-found");
    let refused = resolve(&sent, json!({"as": "done"})).await.expect_problem(400, "invalid-request");
    assert!(refused.text("detail").contains("done"), "{refused:?}");
    // The same from the shell.
    let id = unknown("from the shell#500").await;
    let settled =
        office.home.run(["messages", "resolve", &id, "--as", "sent", "--note", "seen", "--json"]).expect_code(0);
    assert_eq!((&settled.json()["status"], &settled.json()["resolved"]["note"]), (&json!("sent"), &json!("seen")));
    assert!(settled.stderr.contains("resolved as sent by"), "{settled:?}");
    let hint = format!("oncegate messages show {id}");
    office.home.run(["messages", "resolve", &id, "--as", "not_sent"]).expect_failure(1, "it is sent", &hint);
    office.home.run(["messages", "resolve", "nothing", "--as", "sent"]).expect_failure(
        3,
        "no message nothing",
        "messages list",
    );
}

async fn of_two_persons_at_once_one_has_settled_it(on: On) {
    let office = PostOffice::open(on).await;
    for round in 0..8 {
        let reply = office.post(&by("sms", &format!("{round}#500"))).await;
        expect_failed(&reply, "unknown");
        let id = reply.body["message"]["_id"].as_str().expect("an id");
        let resolve = format!("/api/messages/{id}/resolve");
        let (mut one, mut other) = (office.client(round), office.client(round + 1));
        // The two callers agree, or not.
        let words = [json!({"as": "sent"}), json!({"as": if round % 2 == 0 { "sent" } else { "not_sent" }})];
        let (first, second) = tokio::join!(one.post(&resolve, &words[0]), other.post(&resolve, &words[1]));
        let mut statuses = [first.status, second.status];
        statuses.sort_unstable();
        assert_eq!(statuses, if round % 2 == 0 { [200, 200] } else { [200, 409] }, "{first:?} {second:?}");
        let settled = if first.status == 200 { &first.body } else { &second.body };
        let stands = office.client(round).get(&format!("/api/messages/{id}")).await.expect(200).body;
        assert_eq!(&stands, settled);
    }
}

async fn a_provider_that_honours_the_key_is_asked_again_under_it(on: On) {
    let office = PostOffice::open(on).await;
    let reply = office.post(&by("keyed", "again#cut-once")).await;
    assert_eq!(reply.body["status"], "sent", "{reply:?}");
    assert_eq!((office.provider.arrivals("again#cut-once").len(), office.provider.effects("again#cut-once")), (2, 1));
    expect_failed(&office.post(&by("keyed", "never#500")).await, "unknown");
    assert_eq!((office.provider.arrivals("never#500").len(), office.provider.effects("never#500")), (3, 1));
}

async fn a_failed_one_is_held_where_the_config_says_so(on: On) {
    let office = PostOffice::open_with(on, "failed = \"hold\"").await;
    let first = office.post_with_key("k", &by("sms", "held#400")).await;
    expect_failed(&first, "failed");
    let again = office.client(1).post("/api/messages", &by("sms", "held#400")).await.expect(200);
    assert_eq!((&again.body["duplicateOnly"], &again.body["message"]), (&json!(true), &first.body["message"]));
    assert_eq!(again.body["success"], false);
    assert_eq!(office.post_with_key("k", &by("sms", "held#400")).await.text, first.text);
    assert_eq!(office.provider.arrivals("held#400").len(), 1);
}

async fn a_send_that_takes_long_is_answered_as_it_stands(on: On) {
    let office = PostOffice::open_with(on, "send_wait = \"300ms\"").await;
    let first = office.post_with_key("k", &by("sms", "long#slow")).await.expect(202);
    assert_eq!((&first.body["success"], &first.body["status"]), (&json!(true), &json!("sending")));
    let replay = office.post_with_key("k", &by("sms", "long#slow")).await.expect(202);
    assert_eq!(replay.text, first.text);
    let path = format!("/api/messages/{}", first.body["message"]["_id"].as_str().expect("an id"));
    eventually("it is sent", || async { (office.client(1).get(&path).await.body["status"] == "sent").then_some(()) })
        .await;
    let duplicate = office.client(1).post("/api/messages", &by("sms", "long#slow")).await.expect(200);
    assert_eq!(duplicate.body["status"], "sent");
    assert_eq!(office.post_with_key("k", &by("sms", "long#slow")).await.text, first.text, "still the first answer");
    assert_eq!(office.provider.arrivals("long#slow").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs aiosmtpd: run make test"]
async fn mail_is_refused_before_and_after_the_final_dot() {
    let server = tokio::task::spawn_blocking(MailServer::start).await.expect("starts");
    let channel = format!(
        "[messages.channel.email]\nkind = \"smtp\"\nurl = \"smtp://127.0.0.1:{}\"\nfrom = \"Acme <hello@acme.test>\"\n",
        server.port
    );
    let office = PostOffice::open_with(On::Sqlite, &channel).await;
    let to = |address: &str, text: &str| json!({"recipientEmail": address, "message": text});
    let sent = office.post(&to("ann@home.test", "Dear Ann,\nall is well.\n.\nYours")).await.expect(201);
    let id = sent.body["message"]["_id"].as_str().expect("an id").to_owned();
    let mails = eventually("the mail", || async { Some(server.mails(&id)).filter(|mails| !mails.is_empty()) }).await;
    let text = mails[0]["text"].as_str().expect("text");
    assert!(text.contains(&format!("Message-ID: <{id}@acme.test>")), "{text}");
    assert!(text.contains("Subject: Dear Ann,") && text.contains("\n.\r\nYours"), "{text}");
    assert_eq!(mails[0]["to"], json!(["ann@home.test"]));

    // Before the final dot: surely not sent. A temporary refusal, or a permanent one.
    for turn in 0..2 {
        let refused = office.client(turn).post("/api/messages", &to("nobody@home.test", "x")).await;
        expect_failed(&refused, "failed");
        assert!(refused.text("error").contains("550"), "{refused:?}");
    }
    let busy = office.post(&to("busy@home.test", "x")).await;
    expect_failed(&busy, "failed");
    assert!(busy.text("error").contains("450"), "{busy:?}");
    // After it: the server's refusal is final.
    for turn in 1..=2 {
        let refused = office.post(&to("ann@home.test", "y #refuse")).await;
        expect_failed(&refused, "failed");
        assert_eq!(server.mails("y #refuse").len(), turn);
    }
    // Without a reply, the outcome is unknown.
    for text in ["z #cut", "z #hang"] {
        expect_failed(&office.post(&to("ann@home.test", text)).await, "unknown");
        let again = office.client(1).post("/api/messages", &to("ann@home.test", text)).await.expect(200);
        assert_eq!(again.body["status"], "unknown");
        assert_eq!(server.mails(text).len(), 1);
    }
    // No server listens at all.
    drop(server);
    tokio::time::sleep(Duration::from_millis(50)).await;
    expect_failed(&office.post(&to("ann@home.test", "too late")).await, "failed");
    let no_address = json!({"recipientPhone": "+1", "channel": "email", "message": "x"});
    office.post(&no_address).await.expect_invalid("recipientEmail");
}

async fn observing_lets_duplicates_through_and_reports_them(on: On) {
    let office = PostOffice::open_with(on, "mode = \"observe\"").await;
    let first = office.post(&by("sms", "seen")).await.expect(201);
    let second = office.post(&by("sms", "seen")).await.expect(200);
    assert!(second.body["duplicateOnly"].is_null(), "{second:?}");
    assert_ne!(first.body["message"]["_id"], second.body["message"]["_id"]);
    assert_eq!(office.provider.arrivals("seen").len(), 2);
    let line = &office.servers[0].logged("message.api.duplicate_observed", 1).await[0];
    assert_eq!(line["messageId"], first.body["message"]["_id"]);
    let metrics = office.client(0).get("/metrics").await.text;
    assert!(!metrics.contains("duplicates_stopped_total{guard=\"message\"} 1"), "nothing was stopped: {metrics}");
}
