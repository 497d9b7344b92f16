//! Sends on each store: what a person resolves, lost races, and lost answers.

use std::sync::Arc;

use oncegate::document::Resolution;
use oncegate::sends::{Begun, Filter, GUARD, Lost, NotTaken, State, Tended};
use oncegate::store::{Commit, MainStore, Op};
use oncegate::{Command, StoreError};
use oncegate_core::job::Reached;

use crate::support::sends::{
    LEASE, MILLI, POLICIES, SECOND, begin, due, failed, found, is_busy, is_fenced, is_unknown, ledger, open_send, over,
    proceeds, resolve, sent, stands, to, was_sent, workspace,
};
use crate::support::{Hooked, On, World, on_each};

on_each![
    a_person_settles_what_is_lost_or_unknown,
    what_stands_otherwise_cannot_be_resolved,
    of_two_people_at_once_one_settles_it,
    what_was_said_of_one_attempt_says_nothing_of_the_next,
    an_answer_that_gets_lost_is_a_worker_that_died_or_a_word_that_is_said_again,
    whoever_loses_a_race_starts_again,
    what_a_person_forgets_is_the_next_workers,
    lists_are_by_campaign_and_state,
    what_was_called_unsent_and_was_sent_is_taken_until_another_begins,
];

fn says(happened: bool, by: &str) -> Resolution {
    Resolution { happened, by: by.into(), note: None }
}

async fn a_person_settles_what_is_lost_or_unknown(on: On) {
    let world = World::open(on).await;
    for lost in POLICIES {
        let sends = over(&world.store, lost);
        for said in [false, true] {
            let name = |as_sent: bool| format!("{} {said} {as_sent}", lost.as_str());
            let ours = open_send(&world, lost, &name(true), said).await;
            let id = Some("esp-9".to_owned());
            let kept = sends.resolve(&workspace(), ours.id, &says(true, "ada"), id).await;
            let kept = stands(kept, State::Sent);
            assert!(kept.document.resolved.is_some_and(|resolved| resolved.sent && resolved.by == "ada"));
            assert_eq!(was_sent(begin(&sends, &name(true)).await).esp_message_id.as_deref(), Some("esp-9"));

            let ours = open_send(&world, lost, &name(false), said).await;
            let kept = stands(resolve(&sends, &ours, false).await, State::Failed);
            assert_eq!(kept.document.resolved.and_then(|resolved| resolved.note).as_deref(), Some("she looked"));
            let next = proceeds(begin(&sends, &name(false)).await);
            assert_eq!((next.attempt, next.provider_key), (2, ours.provider_key), "{lost:?}");
            is_fenced(&sent(&sends, &ours, "late").await);
            stands(sent(&sends, &next, "esp-2").await, State::Sent);
        }
    }
    world.close().await;
}

async fn what_stands_otherwise_cannot_be_resolved(on: On) {
    let world = World::open(on).await;
    for lost in POLICIES {
        let (sends, recipient) = (over(&world.store, lost), lost.as_str());
        let refuses = async |of: &oncegate::sends::Proceed, why: &str| {
            for was_sent in [true, false] {
                let refused = resolve(&sends, of, was_sent).await;
                assert!(matches!(&refused, Err(NotTaken::Wrong(said)) if said.contains(why)), "{refused:?}");
            }
        };
        let first = proceeds(begin(&sends, recipient).await);
        world.clock.advance(LEASE - MILLI);
        refuses(&first, "sending").await;
        stands(failed(&sends, &first, Reached::No).await, State::Failed);
        refuses(&first, "failed").await;
        let second = proceeds(begin(&sends, recipient).await);
        stands(sent(&sends, &second, "esp").await, State::Sent);
        refuses(&second, "sent").await;
    }
    let sends = over(&world.store, Lost::Hold);
    let nothing = sends.resolve(&workspace(), uuid::Uuid::now_v7(), &says(true, "ada"), None).await;
    assert!(matches!(nothing, Err(NotTaken::Missing)), "{nothing:?}");
    world.close().await;
}

