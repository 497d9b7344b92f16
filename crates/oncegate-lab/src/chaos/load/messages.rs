//! Messages, with and without an Idempotency-Key, each posted several times. Every acknowledged message exists in the end.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use super::Shift;
use crate::chaos::{Clients, Patience, Run};

const POSTERS: u64 = 3;
const TEXTS: usize = 40;

/// What the servers told a poster about a text.
struct Told {
    text: String,
    id: String,
    status: String,
}

pub async fn generation(run: &Arc<Run>, number: u64) -> Result<(), String> {
    let shift = Shift::begin();
    let posters = (0..POSTERS).map(|poster| tokio::spawn(post(run.clone(), number, poster, Shift(shift.0))));
    let posters: Vec<_> = posters.collect();
    let mut told = vec![];
    for poster in posters {
        told.extend(poster.await.map_err(|error| error.to_string())?);
    }
    check(run, &told).await
}

async fn post(run: Arc<Run>, generation: u64, poster: u64, shift: Shift) -> Vec<Told> {
    let (mut clients, mut dice) = (run.clients(), run.dice("messages", generation * POSTERS + poster));
    let mut told = vec![];
    while !shift.is_over(&run) {
        let number = dice.below(TEXTS);
        let channel = if number.is_multiple_of(2) { "plain" } else { "keyed" };
        let text = format!("g{generation} message {number}");
        let body = json!({"recipientPhone": format!("+1555{number:04}"), "message": text, "channel": channel});
        // One poster uses a key, for one body. The others post the same text without a key, or under keys of their own.
        let key = number.is_multiple_of(3).then(|| format!("g{generation}-p{poster}-{number}"));
        run.tally.count("messages posted", 1);
        match clients.any(&mut dice).post_with_key("/api/messages", &body, key.as_deref()).await {
            Ok(answer) => {
                let message = &answer.body["message"];
                let field = |name: &str| message[name].as_str().map(str::to_owned);
                if let (Some(id), Some(status)) = (field("_id"), field("status")) {
                    told.push(Told { text, id, status });
                }
            }
            Err(_) => run.tally.count("messages without an answer", 1),
        }
        tokio::time::sleep(dice.millis(10..80)).await;
    }
    told
}

async fn check(run: &Run, told: &[Told]) -> Result<(), String> {
    let mut clients = Clients::new(run);
    let mut ids: BTreeMap<&str, &Told> = BTreeMap::new();
    for one in told {
        // A message that certainly failed may be posted again, and is a new message then.
        if one.status == "failed" {
            continue;
        }
        if let Some(first) = ids.insert(&one.text, one).filter(|first| first.id != one.id) {
            let failed = told.iter().any(|other| other.text == one.text && other.status == "failed");
            if !failed {
                return Err(format!("one text is two messages: {:?} is {} and {}", one.text, first.id, one.id));
            }
        }
    }
    for one in told {
        let mut patience = Patience::default();
        let answer = loop {
            let answer = clients.get(run, &format!("/api/messages/{}", one.id)).await?;
            if !matches!(answer.body["status"].as_str(), Some("queued" | "sending")) {
                break answer;
            }
            patience.wait(run, &format!("message {} is sent, or fails: {}", one.id, answer.body)).await?;
        };
        if answer.status != 200 {
            let (text, id, status) = (&one.text, &one.id, &one.status);
            return Err(format!("an acknowledged message is gone: {text:?}, {id}, was {status}: {}", answer.body));
        }
        let now = answer.body["status"].as_str().unwrap_or_default();
        if one.status == "sent" && now != "sent" {
            return Err(format!("a message that was sent is {now}: {:?}, {}", one.text, one.id));
        }
        let arrivals = ["/plain", "/keyed"].map(|path| run.site.provider.arrivals(path, &one.text)).concat();
        if now == "sent" && arrivals.is_empty() {
            return Err(format!("a message that never arrived is said to be sent: {:?}, {}", one.text, one.id));
        }
        if now == "failed" && arrivals.iter().any(|arrival| arrival.body["id"] == *one.id) {
            return Err(format!("a message that arrived is said to have failed: {:?}, {}", one.text, one.id));
        }
    }
    run.tally.count("messages acknowledged", told.len() as u64);
    Ok(())
}
