//! The store goes away and comes back: callers are told so, nothing is half-done, and no server has to be restarted.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Cluster, Database, Home, claim_of, eventually};

/// How soon after the store is back the server must be.
const BACK_MAX: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn while_the_store_is_away_closed_guards_answer_503_and_open_ones_go_ahead() {
    // It ends all connections and takes no more.
    let database = Database::create().await;
    is_away_and_comes_back(&database.url(), async || database.go_away().await, async || database.come_back().await)
        .await;
    // It crashes, and is started again.
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
