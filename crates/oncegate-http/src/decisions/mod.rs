//! Every decision of this process, as the log reports it: the last decisions, for followers, and counts over time.
//!
//! Decisions are reported only to the log, and this module listens to the log (`log/json.rs`). So the dashboard and `oncegate tail` show
//! what
//! the log has, and nothing that the log must not contain.

pub mod tally;
pub mod timeline;
pub mod words;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hashbrown::HashMap;
use oncegate::Time;
use oncegate::store::Role;
use serde_json::Value;

use tally::{Minute, Tally};
use words::{Fate, Meaning};

/// The number of lines that are kept of each workspace.
const LINES_MAX: usize = 1_000;
/// The number of workspaces whose lines are kept. A further workspace replaces one that has been idle for a while. If none is idle, the
/// further
/// workspace's lines are dropped.
const WORKSPACES_MAX: usize = 64;
const SILENT_FOR: Duration = Duration::from_secs(60);
/// The maximum followers, over all workspaces: each polls several times a second. The limit of one workspace is much lower
/// (`limits.workspace.followers`).
const FOLLOWERS_MAX: usize = 1024;

/// A line of the log that reports a decision.
#[derive(Clone, Debug)]
pub struct Told {
    /// The number of decisions before it in its workspace.
    pub number: u64,
    pub meaning: &'static Meaning,
    text: Arc<Text>,
}

/// The text as it is in the log.
#[derive(Debug, Default)]
struct Text {
    line: String,
    /// The range of the guard's name in the text, if it names one.
    guard: Range<usize>,
}

impl Told {
    pub fn guard(&self) -> &str {
        if self.text.guard.is_empty() { self.meaning.guard } else { &self.text.line[self.text.guard.clone()] }
    }

    pub fn line(&self) -> &str {
        &self.text.line
    }

    /// Whether this role may see it: only a role that may do the same sees what people did, and why.
    pub fn is_for(&self, role: Role) -> bool {
        self.meaning.guard != words::AUDIT || role >= Role::Operate
    }

    pub fn read(&self) -> Value {
        serde_json::from_str(self.line()).expect("lines of the log are JSON")
    }
}

#[derive(Default)]
pub struct Decisions {
    rings: Mutex<Rings>,
    followers: Arc<AtomicUsize>,
    pub tally: Tally,
}

#[derive(Default)]
struct Rings {
    by_workspace: HashMap<Box<str>, Ring>,
    /// The number of rings that were ever created.
    begun: u64,
}

struct Ring {
    serial: u64,
    /// The number of decisions so far.
    count: u64,
    told: VecDeque<Told>,
    last_at: Time,
}

/// The position of a follower: its ring, and its offset in that ring. At first it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    ring: u64,
    number: u64,
}

/// Decisions, oldest first.
pub struct Heard {
    pub told: Vec<Told>,
    /// The position of the next read.
    pub next: Place,
    /// How many earlier decisions are no longer kept; a lower bound, if the ring was created again.
    pub missed: u64,
}

/// A place among the followers, until it is dropped.
pub struct Follower(Arc<AtomicUsize>);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Decisions {
    /// Takes a line of the log. The formatter found the event, the workspace and the range of the guard while it wrote the line.
    pub fn hear(&self, event: &str, workspace: &str, guard: Option<Range<usize>>, line: &str, now: Time) {
        let Some(meaning) = Meaning::of(event) else { return };
        if matches!(meaning.fate, Fate::Passed | Fate::Stopped) {
            let guard = guard.clone().map_or(meaning.guard, |place| &line[place]);
            self.tally.count(workspace, guard, meaning.fate, Minute::of(now));
        }
        let mut rings = self.lock();
        let Some(ring) = rings.of(workspace, now) else { return };
        let oldest = if ring.told.len() >= LINES_MAX { ring.told.pop_front() } else { None };
        // The newest line reuses the memory of the oldest, unless a reader still holds it.
        let mut text = oldest.map(|oldest| oldest.text).unwrap_or_default();
        if Arc::get_mut(&mut text).is_none() {
            text = Arc::default();
        }
        let kept = Arc::get_mut(&mut text).expect("nobody else has it");
        line.trim_end().clone_into(&mut kept.line);
        kept.guard = guard.unwrap_or_default();
        ring.told.push_back(Told { number: ring.count, meaning, text });
        ring.count += 1;
        ring.last_at = now;
    }

    /// The decisions of a workspace after `after`, without waiting.
    pub fn since(&self, workspace: &str, after: Place) -> Heard {
        let rings = self.lock();
        let Some(ring) = rings.by_workspace.get(workspace) else {
            return Heard { told: vec![], next: after, missed: 0 };
        };
        let first = ring.count - ring.told.len() as u64;
        let (number, lost) = match after.ring {
            of if of == ring.serial => (after.number, 0),
            0 => (0, 0),
            // The earlier ring was replaced, with the decisions that it got after the last read.
            _ => (0, 1),
        };
        let skipped = usize::try_from(number.saturating_sub(first)).unwrap_or(usize::MAX);
        let told = ring.told.iter().skip(skipped).cloned().collect();
        let next = Place { ring: ring.serial, number: ring.count };
        Heard { told, next, missed: first.saturating_sub(number) + lost }
    }

