//! A running server, and the signals that it gets.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// Killed when it is dropped.
pub struct Process {
    child: Child,
}

impl Process {
    /// Its log goes to the end of a file.
    pub fn start(mut command: Command, log: &Path) -> Result<Process, std::io::Error> {
        let log = File::options().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stderr(log.try_clone()?).stdout(log);
        Ok(Process { child: command.spawn()? })
    }

    pub fn signal(&self, signal: Signal) {
        // A process that ended meanwhile gets no signal: it is still ours until it was waited for.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// SIGKILL, and gone when this returns.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port that was free a moment ago.
pub fn free_address() -> Result<SocketAddr, std::io::Error> {
    std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()
}
