//! Clients that claim and settle as fast as they can, and record the answers.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};

use super::{Client, Reply, claim_of, with};

pub const GUARD: &str = "load";
/// The pause before a client retries while the store is away.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// A claim that the server has acknowledged as won.
#[derive(Clone, Debug)]
pub struct Acknowledged {
    pub part: String,
    pub id: String,
    pub token: i64,
    pub outcome: Value,
    /// Whether the server has acknowledged the settle. Without that, the settle may still have happened.
    pub settled: bool,
}

/// All acknowledged claims, in order.
#[derive(Default)]
pub struct Ledger(Mutex<Vec<Acknowledged>>);

impl Ledger {
    pub fn all(&self) -> Vec<Acknowledged> {
        self.0.lock().expect("no holder of this lock panics").clone()
    }

    pub fn len(&self) -> usize {
        self.0.lock().expect("no holder of this lock panics").len()
    }

    pub fn settled(&self) -> usize {
        self.all().iter().filter(|one| one.settled).count()
    }

    /// Returns its index.
    fn won(&self, one: Acknowledged) -> usize {
        let mut all = self.0.lock().expect("no holder of this lock panics");
        all.push(one);
        all.len() - 1
    }

    fn settle(&self, place: usize) {
        self.0.lock().expect("no holder of this lock panics")[place].settled = true;
    }

    /// No key may have been won twice: no lease of the load ends during the test.
    pub fn assert_one_winner_each(&self) {
        let mut winners = HashMap::new();
        for one in self.all() {
            let earlier = winners.insert(one.part.clone(), one.token);
            assert_eq!(earlier, None, "a second winner: {one:?}");
        }
    }
}

/// A claim whose lease is longer than the test, so that none is taken over.
fn body(part: &str) -> Value {
    with(claim_of(GUARD, part), json!({"leaseSeconds": 3600, "ttlSeconds": 86400}))
}

async fn post(client: &mut Client, path: &str, body: &Value) -> Result<Reply, String> {
    client.try_send(Method::POST, path, Some(body.to_string().into())).await
}

/// The errors that a client may get.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Faults {
    None,
    /// 503: the store is away. The request may still have been carried out.
    OfTheStore,
}

/// Claims `NAME-1`, `NAME-2` and so on, and settles the claims that it wins, until it is stopped or disconnected.
/// Clients with the same name race for the same keys.
pub async fn claims_and_settles(
    address: SocketAddr,
    name: &str,
    ledger: &Ledger,
    stop: &AtomicBool,
    faults: Faults,
) -> Result<(), String> {
    let mut client = Client::new(address);
    for round in 1.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let part = format!("{name}-{round}");
        let answer = post(&mut client, "/api/claims", &body(&part)).await?;
        if matches!(answer.status, 200 | 409) {
            continue;
        }
        if faults == Faults::OfTheStore && answer.status == 503 {
            tokio::time::sleep(RETRY_PAUSE).await;
            continue;
        }
        let answer = answer.expect(201);
        let (id, token) = (answer.text("id"), answer.body["token"].as_i64().expect("a token"));
        let outcome = json!({"of": part, "by": token});
        let settle = json!({"guard": GUARD, "token": token, "outcome": outcome});
        let place = ledger.won(Acknowledged { part, id: id.clone(), token, outcome, settled: false });
        loop {
            let answer = post(&mut client, &format!("/api/claims/{id}/settle"), &settle).await?;
            if faults == Faults::None || answer.status != 503 {
                answer.expect(200);
                break;
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            // The same settle again succeeds, even if the first one was written without an acknowledgement.
            tokio::time::sleep(RETRY_PAUSE).await;
        }
        ledger.settle(place);
    }
    Ok(())
}

/// Checks that each claim is stored as it was acknowledged, and cannot be won again.
pub async fn verify(address: SocketAddr, acknowledged: &[Acknowledged]) {
    let share = acknowledged.len().div_ceil(4).max(1);
    let parts = acknowledged.chunks(share).map(<[Acknowledged]>::to_vec);
    let checks: Vec<_> = parts
        .map(|part| {
            tokio::spawn(async move {
                let mut client = Client::new(address);
                for one in &part {
                    verify_one(&mut client, one).await;
                }
            })
        })
        .collect();
    for check in checks {
        check.await.expect("what was acknowledged is there");
    }
}

async fn verify_one(client: &mut Client, one: &Acknowledged) {
    let claim = client.show(GUARD, &one.id).await.expect(200).body;
    assert_eq!(claim["token"], one.token, "{one:?}: {claim}");
    let again = client.claim(&body(&one.part)).await;
    match claim["state"].as_str() {
        Some("done") => {
            assert_eq!(claim["outcome"], one.outcome, "{one:?}: {claim}");
            assert_eq!(again.expect(200).body["outcome"], one.outcome, "{one:?}");
        }
        Some("in_flight") => {
            assert!(!one.settled, "an acknowledged settle is lost: {one:?}: {claim}");
            again.expect_problem(409, "in-flight");
        }
        _ => panic!("{one:?}: {claim}"),
    }
}
