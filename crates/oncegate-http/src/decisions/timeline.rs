//! The history of a claim that its record does not hold: duplicates and why they were stopped, renewals, take-overs, late answers, acts of
//! people. The claim's page shows it.
//!
//! It is written in the background, usually within a second, into a record beside the claim, with an expiry of its own. A claim that is
//! made
//! and settled without a duplicate has no timeline. Under a flood the writes are bounded: the claim's own count says how many duplicates
//! there
//! were. Acts of people are written at once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hashbrown::HashMap;
use oncegate::store::{At, Change, Commit, MainStore, Place, Record, StoreError};
use oncegate::{Answer, Claim, ClaimKey, Command, Decided, State, Time};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

const KIND: &str = "timeline";
/// The number of moments that are kept of a claim: the first ones, and the last ones.
const FIRST_MAX: usize = 20;
const LAST_MAX: usize = 40;
/// The number of claims with waiting moments, and the moments of each. Further moments are dropped.
const CLAIMS_MAX: usize = 2_048;
const WAITING_MAX: usize = 16;
/// The number of timelines in one write, so that other writes wait only a short time.
const WRITE_MAX: usize = 200;
/// How long a timeline is kept after its last moment: until the window's end, within these bounds. A person may ask later why the claim did
/// not
/// stop a later request, but hardly after a month.
const KEPT_MIN: Duration = Duration::from_secs(24 * 3600);
const KEPT_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// How often a person's moment is retried after a conflict.
const TRIES: usize = 8;

pub const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Something that happened to a claim. Of several similar moments within a second, only the last is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    pub at_us: i64,
    pub what: What,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub times: u32,
    pub replica: String,
    /// The person who acted, and the reason, for acts of people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

fn one() -> u32 {
    1
}

fn is_one(times: &u32) -> bool {
    *times == 1
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A duplicate of a settled claim.
    Duplicate,
    /// A duplicate while the claim's owner was at work.
    InFlight,
    /// A duplicate that waited for the owner until its time-out.
    WaitedInVain,
    Mismatch,
    Held,
    TakenOver,
    Renewed,
    Fenced,
    Released,
    Retracted,
    Forgotten,
    Resolved,
}

impl What {
    /// The moment of a decision, if it needs one: the first owner and the outcome are in the claim's own record.
    fn of(decided: &Decided<'_>) -> Option<What> {
        Some(match (decided.answer, decided.command) {
            (Answer::Won(claim), _) => return (claim.attempt > 1).then_some(What::TakenOver),
            (Answer::Duplicate(_), _) => What::Duplicate,
            (Answer::InFlight(_), _) => {
                if decided.waited {
                    What::WaitedInVain
                } else {
                    What::InFlight
                }
            }
            (Answer::Mismatch(_), _) => What::Mismatch,
            (Answer::Held(_), _) => What::Held,
            (Answer::Refused(refusal), _) => return (refusal.name() == "fenced").then_some(What::Fenced),
            (Answer::Applied(_), Command::Renew { .. }) => What::Renewed,
            (Answer::Applied(_), Command::Release { .. }) => What::Released,
            (Answer::Applied(_), Command::Retract { .. }) => What::Retracted,
            // Only the library abandons a claim; no server writes a timeline for it.
            (Answer::Applied(_), Command::Abandon { .. }) => return None,
            // Acts of people are noted by the code that knows the person.
            (Answer::Applied(_), Command::Forget | Command::Resolve { .. }) => return None,
            (Answer::Applied(_), Command::Settle { .. } | Command::Claim(_)) | (Answer::Already(_), _) => return None,
        })
    }

