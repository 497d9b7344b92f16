//! Two servers on one store, in a folder of their own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use super::client::Client;
use super::postgres::Cluster;
use super::process::{Process, free_address};
use super::provider::Provider;
use super::proxy::Proxy;
use super::{Broken, Options, StoreKind};
use crate::{clock, power};

pub const SERVERS: usize = 2;
/// How long a server may take to become ready, even on a busy machine.
const READY_MAX: Duration = Duration::from_secs(40);
/// The saga that ships with Oncegate.
const SAGA: &str = include_str!("../../shared/search-import.toml");

/// A place for a server: its address stays the same across restarts.
struct Slot {
    address: SocketAddr,
    process: Option<Process>,
    /// A fault keeps the server down.
    is_held: bool,
}

pub struct Site {
    folder: PathBuf,
    options: Options,
    slots: Vec<Mutex<Slot>>,
    pub provider: Arc<Provider>,
    /// Counts answers with status 500.
    pub failures: Arc<AtomicU64>,
    pub disk: Option<Disk>,
    pub network: Option<Network>,
    // Last, so that it is removed after the servers are gone.
    _place: Option<TempDir>,
}

/// The disk of SQLite's servers.
pub struct Disk {
    pub power: power::Shim,
    pub clock: clock::Shim,
}

/// The network between the servers and PostgreSQL.
pub struct Network {
    /// One proxy for each server.
    pub proxies: Vec<Proxy>,
    pub primary: tokio::sync::Mutex<Cluster>,
}

