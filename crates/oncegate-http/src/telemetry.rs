//! Reports each decision: one log line, one counter.
//!
//! Nothing here contains a part of a key, an outcome or an attribute: they may be personal data.

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use hashbrown::HashMap;
use metrics::{Counter, counter};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use oncegate::{Answer, Claim, ClaimKey, Command, Decided, GuardName, Observer, StoreError, Time};

use crate::brake::Brake;
use crate::decisions::timeline::Timelines;
use crate::observe::{LIMITED, REQUEST_SECONDS, STOPPED};
use oncegate_transports::trace;

/// The number of guards with their own label. Callers choose guards' names, so further guards share the label `other`.
const GUARD_LABELS_MAX: usize = 100;
/// From a claim on a fast disk to a claim that waits for another owner.
const REQUEST_SECONDS_BUCKETS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// Makes the process's metrics readable at `/metrics`.
pub fn install_metrics() -> PrometheusHandle {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full(REQUEST_SECONDS.into()), REQUEST_SECONDS_BUCKETS)
        .expect("there are buckets")
        .install_recorder()
        .expect("metrics are installed once");
    metrics::describe_counter!("oncegate_decisions_total", "Commands on claims, by guard and answer.");
    metrics::describe_counter!(
        LIMITED,
        "Requests and events that were refused at a limit of their workspace, by limit."
    );
    metrics::describe_counter!(STOPPED, "Callers that were told not to go ahead.");
    metrics::describe_counter!(
        "oncegate_duplicate_guard_errors_total",
        "Effects let through unguarded, the store being away."
    );
    metrics::describe_counter!(crate::messages::EVENTS, "What became of messages, by event.");
    metrics::describe_counter!(crate::actions::Event::COUNTER, "What became of actions, by event.");
    metrics::describe_counter!(crate::sends::COUNTER, "What became of sends, by event.");
    metrics::describe_counter!(crate::reminders::Event::COUNTER, "What became of reminders, by event.");
    metrics::describe_counter!(crate::sagas::COUNTER, "Events, by saga and what became of them.");
    metrics::describe_counter!(
        "oncegate_log_lines_dropped_total",
        "Log lines dropped because their reader was too slow."
    );
    metrics::describe_counter!("oncegate_store_errors_total", "Operations that the store did not answer.");
    metrics::describe_counter!(
        "oncegate_store_commits_lost_total",
        "Acknowledged commits that the store lost, after a failover or a restore."
    );
    metrics::describe_counter!("oncegate_swept_claims_total", "Expired claims removed.");
    metrics::describe_counter!("oncegate_http_requests_total", "HTTP responses, by status.");
    metrics::describe_histogram!(REQUEST_SECONDS, metrics::Unit::Seconds, "From a request's headers to its answer.");
    metrics::describe_gauge!("oncegate_http_connections", "Open HTTP connections.");
    handle
}

pub struct Telemetry {
    /// Read for every decision, and seldom changed.
    guards: ArcSwap<HashMap<GuardName, Arc<Counters>>>,
    timelines: Arc<Timelines>,
}

impl Observer for Telemetry {
    fn decided(&self, decided: &Decided<'_>) {
        self.timelines.decided(decided);
        trace::decided(decided);
        self.count(&decided.key.guard, |counters| {
            counters.answered(decided.answer);
            if decided.answer.met().is_some() {
                counters.stopped.increment(1);
            }
        });
        let Decided { key, answer, now, waited, command } = decided;
        let event = event(command, answer);
        let (workspace, guard, hex) = (key.workspace.as_str(), key.guard.as_str(), key.id.to_hex());
        match answer.met() {
            Some(claim) => {
                let age = now.since(claim.created_at).as_secs_f64();
                tracing::info!(event, workspace, guard, claimId = &*hex, ageSeconds = age, waited);
            }
            None => tracing::info!(event, workspace, guard, claimId = &*hex),
        }
    }

    fn counted(&self, decided: &Decided<'_>) {
        self.timelines.decided(decided);
        trace::decided(decided);
        self.count(&decided.key.guard, |counters| counters.answered(decided.answer));
    }

    fn met(&self, claim: &Claim, now: Time) {
        trace::met(claim, now);
    }

