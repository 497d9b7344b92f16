//! `oncegate demo`: it soon has data of every kind, and leaves nothing behind.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{Client, Home, wait};

const SOON: Duration = Duration::from_secs(30);

/// A list of the API, and a check of its items.
type Wish = (&'static str, fn(&[Value]) -> bool);

const WISHES: &[Wish] = &[
    ("/api/messages?status=sent", some),
    ("/api/messages?status=failed", some),
    ("/api/messages?status=unknown", some),
    ("/api/messages?limit=500", |messages| {
        let threads: Vec<_> = messages.iter().map(|message| &message["threadId"]).collect();
        threads.iter().any(|thread| threads.iter().filter(|other| *other == thread).count() >= 3)
    }),
    ("/api/actions?status=pending", some),
    ("/api/actions?status=completed", some),
    ("/api/actions?status=dead", some),
    ("/api/actions?status=cancelled", some),
    ("/api/actions?status=unknown", some),
    // An action's duplicates are counted by its revisions, not by a claim.
    ("/api/actions?limit=500", |actions| actions.iter().any(|action| action["revision"].as_u64() > Some(1))),
    ("/api/actions?limit=500", |actions| actions.iter().any(|action| action["recurringInterval"].is_string())),
    ("/api/actions?type=StartParsingReferenceFile&status=completed", some),
    ("/api/sagas?definition=search-import", |instances| {
        instances.iter().filter_map(|instance| instance["state"].as_str()).collect::<BTreeSet<_>>().len() >= 3
    }),
    ("/api/sagas/dead-letters?status=open", |letters| letters.len() == 1),
    ("/api/sends?state=sent", |sends| sends.iter().any(|send| send["attempt"] == 2)),
    ("/api/sends?state=failed", some),
    ("/api/sends?state=unknown", |sends| sends.len() == 1),
    ("/api/reminders?state=scheduled", some),
    ("/api/reminders?state=sent", some),
    ("/api/reminders?state=missed", some),
    ("/api/reminders?state=cancelled", some),
    ("/api/claims?guard=payout&state=unknown", some),
    ("/api/claims?guard=payment-hook&state=failed", some),
    ("/api/claims?guard=payment-hook", stopped_one),
    ("/api/claims?guard=message", stopped_one),
    ("/api/claims?guard=idempotency", stopped_one),
    ("/api/claims?guard=saga", stopped_one),
    ("/api/claims?guard=send", stopped_one),
    ("/api/claims?guard=reminder", stopped_one),
];

fn some(items: &[Value]) -> bool {
    !items.is_empty()
}

fn stopped_one(claims: &[Value]) -> bool {
    claims.iter().any(|claim| claim["duplicates"].as_u64() > Some(0))
}

async fn is_fulfilled(client: &mut Client, (list, is_seen): &Wish) -> bool {
    let page = client.get(list).await.expect(200);
    is_seen(page.body["items"].as_array().expect("items"))
}

fn folders_of_demos(home: &Path) -> usize {
    let entries = std::fs::read_dir(home).expect("the folder is ours").map(|entry| entry.expect("readable"));
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("oncegate-demo-")).count()
}

#[tokio::test]
async fn there_is_something_of_everything_to_see_and_nothing_is_left_of_it() {
    // The demo ignores the configuration and the store in its working directory.
    let home = Home::with_config("listen = \"nowhere\"");
    let mut demo = home.demo();
    let mut client = demo.client();
    let deadline = Instant::now() + SOON;
    let mut wishes: Vec<(usize, &Wish)> = WISHES.iter().enumerate().collect();
    while !wishes.is_empty() {
        let mut open = vec![];
        for wish in wishes {
            if !is_fulfilled(&mut client, wish.1).await {
                open.push(wish);
            }
        }
        wishes = open;
        let missing: Vec<_> = wishes.iter().map(|(number, (list, _))| (number, list)).collect();
        assert!(missing.is_empty() || Instant::now() < deadline, "not within {SOON:?}: {missing:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(demo.log().iter().all(|line| line["event"] != "demo.refused"), "what the demo asks for is right");
    assert_eq!(folders_of_demos(home.path()), 1);
    demo.signal(Signal::TERM);
    assert!(demo.wait(Duration::from_secs(10)).success());
    assert_eq!(folders_of_demos(home.path()), 0);
    assert!(!home.path().join("oncegate-data").exists());
}

#[test]
fn told_to_stop_while_it_starts_it_leaves_nothing() {
    let home = Home::new();
    for millis in [5, 20, 40, 80, 160] {
        let mut command = home.command(["demo", "--listen", "127.0.0.1:0"]);
        let mut child = command.env("TMPDIR", home.path()).stderr(Stdio::null()).spawn().expect("the binary was built");
        std::thread::sleep(Duration::from_millis(millis));
        let pid = Pid::from_raw(child.id().try_into().expect("a process id")).expect("not zero");
        kill_process(pid, Signal::TERM).expect("the process is ours");
        wait(&mut child, Duration::from_secs(10));
        assert_eq!(folders_of_demos(home.path()), 0, "after {millis} ms");
    }
}

#[test]
fn what_it_cannot_be_started_with_is_refused_and_leaves_nothing() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("it listens").to_string();
    let home = Home::new();
    let refused = |flags: &[&str], code, message: &str, hint: &str| {
        let folder = home.path().display().to_string();
        let words = ["demo"].iter().chain(flags);
        home.run_with(words, &[("TMPDIR", &folder)]).expect_failure(code, message, hint);
        assert_eq!(folders_of_demos(home.path()), 0, "{flags:?}");
    };
    refused(&["--listen", &address], 1, &format!("cannot listen on {address}"), "--listen 127.0.0.1:0");
    refused(&["--listen", "0.0.0.0:0"], 2, "it listens on a loopback address only", "--listen 127.0.0.1:4600");
    refused(&["--store", "memory:"], 2, "a store and a configuration of its own", "oncegate serve");
    refused(&["--config", "oncegate.toml"], 2, "a store and a configuration of its own", "oncegate serve");
    refused(&["--pace", "0"], 2, "--pace is 0.1 to 20", "oncegate demo --pace 2");
}
