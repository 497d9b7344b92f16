//! The index of keys and the cache of claims are in memory, and other processes change the file too. No claim, and no change of
//! a claim, may be missed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::{Answer, Claim, ClaimKey, Command, GuardName, Lost, Terms, Time, Token, WorkspaceName};
use oncegate_sqlite::{Options, SqliteStore, migrations};
use oncegate_store::conformance::{START, settle};
use oncegate_store::{Commit, DuplicateCount, ManualClock, Op, Store, StoreError};

const WINDOW: Duration = Duration::from_secs(900);
const ANOTHER_PROCESS: &str = "ONCEGATE_TEST_FILE";

struct File {
    folder: tempfile::TempDir,
    clock: Arc<ManualClock>,
}

impl File {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::starting_at(START));
        File { folder: tempfile::tempdir().expect("a temporary folder"), clock }
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("x.db")
    }

    fn open(&self) -> SqliteStore {
        self.open_with(Options::default().claims_max)
    }

    fn open_with(&self, claims_max: usize) -> SqliteStore {
        let options = Options { clock: self.clock.clone(), claims_max, ..Options::default() };
        SqliteStore::open(self.path(), options).expect("opens")
    }
}

fn key(part: &str) -> ClaimKey {
    ClaimKey::of(&WorkspaceName::default_workspace(), &GuardName::new("g").expect("a good name"), &[Some(part)])
}

fn terms() -> Terms {
    Terms::new(WINDOW, Duration::from_secs(300), Lost::TakeOver)
}

fn claim(part: &str) -> Op {
    Op { key: key(part), command: Command::Claim(terms()) }
}

async fn asks(store: &SqliteStore, part: &str) -> Answer {
    store.commit(claim(part).into()).await.expect("decides").only()
}

async fn wins(store: &SqliteStore, part: &str) -> bool {
    matches!(asks(store, part).await, Answer::Won(_))
}

/// The claim that a caller meets.
async fn meets(store: &SqliteStore, part: &str) -> Arc<Claim> {
    match asks(store, part).await {
        Answer::InFlight(claim) | Answer::Duplicate(claim) => claim,
        other => panic!("{other:?}"),
    }
}

async fn settles(store: &SqliteStore, part: &str, token: Token, outcome: &str) {
    let command = settle(token, outcome.to_owned());
    let settled = store.commit(Op { key: key(part), command }.into()).await.expect("decides").only();
    assert!(matches!(settled, Answer::Applied(_)), "{settled:?}");
}

async fn forgets(store: &SqliteStore, part: &str) {
    let forgotten = store.commit(Op { key: key(part), command: Command::Forget }.into()).await.expect("decides").only();
    assert!(matches!(forgotten, Answer::Applied(_)), "{forgotten:?}");
}

async fn is_there(store: &SqliteStore, part: &str) -> bool {
    store.read(&key(part)).await.expect("reads").value.is_some()
}

#[tokio::test]
async fn what_another_process_has_claimed_is_found_by_claims_and_by_reads() {
    let file = File::new();
    let (ours, theirs) = (file.open(), file.open());
    assert!(wins(&ours, "ours").await);
    for part in ["a", "b", "c"] {
        assert!(wins(&theirs, part).await);
    }
    assert!(is_there(&ours, "b").await, "read before our writer has met it");
    assert!(!wins(&ours, "b").await);
    assert!(is_there(&ours, "c").await);
    assert!(!wins(&theirs, "ours").await);
    assert!(!wins(&file.open(), "a").await, "and by a process that starts now");
}

/// Another process recognises a new row by its number, so numbers must not be reused.
#[tokio::test]
async fn a_row_number_does_not_come_back_when_the_last_rows_are_swept() {
    let file = File::new();
    let (ours, theirs) = (file.open(), file.open());
    for part in ["a", "b", "c"] {
        assert!(wins(&theirs, part).await);
    }
    assert!(wins(&ours, "d").await, "and we know all rows up to here");
    file.clock.advance(WINDOW);
    assert_eq!(theirs.sweep(100).await.expect("sweeps").claims, 4);
    assert!(wins(&theirs, "new").await);
    assert!(!wins(&ours, "new").await);
    // Numbers are not reused after all processes have closed the file, either.
    file.clock.advance(WINDOW);
    assert_eq!(theirs.sweep(100).await.expect("sweeps").claims, 1);
    theirs.close().await;
    let anew = file.open();
    assert!(wins(&anew, "newer").await);
    assert!(!wins(&ours, "newer").await);
}

