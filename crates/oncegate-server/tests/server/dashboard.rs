//! The dashboard over HTTP: what its pages tell, who sees them, and what they refuse. On SQLite, and on two servers that share PostgreSQL.

use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::{Value, json};

use crate::support::{
    Client, Follower, Home, On, Reply, Server, Workshop, claim_of, eventually, from_now, on_both, with,
};

on_both! {
    a_claims_page_tells_all_that_happened_to_it_and_on_which_replica,
    a_flood_of_duplicates_is_noted_within_bounds_and_slows_nobody,
    what_is_kept_for_the_dashboard_ends_by_itself,
    what_is_stopped_is_added_up_on_every_replica_and_outlives_them,
    a_session_stands_on_every_replica_until_it_is_left_or_twelve_hours_are_over,
    a_session_falls_with_its_key_and_sees_its_own_workspace_alone,
    every_form_is_refused_without_a_reason_or_from_another_site,
    what_is_not_there_or_stands_otherwise_is_said_on_a_page,
    no_page_breaks_whatever_is_asked_of_it,
    what_is_rare_is_found_behind_all_the_rest,
}

/// How many records of a kind the store has.
async fn records(shop: &Workshop, kind: &str) -> i64 {
    match shop.database() {
        Some(database) => {
            let counted = database.connect().await;
            let counted = counted.query_one("SELECT count(*) FROM oncegate.records WHERE kind = $1", &[&kind]).await;
            counted.expect("the table is there").get(0)
        }
        None => {
            let file = shop.home.path().join("oncegate-data/oncegate.db");
            let connection = rusqlite::Connection::open(file).expect("the store is there");
            let count = "SELECT count(*) FROM records WHERE kind = ?1";
            connection.query_row(count, [kind], |row| row.get(0)).expect("the table is there")
        }
    }
}

/// Killed, all of them, and started again.
fn restart(shop: &mut Workshop) {
    let count = shop.servers.len();
    shop.servers.drain(..).for_each(Server::kill);
    shop.servers = (0..count).map(|_| shop.serve(&[])).collect();
}

/// The page, once it contains all of this.
async fn page_with(shop: &Workshop, number: usize, path: &str, wanted: &[&str]) -> String {
    eventually(&format!("{path} has {wanted:?}"), || async {
        let page = shop.client(number).get(path).await.expect_page(200).text;
        wanted.iter().all(|wanted| page.contains(wanted)).then_some(page)
    })
    .await
}

async fn a_claims_page_tells_all_that_happened_to_it_and_on_which_replica(on: On) {
    let mut shop = Workshop::open(on).await;
    let (mut first, mut other) = (shop.client(0), shop.client(1));
    let body = claim_of("charge", "order 17");
    let (id, late) = first.win(&with(body.clone(), json!({"leaseSeconds": 0.3}))).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    let (_, token) = other.win(&with(body.clone(), json!({"leaseSeconds": 600}))).await;
    first.settle("charge", &id, late, &json!("mine")).await.expect_problem(409, "fenced");
    first.claim(&body).await.expect_problem(409, "in-flight");
    first.claim(&with(body.clone(), json!({"waitSeconds": 0.2}))).await.expect_problem(409, "in-flight");
    other.owner("renew", "charge", &id, token).await.expect(200);
    other.settle("charge", &id, token, &json!({"receipt": "r-1"})).await.expect(200);
    for number in 0..3 {
        shop.client(number).claim(&body).await.expect(200);
    }
    let path = format!("/claims/{id}?guard=charge");
    let standing = first.get(&path).await.expect_page(200).text;
    assert!(standing.contains("Settled: it happened.") && standing.contains("r-1"), "{standing}");
    let reason = "the customer <b>never</b> got it";
    let forgotten = first.submit(&format!("/claims/{id}/forget"), &[("guard", "charge"), ("reason", reason)]).await;
    // It may be another replica that its page comes from.
    let to = forgotten.expect(303).header("location").expect("a place").to_owned();
    assert!(other.get(&to).await.expect_page(200).text.contains("Forgotten. The next caller goes ahead."));
    let replicas: Vec<String> = shop.servers.iter().map(Server::replica).collect();
    let mut wanted = vec![
        "took over",
        "not its owner any more wanted to settle or renew it, and was refused",
        "its owner was at work. They were told to ask again.",
        "waited for its owner, and was stopped",
        "Its owner said that it is still at work.",
        "it was settled. They got its outcome.",
        "A person had it forgotten",
        "By local: the customer &#60;b&#62;never&#60;/b&#62; got it",
        "gone",
    ];
    wanted.extend(replicas.iter().map(String::as_str));
    for number in 0..shop.servers.len() {
        page_with(&shop, number, &path, &wanted).await;
    }
    // It is written once a second.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    restart(&mut shop);
    page_with(&shop, 0, &path, &wanted).await;
}

