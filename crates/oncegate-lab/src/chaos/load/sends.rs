//! Sends: workers ask, one at a time may proceed, and it reports the outcome. Their histories are checked like the histories of claims,
//! except for late reports.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncegate_core::{State, Token, Verdict};
use oncegate_store::conformance::histories::{Call, Event, Reply, Rules, check};
use serde_json::{Value, json};

use super::Shift;
use super::claims::SLACK;
use crate::chaos::{Answer, Clients, Dice, Lost, Patience, Run};

const WORKERS: u32 = 3;
const RECIPIENTS: usize = 10;
const KEPT: Duration = Duration::from_secs(365 * 24 * 3600);
const LEASES_MS: [u64; 3] = [300, 1000, 2500];

pub async fn generation(run: &Arc<Run>, number: u64) -> Result<(), String> {
    let shift = Shift::begin();
    let worker = |worker: u32| Worker {
        run: run.clone(),
        clients: run.clients(),
        dice: run.dice("sends", number * u64::from(WORKERS + 1) + u64::from(worker)),
        number: worker,
        generation: number,
        history: vec![],
    };
    let workers: Vec<_> = (0..WORKERS).map(|number| tokio::spawn(worker(number).work(Shift(shift.0)))).collect();
    let mut last = worker(WORKERS);
    for worker in workers {
        last.history.extend(worker.await.map_err(|error| error.to_string())?);
    }
    // Each job is delivered once more.
    for recipient in 0..RECIPIENTS {
        let mut patience = Patience::default();
        while last.begin(recipient).await.is_none() {
            patience.wait(run, "the last answer about a send").await?;
        }
    }
    let rules = Rules { slack: SLACK, late_words: true };
    let figures = check(&last.history, rules).map_err(|violation| violation.to_string())?;
    run.tally.count("send calls", figures.events as u64);
    run.tally.count("sends that proceeded", figures.wins as u64);
    Ok(())
}

struct Worker {
    run: Arc<Run>,
    clients: Clients,
    dice: Dice,
    number: u32,
    generation: u64,
    history: Vec<Event>,
}

impl Worker {
    async fn work(mut self, shift: Shift) -> Vec<Event> {
        let mut call = 0;
        while !shift.is_over(&self.run) {
            call += 1;
            let recipient = self.dice.below(RECIPIENTS);
            if let Some(Some((id, token))) = self.begin(recipient).await {
                tokio::time::sleep(self.dice.millis(0..200)).await;
                match self.dice.below(10) {
                    0..=3 => self.sent(recipient, &id, token, call).await,
                    4 | 5 => self.failed(recipient, &id, token).await,
                    // The worker dies, or is very late.
                    _ => {
                        tokio::time::sleep(self.dice.millis(100..1200)).await;
                        if self.dice.percent(50) {
                            self.sent(recipient, &id, token, call).await;
                        }
                    }
                }
            }
            tokio::time::sleep(self.dice.millis(10..80)).await;
        }
        self.history
    }

    fn key(&self, recipient: usize) -> Arc<str> {
        format!("send g{} r{recipient}", self.generation).into()
    }

    async fn call(&mut self, recipient: usize, path: &str, body: &Value, call: Call) -> Option<Answer> {
        let called = self.run.now();
        let answered = self.clients.any(&mut self.dice).post(path, body).await;
        let reply = reply(&answered);
        let (key, client, returned) = (self.key(recipient), self.number, self.run.now());
        self.history.push(Event { key, client, called, returned, call, reply });
        answered.ok()
    }

    /// Returns `None` without an answer, and `Some(None)` if the worker may not send now.
    async fn begin(&mut self, recipient: usize) -> Option<Option<(String, i64)>> {
        let lease = Duration::from_millis(*self.dice.pick(&LEASES_MS));
        let body = json!({
            "campaignId": format!("g{}", self.generation), "recipientId": format!("r{recipient}"),
            "leaseSeconds": lease.as_secs_f64(),
        });
        let answer =
            self.call(recipient, "/api/sends", &body, Call::Claim { lease, window: KEPT, holds: false }).await?;
        Some(answer.body["token"].as_i64().zip(answer.text("id")).map(|(token, id)| (id, token)))
    }

    async fn sent(&mut self, recipient: usize, id: &str, token: i64, call: usize) {
        let esp = format!("esp-{}-{call}", self.number);
        let body = json!({"token": token, "espMessageId": esp});
        let call = Call::Settle { token: Token(token), verdict: Verdict::Done, outcome: Bytes::from(esp) };
        self.call(recipient, &format!("/api/sends/{id}/sent"), &body, call).await;
    }

    async fn failed(&mut self, recipient: usize, id: &str, token: i64) {
        let body = json!({"token": token, "error": "no connection", "reached": "no"});
        self.call(recipient, &format!("/api/sends/{id}/failed"), &body, Call::Release { token: Token(token) }).await;
    }
}

fn reply(answered: &Result<Answer, Lost>) -> Reply {
    let answer = match answered {
        Ok(answer) => answer,
        Err(Lost::NotWritten) => return Reply::NotWritten,
        Err(Lost::Unknown) => return Reply::Unknown,
    };
    match (answer.status, answer.body["send"].as_str(), answer.body["state"].as_str()) {
        (201, ..) => answer.body["token"].as_i64().map_or(Reply::Unknown, |token| Reply::Won(Token(token))),
        (200, Some("skip"), Some("sent")) => {
            Reply::Settled { token: None, state: State::Done, outcome: answer.text("espMessageId").map(Bytes::from) }
        }
        (200, Some("skip"), _) => Reply::Held { token: None },
        (200, ..) => Reply::Accepted,
        (409, ..) if answer.problem() == "send-busy" => Reply::InFlight { token: None },
        (409, ..) => Reply::Fenced,
        (404, ..) => Reply::Missing,
        _ => Reply::Unknown,
    }
}
