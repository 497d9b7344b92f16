//! Reminders on each store, on a clock that the test sets: what people do with them, in time and too late.

use oncegate::reminders::{Edit, Filter, New, NotChanged, Set, State, Text, Worked};
use oncegate::{StoreError, Time, WorkspaceName};
use oncegate_core::job::Reached;
use uuid::Uuid;

use crate::support::desk::{Desk, GRACE, LEASE, MILLI, SECOND, before, new, workspace};
use crate::support::{Hooked, On, START, World, on_each};

on_each![
    ten_posts_are_one_reminder,
    many_at_once_are_one_reminder,
    what_differs_in_its_key_is_a_reminder_of_its_own,
    one_whose_time_is_over_is_not_set_but_one_that_is_there_is_answered,
    it_is_moved_and_reworded_in_time,
    it_is_cancelled_in_time_and_scheduled_anew,
    once_a_worker_has_it_it_is_too_late,
    one_that_is_over_says_so_however_old_it_is,
    between_the_look_and_the_write_the_worker_wins,
    two_who_cancel_at_once_have_both_cancelled_it,
    two_who_change_it_at_once_change_it_one_after_the_other,
    one_that_was_missed_is_sent_by_hand_and_no_other,
    of_two_persons_at_once_one_sends_it,
    one_that_was_missed_is_settled_without_being_sent,
    of_one_who_sends_it_and_one_who_lets_it_be_one_wins,
    an_answer_that_gets_lost_is_looked_up_or_asked_for_again,
    a_person_who_forgets_the_claim_makes_no_second_reminder,
];

fn at(send_at: Time) -> Edit {
    Edit { send_at: Some(send_at), ..Edit::default() }
}

fn saying(message: &str) -> Edit {
    Edit { message: Some(message.into()), ..Edit::default() }
}

async fn edit(desk: &Desk, id: Uuid, edit: &Edit) -> Result<State, NotChanged> {
    desk.reminders.edit(&workspace(), id, edit, |_| Ok(())).await.map(|kept| kept.document.state)
}

#[track_caller]
fn is_wrong<T: std::fmt::Debug>(changed: Result<T, NotChanged>, why: &str) {
    assert!(matches!(&changed, Err(NotChanged::Wrong(said)) if said.contains(why)), "{why}: {changed:?}");
}

async fn all(desk: &Desk) -> Vec<Uuid> {
    let filter = Filter { booking: None, state: None, limit: 500, before: None };
    let page = desk.reminders.list(&workspace(), &filter).await.expect("the store is there");
    page.items.into_iter().map(|kept| kept.id).collect()
}

async fn ten_posts_are_one_reminder(on: On) {
    let world = World::open(on).await;
    let both = [Desk::over(&world, world.store.clone()), Desk::over(&world, world.again().await)];
    let wanted = new("b", START + SECOND);
    let Set::Made(made) = both[0].set(&wanted).await else { panic!("nobody else made it") };
    assert_eq!((made.document.state, made.document.reminder_sent()), (State::Scheduled, false));
    for turn in 1..10 {
        // Only the booking and the kind count, whatever the text says.
        let text = Text { message: format!("{turn}"), ..wanted.text.clone() };
        let again = New { send_at: START + SECOND * turn, text, ..wanted.clone() };
        let Set::Found(found) = both[turn as usize % 2].set(&again).await else { panic!("there is one") };
        assert_eq!((found.id, &found.document), (made.id, &made.document));
    }
    assert_eq!(all(&both[1]).await, [made.id]);
    world.clock.set(START + SECOND);
    assert_eq!(both[0].leased().await.id, made.id);
    assert!(both[1].lease().await.is_none(), "and one job");
    world.close().await;
}

