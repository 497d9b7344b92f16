//! Sends on each store, on a clock that the test sets: which worker may send, what its reports do, and when they come too late.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::join_all;
use oncegate::Token;
use oncegate::sends::{Begin, Begun, Lost, NotTaken, State};
use oncegate_core::job::Reached;
use oncegate_store::MainStore;

use crate::support::sends::{
    LEASE, MILLI, POLICIES, SECOND, begin, failed, found, is_busy, is_fenced, is_unknown, over, proceeds, sent, stands,
    to, was_sent, workspace,
};
use crate::support::{Hooked, On, START, World, on_each};

on_each![
    the_first_proceeds_and_whoever_comes_later_reads_its_outcome,
    of_64_at_once_one_proceeds_whichever_replica_they_ask,
    after_a_worker_that_died_its_policy_says_what_happens_to_the_millisecond,
    what_was_surely_not_sent_is_the_next_workers,
    what_may_have_been_sent_goes_by_the_policy,
    a_worker_that_renews_stays_the_one,
    a_late_word_of_the_last_worker_is_taken,
    once_another_has_begun_a_late_word_is_fenced,
    the_same_word_again_is_a_success_and_another_is_not,
    words_about_nothing_are_about_nothing,
    of_two_words_at_once_it_is_the_send_that_counts,
    a_late_word_counts_although_another_comes_between_its_looks,
    what_is_begun_under_another_policy_goes_by_the_new_one,
    the_last_attempts_are_kept,
    a_worker_is_refused_only_behind_a_commit,
];

async fn a_worker_is_refused_only_behind_a_commit(on: On) {
    let world = World::open(on).await;
    let hooked = Hooked::over(world.store.clone());
    let store: Arc<dyn MainStore> = hooked.clone();
    let sends = over(&store, Lost::Resend);
    let ours = proceeds(begin(&sends, "bob").await);
    hooked.fall_behind();
    stands(sent(&sends, &ours, "esp-1").await, State::Sent);
    hooked.fall_behind();
    stands(sent(&sends, &ours, "esp-1").await, State::Sent);
    hooked.cut_off();
    let again = sent(&sends, &ours, "esp-1").await;
    assert!(matches!(again, Err(NotTaken::Store(_))), "no standby may have it: {again:?}");
    world.close().await;
}

async fn the_first_proceeds_and_whoever_comes_later_reads_its_outcome(on: On) {
    let world = World::open(on).await;
    for lost in POLICIES {
        let sends = over(&world.store, lost);
        let recipient = lost.as_str();
        let asked = to(recipient).job("job 1").and_then(|begin| begin.template("welcome")).expect("is right");
        let now = world.store.now().await.expect("the store is there");
        let ours = proceeds(sends.begin(&workspace(), &asked).await.expect("the store is there"));
        assert_eq!((ours.attempt, ours.lease_until), (1, now + LEASE));
        world.clock.advance(SECOND);
        assert_eq!(is_busy(begin(&sends, recipient).await), LEASE - SECOND);
        let kept = stands(sent(&sends, &ours, "esp-1").await, State::Sent);
        assert_eq!(
            (kept.document.esp_message_id.as_deref(), kept.document.template.as_deref()),
            (Some("esp-1"), Some("welcome"))
        );
        // The job is delivered ten times, also when a worker's lease would have ended long ago.
        for _ in 0..10 {
            world.clock.advance(LEASE);
            let read = was_sent(begin(&sends, recipient).await);
            assert_eq!((read.id, read.esp_message_id.as_deref()), (ours.id, Some("esp-1")));
            assert_eq!(read.sent_us, (now + SECOND).micros());
        }
        let kept = found(&sends, &ours).await;
        assert_eq!((kept.document.attempts.len(), kept.document.attempts[0].job.as_deref()), (1, Some("job 1")));
    }
    // Another recipient, another campaign and another workspace are other sends.
    let sends = over(&world.store, Lost::Resend);
    proceeds(begin(&sends, "bob").await);
    let autumn = Begin::new("autumn", "resend").expect("is right");
    proceeds(sends.begin(&workspace(), &autumn).await.expect("the store is there"));
    let acme = oncegate::WorkspaceName::new("acme").expect("a good name");
    proceeds(sends.begin(&acme, &to("resend")).await.expect("the store is there"));
    world.close().await;
}

