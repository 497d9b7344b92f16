//! A folder with a configuration, in which the binary runs.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::{PATIENCE, Server, server};

/// All paths are relative to it: the server and the commands run here share `oncegate.toml` and the store.
pub struct Home {
    folder: TempDir,
}

/// The result of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Home {
    /// A folder with an empty configuration: the embedded store, at its default place in this folder.
    pub fn new() -> Home {
        Home::with_config("")
    }

    pub fn with_config(toml: &str) -> Home {
        let home = Home { folder: TempDir::new().expect("a temporary folder") };
        home.configure(toml);
        home
    }

    pub fn configure(&self, toml: &str) {
        std::fs::write(self.path().join("oncegate.toml"), toml).expect("the folder is ours");
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The files of the embedded store: the database and its log.
    pub fn store_files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path().join("oncegate-data")).expect("the store was opened");
        entries.map(|entry| entry.expect("a readable folder").path()).collect()
    }

    /// Writes a file that only its owner can read.
    pub fn write_secret(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt;
        let file = self.path().join(name);
        std::fs::write(&file, text).expect("the folder is ours");
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).expect("the file is ours");
    }

    /// The output of the `log` handler, without a line that is still being written.
    pub fn noted(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path().join("oncegate-data/actions.jsonl")).unwrap_or_default();
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        whole.map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
    }

    /// Starts the server, and returns once it listens.
    pub fn serve(&self) -> Server {
        Server::start(self.command(["serve", "--listen", "127.0.0.1:0"]))
    }

    /// The same, with these environment variables.
    pub fn serve_with(&self, variables: &[(&str, &str)]) -> Server {
        let mut command = self.command(["serve", "--listen", "127.0.0.1:0"]);
        command.envs(variables.iter().copied());
        Server::start(command)
    }

    /// Starts the server at a fixed address.
    pub fn serve_at(&self, address: SocketAddr) -> Server {
        Server::start(self.command(["serve", "--listen", &address.to_string()]))
    }

    /// Starts the server with a log of almost nothing.
    pub fn serve_quietly(&self) -> Server {
        Server::start_quiet(self.command(["serve", "--listen", "127.0.0.1:0"]))
    }

    /// The same, on a clock that the test sets.
    pub fn serve_by_clock(&self, variables: &[(&str, &str)]) -> Server {
        let clock = self.clock().display().to_string();
        let all: Vec<(&str, &str)> =
            [("ONCEGATE_TEST_CLOCK", clock.as_str())].iter().chain(variables).copied().collect();
        self.serve_with(&all)
    }

    /// Starts `oncegate demo`, and returns once it listens; its temporary folder is in this one.
    pub fn demo(&self) -> Server {
        let mut command = self.command(["demo", "--listen", "127.0.0.1:0", "--log", "json"]);
        command.env("TMPDIR", self.path());
        Server::start(command)
    }

    /// Sets the stores' clock ahead of the real time.
    pub fn set_clock_ahead(&self, by: Duration) {
        // Renamed into its place, so that no server reads half of it.
        let (clock, new) = (self.clock(), self.path().join("clock.new"));
        std::fs::write(&new, by.as_micros().to_string()).expect("the folder is ours");
        std::fs::rename(new, clock).expect("the folder is ours");
    }

    fn clock(&self) -> PathBuf {
        self.path().join("clock")
    }

    /// Starts the server, and does not read its log once it listens.
    pub fn serve_with_unread_log(&self) -> Server {
        Server::start_reading(self.command(["serve", "--listen", "127.0.0.1:0"]), 1)
    }

    /// Starts a long-running command.
    pub fn start<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Running {
        let mut child = self.command(arguments).spawn().expect("the binary was built");
        let stderr = server::collect(child.stderr.take().expect("piped"));
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            // Until the receiver is dropped: then the pipe is closed.
            while stdout.read_line(&mut line).is_ok_and(|read| read > 0) && sender.send(line.clone()).is_ok() {
                line.clear();
            }
        });
        Running { child, lines: Some(lines), stderr: Some(stderr) }
    }

    /// Runs a command to its end.
    pub fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Ran {
        self.run_with(arguments, &[])
    }

    pub fn run_with<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>, variables: &[(&str, &str)]) -> Ran {
        self.run_within(PATIENCE, arguments, variables)
    }

    /// The same, with a longer time-out.
    pub fn run_within<A: AsRef<OsStr>>(
        &self,
        limit: Duration,
        arguments: impl IntoIterator<Item = A>,
        variables: &[(&str, &str)],
    ) -> Ran {
        let mut command = self.command(arguments);
        let mut child = command.envs(variables.iter().copied()).spawn().expect("the binary was built");
        let stdout = server::collect(child.stdout.take().expect("piped"));
        let stderr = server::collect(child.stderr.take().expect("piped"));
        let status = server::wait(&mut child, limit);
        let text = |reader: std::thread::JoinHandle<String>| reader.join().expect("output is read to its end");
        Ran { code: status.code().unwrap_or(-1), stdout: text(stdout), stderr: text(stderr) }
    }

    /// Makes a key for `workspace` and returns its id and its secret.
    pub fn make_key(&self, workspace: &str, role: &str) -> (String, String) {
        self.run(["workspace", "create", workspace]).expect_code(0);
        let made =
            self.run(["key", "create", "--workspace", workspace, "--role", role, "--json"]).expect_code(0).json();
        let text = |name: &str| made[name].as_str().expect("a string").to_owned();
        (text("id"), text("key"))
    }

    pub fn command<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_oncegate"));
        command.args(arguments);
        command
    }

    /// A command in this folder, without settings.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.current_dir(self.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The user who runs the tests may have their own settings.
        let is_setting = |name: &str| name.starts_with("ONCEGATE_") || name.starts_with("OTEL_");
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_setting(&name.to_string_lossy())) {
            command.env_remove(name);
        }
        command
    }
}

/// A long-running command, which is stopped on drop.
pub struct Running {
    child: Child,
    lines: Option<mpsc::Receiver<String>>,
    stderr: Option<JoinHandle<String>>,
}

impl Running {
    /// The next line that it prints.
    #[track_caller]
    pub fn line(&self) -> String {
        let lines = self.lines.as_ref().expect("somebody reads");
        lines.recv_timeout(PATIENCE).expect("it prints a line in time").trim_end().to_owned()
    }

    /// Whether it has printed anything more.
    pub fn is_silent(&self) -> bool {
        self.lines.as_ref().is_none_or(|lines| lines.try_recv().is_err())
    }

    /// Stops reading its output.
    pub fn stop_reading(&mut self) {
        self.lines = None;
    }

    /// Waits for its end, and returns its exit status.
    pub fn wait(&mut self) -> ExitStatus {
        server::wait(&mut self.child, PATIENCE)
    }

    /// Ends it, and returns its standard error.
    pub fn end(mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.stderr.take().map_or_else(String::new, |said| said.join().expect("it is read to its end"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ran {
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Ran {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Failed with this code, printed `message` first and `hint` in a line of its own, and printed no data.
    #[track_caller]
    pub fn expect_failure(self, code: i32, message: &str, hint: &str) -> Ran {
        let ran = self.expect_code(code);
        let hinted = ran.stderr.lines().any(|line| line.starts_with("hint: ") && line.contains(hint));
        assert!(ran.stderr.contains(message) && hinted, "{message:?}, {hint:?}: {ran:?}");
        ran
    }
}
