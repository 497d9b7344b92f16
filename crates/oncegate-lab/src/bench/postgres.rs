//! PostgreSQL: our store, compared with a hand-written statement.

use std::sync::Arc;
use std::time::Instant;

use oncegate::store::Store;
use oncegate_postgres::{Options, PostgresStore};
use tokio_postgres::{Client, NoTls};

use super::stats::{Latency, Rate};
use super::{Measured, Setting, decisions};
use oncegate_process::failure::Failure;

pub const SCHEMA: &str = "oncegate_bench";
const CALLERS: [(usize, &str); 3] = [
    (1, "library, PostgreSQL, 1 caller"),
    (32, "library, PostgreSQL, 32 callers"),
    (256, "library, PostgreSQL, 256 callers"),
];
const BY_HAND_CONNECTIONS: usize = 32;
const BY_HAND: &str =
    "INSERT INTO by_hand (workspace, id, expires_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING id";

pub async fn measure(setting: &Setting) -> Result<Vec<Measured>, Failure> {
    let url = setting.postgres.as_deref().expect("asked for");
    let control = connect(url).await?;
    fresh_schema(&control).await.map_err(failed)?;
    let mut measured = vec![by_hand(url, setting).await?];
    for (callers, name) in CALLERS {
        fresh_schema(&control).await.map_err(failed)?;
        let options = Options { schema: Some(SCHEMA.into()), ..Options::default() };
        let store: Arc<dyn Store> = Arc::new(PostgresStore::open(url, options).await?);
        measured.push(decisions::measure(name, &store, callers, setting.span).await?);
        store.close().await;
    }
    control.batch_execute(&format!("DROP SCHEMA {SCHEMA} CASCADE")).await.map_err(failed)?;
    Ok(measured)
}

/// A separate schema for the time of a measurement.
pub struct Bench(Client);

impl Bench {
    pub async fn open(url: &str) -> Result<Bench, Failure> {
        let control = connect(url).await?;
        fresh_schema(&control).await.map_err(failed)?;
        Ok(Bench(control))
    }

    pub async fn close(self) -> Result<(), Failure> {
        self.0.batch_execute(&format!("DROP SCHEMA {SCHEMA} CASCADE")).await.map_err(failed)
    }
}

async fn fresh_schema(control: &Client) -> Result<(), tokio_postgres::Error> {
    control
        .batch_execute(&format!(
            "DROP SCHEMA IF EXISTS {SCHEMA} CASCADE; CREATE SCHEMA {SCHEMA};
             CREATE TABLE {SCHEMA}.by_hand
                 (workspace text, id bytea, expires_at bigint NOT NULL, outcome bytea, PRIMARY KEY (workspace, id))"
        ))
        .await
}

/// One row, one statement, one commit for each decision.
async fn by_hand(url: &str, setting: &Setting) -> Result<Measured, Failure> {
    let mut clients = vec![];
    for _ in 0..BY_HAND_CONNECTIONS {
        let client = connect(url).await?;
        client.batch_execute(&format!("SET search_path TO {SCHEMA}")).await.map_err(failed)?;
        clients.push(client);
    }
    let (start, span) = (Instant::now(), setting.span);
    let tasks = clients.into_iter().enumerate().map(|(caller, client)| {
        tokio::spawn(async move {
            let insert = client.prepare(BY_HAND).await?;
            let mut micros = vec![];
            while start.elapsed() < span {
                let asked = Instant::now();
                let key = decisions::key(caller, micros.len() as u64);
                client.query(&insert, &[&key.workspace.as_str(), &&key.id.as_bytes()[..], &0_i64]).await?;
                micros.push(asked.elapsed().as_micros() as u32);
            }
            Ok::<_, tokio_postgres::Error>(micros)
        })
    });
    let mut micros = vec![];
    for task in tasks.collect::<Vec<_>>() {
        micros.extend(task.await.map_err(|error| Failure::new(error.to_string()))?.map_err(failed)?);
    }
    let rate = Rate(micros.len() as f64 / start.elapsed().as_secs_f64());
    Ok(Measured { name: "INSERT by hand, 32 connections", rate, latency: Latency::of(micros) })
}

pub async fn connect(url: &str) -> Result<Client, Failure> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.map_err(failed)?;
    // The connection ends with the client.
    tokio::spawn(connection);
    Ok(client)
}

pub fn failed(error: tokio_postgres::Error) -> Failure {
    Failure::new(format!("PostgreSQL: {error}"))
}
