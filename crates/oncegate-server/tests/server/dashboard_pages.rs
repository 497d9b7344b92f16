//! The dashboard over HTTP: the content of its pages, and what they refuse.

use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};

use crate::support::{Follower, Home, On, Workshop, claim_of, from_now, on_both, with};

on_both! {
    every_form_is_refused_without_a_reason_or_from_another_site,
    what_is_not_there_or_stands_otherwise_is_said_on_a_page,
    no_page_breaks_whatever_is_asked_of_it,
    what_is_rare_is_found_behind_all_the_rest,
}

/// Every form, with the fields that it needs besides a reason.
const FORMS: [(&str, &[(&str, &str)]); 15] = [
    ("/claims/0000000000000000000000000000000000000000000000000000000000000000/forget", &[("guard", "g")]),
    (
        "/claims/0000000000000000000000000000000000000000000000000000000000000000/resolve",
        &[("guard", "g"), ("as", "done")],
    ),
    ("/actions/01a1e02b-8ceb-7433-b69b-36e4d577ee73/cancel", &[]),
    ("/actions/01a1e02b-8ceb-7433-b69b-36e4d577ee73/retry", &[]),
    ("/actions/01a1e02b-8ceb-7433-b69b-36e4d577ee73/run-now", &[]),
    ("/actions/01a1e02b-8ceb-7433-b69b-36e4d577ee73/done", &[]),
    ("/actions/01a1e02b-8ceb-7433-b69b-36e4d577ee73/let-be", &[]),
    ("/messages/01a1e02b-8ceb-7433-b69b-36e4d577ee73/resolve", &[("as", "sent")]),
    ("/dead-letters/01a1e02b-8ceb-7433-b69b-36e4d577ee73/retry", &[]),
    ("/dead-letters/01a1e02b-8ceb-7433-b69b-36e4d577ee73/discard", &[]),
    ("/sends/01a1e02b-8ceb-7433-b69b-36e4d577ee73/resolve", &[("as", "sent")]),
    ("/reminders/01a1e02b-8ceb-7433-b69b-36e4d577ee73/send", &[]),
    ("/reminders/01a1e02b-8ceb-7433-b69b-36e4d577ee73/cancel", &[]),
    ("/reminders/01a1e02b-8ceb-7433-b69b-36e4d577ee73/resolve", &[("as", "not_sent")]),
    ("/sends/01a1e02b-8ceb-7433-b69b-36e4d577ee73/resolve", &[("as", "not_sent")]),
];

async fn every_form_is_refused_without_a_reason_or_from_another_site(on: On) {
    let shop = Workshop::open(on).await;
    let form = "application/x-www-form-urlencoded";
    let host = format!("http://{}", shop.servers[0].address);
    let everything = FORMS.iter().map(|(path, _)| *path).chain(["/login", "/logout"]);
    for path in everything {
        let others: [&[(&'static str, &str)]; 6] = [
            &[],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "none")],
            &[("origin", "http://evil.example")],
            &[("sec-fetch-site", "cross-site"), ("origin", &host)],
        ];
        for headers in others {
            let mut client = shop.client(0).header("content-type", form);
            for (name, value) in headers {
                client = client.header(name, value);
            }
            let refused = client.send(Method::POST, path, Some("reason=r".into())).await;
            assert!(refused.expect_page(403).text.contains("forbidden"), "{path} {headers:?}");
        }
    }
    for (path, fields) in FORMS {
        // An old browser sends only this header.
        let old = shop.client(0).header("content-type", form).header("origin", &host);
        let missing = { old }.send(Method::POST, path, Some("".into())).await;
        missing.expect_page(400);
        for reason in [None, Some(("reason", "")), Some(("reason", "  \t"))] {
            let fields: Vec<(&str, &str)> = fields.iter().copied().chain(reason).collect();
            let refused = shop.client(0).submit(path, &fields).await.expect_page(400);
            assert!(refused.text.contains("reason: say why"), "{path}: {refused:?}");
        }
        let large = "x".repeat(64 * 1024);
        shop.client(0).submit(path, &[("reason", &large)]).await.expect_page(413);
        let long = "x".repeat(10_000);
        let fields: Vec<(&str, &str)> = fields.iter().copied().chain([("reason", long.as_str())]).collect();
        shop.client(0).submit(path, &fields).await.expect_page(400);
        let mut json = shop.client(0).header("sec-fetch-site", "same-origin");
        json.post(path, &json!({"reason": "r"})).await.expect_page(415);
    }
    assert!(shop.servers[0].log().iter().all(|line| line["level"] != "error"), "{:?}", shop.servers[0].log());
}

