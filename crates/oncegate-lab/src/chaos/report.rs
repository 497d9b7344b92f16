//! What a run prints.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Run, StoreKind};

/// What the run did, the faults that it made, and what went wrong otherwise.
#[derive(Clone, Debug)]
pub struct Report {
    pub store: StoreKind,
    pub seed: u64,
    pub length: Duration,
    pub operations: BTreeMap<&'static str, u64>,
    pub faults: BTreeMap<&'static str, u64>,
    pub arrivals: usize,
    /// The longest time from a healed fault of the store until both servers were ready.
    pub slowest_recovery: Duration,
    /// The first violation, with its history.
    pub violation: Option<String>,
}

impl Report {
    pub(super) fn of(run: &Run) -> Report {
        Report {
            store: run.options.store,
            seed: run.options.seed,
            length: run.started.elapsed(),
            operations: run.tally.operations.lock().expect("no holder panics").clone(),
            faults: run.tally.faults.lock().expect("no holder panics").clone(),
            arrivals: run.site.provider.count(),
            slowest_recovery: *run.tally.slowest_recovery.lock().expect("no holder panics"),
            violation: run.tally.violation.lock().expect("no holder panics").clone(),
        }
    }

    pub fn json(&self) -> Value {
        json!({
            "store": self.store_name(),
            "seed": self.seed,
            "seconds": self.length.as_secs_f64(),
            "operations": self.operations,
            "faults": self.faults,
            "arrivals": self.arrivals,
            "slowestRecoverySeconds": self.slowest_recovery.as_secs_f64(),
            "violation": self.violation,
        })
    }

    fn store_name(&self) -> &'static str {
        match self.store {
            StoreKind::Sqlite => "sqlite",
            StoreKind::Postgres => "postgres",
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |of: &BTreeMap<&str, u64>| {
            let items: Vec<String> = of.iter().map(|(name, count)| format!("{name} {count}")).collect();
            items.join(", ")
        };
        writeln!(f, "chaos on {}: seed {}, {:.0} s", self.store_name(), self.seed, self.length.as_secs_f64())?;
        writeln!(f, "operations: {}", list(&self.operations))?;
        writeln!(f, "arrivals at the provider: {}", self.arrivals)?;
        writeln!(f, "faults: {}", list(&self.faults))?;
        writeln!(f, "ready again after at most: {:.1} s", self.slowest_recovery.as_secs_f64())?;
        match &self.violation {
            None => write!(f, "violations: 0"),
            Some(violation) => write!(f, "violations: 1\n{violation}\nto repeat: --seed {}", self.seed),
        }
    }
}

/// One line a second, on a terminal.
pub(super) async fn progress(run: Arc<Run>) {
    if !run.options.shows_progress {
        return;
    }
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let sum = |of: &BTreeMap<&str, u64>| of.values().sum::<u64>();
        let operations = sum(&run.tally.operations.lock().expect("no holder panics"));
        let faults = sum(&run.tally.faults.lock().expect("no holder panics"));
        let seconds = run.started.elapsed().as_secs();
        eprint!("\r{seconds:>5} s  {operations:>9} operations  {faults:>5} faults  seed {} ", run.options.seed);
    }
}
