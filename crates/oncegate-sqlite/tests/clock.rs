//! Leases and windows follow elapsed time when the wall clock steps, and when the machine sleeps or reboots.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_core::{Answer, ClaimKey, Command, GuardName, Lost, Terms, Time, WorkspaceName};
use oncegate_sqlite::{Options, SqliteStore};
use oncegate_store::conformance::START;
use oncegate_store::{Clock, MachineTime, Op, Store, StoreError, Swept};

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;

/// A machine's clocks, moved by the test.
struct Machine(Mutex<MachineTime>);

impl Machine {
    fn new() -> Arc<Machine> {
        Arc::new(Machine(Mutex::new(MachineTime { boot: 1, since_boot_us: 77_000_000, wall: START })))
    }

    fn change(&self, change: impl FnOnce(&mut MachineTime)) {
        change(&mut self.0.lock().expect("no panic"));
    }

    fn pass(&self, seconds: i64) {
        self.change(|clocks| clocks.since_boot_us += seconds * 1_000_000);
        self.step(seconds);
    }

    fn step(&self, seconds: i64) {
        self.change(|clocks| clocks.wall = Time::from_micros(clocks.wall.micros() + seconds * 1_000_000));
    }

    fn reboot(&self) {
        self.change(|clocks| (clocks.boot, clocks.since_boot_us) = (clocks.boot + 1, 0));
    }
}

impl Clock for Machine {
    fn now(&self) -> Time {
        self.0.lock().expect("no panic").wall
    }

    fn machine(&self) -> Option<MachineTime> {
        Some(*self.0.lock().expect("no panic"))
    }
}

fn open(path: &Path, machine: &Arc<Machine>) -> SqliteStore {
    SqliteStore::open(path, Options { clock: machine.clone(), ..Options::default() }).expect("opens")
}

/// A claim with a lease of a minute and a window of a day.
fn claim(part: &str) -> Op {
    let guard = GuardName::new("g").expect("a good name");
    let terms = Terms::new(Duration::from_secs(24 * 3_600), Duration::from_secs(60), Lost::TakeOver);
    let key = ClaimKey::of(&WorkspaceName::default_workspace(), &guard, &[Some(part)]);
    Op { key, command: Command::Claim(terms) }
}

async fn wins(store: &SqliteStore, part: &str) -> bool {
    matches!(store.commit(claim(part).into()).await.expect("decides").only(), Answer::Won(_))
}

#[tokio::test]
async fn no_step_takes_a_live_lease_or_keeps_a_dead_one() {
    for step in [HOUR, -HOUR, 2 * DAY, -2 * DAY] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let machine = Machine::new();
        let store = open(&folder.path().join("x.db"), &machine);
        assert!(wins(&store, "k").await);
        machine.step(step);
        machine.pass(59);
        assert!(!wins(&store, "k").await, "{step}: its lease has a second left");
        machine.pass(1);
        assert!(wins(&store, "k").await, "{step}: its lease is over");
    }
}

#[tokio::test]
async fn processes_that_start_before_and_after_a_step_agree() {
    for step in [HOUR, -HOUR] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("x.db");
        let machine = Machine::new();
        let before = open(&path, &machine);
        assert!(wins(&before, "k").await);
        machine.step(step);
        let after = open(&path, &machine);
        machine.pass(59);
        assert!(!wins(&after, "k").await && !wins(&before, "k").await, "{step}");
        machine.pass(1);
        assert!(wins(&after, "k").await, "{step}");
        assert!(!wins(&before, "k").await, "{step}");
        let times = (before.report().await.expect("reports").now, after.report().await.expect("reports").now);
        assert_eq!(times.0, times.1);
    }
}