async fn what_is_not_there_or_stands_otherwise_is_said_on_a_page(on: On) {
    let shop = Workshop::open(on).await;
    let why = ("reason", "somebody asked for it");
    let mut client = shop.client(0);
    for (path, fields) in FORMS {
        let fields: Vec<(&str, &str)> = fields.iter().copied().chain([why]).collect();
        client.submit(path, &fields).await.expect_page(404);
        // An unknown verb, and an unknown id.
        let (base, verb) = path.rsplit_once('/').expect("a path has slashes");
        client.submit(&format!("{base}/nonsense"), &fields).await.expect(404);
        let list = base.split('/').nth(1).expect("a path has a first part");
        client.submit(&format!("/{list}/nonsense/{verb}"), &fields).await.expect_page(404);
    }

    let (claim, token) = client.win(&claim_of("charge", "k")).await;
    let resolve = format!("/claims/{claim}/resolve");
    client.submit(&resolve, &[("guard", "charge"), ("as", "done"), why]).await.expect_page(409);
    client.settle("charge", &claim, token, &json!(1)).await.expect(200);
    client.submit(&resolve, &[("guard", "charge"), ("as", "not_done"), why]).await.expect_page(409);
    client.submit(&resolve, &[("guard", "charge"), ("as", "maybe"), why]).await.expect_page(400);
    client.submit(&resolve, &[("guard", "message"), ("as", "done"), why]).await.expect_page(400);

    let action = shop.now("note", json!({"n": 1})).await;
    shop.becomes(&action, "completed").await;
    for verb in ["cancel", "retry", "run-now", "done", "let-be"] {
        client.submit(&format!("/actions/{action}/{verb}"), &[why]).await.expect_page(409);
    }

    client.post("/api/events", &json!({"type": "Nonsense", "id": "1", "data": {}})).await.expect(200);
    let letters = client.get("/api/sagas/dead-letters").await.expect(200).body;
    let letter = letters["items"][0]["id"].as_str().expect("a letter").to_owned();
    client.submit(&format!("/dead-letters/{letter}/retry"), &[why]).await.expect(303);
    client.submit(&format!("/dead-letters/{letter}/discard"), &[why]).await.expect(303);
    for verb in ["retry", "discard"] {
        client.submit(&format!("/dead-letters/{letter}/{verb}"), &[why]).await.expect_page(409);
    }

    let begun = client.post("/api/sends", &json!({"campaignId": "c", "recipientId": "r"})).await.expect(201).body;
    let send = begun["id"].as_str().expect("an id");
    client.submit(&format!("/sends/{send}/resolve"), &[("as", "sent"), why]).await.expect_page(409);
    client.submit(&format!("/sends/{send}/resolve"), &[("as", "maybe"), why]).await.expect_page(400);

    let reminder = json!({"bookingId": "b", "sendAt": from_now(Duration::from_secs(600)), "channel": "sms",
        "recipientPhone": "+15550100", "message": "Soon."});
    let reminder = client.post("/api/reminders", &reminder).await.expect(201).text("id");
    client.submit(&format!("/reminders/{reminder}/send"), &[why]).await.expect_page(409);
    // The second request gives the same result.
    for _ in 0..2 {
        client.submit(&format!("/reminders/{reminder}/cancel"), &[why]).await.expect(303);
    }
    client.submit(&format!("/reminders/{reminder}/send"), &[why]).await.expect_page(409);
}

