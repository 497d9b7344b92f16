//! What a replica has learned about its server since it started.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use oncegate_core::{Time, Token};
use oncegate_store::{Clock, SystemClock};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::fault::Fault;

/// A commit that succeeded this lately shows that the server can be written to.
const COMMITTED_LATELY: Duration = Duration::from_secs(5);
/// How long a refusal counts, unless a later write succeeds.
const REFUSED_LATELY: Duration = Duration::from_secs(30);
/// The smallest difference between the server's clock and ours, between two observations, that counts as a step.
const STEP_MIN: Duration = Duration::from_secs(60);
/// How long sweeping pauses after a step: the clock may step back.
const SWEEPING_PAUSES_FOR: Duration = Duration::from_secs(600);

/// The server that a connection leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The same for a server and all its standbys.
    pub system: String,
    /// Increases by one with each promotion.
    pub timeline: u32,
    pub started: String,
}

/// Acknowledged commits that the server no longer has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    pub commits: i64,
    /// How long ago the last of them was acknowledged.
    pub acknowledged: Duration,
}

#[derive(Default)]
pub(crate) struct Health {
    largest_token: AtomicI64,
    /// Incremented for each new server that this replica meets.
    generation: watch::Sender<u64>,
    /// Counts the events after which the server may show commits that its standbys do not have. These are opened connections, since a
    /// crash closes all of them, and COMMITs without an answer.
    doubts: AtomicU64,
    /// The value of `doubts` when the last successful commit began.
    doubts_cleared: AtomicU64,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    committed_at: Option<Instant>,
    /// A write has failed, and no commit has succeeded since.
    is_in_doubt: bool,
    /// The server's message when it last refused to write, and when that was.
    refused: Option<(Instant, String)>,
    /// The server that the last connection led to.
    identity: Option<Identity>,
    /// The server whose token floor was raised.
    raised: Option<Identity>,
    lost: i64,
    clock: Option<Look>,
    stepped_at: Option<Instant>,
}

/// The server's time, and our time when we received it.
#[derive(Clone, Copy)]
struct Look {
    server: Time,
    here: Instant,
}

impl Health {
    /// The largest token that this replica has seen. A promoted server may not have it.
    pub fn largest_token(&self) -> Token {
        Token(self.largest_token.load(Ordering::Relaxed))
    }

    pub fn saw_token(&self, token: Token) {
        self.largest_token.fetch_max(token.0, Ordering::Relaxed);
    }

    /// Records a successful commit. `doubts` is from [`Health::doubts`], before the commit began. A successful probe shows that the
    /// server commits, but not that it has disk space for more.
    pub fn committed(&self, doubts: u64, is_probe: bool) {
        self.doubts_cleared.fetch_max(doubts, Ordering::SeqCst);
        let mut known = self.known();
        known.committed_at = Some(Instant::now());
        known.is_in_doubt = false;
        if !is_probe {
            known.refused = None;
        }
    }

    /// A write has failed.
    pub fn failed(&self) {
        let mut known = self.known();
        known.committed_at = None;
        known.is_in_doubt = true;
    }

    /// The server is reachable but does not write: its disk is full, or a privilege is missing.
    pub fn refused(&self, why: &str) {
        self.failed();
        self.known().refused = Some((Instant::now(), why.to_owned()));
    }

    /// Why the server refused to write recently, if no write has succeeded since.
    pub fn refused_lately(&self) -> Option<String> {
        let known = self.known();
        known.refused.as_ref().filter(|(at, _)| at.elapsed() < REFUSED_LATELY).map(|(_, why)| why.clone())
    }

    /// Whether a commit has to succeed before any other statement runs.
    pub fn is_in_doubt(&self) -> bool {
        self.known().is_in_doubt
    }

    pub fn has_committed_lately(&self) -> bool {
        self.known().committed_at.is_some_and(|at| at.elapsed() < COMMITTED_LATELY)
    }

