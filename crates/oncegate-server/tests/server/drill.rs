//! `oncegate drill`: the server's paths keep their promises, however often they are killed. The drill also tells a worker with a guard from
//! one without.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Home, Ran};

/// Long runs, each with many short-lived processes.
const WITHIN: Duration = Duration::from_secs(300);

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn python_worker() -> Vec<String> {
    vec!["python3".into(), repository().join("examples/workers/python/worker.py").display().to_string()]
}

/// Drills a worker, and returns its one path.
fn drill(home: &Home, flags: &[&str], worker: &[String], variables: &[(&str, &str)]) -> (i32, Value) {
    let fixed = ["drill", "--json", "--jobs", "40", "--kills", "12", "--lease", "1s"];
    let arguments = fixed.iter().chain(flags).map(ToString::to_string).chain(["--".to_owned()]);
    let ran = home.run_within(WITHIN, arguments.chain(worker.iter().cloned()), variables);
    assert!(ran.code <= 1, "{ran:?}");
    let report = ran.json();
    assert_eq!(report["command"], json!(worker));
    (ran.code, report["paths"][0].clone())
}

fn sum(path: &Value, column: &str) -> u64 {
    path["points"].as_array().expect("points").iter().map(|point| point[column].as_u64().expect("a number")).sum()
}

/// The drill distinguishes the same worker with the guard and without it.
fn tells_them_apart(worker: &[String], variables: &[(&str, &str)]) {
    let home = Home::new();
    let unguarded: Vec<String> = worker.iter().cloned().chain(["--no-guard".to_owned()]).collect();
    let (code, path) = drill(&home, &[], &unguarded, variables);
    assert_eq!((code, &path["guards"]), (1, &json!([])), "{path}");
    assert!(sum(&path, "duplicates") > 0 && !path["broken"].as_array().expect("a list").is_empty(), "{path}");

    let (code, path) = drill(&home, &[], worker, variables);
    assert_eq!((code, &path["broken"]), (0, &json!([])), "{path}");
    assert_eq!((sum(&path, "duplicates"), sum(&path, "sent"), sum(&path, "jobs")), (0, 40, 40), "{path}");
    assert_eq!((&path["guards"][0]["name"], path["guards"].as_array().map(Vec::len)), (&json!("send"), Some(1)));
    assert_eq!(sum(&path, "kills"), 12, "{path}");
}