    pub const fn says(self) -> &'static str {
        match self {
            What::Duplicate => "A duplicate was stopped: the claim was settled. The caller got its outcome.",
            What::InFlight => "A duplicate was stopped: the owner was at work. The caller was told to ask again.",
            What::WaitedInVain => {
                "A duplicate waited for the owner, and was stopped: the claim was not settled in time."
            }
            What::Mismatch => "A caller used the key for another request (the fingerprints differ), and was stopped.",
            What::Held => "A duplicate was stopped: the claim is unknown, and no caller may take over.",
            What::TakenOver => "Its owner's lease had ended: the next caller took over.",
            What::Renewed => "Its owner renewed the lease.",
            What::Fenced => "A caller that is no longer the owner tried to settle or renew it, and was refused.",
            What::Released => "Its owner released it: nothing happened, and the next caller may try.",
            What::Retracted => "Retracted: what it was settled with did not happen.",
            What::Forgotten => "A person forgot it: the next caller is allowed.",
            What::Resolved => "A person resolved it.",
        }
    }

    /// Whether a caller was stopped.
    pub const fn is_stop(self) -> bool {
        matches!(self, What::Duplicate | What::InFlight | What::WaitedInVain | What::Mismatch | What::Held)
    }
}

/// The timeline as stored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Timeline {
    pub first: Vec<Moment>,
    pub last: Vec<Moment>,
    /// The number of moments between the first and the last ones that are not kept.
    #[serde(default)]
    pub left_out: u64,
}

impl Timeline {
    fn add(&mut self, moment: Moment) {
        let newest = self.last.last_mut().or(self.first.last_mut());
        if let Some(newest) = newest.filter(|newest| newest.is_like(&moment)) {
            newest.times += moment.times;
            newest.at_us = newest.at_us.max(moment.at_us);
            return;
        }
        if self.first.len() < FIRST_MAX {
            self.first.push(moment);
            return;
        }
        if self.last.len() == LAST_MAX {
            self.left_out += u64::from(self.last.remove(0).times);
        }
        self.last.push(moment);
    }
}

impl Moment {
    /// Whether the moments are similar, and within a second.
    fn is_like(&self, other: &Moment) -> bool {
        let close = (other.at_us - self.at_us).abs() < 1_000_000;
        close && (self.what, &self.replica, &self.by, &self.why) == (other.what, &other.replica, &other.by, &other.why)
    }
}

/// The moments of a claim that are not written yet.
struct Waiting {
    moments: Vec<Moment>,
    ends_at: Time,
}

impl Waiting {
    fn add(&mut self, moment: Moment, window_ends: Time) {
        let at = Time::from_micros(moment.at_us);
        self.ends_at = self.ends_at.max(window_ends.clamp(at + KEPT_MIN, at + KEPT_MAX));
        let is_full = self.moments.len() >= WAITING_MAX;
        match self.moments.last_mut().filter(|last| last.is_like(&moment)) {
            Some(last) => (last.times, last.at_us) = (last.times + moment.times, moment.at_us),
            None if is_full => {}
            None => self.moments.push(moment),
        }
    }
}

/// All waiting moments, oldest first.
#[derive(Default)]
struct Queue {
    by_claim: HashMap<ClaimKey, Waiting>,
    order: VecDeque<ClaimKey>,
}

impl Queue {
    fn has_room_for(&self, key: &ClaimKey) -> bool {
        self.order.len() < CLAIMS_MAX || self.by_claim.contains_key(key)
    }

    fn add(&mut self, key: &ClaimKey, moment: Moment, window_ends: Time) {
        if let Some(waiting) = self.by_claim.get_mut(key) {
            return waiting.add(moment, window_ends);
        }
        if self.has_room_for(key) {
            let mut waiting = Waiting { moments: vec![], ends_at: Time::LONG_AGO };
            waiting.add(moment, window_ends);
            self.by_claim.insert(key.clone(), waiting);
            self.order.push_back(key.clone());
        }
    }

    fn take(&mut self, most: usize) -> Vec<(ClaimKey, Waiting)> {
        let keys: Vec<ClaimKey> = self.order.drain(..most.min(self.order.len())).collect();
        keys.into_iter().filter_map(|key| self.by_claim.remove_entry(&key)).collect()
    }
}

pub struct Timelines {
    store: Arc<dyn MainStore>,
    replica: String,
    waiting: Mutex<Queue>,
}

impl Timelines {
    pub fn new(store: Arc<dyn MainStore>, replica: &str) -> Timelines {
        Timelines { store, replica: replica.into(), waiting: Mutex::default() }
    }