    /// Records that a connection leads to this server, and returns its generation. The generation increases if the server differs from
    /// the last one or was restarted. A server that was replaced by a newer one is refused if this replica has met the newer one.
    pub fn met(&self, identity: &Identity) -> Result<u64, Fault> {
        let mut known = self.known();
        if known.identity.as_ref() != Some(identity) {
            if let Some(last) = &known.identity
                && last.system == identity.system
                && last.timeline > identity.timeline
            {
                return Err(Fault::Gone(format!(
                    "the server is on timeline {}, and was replaced by one on timeline {}, which this replica has met. hint: stop the \
                     replaced server; if it is the one to be used, start oncegate again",
                    identity.timeline, last.timeline
                )));
            }
            known.identity = Some(identity.clone());
            // The last server has committed, but this one has not.
            known.committed_at = None;
            self.generation.send_modify(|generation| *generation += 1);
        }
        // After the generation, so that a COMMIT to the last server does not clear this doubt.
        self.doubt();
        Ok(self.generation())
    }

    pub fn generation(&self) -> u64 {
        *self.generation.borrow()
    }

    /// Returns when this replica has met a server of a later generation.
    pub async fn met_after(&self, generation: u64) {
        // This fails only if the sender is dropped, and `self` owns the sender.
        let _ = self.generation.subscribe().wait_for(|met| *met != generation).await;
    }

    pub fn doubts(&self) -> u64 {
        self.doubts.load(Ordering::SeqCst)
    }

