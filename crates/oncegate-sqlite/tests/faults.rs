//! Faults of the disk and of other processes that use the file.

use std::io::Write;
use std::path::Path;
use std::process::Command as Process;
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::{Answer, ClaimKey, Command, GuardName, Lost, Terms, Time, WorkspaceName};
use oncegate_sqlite::{Options, SqliteStore};
use oncegate_store::conformance::START;
use oncegate_store::{Commit, Committed, ManualClock, Op, Store, StoreError};

fn open(path: &Path) -> Arc<SqliteStore> {
    Arc::new(SqliteStore::open(path, Options::default()).expect("opens"))
}

fn key(part: &str) -> ClaimKey {
    ClaimKey::of(&WorkspaceName::default_workspace(), &GuardName::new("g").expect("a good name"), &[Some(part)])
}

fn claim(part: &str) -> Op {
    let attributes = Some(format!("{{\"padding\":\"{}\"}}", "x".repeat(200)));
    let terms = Terms { attributes, ..Terms::new(Duration::from_secs(900), Duration::from_secs(300), Lost::TakeOver) };
    Op { key: key(part), command: Command::Claim(terms) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_stores_of_one_process_on_one_file_have_one_winner_each_time() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let stores = [open(&folder.path().join("x.db")), open(&folder.path().join("x.db"))];
    for round in 0..100 {
        let racers = (0..16).map(|racer| {
            let store = stores[racer % 2].clone();
            tokio::spawn(async move { store.commit(claim(&format!("round {round}")).into()).await })
        });
        let mut wins = 0;
        for racer in racers.collect::<Vec<_>>() {
            let answer = racer.await.expect("does not panic").expect("waits for the other's lock").only();
            wins += usize::from(matches!(answer, Answer::Won(_)));
        }
        assert_eq!(wins, 1, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_does_not_wait_for_whoever_writes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x.db");
    let store = open(&path);
    store.commit(claim("met").into()).await.expect("writes");
    let other = rusqlite::Connection::open(&path).expect("opens");
    other.execute_batch("BEGIN IMMEDIATE").expect("takes the lock");
    let writing = store.clone();
    let mut new = tokio::spawn(async move { writing.commit(claim("new").into()).await });
    for _ in 0..100 {
        let met = store.commit(claim("met").into()).await.expect("answers").only();
        assert!(matches!(met, Answer::InFlight(_)), "{met:?}");
    }
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut new).await.is_err(), "a new one has to");
    other.execute_batch("COMMIT").expect("lets go");
    assert!(matches!(new.await.expect("does not panic").expect("writes").only(), Answer::Won(_)));
}

/// Only the writer can decide whether a lost owner's claim is held, because it may be writing a renewal that came in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_lease_is_over_is_left_to_the_writer() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x.db");
    let clock = Arc::new(ManualClock::starting_at(START));
    let options = Options { clock: clock.clone(), ..Options::default() };
    let store = Arc::new(SqliteStore::open(&path, options).expect("opens"));
    let hold = || {
        let Op { key, command: Command::Claim(terms) } = claim("k") else { unreachable!() };
        Op { key, command: Command::Claim(Terms { lost: Lost::Hold, ..terms }) }
    };
    store.commit(hold().into()).await.expect("writes");
    clock.advance(Duration::from_secs(300));
    let other = rusqlite::Connection::open(&path).expect("opens");
    other.execute_batch("BEGIN IMMEDIATE").expect("takes the lock");
    let asking = store.clone();
    let mut asked = tokio::spawn(async move { asking.commit(hold().into()).await });
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut asked).await.is_err(), "it waits for the writer");
    other.execute_batch("COMMIT").expect("lets go");
    assert!(matches!(asked.await.expect("does not panic").expect("answers").only(), Answer::Held(_)));
}

#[tokio::test]
async fn a_closed_store_answers_nobody() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = open(&folder.path().join("x.db"));
    store.commit(claim("k").into()).await.expect("writes");
    store.close().await;
    let answers = [store.commit(claim("k").into()).await.map(drop), store.read(&key("k")).await.map(drop)];
    for answer in answers {
        assert!(answer.expect_err("it is closed").to_string().contains("the store is closed"));
    }
}

