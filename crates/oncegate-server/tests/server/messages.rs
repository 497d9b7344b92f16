//! The same message is sent once, and each different one is sent: a table of which messages are the same, through HTTP, against a
//! provider that counts.
#![cfg(feature = "crash-points")]

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::support::{On, PostOffice, Reply, on_both, sms, with};

on_both![
    twenty_at_once_are_one_send_and_one_message,
    twenty_in_quick_succession_are_one_send,
    the_same_within_the_window_is_one_send_and_after_it_another,
    what_differs_is_sent,
    the_same_person_in_other_words_is_one_send,
    a_refused_request_holds_nothing,
    leads_are_found_by_phone_then_email_and_know_more_with_time,
    answers_are_as_the_page_says,
    a_duplicate_can_be_sent_on_purpose,
    lists_and_single_messages_are_shown_to_their_workspace_alone,
];

/// The message's id of an answer that has one.
#[track_caller]
fn id(reply: &Reply) -> String {
    reply.body["message"]["_id"].as_str().unwrap_or_else(|| panic!("no message: {reply:?}")).to_owned()
}

#[track_caller]
fn expect_duplicate(reply: &Reply, original: &str) {
    assert_eq!((reply.status, reply.header("oncegate-duplicate")), (200, Some("true")), "{reply:?}");
    assert_eq!(reply.body["duplicateOnly"], true, "{reply:?}");
    assert!(reply.body["duplicateMessage"].as_str().is_some_and(|sentence| sentence.contains("second")), "{reply:?}");
    assert_eq!(id(reply), original);
}

async fn twenty_at_once_are_one_send_and_one_message(on: On) {
    let office = PostOffice::open(on).await;
    let message = sms("+15550100", "Your table is ready.");
    let posts = (0..20).map(|caller| {
        let (mut client, message) = (office.client(caller), message.clone());
        async move { client.post("/api/messages", &message).await }
    });
    let replies = join_all(posts).await;
    let (firsts, others): (Vec<_>, Vec<_>) = replies.iter().partition(|reply| reply.body["duplicateOnly"].is_null());
    assert_eq!((firsts.len(), firsts[0].status), (1, 201), "{firsts:?}");
    others.iter().for_each(|other| expect_duplicate(other, &id(firsts[0])));
    assert_eq!(office.provider.arrivals("Your table is ready.").len(), 1);
}

async fn twenty_in_quick_succession_are_one_send(on: On) {
    let office = PostOffice::open(on).await;
    let message = sms("+15550100", "twice is too often");
    let mut ids = vec![];
    for turn in 0..20 {
        let reply = office.client(turn).post("/api/messages", &message).await;
        ids.push(id(&reply));
        tokio::time::sleep(Duration::from_millis([90, 150, 220, 350][turn % 4])).await;
    }
    ids.dedup();
    assert_eq!((ids.len(), office.provider.arrivals("twice is too often").len()), (1, 1));
}

async fn the_same_within_the_window_is_one_send_and_after_it_another(on: On) {
    const MINUTE: Duration = Duration::from_secs(60);
    let office = PostOffice::open(on).await;
    let message = sms("+15550100", "patience");
    let first = office.post(&message).await.expect(201);
    // Twenty duplicates, from two minutes on to nearly fifteen.
    for turn in 0..20 {
        let seconds = 120 + turn * 40;
        office.set_clock_ahead(Duration::from_secs(seconds));
        let reply = office.client(turn as usize).post("/api/messages", &message).await;
        expect_duplicate(&reply, &id(&first));
        let age = reply.body["duplicateMessage"].as_str().expect("a sentence").to_owned();
        let says = |seconds: u64| age.contains(&format!(" {seconds} seconds"));
        assert!(says(seconds) || says(seconds + 1) || says(seconds + 2), "{age}");
    }
    // Five seconds before the window's end, because the requests themselves take some time.
    office.set_clock_ahead(MINUTE * 15 - Duration::from_secs(5));
    expect_duplicate(&office.client(1).post("/api/messages", &message).await, &id(&first));
    office.set_clock_ahead(MINUTE * 15 + Duration::from_millis(1));
    let second = office.client(1).post("/api/messages", &message).await.expect(200);
    assert!(second.body["duplicateOnly"].is_null() && id(&second) != id(&first), "{second:?}");
    assert_eq!(office.provider.arrivals("patience").len(), 2);
}

