//! Histories: concurrent clients record their calls and answers, and a checker reads the record.
//!
//! [`check`] is a pure function over any history. [`Client`] makes one through the library; the chaos driver makes one through HTTP.
//!
//! The clients of the rule below crash (stop without settling), are late (settle after a take-over), retry, and lose answers.
//! Meanwhile the clock runs past their leases and windows.

mod check;
mod event;
mod flaky;
mod library;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncegate_core::{ClaimKey, Lost, Terms, Token, Verdict};

pub use check::{Figures, Rules, Violation, check, check_key};
pub use event::{Call, Event, Reply, Stamp, Stamps};
pub use flaky::Flaky;
pub use library::Client;

use super::{LEASE, World, key, terms};
use crate::{ManualClock, Store};

const CLIENTS: u32 = 16;
const KEYS: usize = 40;
const CALLS: usize = 250;
/// How far the clock moves in one step of the rule. A step takes a millisecond or more, so leases end while owners are at work.
const STEP: Duration = Duration::from_secs(LEASE.as_secs() / 6);

/// Runs clients on a store that fails some of their writes, and checks the history that they record.
pub async fn concurrent_clients_see_one_owner_and_one_outcome(world: World) {
    let history = record(Arc::new(Flaky::new(world.store.clone())), world.clock.clone()).await;
    let figures = check(&history, Rules::default()).unwrap_or_else(|violation| panic!("{violation}"));
    assert!(figures.successions > KEYS, "leases and windows ended: {figures:?}");
    assert!(figures.unknown > 0 && figures.not_written > 0, "calls failed: {figures:?}");
}

/// Runs clients on a store, and returns what they recorded. At the end every key is read once more.
pub async fn record(store: Arc<dyn Store>, clock: Arc<ManualClock>) -> Vec<Event> {
    let stamps = Arc::new(Stamps::default());
    let client = |number: u32| Client {
        store: store.clone(),
        clock: clock.clone(),
        stamps: stamps.clone(),
        number,
        history: vec![],
    };
    let clients: Vec<_> = (0..CLIENTS).map(|number| tokio::spawn(work(client(number)))).collect();
    while clients.iter().any(|client| !client.is_finished()) {
        clock.advance(STEP);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut reader = client(CLIENTS);
    for number in 0..KEYS {
        reader.read(&key(&format!("key {number}"))).await;
    }
    let mut history = reader.history;
    for client in clients {
        history.extend(client.await.expect("no client panics"));
    }
    history
}

/// Every fourth key holds a lost claim; the other keys allow a take-over. Windows end now and then.
fn terms_of(number: usize) -> Terms {
    let lost = if number.is_multiple_of(4) { Lost::Hold } else { Lost::TakeOver };
    Terms { window: LEASE * 4, lost, ..terms() }
}

async fn work(mut client: Client) -> Vec<Event> {
    let mut owned: Vec<(ClaimKey, Token)> = vec![];
    let mut seed = u64::from(client.number) * 7919 + 1;
    for call in 0..CALLS {
        // A small linear congruential generator: the suite needs variety, not randomness.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let dice = (seed >> 33) as usize;
        let number = dice / 16 % KEYS;
        let one = key(&format!("key {number}"));
        match dice % 16 {
            0..=6 => {
                if let Some(token) = client.claim(&one, terms_of(number)).await {
                    owned.push((one, token));
                }
            }
            7 | 8 => {
                if let Some((key, token)) = owned.get(number % owned.len().max(1)).cloned() {
                    client.renew(&key, token, LEASE).await;
                }
            }
            // A client settles at once, or much too late, or never (a crash).
            9 | 10 if !owned.is_empty() => {
                let (key, token) = owned.remove(number % owned.len());
                let verdict = if dice.is_multiple_of(5) { Verdict::Failed } else { Verdict::Done };
                let outcome = Bytes::from(format!("call {call} of client {}", client.number));
                if client.settle(&key, token, verdict, outcome.clone()).await == Reply::Unknown {
                    client.settle(&key, token, verdict, outcome).await;
                }
            }
            11 if !owned.is_empty() => {
                let (key, token) = owned.remove(number % owned.len());
                client.release(&key, token).await;
            }
            12 | 13 => drop(client.read(&one).await),
            _ => tokio::time::sleep(Duration::from_millis(dice as u64 % 4)).await,
        }
    }
    client.history
}