async fn of_64_at_once_one_proceeds_whichever_replica_they_ask(on: On) {
    let world = World::open(on).await;
    let other = world.again().await;
    for (round, lost) in POLICIES.into_iter().cycle().take(6).enumerate() {
        let (sends, elsewhere) = (over(&world.store, lost), over(&other, lost));
        let recipient = format!("recipient {round}");
        // A new send, and the next attempt after its worker gave it back.
        for attempt in [1, 2] {
            let asked = (0..64).map(|number| {
                let (who, recipient) =
                    (if number % 2 == 0 { sends.clone() } else { elsewhere.clone() }, recipient.clone());
                tokio::spawn(async move { begin(&who, &recipient).await })
            });
            let told = join_all(asked).await.into_iter().map(|told| told.expect("does not panic"));
            let (ours, others): (Vec<_>, Vec<_>) = told.partition(|told| matches!(told, Begun::Proceed(_)));
            assert_eq!(ours.len(), 1, "round {round}, attempt {attempt}");
            for told in others {
                is_busy(told);
            }
            let ours = proceeds(ours.into_iter().next().expect("one"));
            assert_eq!(ours.attempt, attempt, "round {round}");
            stands(failed(&elsewhere, &ours, Reached::No).await, State::Failed);
        }
    }
    other.close().await;
    world.close().await;
}

async fn after_a_worker_that_died_its_policy_says_what_happens_to_the_millisecond(on: On) {
    let world = World::open(on).await;
    for lost in POLICIES {
        let (sends, recipient) = (over(&world.store, lost), lost.as_str());
        let first = proceeds(begin(&sends, recipient).await);
        world.clock.advance(LEASE - MILLI);
        assert_eq!(is_busy(begin(&sends, recipient).await), MILLI);
        assert_eq!(found(&sends, &first).await.document.state, State::Sending);
        world.clock.advance(MILLI);
        let kept = found(&sends, &first).await;
        let now = world.store.now().await.expect("the store is there");
        let state = if lost == Lost::Resend { State::Lost } else { State::Unknown };
        assert_eq!(kept.document.state_at(now), state, "whether or not anybody has written it down");
        for _ in 0..2 {
            match lost {
                Lost::Resend => {
                    let next = proceeds(begin(&sends, recipient).await);
                    assert_eq!((next.id, next.provider_key), (first.id, first.provider_key));
                    assert!(next.token > first.token && next.attempt > first.attempt);
                    assert_eq!(is_busy(begin(&sends, recipient).await), LEASE, "one of them");
                    world.clock.advance(LEASE);
                }
                Lost::Skip | Lost::Hold => is_unknown(&begin(&sends, recipient).await),
            }
            world.clock.advance(MILLI);
        }
    }
    world.close().await;
}

async fn what_was_surely_not_sent_is_the_next_workers(on: On) {
    let world = World::open(on).await;
    for lost in POLICIES {
        let (sends, recipient) = (over(&world.store, lost), lost.as_str());
        let first = proceeds(begin(&sends, recipient).await);
        let kept = stands(failed(&sends, &first, Reached::No).await, State::Failed);
        assert_eq!(kept.document.attempts[0].error.as_deref(), Some("no"));
        let second = proceeds(begin(&sends, recipient).await);
        assert_eq!((second.attempt, second.provider_key, second.id), (2, first.provider_key, first.id));
        assert!(second.token > first.token);
        stands(sent(&sends, &second, "esp-2").await, State::Sent);
        assert_eq!(was_sent(begin(&sends, recipient).await).esp_message_id.as_deref(), Some("esp-2"));
    }
    world.close().await;
}

async fn what_may_have_been_sent_goes_by_the_policy(on: On) {
    let world = World::open(on).await;
    for lost in POLICIES {
        let (sends, recipient) = (over(&world.store, lost), lost.as_str());
        let first = proceeds(begin(&sends, recipient).await);
        let said = failed(&sends, &first, Reached::Maybe).await;
        if lost == Lost::Resend {
            stands(said, State::Lost);
            let second = proceeds(begin(&sends, recipient).await);
            assert_eq!((second.attempt, second.provider_key), (2, first.provider_key));
            continue;
        }
        stands(said, State::Unknown);
        is_unknown(&begin(&sends, recipient).await);
        // The worker of that send reports the result after all.
        stands(sent(&sends, &first, "esp-1").await, State::Sent);
        was_sent(begin(&sends, recipient).await);
    }
    world.close().await;
}

async fn a_worker_that_renews_stays_the_one(on: On) {
    let world = World::open(on).await;
    for lost in POLICIES {
        let (sends, recipient) = (over(&world.store, lost), lost.as_str());
        let ours = proceeds(begin(&sends, recipient).await);
        for _ in 0..3 {
            world.clock.advance(LEASE - MILLI);
            let kept = sends.renew(&workspace(), ours.id, ours.token, None).await;
            stands(kept, State::Sending);
            assert_eq!(is_busy(begin(&sends, recipient).await), LEASE);
        }
        stands(sends.renew(&workspace(), ours.id, ours.token, Some(SECOND)).await, State::Sending);
        assert_eq!(is_busy(begin(&sends, recipient).await), SECOND, "as it says");
        world.clock.advance(SECOND);
        let late = sends.renew(&workspace(), ours.id, ours.token, None).await;
        is_fenced(&late);
        stands(sent(&sends, &ours, "esp-1").await, State::Sent);
        is_fenced(&sends.renew(&workspace(), ours.id, ours.token, None).await);
    }
    world.close().await;
}

