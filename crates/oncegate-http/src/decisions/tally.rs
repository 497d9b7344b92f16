//! The number of decisions in each minute, by guard: the data of the charts.
//!
//! Each process counts separately. Every few seconds it writes its counts into its own record, one for each workspace and hour. A chart
//! adds
//! up the records of all processes. A process that dies loses at most these seconds. The records expire on their own.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use hashbrown::HashMap;
use oncegate::store::{Change, Commit, Listing, MainStore, Place, Record, StoreError};
use oncegate::{Time, WorkspaceName};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::words::Fate;

const KIND: &str = "tally";
/// The number of guards that are counted separately. Callers choose guards' names, so all further guards are counted together.
const GUARDS_MAX: usize = 50;
/// No guard has this name.
pub const OTHER: &str = "(other)";
/// How long a record is kept: somewhat longer than the longest chart.
const KEPT_FOR: Duration = Duration::from_secs(8 * 24 * 3600);
/// The maximum records of one chart; with very many replicas, the newest records.
const READ_MAX: usize = 4_000;
const READ_AT_ONCE: usize = 100;

pub const WRITE_EVERY: Duration = Duration::from_secs(5);

/// A minute since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Minute(pub i64);

impl Minute {
    pub fn of(at: Time) -> Minute {
        Minute(at.micros().div_euclid(60_000_000))
    }

    pub fn begins(self) -> Time {
        Time::from_micros(self.0 * 60_000_000)
    }

    fn hour(self) -> i64 {
        self.0.div_euclid(60)
    }
}

/// The counts of a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub passed: u64,
    pub stopped: u64,
}

impl std::ops::AddAssign for Counted {
    fn add_assign(&mut self, other: Counted) {
        self.passed += other.passed;
        self.stopped += other.stopped;
    }
}

impl std::iter::Sum for Counted {
    fn sum<I: Iterator<Item = Counted>>(counts: I) -> Counted {
        counts.fold(Counted::default(), |mut sum, counted| {
            sum += counted;
            sum
        })
    }
}

/// One process's counts of one workspace in one hour, as stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Sheet {
    hour: i64,
    /// By guard and minute; minutes without a decision are left out.
    guards: BTreeMap<String, BTreeMap<u8, (u64, u64)>>,
}

impl Sheet {
    fn count(&mut self, guard: &str, fate: Fate, minute: Minute) {
        let is_full = self.guards.len() >= GUARDS_MAX;
        let minutes = match self.guards.get_mut(guard) {
            Some(minutes) => minutes,
            None => self.guards.entry(if is_full { OTHER } else { guard }.to_owned()).or_default(),
        };
        let of_hour = u8::try_from(minute.0.rem_euclid(60)).expect("an hour has 60 minutes");
        let (passed, stopped) = minutes.entry(of_hour).or_default();
        *if fate == Fate::Stopped { stopped } else { passed } += 1;
    }
}

/// A sheet, and the state of its record.
struct Open {
    sheet: Sheet,
    id: Uuid,
    /// The version that was last written; 0 if none was.
    version: i64,
    /// The number of counted decisions, and how many of them are written.
    counted: u64,
    written: u64,
}

/// By workspace and hour.
type Sheets = HashMap<Box<str>, BTreeMap<i64, Open>>;

#[derive(Default)]
pub struct Tally {
    open: Mutex<Sheets>,
}

impl Tally {
    pub fn count(&self, workspace: &str, guard: &str, fate: Fate, minute: Minute) {
        let mut open = self.lock();
        let hour = minute.hour();
        let hours = match open.get_mut(workspace) {
            Some(hours) => hours,
            None => open.entry(workspace.into()).or_default(),
        };
        let sheet = hours.entry(hour).or_insert_with(|| Open {
            sheet: Sheet { hour, guards: BTreeMap::new() },
            id: Uuid::now_v7(),
            version: 0,
            counted: 0,
            written: 0,
        });
        sheet.sheet.count(guard, fate, minute);
        sheet.counted += 1;
    }

    /// Writes the counts since the last write, and drops hours that are over.
    pub async fn write(&self, store: &dyn MainStore, now: Time) -> Result<(), StoreError> {
        let hour = Minute::of(now).hour();
        let mut records = vec![];
        self.lock().retain(|workspace, hours| {
            // A decision may still count for an hour shortly after its end.
            hours.retain(|of, open| open.written < open.counted || *of >= hour - 1);
            let unwritten = hours.iter().filter(|(_, open)| open.written < open.counted);
            records.extend(unwritten.filter_map(|(of, open)| Some((*of, open.counted, open.record(workspace)?))));
            !hours.is_empty()
        });
        let change =
            |record: Record| if record.version == 1 { Change::create(record) } else { Change::replace(record) };
        let commits = records.iter().map(|(_, _, record)| change(record.clone()));
        let commits = commits.map(|change| Commit { ops: vec![], changes: vec![change] }).collect();
        let mut failed = None;
        let mut unsure = vec![];
        for ((hour, counted, record), committed) in records.into_iter().zip(store.commit_all(commits).await) {
            match committed {
                Ok(committed) if committed.is_written() => self.mark(&record, hour, record.version, Some(counted)),
                Ok(_) => unsure.push((hour, counted, record)),
                Err(error) => {
                    failed = Some(error);
                    unsure.push((hour, counted, record));
                }
            }
        }
        // No other process writes these records: an unexpected version is our own write, whose acknowledgement was lost.
        let places: Vec<Place> = unsure.iter().map(|(_, _, record)| record.place()).collect();
        for ((hour, counted, record), found) in unsure.into_iter().zip(store.find(&places).await?.value) {
            let version = found.map_or(0, |found| found.version);
            self.mark(&record, hour, version, (version == record.version).then_some(counted));
        }
        failed.map_or(Ok(()), Err)
    }

