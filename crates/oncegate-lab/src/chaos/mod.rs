//! Two servers, one store, a mixed load and faults, all chosen by one seed.
//!
//! Each part of the load checks the servers' answers and what the provider received. The first violation ends the run.

mod client;
mod dice;
mod load;
mod nemesis;
mod postgres;
mod process;
mod provider;
mod proxy;
mod report;
mod site;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use oncegate_store::conformance::histories::{Stamp, Stamps};

pub use report::Report;

use client::{Answer, Client, Lost};
use dice::Dice;
use provider::Provider;
use site::{SERVERS, Site};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    Sqlite,
    Postgres,
}

/// A promise that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// As with `synchronous=OFF`.
    NoSync,
    /// Between the servers and PostgreSQL: a COMMIT whose connection is cut is answered as done.
    BelieveCommits,
    /// Between the load and the servers: a refused verb is retried with the current token.
    NoFence,
    /// Between the load and the servers: a claim in flight is released, and claimed again.
    NoLease,
}

#[derive(Clone, Debug)]
pub struct Options {
    pub store: StoreKind,
    pub length: Duration,
    pub seed: u64,
    pub server: PathBuf,
    /// The names of the faults to make; empty means all.
    pub only: Vec<String>,
    pub broken: Option<Broken>,
    pub asynchronous: bool,
    pub keep: bool,
    pub shows_progress: bool,
}

/// What the parts of a run share.
pub struct Run {
    options: Options,
    site: Arc<Site>,
    started: Instant,
    stamps: Stamps,
    tally: Arc<Tally>,
    /// When servers were resumed from a pause. Calls that began before the pause may still arrive.
    woken: Mutex<Vec<Instant>>,
    /// The faults are over, and all parts work again.
    is_calm: AtomicBool,
}

/// The counters, and the first violation.
#[derive(Default)]
struct Tally {
    operations: Mutex<BTreeMap<&'static str, u64>>,
    faults: Mutex<BTreeMap<&'static str, u64>>,
    violation: Mutex<Option<String>>,
    /// The longest time from a healed fault of the store until both servers were ready.
    slowest_recovery: Mutex<Duration>,
    /// Commits are lost on purpose: violations are counted, but do not end the run.
    expects_losses: bool,
}

impl Tally {
    /// Reports a violation, found by the load or the provider.
    fn violate(&self, what: String) {
        match self.expects_losses {
            true => self.count("losses found", 1),
            false => self.fail(what),
        }
    }

    fn fail(&self, what: String) {
        self.violation.lock().expect("no holder panics").get_or_insert(what);
    }

    fn is_violated(&self) -> bool {
        self.violation.lock().expect("no holder panics").is_some()
    }

    fn count(&self, operation: &'static str, by: u64) {
        *self.operations.lock().expect("no holder panics").entry(operation).or_default() += by;
    }

    fn recovered(&self, within: Duration) {
        let mut slowest = self.slowest_recovery.lock().expect("no holder panics");
        *slowest = within.max(*slowest);
    }

    fn fault(&self, name: &'static str) {
        *self.faults.lock().expect("no holder panics").entry(name).or_default() += 1;
    }
}

impl Run {
    /// A timestamp for a history.
    fn now(&self) -> Stamp {
        self.stamps.next(i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX))
    }

    fn dice(&self, name: &str, number: u64) -> Dice {
        Dice::of(self.options.seed, name, number)
    }

    /// Whether the time for faults is over.
    fn time_is_up(&self) -> bool {
        self.started.elapsed() >= self.options.length || self.tally.is_violated()
    }

    fn is_calm(&self) -> bool {
        self.is_calm.load(Ordering::SeqCst)
    }

    fn clients(&self) -> Clients {
        Clients::new(self)
    }

    /// Whether a server was resumed so recently that one of its calls may have begun before its pause.
    fn was_just_woken(&self, at: Instant) -> bool {
        let late = Duration::from_secs(2);
        self.woken.lock().expect("no holder panics").iter().any(|woken| at >= *woken && at < *woken + late)
    }
}

/// One connection to each server.
struct Clients(Vec<Client>);

impl Clients {
    fn new(run: &Run) -> Clients {
        Clients((0..SERVERS).map(|server| Client::new(run.site.address(server), run.site.failures.clone())).collect())
    }

    fn any(&mut self, dice: &mut Dice) -> &mut Client {
        let server = dice.below(self.0.len());
        &mut self.0[server]
    }

    /// Sends a GET to one server after the other, until one answers.
    async fn get(&mut self, run: &Run, path: &str) -> Result<Answer, String> {
        let mut patience = Patience::default();
        loop {
            for client in &mut self.0 {
                if let Ok(answer) = client.get(path).await {
                    return Ok(answer);
                }
            }
            patience.wait(run, path).await?;
        }
    }
}

/// Waits as long as there are faults, and for a limited time after that.
#[derive(Default)]
struct Patience {
    calm_since: Option<Instant>,
}

impl Patience {
    const CALM_MAX: Duration = Duration::from_secs(90);

    /// Waits for a moment. An error says what did not happen, or is empty if the run ends anyway.
    async fn wait(&mut self, run: &Run, what: &str) -> Result<(), String> {
        if run.tally.is_violated() {
            return Err(String::new());
        }
        if run.is_calm() && self.calm_since.get_or_insert_with(Instant::now).elapsed() > Patience::CALM_MAX {
            return Err(format!("not within {:?} after the last fault: {what}", Patience::CALM_MAX));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(())
    }
}

/// A different seed each time.
pub fn new_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Dice::new(u64::try_from(now.as_nanos()).unwrap_or_default()).number() % 1_000_000
}

/// Runs until the time is up or a promise is broken.
pub async fn run(mut options: Options) -> Result<Report, String> {
    // Absolute, because the servers run in folders of their own.
    let found = options.server.canonicalize();
    options.server = found.map_err(|error| format!("{}: {error}", options.server.display()))?;
    let tally = Arc::new(Tally { expects_losses: options.asynchronous, ..Tally::default() });
    let reporting = tally.clone();
    let provider = Provider::start(options.seed, move |what| reporting.violate(what)).await;
    let provider = provider.map_err(|error| error.to_string())?;
    let site = Site::open(&options, provider).await?;
    let run = Arc::new(Run {
        options,
        site,
        started: Instant::now(),
        stamps: Stamps::default(),
        tally,
        woken: Mutex::default(),
        is_calm: AtomicBool::new(false),
    });
    nemesis::check_names(&run)?;
    let progress = tokio::spawn(report::progress(run.clone()));
    let mut faults = tokio::spawn(nemesis::run(run.clone()));
    let mut load = std::pin::pin!(load::run(run.clone()));
    let healed = |faults: Result<Result<(), String>, tokio::task::JoinError>| {
        let healed = faults.map_err(|error| error.to_string()).flatten();
        healed.map_err(|error| format!("seed {}: a fault could not be made: {error}", run.options.seed))
    };
    // If a fault cannot be made or healed, the run ends. If the load ends first, it waits until every server is ready again.
    let ended = tokio::select! {
        ended = &mut faults => {
            let healed = healed(ended);
            if healed.is_ok() {
                load.await;
            }
            healed
        }
        () = &mut load => match run.tally.is_violated() {
            true => Ok(()),
            false => healed((&mut faults).await),
        },
    };
    progress.abort();
    if ended.is_err() {
        // A long run that ends with an error still prints its report.
        eprintln!("{}", Report::of(&run));
    }
    ended?;
    if let Err(why) = run.site.check_servers() {
        run.tally.violate(why);
    }
    Ok(Report::of(&run))
}