#[test]
fn our_own_paths_keep_their_promises_through_more_than_200_kills() {
    let home = Home::new();
    let arguments = ["drill", "--json", "--html", "report.html", "--svg", "chart.svg"];
    let ran = home.run_within(WITHIN, arguments, &[]).expect_code(0);
    let report = ran.json();
    let paths = report["paths"].as_array().expect("paths");
    let names: Vec<&str> = paths.iter().filter_map(|path| path["name"].as_str()).collect();
    let wanted = [
        "message",
        "action, at least once",
        "action, at most once",
        "send, lost = \"resend\"",
        "send, lost = \"skip\"",
        "send, lost = \"hold\"",
        "reminder",
        "saga command",
    ];
    assert_eq!(names, wanted);
    assert!(paths.iter().map(|path| sum(path, "kills")).sum::<u64>() >= 200, "{report}");
    // Retries were stopped, and not only by chance.
    for name in ["message", "send", "reminder", "saga"] {
        let guards = paths.iter().flat_map(|path| path["guards"].as_array().expect("guards"));
        let stopped: u64 =
            guards.filter(|guard| guard["name"] == name).filter_map(|guard| guard["stopped"].as_u64()).sum();
        assert!(stopped > 0, "{name}: {report}");
    }
    for path in paths {
        assert_eq!((&path["broken"], sum(path, "duplicates")), (&json!([]), 0), "{path}");
        assert!(sum(path, "sent") > 0 && !path["guards"].as_array().expect("guards").is_empty(), "{path}");
    }
    // An accepted job that had not begun is always sent, however its server died. Once an action or a reminder is committed, a worker may
    // have
    // begun it.
    let before_begin = [
        ("message", &["message.received", "message.committed"][..]),
        ("action, at most once", &["action.received", "action.leased"]),
        ("reminder", &["reminder.received", "reminder.leased"]),
    ];
    for (name, wanted) in before_begin {
        let path = &paths[names.iter().position(|path| *path == name).expect("a path")];
        let points = path["points"].as_array().expect("points");
        let found: Vec<&Value> =
            points.iter().filter(|point| wanted.contains(&point["point"].as_str().expect("a name"))).collect();
        assert_eq!(found.len(), wanted.len(), "{path}");
        for point in found {
            assert!(point["kills"].as_u64() >= Some(4), "{path}");
            assert_eq!((&point["notArrived"], &point["sent"]), (&json!(0), &point["jobs"]), "{path}");
        }
    }
    // Every missing arrival is counted, and only a path that sends at most once has any.
    for path in paths {
        assert_eq!(sum(path, "notArrived"), sum(path, "jobs") - sum(path, "sent"), "{path}");
        let is_repeated = path["promise"].as_str().is_some_and(|promise| promise.starts_with("At least once"));
        assert!(!is_repeated || sum(path, "notArrived") == 0, "{path}");
        assert!(sum(path, "missed") <= sum(path, "notArrived"), "{path}");
    }
    // The kills hit critical moments: some job is unknown, some was repeated under its key, some was missed.
    let of = |name: &str, column| sum(&paths[names.iter().position(|path| *path == name).expect("a path")], column);
    assert!(of("message", "unknown") > 0 && of("action, at least once", "repeats") > 0 && of("reminder", "missed") > 0);
    let page = std::fs::read_to_string(home.path().join("report.html")).expect("it was written");
    assert!(page.contains("Every path kept its promise") && page.contains("<svg") && !page.contains("<script"));
    assert!(std::fs::read_to_string(home.path().join("chart.svg")).expect("it was written").starts_with("<svg"));
}

#[test]
fn a_worker_in_python_sends_twice_without_the_guard_and_once_with_it() {
    tells_them_apart(&python_worker(), &[]);
}

#[test]
fn with_skip_what_may_have_been_sent_is_unknown_and_never_sent_again() {
    let home = Home::new();
    for lost in ["skip", "hold"] {
        let (code, path) = drill(&home, &["--lost", lost], &python_worker(), &[]);
        assert_eq!((code, sum(&path, "duplicates"), sum(&path, "repeats")), (0, 0, 0), "{path}");
        assert!(sum(&path, "unknown") > 0 && sum(&path, "missed") == 0, "{path}");
    }
}

#[test]
fn a_worker_in_rust_sends_twice_without_the_guard_and_once_with_it() {
    let worker = Path::new(env!("CARGO_BIN_EXE_oncegate")).with_file_name("examples").join("send_worker");
    assert!(worker.exists(), "run cargo build --examples");
    tells_them_apart(&[worker.display().to_string()], &[]);
}

