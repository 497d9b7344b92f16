//! Claims through HTTP: their histories are checked as the conformance suite checks a store's.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncegate_core::{State, Token, Verdict};
use oncegate_store::conformance::histories::{Call, Event, Reply, Rules, Stamp, check};
use serde_json::{Value, json};

use super::Shift;
use crate::chaos::{Answer, Broken, Client, Clients, Dice, Lost, Run};

const KEYS: usize = 60;
/// How many keys the callers use at a time. The oldest key is dropped as time goes by, so some keys are always unsettled.
const KEYS_AT_A_TIME: usize = 8;
const CLIENTS: u32 = 6;
const BATCH: usize = 6;
const LEASES_MS: [u64; 4] = [300, 800, 1500, 3000];
const LONG_WINDOW: Duration = Duration::from_secs(600);
/// Some keys have a window that ends during the generation.
const SHORT_WINDOW: Duration = Duration::from_secs(3);
/// One key in this many has a short window.
const SHORT_WINDOW_ONE_IN: usize = 5;
/// One key in this many is held when its owner is lost.
const HELD_ONE_IN: usize = 4;
/// The most by which the clocks of the servers and the driver may differ over a lease.
pub const SLACK: Duration = Duration::from_millis(40);

/// A key of the load, and how it is claimed.
#[derive(Clone)]
struct Key {
    name: Arc<str>,
    guard: &'static str,
    window: Duration,
}

impl Key {
    fn new(generation: u64, number: usize) -> Key {
        let guard = if number.is_multiple_of(HELD_ONE_IN) { "held" } else { "load" };
        let window = if number.is_multiple_of(SHORT_WINDOW_ONE_IN) { SHORT_WINDOW } else { LONG_WINDOW };
        Key { name: format!("g{generation} k{number}").into(), guard, window }
    }

    fn body(&self, lease: Duration) -> Value {
        json!({
            "guard": self.guard, "key": [&*self.name],
            "leaseSeconds": lease.as_secs_f64(), "ttlSeconds": self.window.as_secs_f64(),
        })
    }

    fn call(&self, lease: Duration) -> Call {
        Call::Claim { lease, window: self.window, holds: self.guard == "held" }
    }
}

/// A claim that was won.
#[derive(Clone)]
struct Owned {
    key: Key,
    id: String,
    token: i64,
    lease: Duration,
}

pub async fn generation(run: &Arc<Run>, number: u64) -> Result<(), String> {
    let shift = Shift::begin();
    let caller = |number: u32, dice: Dice| {
        let (run, clients) = (run.clone(), run.clients());
        Caller { run, clients, number, dice, history: vec![] }
    };
    let clients = (0..CLIENTS).map(|client| {
        let dice = run.dice("claims", number * u64::from(CLIENTS) + u64::from(client));
        tokio::spawn(caller(client, dice).work(number, shift.0))
    });
    let clients: Vec<_> = clients.collect();
    let mut history = vec![];
    for client in clients {
        history.extend(client.await.map_err(|error| error.to_string())?);
    }
    let mut reader = caller(CLIENTS, run.dice("claims read", number));
    reader.history = history;
    for key in (0..KEYS).map(|key| Key::new(number, key)) {
        reader.read_at_last(&key).await?;
    }
    let figures = check(&reader.history, Rules { slack: SLACK, ..Rules::default() });
    let figures = figures.map_err(|violation| violation.to_string())?;
    for (operation, by) in [
        ("claim calls", figures.events),
        ("claims won", figures.wins),
        ("claims won again", figures.successions),
        ("answers unknown", figures.unknown),
        ("answers not written", figures.not_written),
    ] {
        run.tally.count(operation, by as u64);
    }
    Ok(())
}

struct Caller {
    run: Arc<Run>,
    clients: Clients,
    number: u32,
    dice: Dice,
    history: Vec<Event>,
}

