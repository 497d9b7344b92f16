//! A private PostgreSQL: created, crashed, frozen, copied and promoted.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;

use super::process::free_address;
use crate::postgres::{hand_over, program};

/// The time limit for a crash recovery on a busy machine.
const START_MAX: Duration = Duration::from_secs(60);
/// A tool that hangs is killed after this time, and its step counts as failed.
const TOOL_MAX: Duration = Duration::from_secs(300);

/// One cluster in a folder of its own. Stopped and removed when it is dropped.
pub struct Cluster {
    folder: PathBuf,
    pub address: SocketAddr,
}

impl Cluster {
    /// Creates an empty cluster, and starts it.
    pub async fn create(folder: &Path) -> Result<Cluster, String> {
        let cluster = Cluster::at(folder)?;
        let data = cluster.data();
        cluster.tool("initdb", &["-D", &data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale"]).await?;
        let settings = "listen_addresses = '127.0.0.1'\nmax_connections = 100\nwal_retrieve_retry_interval = '200ms'\n\
                        shared_buffers = '32MB'\nhot_standby = on\n";
        fs::write(folder.join("data/postgresql.auto.conf"), settings).map_err(|error| error.to_string())?;
        cluster.start().await?;
        Ok(cluster)
    }

    fn at(folder: &Path) -> Result<Cluster, String> {
        fs::create_dir_all(folder).map_err(|error| error.to_string())?;
        hand_over(folder)?;
        let address = free_address().map_err(|error| error.to_string())?;
        Ok(Cluster { folder: folder.to_path_buf(), address })
    }

    fn data(&self) -> String {
        self.folder.join("data").display().to_string()
    }

    /// Runs one of PostgreSQL's tools.
    async fn tool(&self, name: &str, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::from(program(name)?);
        command.args(arguments).current_dir(&self.folder).stdin(std::process::Stdio::null()).kill_on_drop(true);
        let ran = tokio::time::timeout(TOOL_MAX, command.output()).await.map_err(|_| format!("{name} hangs"))?;
        let output = ran.map_err(|error| format!("{name}: {error}"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            false => Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }

    /// Starts the cluster, even while the processes of a crash are still ending.
    pub async fn start(&self) -> Result<(), String> {
        let deadline = Instant::now() + START_MAX;
        let (data, log) = (self.data(), self.folder.join("log").display().to_string());
        let options = format!("-p {} -k {}", self.address.port(), self.folder.display());
        loop {
            // Its output goes to a file: a postmaster that holds the pipe would block pg_ctl's reader.
            match self.tool("pg_ctl", &["-D", &data, "-l", &log, "-w", "-s", "-o", &options, "start"]).await {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    pub async fn sql(&self, statement: &str) -> Result<String, String> {
        let port = self.address.port().to_string();
        let to =
            ["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-d", "postgres", "-X", "-A", "-t", "-c", statement];
        self.tool("psql", &to).await
    }

    fn postmaster(&self) -> Option<i32> {
        let file = fs::read_to_string(self.folder.join("data/postmaster.pid")).ok()?;
        let pid: i32 = file.lines().next()?.trim().parse().ok()?;
        // The file outlives a crash, and its process id may belong to another process by then.
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        command.contains(&self.data()).then_some(pid)
    }

    /// The postmaster and its children.
    fn processes(&self) -> Vec<i32> {
        let Some(postmaster) = self.postmaster() else { return vec![] };
        let is_child = |pid: &i32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let after_name = stat.rsplit_once(')').map(|(_, rest)| rest.to_owned()).unwrap_or_default();
            after_name.split_whitespace().nth(1).and_then(|parent| parent.parse().ok()) == Some(postmaster)
        };
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        std::iter::once(postmaster).chain(pids.filter(is_child)).collect()
    }

    fn signal_all(&self, pids: &[i32], signal: Signal) {
        for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Ends the cluster at once, by SIGQUIT to the postmaster or by SIGKILL to all of its processes. They are gone when this returns.
    pub async fn crash(&self, signal: Signal) {
        let pids = self.processes();
        let told = if signal == Signal::QUIT { &pids[..pids.len().min(1)] } else { &pids[..] };
        self.signal_all(told, signal);
        let deadline = Instant::now() + Duration::from_secs(10);
        let lives = |pid: &i32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z'))
        };
        while pids.iter().any(lives) && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.signal_all(&pids.iter().copied().filter(|pid| lives(pid)).collect::<Vec<_>>(), Signal::KILL);
    }

    /// An orderly restart, which ends all connections.
    pub async fn restart(&self) -> Result<(), String> {
        let data = self.data();
        self.tool("pg_ctl", &["-D", &data, "-m", "fast", "-w", "-s", "stop"]).await?;
        self.start().await
    }

    /// Stops all processes of the cluster for a while.
    pub async fn freeze(&self, length: Duration) {
        let pids = self.processes();
        self.signal_all(&pids, Signal::STOP);
        tokio::time::sleep(length).await;
        self.signal_all(&pids, Signal::CONT);
    }

    /// A standby that streams from this cluster through the proxy at `through`.
    pub async fn standby(&self, folder: &Path, through: SocketAddr) -> Result<Cluster, String> {
        let standby = Cluster::at(folder)?;
        let (data, port) = (standby.data(), through.port().to_string());
        let from = ["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-D", &data, "-R", "-X", "stream", "-c", "fast"];
        standby.tool("pg_basebackup", &from).await?;
        standby.start().await?;
        let deadline = Instant::now() + START_MAX;
        while self.sql("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'").await? == "0" {
            if Instant::now() > deadline {
                return Err("the standby does not stream".into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(standby)
    }

    /// Makes the cluster answer a commit only when the standby has it. Returns when that holds.
    pub async fn wait_for_standby(&self) -> Result<(), String> {
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'").await?;
        self.sql("SELECT pg_reload_conf()").await?;
        let deadline = Instant::now() + START_MAX;
        while self.sql("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'").await? == "0" {
            if Instant::now() > deadline {
                return Err("the standby does not become synchronous".into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // Backends read the setting when they get a signal. A backend that is committing at this moment has it within milliseconds.
        tokio::time::sleep(Duration::from_millis(500)).await;
        Ok(())
    }

    /// Makes the standby the primary.
    pub async fn promote(&self) -> Result<(), String> {
        let data = self.data();
        self.tool("pg_ctl", &["-D", &data, "-w", "-s", "promote"]).await.map(drop)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.signal_all(&self.processes(), Signal::KILL);
        let _ = fs::remove_dir_all(self.folder.join("data"));
    }
}
