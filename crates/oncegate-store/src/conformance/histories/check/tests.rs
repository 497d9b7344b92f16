//! Small histories with their verdicts. Each rule is broken once, and once only just kept.

use std::time::{Duration, Instant};

use oncegate_core::Verdict;

use super::*;

/// Calls at whole seconds, each by a client of its own. `order` follows the time.
struct Script(Vec<Event>);

const LEASE: Duration = Duration::from_secs(10);
const WINDOW: Duration = Duration::from_secs(100);

fn stamp(seconds: f64) -> Stamp {
    Stamp { order: (seconds * 1e6) as u64, at: (seconds * 1e6) as i64 }
}

fn claim() -> Call {
    Call::Claim { lease: LEASE, window: WINDOW, holds: false }
}

fn settle(token: i64, outcome: &'static str) -> Call {
    Call::Settle { token: Token(token), verdict: Verdict::Done, outcome: outcome.into() }
}

fn renew(token: i64) -> Call {
    Call::Renew { token: Token(token), lease: LEASE }
}

fn release(token: i64) -> Call {
    Call::Release { token: Token(token) }
}

fn won(token: i64) -> Reply {
    Reply::Won(Token(token))
}

fn done(outcome: &'static str) -> Reply {
    Reply::Settled { token: None, state: State::Done, outcome: Some(outcome.into()) }
}

const IN_FLIGHT: Reply = Reply::InFlight { token: None };

impl Script {
    fn new() -> Script {
        Script(vec![])
    }

    fn call(mut self, from: f64, to: f64, call: Call, reply: Reply) -> Script {
        let client = self.0.len() as u32;
        self.0.push(Event { key: "k".into(), client, called: stamp(from), returned: stamp(to), call, reply });
        self
    }

    #[track_caller]
    fn is_right(&self) {
        self.is_right_by(Rules::default());
    }

    #[track_caller]
    fn is_right_by(&self, rules: Rules) {
        if let Err(violation) = check(&self.0, rules) {
            panic!("{violation}");
        }
    }

    #[track_caller]
    fn is_wrong(&self, what: &str) {
        self.is_wrong_by(Rules::default(), what);
    }

    #[track_caller]
    fn is_wrong_by(&self, rules: Rules, what: &str) {
        match check(&self.0, rules) {
            Ok(figures) => panic!("not found: {what}; {figures:?}"),
            Err(violation) => {
                assert!(violation.what.contains(what), "{violation}");
                assert!(violation.to_string().contains(">>> "), "{violation}");
            }
        }
    }
}

#[test]
fn a_take_over_before_the_lease_can_have_ended_is_found() {
    let first = || Script::new().call(0.0, 1.0, claim(), won(1));
    first().call(8.0, 9.9, claim(), won(2)).is_wrong("has not ended");
    first().call(8.0, 10.0, claim(), won(2)).is_right();
    first().call(2.0, 3.0, renew(1), Reply::Accepted).call(10.5, 11.9, claim(), won(2)).is_wrong("has not ended");
    first().call(2.0, 3.0, renew(1), Reply::Unknown).call(9.5, 10.5, claim(), won(2)).is_right();
    first().call(2.0, 9.0, release(1), Reply::Unknown).call(3.0, 4.0, claim(), won(2)).is_right();
    first().call(2.0, 9.0, release(1), Reply::Fenced).call(3.0, 4.0, claim(), won(2)).is_wrong("has not ended");
    first().call(2.0, 3.0, Call::ByHand, Reply::Accepted).call(3.0, 4.0, claim(), won(2)).is_right();
}

#[test]
fn a_settled_claim_that_is_won_within_its_window_is_found() {
    let settled = || Script::new().call(0.0, 1.0, claim(), won(1)).call(2.0, 3.0, settle(1, "a"), Reply::Accepted);
    settled().call(50.0, 51.0, claim(), won(2)).is_wrong("had settled it");
    settled().call(99.5, 100.5, claim(), won(2)).is_right();
    let unanswered = || Script::new().call(0.0, 1.0, claim(), won(1)).call(2.0, 3.0, settle(1, "a"), Reply::Unknown);
    unanswered().call(50.0, 51.0, claim(), won(2)).is_right();
    unanswered().call(20.0, 21.0, claim(), done("a")).call(50.0, 51.0, claim(), won(2)).is_wrong("had settled it");
}

#[test]
fn tokens_that_shrink_or_come_twice_are_found() {
    Script::new().call(0.0, 1.0, claim(), won(5)).call(20.0, 21.0, claim(), won(4)).is_wrong("larger token");
    Script::new().call(0.0, 1.0, claim(), won(5)).call(20.0, 21.0, claim(), won(5)).is_wrong("one token");
}

#[test]
fn a_stale_owners_verb_that_is_accepted_is_found() {
    let taken_over = || Script::new().call(0.0, 1.0, claim(), won(1)).call(20.0, 21.0, claim(), won(2));
    for verb in [settle(1, "late"), renew(1), release(1)] {
        taken_over().call(22.0, 23.0, verb.clone(), Reply::Accepted).is_wrong("had succeeded");
        taken_over().call(22.0, 23.0, verb, Reply::Fenced).is_right();
    }
}

#[test]
fn a_verb_that_is_accepted_after_its_lease_is_found() {
    let owned = || Script::new().call(0.0, 1.0, claim(), won(1));
    for verb in [settle(1, "late"), renew(1), release(1)] {
        owned().call(11.1, 12.0, verb.clone(), Reply::Accepted).is_wrong("had ended");
        owned().call(10.9, 12.0, verb.clone(), Reply::Accepted).is_right();
        owned().call(5.0, 6.0, renew(1), Reply::Unknown).call(15.0, 16.0, verb, Reply::Accepted).is_right();
    }
    owned().call(5.0, 6.0, settle(1, "a"), Reply::Unknown).call(50.0, 51.0, settle(1, "a"), Reply::Accepted).is_right();
}