async fn what_differs_is_sent(on: On) {
    let office = PostOffice::open(on).await;
    let sent = async |body: Value| {
        let reply = office.post(&body).await;
        assert!(reply.body["duplicateOnly"].is_null() && reply.body["status"] == "sent", "{body}: {reply:?}");
        id(&reply)
    };
    let mut ids = vec![];
    // One template, a hundred leads.
    for lead in 0..100 {
        ids.push(sent(sms(&format!("+1555{lead:04}"), "the template")).await);
    }
    assert_eq!(office.provider.arrivals("the template").len(), 100);
    // Cases: one different byte of the text; parts whose plain concatenation would be equal; an absent part against a given one.
    for body in [
        sms("+1", "the text"),
        sms("+1", "the text "),
        sms("+1", "The text"),
        sms("+12", "the text"),
        sms("+1", "2the text"),
        json!({"recipientPhone": "+1", "recipientEmail": "a@b.test", "message": "the text"}),
        json!({"recipientEmail": "a@b.test", "message": "the text", "channel": "sms"}),
        json!({"recipientEmail": "+1a@b.test", "message": "the text", "channel": "sms"}),
    ] {
        ids.push(sent(body).await);
    }
    // The same message in another workspace is another message.
    let mut elsewhere = office.client(1).header("oncegate-workspace", "other");
    ids.push(id(&elsewhere.post("/api/messages", &sms("+1", "the text")).await.expect(201)));
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count);
}

async fn the_same_person_in_other_words_is_one_send(on: On) {
    let office = PostOffice::open(on).await;
    let first = office.post(&with(sms("+15550100", "hello"), json!({"recipientName": "Ann"}))).await.expect(201);
    let lead = first.text("leadId");
    // Fields outside the key do not make it another message.
    let others = [
        with(sms("+15550100", "hello"), json!({"recipientName": "Anna", "metadata": {"a": 1}, "hsContactId": "7"})),
        json!({"leadId": lead, "message": "hello"}),
        json!({"leadId": lead, "recipientPhone": "+15550100", "message": "hello"}),
    ];
    for (turn, other) in others.iter().enumerate() {
        expect_duplicate(&office.client(turn).post("/api/messages", other).await, &id(&first));
    }
    // Two leads, one phone: the second lead is known by its address, and reached at the first lead's number.
    let second = office.post(&json!({"recipientEmail": "bo@acme.test", "message": "other", "channel": "sms"})).await;
    let at_anns =
        json!({"leadId": second.expect(201).text("leadId"), "recipientPhone": "+15550100", "message": "hello"});
    expect_duplicate(&office.post(&at_anns).await, &id(&first));
    // With only its id, a lead without a phone is identified by its address.
    let by_email = json!({"recipientEmail": "ben@acme.test", "message": "hello", "channel": "sms"});
    let ben = office.post(&by_email).await.expect(201);
    let by_id = json!({"leadId": ben.text("leadId"), "message": "hello", "channel": "sms"});
    expect_duplicate(&office.post(&by_id).await, &id(&ben));
    assert_eq!(office.provider.arrivals("hello").len(), 2);
}

