//! Sends on each store: leases that end, the reconcile hook, and how long sends are kept.

use std::sync::Arc;
use std::time::Duration;

use oncegate::sends::{Filter, JOB, Lost, Proceed, Sends, State, Tended};
use oncegate::store::{At, Change, Commit, MainStore, Place, Record};
use oncegate_core::job::{Job, Reached, Tries};

use crate::support::sends::{
    KEEP, LEASE, LINGERS, MILLI, POLICIES, SECOND, begin, due, failed, found, is_unknown, open_send, over, proceeds,
    resolve, sent, stands, was_sent, workspace,
};
use crate::support::{Hooked, On, START, World, on_each};

on_each![
    a_lease_that_ended_is_written_down_once,
    what_is_unknown_is_the_hooks_turn_again_and_again,
    a_worker_that_lives_is_left_alone,
    a_send_that_stands_has_no_job_and_one_that_is_begun_again_has_one,
    whoever_tends_to_a_job_that_has_left_the_queue_and_come_back_changes_nothing,
    the_hook_is_asked_again_after_a_late_word_that_says_no_more,
    the_sends_of_an_earlier_version_end_like_others,
    whoever_meets_a_claim_can_look_at_its_send,
    what_has_been_kept_for_long_enough_is_gone_to_the_millisecond,
    what_a_person_settled_is_kept_as_long_as_its_record,
    a_job_without_a_send_is_taken_out,
];

async fn a_lease_that_ended_is_written_down_once(on: On) {
    let world = World::open(on).await;
    for lost in POLICIES {
        let sends = over(&world.store, lost);
        let ours = proceeds(begin(&sends, lost.as_str()).await);
        world.clock.advance(LEASE - MILLI);
        let mine = async || due(&world.store).await.into_iter().find(|job| job.id == ours.id);
        assert_eq!(mine().await, None);
        world.clock.advance(MILLI);
        let job = mine().await.expect("it is due");
        let state = if lost == Lost::Resend { State::Lost } else { State::Unknown };
        let tended = sends.tend(&job).await.expect("the store is there");
        assert!(matches!(&tended, Tended::Overdue(kept) if kept.document.state == state), "{tended:?}");
        // A worker with the same job, which continues later, writes nothing.
        let version = found(&sends, &ours).await.version;
        let again = sends.tend(&job).await.expect("the store is there");
        assert!(!matches!(again, Tended::Overdue(_)), "{again:?}");
        assert_eq!(found(&sends, &ours).await.version, version);
        // The check changes nothing for workers, and nothing for a late report.
        stands(sent(&sends, &ours, "esp-1").await, State::Sent);
        was_sent(begin(&sends, lost.as_str()).await);
    }
    world.close().await;
}

async fn what_is_unknown_is_the_hooks_turn_again_and_again(on: On) {
    let world = World::open(on).await;
    for lost in POLICIES {
        for said in [false, true] {
            let (sends, recipient) = (over(&world.store, lost), format!("{} {said}", lost.as_str()));
            let ours = open_send(&world, lost, &recipient, said).await;
            let mine = async || due(&world.store).await.into_iter().find(|job| job.id == ours.id);
            if !said {
                let tended = sends.tend(&mine().await.expect("its lease has ended")).await;
                assert!(matches!(tended, Ok(Tended::Overdue(_))), "{tended:?}");
            }
            // For a send that is sent again, the hook need not be asked.
            if lost == Lost::Resend {
                assert_eq!(mine().await, None);
                continue;
            }
            let ask = async |was_asked| {
                let tended = sends.tend(&mine().await.expect("it is due")).await.expect("the store is there");
                let Tended::Open(kept) = tended else { panic!("{tended:?}") };
                sends.leave(&kept, was_asked).await.expect("the store is there");
                assert_eq!(mine().await, None, "not at once");
            };
            for pause in [60, 120, 240, 480] {
                ask(true).await;
                world.clock.advance(pause * SECOND - MILLI);
                assert_eq!(mine().await, None);
                world.clock.advance(MILLI);
            }
            // A server without a hook does not check again.
            ask(false).await;
            world.clock.advance(3600 * SECOND);
            assert_eq!(mine().await, None);
            is_unknown(&begin(&sends, &recipient).await);
        }
    }
    world.close().await;
}