async fn of_two_people_at_once_one_settles_it(on: On) {
    let world = World::open(on).await;
    let other = world.again().await;
    for round in 0..10 {
        let lost = POLICIES[round % 3];
        let recipient = format!("recipient {round}");
        let ours = open_send(&world, lost, &recipient, round % 2 == 0).await;
        let (here, there) = (over(&world.store, lost), over(&other, lost));
        let (yes, no) = tokio::join!(resolve(&here, &ours, true), resolve(&there, &ours, false));
        assert!(yes.is_ok() != no.is_ok(), "round {round}: {yes:?}, {no:?}");
        let kept = found(&here, &ours).await;
        assert_eq!(kept.document.resolved.map(|resolved| resolved.sent), Some(yes.is_ok()));
        match begin(&there, &recipient).await {
            Begun::Sent(_) => assert!(yes.is_ok()),
            told => assert!(proceeds(told).attempt == 2 && no.is_ok()),
        }
    }
    other.close().await;
    world.close().await;
}

async fn what_was_said_of_one_attempt_says_nothing_of_the_next(on: On) {
    let world = World::open(on).await;
    for lost in POLICIES {
        let (sends, recipient) = (over(&world.store, lost), lost.as_str());
        let first = open_send(&world, lost, recipient, false).await;
        let asked = found(&sends, &first).await;
        // Two callers ask the hook, which says that it was not sent. One of them pauses. The other resolves the send, and the next
        // worker begins it and dies.
        stands(sends.reconcile(&asked, &says(false, "hook"), None).await, State::Failed);
        assert_eq!(proceeds(begin(&sends, recipient).await).attempt, 2);
        let busy = sends.reconcile(&asked, &says(false, "hook"), None).await;
        assert!(matches!(busy, Err(NotTaken::Wrong(_))), "{busy:?}");
        world.clock.advance(LEASE);
        for was_sent in [false, true] {
            let outdated = sends.reconcile(&asked, &says(was_sent, "hook"), None).await;
            assert!(matches!(&outdated, Err(NotTaken::Wrong(why)) if why.contains("since")), "{outdated:?}");
        }
        if lost != Lost::Resend {
            is_unknown(&begin(&sends, recipient).await);
        }
        stands(sends.reconcile(&found(&sends, &first).await, &says(true, "hook"), None).await, State::Sent);
    }
    world.close().await;
}

async fn an_answer_that_gets_lost_is_a_worker_that_died_or_a_word_that_is_said_again(on: On) {
    let world = World::open(on).await;
    for lost in POLICIES {
        let hooked = Hooked::over(world.store.clone());
        let sends = over(&(hooked.clone() as Arc<dyn MainStore>), lost);
        let asks = async |recipient: &str| sends.begin(&workspace(), &to(recipient)).await;
        let (written, not_written) = (format!("written {}", lost.as_str()), format!("not {}", lost.as_str()));
        hooked.lose_answer(false);
        assert!(matches!(asks(&not_written).await, Err(StoreError::Unknown(_))));
        assert_eq!(proceeds(begin(&sends, &not_written).await).attempt, 1, "nothing was written");
        hooked.lose_answer(true);
        assert!(matches!(asks(&written).await, Err(StoreError::Unknown(_))));
        // No worker knows the token, so the send looks as if its worker had died at once.
        assert_eq!(is_busy(begin(&sends, &written).await), LEASE);
        world.clock.advance(LEASE);
        match lost {
            Lost::Resend => assert_eq!(proceeds(begin(&sends, &written).await).attempt, 2),
            Lost::Skip | Lost::Hold => is_unknown(&begin(&sends, &written).await),
        }
        for (is_written, is_late) in [(true, false), (false, false), (true, true), (false, true)] {
            let recipient = format!("{} {is_written} {is_late}", lost.as_str());
            let ours = proceeds(begin(&sends, &recipient).await);
            world.clock.advance(if is_late { LEASE } else { SECOND });
            hooked.lose_answer(is_written);
            let unheard = sent(&sends, &ours, "esp-1").await;
            assert!(matches!(unheard, Err(NotTaken::Store(StoreError::Unknown(_)))), "{unheard:?}");
            world.clock.advance(SECOND);
            stands(sent(&sends, &ours, "esp-1").await, State::Sent);
            assert_eq!(was_sent(begin(&sends, &recipient).await).id, ours.id);
        }
    }
    world.close().await;
}

