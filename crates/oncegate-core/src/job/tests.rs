use proptest::prelude::*;

use super::*;

const NOW: Time = Time::from_micros(1_700_000_000_000_000);
const LEASE: Duration = Duration::from_secs(30);

fn job(delivery: Delivery) -> Job {
    Job {
        workspace: WorkspaceName::default_workspace(),
        id: Uuid::from_u128(7),
        kind: "message:send".into(),
        payload: Bytes::from_static(b"{}"),
        lane: None,
        state: State::Pending,
        started: false,
        due_at: NOW,
        postponed_until: Time::LONG_AGO,
        token: Token(0),
        lease_until: Time::LONG_AGO,
        version: 1,
        tried: 0,
        tries: Tries { max: 3, pause: Duration::from_secs(1), pause_max: Duration::from_secs(300) },
        delivery,
        begun: false,
        reached: Reached::No,
        created_at: NOW,
        error: None,
    }
}

fn at(seconds: u64) -> Time {
    NOW + Duration::from_secs(seconds)
}

fn kept(job: &Job, command: Command, now: Time) -> Job {
    match decide(job, &command, now) {
        Decision::Keep(next) => {
            assert_eq!(next.version, job.version + 1);
            next
        }
        other => panic!("{command:?} on {job:?}: {other:?}"),
    }
}

fn refused(job: &Job, command: Command, now: Time) -> Refusal {
    match decide(job, &command, now) {
        Decision::Refuse(refusal) => refusal,
        other => panic!("{command:?} on {job:?}: {other:?}"),
    }
}

fn lease(job: &Job, now: Time) -> Job {
    kept(job, Command::Lease { lease: LEASE }, now)
}

/// Leases the job and begins a try.
fn begin(job: &Job, now: Time) -> Job {
    let leased = lease(job, now);
    kept(&leased, Command::Begin { token: leased.token }, now)
}

fn fail(job: &Job, reached: Reached) -> Command {
    let failure = Failure { error: "refused".into(), reached, is_final: false, retry_in: None };
    Command::Fail { token: job.token, failure }
}

#[test]
fn a_job_is_leased_when_it_is_due_and_by_one_worker() {
    let later = Job { due_at: at(5), ..job(Delivery::AtLeastOnce) };
    assert_eq!(refused(&later, Command::Lease { lease: LEASE }, at(4)), Refusal::NotDue { at: at(5) });
    assert_eq!(later.wakes_at(), at(5));
    let first = lease(&later, at(5));
    assert_eq!((first.state, first.token, first.tried, first.lease_until), (State::Running, Token(1), 1, at(35)));
    assert_eq!((first.fate(), first.wakes_at(), first.stands_until()), (None, at(35), at(35)));
    assert_eq!(refused(&first, Command::Lease { lease: LEASE }, at(34)), Refusal::Leased { until: at(35) });
    assert_eq!(decide(&first, &Command::Complete { token: Token(1) }, at(34)), Decision::End(End::Completed));
}

#[test]
fn a_worker_that_was_paused_past_its_lease_is_refused_whether_or_not_another_has_it() {
    let first = lease(&job(Delivery::AtLeastOnce), NOW);
    let late = [
        Command::Renew { token: Token(1), lease: LEASE },
        Command::Complete { token: Token(1) },
        fail(&first, Reached::No),
        Command::GiveBack { token: Token(1) },
        Command::GiveUp { token: Token(1) },
    ];
    for command in &late {
        assert_eq!(refused(&first, command.clone(), at(30)), Refusal::LeaseEnded { at: at(30) });
    }
    let second = lease(&first, at(30));
    assert_eq!((second.token, second.tried, second.reached), (Token(2), 2, Reached::Maybe));
    for command in late {
        assert_eq!(refused(&second, command, at(31)), Refusal::TokenOutdated);
    }
}

#[test]
fn a_renewal_lengthens_a_lease_and_never_shortens_it() {
    let leased = lease(&job(Delivery::AtLeastOnce), NOW);
    let renew = |seconds| Command::Renew { token: Token(1), lease: Duration::from_secs(seconds) };
    assert_eq!(kept(&leased, renew(30), at(10)).lease_until, at(40));
    assert_eq!(kept(&leased, renew(1), at(10)).lease_until, at(30));
}

#[test]
fn a_failed_try_comes_back_later_each_time_until_there_are_no_more() {
    for (last_word, reached) in [(End::Dead, Reached::No), (End::Unknown, Reached::Maybe)] {
        let mut job = job(Delivery::AtLeastOnce);
        let mut now = NOW;
        for (reached, longest) in [(Reached::No, 1), (reached, 2)] {
            job = lease(&job, now);
            job = kept(&job, fail(&job, reached), now);
            let pause = job.due_at.since(now);
            assert!(pause > Duration::from_millis(longest * 500) && pause <= Duration::from_secs(longest), "{pause:?}");
            assert_eq!((job.state, job.error.as_deref()), (State::Pending, Some("refused")));
            now = job.due_at;
        }
        job = lease(&job, now);
        // Once a try may have reached the receiver, a later failure does not undo that.
        assert_eq!(decide(&job, &fail(&job, Reached::No), now), Decision::End(last_word));
    }
}

