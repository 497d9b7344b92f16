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
        state: State::Pending,
        due_at: NOW,
        token: Token(0),
        lease_until: Time::LONG_AGO,
        version: 1,
        tried: 0,
        tries: Tries { max: 3, pause: Duration::from_secs(1), pause_max: Duration::from_secs(300) },
        delivery,
        created_at: NOW,
        ended_at: None,
        error: None,
    }
}

fn at(seconds: u64) -> Time {
    NOW + Duration::from_secs(seconds)
}

fn written(job: &Job, command: Command, now: Time) -> Job {
    match decide(job, &command, now) {
        Decision::Write(next) => {
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
    written(job, Command::Lease { lease: LEASE }, now)
}

fn fail(token: Token, reached: Reached) -> Command {
    Command::Fail { token, error: "refused".into(), reached, retry_in: None }
}

#[test]
fn a_job_is_leased_when_it_is_due_and_by_one_worker() {
    let later = Job { due_at: at(5), ..job(Delivery::AtLeastOnce) };
    assert_eq!(refused(&later, Command::Lease { lease: LEASE }, at(4)), Refusal::NotDue { at: at(5) });
    let first = lease(&later, at(5));
    assert_eq!((first.state, first.token, first.tried, first.lease_until), (State::Running, Token(1), 1, at(35)));
    assert_eq!(refused(&first, Command::Lease { lease: LEASE }, at(34)), Refusal::Leased { until: at(35) });
    let done = written(&first, Command::Complete { token: Token(1) }, at(34));
    assert_eq!((done.state, done.ended_at), (State::Completed, Some(at(34))));
    assert_eq!(decide(&done, &Command::Complete { token: Token(1) }, at(40)), Decision::Already);
    assert_eq!(
        refused(&done, Command::Lease { lease: LEASE }, at(40)),
        Refusal::WrongState { state: State::Completed }
    );
}

#[test]
fn a_worker_that_was_paused_past_its_lease_is_refused_whether_or_not_another_has_it() {
    let first = lease(&job(Delivery::AtLeastOnce), NOW);
    let late = [
        Command::Renew { token: Token(1), lease: LEASE },
        Command::Complete { token: Token(1) },
        fail(Token(1), Reached::No),
        Command::GiveBack { token: Token(1) },
    ];
    for command in &late {
        assert_eq!(refused(&first, command.clone(), at(30)), Refusal::LeaseEnded { at: at(30) });
    }
    let second = lease(&first, at(30));
    assert_eq!((second.token, second.tried), (Token(2), 2));
    for command in late {
        assert_eq!(refused(&second, command, at(31)), Refusal::TokenOutdated);
    }
}

#[test]
fn a_renewal_lengthens_a_lease_and_never_shortens_it() {
    let leased = lease(&job(Delivery::AtLeastOnce), NOW);
    let renew = |seconds| Command::Renew { token: Token(1), lease: Duration::from_secs(seconds) };
    assert_eq!(written(&leased, renew(30), at(10)).lease_until, at(40));
    assert_eq!(written(&leased, renew(1), at(10)).lease_until, at(30));
}

#[test]
fn a_failed_try_comes_back_later_each_time_until_there_are_no_more() {
    let mut job = job(Delivery::AtLeastOnce);
    let mut now = NOW;
    for (reached, longest) in [(Reached::No, 1), (Reached::Maybe, 2)] {
        job = lease(&job, now);
        job = written(&job, fail(job.token, reached), now);
        let pause = job.due_at.since(now);
        assert!(pause > Duration::from_millis(longest * 500) && pause <= Duration::from_secs(longest), "{pause:?}");
        assert_eq!((job.state, job.error.as_deref()), (State::Pending, Some("refused")));
        now = job.due_at;
    }
    job = lease(&job, now);
    job = written(&job, fail(job.token, Reached::No), now);
    assert_eq!((job.state, job.tried, job.ended_at), (State::Dead, 3, Some(now)));
    let again = written(&job, Command::Retry, now);
    assert_eq!((again.state, again.tried, again.due_at, again.ended_at), (State::Pending, 0, now, None));
}

#[test]
fn a_receiver_that_says_when_to_come_back_is_listened_to() {
    let leased = lease(&job(Delivery::AtLeastOnce), NOW);
    let busy = |seconds| Command::Fail {
        token: Token(1),
        error: "429".into(),
        reached: Reached::No,
        retry_in: Some(Duration::from_secs(seconds)),
    };
    assert_eq!(written(&leased, busy(20), NOW).due_at, at(20));
    assert!(written(&leased, busy(0), NOW).due_at > NOW, "but not to come back at once");
}

#[test]
fn at_most_once_is_not_repeated_when_it_may_have_happened() {
    let leased = lease(&job(Delivery::AtMostOnce), NOW);
    assert_eq!(written(&leased, fail(Token(1), Reached::Maybe), at(1)).state, State::Unknown);
    assert_eq!(written(&leased, fail(Token(1), Reached::No), at(1)).state, State::Pending);
    assert_eq!((leased.state_at(at(29)), leased.state_at(at(30))), (State::Running, State::Unknown));
    let found = lease(&leased, at(30));
    assert_eq!(
        (found.state, found.token, found.error.as_deref()),
        (State::Unknown, Token(1), Some("its worker was lost"))
    );
}

#[test]
fn a_lost_worker_is_a_try_like_any_other() {
    let mut job = job(Delivery::AtLeastOnce);
    for turn in 0..3 {
        job = lease(&job, at(30 * turn));
        assert_eq!(job.state, State::Running);
    }
    assert_eq!(job.state_at(at(90)), State::Dead);
    assert_eq!(lease(&job, at(90)).state, State::Dead);
}

#[test]
fn what_was_not_begun_is_given_back_as_if_it_had_not_been_leased() {
    let leased = lease(&job(Delivery::AtMostOnce), NOW);
    let back = written(&leased, Command::GiveBack { token: Token(1) }, at(1));
    assert_eq!((back.state, back.tried, back.due_at, back.token), (State::Pending, 0, at(1), Token(1)));
    assert_eq!(
        refused(&back, Command::Complete { token: Token(1) }, at(2)),
        Refusal::WrongState { state: State::Pending }
    );
}

#[test]
fn people_cancel_what_waits_and_bring_back_what_has_ended() {
    let waits = Job { due_at: at(60), ..job(Delivery::AtLeastOnce) };
    assert_eq!(written(&waits, Command::RunNow, at(1)).due_at, at(1));
    let cancelled = written(&waits, Command::Cancel, at(1));
    assert_eq!(cancelled.state, State::Cancelled);
    assert_eq!(decide(&cancelled, &Command::Cancel, at(2)), Decision::Already);
    assert_eq!(refused(&cancelled, Command::RunNow, at(2)), Refusal::WrongState { state: State::Cancelled });
    assert_eq!(written(&cancelled, Command::Retry, at(2)).state, State::Pending);
    let running = lease(&job(Delivery::AtLeastOnce), NOW);
    for command in [Command::Cancel, Command::Retry, Command::RunNow] {
        assert_eq!(refused(&running, command, at(1)), Refusal::WrongState { state: State::Running });
    }
}

/// Any commands, by workers who know this or that token, at times that only go forward.
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
        2 => token.clone().prop_map(|token| Command::Complete { token }),
        3 => (token.clone(), reached, proptest::option::of(span)).prop_map(|(token, reached, retry_in)| {
            Command::Fail { token, error: "e".into(), reached, retry_in }
        }),
        1 => token.prop_map(|token| Command::GiveBack { token }),
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
        // A try has begun and was not said to have reached nobody.
        let mut may_have_happened = false;
        for Step { command, millis } in steps {
            now = now + Duration::from_millis(millis);
            let Decision::Write(next) = decide(&job, &command, now) else { continue };
            prop_assert!(next.token >= job.token && next.version == job.version + 1);
            prop_assert!(next.tried <= next.tries.max);
            prop_assert!(job.ended_at.is_none(), "without a person nothing that has ended changes");
            let begins = next.state == State::Running && next.token > job.token;
            if begins {
                prop_assert!(!job.is_leased(now), "one owner at a time");
                prop_assert!(!(at_most_once && may_have_happened), "at most once");
            }
            may_have_happened = match &command {
                Command::Fail { reached: Reached::No, .. } | Command::GiveBack { .. } => false,
                _ => may_have_happened || begins,
            };
            if matches!(command, Command::Lease { .. }) && !begins {
                prop_assert!(next.ended_at.is_some(), "given up");
            }
            job = next;
        }
    }
}