async fn whoever_loses_a_race_starts_again(on: On) {
    let world = World::open(on).await;
    let hooked = Hooked::over(world.store.clone());
    let (slow, fast) = (over(&(hooked.clone() as Arc<dyn MainStore>), Lost::Resend), over(&world.store, Lost::Resend));
    // Both found nothing. The other worker was faster, and has sent it.
    let before = fast.clone();
    hooked.before_commit(async move {
        let ours = proceeds(begin(&before, "new").await);
        stands(sent(&before, &ours, "fast").await, State::Sent);
    });
    assert_eq!(was_sent(begin(&slow, "new").await).esp_message_id.as_deref(), Some("fast"));
    // The other worker began it, and gave it back.
    let before = fast.clone();
    hooked.before_commit(async move {
        let ours = proceeds(begin(&before, "given back").await);
        stands(failed(&before, &ours, Reached::No).await, State::Failed);
    });
    assert_eq!(proceeds(begin(&slow, "given back").await).attempt, 2);
    // A late report; before it is written another worker begins.
    let ours = proceeds(begin(&slow, "late").await);
    world.clock.advance(LEASE);
    let before = fast.clone();
    hooked.before_commit(async move { assert_eq!(proceeds(begin(&before, "late").await).attempt, 2) });
    is_fenced(&sent(&slow, &ours, "esp-1").await);
    // A person's resolution; before it is written another worker begins.
    let ours = proceeds(begin(&slow, "resolved").await);
    world.clock.advance(LEASE);
    let before = fast.clone();
    hooked.before_commit(async move { assert_eq!(proceeds(begin(&before, "resolved").await).attempt, 2) });
    let refused = resolve(&slow, &ours, false).await;
    assert!(matches!(&refused, Err(NotTaken::Wrong(why)) if why.contains("sending")), "{refused:?}");
    // A lease has ended; before that is written, its worker reports that it has sent.
    let ours = proceeds(begin(&slow, "tended").await);
    world.clock.advance(LEASE);
    let jobs = due(&world.store).await;
    let job = jobs.iter().find(|job| job.id == ours.id).expect("it is due");
    let (before, of) = (fast.clone(), ours.clone());
    hooked.before_commit(async move { drop(stands(sent(&before, &of, "esp-1").await, State::Sent)) });
    let tended = slow.tend(job).await.expect("the store is there");
    assert!(matches!(tended, Tended::Nothing), "{tended:?}");
    assert_eq!(found(&fast, &ours).await.document.state, State::Sent);
    world.close().await;
}

async fn what_a_person_forgets_is_the_next_workers(on: On) {
    let world = World::open(on).await;
    let main = ledger(&world.store);
    for lost in POLICIES {
        for (state, recipient) in [(State::Sending, "at it"), (State::Sent, "sent"), (State::Unknown, "silent")] {
            let sends = over(&world.store, lost);
            let recipient = format!("{recipient}, {}", lost.as_str());
            let ours = proceeds(begin(&sends, &recipient).await);
            match state {
                State::Sent => drop(stands(sent(&sends, &ours, "esp-1").await, State::Sent)),
                State::Unknown => world.clock.advance(LEASE),
                _ => {}
            }
            let key = oncegate::ClaimKey::of(&workspace(), &GUARD, &[Some("spring"), Some(&recipient)]);
            let forget = Op { key, command: Command::Forget };
            let done = main.commit(Commit { ops: vec![forget], changes: vec![] }).await.expect("the store is there");
            assert!(done.is_written());
            let next = proceeds(begin(&sends, &recipient).await);
            assert_eq!((next.attempt, next.provider_key, next.id), (2, ours.provider_key, ours.id));
            is_fenced(&sent(&sends, &ours, "esp-3").await);
            stands(sent(&sends, &next, "esp-2").await, State::Sent);
            assert_eq!(was_sent(begin(&sends, &recipient).await).esp_message_id.as_deref(), Some("esp-2"));
        }
    }
    world.close().await;
}

