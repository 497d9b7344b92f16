//! A process of the user's command, with its children in its own process group, so that all of them can be killed.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::provider::Provider;
use oncegate_process::failure::Failure;

/// How long the worker may take to end after the last job.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
/// The longest line that the worker may write, in bytes.
const LINE_MAX: usize = 64 * 1024;

pub struct Worker {
    child: Child,
    group: Option<Pid>,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    /// The part of the current line that has been read.
    line: Vec<u8>,
}

impl Worker {
    pub fn start(command: &[String], address: SocketAddr, provider: &Provider) -> Result<Worker, Failure> {
        let (program, arguments) = command.split_first().expect("a command has a program");
        let child = Command::new(program)
            .args(arguments)
            .env("ONCEGATE_URL", format!("http://{address}"))
            .env("DRILL_PROVIDER_URL", provider.url())
            .env("DRILL_QUEUE", format!("drill-{}-{}", std::process::id(), provider.listener.address.port()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let mut child = child.map_err(|error| {
            Failure::new(format!("cannot start {program}: {error}")).hint("oncegate drill -- python3 worker.py")
        })?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Ok(Worker { child, group, stdin, stdout, line: vec![] })
    }

    /// Writes a job to the worker's standard input. If the worker has just died, the end of its output shows that.
    pub async fn hand(&mut self, job: &str, recipient: &str) {
        let line = json!({"id": job, "campaignId": "drill", "recipientId": recipient});
        if let Some(stdin) = &mut self.stdin {
            let _ = stdin.write_all(format!("{line}\n").as_bytes()).await;
            let _ = stdin.flush().await;
        }
    }

    /// The next line of the worker's output; `None` at its end. If the call is cancelled, the part that was read is kept.
    pub async fn next_line(&mut self) -> Result<Option<String>, Failure> {
        loop {
            // An output that cannot be read has ended.
            let bytes = self.stdout.fill_buf().await.unwrap_or_default();
            if bytes.is_empty() {
                return Ok(None);
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            self.line.extend_from_slice(&bytes[..end.unwrap_or(bytes.len())]);
            let read = end.map_or(bytes.len(), |end| end + 1);
            self.stdout.consume(read);
            if self.line.len() > LINE_MAX {
                return Err(unheard(format!("a line of more than {LINE_MAX} bytes")));
            }
            if end.is_some() {
                let line = String::from_utf8(std::mem::take(&mut self.line));
                return line.map(Some).map_err(|_| unheard("bytes that are no text".into()));
            }
        }
    }

    /// Closes standard input: there are no more jobs.
    pub async fn end(&mut self) -> Result<(), Failure> {
        self.stdin = None;
        match timeout(ENDS_WITHIN, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => {
                Err(Failure::new(format!("all jobs are acknowledged, and the worker ended with {status}")))
            }
            _ => Err(Failure::new(format!("the worker did not end within {ENDS_WITHIN:?} of the end of its input"))
                .hint("it ends, with status 0, when its standard input does")),
        }
    }

    /// The worker ended although it was not killed.
    pub async fn ended(&mut self, acked: usize, jobs: u32) -> Failure {
        let status = timeout(ENDS_WITHIN, self.child.wait()).await.ok().and_then(Result::ok);
        let how =
            status.map_or_else(|| "closed its standard output".to_owned(), |status| format!("ended with {status}"));
        Failure::new(format!("the worker {how}, with {acked} of {jobs} jobs acknowledged"))
            .hint("it goes on until its standard input ends; what it says on standard error is above")
    }

    /// Sends SIGKILL to the whole process group.
    pub async fn kill(&mut self) {
        self.kill_group();
        let _ = self.child.wait().await;
    }

    fn kill_group(&self) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill_group();
    }
}

pub fn unheard(what: String) -> Failure {
    Failure::new(format!("the worker said {what} on its standard output, which is no word about a job"))
        .hint("{\"ack\": id} or {\"retry\": id}, a line each; everything else goes to standard error")
}