impl Caller {
    async fn work(mut self, generation: u64, until: std::time::Instant) -> Vec<Event> {
        let mut owned: Vec<Owned> = vec![];
        let mut call = 0;
        while std::time::Instant::now() < until && !self.run.time_is_up() {
            call += 1;
            let first = self.first_key(until);
            let key = Key::new(generation, first + self.dice.below(KEYS_AT_A_TIME));
            let mine = (!owned.is_empty()).then(|| self.dice.below(owned.len()));
            match (self.dice.below(20), mine) {
                (0..=6, _) => owned.extend(self.claim(&key).await),
                (7, _) => owned.extend(self.claim_batch(generation, first).await),
                (8 | 9, Some(place)) => self.renew(&owned[place].clone()).await,
                // The owner settles sometimes at once, sometimes much too late, sometimes never.
                (10..=12, Some(place)) => {
                    let verdict = if self.dice.percent(20) { Verdict::Failed } else { Verdict::Done };
                    let outcome = format!("\"call {call} of client {}\"", self.number);
                    let owned = owned.remove(place);
                    if self.settle(&owned, verdict, &outcome).await == Reply::Unknown {
                        self.settle(&owned, verdict, &outcome).await;
                    }
                }
                (13, Some(place)) => {
                    let owned = owned.remove(place);
                    self.release(&owned).await;
                }
                (14 | 15, _) => {
                    let _ = self.read(&key).await;
                }
                _ => tokio::time::sleep(self.dice.millis(0..60)).await,
            }
            // A short pause: the two servers share this machine with the driver.
            tokio::time::sleep(self.dice.millis(1..8)).await;
        }
        self.history
    }

    fn first_key(&self, until: std::time::Instant) -> usize {
        let left = until.saturating_duration_since(std::time::Instant::now()).as_secs_f64();
        let passed = 1.0 - (left / super::GENERATION.as_secs_f64()).min(1.0);
        ((KEYS - KEYS_AT_A_TIME) as f64 * passed) as usize
    }

    fn record(&mut self, key: &Key, called: Stamp, call: Call, reply: Reply) {
        let (client, returned) = (self.number, self.run.now());
        self.history.push(Event { key: key.name.clone(), client, called, returned, call, reply });
    }

    async fn claim(&mut self, key: &Key) -> Option<Owned> {
        let lease = Duration::from_millis(*self.dice.pick(&LEASES_MS));
        let mut body = key.body(lease);
        if self.dice.percent(10) {
            body["waitSeconds"] = json!(0.5);
        }
        let called = self.run.now();
        let client = self.clients.any(&mut self.dice);
        let mut answered = client.post("/api/claims", &body).await;
        if self.run.options.broken == Some(Broken::NoLease) {
            answered = without_lease_check(client, key, &body, answered).await;
        }
        let owned = answered.as_ref().ok().and_then(|answer| owned(key, lease, answer));
        self.record(key, called, key.call(lease), reply(answered));
        owned
    }

    async fn claim_batch(&mut self, generation: u64, first: usize) -> Vec<Owned> {
        let lease = Duration::from_millis(*self.dice.pick(&LEASES_MS));
        let first = first + self.dice.below(KEYS_AT_A_TIME - BATCH + 1);
        let keys: Vec<Key> = (first..first + BATCH).map(|key| Key::new(generation, key)).collect();
        let body = Value::Array(keys.iter().map(|key| key.body(lease)).collect());
        let called = self.run.now();
        let answered = self.clients.any(&mut self.dice).post("/api/claims/batch", &body).await;
        let mut won = vec![];
        for (place, key) in keys.iter().enumerate() {
            let answer = answered.clone().map(|batch| {
                let body = batch.body[place].clone();
                Answer { status: body["status"].as_u64().unwrap_or_default() as u16, body }
            });
            let answer = answer.and_then(|answer| match (answer.status, answer.problem()) {
                (503, "store-unavailable") => Err(Lost::NotWritten),
                (503 | 500, _) => Err(Lost::Unknown),
                _ => Ok(answer),
            });
            won.extend(answer.as_ref().ok().and_then(|answer| owned(key, lease, answer)));
            self.record(key, called, key.call(lease), reply(answer));
        }
        won
    }

