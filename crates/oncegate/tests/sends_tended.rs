//! Sends on each store: leases that end, whoever has to be asked, and what is kept and for how long.

mod support;

use oncegate::sends::{Filter, Lost, State, Tended};
use support::sends::{
    KEEP, LEASE, MILLI, POLICIES, SECOND, begin, due, found, is_unknown, open_send, over, proceeds, resolve, sent,
    stands, was_sent, workspace,
};
use support::{On, START, World, on_each};

on_each![
    a_lease_that_ended_is_written_down_once,
    what_is_unknown_is_the_hooks_turn_again_and_again,
    a_worker_that_lives_is_left_alone,
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
        assert!(matches!(&tended, Tended::Overdue(kept) if kept.send.state == state), "{tended:?}");
        // Whoever has the same job, and wakes up later, writes nothing.
        let version = found(&sends, &ours).await.version;
        let again = sends.tend(&job).await.expect("the store is there");
        assert!(!matches!(again, Tended::Overdue(_) | Tended::Removed), "{again:?}");
        assert_eq!(found(&sends, &ours).await.version, version);
        // What it says changes nothing for workers, and nothing for a late word.
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
            // Of what is sent again nobody has to be asked.
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
            // Whoever has no hook does not look again.
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
        // The next worker comes between the look and the write.
        let next = match lost {
            Lost::Resend => Some(proceeds(begin(&sends, lost.as_str()).await)),
            Lost::Skip | Lost::Hold => None,
        };
        let tended = sends.tend(&job).await.expect("the store is there");
        match next {
            Some(next) => {
                assert!(matches!(tended, Tended::Nothing), "{tended:?}");
                assert_eq!(found(&sends, &next).await.send.state, State::Sending);
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
    let not_tended = proceeds(begin(&sends, "not tended").await);
    stands(sent(&sends, &not_tended, "esp-1").await, State::Sent);
    world.clock.set(START + (KEEP - MILLI));
    was_sent(begin(&sends, "sent").await);
    is_unknown(&begin(&sends, "silent").await);
    for job in due(&world.store).await {
        let tended = sends.tend(&job).await.expect("the store is there");
        assert!(matches!(tended, Tended::Overdue(_)), "only the silent one's lease has ended: {tended:?}");
    }
    found(&sends, &sent_one).await;
    world.clock.set(START + KEEP);
    // Begun anew before anybody has cleaned up.
    let anew = proceeds(begin(&sends, "not tended").await);
    assert!(anew.attempt == 1 && anew.provider_key != not_tended.provider_key);
    for job in due(&world.store).await {
        let tended = sends.tend(&job).await.expect("the store is there");
        assert!(matches!(tended, Tended::Removed), "{tended:?}");
    }
    for (old, recipient) in [(&sent_one, "sent"), (&silent, "silent")] {
        assert!(sends.find(&workspace(), old.id).await.expect("the store is there").is_none(), "{recipient}");
        let new = proceeds(begin(&sends, recipient).await);
        assert!(new.attempt == 1 && new.provider_key != old.provider_key && new.token > old.token, "{recipient}");
    }
    let page = Filter { campaign: Some("spring".into()), state: None, limit: 10, before: None };
    assert_eq!(sends.list(&workspace(), &page).await.expect("the store is there").items.len(), 3);
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
        let expires = oncegate::Time::from_micros(found(&sends, ours).await.send.expires_us);
        world.clock.set(START + KEEP / 2);
        was_sent(begin(&sends, recipient).await);
        world.clock.set(START + (expires.since(START) - MILLI));
        was_sent(begin(&sends, recipient).await);
        world.clock.set(expires);
        // There is no time in which workers are told of a send that nobody can look at.
        assert_eq!(proceeds(begin(&sends, recipient).await).attempt, 1, "{recipient}");
    }
    world.close().await;
}

async fn a_job_without_a_send_is_taken_out(on: On) {
    let world = World::open(on).await;
    let sends = over(&world.store, Lost::Hold);
    let ours = proceeds(begin(&sends, "ada").await);
    stands(sent(&sends, &ours, "esp-1").await, State::Sent);
    world.clock.set(START + KEEP);
    let jobs = due(&world.store).await;
    assert_eq!(jobs.len(), 1);
    for _ in 0..2 {
        // The second time as by somebody who was paused, and still has the job.
        sends.tend(&jobs[0]).await.expect("the store is there");
    }
    world.clock.advance(LEASE);
    assert_eq!(due(&world.store).await, []);
    world.close().await;
}
