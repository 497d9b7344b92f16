//! A caller that waits for another owner's claim is woken by a change, not by the clock.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{Home, Reply, Server, claim_of, with};

/// Far longer than any of these tests should take: a caller that is answered sooner was woken.
const WAIT_SECONDS: u32 = 20;
/// The limit for "in milliseconds" on a busy machine.
const WOKEN_MAX: Duration = Duration::from_secs(1);

fn waiting(body: &Value) -> Value {
    with(body.clone(), json!({"waitSeconds": WAIT_SECONDS}))
}

/// A caller on a connection of its own. Returns its answer, and when it came.
fn waiter(server: &Server, body: &Value) -> JoinHandle<(Reply, Instant)> {
    let (mut client, body) = (server.client(), waiting(body));
    tokio::spawn(async move { (client.claim(&body).await, Instant::now()) })
}

/// Gives callers the time to arrive. A late caller is answered at once, so it proves less but never fails the test.
async fn let_them_arrive() {
    tokio::time::sleep(Duration::from_millis(200)).await;
}

#[tokio::test]
async fn a_waiter_gets_the_outcome_in_milliseconds_once_it_is_settled() {
    let home = Home::new();
    let server = home.serve();
    let mut owner = server.client();
    let body = claim_of("g", "k");
    let (id, token) = owner.win(&body).await;
    let waiters: Vec<_> = (0..20).map(|_| waiter(&server, &body)).collect();
    let_them_arrive().await;
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    let settling = Instant::now();
    owner.settle("g", &id, token, &json!("done")).await.expect(200);
    for waiter in waiters {
        let (reply, at) = waiter.await.unwrap();
        assert_eq!(reply.expect(200).body["outcome"], "done");
        assert!(at - settling < WOKEN_MAX, "{:?}", at - settling);
    }
}

#[tokio::test]
async fn a_waiter_wins_once_the_key_is_released_or_forgotten() {
    let home = Home::new();
    let server = home.serve();
    let mut owner = server.client();
    for verb in ["release", "forget"] {
        let body = claim_of("g", verb);
        let (id, token) = owner.win(&body).await;
        let waiter = waiter(&server, &body);
        let_them_arrive().await;
        let freeing = Instant::now();
        match verb {
            "release" => owner.owner("release", "g", &id, token).await.expect(200),
            _ => owner.delete(&format!("/api/claims/{id}?guard=g")).await.expect(200),
        };
        let (reply, at) = waiter.await.unwrap();
        assert!(reply.expect(201).body["token"].as_i64().unwrap() > token);
        assert!(at - freeing < WOKEN_MAX, "{:?}", at - freeing);
    }
}

#[tokio::test]
async fn of_many_waiters_one_wins_a_released_key_and_the_others_wait_on_for_its_outcome() {
    let home = Home::new();
    let server = home.serve();
    let mut owner = server.client();
    let body = claim_of("g", "k");
    let (id, token) = owner.win(&body).await;
    let (answers, mut answered) = tokio::sync::mpsc::channel(16);
    for _ in 0..10 {
        let (mut client, body, answers) = (server.client(), waiting(&body), answers.clone());
        tokio::spawn(async move { answers.send(client.claim(&body).await).await });
    }
    let_them_arrive().await;
    owner.owner("release", "g", &id, token).await.expect(200);
    let next = answered.recv().await.unwrap().expect(201).body["token"].as_i64().unwrap();
    owner.settle("g", &id, next, &json!("second")).await.expect(200);
    for _ in 0..9 {
        assert_eq!(answered.recv().await.unwrap().expect(200).body["outcome"], "second");
    }
}

#[tokio::test]
async fn a_waiter_takes_over_when_the_owners_lease_ends() {
    let home = Home::new();
    let server = home.serve();
    let body = claim_of("g", "k");
    server.client().win(&with(body.clone(), json!({"leaseSeconds": 0.3}))).await;
    let started = Instant::now();
    let (reply, at) = waiter(&server, &body).await.unwrap();
    assert_eq!(reply.expect(201).body["attempt"], 2);
    assert!(at - started < Duration::from_secs(5), "{:?}", at - started);
}

#[tokio::test]
async fn a_wait_that_is_over_ends_in_the_answer_that_there_was_before_it() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    client.win(&claim_of("g", "k")).await;
    let started = Instant::now();
    let short = with(claim_of("g", "k"), json!({"waitSeconds": 0.3}));
    client.claim(&short).await.expect_problem(409, "in-flight");
    let waited = started.elapsed();
    assert!((Duration::from_millis(300)..Duration::from_secs(5)).contains(&waited), "{waited:?}");
}

#[tokio::test]
async fn a_waiter_that_hangs_up_wins_nothing() {
    let home = Home::new();
    let server = home.serve();
    let mut owner = server.client();
    let body = claim_of("g", "k");
    let (id, token) = owner.win(&body).await;
    let gone = waiter(&server, &body);
    let_them_arrive().await;
    gone.abort();
    let_them_arrive().await;
    owner.owner("release", "g", &id, token).await.expect(200);
    owner.win(&body).await;
}
