//! Saga events: half of them create an instance and send a command, the other half complete one. Also events that no longer change
//! anything.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncegate::sagas::{Draft, Event, Options as SagaOptions, Outcome, Sagas};
use oncegate::store::MainStore;
use oncegate::{Ledger, WorkspaceName};
use oncegate_postgres::{Options, PostgresStore};
use oncegate_sqlite::SqliteStore;
use serde_json::json;

use super::postgres::{Bench, SCHEMA};
use super::stats::{Latency, Rate};
use super::{Measured, Setting};
use oncegate_process::failure::Failure;

const CALLERS: usize = 256;
pub const SEARCH_IMPORT: &str = include_str!("../../shared/search-import.toml");

pub async fn measure(setting: &Setting) -> Result<Vec<Measured>, Failure> {
    let store: Arc<dyn MainStore> = Arc::new(SqliteStore::open(setting.folder.join("sagas.db"), Default::default())?);
    let names = ["events applied, SQLite, 256 callers", "events ignored, SQLite, 256 callers"];
    let mut measured = on(names, store, setting.span).await?;
    // Each round starts with an empty file. A file that cannot be removed goes with the folder.
    for name in ["sagas.db", "sagas.db-wal", "sagas.db-shm"] {
        let _ = std::fs::remove_file(setting.folder.join(name));
    }
    if let Some(url) = &setting.postgres {
        let bench = Bench::open(url).await?;
        let options = Options { schema: Some(SCHEMA.into()), ..Options::default() };
        let store: Arc<dyn MainStore> = Arc::new(PostgresStore::open(url, options).await?);
        let names = ["events applied, PostgreSQL, 256 callers", "events ignored, PostgreSQL, 256 callers"];
        measured.extend(on(names, store, setting.span).await?);
        bench.close().await?;
    }
    Ok(measured)
}

async fn on(names: [&'static str; 2], store: Arc<dyn MainStore>, span: Duration) -> Result<Vec<Measured>, Failure> {
    let definition = Draft::read("search-import.toml", SEARCH_IMPORT).and_then(Draft::check);
    let definition = definition.map_err(|defects| Failure::new(defects.to_string()))?;
    let ledger = Arc::new(Ledger::start(store.clone(), Arc::new(())));
    let sagas = Sagas::over(store, ledger.clone(), [definition], SagaOptions::default()).expect("one saga");
    let [applied, ignored] = names;
    let measured = vec![load(applied, &sagas, span, apply).await?, load(ignored, &sagas, span, ignore).await?];
    ledger.close().await;
    Ok(measured)
}

/// A caller's next event, and its expected result.
type Turn = fn(caller: usize, turn: usize) -> (Event, &'static str);

fn apply(caller: usize, turn: usize) -> (Event, &'static str) {
    let search = format!("{caller}-{}", turn / 2);
    let event = match turn % 2 {
        0 => Event::new(
            "SearchUploadSaved",
            json!({ "searchId": search, "projectId": "p", "searchName": "n", "referenceFiles": ["a"] }),
        ),
        _ => Event::new("ReferenceFileParsingCompleted", json!({ "searchId": search, "fileId": "a" })),
    };
    (event.id(turn.to_string()), "applied")
}

/// An event for the first search of each caller, which is complete.
fn ignore(caller: usize, turn: usize) -> (Event, &'static str) {
    let data = json!({ "searchId": format!("{caller}-0"), "fileId": "a" });
    (Event::new("ReferenceFileParsingCompleted", data).id(format!("late {turn}")), "ignored")
}

/// Callers that each deliver the next event as soon as they are answered, for `span`.
async fn load(name: &'static str, sagas: &Sagas, span: Duration, turn: Turn) -> Result<Measured, Failure> {
    let start = Instant::now();
    let tasks = (0..CALLERS).map(|caller| {
        let sagas = sagas.clone();
        tokio::spawn(async move {
            let workspace = WorkspaceName::default_workspace();
            let mut micros: Vec<u32> = vec![];
            // At least one pair, so that one instance is complete.
            while start.elapsed() < span || micros.len() < 2 {
                let asked = Instant::now();
                let (event, expected) = turn(caller, micros.len());
                let handled = sagas.handle(&workspace, &event).await?;
                let outcome = handled.first().map_or("nothing", |handled| Outcome::as_str(&handled.outcome));
                if outcome != expected {
                    return Err(Failure::new(format!("{name}: an event is {outcome}, not {expected}")));
                }
                micros.push(asked.elapsed().as_micros() as u32);
            }
            Ok(micros)
        })
    });
    let mut micros = vec![];
    for task in tasks.collect::<Vec<_>>() {
        micros.extend(task.await.map_err(|error| Failure::new(error.to_string()))??);
    }
    let rate = Rate(micros.len() as f64 / start.elapsed().as_secs_f64());
    Ok(Measured { name, rate, latency: Latency::of(micros) })
}
