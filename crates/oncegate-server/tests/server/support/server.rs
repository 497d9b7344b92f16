//! A running `oncegate serve`.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Client, PATIENCE, eventually};

pub struct Server {
    child: Child,
    pub address: SocketAddr,
    stdout: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<String>>,
}

impl Server {
    /// Returns once the server listens. Its log has the address.
    pub fn start(command: Command) -> Server {
        Server::start_reading(command, usize::MAX)
    }

    /// Reads this many lines of its log, and leaves the rest in the pipe.
    pub fn start_reading(mut command: Command, lines_read: usize) -> Server {
        let mut child = command.spawn().expect("the binary was built");
        let stderr = collect(child.stderr.take().expect("piped"));
        let stdout = Arc::new(Mutex::new(String::new()));
        let (listening, address) = mpsc::channel();
        let (lines, seen) = (BufReader::new(child.stdout.take().expect("piped")), stdout.clone());
        let log = std::thread::spawn(move || read_log(lines, lines_read, &seen, &listening));
        match address.recv_timeout(PATIENCE) {
            Ok(address) => Server { child, address, stdout, readers: vec![log, stderr] },
            Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                let said = stderr.join().unwrap_or_default();
                panic!("the server did not listen: {said}{}", stdout.lock().expect("no panic"));
            }
        }
    }

    /// Returns once the server prints its address for people: for a log without that line.
    pub fn start_quiet(mut command: Command) -> Server {
        let mut child = command.spawn().expect("the binary was built");
        let mut said = BufReader::new(child.stderr.take().expect("piped"));
        let log = collect(child.stdout.take().expect("piped"));
        let mut line = String::new();
        while said.read_line(&mut line).expect("text") > 0 {
            if let Some(address) = line.trim().rsplit_once("http://").and_then(|(_, address)| address.parse().ok()) {
                return Server { child, address, stdout: Arc::default(), readers: vec![log, collect(said)] };
            }
            line.clear();
        }
        let _ = child.kill();
        let ended = child.wait();
        panic!("the server did not listen: {ended:?}");
    }

    /// Its name among the replicas.
    pub fn replica(&self) -> String {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        format!("{host}/{}", self.child.id())
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its resident memory, in KiB.
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux says so");
        resident.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    pub fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// A client that sends this key.
    pub fn client_with(&self, key: &str) -> Client {
        self.client().header("authorization", &format!("Bearer {key}"))
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().expect("a process id")).expect("not zero");
        kill_process(pid, signal).expect("the process is ours");
    }

    /// Sends SIGKILL, and returns when the process is gone.
    pub fn kill(mut self) {
        self.child.kill().expect("the process is ours");
        self.child.wait().expect("the process is ours");
    }

    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        wait(&mut self.child, limit)
    }

    /// Sends SIGTERM; returns its exit status and all its output.
    pub fn stop(mut self) -> (ExitStatus, String) {
        self.signal(Signal::TERM);
        let status = self.wait(PATIENCE);
        let written = self.readers.drain(..).map(|reader| reader.join().expect("output is read to its end"));
        (status, written.collect())
    }

    /// The first `count` lines of the log about `event`, once they are written: the log is written in the background.
    pub async fn logged(&self, event: &str, count: usize) -> Vec<Value> {
        eventually(&format!("{count} lines with {event}"), || async {
            let lines: Vec<_> = self.log().into_iter().filter(|line| line["event"] == event).take(count).collect();
            (lines.len() == count).then_some(lines)
        })
        .await
    }

    /// The log up to now, a JSON object for each line.
    pub fn log(&self) -> Vec<Value> {
        let text = self.stdout.lock().expect("no reader panics").clone();
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Keeps every whole line, and sends the address from the line that has it.
fn read_log(
    mut lines: impl BufRead,
    lines_read: usize,
    seen: &Mutex<String>,
    listening: &mpsc::Sender<SocketAddr>,
) -> String {
    for line in lines.by_ref().lines().take(lines_read).map_while(Result::ok) {
        if line.contains("server.listening") {
            let event: Value = serde_json::from_str(&line).expect("the log is JSON");
            let address = event["address"].as_str().and_then(|text| text.parse().ok());
            // The receiver is gone after its time-out.
            let _ = listening.send(address.expect("an address"));
        }
        let mut seen = seen.lock().expect("no reader panics");
        seen.push_str(&line);
        seen.push('\n');
    }
    // Open but unread, until the end of the test.
    std::mem::forget(lines);
    seen.lock().expect("no reader panics").clone()
}

/// Reads to the end on a thread of its own, so that a full pipe blocks no process.
pub fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

pub fn wait(child: &mut Child, limit: Duration) -> ExitStatus {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().expect("the process is ours") {
            return status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            panic!("the process did not end within {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
