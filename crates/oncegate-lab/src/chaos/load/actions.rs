//! Actions: the last acknowledged payload of an entity is delivered last; an action that may run once runs once.

use std::sync::Arc;

use serde_json::json;

use super::Shift;
use crate::chaos::{Clients, Patience, Run};

const ENTITIES: u64 = 6;

/// What the servers told the client of one entity.
struct Scheduled {
    entity: String,
    /// The last version that was acknowledged.
    last: u64,
    ids: Vec<String>,
    /// Actions that may run once: id and text.
    once: Vec<(String, String)>,
}

pub async fn generation(run: &Arc<Run>, number: u64) -> Result<(), String> {
    let shift = Shift::begin();
    let entities: Vec<_> =
        (0..ENTITIES).map(|entity| tokio::spawn(schedule(run.clone(), number, entity, Shift(shift.0)))).collect();
    for entity in entities {
        let scheduled = entity.await.map_err(|error| error.to_string())?;
        check(run, &scheduled).await?;
    }
    Ok(())
}

/// One client for each entity, so that its updates have an order.
async fn schedule(run: Arc<Run>, generation: u64, entity: u64, shift: Shift) -> Scheduled {
    let (mut clients, mut dice) = (run.clients(), run.dice("actions", generation * ENTITIES + entity));
    let mut scheduled =
        Scheduled { entity: format!("g{generation} entity {entity}"), last: 0, ids: vec![], once: vec![] };
    for version in 1.. {
        if shift.is_over(&run) {
            break;
        }
        let client = clients.any(&mut dice);
        let payload = json!({"entityId": scheduled.entity, "version": version});
        let body = json!({"actionType": "sync", "payload": payload, "windowSeconds": 0.5});
        run.tally.count("actions scheduled", 1);
        match client.post("/api/actions", &body).await {
            Ok(answer) if matches!(answer.status, 200 | 201) => {
                scheduled.last = version;
                scheduled.ids.extend(answer.text("id"));
            }
            _ => run.tally.count("actions without an answer", 1),
        }
        if dice.percent(30) {
            // Not retried: a second request would be a second action.
            let text = format!("{} once {version}", scheduled.entity);
            let body = json!({"actionType": "once", "payload": {"text": text}, "delaySeconds": 0});
            if let Ok(answer) = clients.any(&mut dice).post("/api/actions", &body).await {
                scheduled.once.extend(answer.text("id").map(|id| (id, text)));
            }
        }
        tokio::time::sleep(dice.millis(20..400)).await;
    }
    scheduled
}

/// Waits until an action has ended. Returns whether it is completed.
async fn is_completed(run: &Run, clients: &mut Clients, id: &str) -> Result<bool, String> {
    let mut patience = Patience::default();
    loop {
        let answer = clients.get(run, &format!("/api/actions/{id}")).await?;
        if answer.status != 200 {
            return Err(format!("an acknowledged action is gone: {id}: {}", answer.body));
        }
        if answer.body["endedAt"].is_string() {
            return Ok(answer.body["status"] == "completed");
        }
        patience.wait(run, &format!("action {id} ends: {}", answer.body)).await?;
    }
}

async fn check(run: &Run, scheduled: &Scheduled) -> Result<(), String> {
    let mut clients = Clients::new(run);
    for (id, text) in &scheduled.once {
        if is_completed(run, &mut clients, id).await? && run.site.provider.arrivals("/once", text).is_empty() {
            return Err(format!("an action that never arrived is said to be completed: {id}, {text}"));
        }
    }
    let mut ids = scheduled.ids.clone();
    ids.dedup();
    let mut is_sure = true;
    for id in &ids {
        is_sure &= is_completed(run, &mut clients, id).await?;
    }
    if ids.is_empty() || !is_sure {
        return Ok(());
    }
    let arrivals = run.site.provider.arrivals("/actions", &scheduled.entity);
    // A server that was paused between its decision and its call makes that call when it resumes.
    let in_time = arrivals.iter().rev().find(|arrival| !run.was_just_woken(arrival.at));
    let delivered = in_time.and_then(|arrival| arrival.body["version"].as_u64()).unwrap_or_default();
    let newest = arrivals.iter().filter_map(|arrival| arrival.body["version"].as_u64()).max().unwrap_or_default();
    let is_late_call_newest = newest >= scheduled.last && arrivals.iter().any(|arrival| run.was_just_woken(arrival.at));
    if delivered < scheduled.last && !is_late_call_newest {
        let versions: Vec<_> = arrivals.iter().map(|arrival| arrival.body["version"].to_string()).collect();
        return Err(format!(
            "the last acknowledged payload of {} is version {}, delivered were {}",
            scheduled.entity,
            scheduled.last,
            versions.join(", ")
        ));
    }
    Ok(())
}