async fn a_flood_of_duplicates_is_noted_within_bounds_and_slows_nobody(on: On) {
    const CLAIMS: usize = 10_000;
    const ROUNDS: usize = 5;
    const BATCH: usize = 1_000;
    /// As `decisions/timeline.rs` has it: those that are written in a second.
    const WRITTEN_A_SECOND: i64 = 200;
    /// What one caller beside it may wait, on a busy machine; nothing here waits for what is noted.
    const WAIT_MAX: Duration = Duration::from_secs(2);
    let shop = Workshop::open(on).await;
    let batch = |from: usize| {
        let claims = (from..from + BATCH).map(|number| claim_of("flood", &number.to_string()));
        Value::from(claims.collect::<Vec<_>>())
    };
    let mut client = shop.client(0);
    for from in (0..CLAIMS).step_by(BATCH) {
        client.post("/api/claims/batch", &batch(from)).await.expect(200);
    }
    let (before, began) = (records(&shop, "timeline").await, Instant::now());
    let beside = tokio::spawn({
        let mut client = shop.client(0);
        async move {
            let mut waited = vec![];
            for number in 0..100 {
                let asked = Instant::now();
                client.win(&claim_of("beside", &number.to_string())).await;
                waited.push(asked.elapsed());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            waited.sort();
            waited
        }
    });
    for _ in 0..ROUNDS {
        for from in (0..CLAIMS).step_by(BATCH) {
            client.post("/api/claims/batch", &batch(from)).await.expect(200);
        }
    }
    let took = began.elapsed();
    let waited = beside.await.expect("every caller is answered");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let written = records(&shop, "timeline").await - before;
    let seconds = i64::try_from(began.elapsed().as_secs()).expect("soon") + 1;
    println!(
        "{} duplicates in {took:?}; {written} timelines in {seconds} s; beside it a claim took {:?}, at most {:?}",
        CLAIMS * ROUNDS,
        waited[waited.len() / 2],
        waited[waited.len() - 1]
    );
    assert!(written > 0 && written <= WRITTEN_A_SECOND * seconds, "{written} timelines in {seconds} s");
    assert!(waited[waited.len() - 1] < WAIT_MAX, "{waited:?}");
    // The claims' own counts are whole.
    let id = client.post("/api/claims/find", &claim_of("flood", "7")).await.expect(200).text("id");
    eventually("each duplicate is counted", || async {
        let claim = shop.client(0).show("flood", &id).await.expect(200).body;
        (claim["duplicates"] == ROUNDS).then_some(())
    })
    .await;
}

/// Logs in, and returns the cookie as a browser sends it back.
async fn log_in(client: &mut Client, key: &str) -> String {
    let answer = client.submit("/login", &[("key", key)]).await.expect(303);
    let cookie = answer.header("set-cookie").expect("a cookie").to_owned();
    cookie.split(';').next().expect("a name and a value").to_owned()
}

/// A key that every server knows.
async fn known_key(shop: &Workshop, workspace: &str) -> (String, String) {
    let (id, key) = shop.home.make_key(workspace, "operate");
    for server in &shop.servers {
        eventually("the key is known", || async {
            let known = server.client_with(&key).get("/api/claims").await.status;
            let unknown = server.client().get("/api/claims").await.status;
            ((known, unknown) == (200, 401)).then_some(())
        })
        .await;
    }
    (id, key)
}

async fn what_is_kept_for_the_dashboard_ends_by_itself(on: On) {
    const HOUR: Duration = Duration::from_secs(3600);
    let mut shop = Workshop::open(on).await;
    let mut client = shop.client(0);
    for _ in 0..2 {
        client.claim(&claim_of("charge", "order 17")).await;
    }
    let (_, key) = known_key(&shop, "default").await;
    log_in(&mut client, &key).await;
    eventually("all of it is written", || async {
        let kept = [records(&shop, "timeline").await, records(&shop, "tally").await, records(&shop, "session").await];
        (kept == [1, 1, 1]).then_some(())
    })
    .await;
    // As long as the longest chart is; a claim's, a day beyond its window, which is a day.
    for (ahead, left) in
        [(11 * HOUR, [1, 1, 1]), (13 * HOUR, [1, 1, 0]), (49 * HOUR, [0, 1, 0]), (9 * 24 * HOUR, [0, 0, 0])]
    {
        shop.set_clock_ahead(ahead);
        // One that has just begun sweeps at once.
        restart(&mut shop);
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        eventually(&format!("{left:?} are left after {ahead:?}"), || async {
            let kept =
                [records(&shop, "timeline").await, records(&shop, "tally").await, records(&shop, "session").await];
            (kept == left).then_some(())
        })
        .await;
    }
}

/// How many were stopped in the last 24 hours, as the overview says it, once it says so many.
async fn stopped_becomes(server: &Server, count: u64) {
    eventually(&format!("{count} were stopped"), || async { (stopped(server).await == count).then_some(()) }).await;
}

async fn stopped(server: &Server) -> u64 {
    let page = server.client().get("/").await.expect_page(200).text;
    let said = page.split("What did it stop?").nth(1).expect("it is said").split("class=\"big\">").nth(1);
    let number = said.and_then(|said| said.split('<').next()).expect("a number").replace(',', "");
    let number = number.parse().unwrap_or_else(|_| panic!("{number}"));
    let hour = format!("in the last 24 hours, {number} of them in the last hour");
    assert!(page.contains(&hour) || number > 999, "{page}");
    number
}

async fn what_is_stopped_is_added_up_on_every_replica_and_outlives_them(on: On) {
    let mut shop = Workshop::open(on).await;
    let mut expected = 0;
    for round in 1..=2 {
        for number in 0..shop.servers.len() {
            let mut client = shop.client(number);
            let body = claim_of("charge", &format!("{round} {number}"));
            client.win(&body).await;
            for _ in 0..=number + round {
                client.claim(&body).await.expect(409);
                expected += 1;
            }
        }
        for server in &shop.servers {
            stopped_becomes(server, expected).await;
        }
        // Written every five seconds; by those that are told to stop, at once.
        match round {
            1 => drop(shop.servers.drain(..).map(Server::stop).collect::<Vec<_>>()),
            _ => {
                tokio::time::sleep(Duration::from_secs(6)).await;
                shop.servers.drain(..).for_each(Server::kill);
            }
        }
        let count = if matches!(on, On::Sqlite) { 1 } else { 2 };
        shop.servers = (0..count).map(|_| shop.serve(&[])).collect();
        for server in &shop.servers {
            stopped_becomes(server, expected).await;
        }
    }
}

#[tokio::test]
async fn the_dashboard_counts_what_the_metrics_count_of_every_kind_of_guard() {
    let shop = Workshop::open(On::Sqlite).await;
    let server = &shop.servers[0];
    let mut client = server.client();
    let held = with(claim_of("held", "k"), json!({"leaseSeconds": 0.1, "lost": "hold"}));
    client.claim(&held).await;
    let fingerprint = |print: &str| with(claim_of("charge", "printed"), json!({"fingerprint": print}));
    client.win(&fingerprint("a")).await;
    client.claim(&fingerprint("b")).await.expect(422);
    let (id, token) = client.win(&claim_of("charge", "k")).await;
    client.claim(&claim_of("charge", "k")).await.expect(409);
    client.settle("charge", &id, token, &json!(1)).await.expect(200);
    client.post("/api/claims/batch", &json!([claim_of("charge", "k"), claim_of("charge", "new")])).await.expect(200);
    let message = json!({"recipientPhone": "+15550100", "message": "Your table is ready."});
    let mut keyed = server.client().header("idempotency-key", "one");
    for _ in 0..2 {
        client.post("/api/messages", &message).await;
        keyed.post("/api/messages", &with(message.clone(), json!({"message": "Another."}))).await;
    }
    let send = json!({"campaignId": "spring", "recipientId": "ada"});
    let begun = client.post("/api/sends", &send).await.expect(201).body;
    client.post("/api/sends", &send).await;
    let sent = format!("/api/sends/{}/sent", begun["id"].as_str().expect("an id"));
    client.post(&sent, &json!({"token": begun["token"], "espMessageId": "e"})).await.expect(200);
    client.post("/api/sends", &send).await.expect(200);
    let reminder = json!({"bookingId": "b", "sendAt": from_now(Duration::from_secs(600)), "channel": "sms",
        "recipientPhone": "+15550100", "message": "Soon."});
    client.post("/api/reminders", &reminder).await.expect(201);
    client.post("/api/reminders", &reminder).await.expect(200);
    let action = json!({"actionType": "note", "payload": {"entityId": "7"}});
    client.post("/api/actions", &action).await.expect(201);
    client.post("/api/actions", &action).await.expect(200);
    let event = json!({"type": "SearchUploadSaved", "id": "e", "data":
        {"searchId": "s", "projectId": "p", "searchName": "n", "referenceFiles": ["a"]}});
    for _ in 0..2 {
        client.post("/api/events", &event).await.expect(200);
    }
    let metrics = client.get("/metrics").await.expect(200).text;
    let mut by_guard: Vec<(String, u64)> = vec![];
    for line in metrics.lines().filter(|line| line.starts_with("oncegate_duplicates_stopped_total{")) {
        let guard = line.split("guard=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a guard");
        let count: u64 = line.rsplit(' ').next().and_then(|count| count.parse().ok()).expect("a count");
        by_guard.push((guard.to_owned(), count));
    }
    by_guard.retain(|(_, count)| *count > 0);
    by_guard.sort();
    let page = client.get("/").await.expect_page(200).text;
    let legend = page.split("<caption class=\"hidden\">By guard</caption>").nth(1).expect("a legend");
    let rows = legend.split("</table>").next().expect("its end").split("href=\"/claims?guard=").skip(1);
    let mut shown: Vec<(String, u64)> = rows
        .map(|row| {
            let guard = row.split('"').next().expect("a guard").to_owned();
            let count = row.split("<td>").nth(1).and_then(|rest| rest.split('<').next()).expect("a count");
            (guard, count.replace(',', "").parse().expect("a number"))
        })
        .filter(|(_, count)| *count > 0)
        .collect();
    shown.sort();
    assert_eq!(shown, by_guard);
    assert_eq!(stopped(server).await, by_guard.iter().map(|(_, count)| count).sum::<u64>());
    let guards: Vec<&str> = by_guard.iter().map(|(guard, _)| guard.as_str()).collect();
    assert_eq!(guards, ["action", "charge", "idempotency", "message", "reminder", "saga", "send"]);
}

#[tokio::test]
async fn a_log_that_says_nothing_does_not_silence_the_dashboard() {
    let home = Home::with_config("[log]\nlevel = \"error\"\n");
    let server = home.serve_quietly();
    let mut client = server.client();
    let mut follower = Follower::open(server.address, "/api/decisions").await;
    let mut live = Follower::open(server.address, "/live?on=decisions").await;
    let (id, _) = client.win(&claim_of("charge", "order 17")).await;
    client.claim(&claim_of("charge", "order 17")).await.expect(409);
    assert_eq!(follower.decision().await["event"], "claim.won");
    assert!(live.part("decisions").await.contains(&format!("/claims/{id}")));
    assert_eq!(stopped(&server).await, 1);
    let page = client.get("/decisions").await.expect_page(200).text;
    assert!(page.contains("somebody began it") && page.contains("first to come"), "{page}");
    let (_, written) = server.stop();
    assert!(!written.contains("claim.won"), "{written}");
}

fn cookie_of(answer: &Reply) -> Vec<&str> {
    answer.header("set-cookie").expect("a cookie").split("; ").collect()
}

async fn a_session_stands_on_every_replica_until_it_is_left_or_twelve_hours_are_over(on: On) {
    const HOURS: Duration = Duration::from_secs(12 * 3600);
    let shop = Workshop::open(on).await;
    let (id, key) = known_key(&shop, "acme").await;
    let sent_away = shop.client(0).get("/claims?guard=g").await.expect(303);
    assert_eq!(sent_away.header("location"), Some("/login?to=%2Fclaims%3Fguard%3Dg"));
    shop.client(0).get("/login?to=%2Fclaims").await.expect_page(200);
    shop.client(0).submit("/login", &[("key", "og_wrong")]).await.expect_page(401);
    shop.client(0).submit("/login", &[]).await.expect_page(401);

    let answer = shop.client(0).submit("/login", &[("key", &key), ("to", "/claims?guard=g")]).await.expect(303);
    assert_eq!(answer.header("location"), Some("/claims?guard=g"));
    let cookie = cookie_of(&answer);
    assert_eq!(&cookie[1..], ["Path=/", "HttpOnly", "SameSite=Lax", "Max-Age=43200"]);
    let (name, value) = cookie[0].split_once('=').expect("a cookie has a value");
    assert!(name == "oncegate_session" && !value.contains(&key) && !key.contains(&value[id.len() + 1..]), "{value}");
    let secure = shop.client(0).header("x-forwarded-proto", "https").submit("/login", &[("key", &key)]).await;
    assert_eq!(cookie_of(&secure.expect(303)).last(), Some(&"Secure"));
    let evil = shop.client(0).submit("/login", &[("key", &key), ("to", "//evil.example/")]).await;
    assert_eq!(evil.expect(303).header("location"), Some("/"));

    let visitor = |number: usize, cookie: &str| shop.client(number).header("cookie", &format!("a=b; {cookie}"));
    let cookie = cookie[0].to_owned();
    for number in 0..2 {
        let page = visitor(number, &cookie).get("/claims").await.expect_page(200).text;
        assert!(page.contains("acme"), "{page}");
        visitor(number, &cookie).get("/api/claims").await.expect_problem(401, "unauthorized");
        visitor(number, &cookie).get("/api/decisions").await.expect_problem(401, "unauthorized");
    }
    for forged in [format!("oncegate_session={id}."), format!("oncegate_session={id}.0"), "oncegate_session=x.y".into()]
    {
        visitor(0, &forged).get("/claims").await.expect(303);
    }

    let other = log_in(&mut shop.client(0), &key).await;
    let left = visitor(1, &other).submit("/logout", &[]).await.expect(303);
    assert!(cookie_of(&left).contains(&"Max-Age=0") && left.header("location") == Some("/login"), "{left:?}");
    for number in 0..2 {
        visitor(number, &other).get("/claims").await.expect(303);
    }
    shop.set_clock_ahead(HOURS - Duration::from_secs(60));
    visitor(1, &cookie).get("/claims").await.expect_page(200);
    shop.set_clock_ahead(HOURS + Duration::from_secs(60));
    for number in 0..2 {
        assert!(visitor(number, &cookie).get("/claims").await.expect(303).header("location").is_some());
        visitor(number, &cookie).submit("/claims/x/forget", &[("reason", "r")]).await.expect_page(401);
    }
}

async fn a_session_falls_with_its_key_and_sees_its_own_workspace_alone(on: On) {
    let shop = Workshop::open(on).await;
    let (id, acme) = known_key(&shop, "acme").await;
    let (other_id, other) = known_key(&shop, "other").await;
    let (claim, _) = shop.servers[0].client_with(&other).win(&claim_of("charge", "of the other")).await;
    let mut theirs = shop.servers[0].client_with(&other);
    let action = json!({"actionType": "remote", "payload": {"entityId": "theirs"}});
    let action = theirs.post("/api/actions", &action).await.expect(201).text("id");
    let cookie = log_in(&mut shop.client(0), &acme).await;
    let mut visitor = shop.client(1).header("cookie", &cookie);
    for list in ["/claims", "/actions", "/decisions", "/", "/search?q=theirs", "/actions?entityId=theirs"] {
        let page = visitor.get(list).await.expect_page(200).text;
        assert!(!page.contains(&claim) && !page.contains(&action), "{list}: {page}");
    }
    visitor.get(&format!("/claims/{claim}?guard=charge")).await.expect_page(404);
    visitor.get(&format!("/actions/{action}")).await.expect_page(404);
    let why = ("reason", "it is not mine");
    visitor.submit(&format!("/claims/{claim}/forget"), &[("guard", "charge"), why]).await.expect_page(404);
    visitor.submit(&format!("/actions/{action}/cancel"), &[why]).await.expect_page(404);
    // Another key's session is no session of ours: each is bound to who began it.
    let secret = cookie.rsplit('.').next().expect("there is a last part");
    let forged = format!("oncegate_session={other_id}.{secret}");
    shop.client(0).header("cookie", &forged).get("/claims").await.expect(303);

    let mut live = Follower::open_with(shop.servers[0].address, "/live?on=decisions", &[("cookie", &cookie)]).await;
    shop.home.run(["key", "revoke", &id]).expect_code(0);
    for server in &shop.servers {
        eventually("the session is over", || async {
            (server.client().header("cookie", &cookie).get("/claims").await.status == 303).then_some(())
        })
        .await;
    }
    while live.next().await.is_some() {}
}

/// Every form that there is, with what it needs beside a reason.
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
        // An old browser says where it comes from by this.
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
        // No such verb, and no such id.
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
    // Said twice it is the same.
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
    // Nothing is called that, and nothing is found.
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
    /// More than a page looks at.
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
        // By its parts it is found all the same: they are hashed.
        let found = client.get(&format!("/search?q={SECRET}")).await.expect(303);
        assert_eq!(found.header("location"), Some(claim.as_str()));
        let log = server.log();
        assert!(!log.iter().any(|line| line.to_string().contains(SECRET)), "{log:?}");
    }
}
