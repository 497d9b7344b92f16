//! Every transition, as a table, and the invariants over random histories.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::names::{GuardName, WorkspaceName};

const WINDOW: Duration = Duration::from_secs(900);
const LEASE: Duration = Duration::from_secs(30);

fn key() -> ClaimKey {
    ClaimKey::of(&WorkspaceName::default_workspace(), &GuardName::new("test").unwrap(), &[Some("k")])
}

fn terms() -> Terms {
    Terms::new(WINDOW, LEASE, Lost::TakeOver)
}

fn at(micros: i64) -> Moment {
    Moment { now: Time::from_micros(micros), token_floor: Token(0) }
}

const T0: i64 = 1_800_000_000_000_000;
const SECOND: i64 = 1_000_000;

/// One record, as a store would keep it.
struct Record(Option<Arc<Claim>>);

impl Record {
    fn apply(&mut self, command: Command, micros: i64) -> Answer {
        let decision = decide(&key(), self.0.as_ref(), &command, at(micros));
        if let Some(next) = decision.write {
            assert_eq!(next.version, self.0.as_ref().map_or(1, |old| old.version + 1));
            self.0 = Some(next);
        }
        decision.answer
    }

    fn claim(&mut self, micros: i64) -> Answer {
        self.apply(Command::Claim(terms()), micros)
    }

    fn win(&mut self, terms: Terms, micros: i64) -> Token {
        match self.apply(Command::Claim(terms), micros) {
            Answer::Won(claim) => claim.token,
            other => panic!("expected to win, got {other:?}"),
        }
    }
}

fn settle(token: Token, outcome: &'static str) -> Command {
    Command::Settle { token, verdict: Verdict::Done, outcome: Some(Bytes::from(outcome)) }
}

