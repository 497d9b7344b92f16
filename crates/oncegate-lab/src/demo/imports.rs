//! Uploads that S3 reports twice and late, and the worker that parses the uploaded files: the saga `search-import`.

use std::time::Duration;

use serde_json::{Value, json};

use super::caller::{Caller, Done, from_now, seconds, with};
use super::crm::lease;

const EVERY: Duration = Duration::from_secs(8);

/// The saga that ships, with shorter times: a demo does not run for a week.
pub fn definition() -> String {
    include_str!("../../shared/search-import.toml").replace("\"7d\"", "\"1h\"").replace("\"60m\"", "\"2m\"")
}

pub async fn upload(caller: Caller) {
    caller.go_on(EVERY, act).await;
}

async fn act(caller: &mut Caller) -> Done {
    let number = caller.turn;
    match caller.scene(&[5, 4, 3, 1, 3, 1, 2]) {
        1 => {
            // S3 reports each upload twice.
            for _ in 0..2 {
                started(caller, number).await?;
            }
            for _ in 0..2 {
                saved(caller, number, json!({})).await?;
            }
            Ok(())
        }
        2 => {
            saved(caller, number, json!({})).await?;
            started(caller, number).await
        }
        // The upload is never saved, so it times out after a while.
        3 => started(caller, number).await,
        4 if caller.is_empty("/api/sagas/dead-letters?status=open").await? => {
            let data = json!({"searchId": format!("search-{number}"), "fileId": "stray.pdf"});
            event(caller, "ReferenceFileParsingCompleted", format!("stray-{number}"), data).await
        }
        5 => saved(caller, number, json!({"searchName": null})).await,
        6 => {
            // Both at once.
            let (one, other) = tokio::join!(started(caller, number), saved(caller, number, json!({})));
            one.and(other)
        }
        _ => {
            started(caller, number).await?;
            seconds(1.5).await;
            saved(caller, number, json!({})).await
        }
    }
}

/// A notification, as S3 sends it.
async fn started(caller: &Caller, number: u64) -> Done {
    let record = json!({
        "eventVersion": "2.1", "eventSource": "aws:s3", "awsRegion": "eu-central-1", "eventTime": from_now(0),
        "eventName": "ObjectCreated:Put",
        "s3": {
            "bucket": {"name": "demo-uploads"},
            "object": {"key": format!("searches/demo/search-{number}/a.pdf"), "size": 1024, "sequencer": format!("{number:016X}")},
        },
    });
    caller.post("/api/events/s3?saga=search-import", &json!({"Records": [record]})).await.map(drop)
}

async fn saved(caller: &Caller, number: u64, more: Value) -> Done {
    let search = format!("search-{number}");
    let files: Vec<String> = ["a.pdf", "b.pdf"].iter().map(|file| format!("{search}/{file}")).collect();
    let data = json!({"projectId": "demo", "searchId": search, "searchName": format!("Search {number}"), "referenceFiles": files});
    event(caller, "SearchUploadSaved", format!("saved-{number}"), with(data, more)).await
}

async fn event(caller: &Caller, name: &str, id: String, data: Value) -> Done {
    caller.post("/api/events", &json!({"type": name, "id": id, "data": data})).await.map(drop)
}

/// The worker that runs the saga's commands, and reports to the saga when a file is done.
pub async fn parse(caller: Caller) {
    caller.go_on(Duration::from_millis(100), parse_files).await;
}

async fn parse_files(caller: &mut Caller) -> Done {
    let leased = lease(caller, &["StartParsingReferenceFile"]).await?;
    seconds(2.5).await;
    for action in leased {
        let (payload, id) = (&action["payload"], action["id"].as_str().unwrap_or_default());
        let data = json!({"searchId": payload["searchId"], "fileId": payload["fileId"]});
        let (name, times) = match caller.below(10) {
            0 => ("ReferenceFileFaulted", 1),
            1..5 => ("ReferenceFileParsingCompleted", 2),
            _ => ("ReferenceFileParsingCompleted", 1),
        };
        for _ in 0..times {
            event(caller, name, format!("of {id}"), data.clone()).await?;
        }
        caller.post(&format!("/api/actions/{id}/complete"), &json!({"token": action["token"]})).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use oncegate::sagas::Draft;

    #[test]
    fn the_saga_that_ships_has_the_demos_times() {
        let definition = super::definition();
        assert!(definition.contains("retention = \"1h\"") && definition.contains("after = \"2m\""));
        Draft::read("search-import.toml", &definition).expect("it can be read").check().expect("it is right");
    }
}
