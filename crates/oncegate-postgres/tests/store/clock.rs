//! The clock of the PostgreSQL server steps. Nothing is permanently removed until the new time is confirmed.

use std::time::Duration;

use oncegate_core::{Answer, Command};
use oncegate_postgres::PostgresStore;
use oncegate_store::conformance::{key, terms};
use oncegate_store::{Op, Store};

use crate::support::{Schema, connect};

/// Moves the server's clock: every statement reads the time through this function.
async fn step(schema: &Schema, by: Duration) {
    let sql = format!(
        "CREATE OR REPLACE FUNCTION {}.store_time(injected bigint) RETURNS bigint LANGUAGE sql VOLATILE
         RETURN coalesce(injected, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {})",
        schema.name,
        by.as_micros()
    );
    connect().await.batch_execute(&sql).await.expect("a superuser may");
}

async fn swept(store: &PostgresStore) -> usize {
    store.sweep(100).await.expect("sweeps").claims
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_clock_two_days_ahead_sweeps_nothing_also_for_a_replica_that_starts_meanwhile() {
    let schema = Schema::create().await;
    let store = schema.open(None).await;
    let won = Op { key: key("remembered"), command: Command::Claim(terms()) };
    let answer = store.commit(won.into()).await.expect("commits").only();
    assert!(matches!(answer, Answer::Won(_)));
    assert_eq!(swept(&store).await, 0);

    step(&schema, Duration::from_secs(2 * 24 * 3600)).await;
    assert_eq!(swept(&store).await, 0, "it has seen the step");
    let started_later = schema.open(None).await;
    assert_eq!(swept(&started_later).await, 0, "it compares the first look with its own clock");
    for store in [&store, &started_later] {
        let warnings = store.report().await.expect("reports").warnings;
        assert!(warnings.iter().any(|warning| warning.contains("nothing is swept")), "{warnings:?}");
    }

    step(&schema, Duration::ZERO).await;
    assert_eq!((swept(&store).await, swept(&started_later).await), (0, 0));
    assert!(store.read(&key("remembered")).await.expect("reads").value.is_some());
    store.close().await;
    started_later.close().await;
}
