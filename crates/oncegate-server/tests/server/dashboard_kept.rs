//! Stored data of the dashboard: the timelines of claims, their limits, and their expiry.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{On, Server, Workshop, claim_of, eventually, on_both, with};

on_both! {
    a_claims_page_tells_all_that_happened_to_it_and_on_which_replica,
    a_flood_of_duplicates_is_noted_within_bounds_and_slows_nobody,
    what_is_kept_for_the_dashboard_ends_by_itself,
}

/// The number of records of a kind in the store.
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

/// Kills all servers, and starts them again.
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
    assert!(standing.contains("Settled as done.") && standing.contains("r-1"), "{standing}");
    let reason = "the customer <b>never</b> got it";
    let forgotten = first.submit(&format!("/claims/{id}/forget"), &[("guard", "charge"), ("reason", reason)]).await;
    // Another replica may render the page.
    let to = forgotten.expect(303).header("location").expect("a place").to_owned();
    assert!(other.get(&to).await.expect_page(200).text.contains("Forgotten. The next caller is allowed."));
    let replicas: Vec<String> = shop.servers.iter().map(Server::replica).collect();
    let mut wanted = vec![
        "took over",
        "no longer the owner tried to settle or renew it, and was refused",
        "the owner was at work. The caller was told to ask again.",
        "A duplicate waited for the owner, and was stopped",
        "Its owner renewed the lease.",
        "the claim was settled. The caller got its outcome.",
        "A person forgot it",
        "By local: the customer &#60;b&#62;never&#60;/b&#62; got it",
        "There is no claim",
    ];
    wanted.extend(replicas.iter().map(String::as_str));
    for number in 0..shop.servers.len() {
        page_with(&shop, number, &path, &wanted).await;
    }
    // Timelines are written once a second.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    restart(&mut shop);
    page_with(&shop, 0, &path, &wanted).await;
}

async fn a_flood_of_duplicates_is_noted_within_bounds_and_slows_nobody(on: On) {
    const CLAIMS: usize = 10_000;
    const ROUNDS: usize = 5;
    const BATCH: usize = 1_000;
    /// The limit in `decisions/timeline.rs`: timelines that are written in a second.
    const WRITTEN_A_SECOND: i64 = 200;
    /// The maximum wait of another caller, on a busy machine: no request waits for timelines.
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
    // The claims' own counts are complete.
    let id = client.post("/api/claims/find", &claim_of("flood", "7")).await.expect(200).text("id");
    eventually("each duplicate is counted", || async {
        let claim = shop.client(0).show("flood", &id).await.expect(200).body;
        (claim["duplicates"] == ROUNDS).then_some(())
    })
    .await;
}

async fn what_is_kept_for_the_dashboard_ends_by_itself(on: On) {
    const HOUR: Duration = Duration::from_secs(3600);
    let mut shop = Workshop::open(on).await;
    let mut client = shop.client(0);
    for _ in 0..2 {
        client.claim(&claim_of("charge", "order 17")).await;
    }
    let (_, key) = shop.known_key("default").await;
    client.log_in(&key).await;
    eventually("all of it is written", || async {
        let kept = [records(&shop, "timeline").await, records(&shop, "tally").await, records(&shop, "session").await];
        (kept == [1, 1, 1]).then_some(())
    })
    .await;
    // The tally is kept as long as the longest chart. The claim's timeline is kept a day beyond its window, which is a day.
    for (ahead, left) in
        [(11 * HOUR, [1, 1, 1]), (13 * HOUR, [1, 1, 0]), (49 * HOUR, [0, 1, 0]), (9 * 24 * HOUR, [0, 0, 0])]
    {
        shop.set_clock_ahead(ahead);
        // A new server sweeps at once.
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
