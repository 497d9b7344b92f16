//! Faults of SQLite's file.

use crate::chaos::Run;
use crate::chaos::dice::Dice;
use crate::chaos::site::SERVERS;
use crate::power::errno;

use super::disk_of;

/// Kills both servers at once, and undoes a part of what they had not synced.
pub async fn cut_power(run: &Run, dice: &mut Dice) -> Result<(), String> {
    let disk = disk_of(run)?;
    for server in 0..SERVERS {
        run.site.kill(server);
    }
    let _cut = disk.power.cut(dice.number()).map_err(|error| error.to_string())?;
    for server in 0..SERVERS {
        run.site.start(server)?;
    }
    Ok(())
}

/// Makes each sync fail with EIO for a while.
pub async fn fail_syncs(run: &Run, dice: &mut Dice) -> Result<(), String> {
    let disk = disk_of(run)?;
    disk.power.fail_syncs(Some(errno::EIO)).map_err(|error| error.to_string())?;
    tokio::time::sleep(dice.millis(50..800)).await;
    disk.power.fail_syncs(None).map_err(|error| error.to_string())
}

/// Makes each write fail with ENOSPC for a while.
pub async fn fill(run: &Run, dice: &mut Dice) -> Result<(), String> {
    let disk = disk_of(run)?;
    disk.power.fail_writes(Some(errno::ENOSPC)).map_err(|error| error.to_string())?;
    tokio::time::sleep(dice.millis(50..1200)).await;
    disk.power.fail_writes(None).map_err(|error| error.to_string())
}
