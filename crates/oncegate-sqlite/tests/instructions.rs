//! Instructions per decision, a measure that does not vary with the machine's load.
//!
//! This test program runs itself under callgrind twice, with different numbers of decisions, and takes the
//! difference, because the start-up costs the same in both. The figure is of the test profile; a release build needs less.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::{ClaimKey, Command as ClaimCommand, GuardName, Lost, Terms, WorkspaceName};
use oncegate_sqlite::{Options, SqliteStore};
use oncegate_store::{Op, Store};

/// Half of the decisions are wins, which are written; half are duplicates, which are not.
const LIMIT_PER_DECISION: u64 = 25_000;
const CALLERS: u64 = 64;
const DECISIONS: &str = "ONCEGATE_TEST_DECISIONS";

#[test]
#[ignore = "needs valgrind: run make test"]
fn a_decision_stays_under_its_limit_of_instructions() {
    let (few, many) = (1_280, 3_840);
    let per_decision = (instructions(many) - instructions(few)) / (many - few);
    println!("{per_decision} instructions per decision; the limit is {LIMIT_PER_DECISION}");
    assert!(per_decision < LIMIT_PER_DECISION);
}

fn instructions(decisions: u64) -> u64 {
    let program = std::env::current_exe().expect("this program has a path");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["--exact", "workload", "--ignored", "--test-threads=1"])
        .env(DECISIONS, decisions.to_string())
        .output()
        .expect("valgrind is installed");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let collected =
        said.lines().find_map(|line| line.split_once("Collected : ")).expect("callgrind says what it counted");
    collected.1.trim().parse().expect("a number")
}

/// Run by the test above. By itself it makes no decision.
#[tokio::test]
#[ignore = "the workload of the test above"]
async fn workload() {
    let decisions: u64 = std::env::var(DECISIONS).map_or(0, |decisions| decisions.parse().expect("a number"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Arc::new(SqliteStore::open(folder.path().join("x.db"), Options::default()).expect("opens"));
    let callers = (0..CALLERS).map(|caller| {
        let store = store.clone();
        tokio::spawn(async move {
            for turn in 0..decisions / CALLERS {
                store.commit(claim(caller, turn / 2).into()).await.expect("decides");
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.expect("does not panic");
    }
    store.close().await;
}

fn claim(caller: u64, number: u64) -> Op {
    let guard = GuardName::new("g").expect("a good name");
    let parts = [Some(caller.to_le_bytes()), Some(number.to_le_bytes())];
    let terms = Terms::new(Duration::from_secs(900), Duration::from_secs(30), Lost::TakeOver);
    Op { key: ClaimKey::of(&WorkspaceName::default_workspace(), &guard, &parts), command: ClaimCommand::Claim(terms) }
}