/// The callers use two replicas, if the store allows two.
async fn many_at_once_are_one_reminder(on: On) {
    let world = World::open(on).await;
    let both = [Desk::over(&world, world.store.clone()), Desk::over(&world, world.again().await)];
    for round in 0..5 {
        let calls = (0..64).map(|call| {
            let desk = both[call % 2].clone();
            tokio::spawn(async move { desk.set(&new(&format!("b{round}"), START)).await })
        });
        let (mut made, mut found) = (vec![], vec![]);
        for call in calls.collect::<Vec<_>>() {
            match call.await.expect("does not panic") {
                Set::Made(kept) => made.push(kept.id),
                Set::Found(kept) => found.push(kept.id),
                Set::TooLate => panic!("it is due now"),
            }
        }
        assert_eq!((made.len(), found.len()), (1, 63));
        assert!(found.iter().all(|id| *id == made[0]));
        assert_eq!(both[0].leased().await.id, made[0]);
        assert!(both[1].lease().await.is_none());
    }
    assert_eq!(all(&both[0]).await.len(), 5);
    world.close().await;
}

async fn what_differs_in_its_key_is_a_reminder_of_its_own(on: On) {
    let world = World::open(on).await;
    let desk = Desk::over(&world, world.store.clone());
    let one = new("b", START);
    let others = [
        new("c", START),
        New { kind: "second".into(), ..one.clone() },
        // Booking and kind are not simply concatenated.
        New { booking: "bs".into(), kind: "econd".into(), ..one.clone() },
    ];
    assert!(matches!(desk.set(&one).await, Set::Made(_)));
    for other in &others {
        assert!(matches!(desk.set(other).await, Set::Made(_)), "{other:?}");
    }
    let elsewhere = WorkspaceName::new("other").expect("a good name");
    let Ok(Set::Made(other)) = desk.reminders.set(&elsewhere, &one).await else { panic!("it is another's") };
    assert!(desk.reminders.find(&workspace(), other.id).await.expect("the store is there").is_none());
    assert!(matches!(desk.cancel(other.id).await, Err(NotChanged::Missing)));
    let filter = Filter { booking: Some("b".into()), state: Some(State::Scheduled), limit: 10, before: None };
    assert_eq!(desk.reminders.list(&workspace(), &filter).await.expect("the store is there").items.len(), 2);
    world.close().await;
}

async fn one_whose_time_is_over_is_not_set_but_one_that_is_there_is_answered(on: On) {
    let world = World::open(on).await;
    let desk = Desk::over(&world, world.store.clone());
    let id = desk.due("in time").await;
    world.clock.set(START + GRACE);
    assert!(matches!(desk.set(&new("late", START)).await, Set::Made(_)), "within the grace");
    world.clock.set(START + GRACE + MILLI);
    assert!(matches!(desk.set(&new("too late", START)).await, Set::TooLate));
    assert!(matches!(desk.set(&new("in time", START)).await, Set::Found(kept) if kept.id == id));
    assert_eq!(all(&desk).await.len(), 2, "nothing was left behind");
    assert!(matches!(desk.set(&new("too late", START + MILLI)).await, Set::Made(_)), "nor was its place taken");
    world.close().await;
}

async fn it_is_moved_and_reworded_in_time(on: On) {
    let world = World::open(on).await;
    let desk = Desk::over(&world, world.store.clone());
    let id = desk.due("b").await;
    let all_of_it = Edit {
        send_at: Some(START + SECOND * 60),
        channel: Some("keyed".into()),
        phone: Some("+1666".into()),
        email: Some("a@b.test".into()),
        message: Some("At ten.".into()),
    };
    assert_eq!(edit(&desk, id, &all_of_it).await.expect("is in time"), State::Scheduled);
    assert!(desk.lease().await.is_none(), "not any more");
    assert_eq!(edit(&desk, id, &saying("At noon.")).await.expect("is in time"), State::Scheduled);
    let after = desk.find(id).await;
    let text = Text { message: "At noon.".into(), ..all_of_it.text(&after.text) };
    assert_eq!(after.text, text, "what is left out stays as it is");
    assert_eq!((after.send_at_us, after.reminder_sent()), ((START + SECOND * 60).micros(), false));
    let over = at(before(START, GRACE + MILLI));
    assert!(matches!(edit(&desk, id, &over).await, Err(NotChanged::TooLate(_))));
    assert_eq!(desk.find(id).await, after);
    // A reminder can also be moved to now.
    edit(&desk, id, &at(START)).await.expect("is in time");
    let (kept, _) = desk.flagged(&desk.leased().await).await;
    assert_eq!(kept.document.text.message, "At noon.");
    world.close().await;
}