async fn a_late_word_of_the_last_worker_is_taken(on: On) {
    let world = World::open(on).await;
    for lost in POLICIES {
        let sends = over(&world.store, lost);
        let name = |word: &str| format!("{word}, {}", lost.as_str());
        let (says_sent, says_no, says_maybe) = (name("sent"), name("no"), name("maybe"));
        let late_sent = proceeds(begin(&sends, &says_sent).await);
        let late_no = proceeds(begin(&sends, &says_no).await);
        let late_maybe = proceeds(begin(&sends, &says_maybe).await);
        world.clock.advance(LEASE + 3600 * SECOND);
        for _ in 0..2 {
            stands(sent(&sends, &late_sent, "esp-1").await, State::Sent);
        }
        assert_eq!(was_sent(begin(&sends, &says_sent).await).esp_message_id.as_deref(), Some("esp-1"));
        is_fenced(&failed(&sends, &late_sent, Reached::No).await);
        stands(failed(&sends, &late_no, Reached::No).await, State::Failed);
        assert_eq!(proceeds(begin(&sends, &says_no).await).attempt, 2);
        let state = if lost == Lost::Resend { State::Lost } else { State::Unknown };
        let kept = stands(failed(&sends, &late_maybe, Reached::Maybe).await, state);
        assert_eq!(kept.document.attempts[0].error.as_deref(), Some("no"));
        match begin(&sends, &says_maybe).await {
            Begun::Proceed(next) => assert_eq!((next.attempt, lost), (2, Lost::Resend)),
            told => is_unknown(&told),
        }
    }
    world.close().await;
}

async fn once_another_has_begun_a_late_word_is_fenced(on: On) {
    let world = World::open(on).await;
    let sends = over(&world.store, Lost::Resend);
    let first = proceeds(begin(&sends, "ada").await);
    world.clock.advance(LEASE);
    let second = proceeds(begin(&sends, "ada").await);
    for _ in 0..2 {
        is_fenced(&sent(&sends, &first, "esp-1").await);
        is_fenced(&failed(&sends, &first, Reached::No).await);
        is_fenced(&failed(&sends, &first, Reached::Maybe).await);
        is_fenced(&sends.renew(&workspace(), first.id, first.token, None).await);
        assert_eq!(found(&sends, &second).await.document.state, State::Sending);
        // The same if that worker is late, too.
        world.clock.advance(LEASE);
    }
    stands(sent(&sends, &second, "esp-2").await, State::Sent);
    is_fenced(&sent(&sends, &first, "esp-1").await);
    is_fenced(&sent(&sends, &first, "esp-2").await);
    assert_eq!(was_sent(begin(&sends, "ada").await).esp_message_id.as_deref(), Some("esp-2"));
    world.close().await;
}

async fn the_same_word_again_is_a_success_and_another_is_not(on: On) {
    let world = World::open(on).await;
    for lost in POLICIES {
        let sends = over(&world.store, lost);
        let says_sent = proceeds(begin(&sends, &format!("sent, {}", lost.as_str())).await);
        for _ in 0..3 {
            let kept = stands(sent(&sends, &says_sent, "esp-1").await, State::Sent);
            assert_eq!(kept.document.sent_us, kept.document.attempts[0].ended_us, "when it was said first");
            world.clock.advance(LEASE);
        }
        is_fenced(&sent(&sends, &says_sent, "esp-2").await);
        is_fenced(&failed(&sends, &says_sent, Reached::No).await);
        is_fenced(&failed(&sends, &says_sent, Reached::Maybe).await);
        assert_eq!(found(&sends, &says_sent).await.document.esp_message_id.as_deref(), Some("esp-1"));

        let recipient = format!("no, {}", lost.as_str());
        let says_no = proceeds(begin(&sends, &recipient).await);
        for _ in 0..3 {
            stands(failed(&sends, &says_no, Reached::No).await, State::Failed);
        }
        is_fenced(&failed(&sends, &says_no, Reached::Maybe).await);
        // Once another worker has begun, a retry of the lost report is refused.
        proceeds(begin(&sends, &recipient).await);
        is_fenced(&failed(&sends, &says_no, Reached::No).await);
        is_fenced(&sent(&sends, &says_no, "esp-1").await);
    }
    world.close().await;
}