/// The number of a rolled-back row is free, and another process may use it.
#[tokio::test]
async fn what_was_rolled_back_alone_does_not_pass_for_known() {
    let file = File::new();
    let (ours, theirs) = (file.open_with(3), file.open());
    assert!(wins(&ours, "a").await && wins(&ours, "b").await);
    let both = Commit { ops: vec![claim("x"), claim("y")], changes: vec![] };
    ours.commit(both).await.expect_err("there is room for one only");
    assert!(wins(&theirs, "k").await);
    forgets(&ours, "a").await;
    assert_eq!(ours.sweep(10).await.expect("sweeps").claims, 1);
    assert!(is_there(&ours, "k").await);
    assert!(!wins(&ours, "k").await);
}

/// New claims of a group are appended together. A later job of the group still finds them, and an undone job removes none of them.
#[tokio::test]
async fn what_is_appended_together_is_there_for_those_behind_it_in_the_group() {
    let file = File::new();
    let store = file.open();
    let single = |part: &str, command: Command| Commit::from(Op { key: key(part), command });
    let claims = |part: &str| single(part, Command::Claim(terms()));
    // One of the two keys has another owner, so neither claim is written.
    let refused = Commit { ops: vec![claim("undone"), claim("0")], changes: vec![] };
    let mut commits: Vec<Commit> = (0..37).map(|number| claims(&number.to_string())).collect();
    commits.extend([claims("20"), single("5", Command::Forget), claims("5"), refused]);
    commits.extend((37..45).map(|number| claims(&number.to_string())));
    commits.extend([claims("44"), Commit { ops: vec![claim("45"), claim("46")], changes: vec![] }, claims("46")]);
    let answers: Vec<Vec<Answer>> =
        store.commit_all(commits).await.into_iter().map(|committed| committed.expect("decides").answers).collect();
    let names: Vec<Vec<&str>> = answers.iter().map(|answers| answers.iter().map(Answer::name).collect()).collect();
    assert!(names[..37].iter().chain(&names[41..49]).all(|names| *names == ["won"]), "{names:?}");
    assert_eq!(names[37..41], [vec!["in_flight"], vec!["applied"], vec!["won"], vec!["won", "in_flight"]]);
    assert_eq!(names[49..], [vec!["in_flight"], vec!["won", "won"], vec!["in_flight"]]);
    // The clock was set back meanwhile; the stored time is still the duplicate's.
    let (met, before) = (meets(&store, "7").await, Time::from_micros(START.micros() - 5));
    let count = |part: &str, token| DuplicateCount { key: key(part), token, count: 3, last_at: before };
    store.count_duplicates(vec![count("7", met.token), count("7", Token(1))]).await.expect("counts");
    store.close().await;
    let anew = file.open();
    assert!(is_there(&anew, "0").await && is_there(&anew, "46").await && !is_there(&anew, "undone").await);
    for number in 0..47 {
        let part = number.to_string();
        let met = meets(&anew, &part).await;
        let expected = if part == "7" { (3, Some(before)) } else { (0, None) };
        assert_eq!((met.duplicates, met.last_duplicate_at), expected, "{part}");
    }
    let by_hand = rusqlite::Connection::open(file.path()).expect("opens");
    let rows: i64 = by_hand.query_row("SELECT count(*) FROM claims", [], |row| row.get(0)).expect("counts");
    assert_eq!(rows, 47, "one for each key");
}

