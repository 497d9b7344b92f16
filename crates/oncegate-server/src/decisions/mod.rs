//! Every decision of this process, as it was told to the log: the last ones, for whoever looks, and how many of each, over time.
//!
//! The log is the one place where decisions are told; this listens to it (`log/json.rs`). So what the dashboard and `oncegate tail` show is what
//! the log has, and holds nothing that the log must not hold.

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

use crate::problem::{Kind, Problem};
use tally::{Minute, Tally};
use words::{Fate, Meaning};

/// Lines that are kept of each workspace.
const LINES_MAX: usize = 1_000;
/// Workspaces that lines are kept of. One more takes the place of one that has been silent for a while; if there is none, of that one nothing is kept.
const WORKSPACES_MAX: usize = 64;
const SILENT_FOR: Duration = Duration::from_secs(60);
/// Followers, of all workspaces: each looks several times a second. One workspace has far fewer (`limits.workspace.followers`).
const FOLLOWERS_MAX: usize = 1024;

/// A line of the log that tells of a decision.
#[derive(Clone, Debug)]
pub struct Told {
    /// How many there were before it in its workspace.
    pub number: u64,
    pub meaning: &'static Meaning,
    text: Arc<Text>,
}

/// As it is in the log.
#[derive(Debug, Default)]
struct Text {
    line: String,
    /// Where in it the guard is named, if it is.
    guard: Range<usize>,
}

impl Told {
    pub fn guard(&self) -> &str {
        if self.text.guard.is_empty() { self.meaning.guard } else { &self.text.line[self.text.guard.clone()] }
    }

    pub fn line(&self) -> &str {
        &self.text.line
    }

    /// What people did, and why, is for those who may do the same.
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
    /// Rings that have been begun, ever.
    begun: u64,
}

struct Ring {
    serial: u64,
    /// How many there have been.
    count: u64,
    told: VecDeque<Told>,
    last_at: Time,
}

/// Where somebody is who follows: in which ring, and how far. At first in none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    ring: u64,
    number: u64,
}

/// Some decisions, the oldest first.
pub struct Heard {
    pub told: Vec<Told>,
    /// Where to go on.
    pub next: Place,
    /// How many there were before these that are not kept any more; at least so many, if the ring has begun anew.
    pub missed: u64,
}

/// Somebody who follows, for as long as this lives.
pub struct Follower(Arc<AtomicUsize>);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Decisions {
    /// Hears a line of the log, of which the event, the workspace and where the guard is have been seen as it was written.
    pub fn hear(&self, event: &str, workspace: &str, guard: Option<Range<usize>>, line: &str, now: Time) {
        let Some(meaning) = Meaning::of(event) else { return };
        if matches!(meaning.fate, Fate::Passed | Fate::Stopped) {
            let guard = guard.clone().map_or(meaning.guard, |place| &line[place]);
            self.tally.count(workspace, guard, meaning.fate, Minute::of(now));
        }
        let mut rings = self.lock();
        let Some(ring) = rings.of(workspace, now) else { return };
        let oldest = if ring.told.len() >= LINES_MAX { ring.told.pop_front() } else { None };
        // The oldest gives its memory to the newest, unless somebody is just looking at it.
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

    /// What a workspace has been told since `after`; nothing is waited for.
    pub fn since(&self, workspace: &str, after: Place) -> Heard {
        let rings = self.lock();
        let Some(ring) = rings.by_workspace.get(workspace) else {
            return Heard { told: vec![], next: after, missed: 0 };
        };
        let first = ring.count - ring.told.len() as u64;
        let (number, lost) = match after.ring {
            of if of == ring.serial => (after.number, 0),
            0 => (0, 0),
            // The one before was given up, with whatever was told after it was last looked at.
            _ => (0, 1),
        };
        let skipped = usize::try_from(number.saturating_sub(first)).unwrap_or(usize::MAX);
        let told = ring.told.iter().skip(skipped).cloned().collect();
        let next = Place { ring: ring.serial, number: ring.count };
        Heard { told, next, missed: first.saturating_sub(number) + lost }
    }

    /// Where the last `count` decisions begin.
    pub fn last(&self, workspace: &str, count: u64) -> Place {
        let rings = self.lock();
        rings.by_workspace.get(workspace).map_or(Place::default(), |ring| Place {
            ring: ring.serial,
            number: ring.count - count.min(ring.told.len() as u64),
        })
    }

    /// A place among those who follow, if there is one.
    pub fn follow(&self) -> Result<Follower, Problem> {
        let follower = Follower(self.followers.clone());
        match self.followers.fetch_add(1, Ordering::SeqCst) < FOLLOWERS_MAX {
            true => Ok(follower),
            false => Err(Kind::StoreUnavailable.because("too many follow decisions here already").retry_after(10)),
        }
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
        // It takes the place, and the memory, of one that named a guard.
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
        // It begins anew.
        decisions.lock().by_workspace.get_mut("1").unwrap().last_at = long_ago;
        hear(&decisions, "0", 7);
        let heard = decisions.since("0", after);
        assert_eq!((heard.told.len(), heard.missed), (1, 1));
    }

    #[test]
    fn there_is_room_for_so_many_followers() {
        let decisions = Decisions::default();
        let mut followers: Vec<Follower> = (0..FOLLOWERS_MAX).map(|_| decisions.follow().unwrap()).collect();
        assert!(decisions.follow().is_err());
        followers.pop();
        assert!(decisions.follow().is_ok(), "who leaves makes room");
    }
}
