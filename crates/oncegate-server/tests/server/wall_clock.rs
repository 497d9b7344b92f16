//! Steps of the real server's wall clock: leases and windows follow elapsed time.

use std::time::{Duration, Instant};

use oncegate_lab::clock::Shim;
use serde_json::json;

use crate::support::{Home, Server, claim_of, eventually, with};

const HOUR: Duration = Duration::from_secs(3_600);

fn serve(home: &Home) -> (Server, Shim) {
    let clock = Shim::new(home.path().join("shift")).expect("cc builds the shim");
    let mut command = home.command(["serve", "--listen", "127.0.0.1:0"]);
    clock.apply_to(&mut command);
    (Server::start(command), clock)
}

fn claim(part: &str, lease_seconds: u64) -> serde_json::Value {
    with(claim_of("g", part), json!({"leaseSeconds": lease_seconds, "ttlSeconds": 86_400}))
}

#[tokio::test]
async fn a_step_of_an_hour_ahead_takes_no_live_lease_and_is_told() {
    let home = Home::new();
    let (server, clock) = serve(&home);
    let mut client = server.client();
    let (id, token) = client.win(&claim("k", 60)).await;
    clock.step_forward(HOUR).expect("steps");
    client.claim(&claim("k", 60)).await.expect(409);
    client.owner("renew", "g", &id, token).await.expect(200);
    client.win(&claim("another", 60)).await;
    let ready = client.get("/readyz").await.expect(200);
    assert!(ready.body["warnings"].to_string().contains("the wall clock stepped by 3600 s"), "{:?}", ready.body);
    server.logged("clock.stepped", 1).await;
    clock.step_back(HOUR).expect("steps");
    let ready = client.get("/readyz").await.expect(200);
    assert_eq!(ready.body["warnings"], json!([]));
    assert_eq!(server.log().iter().filter(|line| line["event"] == "clock.stepped").count(), 1, "told once");
}

#[tokio::test]
async fn a_step_of_an_hour_back_keeps_no_dead_owners_key() {
    let home = Home::new();
    let (server, clock) = serve(&home);
    let mut client = server.client();
    client.win(&claim("k", 2)).await;
    let won = Instant::now();
    clock.step_back(HOUR).expect("steps");
    client.claim(&claim("k", 2)).await.expect(409);
    eventually("the lease is over", || async {
        (server.client().claim(&claim("k", 60)).await.status == 201).then_some(())
    })
    .await;
    assert!(won.elapsed() >= Duration::from_secs(2) && won.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn two_days_ahead_and_back_sweep_nothing() {
    let home = Home::new();
    let (server, clock) = serve(&home);
    let mut client = server.client();
    let (id, token) = client.win(&claim("k", 60)).await;
    client.settle("g", &id, token, &json!("done")).await.expect(200);
    clock.step_forward(48 * HOUR).expect("steps");
    client.win(&claim("another", 60)).await;
    server.logged("clock.stepped", 1).await;
    // The sweeper runs several times.
    tokio::time::sleep(Duration::from_secs(8)).await;
    clock.step_back(48 * HOUR).expect("steps");
    let again = client.claim(&claim("k", 60)).await.expect(200);
    assert_eq!(again.text("id"), id, "the memory of the duplicate is there");
}

/// A suspended machine's time is elapsed time: the boot-time clock counts it.
#[tokio::test]
async fn a_lease_ends_while_the_machine_sleeps() {
    let home = Home::new();
    let (server, clock) = serve(&home);
    let mut client = server.client();
    client.win(&claim("k", 60)).await;
    clock.suspend(Duration::from_secs(61)).expect("sleeps");
    client.claim(&claim("k", 60)).await.expect(201);
    let ready = client.get("/readyz").await.expect(200);
    assert_eq!(ready.body["warnings"], json!([]), "no step");
}