#[tokio::test]
async fn what_others_have_swept_does_not_fill_the_index() {
    const ROUNDS: usize = 30;
    const CLAIMS: usize = 200;
    let file = File::new();
    let (ours, theirs) = (file.open_with(3 * 1_000), file.open());
    let long = Terms { window: WINDOW * 100, ..terms() };
    let op = Op { key: key("stays"), command: Command::Claim(long) };
    ours.commit(op.into()).await.expect("writes");
    for round in 0..ROUNDS {
        let commits = (0..CLAIMS).map(|turn| claim(&format!("{round}.{turn}")).into()).collect();
        for committed in ours.commit_all(commits).await {
            committed.expect("there is room");
        }
        file.clock.advance(WINDOW);
        assert_eq!(theirs.sweep(CLAIMS).await.expect("sweeps").claims, CLAIMS);
    }
    assert!(is_there(&ours, "stays").await);
}

/// The tokens and numbers of removed rows stay used, however the rows were removed.
#[tokio::test]
async fn rows_that_were_deleted_by_hand_leave_their_numbers_behind() {
    let file = File::new();
    let (ours, theirs) = (file.open(), file.open());
    assert!(wins(&ours, "a").await && wins(&theirs, "b").await && wins(&ours, "c").await);
    let by_hand = rusqlite::Connection::open(file.path()).expect("opens");
    by_hand.execute("DELETE FROM claims WHERE seq > 1", []).expect("deletes");
    assert!(wins(&theirs, "new").await);
    assert!(!wins(&ours, "new").await);
}

#[tokio::test]
async fn a_vacuum_in_between_loses_no_claim() {
    let file = File::new();
    let store = file.open();
    for turn in 0..100 {
        if turn == 50 {
            file.clock.advance(WINDOW);
        }
        assert!(wins(&store, &turn.to_string()).await);
    }
    assert_eq!(store.sweep(100).await.expect("sweeps").claims, 50);
    rusqlite::Connection::open(file.path()).expect("opens").execute_batch("VACUUM").expect("vacuums");
    for turn in 50..100 {
        assert!(!wins(&store, &turn.to_string()).await, "{turn}");
    }
}

#[tokio::test]
async fn a_full_index_refuses_new_keys_alone_and_says_what_to_do() {
    let file = File::new();
    let store = file.open_with(2);
    assert!(wins(&store, "a").await && wins(&store, "b").await);
    let commits = ["a", "c", "b"].map(|part| claim(part).into()).into();
    let [known, new, known_too] = store.commit_all(commits).await.try_into().expect("one answer each");
    assert!(known.is_ok() && known_too.is_ok());
    match new {
        Err(StoreError::Unavailable(why)) => assert!(why.contains("at most 2 claims. hint: "), "{why}"),
        other => panic!("{other:?}"),
    }
    file.clock.advance(WINDOW);
    assert_eq!(store.sweep(10).await.expect("sweeps").claims, 2);
    assert!(wins(&store, "c").await, "room again");
}

