//! A standby takes over, the servers' connections lead to it, and the old primary never returns.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::chaos::Run;
use crate::chaos::dice::Dice;
use crate::chaos::postgres::Cluster;
use crate::chaos::proxy::{Mode, Proxy};
use crate::chaos::site::{Network, SERVERS};

use super::{at_commit, network_of};

/// Within this time the servers report that commits are lost.
const TOLD_MAX: Duration = Duration::from_secs(15);
/// The event in the servers' logs.
const LOST_EVENT: &str = "store.commits_lost";

/// What happens to the primary before its standby is promoted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Primary {
    Crashes,
    /// The primary goes on, but neither its standby nor the servers reach it.
    IsCutOff,
}

async fn new_standby(run: &Run, primary: &Cluster, link: &Proxy) -> Result<Cluster, String> {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    let name = format!("postgres-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    primary.standby(&run.site.folder().join(name), link.address).await
}

/// No acknowledged commit is lost, because the primary waited for this standby with each commit.
pub async fn synchronous(run: &Run, dice: &mut Dice, fate: Primary) -> Result<(), String> {
    let network = network_of(run)?;
    let mut primary = network.primary.lock().await;
    let link = Proxy::start(primary.address, false).await.map_err(|error| error.to_string())?;
    let standby = new_standby(run, &primary, &link).await?;
    primary.wait_for_standby().await?;
    tokio::time::sleep(dice.millis(500..2000)).await;
    let proxy = &network.proxies[dice.below(SERVERS)];
    if dice.percent(60) {
        proxy.set(at_commit(dice));
        proxy.has_struck(Duration::from_secs(1)).await;
    }
    match fate {
        Primary::Crashes => primary.crash(Signal::KILL).await,
        Primary::IsCutOff => {
            link.set(Mode::Down);
            tokio::time::sleep(dice.millis(100..800)).await;
            network.proxies.iter().for_each(|proxy| proxy.set(Mode::Down));
        }
    }
    take_over(network, &mut primary, standby).await
}

async fn take_over(network: &Network, primary: &mut Cluster, standby: Cluster) -> Result<(), String> {
    standby.promote().await?;
    for proxy in &network.proxies {
        proxy.lead_to(standby.address);
        proxy.set(Mode::Forward);
    }
    // Dropping the old primary ends its processes.
    *primary = standby;
    Ok(())
}

/// Commits are lost, which cannot be avoided. The servers must report it.
pub async fn asynchronous(run: &Run, dice: &mut Dice) -> Result<(), String> {
    let network = network_of(run)?;
    let mut primary = network.primary.lock().await;
    let link = Proxy::start(primary.address, false).await.map_err(|error| error.to_string())?;
    let standby = new_standby(run, &primary, &link).await?;
    tokio::time::sleep(dice.millis(300..1000)).await;
    // The standby falls behind: commits acknowledged from here on are lost.
    link.set(Mode::Down);
    tokio::time::sleep(dice.millis(500..1500)).await;
    let told_before: Vec<usize> = (0..SERVERS).map(|server| run.site.logged(server, LOST_EVENT)).collect();
    primary.crash(Signal::KILL).await;
    take_over(network, &mut primary, standby).await?;
    let deadline = Instant::now() + TOLD_MAX;
    let is_told = |server: usize| run.site.logged(server, LOST_EVENT) > told_before[server];
    while !(0..SERVERS).all(is_told) {
        if Instant::now() > deadline {
            let silent: Vec<_> = (0..SERVERS).filter(|server| !is_told(*server)).collect();
            run.tally.fail(format!(
                "an asynchronous standby was promoted, and servers {silent:?} did not log {LOST_EVENT} within {TOLD_MAX:?}"
            ));
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}