async fn no_page_breaks_whatever_is_asked_of_it(on: On) {
    let shop = Workshop::open(on).await;
    let mut client = shop.client(0);
    client.win(&claim_of("g", "k")).await;
    let lists =
        ["/claims", "/messages", "/leads", "/actions", "/sagas/search-import", "/dead-letters", "/sends", "/reminders"];
    for list in lists {
        for cursor in ["nonsense", "%00", "%ff", "1.2", "%27%3B--", "01a1e02b"] {
            client.get(&format!("{list}?cursor={cursor}")).await.expect_page(400);
        }
        client.get(&format!("{list}?colour=red&=&&%")).await.expect_page(200);
    }
    let wrong = [
        "/claims?state=gone",
        "/claims?state=%00",
        "/claims?guard=a%20b",
        "/claims?guard=%00",
        "/claims?guard=..%2Fetc",
        "/messages?status=gone",
        "/actions?status=gone",
        "/dead-letters?status=gone",
        "/sends?state=gone",
        "/sends?campaign=%00",
        "/sends?campaign=a%0Ab",
        "/reminders?state=gone",
        "/reminders?booking=%00",
        "/actions?type=%00",
        "/actions?entityId=%00",
    ];
    for path in wrong {
        client.get(path).await.expect_page(400);
    }
    // No object has these names, so the search finds nothing.
    let nothing = [
        "/sagas/search-import?state=%00",
        "/sagas/search-import?state=gone",
        "/dead-letters?saga=%00",
        "/actions?scheduleId=nonsense",
        "/dead-letters?saga=gone",
        "/sends?campaign=%ff",
        "/search?q=%00",
        "/search?q=%ff%fe",
        "/search?q=%27%22%3Cscript%3E",
        "/search",
        "/decisions?guard=%00&fate=gone",
        "/?range=century",
    ];
    for path in nothing {
        let page = client.get(path).await.expect_page(200).text;
        assert!(!page.contains("<script>"), "{path}: {page}");
    }
    client.get(&format!("/search?q={}", "x".repeat(5_000))).await.expect_page(200);
    for kind in ["claims", "messages", "leads", "threads", "actions", "sends", "reminders", "dead-letters"] {
        let query = if kind == "claims" { "?guard=g" } else { "" };
        for id in ["nonsense", "%00", "%ff", "..%2F..", "01a1e02b-8ceb-7433-b69b-36e4d577ee73", "0", "%F0%9F%98%80"] {
            client.get(&format!("/{kind}/{id}{query}")).await.expect_page(404);
        }
    }
    let none = "0".repeat(64);
    client.get(&format!("/claims/{none}")).await.expect_page(400);
    client.get(&format!("/claims/{none}?guard=g")).await.expect_page(404);
    client.get(&format!("/claims/{none}?guard=%00")).await.expect_page(400);
    for path in ["/sagas/nonsense", "/sagas/%00", "/sagas/%ff", "/sagas/search-import/%00", "/sagas/%00/%00"] {
        client.get(path).await.expect_page(404);
    }
    for path in ["/sagas/search-import/nobody", "/sagas/search-import/%ff", "/problems/nothing", "/problems/%ff"] {
        client.get(path).await.expect_page(404);
    }
    for server in &shop.servers {
        let broken: Vec<Value> = server.log().into_iter().filter(|line| line["level"] == "error").collect();
        assert!(broken.is_empty(), "{broken:?}");
    }
}

async fn what_is_rare_is_found_behind_all_the_rest(on: On) {
    /// More than one page reads.
    const OTHERS: usize = 51;
    let shop = Workshop::open(on).await;
    let mut client = shop.client(0);
    let (id, token) = client.win(&claim_of("rare", "k")).await;
    client.owner("fail", "rare", &id, token).await.expect(200);
    for batch in 0..OTHERS {
        let claims: Vec<Value> = (0..1_000).map(|number| claim_of("others", &format!("{batch} {number}"))).collect();
        client.post("/api/claims/batch", &json!(claims)).await.expect(200);
    }
    for filter in ["guard=rare", "state=failed", "guard=rare&state=failed"] {
        let page = client.get(&format!("/claims?{filter}")).await.expect_page(200).text;
        assert!(page.contains("There are none among the newest.") && page.contains("rel=\"next\""), "{page}");
        let (mut found, mut cursor, mut pages) = (vec![], String::new(), 0);
        loop {
            let page = client.get(&format!("/api/claims?{filter}{cursor}")).await.expect(200).body;
            found.extend(page["items"].as_array().expect("items").iter().map(|item| item["id"].clone()));
            pages += 1;
            let Some(next) = page["nextCursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        assert_eq!((found, pages), (vec![json!(id)], 2), "{filter}");
    }
    let all = client.get("/claims").await.expect_page(200).text;
    assert!(all.contains("others") && !all.contains("There are none"), "{all}");
}

#[tokio::test]
async fn no_page_shows_the_parts_of_a_key_that_are_not_to_be_kept() {
    const SECRET: &str = "patient-4711";
    for keeps in [false, true] {
        let home = Home::with_config(&format!("[privacy]\nstore_parts = {keeps}\n"));
        let server = home.serve();
        let mut client = server.client();
        let (id, token) = client.win(&claim_of("charge", SECRET)).await;
        client.claim(&claim_of("charge", SECRET)).await.expect(409);
        client.settle("charge", &id, token, &json!(1)).await.expect(200);
        client.claim(&claim_of("charge", SECRET)).await.expect(200);
        client.claim(&with(claim_of("charge", SECRET), json!({"fingerprint": "other"}))).await;
        let mut live = Follower::open(server.address, "/live?on=overview").await;
        let mut seen = vec![live.part("decisions").await, live.part("numbers").await];
        let claim = format!("/claims/{id}?guard=charge");
        for path in ["/", "/decisions", "/claims", "/claims?guard=charge", &claim] {
            seen.push(client.get(path).await.expect_page(200).text);
        }
        assert_eq!(seen.iter().any(|page| page.contains(SECRET)), keeps, "{seen:?}");
        // A search for its parts still finds it, because they are hashed.
        let found = client.get(&format!("/search?q={SECRET}")).await.expect(303);
        assert_eq!(found.header("location"), Some(claim.as_str()));
        let log = server.log();
        assert!(!log.iter().any(|line| line.to_string().contains(SECRET)), "{log:?}");
    }
}
