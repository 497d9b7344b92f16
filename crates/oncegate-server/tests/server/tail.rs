//! `oncegate tail`: the decisions of a running server, for people and for programs.

use std::net::TcpListener;

use serde_json::{Value, json};

use crate::support::{Home, Running, Server, claim_of, eventually};

fn tail(home: &Home, server: &Server, more: &[&str]) -> Running {
    let url = format!("http://{}", server.address);
    home.start([&["tail", "--server", &url], more].concat())
}

#[tokio::test]
async fn decisions_are_printed_in_words_and_without_colour_where_nobody_looks() {
    let home = Home::new();
    let server = home.serve();
    let (id, token) = server.client().win(&claim_of("charge", "order 17")).await;
    let following = tail(&home, &server, &[]);
    let won = following.line();
    assert!(won.ends_with(&format!("charge           passed   first request: allowed · {id}")), "{won}");
    server.client().settle("charge", &id, token, &json!(1)).await.expect(200);
    assert!(following.line().contains("done: later callers get its outcome"));
    server.client().claim(&claim_of("charge", "order 17")).await.expect(200);
    let stopped = following.line();
    assert!(
        stopped.contains("charge           stopped  the first request came ") && !stopped.contains('\u{1b}'),
        "{stopped}"
    );
    // The line begins with the time of day.
    assert_eq!(stopped.split(' ').next().map(str::len), Some("09:30:00.123".len()), "{stopped}");
    let said = following.end();
    assert!(said.contains("following the decisions of http://") && !said.contains('\u{1b}'), "{said}");
}

#[tokio::test]
async fn as_json_each_is_the_line_that_the_log_has() {
    let home = Home::new();
    let server = home.serve();
    let (id, _) = server.client().win(&claim_of("charge", "order 17")).await;
    let following = tail(&home, &server, &["--json"]);
    let line: Value = serde_json::from_str(&following.line()).unwrap();
    assert_eq!((&line["event"], &line["claimId"]), (&json!("claim.won"), &json!(id)));
    assert_eq!(line, server.logged("claim.won", 1).await[0]);
}

#[tokio::test]
async fn it_prints_only_what_was_asked_for() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    for (guard, part) in [("a", "1"), ("b", "1"), ("b", "1"), ("a", "2"), ("b", "2")] {
        client.claim(&claim_of(guard, part)).await;
    }
    let cases: [(&[&str], &[&str]); 4] = [
        (&["--last", "2", "--guard", "b"], &["b passed"]),
        (&["--guard", "a"], &["a passed", "a passed"]),
        (&["--fate", "stopped"], &["b stopped"]),
        (&["--event", "claim.in"], &["b stopped"]),
    ];
    for (filter, expected) in cases {
        let following = tail(&home, &server, filter);
        for expected in expected {
            let line = following.line();
            let words: Vec<&str> = line.split_whitespace().skip(1).take(2).collect();
            assert_eq!(words.join(" "), *expected, "{filter:?}");
        }
        // The command prints later decisions, and has printed nothing else.
        client.claim(&claim_of("c", &format!("{filter:?}"))).await.expect(201);
        assert!(following.is_silent(), "{filter:?}");
    }
}

#[test]
fn where_there_is_no_server_it_says_so_and_how_to_start_one() {
    let home = Home::new();
    // A port without a listener: bound and released.
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr()).unwrap();
    let ran = home.run(["tail", "--server", &format!("http://{closed}")]);
    ran.expect_failure(1, "does not answer", "oncegate serve starts it");
    // The address from the configuration.
    home.configure(&format!("listen = \"{closed}\"\n"));
    home.run(["tail"]).expect_failure(1, &format!("http://{closed}/ does not answer"), "--server");
}

#[test]
fn what_is_no_url_of_a_server_is_a_mistake_of_use() {
    let home = Home::new();
    for url in ["ftp://localhost", "nonsense", "file:///etc/passwd", "http://"] {
        let ran = home.run(["tail", "--server", url]).expect_code(2);
        assert!(ran.stdout.is_empty() && ran.stderr.contains("--server"), "{ran:?}");
    }
}

#[tokio::test]
async fn a_bad_fate_and_a_wrong_key_are_the_servers_words() {
    let home = Home::new();
    let server = home.serve();
    let url = format!("http://{}", server.address);
    let ran = home.run(["tail", "--server", &url, "--fate", "gone"]).expect_code(1);
    assert!(
        ran.stderr.contains("400") && ran.stderr.contains("passed, done, stopped, failed, needed, noted"),
        "{ran:?}"
    );
    let (_, key) = home.make_key("acme", "send");
    eventually("the key is known", || async { (server.client().get("/api/claims").await.status == 401).then_some(()) })
        .await;
    for key in [&["--key", "og_wrong"][..], &[]] {
        let ran = home.run([&["tail", "--server", &url], key].concat());
        let ran = ran.expect_failure(1, "401", "--key og_…, or ONCEGATE_KEY");
        assert!(ran.stderr.contains("no valid API key"), "{ran:?}");
    }
    // A line break in a key would begin another header.
    home.run(["tail", "--server", &url, "--key", "a\nb"]).expect_code(2);
    let following = tail(&home, &server, &["--key", &key]);
    // The command may not have connected yet; a follower that asks for the last decisions gets this one, too.
    server.client_with(&key).win(&claim_of("charge", "order 17")).await;
    assert!(following.line().contains("first request: allowed"));
}

#[tokio::test]
async fn it_goes_on_when_the_server_was_started_again() {
    let home = Home::new();
    let server = home.serve();
    let address = server.address;
    server.client().win(&claim_of("charge", "before")).await;
    let following = tail(&home, &server, &[]);
    assert!(following.line().contains("first request: allowed"));
    server.kill();
    let server = home.serve_at(address);
    eventually("a decision of the new server is printed", || async {
        let part = format!("{:?}", std::time::Instant::now());
        server.client().claim(&claim_of("after", &part)).await.expect(201);
        (!following.is_silent()).then_some(())
    })
    .await;
    assert!(following.end().contains("went away"));
}

#[tokio::test]
async fn it_ends_when_nobody_reads_any_more() {
    let home = Home::new();
    let server = home.serve();
    server.client().win(&claim_of("charge", "0")).await;
    let mut following = tail(&home, &server, &[]);
    following.line();
    // As `| head -1` does.
    following.stop_reading();
    for part in 1..20 {
        server.client().win(&claim_of("charge", &part.to_string())).await;
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(following.wait().success());
}