    /// Notes a sheet's version in the store, and how many of its counts are written there.
    fn mark(&self, record: &Record, hour: i64, version: i64, written: Option<u64>) {
        let mut open = self.lock();
        if let Some(open) = open.get_mut(record.workspace.as_str()).and_then(|hours| hours.get_mut(&hour)) {
            open.version = version;
            open.written = written.unwrap_or(open.written);
        }
    }

    /// The counts of all processes for a workspace, from a minute on, in steps of equal length.
    pub async fn read(
        &self,
        store: &dyn MainStore,
        workspace: &WorkspaceName,
        range: Range,
        now: Time,
    ) -> Result<Series, StoreError> {
        let mut series = Series::new(range, Minute::of(now));
        let own: Vec<Uuid> = {
            let open = self.lock();
            let ours = open.get(workspace.as_str()).into_iter().flat_map(BTreeMap::values);
            ours.inspect(|open| series.add(&open.sheet)).map(|open| open.id).collect()
        };
        let mut listing = Listing {
            workspace: workspace.clone(),
            kind: KIND,
            list: None,
            state: None,
            limit: READ_AT_ONCE,
            before: None,
        };
        // A sheet is created within its hour, and so is its id.
        let too_old = |id: Uuid| made_at(id) < Minute(series.from.0 - 60);
        let mut sheets = vec![];
        for _ in 0..READ_MAX / READ_AT_ONCE {
            let listed = store.list(listing.clone()).await?;
            let is_last = listed.next.is_none_or(too_old);
            // Our counts in memory are newer than our record.
            let others = listed.records.into_iter().filter(|record| !own.contains(&record.id) && !too_old(record.id));
            sheets.extend(others.filter_map(|record| serde_json::from_slice::<Sheet>(&record.body).ok()));
            listing.before = listed.next;
            if is_last {
                break;
            }
        }
        sheets.iter().for_each(|sheet| series.add(sheet));
        Ok(series.folded())
    }

    fn lock(&self) -> MutexGuard<'_, Sheets> {
        self.open.lock().expect("no holder of this lock panics")
    }
}

/// The minute in its id.
fn made_at(id: Uuid) -> Minute {
    let (seconds, _) = id.get_timestamp().map_or((0, 0), |at| at.to_unix());
    Minute(i64::try_from(seconds / 60).unwrap_or(0))
}

impl Open {
    /// The record of the next version.
    fn record(&self, workspace: &str) -> Option<Record> {
        Some(Record {
            // The name comes from a line of the log, whose caller had a valid workspace.
            workspace: WorkspaceName::new(workspace).ok()?,
            kind: KIND,
            id: self.id,
            version: self.version + 1,
            state: None,
            body: serde_json::to_vec(&self.sheet).expect("a sheet is JSON").into(),
            expires_at: Some(Minute((self.sheet.hour + 1) * 60).begins() + KEPT_FOR),
        })
    }
}

/// The time range of a chart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Range {
    #[default]
    Hour,
    Day,
    Week,
}

impl Range {
    pub const ALL: [Range; 3] = [Range::Hour, Range::Day, Range::Week];

    pub const fn as_str(self) -> &'static str {
        match self {
            Range::Hour => "hour",
            Range::Day => "day",
            Range::Week => "week",
        }
    }

    pub fn parse(name: &str) -> Option<Range> {
        Range::ALL.into_iter().find(|range| range.as_str() == name)
    }

    /// The number of steps, and the minutes of each.
    const fn steps(self) -> (usize, i64) {
        match self {
            Range::Hour => (60, 1),
            Range::Day => (96, 15),
            Range::Week => (84, 120),
        }
    }
}

/// Counts over time, by guard.
#[derive(Clone, Debug)]
pub struct Series {
    pub from: Minute,
    /// Minutes in a step.
    pub step: i64,
    pub steps: usize,
    pub guards: BTreeMap<String, Vec<Counted>>,
}

impl Series {
    /// A series without counts.
    pub fn new(range: Range, now: Minute) -> Series {
        let (steps, step) = range.steps();
        // Steps begin at full hours, or quarters of them, so that they do not move while a visitor looks.
        let last = now.0.div_euclid(step);
        let from = Minute((last - i64::try_from(steps).expect("few") + 1) * step);
        Series { from, step, steps, guards: BTreeMap::new() }
    }

