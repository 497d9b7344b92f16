//! A running server, and the signals that it receives.

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
    /// Starts the command and appends its log to a file.
    pub fn start(mut command: Command, log: &Path) -> Result<Process, std::io::Error> {
        let log = File::options().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stderr(log.try_clone()?).stdout(log);
        Ok(Process { child: command.spawn()? })
    }

    pub fn signal(&self, signal: Signal) {
        // A process that has ended gets no signal. Until it was waited for, its id still belongs to it.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends SIGKILL, and returns when the process is gone.
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
