//! Schedules, every second one of an entity that was scheduled just before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncegate::actions::{Actions, Schedule};
use oncegate::store::MainStore;
use oncegate::{Ledger, WorkspaceName};
use oncegate_postgres::{Options, PostgresStore};
use oncegate_sqlite::SqliteStore;
use serde_json::json;

use super::postgres::{Bench, SCHEMA};
use super::stats::{Latency, Rate};
use super::{Measured, Setting};
use crate::cli::Failure;

const CALLERS: usize = 256;

pub async fn measure(setting: &Setting) -> Result<Vec<Measured>, Failure> {
    let file = setting.folder.join("actions.db");
    let store = Arc::new(SqliteStore::open(&file, Default::default())?);
    let mut measured = vec![schedules("schedules, SQLite, 256 callers", store, setting.span).await?];
    if let Some(url) = &setting.postgres {
        let bench = Bench::open(url).await?;
        let options = Options { schema: Some(SCHEMA.into()), ..Options::default() };
        let store = Arc::new(PostgresStore::open(url, options).await?);
        measured.push(schedules("schedules, PostgreSQL, 256 callers", store, setting.span).await?);
        bench.close().await?;
    }
    Ok(measured)
}

async fn schedules(name: &'static str, store: Arc<dyn MainStore>, span: Duration) -> Result<Measured, Failure> {
    let ledger = Arc::new(Ledger::start(store.clone(), Arc::new(())));
    let actions = Actions::over(store);
    let start = Instant::now();
    let tasks = (0..CALLERS).map(|caller| {
        let actions = actions.clone();
        tokio::spawn(async move {
            let workspace = WorkspaceName::default_workspace();
            let mut micros = vec![];
            while start.elapsed() < span {
                let asked = Instant::now();
                let turn = micros.len();
                let payload = json!({"entityId": format!("{caller}-{}", turn / 2), "entityType": "lead", "turn": turn});
                let schedule = Schedule::new("bench:sync", &payload).map_err(|error| error.to_string())?;
                actions.schedule(&workspace, schedule).await.map_err(|error| error.to_string())?;
                micros.push(asked.elapsed().as_micros() as u32);
            }
            Ok::<_, String>(micros)
        })
    });
    let mut micros = vec![];
    for task in tasks.collect::<Vec<_>>() {
        micros.extend(task.await.map_err(|error| Failure::new(error.to_string()))?.map_err(Failure::new)?);
    }
    let rate = Rate(micros.len() as f64 / start.elapsed().as_secs_f64());
    ledger.close().await;
    Ok(Measured { name, rate, latency: Latency::of(micros) })
}
