//! A program that schedules actions and runs them itself, with no server. Three saves of one lead within the window become one action
//! with the newest payload. The first attempt fails, and the worker tries again.
//!
//! `cargo run -p oncegate --example embedded_worker`

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate::Gate;
use oncegate::actions::Schedule;
use oncegate::worker::Run;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Saved {
    entity_id: String,
    name: String,
}

pub async fn story(store: &str) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let gate = Gate::open(store).await?;
    for name in ["A", "Ad", "Ada"] {
        let saved = Saved { entity_id: "lead 7".into(), name: name.into() };
        let schedule = Schedule::new("crm:sync", &saved)?.window(Duration::from_millis(200));
        gate.actions().schedule(schedule).await?;
    }

    let (lines, synced) = (Arc::new(Mutex::new(vec![])), Arc::new(Notify::new()));
    let (heard, done, was_down) = (lines.clone(), synced.clone(), AtomicBool::new(false));
    let sync = move |saved: Saved, run: Run| {
        let is_down = !was_down.swap(true, Ordering::SeqCst);
        heard
            .lock()
            .expect("no holder panics")
            .push(format!("attempt {}, revision {}: {}", run.attempt, run.revision, saved.name));
        let done = done.clone();
        async move {
            if is_down {
                return Err(std::io::Error::other("the CRM is down"));
            }
            done.notify_one();
            Ok(())
        }
    };
    gate.worker().on::<Saved>("crm:sync", sync).concurrency(16).run(synced.notified()).await;
    gate.close().await;
    Ok(Arc::into_inner(lines).expect("the worker has ended").into_inner()?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    story("memory:").await.map(|lines| println!("{}", lines.join("\n")))
}