async fn it_is_cancelled_in_time_and_scheduled_anew(on: On) {
    let world = World::open(on).await;
    let desk = Desk::over(&world, world.store.clone());
    let id = desk.due("b").await;
    for _ in 0..2 {
        assert_eq!(desk.cancel(id).await.expect("is in time").document.state, State::Cancelled);
        assert!(desk.lease().await.is_none());
    }
    let Set::Found(found) = desk.set(&new("b", START + SECOND)).await else { panic!("there is one") };
    assert_eq!((found.id, found.document.state), (id, State::Cancelled), "posting it again does not undo it");
    // A late rewording does not bring a cancelled reminder back.
    is_wrong(edit(&desk, id, &saying("Hm.")).await, "only with a new sendAt");
    world.clock.set(START + GRACE + MILLI);
    assert!(matches!(edit(&desk, id, &at(START)).await, Err(NotChanged::TooLate(_))), "its time is over");
    assert_eq!(edit(&desk, id, &at(desk.now())).await.expect("is revived"), State::Scheduled);
    assert_eq!(desk.find(id).await.ended_us, None);
    desk.cancel(id).await.expect("is in time");
    edit(&desk, id, &at(desk.now())).await.expect("as often as one likes");
    let sending = desk.flagged(&desk.leased().await).await;
    assert_eq!(desk.delivered(&sending).await.expect("the store is there").expect("is ours").id, id);
    assert!(desk.lease().await.is_none());
    world.close().await;
}

async fn once_a_worker_has_it_it_is_too_late(on: On) {
    let world = World::open(on).await;
    let desk = Desk::over(&world, world.store.clone());
    let id = desk.due("b").await;
    let refused = async |why: &str| {
        let before = desk.find(id).await;
        is_wrong(edit(&desk, id, &at(START + SECOND * 60)).await, why);
        is_wrong(desk.cancel(id).await, why);
        assert_eq!(desk.find(id).await, before);
    };
    let job = desk.leased().await;
    refused("a worker is about to send it").await;
    let sending = desk.flagged(&job).await;
    refused("it is sending").await;
    // The same while it waits for the next try.
    desk.failed(&sending, Reached::No).await.expect("is ours");
    refused("it is sending").await;
    world.clock.set(START + SECOND * 2);
    let sending = desk.flagged(&desk.leased().await).await;
    desk.delivered(&sending).await.expect("the store is there").expect("is ours");
    refused("it is sent").await;
    // A reminder whose worker was lost before the flag has not been sent, and can be cancelled.
    let lost = desk.due("lost").await;
    desk.leased().await;
    is_wrong(desk.cancel(lost).await, "a worker is about to send it");
    world.clock.advance(LEASE);
    assert_eq!(desk.cancel(lost).await.expect("nobody has it").document.state, State::Cancelled);
    assert!(desk.lease().await.is_none());
    world.close().await;
}

async fn one_that_is_over_says_so_however_old_it_is(on: On) {
    let world = World::open(on).await;
    let desk = Desk::over(&world, world.store.clone());
    let missed = desk.missed("missed").await;
    let sent = desk.due("sent").await;
    let sending = desk.flagged(&desk.leased().await).await;
    desk.delivered(&sending).await.expect("the store is there").expect("is ours");
    for _ in 0..2 {
        is_wrong(edit(&desk, missed, &saying("Hm.")).await, "it is missed");
        is_wrong(edit(&desk, sent, &saying("Hm.")).await, "it is sent");
        world.clock.advance(GRACE * 2);
    }
    world.close().await;
}