async fn words_about_nothing_are_about_nothing(on: On) {
    let world = World::open(on).await;
    let sends = over(&world.store, Lost::Resend);
    let ours = proceeds(begin(&sends, "ada").await);
    let nothing = oncegate::sends::Proceed { id: uuid::Uuid::now_v7(), ..ours.clone() };
    assert!(matches!(sent(&sends, &nothing, "esp").await, Err(NotTaken::Missing)));
    assert!(matches!(sends.renew(&workspace(), nothing.id, ours.token, None).await, Err(NotTaken::Missing)));
    for token in [0, -1, i64::MIN, i64::MAX, ours.token.0 - 1, ours.token.0 + 1] {
        let wrong = oncegate::sends::Proceed { token: Token(token), ..ours.clone() };
        is_fenced(&sent(&sends, &wrong, "esp").await);
        is_fenced(&failed(&sends, &wrong, Reached::No).await);
        is_fenced(&sends.renew(&workspace(), wrong.id, wrong.token, None).await);
    }
    assert_eq!(is_busy(begin(&sends, "ada").await), LEASE);
    let acme = oncegate::WorkspaceName::new("acme").expect("a good name");
    let elsewhere = sends.sent(&acme, ours.id, ours.token, None).await;
    assert!(matches!(elsewhere, Err(NotTaken::Missing)), "{elsewhere:?}");
    world.close().await;
}

async fn of_two_words_at_once_it_is_the_send_that_counts(on: On) {
    let world = World::open(on).await;
    let other = world.again().await;
    for round in 0..20 {
        let (here, there) = (over(&world.store, Lost::Hold), over(&other, Lost::Hold));
        let recipient = format!("recipient {round}");
        let ours = proceeds(begin(&here, &recipient).await);
        // In time, and late.
        if round % 2 == 1 {
            world.clock.advance(LEASE);
        }
        let (said_sent, said_no) = tokio::join!(sent(&here, &ours, "esp-1"), failed(&there, &ours, Reached::No));
        // Whichever report came first: the message was sent, even if the send was resolved as not sent before.
        assert!(said_sent.is_ok(), "round {round}: {said_sent:?}, {said_no:?}");
        was_sent(begin(&there, &recipient).await);
    }
    other.close().await;
    world.close().await;
}

async fn a_late_word_counts_although_another_comes_between_its_looks(on: On) {
    let world = World::open(on).await;
    let hooked = Hooked::over(world.store.clone());
    let store: Arc<dyn MainStore> = hooked.clone();
    let (late, other) = (over(&store, Lost::Hold), Arc::new(over(&world.store, Lost::Hold)));
    for (recipient, says_sent) in [("ada", false), ("bob", true)] {
        let ours = proceeds(begin(&late, recipient).await);
        world.clock.advance(LEASE);
        let (sends, same) = (other.clone(), ours.clone());
        hooked.before_read(async move {
            let said =
                if says_sent { sent(&sends, &same, "esp-1").await } else { failed(&sends, &same, Reached::No).await };
            said.expect("it is late too, and nobody else has begun");
        });
        let said = sent(&late, &ours, "esp-1").await;
        assert!(said.is_ok(), "{recipient}: {said:?}");
        was_sent(begin(&other, recipient).await);
    }
    world.close().await;
}

async fn what_is_begun_under_another_policy_goes_by_the_new_one(on: On) {
    let world = World::open(on).await;
    let (resend, hold) = (over(&world.store, Lost::Resend), over(&world.store, Lost::Hold));
    let first = proceeds(begin(&resend, "ada").await);
    world.clock.advance(LEASE);
    // The send began under a policy that lets the next worker send it.
    let second = proceeds(begin(&hold, "ada").await);
    assert_eq!((second.attempt, found(&hold, &first).await.document.lost), (2, Lost::Hold));
    world.clock.advance(LEASE);
    is_unknown(&begin(&resend, "ada").await);
    assert_eq!(found(&resend, &first).await.document.state_at(START + LEASE + LEASE), State::Unknown);
    world.close().await;
}

async fn the_last_attempts_are_kept(on: On) {
    let world = World::open(on).await;
    let sends = over(&world.store, Lost::Resend);
    let mut keys = BTreeSet::new();
    for attempt in 1..=25 {
        let ours = proceeds(begin(&sends, "ada").await);
        assert_eq!(ours.attempt, attempt);
        keys.insert(ours.provider_key);
        stands(failed(&sends, &ours, Reached::Maybe).await, State::Lost);
    }
    let ours = proceeds(begin(&sends, "ada").await);
    let numbers: Vec<i32> = found(&sends, &ours).await.document.attempts.iter().map(|attempt| attempt.number).collect();
    assert_eq!((keys.len(), numbers), (1, (7..=26).collect()));
    world.close().await;
}