#[test]
fn what_would_fail_again_is_not_tried_again() {
    let leased = lease(&job(Delivery::AtLeastOnce), NOW);
    let refused = Failure { error: "400".into(), reached: Reached::No, is_final: true, retry_in: None };
    assert_eq!(decide(&leased, &Command::Fail { token: Token(1), failure: refused }, NOW), Decision::End(End::Dead));
}

#[test]
fn a_receiver_that_says_when_to_come_back_is_listened_to() {
    let leased = lease(&job(Delivery::AtLeastOnce), NOW);
    let busy = |seconds| Command::Fail {
        token: Token(1),
        failure: Failure {
            error: "429".into(),
            reached: Reached::No,
            is_final: false,
            retry_in: Some(Duration::from_secs(seconds)),
        },
    };
    assert_eq!(kept(&leased, busy(20), NOW).due_at, at(20));
    assert!(kept(&leased, busy(0), NOW).due_at > NOW, "but not to come back at once");
}

#[test]
fn at_most_once_is_not_repeated_when_it_may_have_happened() {
    let leased = begin(&job(Delivery::AtMostOnce), NOW);
    assert_eq!(decide(&leased, &fail(&leased, Reached::Maybe), at(1)), Decision::End(End::Unknown));
    assert_eq!(kept(&leased, fail(&leased, Reached::No), at(1)).state, State::Pending);
    assert_eq!(refused(&leased, Command::GiveUp { token: Token(1) }, at(1)), Refusal::NotGivenUp);
    let mut found = lease(&leased, at(30));
    assert_eq!((found.fate(), found.error.as_deref()), (Some(End::Unknown), Some("its worker was lost")));
    // The worker that found the lost job may be lost too.
    found = lease(&found, at(60));
    assert_eq!(decide(&found, &Command::GiveUp { token: found.token }, at(61)), Decision::End(End::Unknown));
}

#[test]
fn a_lost_worker_is_a_try_like_any_other() {
    let mut job = job(Delivery::AtLeastOnce);
    for turn in 0..3 {
        job = lease(&job, at(30 * turn));
        assert_eq!(job.fate(), None);
    }
    job = lease(&job, at(90));
    assert_eq!((job.fate(), job.tried), (Some(End::Unknown), 4));
}

#[test]
fn what_was_not_begun_is_given_back_as_if_it_had_not_been_leased() {
    let untried = lease(&lease(&job(Delivery::AtMostOnce), NOW), at(30));
    assert_eq!((untried.tried, untried.reached, untried.fate()), (0, Reached::No, None), "nobody had begun");
    let leased = begin(&job(Delivery::AtMostOnce), NOW);
    let back = kept(&leased, Command::GiveBack { token: Token(1) }, at(1));
    assert_eq!((back.state, back.tried, back.due_at, back.token), (State::Pending, 0, leased.due_at, Token(1)));
    assert!(back.started, "it was seen to start, and keeps its lane");
    assert_eq!(refused(&back, Command::Complete { token: Token(1) }, at(2)), Refusal::NotLeased);
}

#[test]
fn people_cancel_and_hasten_what_waits_and_nothing_else() {
    let waits = Job { due_at: at(60), ..job(Delivery::AtLeastOnce) };
    assert_eq!(kept(&waits, Command::RunNow, at(1)).due_at, at(1));
    assert_eq!(decide(&waits, &Command::Cancel, at(1)), Decision::End(End::Cancelled));
    let running = lease(&job(Delivery::AtLeastOnce), NOW);
    for command in [Command::Cancel, Command::RunNow] {
        assert_eq!(refused(&running, command, at(1)), Refusal::Leased { until: at(30) });
    }
}

/// Random commands by workers with current or stale tokens, at times that only go forward.
#[derive(Clone, Debug)]
struct Step {
    command: Command,
    millis: u64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let token = (0..5_i64).prop_map(Token);
    let span = (1..40_000_u64).prop_map(Duration::from_millis);
    let reached = prop_oneof![Just(Reached::No), Just(Reached::Maybe)];
    let command = prop_oneof![
        4 => span.clone().prop_map(|lease| Command::Lease { lease }),
        1 => (token.clone(), span.clone()).prop_map(|(token, lease)| Command::Renew { token, lease }),
        3 => token.clone().prop_map(|token| Command::Begin { token }),
        2 => token.clone().prop_map(|token| Command::Complete { token }),
        3 => (token.clone(), reached, any::<bool>(), proptest::option::of(span)).prop_map(
            |(token, reached, is_final, retry_in)| Command::Fail {
                token,
                failure: Failure { error: "e".into(), reached, is_final, retry_in },
            }
        ),
        1 => token.clone().prop_map(|token| Command::GiveUp { token }),
        1 => token.clone().prop_map(|token| Command::GiveBack { token }),
        1 => token.prop_map(|token| Command::PutOff { token, until: at(3), why: "busy".into() }),
        1 => Just(Command::Cancel),
        1 => Just(Command::RunNow),
    ];
    proptest::collection::vec((command, 0..20_000_u64).prop_map(|(command, millis)| Step { command, millis }), 1..40)
}

