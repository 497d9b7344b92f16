//! The schema is brought up to date once, whoever starts first.

mod support;

use oncegate_postgres::{Options, PostgresStore, migrate, migrations};
use oncegate_store::{Store, StoreError};
use support::{Schema, server_url};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn pending_steps_are_listed_then_applied_then_known() {
    let schema = Schema::create().await;
    let options = schema.options(None);
    let pending = migrations(&server_url(), &options).await.expect("lists");
    assert!(!pending.is_empty() && pending.iter().all(|step| !step.applied));
    let applied = migrate(&server_url(), &options).await.expect("migrates");
    assert_eq!(applied, pending);
    assert!(migrations(&server_url(), &options).await.expect("lists").iter().all(|step| step.applied));
    assert!(migrate(&server_url(), &options).await.expect("migrates").is_empty(), "there is nothing left to do");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_schema_that_is_not_up_to_date_is_refused_by_who_may_not_migrate() {
    let schema = Schema::create().await;
    let options = Options { migrate: false, ..schema.options(None) };
    let Err(StoreError::Refused(why)) = PostgresStore::open(&server_url(), options.clone()).await else {
        panic!("the schema is empty");
    };
    assert!(why.contains("oncegate migrate"), "{why}");
    migrate(&server_url(), &options).await.expect("migrates");
    PostgresStore::open(&server_url(), options).await.expect("opens now");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs PostgreSQL: run make test"]
async fn replicas_that_start_together_migrate_once() {
    let schema = Schema::create().await;
    let starts = (0..8).map(|_| {
        let options = schema.options(None);
        tokio::spawn(async move { PostgresStore::open(&server_url(), options).await })
    });
    for start in starts.collect::<Vec<_>>() {
        let store = start.await.expect("does not panic").expect("opens");
        let report = store.report().await.expect("reports");
        assert_eq!((report.kind, report.schema_version), ("postgres", 2));
        assert!(!report.detail.contains("postgres://"), "{}", report.detail);
        store.close().await;
    }
}