#[tokio::test]
async fn a_file_of_the_first_version_keeps_its_claims_and_its_tokens() {
    let file = File::new();
    let token = START.micros() + 7;
    write_first_version(&file.path(), token);
    let store = file.open();
    let found = store.read(&key("kept")).await.expect("reads").value.expect("it is there");
    assert_eq!((found.token.0, found.duplicates), (token, 3));
    assert!(!wins(&store, "kept").await);
    match store.commit(claim("new").into()).await.expect("decides").only() {
        Answer::Won(claim) => assert!(claim.token.0 > token + 100, "the floor was {}", token + 100),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_another_process_does_to_a_claim_is_met_at_once() {
    let file = File::new();
    let (ours, theirs) = (file.open(), file.open());
    assert!(wins(&ours, "k").await);
    let token = meets(&ours, "k").await.token;
    settles(&theirs, "k", token, "theirs").await;
    assert_eq!(meets(&ours, "k").await.outcome.as_deref(), Some(b"theirs".as_slice()));
    let by_hand = rusqlite::Connection::open(file.path()).expect("opens");
    for (turn, statement) in
        ["UPDATE claims SET attributes = '1'", "UPDATE claims SET attributes = '2'"].iter().enumerate()
    {
        by_hand.execute(statement, []).expect("updates");
        assert_eq!(meets(&ours, "k").await.attributes, Some((turn + 1).to_string()));
        // The first turn has a commit of our own in between; the others have none.
        assert!(turn > 0 || wins(&ours, "another").await);
        assert_eq!(meets(&ours, "k").await.attributes, Some((turn + 1).to_string()));
    }
    forgets(&theirs, "k").await;
    assert!(wins(&ours, "k").await);
    by_hand.execute("DELETE FROM claims", []).expect("deletes");
    assert!(wins(&ours, "k").await);
}

/// The critical moment is between a commit and its entry into the index and the cache. This test makes hundreds of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_another_process_has_done_is_met_however_busy_we_are() {
    const ROUNDS: usize = 100;
    let file = File::new();
    let (ours, theirs) = (Arc::new(file.open()), Arc::new(file.open()));
    let busy: Vec<_> = [&ours, &theirs]
        .into_iter()
        .cloned()
        .enumerate()
        .map(|(store_number, store)| {
            tokio::spawn(async move {
                for turn in 0.. {
                    let part = format!("busy {store_number} {turn}");
                    assert!(wins(&store, &part).await);
                    assert!(!wins(&store, &part).await);
                    // Without the pause the other stores would not get to write.
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            })
        })
        .collect();
    for round in 0..ROUNDS {
        let (one, other) = if round % 2 == 0 { (&ours, &theirs) } else { (&theirs, &ours) };
        let part = format!("round {round}");
        assert!(wins(one, &part).await);
        let token = meets(other, &part).await.token;
        assert_eq!(meets(one, &part).await.token, token);
        settles(other, &part, token, "done").await;
        assert!(meets(one, &part).await.outcome.is_some(), "round {round}");
        forgets(other, &part).await;
        assert!(wins(one, &part).await, "round {round}");
    }
    busy.iter().for_each(|task| task.abort());
    for task in busy {
        assert!(task.await.expect_err("it never ends by itself").is_cancelled());
    }
}

#[tokio::test]
async fn a_claim_is_met_as_it_was_last_written() {
    let file = File::new();
    let store = file.open();
    assert!(wins(&store, "k").await);
    let token = meets(&store, "k").await.token;
    let count = |token, count| DuplicateCount { key: key("k"), token, count, last_at: START };
    store.count_duplicates(vec![count(token, 3), count(Token(token.0 - 1), 50)]).await.expect("counts");
    store.count_duplicates(vec![count(token, 4)]).await.expect("counts");
    let met = meets(&store, "k").await;
    assert_eq!((met.duplicates, met.last_duplicate_at), (7, Some(START)));
    assert_eq!(Some(&*met), store.read(&key("k")).await.expect("reads").value.as_ref(), "and so it is in the file");
    let large = "x".repeat(100_000);
    settles(&store, "k", token, &large).await;
    let met = meets(&store, "k").await;
    assert_eq!((met.duplicates, met.outcome.as_ref().map(|outcome| outcome.len())), (7, Some(large.len())));
    forgets(&store, "k").await;
    assert!(wins(&store, "k").await);
    assert_eq!(meets(&store, "k").await.duplicates, 0);
}

/// A count and a write of one claim may share a transaction, in either order.
#[tokio::test]
async fn a_claim_that_is_counted_and_written_in_one_transaction_is_met_as_it_is_in_the_file() {
    let file = File::new();
    let store = file.open();
    let by_hand = rusqlite::Connection::open(file.path()).expect("opens");
    for round in 0..20 {
        let part = format!("round {round}");
        assert!(wins(&store, &part).await);
        let token = meets(&store, &part).await.token;
        let counts = vec![DuplicateCount { key: key(&part), token, count: 1, last_at: START }];
        let counted = async { store.count_duplicates(counts).await.expect("counts") };
        let settled = settles(&store, &part, token, "done");
        // While the lock makes the writer wait with the first claim, the others gather behind it.
        by_hand.execute_batch("BEGIN IMMEDIATE").expect("the writer waits");
        let first = async { assert!(wins(&store, &format!("first {round}")).await) };
        let let_go = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            by_hand.execute_batch("COMMIT").expect("lets go");
        };
        let behind = async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            if round % 2 == 0 { _ = tokio::join!(counted, settled) } else { _ = tokio::join!(settled, counted) }
        };
        tokio::join!(first, behind, let_go);
        let met = meets(&store, &part).await;
        assert_eq!(met.duplicates, 1);
        assert_eq!(Some(&*met), store.read(&key(&part)).await.expect("reads").value.as_ref());
    }
}