async fn lists_are_by_campaign_and_state(on: On) {
    let world = World::open(on).await;
    let sends = over(&world.store, Lost::Hold);
    let mut of_state = vec![];
    for state in [State::Sent, State::Failed, State::Unknown, State::Sending] {
        let ours = proceeds(begin(&sends, state.as_str()).await);
        match state {
            State::Sent => drop(sent(&sends, &ours, "esp").await),
            State::Failed => drop(failed(&sends, &ours, Reached::No).await),
            State::Unknown => drop(failed(&sends, &ours, Reached::Maybe).await),
            _ => {}
        }
        of_state.push((state, ours.id));
        world.clock.advance(MILLI);
    }
    let elsewhere = oncegate::sends::Begin::new("spring:", "sent").expect("is right");
    proceeds(sends.begin(&workspace(), &elsewhere).await.expect("the store is there"));
    let list = async |campaign: Option<&str>, state, limit, before| {
        let filter = Filter { campaign: campaign.map(str::to_owned), state, limit, before };
        let page = sends.list(&workspace(), &filter).await.expect("the store is there");
        (page.value.items.iter().map(|kept| kept.id).collect::<Vec<_>>(), page.value.next)
    };
    let newest_first: Vec<_> = of_state.iter().rev().map(|(_, id)| *id).collect();
    assert_eq!(list(Some("spring"), None, 10, None).await, (newest_first.clone(), None));
    assert_eq!(list(None, None, 10, None).await.0.len(), 5);
    assert!(list(Some("autumn"), None, 10, None).await.0.is_empty());
    for (state, id) in &of_state {
        assert_eq!(list(Some("spring"), Some(*state), 10, None).await.0, [*id], "{state:?}");
    }
    let (first, next) = list(Some("spring"), None, 3, None).await;
    assert_eq!(first, newest_first[..3]);
    assert_eq!(list(Some("spring"), None, 3, next).await, (newest_first[3..].to_vec(), None));
    world.close().await;
}

async fn what_was_called_unsent_and_was_sent_is_taken_until_another_begins(on: On) {
    let world = World::open(on).await;
    for lost in POLICIES {
        let sends = over(&world.store, lost);
        // A person resolved it as not sent, but the message was sent after all.
        let ours = open_send(&world, lost, &format!("{}, a person", lost.as_str()), false).await;
        stands(resolve(&sends, &ours, false).await, State::Failed);
        stands(sent(&sends, &ours, "esp-1").await, State::Sent);
        assert_eq!(was_sent(begin(&sends, &format!("{}, a person", lost.as_str())).await).id, ours.id);
        // The worker itself had reported that it was not sent.
        let recipient = format!("{}, itself", lost.as_str());
        let ours = proceeds(begin(&sends, &recipient).await);
        failed(&sends, &ours, Reached::Maybe).await.expect("is ours");
        stands(sent(&sends, &ours, "esp-2").await, State::Sent);
        assert_eq!(was_sent(begin(&sends, &recipient).await).esp_message_id.as_deref(), Some("esp-2"));
        // Another worker has begun.
        let recipient = format!("{}, another", lost.as_str());
        let ours = proceeds(begin(&sends, &recipient).await);
        failed(&sends, &ours, Reached::No).await.expect("is ours");
        let next = proceeds(begin(&sends, &recipient).await);
        is_fenced(&sent(&sends, &ours, "esp-3").await);
        stands(sent(&sends, &next, "esp-4").await, State::Sent);
    }
    world.close().await;
}
