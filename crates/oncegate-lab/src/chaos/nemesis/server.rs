//! Servers that are killed or paused.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::chaos::Run;
use crate::chaos::dice::Dice;
use crate::chaos::site::SERVERS;

/// Kills a server with SIGKILL, and restarts it soon after.
pub async fn kill(run: &Run, dice: &mut Dice) -> Result<(), String> {
    let server = dice.below(SERVERS);
    run.site.kill(server);
    tokio::time::sleep(dice.millis(0..600)).await;
    run.site.start(server)
}

/// Pauses a server with SIGSTOP past its leases, then resumes it with SIGCONT. What it writes then is too late.
pub async fn pause(run: &Run, dice: &mut Dice) -> Result<(), String> {
    let server = dice.below(SERVERS);
    run.site.signal(server, Signal::STOP);
    tokio::time::sleep(Duration::from_secs(1) + dice.millis(0..3500)).await;
    run.woken.lock().expect("no holder panics").push(Instant::now());
    run.site.signal(server, Signal::CONT);
    Ok(())
}
