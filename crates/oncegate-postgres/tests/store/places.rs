//! What a store needs from the server and the network, and its errors when that is missing.

use std::process::{Child, Command as Process};
use std::time::{Duration, Instant};

use oncegate_core::{Answer, Command, State};
use oncegate_postgres::{Options, PostgresStore};
use oncegate_store::conformance::{key, terms, workspace};
use oncegate_store::{MainStore, Op, Query, Store, StoreError, Wanted, Whose};
use uuid::Uuid;

use crate::support::Schema;
use crate::support::cluster::Cluster;
use crate::support::proxy::{Mode, Proxy};

async fn claim(store: &dyn Store, part: &str) -> Result<Answer, StoreError> {
    let op = Op { key: key(part), command: Command::Claim(terms()) };
    Ok(store.commit(op.into()).await?.only())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_server_with_too_few_connections_is_refused_with_the_number_that_is_needed() {
    let cluster = Cluster::start("max_connections = 8\nsuperuser_reserved_connections = 0");
    let Err(StoreError::Unavailable(why)) = PostgresStore::open(&cluster.url(), Options::default()).await else {
        panic!("there are too few");
    };
    assert!(why.contains("needs 10 connections") && why.contains("max_connections"), "{why}");

    cluster.configure("max_connections = 10");
    cluster.restart();
    let store = PostgresStore::open(&cluster.url(), Options::default()).await.expect("opens");
    for i in 0..60 {
        claim(&store, &i.to_string()).await.expect("the server is there");
        let jobs = Wanted::new(["a"], Duration::from_secs(1), Whose::One { workspace: workspace("default"), max: 1 });
        store.lease_jobs(&jobs).await.expect("leases");
        store.find_jobs(&[(workspace("default"), Uuid::now_v7())]).await.expect("looks up");
        store.read(&key("0")).await.expect("looks up");
    }
    store.report().await.expect("ready");
}

struct PgBouncer {
    child: Child,
    _folder: tempfile::TempDir,
    port: u16,
}

impl PgBouncer {
    fn start(cluster: &Cluster, mode: &str) -> PgBouncer {
        let folder = tempfile::tempdir().expect("a folder");
        let port = std::net::TcpListener::bind("127.0.0.1:0").expect("binds").local_addr().expect("is bound").port();
        let ini = folder.path().join("pgbouncer.ini");
        let users = folder.path().join("users.txt");
        std::fs::write(&users, "\"postgres\" \"\"\n").expect("writes");
        let settings = format!(
            "[databases]\npostgres = host=127.0.0.1 port={} dbname=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = {mode}\n\
             ignore_startup_parameters = extra_float_digits\n",
            cluster.port,
            users.display(),
        );
        std::fs::write(&ini, settings).expect("writes");
        assert!(Process::new("chmod").args(["-R", "a+rX"]).arg(folder.path()).status().expect("runs").success());
        let program =
            ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"].into_iter().find(|path| std::path::Path::new(path).exists());
        let program = program.expect("PgBouncer is installed: scripts/install");
        let child = Process::new("runuser").args(["-u", "postgres", "--", program]).arg(&ini).spawn().expect("runs");
        let started = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(started.elapsed() < Duration::from_secs(10), "it listens");
            std::thread::sleep(Duration::from_millis(20));
        }
        PgBouncer { child, _folder: folder, port }
    }

    fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        // `runuser` passes the signal on.
        let _ = Process::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn a_pooler_in_transaction_mode_is_refused_and_one_in_session_mode_is_not() {
    let cluster = Cluster::start("");
    let pooler = PgBouncer::start(&cluster, "transaction");
    for _ in 0..2 {
        let Err(StoreError::Refused(why)) = PostgresStore::open(&pooler.url(), Options::default()).await else {
            panic!("it mixes sessions up");
        };
        assert!(why.contains("transaction mode") && why.contains("pool_mode = session"), "{why}");
    }
    drop(pooler);
    let pooler = PgBouncer::start(&cluster, "session");
    let store = PostgresStore::open(&pooler.url(), Options::default()).await.expect("opens");
    assert!(matches!(claim(&store, "k").await, Ok(Answer::Won(_))));
    store.report().await.expect("ready");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn behind_a_slow_network_every_caller_is_answered_in_time() {
    let schema = Schema::create().await;
    let proxy = Proxy::start().await;
    let store = PostgresStore::open(&proxy.url("slow"), schema.options(None)).await.expect("opens");
    let store = std::sync::Arc::new(store);
    claim(&*store, "warm").await.expect("the server is there");
    store.read(&key("warm")).await.expect("the server is there");
    // No single answer takes so long that the connection counts as lost, but a commit needs three answers.
    proxy.set(Mode::Delay(Duration::from_millis(1_150)));
    let callers = (0..40).map(|i| {
        let store = store.clone();
        tokio::spawn(async move {
            let asked = Instant::now();
            let _ = claim(&*store, &i.to_string()).await;
            let of_claim = asked.elapsed();
            let asked = Instant::now();
            let _ = store.read(&key(&i.to_string())).await;
            of_claim.max(asked.elapsed())
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        let took = caller.await.expect("does not panic");
        assert!(took < Duration::from_secs(6), "took {took:?}");
    }
    // After a failed commit these calls wait for a commit that succeeds, and then for their own answer.
    let wanted = Wanted::new(["a"], Duration::from_secs(1), Whose::One { workspace: workspace("default"), max: 1 });
    let sparse =
        Query { workspace: workspace("default"), guard: None, state: Some(State::Done), limit: 10, after: None };
    for step in ["lease", "expect", "scan"] {
        let asked = Instant::now();
        match step {
            "lease" => _ = store.lease_jobs(&wanted).await,
            "expect" => _ = store.expect_wake(&key("warm")).await,
            _ => _ = store.scan(sparse.clone()).await,
        }
        let took = asked.elapsed();
        assert!(took < Duration::from_secs(6), "{step} took {took:?}");
    }
}