    /// Notes a decision on a claim. It runs on the caller's task, so it only adds a note to the queue.
    pub fn decided(&self, decided: &Decided<'_>) {
        if let Some(what) = What::of(decided) {
            let claim = match decided.answer {
                Answer::Won(claim) | Answer::Applied(claim) => Some(claim),
                answer => answer.met(),
            };
            let window_ends = claim.map_or(decided.now, |claim| claim.expires_at);
            self.note(decided.key, what, decided.now, window_ends);
        }
    }

    /// A duplicate seen by a read-only lookup.
    pub fn met(&self, claim: &Claim, now: Time) {
        let what = match claim.state_at(now) {
            State::InFlight => What::InFlight,
            State::Unknown => What::Held,
            State::Done | State::Failed => What::Duplicate,
        };
        self.note(&claim.key, what, now, claim.expires_at);
    }

    fn note(&self, key: &ClaimKey, what: What, now: Time, window_ends: Time) {
        let mut queue = self.lock();
        // Under a flood there is no room, and the moment is not built.
        if queue.has_room_for(key) {
            let (at_us, replica) = (now.micros(), self.replica.clone());
            queue.add(key, Moment { at_us, what, times: 1, replica, by: None, why: None }, window_ends);
        }
    }

    /// Notes a person's act on a claim at once, so that the next look at the claim shows it.
    pub async fn done_by(&self, key: &ClaimKey, what: What, now: Time, by: &str, why: Option<&str>) {
        let mut waiting = Waiting { moments: vec![], ends_at: Time::LONG_AGO };
        let (by, why) = (Some(by.to_owned()), why.map(str::to_owned));
        let moment = Moment { at_us: now.micros(), what, times: 1, replica: self.replica.clone(), by, why };
        waiting.add(moment, now);
        let mut unwritten = vec![(key.clone(), waiting)];
        for _ in 0..TRIES {
            unwritten = match self.write_all(unwritten).await {
                Ok(conflicts) if conflicts.is_empty() => return,
                Ok(conflicts) => conflicts,
                // The log has the act.
                Err(error) => return tracing::warn!(event = "decisions.not_recorded", %error),
            };
        }
    }

    /// Writes the moments that have waited longest. A conflict with another replica is retried at the next write. Returns whether there is
    /// more.
    pub async fn write(&self) -> Result<bool, StoreError> {
        let taken = self.lock().take(WRITE_MAX);
        if taken.is_empty() {
            return Ok(false);
        }
        let conflicts = self.write_all(taken).await?;
        let mut queue = self.lock();
        for (key, waiting) in conflicts {
            waiting.moments.into_iter().for_each(|moment| queue.add(&key, moment, waiting.ends_at));
        }
        Ok(!queue.order.is_empty())
    }

    /// Returns the claims with a conflict. While the store is away, moments are dropped: they are only for display, and not worth keeping
    /// in memory.
    async fn write_all(&self, taken: Vec<(ClaimKey, Waiting)>) -> Result<Vec<(ClaimKey, Waiting)>, StoreError> {
        let places: Vec<Place> = taken.iter().map(|(key, _)| place(key)).collect();
        let found = self.store.find(&places).await?.value;
        let commits = taken.iter().zip(found);
        let commits = commits.map(|((key, waiting), before)| change(key, waiting, before));
        let commits = commits.map(|change| Commit { ops: vec![], changes: vec![change] }).collect();
        let committed = self.store.commit_all(commits).await;
        let mut conflicts = vec![];
        for (taken, committed) in taken.into_iter().zip(committed) {
            if !committed?.is_written() {
                conflicts.push(taken);
            }
        }
        Ok(conflicts)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.waiting.lock().expect("no holder of this lock panics")
    }

    /// The stored moments of a claim, and those not written yet.
    pub async fn read(&self, key: &ClaimKey) -> Result<Timeline, StoreError> {
        let record = self.store.find(&[place(key)]).await?.value.remove(0);
        let mut timeline = record.map(|record| read(&record)).unwrap_or_default();
        if let Some(waiting) = self.lock().by_claim.get(key) {
            waiting.moments.iter().cloned().for_each(|moment| timeline.add(moment));
        }
        Ok(timeline)
    }
}

