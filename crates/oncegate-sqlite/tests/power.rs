//! Power cuts and failing disks, on a real process: no acknowledged claim is lost.
//!
//! The test program runs itself as the process whose power is cut. A preloaded shim drops unsynced writes (see
//! `oncegate_lab::power`).

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command as Process, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use oncegate_core::{Answer, ClaimKey, Command, GuardName, Lost, Terms, WorkspaceName};
use oncegate_lab::power::{Cut, Shim, errno};
use oncegate_sqlite::{Options, SqliteStore};
use oncegate_store::{Op, Store};

const FILE: &str = "ONCEGATE_TEST_FILE";
const ROUND: &str = "ONCEGATE_TEST_ROUND";
const UNSYNCED: &str = "ONCEGATE_TEST_UNSYNCED";
/// The number of power cuts; `make power` sets it.
const CUTS: &str = "ONCEGATE_TEST_CUTS";
const SEED: &str = "ONCEGATE_TEST_SEED";
const CALLERS: usize = 8;
/// How many of the newest acknowledged claims are looked up after each cut. After every `ALL_EVERY` cuts, all of them are.
const NEWEST: usize = 1_000;
const ALL_EVERY: u64 = 100;
const PATIENCE: Duration = Duration::from_secs(30);

fn claim(part: &str) -> Op {
    let guard = GuardName::new("g").expect("a good name");
    let terms = Terms {
        attributes: Some(format!("\"{}\"", "x".repeat(300))),
        ..Terms::new(Duration::from_secs(86_400), Duration::from_secs(3_600), Lost::TakeOver)
    };
    let key = ClaimKey::of(&WorkspaceName::default_workspace(), &guard, &[Some(part)]);
    Op { key, command: Command::Claim(terms) }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// The process whose power is cut. It prints each acknowledged claim, and the state of the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the process whose power is cut"]
async fn claims_until_its_end() {
    let Some(path) = std::env::var_os(FILE) else { return };
    let options = Options { syncs: std::env::var_os(UNSYNCED).is_none(), ..Options::default() };
    let store = Arc::new(SqliteStore::open(PathBuf::from(path), options).expect("opens"));
    let round = number(ROUND).expect("it is told");
    let callers = (0..CALLERS).map(|caller| {
        let store = store.clone();
        tokio::spawn(async move {
            for turn in 0.. {
                let part = format!("{round}.{caller}.{turn}");
                match store.commit(claim(&part).into()).await.map(|committed| committed.only()) {
                    Ok(Answer::Won(_)) => say(&format!("acknowledged {part}")),
                    Ok(other) => panic!("{other:?}"),
                    Err(error) => {
                        say(&format!("refused {error}"));
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
                if caller == 0 && turn % 8 == 0 {
                    match store.report().await {
                        Ok(_) => say("ready"),
                        Err(error) => say(&format!("unready {error}")),
                    }
                }
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.expect("goes on until it is killed");
    }
}

/// Prints a line in one write, so that a reader sees the whole line or none of it.
fn say(line: &str) {
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).expect("the test reads");
}

struct World {
    place: tempfile::TempDir,
    power: Shim,
    acknowledged: Vec<String>,
    rounds: u64,
}

/// A running child process, and the lines that it prints.
struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
    acknowledged: Arc<Mutex<Vec<String>>>,
}

impl World {
    fn new() -> World {
        let place = tempfile::tempdir().expect("a temporary folder");
        let power = Shim::new(place.path().join("data"), place.path().join("power")).expect("cc builds the shim");
        World { place, power, acknowledged: vec![], rounds: 0 }
    }

    fn path(&self) -> PathBuf {
        self.place.path().join("data/x.db")
    }

    fn start(&mut self, syncs: bool) -> Running {
        self.rounds += 1;
        let mut command = Process::new(std::env::current_exe().expect("this program has a path"));
        command.args(["--exact", "claims_until_its_end", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(FILE, self.path()).env(ROUND, self.rounds.to_string());
        if !syncs {
            command.env(UNSYNCED, "1");
        }
        self.power.apply_to(&mut command);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = mpsc::channel();
        let acknowledged: Arc<Mutex<Vec<String>>> = Arc::default();
        let heard = acknowledged.clone();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if let Some(part) = line.strip_prefix("acknowledged ") {
                    heard.lock().expect("no panic").push(part.to_owned());
                }
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Running { child, lines, acknowledged }
    }

    /// Cuts the power: kills the process. The seed decides which unsynced writes survive.
    fn cut(&mut self, mut running: Running, seed: u64) -> Cut {
        running.child.kill().expect("it is ours");
        running.child.wait().expect("it is ours");
        while running.lines.recv_timeout(PATIENCE).is_ok() {}
        self.acknowledged.extend(running.acknowledged.lock().expect("no panic").drain(..));
        self.power.cut(seed).expect("cuts the power")
    }

    /// The acknowledged claims that are missing; all of them if the file does not open.
    async fn lost(&self) -> Vec<String> {
        self.lost_of_last(self.acknowledged.len()).await
    }

    /// The same for the last `count` acknowledged claims.
    async fn lost_of_last(&self, count: usize) -> Vec<String> {
        let looked_for = &self.acknowledged[self.acknowledged.len().saturating_sub(count)..];
        let Ok(store) = SqliteStore::open(self.path(), Options::default()) else {
            return looked_for.to_vec();
        };
        // Once the store is ready, its index has each claim.
        if store.report().await.is_err() {
            return looked_for.to_vec();
        }
        let mut lost = vec![];
        for part in looked_for {
            let found = store.read(&claim(part).key).await;
            if !found.is_ok_and(|found| found.value.is_some()) {
                lost.push(part.clone());
            }
        }
        store.close().await;
        lost
    }
}

impl Running {
    fn wait_for(&self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + PATIENCE;
        let mut last = String::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line = line.unwrap_or_else(|_| panic!("waited in vain for {what}; the last it said was {last}"));
            if is_it(&line) {
                return line;
            }
            last = line;
        }
    }

    fn wait_for_work(&self) {
        for _ in 0..20 {
            self.wait_for("an acknowledgement", |line| line.starts_with("acknowledged"));
        }
    }
}

/// A different moment each time, from at once to 50 ms.
fn pause(seed: u64) -> Duration {
    Duration::from_micros(seed.wrapping_mul(7_919) % 50_000)
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_each_power_cut() {
    let (cuts, first_seed) = (number(CUTS).unwrap_or(30), number(SEED).unwrap_or(1));
    let (started, mut world) = (Instant::now(), World::new());
    let mut total = Cut::default();
    for seed in first_seed..first_seed + cuts {
        let running = world.start(true);
        running.wait_for_work();
        std::thread::sleep(pause(seed));
        let cut = world.cut(running, seed);
        (total.unsynced, total.undone, total.torn) =
            (total.unsynced + cut.unsynced, total.undone + cut.undone, total.torn + cut.torn);
        // The newest claims are the most likely to be lost. Now and then all are looked up.
        let looked_for = if seed % ALL_EVERY == 0 { usize::MAX } else { NEWEST };
        let lost = world.lost_of_last(looked_for).await;
        assert!(lost.is_empty(), "seed {seed}: {} were acknowledged and are lost, {:?} first", lost.len(), lost[0]);
    }
    let lost = world.lost().await;
    assert!(lost.is_empty(), "{} were acknowledged and are lost", lost.len());
    println!(
        "{cuts} power cuts in {:?} (seeds from {first_seed}): {} syncs; {} changes were not synced, {} of them undone, {} of these torn; all of {} acknowledged claims are there",
        started.elapsed(),
        world.power.syncs().expect("is counted"),
        total.unsynced,
        total.undone,
        total.torn,
        world.acknowledged.len()
    );
}

/// The negative control: with `synchronous=OFF` the same cuts lose acknowledged claims.
#[tokio::test]
async fn without_syncs_power_cuts_lose_what_was_acknowledged() {
    for seed in 1..=20 {
        let mut world = World::new();
        let running = world.start(false);
        running.wait_for_work();
        std::thread::sleep(pause(seed));
        world.cut(running, seed);
        let lost = world.lost().await;
        if !lost.is_empty() {
            println!("seed {seed}: {} of {} are lost", lost.len(), world.acknowledged.len());
            return;
        }
    }
    panic!("20 power cuts without syncs lost nothing: this test sees nothing");
}

/// While the disk fails, writes are refused with the reason. Afterwards the store is ready again. No claim that was acknowledged
/// before, between or after the faults is lost.
#[tokio::test]
async fn a_disk_that_fails_is_told_and_loses_nothing_that_was_acknowledged() {
    type Fail = fn(&Shim, Option<i32>) -> std::io::Result<()>;
    let faults: [(Fail, i32, &str); 4] = [
        (Shim::fail_writes, errno::ENOSPC, "the disk is full"),
        (Shim::fail_writes, errno::EROFS, "the file system is read-only"),
        (Shim::fail_writes, errno::EIO, ""),
        (Shim::fail_syncs, errno::EIO, ""),
    ];
    for seed in 1..=3 {
        for (fail, error, cause) in faults {
            let mut world = World::new();
            let running = world.start(true);
            running.wait_for_work();
            fail(&world.power, Some(error)).expect("sets");
            running.wait_for("a refusal with its cause", |line| line.starts_with("refused") && line.contains(cause));
            running.wait_for("not ready, with the cause", |line| line.starts_with("unready") && line.contains(cause));
            fail(&world.power, None).expect("sets");
            running.wait_for("it goes on", |line| line.starts_with("acknowledged"));
            running.wait_for("ready again", |line| line == "ready");
            running.wait_for_work();
            world.cut(running, seed);
            let lost = world.lost().await;
            assert!(lost.is_empty(), "error {error}, seed {seed}: {} of {} lost", lost.len(), world.acknowledged.len());
        }
    }
}

/// A process dies right after a failed sync, before it has started the log over. The next process knows nothing of that sync.
#[tokio::test]
async fn a_process_that_dies_after_a_failed_sync_leaves_no_log_that_loses_later_claims() {
    for seed in 1..=10 {
        let mut world = World::new();
        let mut running = world.start(true);
        running.wait_for_work();
        world.power.fail_syncs(Some(errno::EIO)).expect("sets");
        running.wait_for("a refusal", |line| line.starts_with("refused"));
        running.child.kill().expect("it is ours");
        running.child.wait().expect("it is ours");
        while running.lines.recv_timeout(PATIENCE).is_ok() {}
        world.acknowledged.extend(running.acknowledged.lock().expect("no panic").drain(..));
        world.power.fail_syncs(None).expect("sets");

        let running = world.start(true);
        running.wait_for_work();
        world.cut(running, seed);
        let lost = world.lost().await;
        assert!(lost.is_empty(), "seed {seed}: {} of {} lost", lost.len(), world.acknowledged.len());
    }
}

const RACES: &str = "ONCEGATE_TEST_RACES";
const ROUNDS: usize = 200;

/// One of two processes that race for the same keys. The test sends it a line to start each key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "one of the two processes of the test below"]
async fn races_for_each_key() {
    let (Some(path), Some(_)) = (std::env::var_os(FILE), std::env::var_os(RACES)) else { return };
    let store = Arc::new(SqliteStore::open(PathBuf::from(path), Options::default()).expect("opens"));
    say("here");
    for round in std::io::stdin().lines() {
        let round = round.expect("text");
        let racers = (0..CALLERS).map(|_| {
            let (store, part) = (store.clone(), format!("round {round}"));
            tokio::spawn(async move { store.commit(claim(&part).into()).await })
        });
        let mut wins = 0;
        for racer in racers.collect::<Vec<_>>() {
            let answer = racer.await.expect("does not panic").expect("waits for the other's lock").only();
            wins += usize::from(matches!(answer, Answer::Won(_)));
        }
        say(&format!("won {wins}"));
    }
    store.close().await;
}

#[test]
fn two_processes_on_one_file_have_one_winner_each_time() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x.db");
    let mut racers = [0, 1].map(|_| {
        let mut command = Process::new(std::env::current_exe().expect("this program has a path"));
        command.args(["--exact", "races_for_each_key", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(FILE, &path).env(RACES, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("starts");
        let mut out = BufReader::new(child.stdout.take().expect("piped")).lines();
        assert!(out.any(|line| line.expect("text").ends_with("here")), "it has opened the file");
        (child, out)
    });
    let mut wins = [0; 2];
    for round in 0..ROUNDS {
        // In every other round the second process gets its line first.
        for racer in [round % 2, (round + 1) % 2] {
            let told = racers[racer].0.stdin.as_mut().expect("piped");
            told.write_all(format!("{round}\n").as_bytes()).expect("it listens");
        }
        let won = racers.each_mut().map(|(_, out)| {
            let line = out.next().expect("it answers").expect("text");
            line.strip_prefix("won ").expect("it says how often").parse::<usize>().expect("a number")
        });
        assert_eq!(won[0] + won[1], 1, "round {round}: {won:?}");
        wins = [wins[0] + won[0], wins[1] + won[1]];
    }
    for (mut child, _) in racers {
        drop(child.stdin.take());
        assert!(child.wait().expect("it is ours").success());
    }
    println!("of {ROUNDS} keys the one process won {}, the other {}", wins[0], wins[1]);
}
