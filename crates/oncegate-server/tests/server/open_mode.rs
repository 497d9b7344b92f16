//! When a server answers without a key: while none has ever existed, and only direct requests of its own machine and user.

use serde_json::json;

use crate::support::{Database, Home, Nginx, Raw, Reply, Server, claim_of, eventually};

/// The problem for a caller behind a proxy; it names the proxy and the solution.
#[track_caller]
fn expect_proxied(reply: Reply) {
    let reply = reply.expect_problem(403, "behind-a-proxy");
    let detail = reply.text("detail");
    assert!(detail.contains("reverse proxy") && detail.contains("oncegate key create"), "{detail}");
    assert!(reply.text("hint").contains("oncegate key create --workspace default --role admin"), "{reply:?}");
}

#[tokio::test]
#[ignore = "needs nginx: run make test"]
async fn a_keyless_server_behind_nginx_answers_nobody_through_it() {
    let home = Home::new();
    let server = home.serve();
    let bare = Nginx::before(server.address, "");
    // Debian's nginx names the upstream as the Host.
    let mut client = crate::support::Client::new(bare.address);
    expect_proxied(client.claim(&claim_of("g", "k")).await);
    expect_proxied(client.get("/api/claims").await);
    expect_proxied(client.get("/metrics").await);
    expect_proxied(client.get("/readyz").await);
    client.get("/").await.expect_page(403);
    client.submit("/keys", &[("name", "a"), ("role", "admin")]).await.expect_page(403);
    if rustix::process::getuid().is_root() {
        // Its workers run as another user, and its requests have no sign of a proxy.
        let quiet = Nginx::before(server.address, "proxy_http_version 1.1;\nproxy_set_header Connection \"\";");
        let mut client = crate::support::Client::new(quiet.address);
        expect_proxied(client.claim(&claim_of("g", "k")).await);
        expect_proxied(client.get("/api/claims").await);
    }
    // Direct requests of the machine still work, and so does a key through the proxy.
    server.client().win(&claim_of("g", "k")).await;
    let (_, key) = home.make_key("acme", "operate");
    let with_key = || crate::support::Client::new(bare.address).header("authorization", &format!("Bearer {key}"));
    eventually("the key is known", || async { (with_key().get("/api/claims").await.status == 200).then_some(()) })
        .await;
}