    pub fn doubt(&self) {
        self.doubts.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether everything that the server shows is as durable as an acknowledged commit.
    pub fn is_confirmed(&self) -> bool {
        self.doubts_cleared.load(Ordering::SeqCst) == self.doubts()
    }

    /// Whether the token floor was raised on this server.
    pub fn has_raised_floor(&self, identity: &Identity) -> bool {
        self.known().raised.as_ref() == Some(identity)
    }

    pub fn raised_floor(&self, identity: &Identity) {
        self.known().raised = Some(identity.clone());
    }

    /// Reports acknowledged commits that are gone, in the log and in a metric.
    pub fn lost(&self, loss: &Loss) {
        metrics::counter!("oncegate_store_commits_lost_total").increment(loss.commits.unsigned_abs());
        tracing::error!(
            event = "store.commits_lost",
            commits = loss.commits,
            acknowledged_seconds_ago = loss.acknowledged.as_secs_f64(),
            "the PostgreSQL server does not have at least this many commits that this replica acknowledged: it was restored, \
             promoted without them, or crashed with synchronous_commit off. What they recorded may happen again"
        );
        self.known().lost += loss.commits;
    }

    /// Detects a step of the server's clock. Returns whether sweeping may go on: records removed because a clock is ahead are gone.
    pub fn may_sweep(&self, server: Time) -> bool {
        self.may_sweep_by(Look { server, here: Instant::now() }, SystemClock.now())
    }

    /// `ours` is the wall clock of this machine.
    fn may_sweep_by(&self, look: Look, ours: Time) -> bool {
        let mut known = self.known();
        // The server's clock may have stepped before this replica started, so the first observation is compared with our own clock.
        let before = known.clock.replace(look).unwrap_or(Look { server: ours, ..look });
        if let Some(seconds) = step(before, look) {
            known.stepped_at = Some(look.here);
            tracing::error!(
                event = "store.clock_stepped",
                seconds,
                "the clock of the PostgreSQL server has stepped, or differs from this machine's; nothing is swept for {SWEEPING_PAUSES_FOR:?}"
            );
        }
        known.stepped_at.is_none_or(|at| look.here - at > SWEEPING_PAUSES_FOR)
    }

    /// What an operator should know.
    pub fn warnings(&self) -> Vec<String> {
        let known = self.known();
        let mut warnings = vec![];
        if known.lost > 0 {
            warnings.push(format!(
                "the server has lost at least {} commits that this replica acknowledged: it was restored, or promoted without them",
                known.lost
            ));
        }
        if let Some(at) = known.stepped_at.filter(|at| at.elapsed() <= SWEEPING_PAUSES_FOR) {
            let ago = at.elapsed().as_secs();
            warnings.push(format!(
                "the server's clock has stepped {ago} s ago, or differs from this machine's: nothing is swept for ten minutes"
            ));
        }
        warnings
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("no holder of this lock panics")
    }
}

/// The seconds by which the server's clock has stepped between two observations.
fn step(before: Look, now: Look) -> Option<f64> {
    let passed_there = (now.server.micros() - before.server.micros()) as f64 / 1e6;
    let step = passed_there - (now.here - before.here).as_secs_f64();
    (step.abs() >= STEP_MIN.as_secs_f64()).then_some(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(server_seconds: i64, here_seconds: u64, start: Instant) -> Look {
        let server = Time::from_micros(server_seconds * 1_000_000);
        Look { server, here: start + Duration::from_secs(here_seconds) }
    }

    #[test]
    fn a_clock_that_runs_beside_ours_has_not_stepped() {
        let start = Instant::now();
        for drift in [-59, 0, 59] {
            assert_eq!(step(look(1_000, 0, start), look(4_600 + drift, 3_600, start)), None, "{drift}");
        }
    }

    #[test]
    fn a_server_that_was_replaced_is_not_met_again() {
        let health = Health::default();
        let on_timeline = |timeline| Identity { system: "7".into(), timeline, started: format!("{timeline}") };
        assert_eq!(health.met(&on_timeline(2)).unwrap(), 1);
        assert_eq!(health.met(&on_timeline(3)).unwrap(), 2);
        let refused = health.met(&on_timeline(2)).unwrap_err();
        assert!(refused.message().contains("timeline 2"), "{}", refused.message());
        assert_eq!(health.met(&on_timeline(3)).unwrap(), 2, "nothing has changed");
        let another = Identity { system: "8".into(), ..on_timeline(1) };
        assert_eq!(health.met(&another).unwrap(), 3, "another cluster, which was restored, say");
    }

    #[test]
    fn doubts_are_cleared_by_a_commit_that_began_after_them() {
        let health = Health::default();
        let before = health.doubts();
        health.doubt();
        health.committed(before, false);
        assert!(!health.is_confirmed(), "it began before");
        health.committed(health.doubts(), true);
        assert!(health.is_confirmed());
        let server = Identity { system: "7".into(), timeline: 1, started: String::new() };
        health.met(&server).unwrap();
        assert!(!health.is_confirmed(), "the connections before may have ended with a crash");
    }

    #[test]
    fn nothing_is_swept_for_ten_minutes_by_a_clock_that_has_stepped_or_differs_from_ours() {
        let (start, ours) = (Instant::now(), |seconds: i64| Time::from_micros(seconds * 1_000_000));
        let health = Health::default();
        assert!(health.may_sweep_by(look(1_000, 0, start), ours(1_030)));
        assert!(!health.may_sweep_by(look(1_010 + 3_600, 10, start), ours(1_040)), "a step");
        assert!(!health.may_sweep_by(look(1_600 + 3_600, 600, start), ours(1_630)));
        assert!(health.may_sweep_by(look(1_611 + 3_600, 611, start), ours(1_641)), "it was confirmed");

        let two_days = 2 * 24 * 3_600;
        let started_later = Health::default();
        assert!(!started_later.may_sweep_by(look(1_000 + two_days, 0, start), ours(1_000)));
        assert!(!started_later.warnings().is_empty());
        assert!(!started_later.may_sweep_by(look(1_020, 20, start), ours(1_020)), "back again: another step");
        assert!(started_later.may_sweep_by(look(1_621, 621, start), ours(1_621)));
    }

    #[test]
    fn a_step_forward_or_back_is_noticed() {
        let start = Instant::now();
        assert_eq!(step(look(1_000, 0, start), look(1_010 + 3_600, 10, start)), Some(3_600.0));
        assert_eq!(step(look(10_000, 0, start), look(10_010 - 3_600, 10, start)), Some(-3_600.0));
    }
}