/// A private Redis, which is stopped with the test.
struct Redis {
    child: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Redis {
    fn start() -> Redis {
        let folder = tempfile::TempDir::new().expect("a temporary folder");
        // Bound and released, to find a free port.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr()).expect("a free port").port();
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--save", "", "--port", &port.to_string()])
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed: run make test");
        Redis { child, url: format!("redis://127.0.0.1:{port}"), _folder: folder }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "needs Redis, Node and BullMQ: run make test"]
fn a_worker_of_bullmq_sends_twice_without_the_guard_and_once_with_it() {
    let redis = Redis::start();
    let worker = repository().join("examples/workers/node/worker.mjs");
    assert!(worker.with_file_name("node_modules").exists(), "run scripts/install");
    tells_them_apart(&["node".into(), worker.display().to_string()], &[("REDIS_URL", &redis.url)]);
}

#[test]
fn two_runs_are_shown_beside_each_other() {
    let home = Home::new();
    let ran = home.run_within(WITHIN, drill_of(&["--name", "without", "--json"], true), &[]).expect_code(1);
    std::fs::write(home.path().join("without.json"), &ran.stdout).expect("the folder is ours");
    let flags = ["--name", "with", "--beside", "without.json", "--html", "both.html"];
    let ran = home.run_within(WITHIN, drill_of(&flags, false), &[]).expect_code(0);
    assert!(ran.stdout.contains("without (broken)") && ran.stdout.contains("with (ok)"), "{ran:?}");
    let page = std::fs::read_to_string(home.path().join("both.html")).expect("it was written");
    assert!(page.contains("without") && page.contains("1 of 2 paths broke its promise"));
}

fn drill_of(flags: &[&str], is_unguarded: bool) -> Vec<String> {
    let fixed = ["drill", "--jobs", "12", "--kills", "6", "--lease", "1s"];
    let words = fixed.iter().chain(flags).map(ToString::to_string).chain(["--".to_owned()]).chain(python_worker());
    words.chain(is_unguarded.then(|| "--no-guard".to_owned())).collect()
}

/// A worker that runs this script in a shell.
fn shell(script: &str) -> Ran {
    Home::new().run_within(WITHIN, ["drill", "--jobs", "6", "--kills", "3", "--", "sh", "-c", script], &[])
}

#[test]
fn a_worker_that_does_not_do_as_the_drill_asks_is_told_so() {
    let gone = shell("exit 7").expect_code(1);
    assert!(gone.stderr.contains("exit status: 7") && gone.stderr.contains("0 of 6 jobs"), "{gone:?}");
    let silent = Home::new().run_within(WITHIN, ["drill", "--", "/no/such/worker"], &[]);
    silent.expect_failure(1, "cannot start /no/such/worker", "oncegate drill -- python3 worker.py");
    // The worker reports work that it has not done: nothing arrives, and its outcome is unknown.
    let liar =
        shell(r#"while read -r l; do sleep 0.2; echo "{\"ack\": \"$(echo "$l" | grep -o 'job-[0-9]*')\"}"; done"#);
    let liar = liar.expect_code(1);
    assert!(liar.stdout.contains("never arrived, and nobody says so"), "{liar:?}");
    let chatty = shell("while read -r l; do echo working; sleep 0.2; done").expect_code(1);
    assert!(chatty.stderr.contains("the worker said \"working\" on its standard output"), "{chatty:?}");
    // One key for all messages: a provider that honours it would send only one.
    let script = r#"while read -r l; do j=$(echo "$l" | grep -o 'job-[0-9]*'); curl -s "$DRILL_PROVIDER_URL" -H 'idempotency-key: all' -d "{\"recipientId\": \"recipient-${j#job-}\"}" >&2; echo "{\"ack\": \"$j\"}"; done"#;
    let one_key = shell(script).expect_code(1);
    assert!(one_key.stdout.contains("calls under the key of another job"), "{one_key:?}");
    // A drill that failed without a result overwrites no file.
    let home = Home::new();
    std::fs::write(home.path().join("report.html"), "of yesterday").expect("the folder is ours");
    home.run_within(WITHIN, ["drill", "--html", "report.html", "--", "false"], &[]).expect_code(1);
    assert_eq!(std::fs::read_to_string(home.path().join("report.html")).expect("it is there"), "of yesterday");
    for (flags, message) in [
        (&["--jobs", "2", "--kills", "3"][..], "--kills is at most --jobs"),
        (&["--jobs", "0"], "--jobs is 1 to"),
        (&["--kills", "0"], "--kills is 1 to"),
        (&["--lease", "soon"], "--lease is a duration"),
        (&["--lost", "never"], "possible values: resend, skip, hold"),
    ] {
        let words: Vec<&str> = ["drill"].into_iter().chain(flags.iter().copied()).chain(["--", "true"]).collect();
        let ran = Home::new().run_within(WITHIN, words, &[]);
        assert!(ran.code == 2 && ran.stderr.contains(message), "{message}: {ran:?}");
    }
}