async fn a_worker_that_lives_is_left_alone(on: On) {
    let world = World::open(on).await;
    for lost in POLICIES {
        let sends = over(&world.store, lost);
        let ours = proceeds(begin(&sends, lost.as_str()).await);
        world.clock.advance(LEASE - MILLI);
        let renewed = sends.renew(&workspace(), ours.id, ours.token, None).await.expect("it lives");
        world.clock.advance(LEASE - MILLI);
        let mine = async || due(&world.store).await.into_iter().find(|job| job.id == ours.id);
        assert_eq!(mine().await, None, "it is looked at when its lease ends");
        world.clock.advance(MILLI);
        let job = mine().await.expect("it is due");
        // The next worker comes between the read and the write.
        let next = match lost {
            Lost::Resend => Some(proceeds(begin(&sends, lost.as_str()).await)),
            Lost::Skip | Lost::Hold => None,
        };
        let tended = sends.tend(&job).await.expect("the store is there");
        match next {
            Some(next) => {
                assert!(matches!(tended, Tended::Nothing), "{tended:?}");
                assert_eq!(found(&sends, &next).await.document.state, State::Sending);
                stands(sent(&sends, &next, "esp-2").await, State::Sent);
            }
            None => assert!(matches!(&tended, Tended::Overdue(kept) if kept.version > renewed.version), "{tended:?}"),
        }
    }
    world.close().await;
}

async fn what_has_been_kept_for_long_enough_is_gone_to_the_millisecond(on: On) {
    let world = World::open(on).await;
    let sends = over(&world.store, Lost::Hold);
    let sent_one = proceeds(begin(&sends, "sent").await);
    stands(sent(&sends, &sent_one, "esp-1").await, State::Sent);
    let silent = proceeds(begin(&sends, "silent").await);
    let not_swept = proceeds(begin(&sends, "not swept").await);
    stands(sent(&sends, &not_swept, "esp-1").await, State::Sent);
    world.clock.set(START + (KEEP - MILLI));
    was_sent(begin(&sends, "sent").await);
    is_unknown(&begin(&sends, "silent").await);
    for job in due(&world.store).await {
        let tended = sends.tend(&job).await.expect("the store is there");
        assert!(matches!(tended, Tended::Overdue(_)), "only the silent one's lease has ended: {tended:?}");
    }
    found(&sends, &sent_one).await;
    world.clock.set(START + KEEP);
    // Begun again before the sweeper has run.
    let anew = proceeds(begin(&sends, "not swept").await);
    assert!(anew.attempt == 1 && anew.provider_key != not_swept.provider_key);
    for job in due(&world.store).await {
        let tended = sends.tend(&job).await.expect("the store is there");
        assert!(matches!(tended, Tended::Nothing), "nobody has to be asked any more: {tended:?}");
    }
    assert_eq!(job_of(&world, &silent).await, None);
    world.clock.set(START + (KEEP + LINGERS - MILLI));
    world.store.sweep(100).await.expect("sweeps");
    found(&sends, &sent_one).await;
    world.clock.advance(MILLI);
    world.store.sweep(100).await.expect("sweeps");
    for (old, recipient) in [(&sent_one, "sent"), (&silent, "silent")] {
        assert!(sends.find(&workspace(), old.id).await.expect("the store is there").is_none(), "{recipient}");
        let new = proceeds(begin(&sends, recipient).await);
        assert!(new.attempt == 1 && new.provider_key != old.provider_key && new.token > old.token, "{recipient}");
    }
    let page = Filter { campaign: Some("spring".into()), state: None, limit: 10, before: None };
    assert_eq!(sends.list(&workspace(), &page).await.expect("the store is there").value.items.len(), 3);
    world.close().await;
}

async fn whoever_meets_a_claim_can_look_at_its_send(on: On) {
    let world = World::open(on).await;
    for lost in POLICIES {
        let begun_at = world.store.now().await.expect("the store is there");
        let hooked = Hooked::over(world.store.clone());
        let slow: Arc<dyn MainStore> = hooked.clone();
        // Time passes between the read of the clock and the commit, so the claim lasts longer than its send.
        let clock = world.clock.clone();
        hooked.before_commit(async move { clock.advance(10 * SECOND) });
        let (sends, recipient) = (over(&slow, lost), lost.as_str());
        let ours = proceeds(begin(&sends, recipient).await);
        if lost != Lost::Hold {
            stands(sent(&sends, &ours, "esp-1").await, State::Sent);
        }
        let ends_at = oncegate::Time::from_micros(found(&sends, &ours).await.document.expires_us);
        assert_eq!(ends_at, begun_at + KEEP);
        for past in [Duration::ZERO, 10 * SECOND - MILLI] {
            world.clock.set(ends_at + past);
            world.store.sweep(100).await.expect("sweeps");
            for job in due(&world.store).await {
                sends.tend(&job).await.expect("the store is there");
            }
            found(&sends, &ours).await;
            match lost {
                Lost::Hold => is_unknown(&begin(&sends, recipient).await),
                _ => assert_eq!(was_sent(begin(&sends, recipient).await).id, ours.id),
            }
        }
        world.clock.advance(MILLI);
        assert_eq!(proceeds(begin(&sends, recipient).await).attempt, 1);
    }
    world.close().await;
}