    /// The position of the last `count` decisions.
    pub fn last(&self, workspace: &str, count: u64) -> Place {
        let rings = self.lock();
        rings.by_workspace.get(workspace).map_or(Place::default(), |ring| Place {
            ring: ring.serial,
            number: ring.count - count.min(ring.told.len() as u64),
        })
    }

    /// A place among the followers, if there is one left.
    pub fn follow(&self) -> Option<Follower> {
        let follower = Follower(self.followers.clone());
        (self.followers.fetch_add(1, Ordering::SeqCst) < FOLLOWERS_MAX).then_some(follower)
    }

    fn lock(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().expect("no holder of this lock panics")
    }
}

impl Rings {
    fn of(&mut self, workspace: &str, now: Time) -> Option<&mut Ring> {
        let Rings { by_workspace, begun } = self;
        if !by_workspace.contains_key(workspace) {
            if by_workspace.len() >= WORKSPACES_MAX {
                let silent = by_workspace.iter().find(|(_, ring)| now.since(ring.last_at) >= SILENT_FOR);
                let silent = silent.map(|(name, _)| name.clone())?;
                by_workspace.remove(&silent);
            }
            *begun += 1;
            let ring = Ring { serial: *begun, count: 0, told: VecDeque::new(), last_at: now };
            by_workspace.insert(workspace.into(), ring);
        }
        by_workspace.get_mut(workspace)
    }
}

#[cfg(test)]
mod tests {
    use oncegate::store::{Clock, SystemClock};

    use super::*;

    fn hear(decisions: &Decisions, workspace: &str, number: usize) {
        let line = format!("{{\"guard\":\"g\",\"event\":\"claim.won\",\"number\":{number}}}\n");
        decisions.hear("claim.won", workspace, Some(10..11), &line, SystemClock.now());
    }

    #[test]
    fn the_last_decisions_are_kept_and_the_others_counted() {
        let decisions = Decisions::default();
        let start = decisions.last("a", 5);
        assert!(decisions.since("a", start).told.is_empty());
        decisions.hear("server.listening", "a", None, "{}\n", SystemClock.now());
        for number in 0..LINES_MAX + 10 {
            hear(&decisions, "a", number);
        }
        hear(&decisions, "b", 0);
        let all = decisions.since("a", start);
        assert_eq!((all.told.len(), all.missed, all.next.number), (LINES_MAX, 10, (LINES_MAX + 10) as u64));
        assert_eq!((all.told[0].number, &all.told[0].read()["number"]), (10, &10.into()));
        let two = decisions.since("a", decisions.last("a", 2));
        assert_eq!((two.told.len(), two.missed), (2, 0));
        assert!(decisions.since("a", two.next).told.is_empty());
        assert_eq!(decisions.since("b", decisions.last("b", 9)).told.len(), 1, "one workspace does not hear another's");
    }

    #[test]
    fn a_line_that_somebody_looks_at_stays_as_it_was_when_its_place_is_taken() {
        let decisions = Decisions::default();
        hear(&decisions, "a", 0);
        let seen = decisions.since("a", Place::default()).told.remove(0);
        for number in 1..=LINES_MAX {
            hear(&decisions, "a", number);
        }
        // It reuses the slot and the memory of a line that named a guard.
        decisions.hear("message.api.sent", "a", None, "{}\n", SystemClock.now());
        assert_eq!((seen.guard(), &seen.read()["number"]), ("g", &0.into()));
        let newest = decisions.since("a", decisions.last("a", 1)).told.remove(0);
        assert_eq!((newest.guard(), newest.line()), ("message", "{}"));
    }

    #[test]
    fn a_workspace_that_has_been_silent_gives_way_and_its_followers_are_told() {
        let decisions = Decisions::default();
        for number in 0..WORKSPACES_MAX {
            hear(&decisions, &number.to_string(), 0);
        }
        let nowhere = Place::default();
        let after = decisions.since("0", nowhere).next;
        hear(&decisions, "one more", 0);
        assert!(decisions.since("one more", nowhere).told.is_empty(), "all of them are heard of just now");
        let long_ago = Time::from_micros(0);
        decisions.lock().by_workspace.get_mut("0").unwrap().last_at = long_ago;
        hear(&decisions, "one more", 0);
        assert_eq!(decisions.since("one more", nowhere).told.len(), 1);
        assert!(decisions.since("0", after).told.is_empty());
        // The ring is created again.
        decisions.lock().by_workspace.get_mut("1").unwrap().last_at = long_ago;
        hear(&decisions, "0", 7);
        let heard = decisions.since("0", after);
        assert_eq!((heard.told.len(), heard.missed), (1, 1));
    }

    #[test]
    fn there_is_room_for_so_many_followers() {
        let decisions = Decisions::default();
        let mut followers: Vec<Follower> = (0..FOLLOWERS_MAX).map(|_| decisions.follow().unwrap()).collect();
        assert!(decisions.follow().is_none());
        followers.pop();
        assert!(decisions.follow().is_some(), "who leaves makes room");
    }
}
