//! The store goes away and comes back: callers get an error, nothing is half-done, and no server has to be restarted.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Cluster, Database, Home, claim_of, eventually};

/// The server must be ready this soon after the store is back.
const BACK_MAX: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn while_the_store_is_away_closed_guards_answer_503_and_open_ones_go_ahead() {
    // The database ends all connections and accepts none.
    let database = Database::create().await;
    is_away_and_comes_back(&database.url(), async || database.go_away().await, async || database.come_back().await)
        .await;
    // The database crashes, and is started again.
    let cluster = Cluster::start();
    is_away_and_comes_back(&cluster.url(), async || cluster.crash(), async || cluster.start_again()).await;
}

async fn is_away_and_comes_back(url: &str, go_away: impl AsyncFn(), come_back: impl AsyncFn()) {
    let open = "[claims.guard.open]\nstore_error = \"open\"\n";
    let home = Home::with_config(&format!("store = {url:?}\n{open}"));
    let server = home.serve();
    let mut client = server.client();
    let (id, token) = client.win(&claim_of("closed", "before")).await;

    go_away().await;
    let refused = [
        client.claim(&claim_of("closed", "k")).await,
        client.settle("closed", &id, token, &json!(1)).await,
        client.show("closed", &id).await,
        client.get("/api/claims").await,
        client.get("/readyz").await,
    ];
    for refused in refused {
        let refused = refused.expect_problem(503, "store-unavailable");
        let seconds = refused.header("retry-after").and_then(|seconds| seconds.parse::<u32>().ok());
        assert!(seconds >= Some(1), "{refused:?}");
    }
    let unguarded = client.claim(&claim_of("open", "k")).await.expect(200).body;
    assert_eq!(unguarded["claim"], "unguarded");
    assert_eq!(client.get("/healthz").await.expect(200).text, "ok\n");
    let metrics = client.get("/metrics").await.text;
    assert!(metrics.contains("oncegate_duplicate_guard_errors_total 1"), "{metrics}");

    come_back().await;
    let back = Instant::now();
    eventually("the settle that was refused is taken", || async {
        (server.client().settle("closed", &id, token, &json!(1)).await.status == 200).then_some(())
    })
    .await;
    client.get("/readyz").await.expect(200);
    assert!(back.elapsed() < BACK_MAX, "{:?}", back.elapsed());
    client.win(&claim_of("closed", "k")).await;
    client.win(&claim_of("open", "k")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn acknowledged_commits_that_are_gone_are_told_by_log_metric_readyz_and_dashboard() {
    let database = Database::create().await;
    let home = Home::with_config(&format!("store = {:?}\n", database.url()));
    let server = home.serve();
    let mut client = server.client();
    for number in 0..20 {
        client.win(&claim_of("g", &number.to_string())).await;
    }
    // A restored database has the earlier marks, and connections to the database before it end.
    let restored = database.connect().await;
    let back = "UPDATE oncegate.commit_marks SET commits = 0, commit_id = gen_random_uuid()";
    restored.batch_execute(back).await.expect("a superuser may");
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()";
    restored.batch_execute(end).await.expect("a superuser may");
    eventually("a claim is won again", || async {
        let claimed = server.client().claim(&claim_of("g", "after")).await;
        (claimed.status == 201).then_some(())
    })
    .await;
    let lost = server.logged("store.commits_lost", 1).await.remove(0);
    assert!(lost["commits"].as_i64() > Some(0), "{lost}");
    let mut client = server.client();
    let metrics = client.get("/metrics").await.expect(200).text;
    let counted = metrics.lines().find_map(|line| line.strip_prefix("oncegate_store_commits_lost_total "));
    assert!(counted.is_some_and(|count| count.parse::<u64>().is_ok_and(|count| count > 0)), "{metrics}");
    let warnings = client.get("/readyz").await.expect(200).body["warnings"].to_string();
    assert!(warnings.contains("the server has lost at least"), "{warnings}");
    let page = client.get("/").await.expect_page(200).text;
    assert!(page.contains("the server has lost at least"), "{page}");
}
