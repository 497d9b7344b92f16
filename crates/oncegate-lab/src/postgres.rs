//! The programs of the newest PostgreSQL on this machine, run as a user that PostgreSQL accepts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const MISSING: &str = "there is no PostgreSQL. hint: scripts/install";

/// A program of PostgreSQL, such as `pg_ctl`. Root runs it as the user `postgres`, because PostgreSQL refuses to run as root.
pub fn program(name: &str) -> Result<Command, String> {
    let versions = fs::read_dir("/usr/lib/postgresql").map_err(|_| MISSING)?;
    let version = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
    let newest = versions.flatten().map(|entry| entry.path()).max_by_key(version).ok_or(MISSING)?;
    let program = newest.join("bin").join(name);
    if !is_root() {
        return Ok(Command::new(program));
    }
    let mut as_postgres = Command::new("runuser");
    as_postgres.args(["-u", "postgres", "--"]).arg(program);
    Ok(as_postgres)
}

/// Gives a folder to the user that runs the programs.
pub fn hand_over(folder: &Path) -> Result<(), String> {
    if !is_root() {
        return Ok(());
    }
    let status = Command::new("chown").arg("postgres:").arg(folder).status().map_err(|error| error.to_string())?;
    status.success().then_some(()).ok_or_else(|| format!("chown {}: {status}", folder.display()))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