async fn between_the_look_and_the_write_the_worker_wins(on: On) {
    let world = World::open(on).await;
    let hooked = Hooked::over(world.store.clone());
    let (person, worker) = (Desk::over(&world, hooked.clone()), Desk::over(&world, world.store.clone()));
    for verb in ["cancel", "edit"] {
        for is_flagged in [false, true] {
            let id = worker.due(&format!("{verb} {is_flagged}")).await;
            let (theirs, desk) = tokio::sync::oneshot::channel();
            let hook = worker.clone();
            hooked.before_commit(async move {
                let job = hook.leased().await;
                if is_flagged {
                    hook.flagged(&job).await;
                }
                let _ = theirs.send(job);
            });
            let why = if is_flagged { "it is sending" } else { "a worker is about to send it" };
            match verb {
                "cancel" => is_wrong(person.cancel(id).await, why),
                _ => is_wrong(edit(&person, id, &saying("Hm.")).await, why),
            }
            let job = desk.await.expect("the hook ran");
            if !is_flagged {
                assert_eq!(worker.flagged(&job).await.0.document.text.message, "At nine.");
            }
        }
    }
    // And the person before the flag: a cancelled reminder is not sent, and a reworded one is sent with its new text.
    world.clock.advance(LEASE);
    while let Some(job) = worker.lease().await {
        worker.flag(&job).await.expect("the store is there");
    }
    let id = person.due("late worker").await;
    let job = worker.leased().await;
    world.clock.advance(LEASE);
    let cancels = worker.clone();
    hooked.before_commit(async move { drop(cancels.cancel(id).await.expect("nobody has it")) });
    // The worker's clock stands still.
    let flagged = person.reminders.flag(&job, before(job.lease_until, MILLI)).await.expect("the store is there");
    assert!(matches!(flagged, Worked::Nothing), "{flagged:?}");
    assert_eq!(worker.find(id).await.state, State::Cancelled);
    world.close().await;
}

async fn two_who_cancel_at_once_have_both_cancelled_it(on: On) {
    let world = World::open(on).await;
    let hooked = Hooked::over(world.store.clone());
    let (one, other) = (Desk::over(&world, hooked.clone()), Desk::over(&world, world.again().await));
    for hook in ["look", "commit"] {
        let id = other.due(hook).await;
        let first = other.clone();
        let cancels = async move { drop(first.cancel(id).await.expect("is in time")) };
        match hook {
            "look" => hooked.before_look(cancels),
            _ => hooked.before_commit(cancels),
        }
        assert_eq!(one.cancel(id).await.expect("it is so already").document.state, State::Cancelled);
    }
    for round in 0..20 {
        let id = other.due(&format!("b{round}")).await;
        let (a, b) = tokio::join!(one.cancel(id), other.cancel(id));
        for cancelled in [a, b] {
            assert_eq!(cancelled.expect("is in time").document.state, State::Cancelled);
        }
    }
    world.close().await;
}

async fn two_who_change_it_at_once_change_it_one_after_the_other(on: On) {
    let world = World::open(on).await;
    let hooked = Hooked::over(world.store.clone());
    let (one, other) = (Desk::over(&world, hooked.clone()), Desk::over(&world, world.again().await));
    let id = other.due("b").await;
    let first = other.clone();
    hooked.before_commit(async move {
        edit(&first, id, &saying("At ten.")).await.expect("is in time");
    });
    edit(&one, id, &at(START + SECOND)).await.expect("is in time");
    let after = one.find(id).await;
    assert_eq!((after.send_at_us, after.text.message.as_str()), ((START + SECOND).micros(), "At ten."));
    // One person cancels it and another moves it. The last of them decides its state, and a scheduled reminder has a job.
    for round in 0..20 {
        let id = other.due(&format!("b{round}")).await;
        let (changed, later) = (at(START), one.clone());
        let (moved, cancelled) = tokio::join!(edit(&later, id, &changed), other.cancel(id));
        moved.expect("is in time, or scheduled anew");
        cancelled.expect("is in time");
        let is_scheduled = one.find(id).await.state == State::Scheduled;
        assert_eq!(one.lease().await.map(|job| job.id), is_scheduled.then_some(id));
    }
    world.close().await;
}

