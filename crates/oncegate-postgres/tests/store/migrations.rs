//! The schema is migrated once, whichever replica starts first.

use oncegate_postgres::{Options, PostgresStore, migrate, migrations};
use oncegate_store::{Store, StoreError};

use crate::support::{Database, Schema, connect, server_url};

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
    let newest =
        migrations(&server_url(), &schema.options(None)).await.expect("lists").last().expect("has steps").version;
    let starts = (0..8).map(|_| {
        let options = schema.options(None);
        tokio::spawn(async move { PostgresStore::open(&server_url(), options).await })
    });
    for start in starts.collect::<Vec<_>>() {
        let store = start.await.expect("does not panic").expect("opens");
        let report = store.report().await.expect("reports");
        assert_eq!((report.kind, report.schema_version), ("postgres", newest));
        assert!(!report.detail.contains("postgres://"), "{}", report.detail);
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_schema_of_a_newer_program_is_refused() {
    let schema = Schema::create().await;
    let options = schema.options(None);
    migrate(&server_url(), &options).await.expect("migrates");
    let newer = format!("INSERT INTO {}.schema_migrations (version, name) VALUES (99, 'later')", schema.name);
    connect().await.batch_execute(&newer).await.expect("is a superuser");
    for may_migrate in [true, false] {
        let options = Options { migrate: may_migrate, ..options.clone() };
        let Err(StoreError::Refused(why)) = PostgresStore::open(&server_url(), options).await else {
            panic!("the schema is newer than this program");
        };
        assert!(why.contains("version 99") && why.contains("hint"), "{why}");
    }
    assert!(matches!(migrate(&server_url(), &options).await, Err(StoreError::Refused(_))));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_newer_schema_that_tolerates_this_program_is_accepted() {
    let schema = Schema::create().await;
    let options = schema.options(None);
    migrate(&server_url(), &options).await.expect("migrates");
    let known = migrations(&server_url(), &options).await.expect("reads").last().expect("has steps").version;
    let newer = |oldest_build: i64| {
        format!(
            "DELETE FROM {0}.schema_migrations WHERE version = 99;
             INSERT INTO {0}.schema_migrations (version, name, oldest_build) VALUES (99, 'later', {oldest_build})",
            schema.name
        )
    };
    for (oldest_build, is_accepted) in [(known - 1, true), (known, true), (known + 1, false)] {
        connect().await.batch_execute(&newer(oldest_build)).await.expect("is a superuser");
        for migrate in [true, false] {
            let options = Options { migrate, ..options.clone() };
            let opened = PostgresStore::open(&server_url(), options).await;
            assert_eq!(opened.is_ok(), is_accepted, "oldest build {oldest_build}: {:?}", opened.err());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn unless_told_otherwise_the_tables_are_in_a_schema_of_their_own() {
    let database = Database::create().await;
    let before = database.relations().await;
    let store = PostgresStore::open(&database.url(), Options::default()).await.expect("opens");
    store.close().await;
    let added: Vec<_> = database.relations().await.into_iter().filter(|relation| !before.contains(relation)).collect();
    assert!(added.contains(&"oncegate.claims".to_owned()), "{added:?}");
    assert!(added.iter().all(|relation| relation.starts_with("oncegate.")), "{added:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn who_may_not_create_the_schema_is_told_what_to_do_and_needs_no_more_than_that() {
    let database = Database::create().await;
    let role = &database.name;
    let url = format!("{}?options=-c%20role%3D{role}", database.url());
    let Err(StoreError::Refused(why)) = PostgresStore::open(&url, Options::default()).await else {
        panic!("the role may create nothing");
    };
    let (_, hint) = why.split_once("run: ").expect("a statement to run");
    assert_eq!(hint, format!("CREATE SCHEMA oncegate AUTHORIZATION \"{role}\""));
    let owner = database.connect().await;
    owner.batch_execute(hint).await.expect("is a superuser");
    PostgresStore::open(&url, Options::default()).await.expect("opens now").close().await;

    // Once the schema is up to date, nothing needs to be created any more.
    owner
        .batch_execute(&format!(
            "ALTER SCHEMA oncegate OWNER TO CURRENT_USER; GRANT USAGE ON SCHEMA oncegate TO {role}"
        ))
        .await
        .expect("is a superuser");
    PostgresStore::open(&url, Options::default()).await.expect("opens").close().await;
}