    fn add(&mut self, sheet: &Sheet) {
        let (from, length, count) = (self.from.0, self.step, self.steps);
        let step = |minute: u8| {
            let at = sheet.hour * 60 + i64::from(minute) - from;
            usize::try_from(at.div_euclid(length)).ok().filter(|step| *step < count)
        };
        for (guard, minutes) in &sheet.guards {
            let mut within = minutes.iter().filter_map(|(minute, counted)| Some((step(*minute)?, counted))).peekable();
            if within.peek().is_none() {
                continue;
            }
            let steps = self.guards.entry(guard.clone()).or_insert_with(|| vec![Counted::default(); count]);
            for (step, (passed, stopped)) in within {
                steps[step] += Counted { passed: *passed, stopped: *stopped };
            }
        }
    }

    /// The busiest guards separately, and the rest together: a week may have many names.
    fn folded(mut self) -> Series {
        let mut sums: Vec<(u64, String)> = self
            .guards
            .iter()
            .map(|(name, steps)| (steps.iter().map(|step| step.stopped + step.passed).sum(), name.clone()))
            .collect();
        sums.sort_unstable_by(|a, b| b.cmp(a));
        for (_, name) in sums.into_iter().skip(GUARDS_MAX) {
            let steps = self.guards.remove(&name).unwrap_or_default();
            let others = self.guards.entry(OTHER.to_owned()).or_insert_with(|| vec![Counted::default(); self.steps]);
            others.iter_mut().zip(steps).for_each(|(sum, step)| *sum += step);
        }
        self
    }

    /// The sum over all guards.
    pub fn total(&self) -> Counted {
        self.guards.values().flatten().copied().sum()
    }
}

#[cfg(test)]
mod tests {
    use oncegate::store::{Clock, MemoryStore, SystemClock};

    use super::*;

    /// Sheets are found by the time in their ids, so the test uses the time of the clock.
    fn at(hour: i64, minute: i64) -> Minute {
        let this = Minute::of(SystemClock.now()).hour();
        Minute((this - 1000 + hour) * 60 + minute)
    }

    #[tokio::test]
    async fn what_several_processes_count_is_added_up_and_outlives_them() {
        let store = MemoryStore::default();
        let workspace = WorkspaceName::default_workspace();
        let (one, other) = (Tally::default(), Tally::default());
        let now = at(1000, 30);
        for (tally, fate, minute) in [
            (&one, Fate::Stopped, now),
            (&one, Fate::Passed, now),
            (&one, Fate::Stopped, at(999, 59)),
            (&other, Fate::Stopped, now),
            (&other, Fate::Stopped, at(998, 0)),
        ] {
            tally.count("default", "message", fate, minute);
        }
        one.count("another", "message", Fate::Stopped, now);
        one.write(&store, now.begins()).await.unwrap();
        other.write(&store, now.begins()).await.unwrap();
        one.count("default", "message", Fate::Stopped, now);
        one.write(&store, now.begins()).await.unwrap();
        one.count("default", "charge", Fate::Stopped, now);
        let hour = one.read(&store, &workspace, Range::Hour, now.begins()).await.unwrap();
        assert_eq!(hour.total(), Counted { passed: 1, stopped: 5 }, "what is not written yet is there, too");
        assert_eq!(hour.guards["message"][59], Counted { passed: 1, stopped: 3 });
        assert_eq!(hour.guards["message"][28], Counted { passed: 0, stopped: 1 });
        // A new process reads what was written.
        let later = Tally::default().read(&store, &workspace, Range::Day, now.begins()).await.unwrap();
        assert_eq!(later.total(), Counted { passed: 1, stopped: 5 });
        assert!(!later.guards.contains_key("charge"));
    }

    #[tokio::test]
    async fn a_write_whose_answer_was_lost_is_not_counted_twice() {
        let store = MemoryStore::default();
        let tally = Tally::default();
        let now = at(1000, 0);
        tally.count("default", "g", Fate::Passed, now);
        tally.write(&store, now.begins()).await.unwrap();
        // Simulates a lost acknowledgement of the first write.
        let open = |tally: &Tally, (version, written)| {
            let mut sheets = tally.lock();
            let open = sheets.get_mut("default").unwrap().values_mut().next().unwrap();
            (open.version, open.written) = (version, written);
        };
        open(&tally, (0, 0));
        for _ in 0..3 {
            tally.write(&store, now.begins()).await.unwrap();
        }
        let kept = tally.lock()["default"].values().next().unwrap().written;
        assert_eq!(kept, 1);
        let workspace = WorkspaceName::default_workspace();
        let read = Tally::default().read(&store, &workspace, Range::Hour, now.begins()).await.unwrap();
        assert_eq!(read.total().passed, 1);
    }

    #[test]
    fn guards_beyond_the_limit_are_counted_together() {
        let mut sheet = Sheet { hour: 0, guards: BTreeMap::new() };
        for number in 0..2 * GUARDS_MAX {
            sheet.count(&format!("g{number}"), Fate::Passed, Minute(0));
        }
        assert_eq!(sheet.guards.len(), GUARDS_MAX + 1);
        assert_eq!(sheet.guards[OTHER][&0], (GUARDS_MAX as u64, 0));
    }
}