#[tokio::test]
async fn what_was_rolled_back_or_swept_is_not_met() {
    let file = File::new();
    let store = file.open_with(1);
    let both = Commit { ops: vec![claim("x"), claim("y")], changes: vec![] };
    store.commit(both).await.expect_err("there is room for one only");
    assert!(wins(&store, "x").await);
    file.clock.advance(WINDOW);
    assert_eq!(store.sweep(10).await.expect("sweeps").claims, 1);
    // By this time its window has not ended, but the claim was swept.
    file.clock.set(START);
    assert!(wins(&store, "x").await);
}

/// A real process is killed while it writes. The next process to open the file repairs the unfinished write.
#[tokio::test]
async fn what_a_process_had_written_before_it_was_killed_is_met() {
    const KILLS: u64 = 20;
    let file = File::new();
    let ours = file.open();
    assert!(wins(&ours, "k").await);
    for kill in 0..KILLS {
        let mut child = Process::new(std::env::current_exe().expect("this program has a path"))
            .args(["--exact", "another_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ANOTHER_PROCESS, file.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut said = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        let mut told = || said.by_ref().find_map(|line| line.strip_prefix("wrote ")?.parse::<i64>().ok());
        let met = async || {
            meets(&ours, "k").await.attributes.as_ref().map_or(0, |written| written.parse().expect("a number"))
        };
        for turn in 0..kill * 3 + 1 {
            let written = told().expect("it writes until it is killed");
            assert!(met().await >= written, "kill {kill}, turn {turn}");
            // Now and then this process commits between the other's commits.
            assert!(turn % 3 > 0 || wins(&ours, &format!("{kill} {turn}")).await);
        }
        child.kill().expect("is killed");
        child.wait().expect("has ended");
        while let Some(written) = told() {
            assert!(met().await >= written, "kill {kill}, after it");
        }
    }
}

/// Run by the test above. By itself it does nothing.
#[test]
#[ignore = "a part of the test above"]
fn another_process() {
    let Some(path) = std::env::var_os(ANOTHER_PROCESS) else { return };
    let connection = rusqlite::Connection::open(path).expect("opens");
    connection.busy_timeout(Duration::from_secs(10)).expect("waits");
    loop {
        let next = "UPDATE claims SET attributes = coalesce(attributes, 0) + 1 WHERE seq = 1 RETURNING attributes";
        let written: String = connection.query_row(next, [], |row| row.get(0)).expect("writes");
        println!("wrote {written}");
        // Lets other processes write as well.
        std::thread::sleep(Duration::from_micros(300));
    }
}

fn write_first_version(path: &Path, token: i64) {
    let connection = rusqlite::Connection::open(path).expect("opens");
    connection.execute_batch(migrations(0)[0].sql).expect("the first step");
    connection.execute("UPDATE token_floor SET token = ?1", [token + 100]).expect("has a floor");
    let (now, until) = (START.micros(), START.micros() + 900_000_000);
    connection
        .execute(
            "INSERT INTO claims VALUES ('default', ?1, 'g', 'in_flight', ?2, 1, 1, 'take_over', 300000000, ?3, ?3, ?4,
                                        NULL, NULL, 3, NULL, NULL, NULL, NULL)",
            rusqlite::params![key("kept").id.as_bytes(), token, until, now],
        )
        .expect("has a claim");
    connection.pragma_update(None, "user_version", 1).expect("is of version 1");
}
