//! Histories: concurrent clients record what they called and what they were told, and a checker
//! reads the record.
//!
//! The clients crash (stop without settling), are late (settle after others took over), and
//! repeat themselves, while the clock runs past their leases.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use oncegate_core::{Answer, ClaimKey, Command, Terms, Token};

use super::{LEASE, World, key, settle, terms};
use crate::{Op, Store};

const CLIENTS: usize = 16;
const KEYS: usize = 40;
const CALLS: usize = 120;

/// One call: when it was made and answered, on one logical clock, and what came of it.
pub struct Event {
    pub key: ClaimKey,
    pub called: usize,
    pub returned: usize,
    pub what: What,
}

pub enum What {
    Won(Token),
    /// An owner's verb that was accepted.
    Accepted(Token),
    /// A settle that was accepted, with its outcome.
    Settled(Token, Bytes),
    /// A duplicate's view of the outcome.
    Read(Bytes),
}

/// One owner at a time, one outcome, growing tokens; panics with the first violation.
pub fn check(history: &[Event]) {
    let mut by_key: HashMap<&ClaimKey, Vec<&Event>> = HashMap::new();
    for event in history {
        by_key.entry(&event.key).or_default().push(event);
    }
    for events in by_key.values() {
        let wins: Vec<(Token, &Event)> = events
            .iter()
            .filter_map(|event| match event.what {
                What::Won(token) => Some((token, *event)),
                _ => None,
            })
            .collect();
        for (i, (token, win)) in wins.iter().enumerate() {
            for (other_token, other) in &wins[i + 1..] {
                assert_ne!(token, other_token, "two owners under one token");
                if win.returned < other.called {
                    assert!(token < other_token, "a later owner has a smaller token");
                }
            }
        }
        let mut outcome: Option<&Bytes> = None;
        for event in events {
            if let What::Accepted(token) | What::Settled(token, _) = &event.what {
                let superseded = wins.iter().any(|(newer, win)| newer > token && win.returned < event.called);
                assert!(!superseded, "a stale owner's verb was accepted");
            }
            if let What::Settled(_, said) | What::Read(said) = &event.what {
                assert_eq!(*outcome.get_or_insert(said), said, "two outcomes of one claim");
            }
        }
    }
}

pub async fn concurrent_clients_see_one_owner_and_one_outcome(world: World) {
    let logical = Arc::new(AtomicUsize::new(0));
    let clients = (0..CLIENTS).map(|seed| {
        let client = Client { store: world.store.clone(), logical: logical.clone(), history: vec![] };
        tokio::spawn(client.run(seed as u64 * 7919 + 1))
    });
    let clients: Vec<_> = clients.collect();
    while clients.iter().any(|client| !client.is_finished()) {
        world.clock.advance(LEASE / 4);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut history = vec![];
    for client in clients {
        history.extend(client.await.expect("does not panic"));
    }
    let wins = history.iter().filter(|event| matches!(event.what, What::Won(_))).count();
    assert!(wins > KEYS, "take-overs happened");
    check(&history);
}

/// The clock runs for as long as the clients do; a window that ended would allow a second outcome.
fn for_good() -> Terms {
    Terms { window: Duration::MAX, ..terms() }
}

struct Client {
    store: Arc<dyn Store>,
    logical: Arc<AtomicUsize>,
    history: Vec<Event>,
}

impl Client {
    async fn run(mut self, mut seed: u64) -> Vec<Event> {
        let mut owned: Vec<(ClaimKey, Token)> = vec![];
        for call in 0..CALLS {
            // A small linear congruential generator: the suite needs variety, not randomness.
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let dice = (seed >> 33) as usize;
            match dice % 4 {
                0 | 1 => {
                    let key = key(&format!("key {}", dice / 4 % KEYS));
                    if let Answer::Won(claim) = self.call(&key, Command::Claim(for_good())).await {
                        owned.push((key, claim.token));
                    }
                }
                2 => {
                    if let Some((key, token)) = owned.last().cloned() {
                        self.call(&key, Command::Renew { token, lease: None }).await;
                    }
                }
                // Sometimes at once, sometimes much too late, sometimes never: a crash.
                _ if dice.is_multiple_of(3) => {
                    if !owned.is_empty() {
                        let (key, token) = owned.remove(dice / 12 % owned.len());
                        self.call(&key, settle(token, format!("{token} in call {call}"))).await;
                    }
                }
                _ => tokio::time::sleep(Duration::from_millis(dice as u64 % 3)).await,
            }
        }
        self.history
    }

    async fn call(&mut self, key: &ClaimKey, command: Command) -> Answer {
        let tick = || self.logical.fetch_add(1, Ordering::SeqCst);
        let called = tick();
        let op = Op { key: key.clone(), command: command.clone() };
        let answer = self.store.commit(op.into()).await.expect("the store is there").only();
        let returned = tick();
        let what = match (&command, &answer) {
            (_, Answer::Won(claim)) => What::Won(claim.token),
            (Command::Settle { token, outcome: Some(outcome), .. }, Answer::Applied(_)) => {
                What::Settled(*token, outcome.clone())
            }
            (Command::Renew { token, .. }, Answer::Applied(_)) => What::Accepted(*token),
            (_, Answer::Duplicate(claim)) => What::Read(claim.outcome.clone().expect("settled with an outcome")),
            _ => return answer,
        };
        self.history.push(Event { key: key.clone(), called, returned, what });
        answer
    }
}
