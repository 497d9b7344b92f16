//! The limit of expressions in sagas: an event that would take too long is refused, and no other request waits for it.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Home, claim_of, eventually};

const MATCH: &str = r#"
name = "match"
correlation = "event.data.id"
events = ["Asked"]
states = ["Answered"]
terminal = ["Answered"]
data = { matched = "bool", document = "any" }

[[on]]
in = "none"
event = "Asked"
set = { matched = "event.data.wanted.all(w, w in event.data.have)" }
to = "Answered"

[[ignore]]
in = "Answered"
event = "*"
"#;

fn home(limits: &str) -> Home {
    let home = Home::with_config(&format!("[sagas]\nfiles = [\"match.toml\"]\n{limits}"));
    std::fs::write(home.path().join("match.toml"), MATCH).expect("the folder is ours");
    home
}

/// The maximum time of an event over the limit on a busy machine. Without a limit [`attack`] takes minutes.
const AT_ONCE: Duration = Duration::from_secs(10);

/// Each of 90,000 numbers is found last among as many: 8 billion steps.
fn attack(id: &str) -> Value {
    let mut have = vec![2; 89_999];
    have.push(1);
    json!({ "type": "Asked", "id": id, "data": { "id": id, "wanted": vec![1; 90_000], "have": have } })
}

/// Each of `count` texts is searched in as many others.
fn asked(id: &str, count: usize) -> Value {
    let texts: Vec<String> = (0..count).map(|i| i.to_string()).collect();
    json!({ "type": "Asked", "id": id, "data": { "id": id, "wanted": texts, "have": texts } })
}

#[tokio::test]
async fn an_event_whose_expressions_would_take_too_many_steps_is_a_dead_letter_at_once() {
    let home = home("");
    let server = home.serve();
    assert_eq!(server.client().post("/api/events", &asked("small", 100)).await.expect(200).body["result"], "applied");
    let begun = Instant::now();
    let handled = server.client().post("/api/events", &attack("large")).await.expect(200).body;
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    assert_eq!(handled["result"], "dead_letter");
    let letters = server.client().get("/api/sagas/dead-letters").await.expect(200).body;
    let reason = letters["items"][0]["reason"].as_str().expect("a reason").to_owned();
    for part in ["`event.data.wanted.all(w, w in event.data.have)`", "takes at least ", "1000000", "limits.saga_steps"]
    {
        assert!(reason.contains(part), "{reason}");
    }
    // Data that is not read costs nothing: a large document behaves like a small one.
    let mut large = asked("document", 100);
    large["data"]["document"] = json!(vec!["a page of text"; 100_000]);
    assert_eq!(server.client().post("/api/events", &large).await.expect(200).body["result"], "applied");
}

#[tokio::test]
async fn an_event_that_is_out_of_steps_is_counted_for_its_workspace_and_leaves_others_alone() {
    let home = home("");
    let server = home.serve();
    let (mut busy, mut calm) =
        (server.client().header("oncegate-workspace", "busy"), server.client().header("oncegate-workspace", "calm"));
    assert_eq!(busy.post("/api/events", &attack("large")).await.expect(200).body["result"], "dead_letter");
    assert_eq!(calm.post("/api/events", &asked("small", 100)).await.expect(200).body["result"], "applied");
    let metrics = server.client().get("/metrics").await.expect(200).text;
    assert!(metrics.contains("oncegate_workspace_limited_total{limit=\"saga_steps\"} 1"), "{metrics}");
    let limited = &server.logged("workspace.limited", 1).await[0];
    assert_eq!((&limited["workspace"], &limited["limit"]), (&json!("busy"), &json!("saga_steps")));
}

/// Seconds of processor time that a process has taken, in hundredths.
fn processor_time(server: &crate::support::Server) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.id())).expect("it runs");
    let after_name = stat.rsplit_once(')').expect("a name in brackets").1;
    after_name.split_whitespace().nth(11).expect("utime").parse().expect("a number")
}

#[tokio::test]
async fn an_evaluation_without_a_limit_holds_up_neither_requests_nor_the_end_of_the_process() {
    let home = home("[limits]\nsaga_steps = 1000000000000\n");
    let mut server = home.serve();
    let idle = processor_time(&server);
    let mut client = server.client();
    let evaluating = tokio::spawn(async move {
        let body = asked("forever", 90_000).to_string().into();
        client.try_send(hyper::Method::POST, "/api/events", Some(body)).await
    });
    eventually("it evaluates", || async { (processor_time(&server) > idle + 100).then_some(()) }).await;
    server.client().win(&claim_of("g", "meanwhile")).await;
    let told = Instant::now();
    server.signal(Signal::TERM);
    let status = server.wait(Duration::from_secs(10));
    assert!(status.success(), "{status}");
    assert!(told.elapsed() < Duration::from_secs(10), "{:?}", told.elapsed());
    evaluating.abort();
}
