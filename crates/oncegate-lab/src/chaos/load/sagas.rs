//! Saga events: each event is delivered several times, by both servers, and applied once.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Shift;
use crate::chaos::{Clients, Dice, Patience, Run};

const FILES: usize = 3;

pub async fn generation(run: &Arc<Run>, number: u64) -> Result<(), String> {
    let shift = Shift::begin();
    let mut dice = run.dice("sagas", number);
    let mut searches = 0;
    while !shift.is_over(run) {
        searches += 1;
        search(run, &mut dice, &format!("g{number} s{searches}")).await?;
    }
    run.tally.count("sagas completed", searches);
    Ok(())
}

async fn search(run: &Arc<Run>, dice: &mut Dice, search: &str) -> Result<(), String> {
    let files: Vec<String> = (0..FILES).map(|file| format!("f{file}")).collect();
    let saved = json!({"projectId": "p", "searchId": search, "searchName": "n", "referenceFiles": files});
    deliver(run, dice, &json!({"type": "SearchUploadSaved", "id": format!("{search} saved"), "data": saved})).await?;
    for file in &files {
        let data = json!({"searchId": search, "fileId": file});
        let id = format!("{search} parsed {file}");
        deliver(run, dice, &json!({"type": "ReferenceFileParsingCompleted", "id": id, "data": data})).await?;
    }
    let path = format!("/api/sagas/search-import/{}", search.replace(' ', "%20"));
    let instance = Clients::new(run).get(run, &path).await?;
    if instance.body["state"] != "Completed" {
        return Err(format!(
            "{search}: all of its events were acknowledged, and it is not completed: {}",
            instance.body
        ));
    }
    let mut patience = Patience::default();
    for file in &files {
        let command = format!("{search} {file}");
        while run.site.provider.arrivals("/commands", &command).is_empty() {
            patience.wait(run, &format!("the command to parse {command} arrives")).await?;
        }
    }
    Ok(())
}

/// Delivers to both servers at once, until at least one has answered. At most one may say that it applied the event.
async fn deliver(run: &Arc<Run>, dice: &mut Dice, event: &Value) -> Result<(), String> {
    let mut results: Vec<String> = vec![];
    let mut patience = Patience::default();
    loop {
        let deliveries = 1 + dice.below(3);
        let tasks = (0..deliveries).map(|_| {
            let (mut clients, mut dice, event) = (run.clients(), Dice::new(dice.number()), event.clone());
            tokio::spawn(async move { clients.any(&mut dice).post("/api/events", &event).await })
        });
        let tasks: Vec<_> = tasks.collect();
        run.tally.count("events delivered", tasks.len() as u64);
        for task in tasks {
            if let Ok(Ok(answer)) = task.await {
                results.extend(answer.text("result"));
            }
        }
        if results.iter().filter(|result| *result == "applied").count() > 1 {
            return Err(format!("an event was applied twice: {event}: {}", results.join(", ")));
        }
        if results.iter().any(|result| result == "dead_letter") {
            return Err(format!("an event that follows acknowledged ones is a dead letter: {event}"));
        }
        if !results.is_empty() {
            return Ok(());
        }
        patience.wait(run, &format!("an answer to {event}")).await?;
    }
}