impl Site {
    pub async fn open(options: &Options, provider: Arc<Provider>) -> Result<Arc<Site>, String> {
        let text = |error: std::io::Error| error.to_string();
        let place = tempfile::Builder::new().prefix("oncegate-chaos-").tempdir().map_err(text)?;
        let folder = place.path().to_path_buf();
        if options.store == StoreKind::Postgres {
            // The user `postgres` has to reach its clusters in this folder.
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).map_err(text)?;
        }
        std::fs::write(folder.join("saga.toml"), SAGA).map_err(text)?;
        let (mut disk, mut network) = (None, None);
        match options.store {
            StoreKind::Sqlite => {
                let power = power::Shim::new(folder.join("data"), folder.join("power")).map_err(text)?;
                disk = Some(Disk { power, clock: clock::Shim::new(folder.join("clock")).map_err(text)? });
            }
            StoreKind::Postgres => {
                let primary = Cluster::create(&folder.join("postgres-0")).await?;
                let mut proxies = vec![];
                for _ in 0..SERVERS {
                    let lies = options.broken == Some(Broken::BelieveCommits);
                    proxies.push(Proxy::start(primary.address, lies).await.map_err(text)?);
                }
                network = Some(Network { proxies, primary: tokio::sync::Mutex::new(primary) });
            }
        }
        let mut slots = vec![];
        for _ in 0..SERVERS {
            slots.push(Mutex::new(Slot { address: free_address().map_err(text)?, process: None, is_held: false }));
        }
        let place = match options.keep {
            true => {
                let _ = place.keep();
                None
            }
            false => Some(place),
        };
        let failures = Arc::default();
        let site = Site { folder, options: options.clone(), slots, provider, failures, disk, network, _place: place };
        for server in 0..SERVERS {
            site.configure(server).map_err(|error| error.to_string())?;
            site.start(server)?;
            site.is_ready(server).await?;
        }
        let site = Arc::new(site);
        tokio::spawn(supervise(Arc::downgrade(&site)));
        Ok(site)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn slot(&self, server: usize) -> std::sync::MutexGuard<'_, Slot> {
        self.slots[server].lock().expect("no holder of this lock panics")
    }

    pub fn address(&self, server: usize) -> SocketAddr {
        self.slot(server).address
    }

    fn configure(&self, server: usize) -> Result<(), std::io::Error> {
        let store = match &self.network {
            Some(network) => format!("postgres://postgres@{}/postgres", network.proxies[server].address),
            None => format!("sqlite:{}", self.folder.join("data/oncegate.db").display()),
        };
        let provider = format!("http://{}", self.provider.address);
        let (folder, saga) = (self.folder.join(format!("server-{server}")), self.folder.join("saga.toml"));
        std::fs::create_dir_all(&folder)?;
        // Leases are short, so that work of a dead server is taken over during the run.
        let config = format!(
            r#"store = {store:?}
data_dir = {data:?}
listen = {listen:?}
[claims.guard.held]
lost = "hold"
[outgoing]
allow = ["127.0.0.0/8"]
timeout = "900ms"
[messages]
lease = "1s"
wait = "500ms"
send_wait = "2s"
store_error = "closed"
[messages.channel.plain]
kind = "http"
url = "{provider}/plain"
[messages.channel.keyed]
kind = "http"
url = "{provider}/keyed"
honours_key = true
[actions]
lease = "1s"
max_attempts = 30
[actions.type."sync"]
handler = "webhook"
url = "{provider}/actions"
[actions.type."once"]
handler = "webhook"
url = "{provider}/once"
delivery = "at_most_once"
[actions.type."StartParsingReferenceFile"]
handler = "webhook"
url = "{provider}/commands"
[sends]
lost = "resend"
lease = "1s"
[sagas]
files = [{saga:?}]
"#,
            data = folder.join("data"),
            listen = self.address(server).to_string(),
        );
        std::fs::write(folder.join("oncegate.toml"), config)
    }

    /// Starts a server, unless it is running.
    pub fn start(&self, server: usize) -> Result<(), String> {
        self.start_in(&mut self.slot(server), server)
    }

    fn start_in(&self, slot: &mut Slot, server: usize) -> Result<(), String> {
        let folder = self.folder.join(format!("server-{server}"));
        let mut command = Command::new(&self.options.server);
        command.arg("serve").current_dir(&folder);
        // The servers must not see a developer's own settings.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ONCEGATE_")) {
            command.env_remove(name);
        }
        if let Some(disk) = &self.disk {
            disk.power.apply_to(&mut command);
            disk.clock.apply_to(&mut command);
        }
        if self.options.broken == Some(Broken::NoSync) {
            command.env("ONCEGATE_TEST_POWER_NO_SYNC", "1");
        }
        slot.is_held = false;
        if slot.process.as_mut().is_none_or(Process::has_ended) {
            let process = Process::start(command, &folder.join("log"));
            slot.process = Some(process.map_err(|error| format!("{}: {error}", self.options.server.display()))?);
        }
        Ok(())
    }

    /// Waits until the server answers.
    pub async fn is_ready(&self, server: usize) -> Result<(), String> {
        let deadline = Instant::now() + READY_MAX;
        let mut client = Client::new(self.address(server), self.failures.clone());
        while !client.get("/readyz").await.is_ok_and(|answer| answer.status == 200) {
            if Instant::now() > deadline {
                let log = self.folder.join(format!("server-{server}/log"));
                let said = std::fs::read_to_string(log).unwrap_or_default();
                let end: Vec<&str> = said.lines().rev().take(5).collect();
                return Err(format!("server {server} does not become ready: {}", end.join("\n")));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Sends SIGKILL. The server stays down until it is started.
    pub fn kill(&self, server: usize) {
        let mut slot = self.slot(server);
        slot.is_held = true;
        if let Some(mut process) = slot.process.take() {
            process.kill();
        }
    }

    pub fn signal(&self, server: usize, signal: Signal) {
        if let Some(process) = &self.slot(server).process {
            process.signal(signal);
        }
    }

    /// Checks that the servers neither answered 500 nor panicked.
    pub fn check_servers(&self) -> Result<(), String> {
        let failures = self.failures.load(Ordering::Relaxed);
        if failures > 0 {
            return Err(format!("servers answered {failures} requests with status 500"));
        }
        let panics: usize = (0..SERVERS).map(|server| self.logged(server, "panicked at")).sum();
        if panics > 0 { Err(format!("servers panicked {panics} times: see their logs (--keep)")) } else { Ok(()) }
    }

    /// The number of lines about an event in a server's log.
    pub fn logged(&self, server: usize, event: &str) -> usize {
        let log = std::fs::read_to_string(self.folder.join(format!("server-{server}/log"))).unwrap_or_default();
        log.lines().filter(|line| line.contains(event)).count()
    }
}

/// Restarts servers that ended by themselves: they may refuse to start, or stop cleanly.
async fn supervise(site: std::sync::Weak<Site>) {
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let Some(site) = site.upgrade() else { return };
        for server in 0..SERVERS {
            let mut slot = site.slot(server);
            if !slot.is_held && slot.process.as_mut().is_none_or(Process::has_ended) {
                // If this fails, the next round retries it. The lock is held, so that a power cut finds no server that it did not end.
                let _ = site.start_in(&mut slot, server);
            }
        }
    }
}