/// The record's id is derived from the claim's.
fn place(key: &ClaimKey) -> Place {
    let id = Uuid::from_slice(&key.id.as_bytes()[..16]).expect("16 bytes are an id");
    Place { workspace: key.workspace.clone(), kind: KIND, at: At::Id(id) }
}

/// An unreadable timeline starts again empty, because it is only for display.
fn read(record: &Record) -> Timeline {
    serde_json::from_slice(&record.body).unwrap_or_default()
}

fn change(key: &ClaimKey, waiting: &Waiting, before: Option<Record>) -> Change {
    let mut timeline = before.as_ref().map(read).unwrap_or_default();
    waiting.moments.iter().cloned().for_each(|moment| timeline.add(moment));
    let At::Id(id) = place(key).at else { unreachable!("a timeline is found by its id") };
    let ended = before.as_ref().and_then(|record| record.expires_at);
    let record = Record {
        workspace: key.workspace.clone(),
        kind: KIND,
        id,
        version: before.as_ref().map_or(1, |record| record.version + 1),
        state: None,
        body: serde_json::to_vec(&timeline).expect("a timeline is JSON").into(),
        expires_at: Some(ended.map_or(waiting.ends_at, |ended| ended.max(waiting.ends_at))),
    };
    if before.is_some() { Change::replace(record) } else { Change::create(record) }
}

#[cfg(test)]
mod tests {
    use oncegate::store::MemoryStore;
    use oncegate::{GuardName, WorkspaceName};

    use super::*;

    fn key() -> ClaimKey {
        let guard = GuardName::new("charge").unwrap();
        ClaimKey::of(&WorkspaceName::default_workspace(), &guard, &[Some("order 17")])
    }

    fn at(second: i64) -> Time {
        Time::from_micros(1_700_000_000_000_000 + second * 1_000_000)
    }

    #[tokio::test]
    async fn moments_of_several_replicas_are_kept_together_and_alike_ones_counted() {
        let store: Arc<dyn MainStore> = Arc::new(MemoryStore::default());
        let (one, other) = (Timelines::new(store.clone(), "one"), Timelines::new(store.clone(), "other"));
        let meet = |timelines: &Timelines, second| {
            timelines.note(&key(), What::Duplicate, at(second), at(60));
        };
        meet(&one, 0);
        meet(&one, 0);
        meet(&other, 5);
        one.write().await.unwrap();
        other.write().await.unwrap();
        let seen = other.read(&key()).await.unwrap();
        let said: Vec<(What, u32, &str)> =
            seen.first.iter().map(|moment| (moment.what, moment.times, moment.replica.as_str())).collect();
        assert_eq!(said, [(What::Duplicate, 2, "one"), (What::Duplicate, 1, "other")]);
        one.done_by(&key(), What::Forgotten, at(9), "ada", Some("it never arrived")).await;
        let seen = other.read(&key()).await.unwrap();
        assert_eq!(seen.first[2].why.as_deref(), Some("it never arrived"));
    }

    #[tokio::test]
    async fn two_replicas_that_write_at_once_lose_nothing() {
        let store: Arc<dyn MainStore> = Arc::new(MemoryStore::default());
        let replicas: Vec<Timelines> = (0..4).map(|name| Timelines::new(store.clone(), &name.to_string())).collect();
        for round in 0..5 {
            for replica in &replicas {
                replica.note(&key(), What::InFlight, at(round * 10), at(60));
            }
            for _ in 0..replicas.len() {
                let written = futures::future::join_all(replicas.iter().map(Timelines::write)).await;
                assert!(written.iter().all(Result::is_ok), "{written:?}");
            }
        }
        assert_eq!(replicas[0].read(&key()).await.unwrap().first.len(), 20);
    }

    #[test]
    fn of_many_moments_the_first_and_the_last_are_kept() {
        let mut timeline = Timeline::default();
        for second in 0..100 {
            let moment = Moment {
                at_us: at(second).micros(),
                what: What::Held,
                times: 1,
                replica: "r".into(),
                by: None,
                why: None,
            };
            timeline.add(moment);
        }
        assert_eq!((timeline.first.len(), timeline.last.len(), timeline.left_out), (FIRST_MAX, LAST_MAX, 40));
        assert_eq!(timeline.last.last().unwrap().at_us, at(99).micros());
    }
}
