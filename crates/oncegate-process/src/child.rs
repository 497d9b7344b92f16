//! Runs this same program as a child in a folder of its own, to measure it or kill it from outside.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::failure::Failure;

/// A child server that accepts connections.
pub struct Served {
    child: Child,
    pub address: SocketAddr,
}

impl Served {
    /// Returns None if the child ended before it reported its address.
    pub async fn start(
        arguments: &[&str],
        folder: &Path,
        variables: &[(&str, &str)],
    ) -> Result<Option<Served>, Failure> {
        let broken = |error: std::io::Error| Failure::new(format!("cannot start {}: {error}", arguments[0]));
        let mut child = Command::new(std::env::current_exe().map_err(broken)?)
            .args(arguments)
            .current_dir(folder)
            .env_clear()
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(broken)?;
        let mut said = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut before = vec![];
        while let Some(line) = said.next_line().await.map_err(broken)? {
            if let Some(address) = line.rsplit_once("http://").and_then(|(_, address)| address.parse().ok()) {
                // Reads the rest of the child's output, so that a full pipe does not block it.
                tokio::spawn(async move { while let Ok(Some(_)) = said.next_line().await {} });
                return Ok(Some(Served { child, address }));
            }
            before.push(line);
        }
        let status = child.wait().await.map_err(broken)?;
        match is_killed(status) {
            true => Ok(None),
            false => Err(Failure::new(format!("{} did not start ({status}): {}", arguments[0], before.join("; ")))),
        }
    }

    /// Whether the child was killed, or killed itself, within this time. Any other end is an error.
    pub async fn has_died(&mut self, within: Duration) -> Result<bool, Failure> {
        match tokio::time::timeout(within, self.child.wait()).await {
            Err(_) => Ok(false),
            Ok(Ok(status)) if is_killed(status) => Ok(true),
            Ok(ended) => Err(Failure::new(format!("a server that was to be killed ended by itself: {ended:?}"))),
        }
    }

    /// Sends SIGKILL and waits until the child has ended.
    pub async fn kill(mut self) {
        // A child that has already ended is fine.
        let _ = self.child.kill().await;
    }
}

/// Whether SIGKILL ended the process.
fn is_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw())
}

/// How often a folder is removed, and the pause after which it has to be gone.
const REMOVALS_MAX: usize = 50;
const REMOVAL_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// A new folder, which is removed on drop.
pub struct Folder {
    pub path: PathBuf,
}

impl Folder {
    pub fn new(parent: Option<PathBuf>, what: &str) -> Result<Self, Failure> {
        let parent = parent.unwrap_or_else(std::env::temp_dir);
        let path = parent.join(format!("oncegate-{what}-{}", uuid::Uuid::now_v7()));
        let made = std::fs::create_dir_all(&parent).and_then(|()| std::fs::create_dir(&path));
        made.map_err(|error| Failure::new(format!("cannot make {}: {error}", path.display())))?;
        Ok(Folder { path })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A thread that is still opening the store may make files meanwhile, or the folder itself. A folder that cannot be removed
        // stays in the system's temporary folder.
        for _ in 0..REMOVALS_MAX {
            let _ = std::fs::remove_dir_all(&self.path);
            std::thread::sleep(REMOVAL_PAUSE);
            if !self.path.exists() {
                return;
            }
        }
    }
}