    fn met_alone(&self, claim: &Claim, now: Time) {
        self.timelines.met(claim, now);
    }

    fn store_failed(&self, key: &ClaimKey, error: &StoreError) {
        counter!("oncegate_store_errors_total").increment(1);
        static BRAKE: Brake = Brake::new();
        if let Some(left_out) = BRAKE.admit(Instant::now()) {
            let (workspace, guard) = (&key.workspace, &key.guard);
            tracing::error!(event = "store.error", %workspace, %guard, claimId = %key.id, %error, leftOut = left_out);
        }
    }

    fn swept(&self, claims: usize) {
        counter!("oncegate_swept_claims_total").increment(claims as u64);
        tracing::debug!(event = "claim.swept", claims);
    }
}

fn event(command: &Command, answer: &Answer) -> &'static str {
    match (answer, command) {
        (Answer::Won(_), _) => "claim.won",
        (Answer::Duplicate(_), _) => "claim.duplicate",
        (Answer::InFlight(_), _) => "claim.in_flight",
        (Answer::Mismatch(_), _) => "claim.mismatch",
        (Answer::Held(_), _) => "claim.held",
        (Answer::Refused(refusal), _) if refusal.name() == "fenced" => "claim.fenced",
        (Answer::Refused(_), _) => "claim.refused",
        (Answer::Already(_), _) => "claim.already_settled",
        (Answer::Applied(_), Command::Renew { .. }) => "claim.renewed",
        (Answer::Applied(claim), Command::Settle { .. }) => match claim.state {
            oncegate::State::Done => "claim.done",
            oncegate::State::Failed => "claim.failed",
            _ => "claim.unknown",
        },
        (Answer::Applied(_), Command::Release { .. }) => "claim.released",
        (Answer::Applied(_), Command::Abandon { .. }) => "claim.abandoned",
        (Answer::Applied(_), Command::Retract { .. }) => "claim.retracted",
        (Answer::Applied(_), Command::Forget) => "claim.forgotten",
        (Answer::Applied(_), Command::Resolve { .. }) => "claim.resolved",
        (Answer::Applied(_), Command::Claim(_)) => unreachable!("a claim is won, not applied"),
    }
}

/// One guard's counters, looked up once and then only incremented.
struct Counters {
    by_answer: [(&'static str, Counter); 10],
    stopped: Counter,
}

const ANSWERS: [&str; 10] =
    ["won", "duplicate", "in_flight", "mismatch", "held", "applied", "already", "missing", "fenced", "not_unknown"];

impl Counters {
    fn of(guard: &str) -> Self {
        Counters {
            by_answer: ANSWERS.map(|answer| {
                (answer, counter!("oncegate_decisions_total", "guard" => guard.to_owned(), "answer" => answer))
            }),
            stopped: counter!(STOPPED, "guard" => guard.to_owned()),
        }
    }

    fn answered(&self, answer: &Answer) {
        let name = answer.name();
        if let Some((_, counter)) = self.by_answer.iter().find(|(known, _)| *known == name) {
            counter.increment(1);
        }
    }
}

impl Telemetry {
    pub fn new(timelines: Arc<Timelines>) -> Telemetry {
        Telemetry { guards: ArcSwap::default(), timelines }
    }

    fn count(&self, guard: &GuardName, increment: impl Fn(&Counters)) {
        let guards = self.guards.load();
        if let Some(counters) = guards.get(guard) {
            return increment(counters);
        }
        if guards.len() >= GUARD_LABELS_MAX {
            return increment(&Counters::of("other"));
        }
        // Two counters that are created concurrently count the same metric. (Concurrent calls may give a few guards too many a label.)
        let counters = Arc::new(Counters::of(guard.as_str()));
        self.guards.rcu(|guards| {
            let mut guards = HashMap::clone(guards);
            guards.insert(guard.clone(), counters.clone());
            guards
        });
        increment(&counters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_has_its_counter() {
        let refusals = [
            oncegate::Refusal::Missing,
            oncegate::Refusal::LeaseEnded { at: oncegate::Time::NEVER },
            oncegate::Refusal::NotUnknown { state: oncegate::State::Done },
        ];
        for refusal in refusals {
            assert!(ANSWERS.contains(&Answer::Refused(refusal).name()));
        }
    }
}