#[test]
fn a_late_word_about_a_send_is_right_as_long_as_no_other_has_begun() {
    let sends = Rules { late_words: true, ..Rules::default() };
    let owned = || Script::new().call(0.0, 1.0, claim(), won(1));
    for word in [settle(1, "late"), release(1)] {
        owned().call(50.0, 51.0, word.clone(), Reply::Accepted).is_right_by(sends);
        let taken_over = owned().call(20.0, 21.0, claim(), won(2));
        taken_over.call(50.0, 51.0, word, Reply::Accepted).is_wrong_by(sends, "had succeeded");
    }
    owned().call(50.0, 51.0, renew(1), Reply::Accepted).is_wrong_by(sends, "had ended");
}

#[test]
fn a_held_claim_that_goes_missing_within_its_window_is_found() {
    let holds = || Call::Claim { lease: LEASE, window: WINDOW, holds: true };
    let owned = || Script::new().call(0.0, 1.0, holds(), won(1));
    owned().call(15.0, 16.0, Call::Read, Reply::Missing).is_wrong("within its window");
    owned().call(5.0, 6.0, release(1), Reply::Unknown).call(15.0, 16.0, Call::Read, Reply::Missing).is_right();
    owned().call(15.0, 16.0, Call::ByHand, Reply::Unknown).call(17.0, 18.0, Call::Read, Reply::Missing).is_right();
    let after_its_window = WINDOW.as_secs_f64() + 1.0;
    owned().call(after_its_window, after_its_window + 1.0, Call::Read, Reply::Missing).is_right();
}

#[test]
fn an_outcome_that_changes_goes_missing_or_comes_from_nowhere_is_found() {
    let settled = || Script::new().call(0.0, 1.0, claim(), won(1)).call(2.0, 3.0, settle(1, "a"), Reply::Accepted);
    settled().call(4.0, 5.0, claim(), done("a")).call(6.0, 7.0, Call::Read, done("a")).is_right();
    settled().call(4.0, 5.0, claim(), done("b")).is_wrong("no owner wrote");
    settled().call(4.0, 5.0, settle(1, "b"), Reply::Accepted).is_wrong("second outcome");
    settled().call(4.0, 5.0, settle(1, "b"), Reply::Fenced).call(6.0, 7.0, claim(), done("b")).is_wrong("refused");
    settled().call(4.0, 5.0, claim(), IN_FLIGHT).is_wrong("no owner had a lease");
    settled().call(2.5, 5.0, claim(), IN_FLIGHT).is_right();
    settled().call(4.0, 5.0, Call::Read, Reply::Missing).is_wrong("missing");
    settled().call(101.0, 102.0, Call::Read, Reply::Missing).is_right();
    settled().call(102.0, 103.0, claim(), done("a")).is_wrong("window had ended");
}

#[test]
fn a_live_claim_that_goes_missing_is_found() {
    let owned = || Script::new().call(0.0, 1.0, claim(), won(1));
    owned().call(2.0, 3.0, Call::Read, Reply::Missing).is_wrong("missing");
    owned().call(2.0, 10.5, Call::Read, Reply::Missing).is_right();
    owned().call(2.0, 3.0, renew(1), Reply::Missing).is_wrong("refused");
    owned().call(2.0, 3.0, settle(1, "a"), Reply::Fenced).is_wrong("refused");
    owned().call(2.0, 3.0, settle(1, "a"), Reply::NotWritten).is_right();
    owned().call(9.0, 11.0, renew(1), Reply::Fenced).is_right();
}

#[test]
fn a_dead_owner_that_blocks_its_key_is_found() {
    let owned = || Script::new().call(0.0, 1.0, claim(), won(1));
    owned().call(11.5, 12.0, claim(), IN_FLIGHT).is_wrong("no owner had a lease");
    owned().call(10.5, 12.0, claim(), IN_FLIGHT).is_right();
}

#[test]
fn a_claim_without_an_answer_may_own_the_key() {
    let owned = || Script::new().call(0.0, 1.0, claim(), won(1)).call(2.0, 3.0, claim(), Reply::Unknown);
    owned().call(15.0, 16.0, claim(), IN_FLIGHT).is_right();
    owned().call(4.0, 5.0, Call::Read, Reply::InFlight { token: Some(Token(7)) }).is_wrong("another owner");
    owned().call(15.0, 16.0, Call::Read, Reply::InFlight { token: Some(Token(7)) }).is_right();
}

#[test]
fn a_million_events_are_read_in_seconds() {
    let mut events = vec![];
    for key in 0..10_000u32 {
        let name: Arc<str> = format!("key {key}").into();
        for turn in 0..25u32 {
            let start = f64::from(turn) * 200.0 + f64::from(key) / 1e5;
            let token = i64::from(turn) + 1;
            let script = Script::new()
                .call(start, start + 1.0, claim(), won(token))
                .call(start + 1.0, start + 2.0, claim(), IN_FLIGHT)
                .call(start + 2.0, start + 3.0, renew(token), Reply::Accepted)
                .call(start + 4.0, start + 5.0, release(token), Reply::Accepted);
            events.extend(script.0.into_iter().map(|event| Event { key: name.clone(), ..event }));
        }
    }
    let started = Instant::now();
    let figures = check(&events, Rules::default()).unwrap_or_else(|violation| panic!("{violation}"));
    assert_eq!((figures.events, figures.wins), (1_000_000, 250_000));
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}
