//! Faults of PostgreSQL itself.

use std::time::Duration;

use rustix::process::Signal;

use crate::chaos::Run;
use crate::chaos::dice::Dice;
use crate::chaos::proxy::Mode;
use crate::chaos::site::SERVERS;

use super::{at_commit, network_of};

fn crash_signal(dice: &mut Dice) -> Signal {
    if dice.percent(50) { Signal::QUIT } else { Signal::KILL }
}

pub async fn crash(run: &Run, dice: &mut Dice) -> Result<(), String> {
    let primary = network_of(run)?.primary.lock().await;
    primary.crash(crash_signal(dice)).await;
    primary.start().await
}

/// Cuts one server off at its COMMIT. PostgreSQL crashes, the other server goes on, and PostgreSQL assigns the same transaction ids
/// again. Then the first server is reconnected, and finds out the outcome of its COMMIT.
pub async fn crash_after_cut(run: &Run, dice: &mut Dice) -> Result<(), String> {
    let network = network_of(run)?;
    let proxy = &network.proxies[dice.below(SERVERS)];
    let primary = network.primary.lock().await;
    proxy.set(at_commit(dice));
    proxy.has_struck(Duration::from_secs(2)).await;
    proxy.set(Mode::Down);
    primary.crash(crash_signal(dice)).await;
    primary.start().await?;
    tokio::time::sleep(dice.millis(100..1500)).await;
    proxy.set(Mode::Forward);
    Ok(())
}

pub async fn restart(run: &Run) -> Result<(), String> {
    network_of(run)?.primary.lock().await.restart().await
}

pub async fn freeze(run: &Run, dice: &mut Dice) -> Result<(), String> {
    let length = dice.millis(300..4000);
    network_of(run)?.primary.lock().await.freeze(length).await;
    Ok(())
}

pub async fn terminate(run: &Run) -> Result<(), String> {
    let all = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
               WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    network_of(run)?.primary.lock().await.sql(all).await.map(drop)
}