#[tokio::test]
async fn a_keyless_server_refuses_every_trace_of_a_proxy() {
    let home = Home::new();
    let server = home.serve();
    let traces = ["forwarded", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-real-ip", "via"];
    for name in traces {
        let mut client = server.client().header(name, "192.0.2.1");
        expect_proxied(client.claim(&claim_of("g", "k")).await);
        expect_proxied(client.get("/api/claims").await);
        client.get("/").await.expect_page(403);
    }
    let mut raw = Raw::connect(server.address).await;
    let request = raw.post("/api/claims", &claim_of("g", "k")).replace("HTTP/1.1", "HTTP/1.0");
    raw.write(request.as_bytes()).await;
    let answer = raw.read_to_close(std::time::Duration::from_secs(10)).await;
    assert!(answer.contains(" 403 ") && answer.contains("behind-a-proxy"), "{answer}");
    server.client().win(&claim_of("g", "k")).await;
}

#[tokio::test]
async fn an_open_server_says_so_and_how_to_end_it() {
    const END: &str = "oncegate key create --workspace default --role admin";
    let home = Home::new();
    assert!(home.run(["doctor"]).expect_code(0).stdout.contains(END));
    let server = home.serve();
    for path in ["/", "/claims", "/keys", "/audit", "/decisions"] {
        let page = server.client().get(path).await.expect_page(200).text;
        assert!(page.contains("This server is open") && page.contains(END), "{path}: {page}");
    }
    let doctor = home.run(["doctor"]).expect_code(0).stdout;
    assert!(doctor.contains("the server is open") && doctor.contains(END), "{doctor}");
    let (_, said) = server.stop();
    assert!(said.contains("without a key") && said.contains(END), "{said}");
    let (_, key) = home.make_key("default", "admin");
    let server = home.serve();
    let cookie = server.client().log_in(&key).await;
    let page = server.client().header("cookie", &cookie).get("/").await.expect_page(200).text;
    assert!(!page.contains("This server is open"), "{page}");
    let (_, said) = server.stop();
    assert!(!said.contains("without a key"), "{said}");
}

/// The table is emptied without the server, for example by a restore of the wrong backup.
async fn stays_closed(home: &Home, empty: impl AsyncFn()) {
    let (_, secret) = home.make_key("acme", "operate");
    let refuses = async |server: &Server| {
        server.client().get("/api/claims").await.expect_problem(401, "unauthorized");
        server.client().claim(&claim_of("g", "k")).await.expect_problem(401, "unauthorized");
        server.client().get("/").await.expect(303);
    };
    let server = home.serve();
    server.client_with(&secret).get("/api/claims").await.expect(200);
    empty().await;
    eventually("the key is gone", || async {
        (server.client_with(&secret).get("/api/claims").await.status == 401).then_some(())
    })
    .await;
    refuses(&server).await;
    server.stop();
    // The store itself has the mark.
    let server = home.serve();
    refuses(&server).await;
    server.client_with(&secret).get("/api/claims").await.expect(401);
    let doctor = home.run(["doctor", "--json"]).expect_code(0).json();
    let access = doctor.as_array().expect("a list").iter().find(|finding| finding["check"] == "access");
    assert_eq!(access.expect("it is checked")["verdict"], "warning", "{doctor}");
    // With a new key, the server answers that key again.
    let (_, secret) = home.make_key("acme", "operate");
    eventually("the new key is known", || async {
        (server.client_with(&secret).get("/api/claims").await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_emptied_table_of_keys_opens_no_server_now_or_after_a_restart_on_sqlite() {
    let home = Home::new();
    stays_closed(&home, async || {
        let file = home.store_files().into_iter().find(|file| file.extension().is_some_and(|end| end == "db"));
        let other = rusqlite::Connection::open(file.expect("the store is there")).expect("opens");
        assert_eq!(other.execute("DELETE FROM api_keys", []).expect("deletes"), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn an_emptied_table_of_keys_opens_no_server_now_or_after_a_restart_on_postgres() {
    let database = Database::create().await;
    let home = Home::with_config(&format!("store = {:?}", database.url()));
    stays_closed(&home, async || {
        let deleted = database.connect().await.execute("DELETE FROM oncegate.api_keys", &[]).await;
        assert_eq!(deleted.expect("a superuser may"), 1);
    })
    .await;
}

#[tokio::test]
async fn where_keys_are_required_the_first_start_makes_one_and_says_where_it_is() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::with_config("[auth]\nrequired = true\n");
    let server = home.serve();
    server.client().get("/api/claims").await.expect_problem(401, "unauthorized");
    server.client().claim(&claim_of("g", "k")).await.expect_problem(401, "unauthorized");
    let file = home.path().join("oncegate-data/admin.key");
    let secret = std::fs::read_to_string(&file).expect("the file is there").trim().to_owned();
    let mode = std::fs::metadata(&file).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");
    server.client_with(&secret).get("/api/keys").await.expect(200);
    let told = &server.logged("auth.first_key", 1).await[0];
    assert!(told["file"].as_str().is_some_and(|path| path.ends_with("oncegate-data/admin.key")), "{told}");
    let (_, said) = server.stop();
    assert!(said.contains("admin.key") && !said.contains(secret.rsplit('_').next().unwrap()), "{said}");
    // Only once: a later start makes no key, even after the key was revoked and the table emptied.
    let server = home.serve();
    server.client_with(&secret).get("/api/keys").await.expect(200);
    assert!(server.log().iter().all(|line| line["event"] != "auth.first_key"));
    let listed = home.run(["key", "list", "--json"]).expect_code(0).json();
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!(listed[0]["name"], json!("first key"));
}

/// A variable works too, even on an address that is not loopback, where a server without a key does not start otherwise.
#[tokio::test]
async fn where_keys_are_required_the_server_starts_on_any_address() {
    let home = Home::new();
    let mut command = home.command(["serve", "--listen", "0.0.0.0:0"]);
    command.env("ONCEGATE_AUTH_REQUIRED", "true");
    let server = Server::start(command);
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], server.address.port()));
    crate::support::Client::new(address).get("/api/claims").await.expect_problem(401, "unauthorized");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn of_servers_that_start_at_once_one_makes_the_first_key() {
    let database = Database::create().await;
    let config = format!("store = {:?}\n[auth]\nrequired = true\n", database.url());
    let homes: Vec<Home> = (0..3).map(|_| Home::with_config(&config)).collect();
    homes[0].run(["migrate"]).expect_code(0);
    let starting: Vec<_> = homes.iter().map(|home| home.command(["serve", "--listen", "127.0.0.1:0"])).collect();
    let servers = starting.into_iter().map(|command| tokio::task::spawn_blocking(|| Server::start(command)));
    let servers: Vec<Server> =
        futures::future::join_all(servers).await.into_iter().map(|started| started.expect("it starts")).collect();
    let secrets: Vec<String> = homes
        .iter()
        .filter_map(|home| std::fs::read_to_string(home.path().join("oncegate-data/admin.key")).ok())
        .collect();
    assert_eq!(secrets.len(), 1, "one file");
    for server in &servers {
        let secret = secrets[0].trim();
        eventually("every server knows the key", || async {
            (server.client_with(secret).get("/api/keys").await.status == 200).then_some(())
        })
        .await;
    }
    let keys = servers[0].client_with(secrets[0].trim()).get("/api/keys").await.expect(200).body;
    assert_eq!(keys["items"].as_array().map(Vec::len), Some(1), "{keys}");
}