/// The clock steps back, and the sweep that removes a claim shares its transaction with the next claim of the same key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_grows_though_its_record_was_swept_in_the_same_transaction() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x.db");
    let clock = Arc::new(ManualClock::starting_at(START));
    let options = Options { clock: clock.clone(), ..Options::default() };
    let store = Arc::new(SqliteStore::open(&path, options).expect("opens"));
    let won = |answer: Answer| match answer {
        Answer::Won(claim) => claim.token,
        other => panic!("{other:?}"),
    };
    let first = won(store.commit(claim("k").into()).await.expect("writes").only());
    let release = Op { key: key("k"), command: Command::Release { token: first } };
    store.commit(release.into()).await.expect("writes");
    clock.set(Time::from_micros(START.micros() - 3_600_000_000));
    // While another connection holds the file, the first job waits in its own transaction, and the next two gather behind it.
    let other = rusqlite::Connection::open(&path).expect("opens");
    other.execute_batch("BEGIN IMMEDIATE").expect("takes the lock");
    let (held, sweeping, claiming) = (store.clone(), store.clone(), store.clone());
    let held = tokio::spawn(async move { held.commit(claim("other").into()).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let sweeping = tokio::spawn(async move { sweeping.sweep(10).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let claiming = tokio::spawn(async move { claiming.commit(claim("k").into()).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    other.execute_batch("COMMIT").expect("lets go");
    held.await.expect("does not panic").expect("writes");
    assert_eq!(sweeping.await.expect("does not panic").expect("sweeps").claims, 1);
    let second = won(claiming.await.expect("does not panic").expect("writes").only());
    assert!(second > first, "{second} after {first}");
}

/// The log must start over while the writer is busy. Otherwise it would grow for as long as the load lasts.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_log_stays_bounded_under_a_load_that_never_pauses() {
    const CALLERS: usize = 128;
    const CLAIMS: usize = 400;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = open(&folder.path().join("x.db"));
    let callers = (0..CALLERS).map(|caller| {
        let store = store.clone();
        tokio::spawn(async move {
            for turn in 0..CLAIMS {
                store.commit(claim(&format!("{caller}.{turn}")).into()).await.expect("writes");
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.expect("does not panic");
    }
    let log = folder.path().join("x.db-wal").metadata().expect("the log is there").len();
    let file = folder.path().join("x.db").metadata().expect("the file is there").len();
    println!("after {} claims the log has {} MiB and the file {} MiB", CALLERS * CLAIMS, log >> 20, file >> 20);
    assert!(log < 96 << 20, "the log has {} MiB", log >> 20);
}

const FILE: &str = "ONCEGATE_TEST_FILE";

/// The test program runs itself under a limit on the file's size. At the limit writes are refused and reads continue.
/// When there is room again, all acknowledged claims are still there.
#[tokio::test]
async fn a_full_disk_refuses_cleanly_and_loses_nothing_that_was_acknowledged() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x.db");
    let program = std::env::current_exe().expect("this program has a path");
    // With the signal ignored, a write over the limit is an error.
    let limited =
        format!("trap '' XFSZ; ulimit -f 4096; exec {} --exact fill_up --ignored --nocapture", program.display());
    let output = Process::new("sh").args(["-c", &limited]).env(FILE, &path).output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let acknowledged: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("acknowledged ")).collect();
    assert!(acknowledged.len() > 100, "{said}");
    let store = open(&path);
    for part in &acknowledged {
        assert!(store.read(&key(part)).await.expect("reads").value.is_some(), "{part} was acknowledged");
    }
    assert!(store.commit(claim("room again").into()).await.expect("writes").is_written());
}

/// How many times this process has the file open for reading or writing. A descriptor of the path only does not count.
fn times_open(path: &Path) -> usize {
    const O_PATH: u32 = 0o10_000_000;
    let is_open = |descriptor: &std::ffi::OsStr| {
        let info = std::fs::read_to_string(Path::new("/proc/self/fdinfo").join(descriptor)).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        Some(u32::from_str_radix(flags.trim(), 8).ok()? & O_PATH == 0)
    };
    let all = std::fs::read_dir("/proc/self/fd").expect("a process has its files there").flatten();
    let of_file = all.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|opened| opened == path));
    of_file.filter(|entry| is_open(&entry.file_name()) == Some(true)).count()
}

fn with_attributes(part: &str, bytes: usize) -> Op {
    let mut large = claim(part);
    if let Command::Claim(terms) = &mut large.command {
        terms.attributes = Some(format!("\"{}\"", "x".repeat(bytes)));
    }
    large
}

/// Run by the test above, under a limit that acts like a full disk after a few megabytes.
#[tokio::test]
#[ignore = "the other process of the test above"]
async fn fill_up() {
    let Some(path) = std::env::var_os(FILE) else { return };
    let store = open(Path::new(&path));
    let (mut acknowledged, mut refused) = (vec![], vec![]);
    for turn in 0..200_000 {
        let part = format!("claim {turn}");
        match store.commit(claim(&part).into()).await {
            Ok(_) => acknowledged.push(part),
            Err(StoreError::Refused(error)) => panic!("it is not the operation's fault: {error}"),
            Err(_) => refused.push(part),
        }
        if refused.len() == 10 {
            break;
        }
    }
    assert!(!refused.is_empty(), "the limit was reached");
    for part in &acknowledged {
        assert!(store.read(&key(part)).await.expect("reads go on").value.is_some());
        let met = store.commit(claim(part).into()).await.expect("duplicates are answered").only();
        assert!(matches!(met, Answer::InFlight(_)), "{met:?}");
    }
    // Many claims appended together: all or none are written, and here no caller may be told that its claim was written.
    let many: Vec<String> = (0..40).map(|turn| format!("one of many {turn}")).collect();
    let mut commits: Vec<Commit> = many.iter().map(|part| with_attributes(part, 256 << 10).into()).collect();
    commits.insert(20, Commit { ops: vec![claim("first of two"), claim("second of two")], changes: vec![] });
    let all = store.commit_all(commits).await;
    assert!(all.iter().all(Result::is_err), "there is no room for them: {all:?}");
    refused.extend(many);
    for part in &refused {
        let is_there = store.read(&key(part)).await.expect("reads go on").value.is_some();
        let again = store.commit(claim(part).into()).await.map(Committed::only);
        assert_eq!(matches!(again, Ok(Answer::InFlight(_))), is_there, "memory and file agree on it: {again:?}");
    }
    // The store is closed in the same group that fails: after the close the file must not be opened again.
    let large = with_attributes("too large", 3 << 20);
    let (last, ()) = tokio::join!(store.commit(large.into()), store.close());
    assert!(last.is_err(), "there is no room for it");
    for _ in 0..40 {
        assert_eq!(times_open(Path::new(&path)), 0);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut out = std::io::stdout().lock();
    acknowledged.iter().for_each(|part| writeln!(out, "acknowledged {part}").expect("somebody reads"));
}

type Move = (&'static str, fn(&Path));

/// What can happen to the file's name while a store has it open.
const MOVES: [Move; 6] = [
    ("deleted", |path| std::fs::remove_file(path).expect("deletes")),
    ("renamed", |path| std::fs::rename(path, path.with_extension("away")).expect("renames")),
    ("a copy moved over it", |path| {
        std::fs::copy(path, path.with_extension("copy")).expect("copies");
        std::fs::rename(path.with_extension("copy"), path).expect("renames");
    }),
    ("its folder renamed", |path| {
        let folder = path.parent().expect("it is in a folder");
        std::fs::rename(folder, folder.with_extension("away")).expect("renames");
    }),
    ("its log deleted", |path| std::fs::remove_file(path.with_extension("db-wal")).expect("deletes")),
    ("its log's index deleted", |path| std::fs::remove_file(path.with_extension("db-shm")).expect("deletes")),
];

#[tokio::test]
async fn nothing_is_answered_from_a_file_that_is_gone() {
    for (what, make_move) in MOVES {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("inner/x.db");
        let store = open(&path);
        store.commit(claim("before").into()).await.expect("writes");
        make_move(&path);
        let written = store.commit(claim("after").into()).await;
        assert!(matches!(written, Err(StoreError::Unknown(_) | StoreError::Unavailable(_))), "{what}: {written:?}");
        for _ in 0..3 {
            let answers = [
                store.commit(claim("before").into()).await.map(drop),
                store.commit(claim("another").into()).await.map(drop),
                store.commit_all(vec![claim("one").into()]).await.remove(0).map(drop),
                store.read(&key("before")).await.map(drop),
                store.sweep(1).await.map(drop),
                store.report().await.map(drop),
            ];
            for answer in answers {
                let error = answer.expect_err(what);
                let told = error.to_string();
                assert!(
                    matches!(error, StoreError::Unavailable(_)) && told.contains("while the store had it open"),
                    "{told}"
                );
            }
        }
        store.close().await;
    }
}

/// An idle store detects it before it answers from the cache or by a reader.
#[tokio::test]
async fn a_duplicate_is_not_answered_from_memory_once_the_file_is_gone() {
    for (what, make_move) in MOVES {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("inner/x.db");
        let store = open(&path);
        store.commit(claim("before").into()).await.expect("writes");
        assert!(store.read(&key("before")).await.expect("reads").value.is_some());
        make_move(&path);
        // The last check of the file is valid for a moment.
        tokio::time::sleep(Duration::from_millis(60)).await;
        store.commit(claim("before").into()).await.expect_err(what);
        store.read(&key("before")).await.expect_err(what);
        store.report().await.expect_err(what);
    }
}

/// A file that was moved away and put back is not trusted, because another process may have written under its name meanwhile.
#[tokio::test]
async fn a_file_that_is_put_back_is_opened_again_by_a_restart_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (path, away) = (folder.path().join("x.db"), folder.path().join("away"));
    let store = open(&path);
    store.commit(claim("before").into()).await.expect("writes");
    std::fs::rename(&path, &away).expect("renames");
    store.commit(claim("after").into()).await.expect_err("it is gone");
    std::fs::rename(&away, &path).expect("renames");
    store.commit(claim("again").into()).await.expect_err("for good");
    store.close().await;
    let store = open(&path);
    assert!(store.read(&key("before")).await.expect("reads").value.is_some(), "what was acknowledged is there");
    store.commit(claim("again").into()).await.expect("writes");
}

/// The store still has the deleted log open, and copies it into the file when it closes.
#[tokio::test]
async fn what_was_acknowledged_outlives_a_log_that_was_deleted() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x.db");
    let store = open(&path);
    store.commit(claim("before").into()).await.expect("writes");
    std::fs::remove_file(path.with_extension("db-wal")).expect("deletes");
    store.commit(claim("after").into()).await.expect_err("it is gone");
    store.close().await;
    assert!(open(&path).read(&key("before")).await.expect("reads").value.is_some());
}

#[tokio::test]
async fn a_truncated_file_is_not_answered_from() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x.db");
    {
        let store = open(&path);
        for turn in 0..200 {
            store.commit(claim(&turn.to_string()).into()).await.expect("writes");
        }
        store.close().await;
    }
    let store = open(&path);
    store.commit(claim("before").into()).await.expect("writes");
    let file = std::fs::File::options().write(true).open(&path).expect("opens");
    file.set_len(file.metadata().expect("is there").len() / 2).expect("truncates");
    for part in ["after", "again"] {
        store.commit(claim(part).into()).await.expect_err("half of the file is gone");
    }
    store.report().await.expect_err("it is not ready");
}

#[tokio::test]
async fn a_file_behind_a_link_opens_and_keeps_its_claims() {
    let folder = tempfile::tempdir().expect("a folder");
    let (real, link) = (folder.path().join("real"), folder.path().join("link.db"));
    std::fs::create_dir(&real).expect("is new");
    std::os::unix::fs::symlink(real.join("x.db"), &link).expect("is new");
    let key = oncegate_store::conformance::key("k");
    for round in 0..2 {
        let store = SqliteStore::open(&link, Options::default()).expect("opens");
        let claim = Op { key: key.clone(), command: Command::Claim(oncegate_store::conformance::terms()) };
        let answer = store.commit(claim.into()).await.expect("the file is there").only();
        assert_eq!(matches!(answer, Answer::Won(_)), round == 0, "{answer:?}");
        store.close().await;
    }
}
