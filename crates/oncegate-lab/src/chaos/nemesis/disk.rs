//! What SQLite's file can suffer.

use crate::chaos::Run;
use crate::chaos::dice::Dice;
use crate::chaos::site::SERVERS;
use crate::power::errno;

use super::disk_of;

/// Both servers die at once, and what they had not synced is partly gone.
pub async fn cut_power(run: &Run, dice: &mut Dice) -> Result<(), String> {
    let disk = disk_of(run)?;
    for server in 0..SERVERS {
        run.site.kill(server);
    }
    let _cut = disk.power.cut(dice.number()).map_err(|error| error.to_string())?;
    for server in 0..SERVERS {
        run.site.start(server)?;
    }
    // The next fault comes when there is load again.
    for server in 0..SERVERS {
        if let Err(why) = run.site.is_ready(server).await {
            run.tally.fail(format!("after a power cut: {why}"));
            return Ok(());
        }
    }
    tokio::time::sleep(dice.millis(0..1500)).await;
    Ok(())
}

/// Each sync fails with EIO for a while.
pub async fn fail_syncs(run: &Run, dice: &mut Dice) -> Result<(), String> {
    let disk = disk_of(run)?;
    disk.power.fail_syncs(Some(errno::EIO)).map_err(|error| error.to_string())?;
    tokio::time::sleep(dice.millis(50..800)).await;
    disk.power.fail_syncs(None).map_err(|error| error.to_string())
}

/// Each write fails with ENOSPC for a while.
pub async fn fill(run: &Run, dice: &mut Dice) -> Result<(), String> {
    let disk = disk_of(run)?;
    disk.power.fail_writes(Some(errno::ENOSPC)).map_err(|error| error.to_string())?;
    tokio::time::sleep(dice.millis(50..1200)).await;
    disk.power.fail_writes(None).map_err(|error| error.to_string())
}
