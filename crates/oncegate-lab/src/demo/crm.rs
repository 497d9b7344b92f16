//! A CRM that schedules the same action again and again, and a remote worker for some of the actions.

use std::time::Duration;

use serde_json::{Value, json};

use super::caller::{Answer, Caller, Done, seconds, with};
use oncegate_process::loopback::NoAnswer;

const EVERY: Duration = Duration::from_secs(4);
/// Types for remote workers: the configuration does not name them.
const RENDER: &str = "invoice:render";
const EXPIRE: &str = "trial:expire";
/// Actions that a worker runs at once.
const LEASED_MAX: usize = 20;
const STAGES: [&str; 4] = ["new", "called", "offer sent", "won"];

pub async fn schedule(caller: Caller) {
    caller.go_on(EVERY, act).await;
}

async fn act(caller: &mut Caller) -> Done {
    let number = caller.turn;
    let lead = json!({"entityType": "lead", "entityId": format!("lead {number}"), "stage": caller.pick(&STAGES)});
    match caller.scene(&[7, 3, 3, 3, 0, 1, 2, 4, 3, 2]) {
        // A user types, and each keystroke is saved.
        0 => again(caller, "crm:sync", lead, json!({}), 4).await,
        1 => again(caller, "crm:welcome", lead, json!({}), 2).await,
        2 => again(caller, "crm:index", lead, json!({"maxWaitSeconds": 10}), 3).await,
        3 if caller.is_empty("/api/actions?status=dead").await? => {
            schedule_one(caller, "crm:export", &lead, json!({"delaySeconds": 0})).await.map(drop)
        }
        4 => {
            schedule_one(caller, "crm:totals", &json!({"report": "totals"}), json!({"recurringInterval": "1m"}))
                .await?;
            let nightly = json!({"recurringInterval": "30 6 * * 1-5", "timezone": "Europe/Berlin"});
            schedule_one(caller, "crm:totals", &json!({"report": "of the day"}), nightly).await.map(drop)
        }
        5 => {
            let trial = schedule_one(caller, EXPIRE, &lead, json!({"delaySeconds": 600})).await?;
            caller.post(&format!("/api/actions/{}/cancel", trial.text("id")), &json!({})).await.map(drop)
        }
        6 => {
            let later = json!({"delaySeconds": 600, "windowSeconds": 60});
            again(caller, EXPIRE, lead, later, 2).await
        }
        8 if caller.is_empty("/api/actions?status=unknown").await? => {
            schedule_one(caller, "door:open", &json!({"door": "back"}), json!({})).await.map(drop)
        }
        9 => {
            let merged = json!({"mode": "merge"});
            schedule_one(caller, "crm:sync", &lead, merged.clone()).await?;
            let address = json!({"entityType": "lead", "entityId": lead["entityId"], "email": "lead@example.com"});
            schedule_one(caller, "crm:sync", &address, merged).await.map(drop)
        }
        _ => {
            let invoice = json!({"entityId": format!("invoice {number}"), "cents": 900 + 10 * caller.below(5000)});
            again(caller, RENDER, invoice, json!({"delaySeconds": 1}), 2).await
        }
    }
}

/// Saves the same entity several times, each time a little different.
async fn again(caller: &Caller, action: &str, mut payload: Value, more: Value, times: u32) -> Done {
    for save in 1..=times {
        payload["save"] = json!(save);
        schedule_one(caller, action, &payload, more.clone()).await?;
        seconds(0.25).await;
    }
    Ok(())
}

async fn schedule_one(caller: &Caller, action: &str, payload: &Value, more: Value) -> Result<Answer, NoAnswer> {
    caller.post("/api/actions", &with(json!({"actionType": action, "payload": payload}), more)).await
}

/// A remote worker: leases, works, and reports the result.
pub async fn work(caller: Caller) {
    caller.go_on(Duration::from_millis(100), render).await;
}

async fn render(caller: &mut Caller) -> Done {
    let leased = lease(caller, &[RENDER, EXPIRE]).await?;
    seconds(0.8).await;
    for action in leased {
        let path = format!("/api/actions/{}", action["id"].as_str().unwrap_or_default());
        // The first attempt of some of them fails.
        if action["attempt"] == 1 && caller.below(4) == 0 {
            let failed = json!({"token": action["token"], "error": "out of paper", "reached": "no"});
            caller.post(&format!("{path}/fail"), &failed).await?;
            continue;
        }
        let done = json!({"token": action["token"], "result": {"pages": 1 + caller.below(3)}});
        caller.post(&format!("{path}/complete"), &done).await?;
    }
    Ok(())
}

/// Waits for actions of these types.
pub async fn lease(caller: &Caller, types: &[&str]) -> Result<Vec<Value>, NoAnswer> {
    let body = json!({"types": types, "max": LEASED_MAX, "leaseSeconds": 10, "waitSeconds": 10});
    let leased = caller.post("/api/actions/lease", &body).await?;
    Ok(leased.body.as_array().cloned().unwrap_or_default())
}