#[test]
fn the_first_caller_wins_and_the_next_finds_it_in_flight_then_settled() {
    let mut record = Record(None);
    let token = record.win(terms(), T0);
    assert_eq!(token, Token(T0));
    assert!(matches!(record.claim(T0 + 1), Answer::InFlight(_)));
    assert!(matches!(record.apply(settle(token, "42"), T0 + 2), Answer::Applied(_)));
    match record.claim(T0 + 3) {
        Answer::Duplicate(claim) => {
            assert_eq!(claim.state, State::Done);
            assert_eq!(claim.outcome.as_deref(), Some(&b"42"[..]));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_window_ends_at_its_end_and_the_token_grows_across_it() {
    let end = T0 + WINDOW.as_micros() as i64;
    let mut record = Record(None);
    let token = record.win(terms(), T0);
    record.apply(settle(token, "1"), T0);
    assert!(matches!(record.claim(end - 1), Answer::Duplicate(_)));
    let next = record.win(terms(), end);
    assert!(next > token);
}

#[test]
fn the_token_grows_when_the_clock_has_stepped_back() {
    let mut record = Record(None);
    let token = record.win(terms(), T0);
    record.apply(Command::Release { token }, T0);
    let earlier = T0 - 3600 * SECOND;
    assert!(matches!(record.claim(earlier), Answer::Won(claim) if claim.token > token), "released stays released");
    let swept =
        decide(&key(), None, &Command::Claim(terms()), Moment { now: Time::from_micros(earlier), token_floor: token });
    match swept.answer {
        Answer::Won(claim) => assert!(claim.token > token),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lost_owner_is_taken_over_at_the_end_of_its_lease_and_is_fenced_from_then_on() {
    let lease_end = T0 + LEASE.as_micros() as i64;
    let mut record = Record(None);
    let first = record.win(terms(), T0);
    assert!(matches!(record.claim(lease_end - 1), Answer::InFlight(_)));
    let second = record.win(terms(), lease_end);
    assert!(second > first);
    assert_eq!(record.0.as_ref().unwrap().attempt, 2);
    for late in [settle(first, "late"), Command::Renew { token: first, lease: None }, Command::Release { token: first }]
    {
        let before = record.0.clone();
        assert_eq!(record.apply(late, lease_end + 1), Answer::Refused(Refusal::TokenOutdated { current: second }));
        assert_eq!(record.0, before);
    }
}

#[test]
fn an_owner_paused_past_its_lease_is_refused_though_nobody_took_over() {
    let lease_end = T0 + LEASE.as_micros() as i64;
    let mut record = Record(None);
    let token = record.win(terms(), T0);
    let ended = Answer::Refused(Refusal::LeaseEnded { at: Time::from_micros(lease_end) });
    assert_eq!(record.apply(settle(token, "late"), lease_end), ended);
    assert_eq!(record.apply(Command::Renew { token, lease: None }, lease_end), ended);
}

#[test]
fn renewing_moves_the_lease_but_never_past_the_window() {
    let mut record = Record(None);
    let token = record.win(terms(), T0);
    record.apply(Command::Renew { token, lease: None }, T0 + 20 * SECOND);
    assert!(matches!(record.claim(T0 + 49 * SECOND), Answer::InFlight(_)));
    record.apply(Command::Renew { token, lease: Some(WINDOW * 2) }, T0 + 49 * SECOND);
    let claim = record.0.clone().unwrap();
    assert_eq!(claim.lease_until, claim.expires_at);
    record.apply(Command::Renew { token, lease: None }, T0);
    assert_eq!(record.0.unwrap().lease_until, claim.lease_until, "and never back");
}

#[test]
fn a_held_claim_is_unknown_when_its_lease_ends_and_only_a_person_settles_it() {
    let lease_end = T0 + LEASE.as_micros() as i64;
    let mut record = Record(None);
    let token = record.win(Terms { lost: Lost::Hold, ..terms() }, T0);
    let resolve = |done| Command::Resolve { done, outcome: None };
    assert_eq!(
        record.apply(resolve(true), lease_end - 1),
        Answer::Refused(Refusal::NotUnknown { state: State::InFlight })
    );
    assert!(matches!(record.claim(lease_end), Answer::Held(_)));
    assert!(matches!(record.apply(settle(token, "late"), lease_end), Answer::Refused(Refusal::LeaseEnded { .. })));
    assert!(matches!(record.apply(resolve(false), lease_end), Answer::Applied(_)));
    assert!(matches!(record.claim(lease_end), Answer::Duplicate(claim) if claim.state == State::Failed));
    assert_eq!(record.apply(resolve(true), lease_end), Answer::Refused(Refusal::NotUnknown { state: State::Failed }));
}

#[test]
fn an_owner_that_cannot_say_leaves_an_unknown_claim_that_nobody_takes_over() {
    let mut record = Record(None);
    let token = record.win(terms(), T0);
    record.apply(Command::Settle { token, verdict: Verdict::Unknown, outcome: None }, T0);
    assert!(matches!(record.claim(T0 + 60 * SECOND), Answer::Held(_)));
    assert!(matches!(record.apply(Command::Resolve { done: true, outcome: None }, T0 + SECOND), Answer::Applied(_)));
}

#[test]
fn settling_the_same_again_succeeds_also_after_the_lease_and_otherwise_is_refused() {
    let mut record = Record(None);
    let token = record.win(terms(), T0);
    record.apply(settle(token, "1"), T0);
    assert!(matches!(record.apply(settle(token, "1"), T0 + 60 * SECOND), Answer::Already(_)));
    assert_eq!(record.apply(settle(token, "2"), T0), Answer::Refused(Refusal::SettledOtherwise { state: State::Done }));
    assert_eq!(
        record.apply(Command::Settle { token, verdict: Verdict::Failed, outcome: Some("1".into()) }, T0),
        Answer::Refused(Refusal::SettledOtherwise { state: State::Done })
    );
}

#[test]
fn releasing_and_forgetting_make_room_for_the_next_caller() {
    let mut record = Record(None);
    let token = record.win(terms(), T0);
    assert!(matches!(record.apply(Command::Release { token }, T0 + 1), Answer::Applied(_)));
    assert_eq!(record.apply(Command::Release { token }, T0 + 1), Answer::Refused(Refusal::Missing));
    let next = record.win(terms(), T0 + 1);
    assert!(next > token);
    assert!(matches!(record.apply(Command::Forget, T0 + 2), Answer::Applied(_)));
    assert_eq!(record.apply(Command::Forget, T0 + 2), Answer::Refused(Refusal::Missing));
    assert_eq!(record.apply(settle(next, "late"), T0 + 2), Answer::Refused(Refusal::Missing));
    assert!(record.win(terms(), T0 + 2) > next);
}

#[test]
fn an_abandoned_claim_is_taken_over_or_held_at_once_and_its_owner_is_fenced() {
    let mut record = Record(None);
    let first = record.win(terms(), T0);
    assert!(matches!(record.apply(Command::Abandon { token: first }, T0 + 1), Answer::Applied(_)));
    assert!(matches!(record.apply(settle(first, "late"), T0 + 1), Answer::Refused(Refusal::LeaseEnded { .. })));
    let second = record.win(terms(), T0 + 1);
    assert_eq!((second > first, record.0.as_ref().unwrap().attempt), (true, 2));
    let stale = Command::Abandon { token: first };
    assert_eq!(record.apply(stale, T0 + 2), Answer::Refused(Refusal::TokenOutdated { current: second }));

    let mut record = Record(None);
    let token = record.win(Terms { lost: Lost::Hold, ..terms() }, T0);
    assert!(matches!(record.apply(Command::Abandon { token }, T0 + 1), Answer::Applied(_)));
    assert!(matches!(record.claim(T0 + 1), Answer::Held(claim) if claim.settled_at == Some(Time::from_micros(T0 + 1))));
    assert!(matches!(record.apply(Command::Resolve { done: true, outcome: None }, T0 + 2), Answer::Applied(_)));
}

#[test]
fn a_different_fingerprint_is_a_mismatch_whatever_the_state() {
    let made_from = |fingerprint: &str| Terms { fingerprint: Some(fingerprint.into()), ..terms() };
    let mut record = Record(None);
    let token = record.win(made_from("a"), T0);
    let other = |record: &mut Record, micros| record.apply(Command::Claim(made_from("b")), micros);
    assert!(matches!(other(&mut record, T0), Answer::Mismatch(_)));
    record.apply(settle(token, "1"), T0);
    assert!(matches!(other(&mut record, T0), Answer::Mismatch(_)));
    assert!(matches!(record.claim(T0), Answer::Duplicate(_)), "who brings none is not compared");
    assert!(matches!(other(&mut record, T0 + WINDOW.as_micros() as i64), Answer::Won(_)));
}

#[test]
fn a_token_that_was_never_given_is_refused() {
    let mut record = Record(None);
    let token = record.win(terms(), T0);
    let forged = Token(token.0 + 1);
    assert_eq!(record.apply(settle(forged, "1"), T0), Answer::Refused(Refusal::TokenUnknown { current: token }));
}

#[test]
fn a_window_for_good_never_ends() {
    let mut record = Record(None);
    record.win(Terms { window: Duration::MAX, ..terms() }, T0);
    assert_eq!(record.0.as_ref().unwrap().expires_at, Time::NEVER);
}

#[derive(Clone, Debug)]
enum Step {
    Claim(bool),
    Renew(usize),
    Settle(usize, u8),
    Release(usize),
    Abandon(usize),
    Forget,
    Resolve(bool),
    Pass(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<bool>().prop_map(Step::Claim),
        2 => (0..4usize).prop_map(Step::Renew),
        3 => (0..4usize, 0..3u8).prop_map(|(who, outcome)| Step::Settle(who, outcome)),
        1 => (0..4usize).prop_map(Step::Release),
        1 => (0..4usize).prop_map(Step::Abandon),
        1 => Just(Step::Forget),
        1 => any::<bool>().prop_map(Step::Resolve),
        3 => (-5 * SECOND..40 * SECOND).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    /// Over any history, also with a clock that steps back: tokens grow, an owner's command is accepted
    /// only from the newest owner, and a settled claim keeps its outcome for the rest of its life.
    #[test]
    fn one_owner_one_outcome_and_growing_tokens(steps in steps()) {
        let mut record = Record(None);
        let mut tokens: Vec<Token> = vec![];
        let mut now = T0;
        for step in steps {
            let before = record.0.clone();
            let holder = |who: usize| tokens.iter().rev().nth(who).copied().unwrap_or(Token(7));
            let (command, used) = match step {
                Step::Pass(micros) => { now += micros; continue; }
                Step::Claim(hold) => {
                    let lost = if hold { Lost::Hold } else { Lost::TakeOver };
                    (Command::Claim(Terms { lost, ..terms() }), None)
                }
                Step::Renew(who) => (Command::Renew { token: holder(who), lease: None }, Some(holder(who))),
                Step::Settle(who, outcome) => (
                    Command::Settle { token: holder(who), verdict: Verdict::Done, outcome: Some(vec![outcome].into()) },
                    Some(holder(who)),
                ),
                Step::Release(who) => (Command::Release { token: holder(who) }, Some(holder(who))),
                Step::Abandon(who) => (Command::Abandon { token: holder(who) }, Some(holder(who))),
                Step::Forget => (Command::Forget, None),
                Step::Resolve(done) => (Command::Resolve { done, outcome: None }, None),
            };
            let is_forget = command == Command::Forget;
            let answer = record.apply(command, now);
            match &answer {
                Answer::Won(claim) => {
                    prop_assert!(tokens.last().is_none_or(|last| claim.token > *last));
                    prop_assert!(claim.lease_until <= claim.expires_at);
                    tokens.push(claim.token);
                }
                Answer::Applied(_) | Answer::Already(_) if used.is_some() => {
                    prop_assert_eq!(used, tokens.last().copied());
                }
                _ => {}
            }
            if !answer.is_accepted() {
                prop_assert_eq!(&record.0, &before);
            }
            if let (Some(old), Some(new)) = (&before, &record.0)
                && old.state.is_settled() && old.is_live(Time::from_micros(now)) && !is_forget
            {
                prop_assert_eq!((&old.state, &old.outcome), (&new.state, &new.outcome));
            }
        }
    }
}

#[test]
fn a_claim_whose_effect_is_in_the_same_commit_is_settled_as_it_is_made_and_can_be_taken_back() {
    let mut record = Record(None);
    let token = record.win(Terms { outcome: Some(Bytes::from_static(b"id 1")), ..terms() }, T0);
    match record.apply(Command::Claim(terms()), T0 + 60 * SECOND) {
        Answer::Duplicate(claim) => {
            assert_eq!(
                (claim.state, claim.settled_at, claim.outcome.as_deref()),
                (State::Done, Some(Time::from_micros(T0)), Some(&b"id 1"[..]))
            );
        }
        other => panic!("{other:?}"),
    }
    let stale = Command::Retract { token: Token(token.0 - 1) };
    assert!(matches!(record.apply(stale, T0), Answer::Refused(Refusal::TokenOutdated { .. })));
    assert!(matches!(record.apply(Command::Retract { token }, T0 + 60 * SECOND), Answer::Applied(_)));
    assert!(matches!(record.apply(Command::Retract { token }, T0 + 60 * SECOND), Answer::Refused(Refusal::Missing)));
    let next = record.win(terms(), T0 + 60 * SECOND);
    assert!(next > token);
    assert!(
        matches!(
            record.apply(Command::Retract { token }, T0 + 60 * SECOND),
            Answer::Refused(Refusal::TokenOutdated { .. })
        ),
        "another's claim is not taken back"
    );
}