    async fn verb(&mut self, owned: &Owned, verb: &str, call: Call, more: Value) -> Reply {
        let mut body = json!({"guard": owned.key.guard, "token": owned.token});
        if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object()) {
            body.extend(more.clone());
        }
        let path = format!("/api/claims/{}/{verb}", owned.id);
        let called = self.run.now();
        let client = self.clients.any(&mut self.dice);
        let mut answered = client.post(&path, &body).await;
        if self.run.options.broken == Some(Broken::NoFence) {
            answered = without_fence(client, owned, &path, body, answered).await;
        }
        let reply = reply(answered);
        self.record(&owned.key, called, call, reply.clone());
        reply
    }

    async fn renew(&mut self, owned: &Owned) {
        let call = Call::Renew { token: Token(owned.token), lease: owned.lease };
        self.verb(owned, "renew", call, json!({"leaseSeconds": owned.lease.as_secs_f64()})).await;
    }

    async fn settle(&mut self, owned: &Owned, verdict: Verdict, outcome: &str) -> Reply {
        let call = Call::Settle { token: Token(owned.token), verdict, outcome: Bytes::from(outcome.to_owned()) };
        let verb = if verdict == Verdict::Failed { "fail" } else { "settle" };
        let outcome: Value = serde_json::from_str(outcome).unwrap_or_default();
        self.verb(owned, verb, call, json!({"outcome": outcome})).await
    }

    async fn release(&mut self, owned: &Owned) {
        self.verb(owned, "release", Call::Release { token: Token(owned.token) }, json!({})).await;
    }

    async fn read(&mut self, key: &Key) -> Reply {
        let called = self.run.now();
        let body = json!({"guard": key.guard, "key": [&*key.name]});
        let answered = self.clients.any(&mut self.dice).post("/api/claims/find", &body).await;
        // A read that failed changed nothing.
        let reply = answered.map_or(Reply::NotWritten, |answer| seen(&answer));
        self.record(key, called, Call::Read, reply.clone());
        reply
    }

    /// Reads each key once more. Waits as long as that takes.
    async fn read_at_last(&mut self, key: &Key) -> Result<(), String> {
        let mut patience = crate::chaos::Patience::default();
        while self.read(key).await == Reply::NotWritten {
            self.history.pop();
            patience.wait(&self.run, "the last read of a claim").await?;
        }
        Ok(())
    }
}

fn owned(key: &Key, lease: Duration, answer: &Answer) -> Option<Owned> {
    let token = answer.body["token"].as_i64().filter(|_| answer.status == 201)?;
    Some(Owned { key: key.clone(), id: answer.text("id")?, token, lease })
}

/// What an answer means in a history.
pub fn reply(answered: Result<Answer, Lost>) -> Reply {
    let answer = match answered {
        Ok(answer) => answer,
        Err(Lost::NotWritten) => return Reply::NotWritten,
        Err(Lost::Unknown) => return Reply::Unknown,
    };
    match (answer.status, answer.body["claim"].as_str(), answer.problem()) {
        (201, ..) => answer.body["token"].as_i64().map_or(Reply::Unknown, |token| Reply::Won(Token(token))),
        (200, Some("duplicate"), _) => settled(&answer),
        (200, ..) => Reply::Accepted,
        (409, _, "in-flight") => Reply::InFlight { token: None },
        (409, _, "held") => Reply::Held { token: None },
        (409, _, "fenced") => Reply::Fenced,
        (404, ..) => Reply::Missing,
        (422, ..) => Reply::Mismatch,
        _ => Reply::Unknown,
    }
}

fn settled(answer: &Answer) -> Reply {
    let state = answer.body["state"].as_str().and_then(State::parse).unwrap_or(State::Done);
    let outcome = Some(&answer.body["outcome"]).filter(|outcome| !outcome.is_null());
    Reply::Settled {
        token: answer.body["token"].as_i64().map(Token),
        state,
        outcome: outcome.map(|outcome| Bytes::from(outcome.to_string())),
    }
}

/// A claim as a read returned it.
fn seen(answer: &Answer) -> Reply {
    let token = answer.body["token"].as_i64().map(Token);
    match (answer.status, answer.body["state"].as_str()) {
        (404, _) => Reply::Missing,
        (200, Some("in_flight")) => Reply::InFlight { token },
        (200, Some("unknown")) => Reply::Held { token },
        (200, _) => settled(answer),
        _ => Reply::NotWritten,
    }
}

/// A negative control: behaves like a server without the lease check.
async fn without_lease_check(
    client: &mut Client,
    key: &Key,
    body: &Value,
    answered: Result<Answer, Lost>,
) -> Result<Answer, Lost> {
    match answered {
        Ok(answer) if answer.problem() == "in-flight" => {
            let id = answer.text("id").unwrap_or_default();
            client.delete(&format!("/api/claims/{id}?guard={}", key.guard)).await?;
            client.post("/api/claims", body).await
        }
        other => other,
    }
}

/// A negative control: behaves like a server without the fence.
async fn without_fence(
    client: &mut Client,
    owned: &Owned,
    path: &str,
    mut body: Value,
    answered: Result<Answer, Lost>,
) -> Result<Answer, Lost> {
    match answered {
        Ok(answer) if answer.problem() == "fenced" => {
            let current = client.get(&format!("/api/claims/{}?guard={}", owned.id, owned.key.guard)).await?;
            body["token"] = current.body["token"].clone();
            client.post(path, &body).await
        }
        other => other,
    }
}