proptest! {
    #[test]
    fn whatever_happens_owners_do_not_overlap_and_what_may_have_happened_once_does_not_begin_again(
        steps in steps(),
        at_most_once: bool,
    ) {
        let delivery = if at_most_once { Delivery::AtMostOnce } else { Delivery::AtLeastOnce };
        let (mut job, mut now) = (job(delivery), NOW);
        // `in_doubt`: a try ended in doubt, or its worker was lost. `under_way`: a try is running now.
        let (mut in_doubt, mut under_way) = (false, false);
        for Step { command, millis } in steps {
            now = now + Duration::from_millis(millis);
            let next = match decide(&job, &command, now) {
                Decision::Keep(next) => next,
                Decision::End(end) => {
                    prop_assert!(end != End::Dead || !in_doubt, "what may have happened has not failed");
                    break;
                }
                Decision::Refuse(_) => continue,
            };
            prop_assert!(next.token >= job.token && next.version == job.version + 1);
            prop_assert!(next.tried <= next.tries.max + 1);
            if next.token > job.token {
                prop_assert!(!job.is_leased(now), "one owner at a time");
                in_doubt |= under_way;
                under_way = false;
            }
            if next.begun && !(job.begun && next.token == job.token) && next.fate().is_none() {
                prop_assert!(!(at_most_once && in_doubt), "at most once");
                under_way = true;
            }
            match &command {
                Command::Fail { failure, .. } => {
                    in_doubt |= failure.reached == Reached::Maybe;
                    under_way = false;
                }
                Command::GiveBack { .. } | Command::PutOff { .. } => under_way = false,
                _ => {}
            }
            job = next;
        }
    }
}

#[test]
fn what_nobody_has_leased_may_become_something_else() {
    let revise = || Command::Revise { payload: "new".into(), due_at: at(9) };
    let untouched = job(Delivery::AtLeastOnce);
    let revised = kept(&untouched, revise(), NOW);
    assert_eq!((&revised.payload[..], revised.due_at, revised.version), (&b"new"[..], at(9), untouched.version + 1));
    let leased = lease(&untouched, NOW);
    let given_back = kept(&leased, Command::GiveBack { token: leased.token }, at(1));
    for started in [leased, given_back] {
        assert_eq!(refused(&started, revise(), at(2)), Refusal::Started);
    }
}

#[test]
fn what_is_postponed_is_leased_when_its_time_has_come_or_it_was_woken() {
    let waits = kept(&job(Delivery::AtLeastOnce), Command::Postpone { until: at(5) }, NOW);
    assert_eq!(waits.wakes_at(), at(5));
    assert_eq!(refused(&waits, Command::Lease { lease: LEASE }, at(4)), Refusal::NotDue { at: at(5) });
    assert_eq!(lease(&waits, at(5)).postponed_until, Time::LONG_AGO);
    let woken = kept(&waits, Command::Postpone { until: Time::LONG_AGO }, at(1));
    assert_eq!(lease(&woken, at(1)).state, State::Running);
}

#[test]
fn the_same_job_again_is_as_if_it_were_new_but_for_its_token() {
    let leased = lease(&job(Delivery::AtLeastOnce), NOW);
    let again = leased.again("next".into(), at(60));
    assert_eq!((again.started, again.tried, again.reached, again.due_at), (false, 0, Reached::No, at(60)));
    assert_eq!((again.token, again.version), (leased.token, leased.version + 1));
    assert_eq!(lease(&again, at(60)).token, Token(leased.token.0 + 1));
}

#[test]
fn what_is_put_off_has_not_been_tried_and_comes_again_then() {
    for delivery in [Delivery::AtLeastOnce, Delivery::AtMostOnce] {
        let mut now = NOW;
        let mut job = job(delivery);
        // More often than the job may be tried.
        for _ in 0..10 {
            let leased = lease(&job, now);
            let command =
                Command::PutOff { token: leased.token, until: now + Duration::from_secs(7), why: "busy".into() };
            job = kept(&leased, command, now);
            assert_eq!((job.tried, job.begun, job.error.as_deref()), (0, false, Some("busy")));
            now = job.wakes_at();
        }
        assert_eq!(now, NOW + Duration::from_secs(70));
        assert_eq!(lease(&job, now).fate(), None);
    }
}