async fn a_send_that_stands_has_no_job_and_one_that_is_begun_again_has_one(on: On) {
    let world = World::open(on).await;
    for lost in POLICIES {
        let sends = over(&world.store, lost);
        for state in [State::Sent, State::Failed] {
            let recipient = format!("{}, {}", lost.as_str(), state.as_str());
            let ours = proceeds(begin(&sends, &recipient).await);
            let job = job_of(&world, &ours).await.expect("its lease is looked at");
            assert_eq!(job.due_at, ours.lease_until);
            match state {
                State::Sent => drop(stands(sent(&sends, &ours, "esp-1").await, State::Sent)),
                _ => drop(stands(failed(&sends, &ours, Reached::No).await, State::Failed)),
            }
            assert_eq!(job_of(&world, &ours).await, None, "{recipient}");
            if state == State::Sent {
                continue;
            }
            // A late report finds no job, and makes none.
            stands(sent(&sends, &ours, "esp-1").await, State::Sent);
            assert_eq!(job_of(&world, &ours).await, None, "{recipient}");
        }
        // A lost or unknown send that is begun again, by the policy or after a person's resolution, is checked again.
        let recipient = format!("{}, silent", lost.as_str());
        let ours = open_send(&world, lost, &recipient, false).await;
        tend_all(&world, &sends).await;
        assert_eq!(job_of(&world, &ours).await, None, "without a hook there is nobody to ask");
        if lost != Lost::Resend {
            stands(resolve(&sends, &ours, false).await, State::Failed);
            assert_eq!(job_of(&world, &ours).await, None);
        }
        let next = proceeds(begin(&sends, &recipient).await);
        assert_eq!((next.id, next.attempt), (ours.id, 2));
        assert_eq!(job_of(&world, &next).await.expect("it has one again").due_at, next.lease_until);
        world.clock.advance(LEASE);
        let job = due(&world.store).await.into_iter().find(|job| job.id == next.id).expect("it is due");
        let tended = sends.tend(&job).await.expect("the store is there");
        assert!(matches!(&tended, Tended::Overdue(kept) if kept.document.attempt == 2), "{tended:?}");
        stands(resolve(&sends, &next, true).await, State::Sent);
        assert_eq!(job_of(&world, &next).await, None);
    }
    world.close().await;
}

async fn whoever_tends_to_a_job_that_has_left_the_queue_and_come_back_changes_nothing(on: On) {
    let world = World::open(on).await;
    let sends = over(&world.store, Lost::Resend);
    let hooked = Hooked::over(world.store.clone());
    let slow = over(&(hooked.clone() as Arc<dyn MainStore>), Lost::Resend);
    // The lease of the claim ends later than the record says, so the check leaves the worker alone.
    let clock = world.clock.clone();
    hooked.before_commit(async move { clock.advance(10 * SECOND) });
    let first = proceeds(begin(&slow, "ada").await);
    world.clock.set(START + LEASE);
    let stale = due(&world.store).await.remove(0);
    // Before that is written, the worker reports that it was not sent. The next worker begins and falls silent, and another has
    // leased the job, which looks like the one before.
    let (before, store, clock, of) = (sends.clone(), world.store.clone(), world.clock.clone(), first.clone());
    let seen = stale.clone();
    hooked.before_commit(async move {
        stands(failed(&before, &of, Reached::No).await, State::Failed);
        proceeds(begin(&before, "ada").await);
        clock.advance(LEASE);
        let again = due(&store).await.remove(0);
        assert_eq!((again.id, again.version, again.token), (seen.id, seen.version, seen.token));
    });
    let tended = slow.tend(&stale).await.expect("the store is there");
    assert!(matches!(tended, Tended::Nothing), "{tended:?}");
    let kept = found(&sends, &first).await;
    assert_eq!((kept.document.state, kept.document.attempt), (State::Sending, 2));
    assert_eq!(job_of(&world, &first).await.map(|job| job.version), Some(stale.version), "it is as it was leased");
    world.close().await;
}

async fn the_hook_is_asked_again_after_a_late_word_that_says_no_more(on: On) {
    let world = World::open(on).await;
    let sends = over(&world.store, Lost::Hold);
    let ours = open_send(&world, Lost::Hold, "ada", false).await;
    for turn in ["its lease has ended", "the hook is asked"] {
        let job = due(&world.store).await.pop().expect(turn);
        if let Tended::Open(kept) = sends.tend(&job).await.expect("the store is there") {
            sends.leave(&kept, true).await.expect("the store is there");
        }
    }
    assert_eq!(found(&sends, &ours).await.document.asked, 1);
    stands(failed(&sends, &ours, Reached::Maybe).await, State::Unknown);
    let job = due(&world.store).await.pop().expect("there is something to ask about");
    let tended = sends.tend(&job).await.expect("the store is there");
    assert!(matches!(&tended, Tended::Open(kept) if kept.id == ours.id), "{tended:?}");
    world.close().await;
}

