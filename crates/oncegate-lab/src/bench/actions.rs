//! Actions. Measures scheduling, where every second action is for the entity that was just scheduled, and compares it with other
//! libraries on PostgreSQL. Also measures how fast and how late due actions run.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oncegate::actions::{Actions, Schedule, Scheduled, When};
use oncegate::store::MainStore;
use oncegate::{Ledger, Time, WorkspaceName};
use oncegate_postgres::{Options, PostgresStore};
use oncegate_sqlite::SqliteStore;
use serde::Deserialize;
use serde_json::json;
use tokio::process::Command;

use super::postgres::{Bench, SCHEMA};
use super::stats::{Latency, Rate};
use super::{Measured, Setting};
use oncegate::worker::Queue;
use oncegate_config::Config;
use oncegate_http::sends::Sends;
use oncegate_process::failure::Failure;

const CALLERS: usize = 256;
/// Actions that are due before the workers start.
const DUE: usize = 20_000;
/// Actions whose lateness is measured, one after the other.
const SAMPLES: usize = 200;
const SAMPLE_EVERY: Duration = Duration::from_millis(15);
const DELAY: Duration = Duration::from_millis(100);
const IDLE: Duration = Duration::from_secs(3);

/// The names of the measurements for one store.
struct Names {
    schedules: &'static str,
    run: &'static str,
    late_idle: &'static str,
    late_loaded: &'static str,
    idle: &'static str,
}

const ON_SQLITE: Names = Names {
    schedules: "schedules, SQLite, 256 callers",
    run: "due actions run, SQLite",
    late_idle: "due to delivered, SQLite, idle",
    late_loaded: "due to delivered, SQLite, loaded",
    idle: "idle worker, SQLite: processor ms a second",
};
const ON_POSTGRES: Names = Names {
    schedules: "schedules, PostgreSQL, 256 callers",
    run: "due actions run, PostgreSQL",
    late_idle: "due to delivered, PostgreSQL, idle",
    late_loaded: "due to delivered, PostgreSQL, loaded",
    idle: "idle worker, PostgreSQL: processor ms a second",
};

/// Other libraries, each as a program for Node.js.
const PEERS: [(&str, &str); 2] = [
    ("pg-boss, singletonKey, 256 callers", include_str!("../../shared/pg-boss.mjs")),
    ("graphile-worker, jobKey, 256 callers", include_str!("../../shared/graphile-worker.mjs")),
];
const MEASURE: &str = include_str!("../../shared/measure.mjs");

pub async fn measure(setting: &Setting) -> Result<Vec<Measured>, Failure> {
    let mut measured = vec![];
    let file = setting.folder.join("actions.db");
    let sqlite = || -> Result<Arc<dyn MainStore>, Failure> {
        for name in ["actions.db", "actions.db-wal", "actions.db-shm"] {
            let _ = std::fs::remove_file(setting.folder.join(name));
        }
        Ok(Arc::new(SqliteStore::open(&file, Default::default())?))
    };
    measured.push(schedules(ON_SQLITE.schedules, sqlite()?, setting.span).await?);
    measured.extend(running(&ON_SQLITE, sqlite()?, setting).await?);
    let Some(url) = &setting.postgres else { return Ok(measured) };
    if let Some(modules) = &setting.peers {
        for (name, program) in PEERS {
            measured.push(peer(name, program, url, modules, setting).await?);
        }
    }
    for is_running in [false, true] {
        let bench = Bench::open(url).await?;
        let options = Options { schema: Some(SCHEMA.into()), ..Options::default() };
        let store: Arc<dyn MainStore> = Arc::new(PostgresStore::open(url, options).await?);
        match is_running {
            false => measured.push(schedules(ON_POSTGRES.schedules, store, setting.span).await?),
            true => measured.extend(running(&ON_POSTGRES, store, setting).await?),
        }
        bench.close().await?;
    }
    Ok(measured)
}

/// Callers that each schedule the next action as soon as they are answered, for `span`.
async fn load(actions: &Actions, callers: usize, span: Duration) -> Result<(Vec<u32>, f64), Failure> {
    let start = Instant::now();
    let tasks = (0..callers).map(|caller| {
        let actions = actions.clone();
        tokio::spawn(async move {
            let mut micros = vec![];
            while start.elapsed() < span {
                let asked = Instant::now();
                let turn = micros.len();
                let payload = json!({"entityId": format!("{caller}-{}", turn / 2), "entityType": "lead", "turn": turn});
                schedule(&actions, Schedule::new("bench:sync", &payload)).await?;
                micros.push(asked.elapsed().as_micros() as u32);
            }
            Ok::<_, Failure>(micros)
        })
    });
    let mut micros = vec![];
    for task in tasks.collect::<Vec<_>>() {
        micros.extend(task.await.map_err(|error| Failure::new(error.to_string()))??);
    }
    Ok((micros, start.elapsed().as_secs_f64()))
}

async fn schedule(
    actions: &Actions,
    schedule: Result<Schedule, oncegate::actions::ScheduleError>,
) -> Result<Scheduled, Failure> {
    let failed = |error: oncegate::actions::ScheduleError| Failure::new(error.to_string());
    actions.schedule(&WorkspaceName::default_workspace(), schedule.map_err(failed)?).await.map_err(failed)
}

async fn schedules(name: &'static str, store: Arc<dyn MainStore>, span: Duration) -> Result<Measured, Failure> {
    // Runs what a server runs beside it: claims whose windows have ended are swept.
    let ledger = Ledger::start(store.clone(), Arc::new(()));
    let (micros, took) = load(&Actions::over(store), CALLERS, span).await?;
    ledger.close().await;
    Ok(Measured { name, rate: Rate(micros.len() as f64 / took), latency: Latency::of(micros) })
}