async fn one_that_was_missed_is_sent_by_hand_and_no_other(on: On) {
    let world = World::open(on).await;
    let desk = Desk::over(&world, world.store.clone());
    let id = desk.missed("b").await;
    let flagged = desk.find(id).await.flagged_us;
    world.clock.advance(GRACE * 10);
    let again = desk.send_missed(id, "ann").await.expect("was missed").document;
    assert_eq!((again.state, again.sent_by.as_deref(), again.ended_us), (State::Sending, Some("ann"), None));
    assert_eq!(again.flagged_us, flagged, "the flag stays as it was");
    is_wrong(desk.send_missed(id, "bob").await, "it is sending");
    let sending = desk.flagged(&desk.leased().await).await;
    desk.delivered(&sending).await.expect("the store is there").expect("is ours");
    is_wrong(desk.send_missed(id, "bob").await, "it is sent");
    let rows = desk.find(id).await.deliveries;
    assert_eq!(rows.iter().map(|row| row.error.is_none()).collect::<Vec<_>>(), [false, true]);
    // A person's try may fail, too, and is treated like the first.
    let id = desk.missed("c").await;
    desk.send_missed(id, "ann").await.expect("was missed");
    let sending = desk.flagged(&desk.leased().await).await;
    desk.failed(&sending, Reached::No).await.expect("is ours");
    world.clock.advance(SECOND * 2);
    let sending = desk.flagged(&desk.leased().await).await;
    desk.failed(&sending, Reached::Maybe).await.expect("is ours");
    desk.send_missed(id, "bob").await.expect("was missed again");
    // No worker sends it within its new grace.
    world.clock.advance(GRACE + MILLI);
    let job = desk.leased().await;
    assert!(matches!(desk.flag(&job).await, Ok(Worked::Missed(_))));
    let scheduled = desk.due("d").await;
    is_wrong(desk.send_missed(scheduled, "ann").await, "it is scheduled");
    desk.cancel(scheduled).await.expect("is in time");
    is_wrong(desk.send_missed(scheduled, "ann").await, "it is cancelled");
    assert!(matches!(desk.send_missed(Uuid::now_v7(), "ann").await, Err(NotChanged::Missing)));
    world.close().await;
}

async fn of_two_persons_at_once_one_sends_it(on: On) {
    let world = World::open(on).await;
    let both = [Desk::over(&world, world.store.clone()), Desk::over(&world, world.again().await)];
    for round in 0..20 {
        let id = both[0].missed(&format!("b{round}")).await;
        let (ann, bob) = tokio::join!(both[0].send_missed(id, "ann"), both[1].send_missed(id, "bob"));
        let by = if ann.is_ok() { "ann" } else { "bob" };
        let lost = if ann.is_ok() { bob } else { ann };
        is_wrong(lost, "only one that was missed");
        assert_eq!(both[0].find(id).await.sent_by.as_deref(), Some(by));
        let sending = both[0].flagged(&both[0].leased().await).await;
        assert!(both[1].lease().await.is_none(), "one job");
        both[1].delivered(&sending).await.expect("the store is there").expect("is ours");
    }
    // The same if one person does it twice at the same moment, and both writes are equal.
    let hooked = Hooked::over(world.store.clone());
    let (first, second) = (Desk::over(&world, world.store.clone()), Desk::over(&world, hooked.clone()));
    let id = first.missed("alike").await;
    hooked.before_commit(async move { _ = first.send_missed(id, "ann").await.expect("was missed") });
    is_wrong(second.send_missed(id, "ann").await, "only one that was missed");
    world.close().await;
}

async fn one_that_was_missed_is_settled_without_being_sent(on: On) {
    let world = World::open(on).await;
    let desk = Desk::over(&world, world.store.clone());
    for (sent, state) in [(true, State::Sent), (false, State::Cancelled)] {
        let id = desk.missed(&format!("{sent}")).await;
        let missed = desk.find(id).await;
        let settled = desk.resolve(id, sent).await.expect("was missed").document;
        assert_eq!((settled.state, settled.ended_us), (state, missed.ended_us));
        assert_eq!((&settled.deliveries, settled.flagged_us), (&missed.deliveries, missed.flagged_us));
        assert_eq!(desk.resolve(id, sent).await.expect("said again").document, settled);
        is_wrong(desk.resolve(id, !sent).await, "only one that was missed");
        is_wrong(desk.send_missed(id, "ann").await, "only one that was missed");
        is_wrong(edit(&desk, id, &at(desk.now() + SECOND)).await, "");
        assert!(desk.lease().await.is_none());
    }
    // No worker began it, so its flag was never set. Resolving it as not sent does not set the flag.
    let id = desk.due("nobody").await;
    world.clock.advance(GRACE + MILLI);
    let job = desk.leased().await;
    assert!(matches!(desk.flag(&job).await, Ok(Worked::Missed(_))));
    assert!(!desk.resolve(id, false).await.expect("was missed").document.reminder_sent());
    is_wrong(edit(&desk, id, &at(desk.now() + SECOND)).await, "dismissed");
    let waits = desk.due("waits").await;
    is_wrong(desk.resolve(waits, true).await, "it is scheduled");
    assert!(matches!(desk.resolve(Uuid::now_v7(), true).await, Err(NotChanged::Missing)));
    world.close().await;
}