/// In an earlier version each send kept its job until it was removed, and its record did not expire.
async fn the_sends_of_an_earlier_version_end_like_others(on: On) {
    let world = World::open(on).await;
    for lost in POLICIES {
        let begun_at = world.store.now().await.expect("the store is there");
        let sends = over(&world.store, lost);
        let mut before = vec![];
        for state in [State::Sent, State::Failed, State::Unknown] {
            let ours = proceeds(begin(&sends, &format!("{}, {}", lost.as_str(), state.as_str())).await);
            match state {
                State::Sent => drop(sent(&sends, &ours, "esp-1").await.expect("is taken")),
                State::Failed => drop(failed(&sends, &ours, Reached::No).await.expect("is taken")),
                _ => drop(failed(&sends, &ours, Reached::Maybe).await.expect("is taken")),
            }
            tend_all(&world, &sends).await;
            let place = Place { workspace: workspace(), kind: "send", at: At::Id(ours.id) };
            let record = world.store.find(&[place]).await.expect("answers").value.remove(0).expect("is there");
            let record = Record { version: record.version + 1, expires_at: None, ..record };
            let tries = Tries { max: i32::MAX, pause: SECOND, pause_max: SECOND };
            let job = Job::new(&workspace(), ours.id, JOB, Default::default(), tries, begun_at);
            let changes = vec![Change::replace(record), Change::Enqueue(Job { due_at: begun_at + KEEP, ..job })];
            let committed = world.store.commit(Commit { ops: vec![], changes }).await.expect("answers");
            assert!(committed.is_written());
            before.push(ours);
        }
        // After a person's resolution it is like other sends. The rest are checked when their time is over.
        if lost != Lost::Resend {
            stands(resolve(&sends, &before[2], true).await, State::Sent);
            assert_eq!(job_of(&world, &before[2]).await, None);
        }
        world.clock.set(begun_at + KEEP);
        tend_all(&world, &sends).await;
        for ours in &before {
            assert_eq!(job_of(&world, ours).await, None);
        }
        world.clock.advance(LINGERS);
        world.store.sweep(100).await.expect("sweeps");
        for ours in &before {
            assert!(sends.find(&workspace(), ours.id).await.expect("the store is there").is_none());
        }
    }
    world.close().await;
}

async fn what_a_person_settled_is_kept_as_long_as_its_record(on: On) {
    let world = World::open(on).await;
    let sends = over(&world.store, Lost::Hold);
    let by_hand = proceeds(begin(&sends, "by hand").await);
    let late = proceeds(begin(&sends, "late").await);
    world.clock.advance(KEEP / 2);
    stands(resolve(&sends, &by_hand, true).await, State::Sent);
    stands(sent(&sends, &late, "esp-1").await, State::Sent);
    for (recipient, ours) in [("by hand", &by_hand), ("late", &late)] {
        let expires = oncegate::Time::from_micros(found(&sends, ours).await.document.expires_us);
        world.clock.set(START + KEEP / 2);
        was_sent(begin(&sends, recipient).await);
        world.clock.set(START + (expires.since(START) - MILLI));
        was_sent(begin(&sends, recipient).await);
        world.clock.set(expires);
        // At no time is a worker told of a send that cannot be found.
        assert_eq!(proceeds(begin(&sends, recipient).await).attempt, 1, "{recipient}");
    }
    world.close().await;
}

async fn a_job_without_a_send_is_taken_out(on: On) {
    let world = World::open(on).await;
    let sends = over(&world.store, Lost::Hold);
    let ours = proceeds(begin(&sends, "ada").await);
    // No server has checked it in all that time.
    world.clock.set(START + KEEP + LINGERS);
    world.store.sweep(100).await.expect("sweeps");
    assert!(sends.find(&workspace(), ours.id).await.expect("the store is there").is_none());
    let jobs = due(&world.store).await;
    assert_eq!(jobs.len(), 1);
    for _ in 0..2 {
        // The second call is that of a worker that was paused, and still has the job.
        sends.tend(&jobs[0]).await.expect("the store is there");
    }
    world.clock.advance(LEASE);
    assert_eq!(due(&world.store).await, []);
    world.close().await;
}

async fn job_of(world: &World, of: &Proceed) -> Option<Job> {
    world.store.find_jobs(&[(workspace(), of.id)]).await.expect("the store is there").value.remove(0)
}

/// Checks all sends that are due, as a server without a hook does.
async fn tend_all(world: &World, sends: &Sends) {
    loop {
        let jobs = due(&world.store).await;
        if jobs.is_empty() {
            return;
        }
        for job in jobs {
            if let Tended::Open(kept) = sends.tend(&job).await.expect("the store is there") {
                sends.leave(&kept, false).await.expect("the store is there");
            }
        }
    }
}