async fn a_refused_request_holds_nothing(on: On) {
    let office = PostOffice::open(on).await;
    let mut client = office.client(0);
    let right = sms("+15550100", "corrected");
    let mut refuse = async |body: Value, what: &str| {
        client.post("/api/messages", &body).await.expect_invalid(what);
    };
    refuse(with(right.clone(), json!({"attachments": [{"url": "ftp://x/y"}]})), "attachments[0].url").await;
    refuse(with(right.clone(), json!({"attachments": vec![json!({"url": "http://x.test/"}); 11]})), "attachments")
        .await;
    refuse(with(right.clone(), json!({"attachments": [{"uri": "http://x.test"}]})), "attachments[0]").await;
    refuse(with(right.clone(), json!({"metadata": []})), "metadata").await;
    for strange in [r#"{"a":"\ud83d"}"#, r#"{"a":1e999}"#] {
        let body = format!(r#"{{"recipientPhone":"+1","message":"x","metadata":{strange}}}"#);
        let reply = office.client(0).send(hyper::Method::POST, "/api/messages", Some(body.into())).await;
        reply.expect_invalid("metadata");
    }
    refuse(with(right.clone(), json!({"metadata": {"a": "x".repeat(17_000)}})), "metadata").await;
    refuse(with(right.clone(), json!({"recipientEmail": "nobody"})), "recipientEmail").await;
    refuse(with(right.clone(), json!({"recipientPhone": ""})), "recipientPhone").await;
    refuse(with(right.clone(), json!({"recipientPhone": 5})), "recipientPhone").await;
    refuse(with(right.clone(), json!({"channel": "no such!"})), "channel").await;
    refuse(with(right.clone(), json!({"text": "x"})), "text").await;
    refuse(with(right.clone(), json!({"message": ""})), "message").await;
    refuse(with(right.clone(), json!({"message": "x".repeat(65_537)})), "message").await;
    refuse(json!({"message": "to nobody"}), "recipientPhone").await;
    refuse(json!({"recipientPhone": "+1"}), "message").await;
    let nobody = "01a1e00a-2f2c-75bb-873b-ebc515b02792";
    for unknown in [nobody, "7"] {
        let body = json!({"leadId": unknown, "message": "corrected"});
        office.post(&body).await.expect_problem(404, "not-found");
    }
    for key in ["", "a b", "\"open", &"k".repeat(256)] {
        office.post_with_key(key, &right).await.expect_invalid("Idempotency-Key");
    }
    assert_eq!(client.get("/api/messages").await.expect(200).body["items"], json!([]), "nothing is stored");
    assert_eq!(client.get("/api/leads").await.expect(200).body["items"], json!([]));
    office.post_with_key("k", &right).await.expect(201);
    assert_eq!(office.provider.arrivals("corrected").len(), 1);
}

async fn leads_are_found_by_phone_then_email_and_know_more_with_time(on: On) {
    let office = PostOffice::open(on).await;
    let mut client = office.client(1);
    let ann = client.post("/api/leads", &json!({"phone": "+1", "name": "Ann"})).await.expect(201);
    let ben = client.post("/api/leads", &json!({"email": "ben@acme.test"})).await.expect(201);
    assert_eq!(client.post("/api/leads", &json!({"phone": "+1"})).await.expect(200).body, ann.body);
    client.post("/api/leads", &json!({"name": "nobody"})).await.expect_invalid("phone or email");
    // The phone decides; the address belongs to another lead, and stays there.
    let both = json!({"recipientPhone": "+1", "recipientEmail": "ben@acme.test", "message": "a", "ghlContactId": "g1"});
    let sent = office.post(&both).await.expect(200);
    assert_eq!((sent.text("leadId"), &sent.body["ghlContactId"]), (ann.text("_id"), &json!("g1")));
    let shown = client.get(&format!("/api/leads/{}", ann.text("_id"))).await.expect(200);
    assert_eq!((&shown.body["email"], &shown.body["name"]), (&Value::Null, &json!("Ann")));
    // Ben gets a phone, and is found by it from then on.
    let with_phone = json!({"recipientPhone": "+2", "recipientEmail": "ben@acme.test", "message": "b"});
    assert_eq!(office.post(&with_phone).await.expect(200).text("leadId"), ben.text("_id"));
    let by_phone = office.post(&sms("+2", "c")).await.expect(200);
    assert_eq!(by_phone.text("leadId"), ben.text("_id"));
    // One thread for a phone, another for an address.
    let thread = |reply: &Reply| reply.body["message"]["threadId"].as_str().expect("a thread").to_owned();
    let again = office.post(&sms("+2", "d")).await.expect(200);
    assert_eq!(thread(&by_phone), thread(&again));
    let by_email = office.post(&json!({"recipientEmail": "ben@acme.test", "message": "e", "channel": "sms"})).await;
    assert_ne!(thread(&by_email), thread(&again));
    let shown = client.get(&format!("/api/threads/{}", thread(&again))).await.expect(200);
    assert_eq!((shown.text("recipientPhone"), shown.text("leadId")), ("+2".into(), ben.text("_id")));
    // Of many concurrent requests, one creates the lead.
    let posts = (0..16).map(|caller| {
        let mut client = office.client(caller);
        async move { client.post("/api/messages", &sms("+3", &format!("to one {caller}"))).await }
    });
    let replies = join_all(posts).await;
    assert_eq!(replies.iter().filter(|reply| reply.status == 201).count(), 1, "{replies:?}");
    let leads: Vec<_> = replies.iter().map(|reply| reply.text("leadId")).collect();
    assert!(leads.iter().all(|lead| *lead == leads[0]));
}

async fn answers_are_as_the_page_says(on: On) {
    let office = PostOffice::open(on).await;
    let body = json!({
        "message": "hi", "recipientPhone": "+1", "recipientEmail": "a@b.test", "recipientName": "Ann",
        "attachments": [{"url": "https://files.test/a.pdf", "filename": "a.pdf"}], "metadata": {"campaign": [1, 2]},
        "ghlContactId": "g", "ghlLocationId": "gl", "hsContactId": "h", "hsPortalId": "hp",
    });
    let reply = office.post(&body).await.expect(201);
    let crm = |reply: &Reply| ["ghlContactId", "ghlLocationId", "hsContactId", "hsPortalId"].map(|id| reply.text(id));
    assert_eq!(crm(&reply), ["g", "gl", "h", "hp"]);
    assert_eq!((&reply.body["success"], &reply.body["status"]), (&json!(true), &json!("sent")));
    let message = &reply.body["message"];
    let mut names: Vec<_> = message.as_object().expect("a document").keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "_id",
            "attachments",
            "channel",
            "createdAt",
            "error",
            "leadId",
            "message",
            "metadata",
            "providerMessageId",
            "recipientEmail",
            "recipientPhone",
            "sentAt",
            "status",
            "threadId",
            "workspaceId"
        ]
    );
    assert_eq!(message["providerMessageId"], format!("p-{}", id(&reply)));
    assert_eq!((&message["attachments"], &message["metadata"]), (&body["attachments"], &body["metadata"]));
    assert_eq!((&message["channel"], &message["workspaceId"]), (&json!("sms"), &json!("default")));
    let arrived = &office.provider.arrivals("hi")[0];
    assert_eq!(arrived.key, id(&reply));
    assert_eq!((&arrived.body["id"], &arrived.body["metadata"]), (&json!(id(&reply)), &body["metadata"]));
    let duplicate = office.client(1).post("/api/messages", &body).await;
    expect_duplicate(&duplicate, &id(&reply));
    assert_eq!((&duplicate.body["message"], crm(&duplicate)), (message, crm(&reply)));
    let spaced = "{\"message\": \"hi\", \"recipientEmail\": \"c@d.test\", \"metadata\": {\n  \"n\" : 1.50,\n  \"s\": \"a \\\" b\"}}";
    let by_email = office.client(0).send(hyper::Method::POST, "/api/messages", Some(spaced.into())).await.expect(201);
    assert!(by_email.text.contains(r#""metadata":{"n":1.50,"s":"a \" b"}"#), "as it was written: {by_email:?}");
    assert_eq!(by_email.body["message"]["channel"], "email", "that one is not configured, and writes to a file");
    let file = std::fs::read_to_string(office.home.path().join("oncegate-data/sends.jsonl")).expect("is there");
    let line: Value = serde_json::from_str(file.trim_end()).expect("one line");
    assert_eq!((&line["id"], &line["recipientEmail"]), (&json!(id(&by_email)), &json!("c@d.test")));
}

async fn a_duplicate_can_be_sent_on_purpose(on: On) {
    let office = PostOffice::open(on).await;
    let message = sms("+1", "again");
    let first = office.post(&message).await.expect(201);
    let nonce = |nonce: &str| with(message.clone(), json!({"allowDuplicate": nonce}));
    let second = office.post(&nonce("n1")).await.expect(200);
    assert!(second.body["duplicateOnly"].is_null() && id(&second) != id(&first));
    expect_duplicate(&office.post(&nonce("n1")).await, &id(&second));
    // Or the claim is deleted.
    let mut client = office.client(1);
    let found = client.post("/api/claims/find", &json!({"guard": "message", "key": ["+1", null, "again"]})).await;
    let claim = found.expect(200).text("id");
    client.delete(&format!("/api/claims/{claim}?guard=message&note=on+purpose")).await.expect(200);
    let third = office.post(&message).await.expect(200);
    assert!(third.body["duplicateOnly"].is_null(), "{third:?}");
    assert_eq!(office.provider.arrivals("again").len(), 3);
    // Other callers cannot make claims under the server's own guards.
    for guard in ["message", "idempotency"] {
        client.claim(&json!({"guard": guard, "key": ["x"]})).await.expect_invalid("guard");
        for verb in ["renew", "settle", "fail", "release"] {
            client.owner(verb, guard, &claim, 1).await.expect_invalid("guard");
        }
        let resolve = json!({"guard": guard, "as": "done"});
        client.post(&format!("/api/claims/{claim}/resolve"), &resolve).await.expect_invalid("guard");
    }
}

async fn lists_and_single_messages_are_shown_to_their_workspace_alone(on: On) {
    let office = PostOffice::open(on).await;
    let mut client = office.client(0);
    let mut sent = vec![];
    for number in 0..5 {
        sent.push(id(&office.post(&sms(if number % 2 == 0 { "+1" } else { "+2" }, &format!("list {number}"))).await));
    }
    let failed = office.post(&sms("+1", "list#400")).await.expect(502);
    let ids = |reply: &Reply| -> Vec<String> {
        let items = reply.body["items"].as_array().expect("items");
        items.iter().map(|item| item["_id"].as_str().expect("an id").to_owned()).collect()
    };
    let page = client.get("/api/messages?limit=4").await.expect(200);
    assert_eq!(ids(&page), [id(&failed), sent[4].clone(), sent[3].clone(), sent[2].clone()]);
    let rest = client.get(&format!("/api/messages?cursor={}", page.text("nextCursor"))).await.expect(200);
    assert_eq!((ids(&rest), &rest.body["nextCursor"]), (vec![sent[1].clone(), sent[0].clone()], &Value::Null));
    let lead = failed.text("leadId");
    let of_lead = client.get(&format!("/api/messages?leadId={lead}&status=sent")).await.expect(200);
    assert_eq!(ids(&of_lead), [sent[4].clone(), sent[2].clone(), sent[0].clone()]);
    assert_eq!(ids(&client.get("/api/messages?status=failed").await.expect(200)), [id(&failed)]);
    client.get("/api/messages?status=lost").await.expect_invalid("status");
    client.get("/api/messages?limit=501").await.expect_invalid("limit");
    client.get("/api/messages?cursor=7").await.expect_invalid("cursor");
    client.get("/api/messages?phone=1").await.expect_invalid("phone");
    let shown = client.get(&format!("/api/messages/{}", sent[0])).await.expect(200);
    assert_eq!(shown.text("message"), "list 0");
    let mut other = office.client(1).header("oncegate-workspace", "other");
    for path in [format!("/api/messages/{}", sent[0]), format!("/api/leads/{lead}"), "/api/threads/7".into()] {
        other.get(&path).await.expect_problem(404, "not-found");
    }
    let body = json!({"leadId": lead, "message": "not yours"});
    other.post("/api/messages", &body).await.expect_problem(404, "not-found");
}