/// Runs the server's own workers, with the handler that writes to a file.
async fn running(names: &Names, store: Arc<dyn MainStore>, setting: &Setting) -> Result<Vec<Measured>, Failure> {
    let folder = setting.folder.join("running");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).map_err(|error| Failure::new(error.to_string()))?;
    let toml = folder.join("oncegate.toml");
    let types = "[actions.type.\"bench:sync\"]\nhandler = \"log\"\n[actions.type.\"bench:note\"]\nhandler = \"log\"\n";
    std::fs::write(&toml, format!("data_dir = {:?}\n{types}", folder.display().to_string()))
        .map_err(|error| Failure::new(error.to_string()))?;
    let loaded = Config::load(vec![], [], Some(toml));
    let config = loaded.map_err(|errors| Failure::new(format!("{:?}", errors.first())))?.config;
    let ledger = Arc::new(Ledger::start(store.clone(), Arc::new(())));
    let sagas = oncegate_http::sagas::engine(&config, store.clone(), ledger.clone())
        .map_err(oncegate_http::sagas::not_loaded)?;
    let worker = Queue::new(store.clone(), ledger.waiters().clone(), config.messages.options.lease, 1);
    let sends = Sends::new(&config, store.clone(), ledger.clone(), worker);
    let runner =
        oncegate_http::actions::Actions::open(&config, store, ledger.clone(), &sagas, &sends).map_err(Failure::new)?;
    let actions = &runner.actions;
    let lines = folder.join("actions.jsonl");

    let all = (0..DUE).map(|n| schedule(actions, Schedule::new("bench:note", &json!({"n": n}))));
    for scheduled in futures::future::join_all(all).await {
        scheduled?;
    }
    let began = Instant::now();
    runner.start(Arc::new(()));
    while count_lines(&lines) < DUE {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let run = Rate(DUE as f64 / began.elapsed().as_secs_f64());
    let mut measured = vec![Measured { name: names.run, rate: run, latency: None }];

    let before = processor_time();
    tokio::time::sleep(IDLE).await;
    let spent = (processor_time() - before).as_secs_f64() * 1000.0 / IDLE.as_secs_f64();
    measured.push(Measured { name: names.idle, rate: Rate(spent), latency: None });

    measured.push(late(names.late_idle, actions, &lines).await?);
    let others = load(actions, CALLERS, SAMPLE_EVERY * SAMPLES as u32 + Duration::from_secs(1));
    let (loaded, late) = tokio::join!(others, late(names.late_loaded, actions, &lines));
    loaded?;
    measured.push(late?);
    runner.queue.stop_by(tokio::time::Instant::now() + Duration::from_secs(5));
    runner.queue.finish_by(tokio::time::Instant::now() + Duration::from_secs(5)).await;
    ledger.close().await;
    Ok(measured)
}

/// How long after its due time an action is delivered, to the millisecond.
async fn late(name: &'static str, actions: &Actions, lines: &Path) -> Result<Measured, Failure> {
    let began = Instant::now();
    let mut due: HashMap<String, Time> = HashMap::new();
    for n in 0..SAMPLES {
        let made = Schedule::new("bench:note", &json!({"sample": n})).map(|made| made.when(When::After(DELAY)));
        let scheduled = schedule(actions, made).await?;
        due.insert(scheduled.id.to_string(), scheduled.run_at);
        tokio::time::sleep(SAMPLE_EVERY).await;
    }
    let rate = Rate(SAMPLES as f64 / began.elapsed().as_secs_f64());
    #[derive(Deserialize)]
    struct Line {
        at: String,
        id: String,
    }
    let give_up_at = Instant::now() + Duration::from_secs(60);
    loop {
        let text = std::fs::read_to_string(lines).unwrap_or_default();
        let noted = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
        let late = noted.filter_map(|line| Some(Time::parse(&line.at)?.since(*due.get(&line.id)?).as_micros() as u32));
        let late: Vec<u32> = late.collect();
        if late.len() >= SAMPLES || Instant::now() > give_up_at {
            return Ok(Measured { name, rate, latency: Latency::of(late) });
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn count_lines(file: &Path) -> usize {
    std::fs::read(file).map_or(0, |bytes| bytes.iter().filter(|byte| **byte == b'\n').count())
}

/// Processor time of this process, user and kernel.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    // The file counts in hundredths of a second.
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

/// Measures another library with the same calls.
async fn peer(
    name: &'static str,
    program: &str,
    url: &str,
    modules: &Path,
    setting: &Setting,
) -> Result<Measured, Failure> {
    #[derive(Deserialize)]
    struct Printed {
        seconds: f64,
        micros: Vec<u32>,
    }
    let broken = |error: std::io::Error| Failure::new(format!("{name}: {error}"));
    let script = setting.folder.join("peer.mjs");
    std::fs::write(&script, program).map_err(broken)?;
    std::fs::write(setting.folder.join("measure.mjs"), MEASURE).map_err(broken)?;
    let modules = modules.canonicalize().map_err(broken)?;
    let ran = Command::new("node")
        .arg(&script)
        .args([url, &setting.span.as_secs_f64().to_string(), &CALLERS.to_string()])
        .arg(&modules)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(broken)?;
    let printed: Printed = serde_json::from_slice(&ran.stdout).map_err(|_| {
        Failure::new(format!("{name}: {}", String::from_utf8_lossy(&ran.stderr))).hint("scripts/install-peers FOLDER")
    })?;
    let rate = Rate(printed.micros.len() as f64 / printed.seconds);
    Ok(Measured { name, rate, latency: Latency::of(printed.micros) })
}
