//! The index of keys is in memory, and the file is not ours alone: no claim may be overlooked.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::{Answer, ClaimKey, Command, GuardName, Lost, Terms, WorkspaceName};
use oncegate_sqlite::{Options, SqliteStore, migrations};
use oncegate_store::conformance::START;
use oncegate_store::{Commit, ManualClock, Op, Store, StoreError};

const WINDOW: Duration = Duration::from_secs(900);

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
    let lease = Duration::from_secs(300);
    Terms {
        window: WINDOW,
        lease,
        lost: Lost::TakeOver,
        fingerprint: None,
        attributes: None,
        parts: None,
        outcome: None,
        replaces: None,
    }
}

fn claim(part: &str) -> Op {
    Op { key: key(part), command: Command::Claim(terms()) }
}

async fn wins(store: &SqliteStore, part: &str) -> bool {
    matches!(store.commit(claim(part).into()).await.expect("decides").only(), Answer::Won(_))
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

/// A row's number is what tells another process that the row is new to it.
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
    // Not after all of them have left, either.
    file.clock.advance(WINDOW);
    assert_eq!(theirs.sweep(100).await.expect("sweeps").claims, 1);
    theirs.close().await;
    let anew = file.open();
    assert!(wins(&anew, "newer").await);
    assert!(!wins(&ours, "newer").await);
}

/// The number of a row that was rolled back is free, and the next process may use it.
#[tokio::test]
async fn what_was_rolled_back_alone_does_not_pass_for_known() {
    let file = File::new();
    let (ours, theirs) = (file.open_with(3), file.open());
    assert!(wins(&ours, "a").await && wins(&ours, "b").await);
    let both = Commit { ops: vec![claim("x"), claim("y")], changes: vec![] };
    ours.commit(both).await.expect_err("there is room for one only");
    assert!(wins(&theirs, "k").await);
    let release = Op { key: key("a"), command: Command::Forget };
    ours.commit(release.into()).await.expect("forgets");
    assert_eq!(ours.sweep(10).await.expect("sweeps").claims, 1);
    assert!(is_there(&ours, "k").await);
    assert!(!wins(&ours, "k").await);
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

/// Whoever removes rows, and however: their tokens and their numbers stay used.
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
