//! The faults: one file for each kind. The seed chooses which fault comes next, and when.

mod clock;
mod disk;
mod network;
mod postgres;
mod promotion;
mod server;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::dice::Dice;
use super::proxy::Mode;
use super::site::SERVERS;
use super::{Run, StoreKind};

/// The pause between two faults of one sequence.
const PAUSE_MS: std::ops::Range<u64> = 300..2500;
/// A fault that lasts longer than this is a defect of the driver, or of the system under test.
const FAULT_MAX: Duration = Duration::from_secs(180);

/// The names of faults as in the report, and how often each is chosen.
type Menu = &'static [(&'static str, usize)];

/// Faults of servers. They run beside the faults of the store.
const SERVERS_MENU: Menu = &[("server killed", 6), ("server paused", 2)];
const POSTGRES_MENU: Menu = &[
    ("postgres crashed", 6),
    ("postgres crashed after a cut at COMMIT", 6),
    ("postgres restarted", 1),
    ("postgres frozen", 1),
    ("backends terminated", 2),
    ("standby promoted", 2),
    ("standby promoted behind a partition", 1),
    ("network delayed", 1),
    ("network cut", 2),
    ("network half open", 1),
    ("network cut at COMMIT", 2),
];
const SQLITE_MENU: Menu = &[("power cut", 8), ("syncs fail", 1), ("disk full", 1), ("clock stepped", 3)];
const ASYNCHRONOUS_MENU: Menu = &[("asynchronous standby promoted", 1)];

/// The faults of the store, and the faults of the servers.
fn menus(run: &Run) -> (Menu, Menu) {
    match (run.options.store, run.options.asynchronous) {
        (_, true) => (ASYNCHRONOUS_MENU, &[][..]),
        (StoreKind::Sqlite, _) => (SQLITE_MENU, SERVERS_MENU),
        (StoreKind::Postgres, _) => (POSTGRES_MENU, SERVERS_MENU),
    }
}

/// Refuses unknown names: a fault with a wrong name would never be made.
pub fn check_names(run: &Run) -> Result<(), String> {
    let (store, servers) = menus(run);
    let known: Vec<&str> = store.iter().chain(servers).map(|(name, _)| *name).collect();
    match run.options.only.iter().find(|only| !known.contains(&only.as_str())) {
        Some(unknown) => Err(format!("this store has no fault {unknown:?}. hint: one of {}", known.join(", "))),
        None => Ok(()),
    }
}

/// Makes faults until the time is up. Heals everything afterwards.
pub async fn run(run: Arc<Run>) -> Result<(), String> {
    let (store, servers) = menus(&run);
    let on_store = lane(run.clone(), store, run.dice("store faults", 0), Then::BothAreReady);
    let on_servers = lane(run.clone(), servers, run.dice("server faults", 0), Then::GoOn);
    let (store, servers) = tokio::join!(on_store, on_servers);
    if run.tally.is_violated() {
        return Ok(());
    }
    store.and(servers)?;
    for server in 0..SERVERS {
        run.site.start(server)?;
    }
    both_are_ready(&run, "the last fault").await;
    run.is_calm.store(true, Ordering::SeqCst);
    Ok(())
}

/// What a sequence of faults waits for after each fault.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    GoOn,
    /// Until both servers are ready. So a server that never recovers is found, and there is load at the next fault.
    BothAreReady,
}

/// Waits until both servers are ready. A server that stays away is a violation.
async fn both_are_ready(run: &Run, fault: &str) {
    let healed = Instant::now();
    for server in 0..SERVERS {
        if let Err(why) = run.site.is_ready(server).await {
            run.tally.fail(format!("after {fault}: {why}"));
        }
    }
    run.tally.recovered(healed.elapsed());
}

async fn lane(run: Arc<Run>, menu: Menu, mut dice: Dice, then: Then) -> Result<(), String> {
    let is_wanted = |name: &str| run.options.only.is_empty() || run.options.only.iter().any(|only| only == name);
    let menu: Vec<_> = menu.iter().filter(|(name, _)| is_wanted(name)).collect();
    let choices: Vec<&'static str> = menu.iter().flat_map(|(name, often)| std::iter::repeat_n(*name, *often)).collect();
    while !choices.is_empty() {
        tokio::time::sleep(dice.millis(PAUSE_MS)).await;
        if run.time_is_up() {
            break;
        }
        let name = *dice.pick(&choices);
        let made = tokio::time::timeout(FAULT_MAX, make(&run, name, &mut dice)).await;
        made.map_err(|_| format!("{name}: it takes too long"))?.map_err(|error| format!("{name}: {error}"))?;
        run.tally.fault(name);
        if then == Then::BothAreReady {
            both_are_ready(&run, name).await;
        }
    }
    Ok(())
}

async fn make(run: &Run, name: &'static str, dice: &mut Dice) -> Result<(), String> {
    match name {
        "server killed" => server::kill(run, dice).await,
        "server paused" => server::pause(run, dice).await,
        "power cut" => disk::cut_power(run, dice).await,
        "syncs fail" => disk::fail_syncs(run, dice).await,
        "disk full" => disk::fill(run, dice).await,
        "clock stepped" => clock::step(run, dice).await,
        "postgres crashed" => postgres::crash(run, dice).await,
        "postgres crashed after a cut at COMMIT" => postgres::crash_after_cut(run, dice).await,
        "postgres restarted" => postgres::restart(run).await,
        "postgres frozen" => postgres::freeze(run, dice).await,
        "backends terminated" => postgres::terminate(run).await,
        "standby promoted" => promotion::synchronous(run, dice, promotion::Primary::Crashes).await,
        "standby promoted behind a partition" => promotion::synchronous(run, dice, promotion::Primary::IsCutOff).await,
        "asynchronous standby promoted" => promotion::asynchronous(run, dice).await,
        "network delayed" => network::delay(run, dice).await,
        "network cut" => network::cut(run, dice).await,
        "network half open" => network::half_open(run, dice).await,
        "network cut at COMMIT" => network::cut_at_commit(run, dice).await,
        other => Err(format!("there is no fault {other:?}")),
    }
}

fn network_of(run: &Run) -> Result<&super::site::Network, String> {
    run.site.network.as_ref().ok_or_else(|| "this store has no network".into())
}

fn disk_of(run: &Run) -> Result<&super::site::Disk, String> {
    run.site.disk.as_ref().ok_or_else(|| "this store has no disk of ours".into())
}

/// How to cut a connection at its COMMIT.
fn at_commit(dice: &mut Dice) -> Mode {
    if dice.percent(70) { Mode::CutBeforeCommit } else { Mode::CutAfterCommit }
}