#[tokio::test]
async fn nothing_is_swept_until_a_step_is_confirmed_and_the_operator_hears_of_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let machine = Machine::new();
    let store = open(&folder.path().join("x.db"), &machine);
    assert!(wins(&store, "k").await);
    assert!(store.report().await.expect("reports").warnings.is_empty());
    machine.step(2 * DAY);
    assert_eq!(store.sweep(10).await.expect("sweeps"), Swept::default());
    let warnings = store.report().await.expect("reports").warnings;
    assert!(warnings.len() == 1 && warnings[0].contains("stepped by 172800 s"), "{warnings:?}");
    // The window ends by elapsed time, and nothing is swept until the step is confirmed.
    machine.pass(599);
    assert_eq!(store.sweep(10).await.expect("sweeps"), Swept::default());
    machine.step(-2 * DAY);
    assert_eq!(store.sweep(10).await.expect("sweeps"), Swept::default(), "the window is not over");
    assert!(store.report().await.expect("reports").warnings.is_empty());
    machine.pass(DAY - 600);
    assert_eq!(store.sweep(10).await.expect("sweeps").claims, 0);
    machine.pass(1);
    assert_eq!(store.sweep(10).await.expect("sweeps").claims, 1);
}

#[tokio::test]
async fn a_confirmed_step_is_followed_without_a_jump() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let machine = Machine::new();
    let store = open(&folder.path().join("x.db"), &machine);
    assert!(wins(&store, "before").await);
    machine.step(HOUR);
    store.sweep(10).await.expect("sees the step");
    machine.pass(600);
    store.sweep(10).await.expect("confirms it");
    assert_eq!(store.report().await.expect("reports").now, START + Duration::from_secs(600));
    assert!(wins(&store, "live").await);
    machine.pass(54);
    assert!(!wins(&store, "live").await, "a lease is not cut by more than a tenth");
    machine.pass(10 * HOUR);
    let report = store.report().await.expect("reports");
    assert_eq!((report.now, report.warnings.len()), (machine.now(), 0), "scheduled work goes by the new clock");
}

#[tokio::test]
async fn after_a_reboot_time_goes_on_from_the_largest_time_in_the_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x.db");
    let machine = Machine::new();
    let store = open(&path, &machine);
    machine.pass(100);
    assert!(wins(&store, "k").await);
    store.close().await;
    machine.reboot();
    machine.step(-HOUR);
    let store = open(&path, &machine);
    assert!(!wins(&store, "k").await);
    machine.pass(60);
    assert!(wins(&store, "k").await, "the wall clock's hour is not waited for");
    assert_eq!(store.report().await.expect("reports").warnings.len(), 1);
}

/// The test file is as a newer build leaves it: its last step says which builds still run on the file.
#[tokio::test]
async fn a_newer_schema_is_accepted_if_it_says_that_this_build_runs_on_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x.db");
    let store = SqliteStore::open(&path, Options::default()).expect("opens");
    assert!(wins(&store, "k").await);
    store.close().await;
    let build = i64::try_from(oncegate_sqlite::migrations(0).len()).expect("few");
    let next = |version: i64, oldest: i64| {
        let file = rusqlite::Connection::open(&path).expect("opens");
        file.execute("INSERT INTO schema_steps VALUES (?1, 'later', ?2)", [version, oldest]).expect("writes");
        file.pragma_update(None, "user_version", version).expect("writes");
    };
    next(build + 1, build);
    let store = SqliteStore::open(&path, Options::default()).expect("it may run on this");
    assert!(!wins(&store, "k").await && wins(&store, "new").await);
    let warnings = store.report().await.expect("reports").warnings;
    assert!(warnings.len() == 1 && warnings[0].contains("newer than this build"), "{warnings:?}");
    store.close().await;
    next(build + 2, build + 1);
    match SqliteStore::open(&path, Options::default()) {
        Err(StoreError::Refused(why)) => assert!(why.contains("run the newer oncegate"), "{why}"),
        other => panic!("{:?}", other.map(drop)),
    }
}

#[test]
fn a_newer_schema_that_says_nothing_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x.db");
    let file = rusqlite::Connection::open(&path).expect("opens");
    file.pragma_update(None, "user_version", 99).expect("writes");
    drop(file);
    assert!(matches!(SqliteStore::open(&path, Options::default()), Err(StoreError::Refused(_))));
}
