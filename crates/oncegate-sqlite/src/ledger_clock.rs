//! The I/O of the ledger's clock: reads the machine's clocks and the file's row. [`anchor`](crate::anchor) decides.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, RwLock};

use oncegate_core::Time;
use oncegate_store::{Clock, MachineTime, StoreError};
use rusqlite::{Connection, OptionalExtension, Row, named_params};

use crate::anchor::{Anchor, News, Step, observe};
use crate::store_error;

/// How long, in microseconds, a reader trusts the clock's state that the writer last saw. Other processes may change that state.
const FRESH_FOR_US: i64 = 60_000_000;

pub struct LedgerClock {
    source: Arc<dyn Clock>,
    /// The state that the writer last committed or found. `None`: the source is not the machine's clock, and is trusted as it is.
    anchor: RwLock<Option<Anchor>>,
    /// When the writer last observed the clock, in microseconds since boot.
    looked_at: AtomicI64,
}

/// The time of the writer's transaction.
#[derive(Clone, Copy)]
pub struct Observed {
    pub now: Time,
    pub may_sweep: bool,
    anchored: Option<(Anchor, Option<News>, MachineTime)>,
}

impl LedgerClock {
    /// Reads the file's clock, or sets it if it was never set.
    pub fn open(source: Arc<dyn Clock>, connection: &Connection) -> Result<Self, StoreError> {
        let clock = LedgerClock { source, anchor: RwLock::new(None), looked_at: AtomicI64::new(0) };
        let set = || {
            connection.execute_batch("BEGIN IMMEDIATE")?;
            let observed = clock.observe(connection, None)?;
            connection.execute_batch("COMMIT")?;
            clock.committed(&observed);
            Ok(())
        };
        set().map_err(store_error)?;
        Ok(clock)
    }

    pub fn now(&self) -> Time {
        match self.anchored() {
            Some((anchor, machine)) => anchor.time_at(machine.since_boot_us),
            None => self.source.now(),
        }
    }

    /// The time for an answer without the writer. `None`: another process may have changed the clock's state.
    pub fn now_if_fresh(&self) -> Option<Time> {
        let Some((anchor, machine)) = self.anchored() else { return Some(self.source.now()) };
        let is_fresh = machine.since_boot_us - self.looked_at.load(Relaxed) < FRESH_FOR_US;
        is_fresh.then(|| anchor.time_at(machine.since_boot_us))
    }

    pub fn warning(&self) -> Option<String> {
        self.anchored().and_then(|(anchor, machine)| anchor.warning(machine))
    }

    fn anchored(&self) -> Option<(Anchor, MachineTime)> {
        let anchor = (*self.anchor.read().expect("no holder of this lock panics"))?;
        Some((anchor, self.source.machine()?))
    }

    // The functions below are for the writer, within a transaction.

    /// Reads the clocks, and writes the new state if it has changed. `known` is the file's state, if no other process has written since.
    pub fn observe(&self, connection: &Connection, known: Option<Anchor>) -> rusqlite::Result<Observed> {
        let Some(machine) = self.source.machine() else {
            return Ok(Observed { now: self.source.now(), may_sweep: true, anchored: None });
        };
        let found = match known {
            Some(anchor) => Some(anchor),
            None => read(connection)?,
        };
        let (anchor, news) = observe(found, machine);
        if found != Some(anchor) {
            write(connection, &anchor)?;
        }
        let since_boot = machine.since_boot_us;
        Ok(Observed {
            now: anchor.time_at(since_boot),
            may_sweep: anchor.may_sweep(since_boot),
            anchored: Some((anchor, news, machine)),
        })
    }

    /// Writes the time of the transaction's decisions into the file.
    pub fn note(&self, connection: &Connection, observed: &mut Observed) -> rusqlite::Result<()> {
        if let Some((anchor, ..)) = &mut observed.anchored {
            let noted = anchor.with_seen(observed.now);
            if noted != *anchor {
                write(connection, &noted)?;
                *anchor = noted;
            }
        }
        Ok(())
    }

    /// After the commit: publishes the state to readers and logs the news. Returns the file's state.
    pub fn committed(&self, observed: &Observed) -> Option<Anchor> {
        let (anchor, news, machine) = observed.anchored?;
        self.looked_at.store(machine.since_boot_us, Relaxed);
        if *self.anchor.read().expect("no holder of this lock panics") != Some(anchor) {
            *self.anchor.write().expect("no holder of this lock panics") = Some(anchor);
        }
        match news {
            Some(News::Stepped(by)) => tracing::warn!(
                event = "clock.stepped",
                by_seconds = by / 1_000_000,
                "the wall clock stepped. The ledger keeps to elapsed time, and sweeps nothing until the step is confirmed"
            ),
            Some(News::Returned) => tracing::info!(event = "clock.returned", "the wall clock is back where it was"),
            Some(News::Confirmed(by)) => tracing::warn!(
                event = "clock.step_confirmed",
                by_seconds = by / 1_000_000,
                "the stepped wall clock is stable. The ledger follows it by a tenth of the time that passes"
            ),
            None => {}
        }
        Some(anchor)
    }
}

fn read(connection: &Connection) -> rusqlite::Result<Option<Anchor>> {
    let mut read = connection.prepare_cached(include_str!("../sql/read_clock.sql"))?;
    let anchor = |row: &Row<'_>| {
        let boot: String = row.get(0)?;
        let step = row.get::<_, Option<i64>>(5)?.zip(row.get(6)?);
        Ok(Anchor {
            // A text that Oncegate did not write counts as another boot.
            boot: u128::from_str_radix(&boot, 16).unwrap_or(0),
            since: row.get(1)?,
            offset: row.get(2)?,
            target: row.get(3)?,
            sweeps_from: row.get(4)?,
            step: step.map(|(offset, since)| Step { offset, since }),
            seen: row.get(7)?,
        })
    };
    read.query_row([], anchor).optional()
}

fn write(connection: &Connection, anchor: &Anchor) -> rusqlite::Result<()> {
    let Anchor { boot, since, offset, target, sweeps_from, step, seen } = anchor;
    let mut write = connection.prepare_cached(include_str!("../sql/write_clock.sql"))?;
    write
        .execute(named_params! {
            ":boot": format!("{boot:032x}"),
            ":since": since,
            ":offset": offset,
            ":target": target,
            ":sweeps_from": sweeps_from,
            ":step_offset": step.map(|step| step.offset),
            ":step_since": step.map(|step| step.since),
            ":seen": seen,
        })
        .map(drop)
}