async fn of_one_who_sends_it_and_one_who_lets_it_be_one_wins(on: On) {
    let world = World::open(on).await;
    let both = [Desk::over(&world, world.store.clone()), Desk::over(&world, world.again().await)];
    for round in 0..20 {
        let id = both[0].missed(&format!("b{round}")).await;
        let (sent, let_be) = tokio::join!(both[0].send_missed(id, "ann"), both[1].resolve(id, false));
        assert_ne!(sent.is_ok(), let_be.is_ok(), "{sent:?} {let_be:?}");
        let state = both[0].find(id).await.state;
        assert_eq!(state, if sent.is_ok() { State::Sending } else { State::Cancelled });
        assert_eq!(both[1].lease().await.is_some(), sent.is_ok(), "what is let be is in no queue");
    }
    world.close().await;
}

async fn an_answer_that_gets_lost_is_looked_up_or_asked_for_again(on: On) {
    let world = World::open(on).await;
    let hooked = Hooked::over(world.store.clone());
    let desk = Desk::over(&world, hooked.clone());
    for is_written in [true, false] {
        let booking = format!("b {is_written}");
        hooked.lose_answer(is_written);
        let lost = desk.reminders.set(&workspace(), &new(&booking, START)).await;
        assert!(matches!(lost, Err(StoreError::Unknown(_))), "{lost:?}");
        let (id, was_there) = match desk.set(&new(&booking, START)).await {
            Set::Found(kept) => (kept.id, true),
            Set::Made(kept) => (kept.id, false),
            Set::TooLate => panic!("it is in time"),
        };
        assert_eq!(was_there, is_written);
        // The command of a person succeeds if it was written, although the answer was lost. Otherwise it changes nothing.
        hooked.lose_answer(is_written);
        let edited = edit(&desk, id, &saying("At ten.")).await;
        assert_eq!((edited.is_ok(), desk.find(id).await.text.message == "At ten."), (is_written, is_written));
        hooked.lose_answer(is_written);
        let cancelled = desk.cancel(id).await;
        assert_eq!((cancelled.is_ok(), desk.find(id).await.state == State::Cancelled), (is_written, is_written));
        desk.cancel(id).await.expect("again is right");
        let missed = desk.missed(&format!("missed {is_written}")).await;
        hooked.lose_answer(is_written);
        let sent = desk.send_missed(missed, "ann").await;
        assert_eq!((sent.is_ok(), desk.find(missed).await.state == State::Sending), (is_written, is_written));
        assert_eq!(desk.lease().await.is_some(), is_written);
        let missed = desk.missed(&format!("let be {is_written}")).await;
        hooked.lose_answer(is_written);
        let let_be = desk.resolve(missed, false).await;
        assert_eq!((let_be.is_ok(), desk.find(missed).await.state == State::Cancelled), (is_written, is_written));
    }
    world.close().await;
}

async fn a_person_who_forgets_the_claim_makes_no_second_reminder(on: On) {
    let world = World::open(on).await;
    let desk = Desk::over(&world, world.store.clone());
    let wanted = new("b", START + SECOND);
    let Set::Made(made) = desk.set(&wanted).await else { panic!("nobody else made it") };
    let key = oncegate::ClaimKey::of(&workspace(), &oncegate::reminders::GUARD, &[Some("b"), Some("reminder")]);
    let forget = oncegate::store::Op { key, command: oncegate::Command::Forget };
    assert!(world.store.commit(forget.into()).await.expect("the store is there").is_written());
    for _ in 0..3 {
        let Set::Found(found) = desk.set(&wanted).await else { panic!("there is one already") };
        assert_eq!(found.id, made.id);
    }
    assert_eq!(all(&desk).await, [made.id]);
    world.close().await;
}
