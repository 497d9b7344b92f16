//! What a replica has learned about its server since it started.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use oncegate_core::{Time, Token};
use tokio::sync::watch;
use tokio::time::Instant;

/// A commit that succeeded this lately shows that the server can be written to.
const COMMITTED_LATELY: Duration = Duration::from_secs(5);
/// How long a refusal counts, if nothing else is written.
const REFUSED_LATELY: Duration = Duration::from_secs(30);
/// The server's clock and ours may differ by this much between two looks before it counts as a step.
const STEP_MIN: Duration = Duration::from_secs(60);
/// How long nothing is swept after a step: the clock may step back.
const SWEEPING_PAUSES_FOR: Duration = Duration::from_secs(600);

/// Commits that were acknowledged and that the server does not have any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    pub commits: i64,
    /// How long ago the last of them was acknowledged.
    pub acknowledged: Duration,
}

#[derive(Default)]
pub(crate) struct Health {
    largest_token: AtomicI64,
    /// Counts the servers that this replica has met.
    generation: watch::Sender<u64>,
    /// The last of them on which a commit of this replica has succeeded.
    confirmed: AtomicU64,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    committed_at: Option<Instant>,
    /// A write has failed, and no commit has succeeded since.
    is_in_doubt: bool,
    /// What the server said when it last refused to write, and when that was.
    refused: Option<(Instant, String)>,
    /// Which server the last connection led to.
    identity: Option<String>,
    /// The server whose floor of tokens was raised.
    raised: Option<String>,
    lost: i64,
    clock: Option<Look>,
    stepped_at: Option<Instant>,
}

/// The server's time, and ours when we heard it.
#[derive(Clone, Copy)]
struct Look {
    server: Time,
    here: Instant,
}

impl Health {
    /// The largest token that this replica has seen. A server that was promoted may not have it.
    pub fn largest_token(&self) -> Token {
        Token(self.largest_token.load(Ordering::Relaxed))
    }

    pub fn saw_token(&self, token: Token) {
        self.largest_token.fetch_max(token.0, Ordering::Relaxed);
    }

    /// A probe that succeeds shows that the server commits, but not that it has room for more.
    pub fn committed(&self, generation: u64, is_probe: bool) {
        self.confirmed.fetch_max(generation, Ordering::Relaxed);
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

    /// The server is there and does not write: its disk is full, or a privilege is missing.
    pub fn refused(&self, why: &str) {
        self.failed();
        self.known().refused = Some((Instant::now(), why.to_owned()));
    }

    /// Why the server refused to write lately, and has not written since.
    pub fn refused_lately(&self) -> Option<String> {
        let known = self.known();
        known.refused.as_ref().filter(|(at, _)| at.elapsed() < REFUSED_LATELY).map(|(_, why)| why.clone())
    }

    /// Whether a commit has to succeed before anything else is tried.
    pub fn is_in_doubt(&self) -> bool {
        self.known().is_in_doubt
    }

    pub fn has_committed_lately(&self) -> bool {
        self.known().committed_at.is_some_and(|at| at.elapsed() < COMMITTED_LATELY)
    }

    /// A connection leads to this server. Returns its generation: the next one where the server is another than the last one, or
    /// was started again.
    pub fn met(&self, identity: &str) -> u64 {
        let mut known = self.known();
        if known.identity.as_deref() != Some(identity) {
            known.identity = Some(identity.to_owned());
            self.generation.send_modify(|generation| *generation += 1);
        }
        self.generation()
    }

    pub fn generation(&self) -> u64 {
        *self.generation.borrow()
    }

    /// Returns when this replica has met a server after this one.
    pub async fn met_after(&self, generation: u64) {
        // It fails only where the sender is dropped, and `self` has the sender.
        let _ = self.generation.subscribe().wait_for(|met| *met != generation).await;
    }

    /// Whether a commit of this replica has succeeded on this server.
    pub fn has_confirmed(&self, generation: u64) -> bool {
        self.confirmed.load(Ordering::Relaxed) == generation
    }

    /// Whether the floor of tokens was raised on this server.
    pub fn has_raised_floor(&self, identity: &str) -> bool {
        self.known().raised.as_deref() == Some(identity)
    }

    pub fn raised_floor(&self, identity: &str) {
        self.known().raised = Some(identity.to_owned());
    }

    /// Tells of acknowledged commits that are gone.
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

    /// Notices a step of the server's clock. Says whether sweeping may go on: what a clock that is ahead removes is gone.
    pub fn may_sweep(&self, server: Time) -> bool {
        let mut known = self.known();
        let look = Look { server, here: Instant::now() };
        let step = known.clock.replace(look).and_then(|before| step(before, look));
        if let Some(seconds) = step {
            known.stepped_at = Some(look.here);
            tracing::error!(
                event = "store.clock_stepped",
                seconds,
                "the clock of the PostgreSQL server has stepped; nothing is swept for {SWEEPING_PAUSES_FOR:?}"
            );
        }
        known.stepped_at.is_none_or(|at| look.here - at > SWEEPING_PAUSES_FOR)
    }

    /// What a person should know.
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
            warnings.push(format!("the server's clock has stepped {ago} s ago: nothing is swept for ten minutes"));
        }
        warnings
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("no holder of this lock panics")
    }
}

/// By how many seconds the server's clock has stepped between two looks.
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
    fn a_step_forward_or_back_is_noticed() {
        let start = Instant::now();
        assert_eq!(step(look(1_000, 0, start), look(1_010 + 3_600, 10, start)), Some(3_600.0));
        assert_eq!(step(look(10_000, 0, start), look(10_010 - 3_600, 10, start)), Some(-3_600.0));
    }
}
