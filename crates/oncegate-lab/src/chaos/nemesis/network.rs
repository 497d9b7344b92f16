//! Faults of the network between one server and PostgreSQL.

use std::time::Duration;

use crate::chaos::Run;
use crate::chaos::dice::Dice;
use crate::chaos::proxy::Mode;
use crate::chaos::site::SERVERS;

use super::{at_commit, network_of};

/// How long to wait for a COMMIT, under load.
const COMMIT_MAX: Duration = Duration::from_secs(2);

async fn for_a_while(run: &Run, mode: Mode, length: Duration, server: usize) -> Result<(), String> {
    let proxy = &network_of(run)?.proxies[server];
    proxy.set(mode);
    tokio::time::sleep(length).await;
    proxy.set(Mode::Forward);
    Ok(())
}

pub async fn delay(run: &Run, dice: &mut Dice) -> Result<(), String> {
    let (by, length) = (dice.millis(20..500), dice.millis(500..3000));
    for_a_while(run, Mode::Delay(by), length, dice.below(SERVERS)).await
}

pub async fn cut(run: &Run, dice: &mut Dice) -> Result<(), String> {
    let length = dice.millis(50..1500);
    for_a_while(run, Mode::Down, length, dice.below(SERVERS)).await
}

pub async fn half_open(run: &Run, dice: &mut Dice) -> Result<(), String> {
    let server = dice.below(SERVERS);
    let length = dice.millis(500..4000);
    for_a_while(run, Mode::Swallow, length, server).await?;
    // Data of the open connections is missing, so they are cut.
    for_a_while(run, Mode::Down, Duration::from_millis(20), server).await
}

pub async fn cut_at_commit(run: &Run, dice: &mut Dice) -> Result<(), String> {
    let proxy = &network_of(run)?.proxies[dice.below(SERVERS)];
    proxy.set(at_commit(dice));
    proxy.has_struck(COMMIT_MAX).await;
    tokio::time::sleep(dice.millis(0..500)).await;
    proxy.set(Mode::Forward);
    Ok(())
}
