//! How a worker sends a reminder, on each store, on a clock that the test sets. One worker sets the flag first; it is never reset.

use std::time::Duration;

use oncegate::reminders::{Edit, Set, State, Worked};
use oncegate::{StoreError, Time};
use oncegate_core::job::{Job, Reached};

use crate::support::desk::{Desk, LEASE, MILLI, SECOND, before, is_missed, is_nothing, new, workspace};
use crate::support::{Hooked, On, START, World, on_each};

on_each![
    it_is_due_to_the_millisecond,
    the_flag_is_set_before_it_is_sent_and_never_taken_back,
    of_two_workers_with_the_same_job_one_sends,
    of_many_workers_at_once_one_sends,
    a_worker_that_wakes_after_its_lease_does_not_send,
    a_worker_that_is_lost_after_the_flag_has_missed_it,
    a_worker_that_is_lost_before_the_flag_has_done_nothing,
    a_worker_of_before_a_person_had_it_sent_changes_nothing,
    an_answer_that_gets_lost_is_looked_up,
    a_flag_that_looks_like_ours_and_is_anothers_is_not_ours_to_send,
    what_the_carrier_has_taken_was_not_missed_whoever_said_so,
    what_the_carrier_has_taken_counts_though_a_person_lets_it_be_at_that_moment,
];

#[track_caller]
fn is_late<T: std::fmt::Debug>(written: Result<Option<T>, StoreError>) {
    assert!(matches!(written, Ok(None)), "{written:?}");
}

async fn it_is_due_to_the_millisecond(on: On) {
    let world = World::open(on).await;
    let desk = Desk::over(&world, world.store.clone());
    let send_at = START + SECOND * 3600;
    for (booking, late) in [("on time", Duration::ZERO), ("late", MILLI)] {
        world.clock.set(START);
        let Set::Made(made) = desk.set(&new(booking, send_at)).await else { panic!("it is new") };
        assert!(desk.lease().await.is_none());
        world.clock.set(before(send_at, MILLI));
        assert!(desk.lease().await.is_none());
        world.clock.set(send_at + late);
        let job = desk.leased().await;
        assert_eq!((job.id, job.due_at), (made.id, send_at));
        let sending = desk.flagged(&job).await;
        desk.delivered(&sending).await.expect("the store is there").expect("is ours");
    }
    world.close().await;
}

async fn the_flag_is_set_before_it_is_sent_and_never_taken_back(on: On) {
    let world = World::open(on).await;
    let desk = Desk::over(&world, world.store.clone());
    let id = desk.due("b").await;
    let stands = async |state: State| {
        let reminder = desk.find(id).await;
        assert_eq!((reminder.state, reminder.flagged_us), (state, Some(START.micros())));
    };
    let job = desk.leased().await;
    let leased = desk.find(id).await;
    assert_eq!((leased.state, leased.reminder_sent()), (State::Scheduled, false), "leased is not sent");
    let sending = desk.flagged(&job).await;
    // The carrier is called here.
    stands(State::Sending).await;
    desk.failed(&sending, Reached::No).await.expect("is ours");
    stands(State::Sending).await;
    world.clock.advance(SECOND * 2);
    let sending = desk.flagged(&desk.leased().await).await;
    stands(State::Sending).await;
    desk.failed(&sending, Reached::Maybe).await.expect("is ours");
    stands(State::Missed).await;
    desk.send_missed(id, "ann").await.expect("was missed");
    stands(State::Sending).await;
    let sending = desk.flagged(&desk.leased().await).await;
    desk.delivered(&sending).await.expect("the store is there").expect("is ours");
    stands(State::Sent).await;
    assert!(desk.find(id).await.ended_us.is_some());
    world.close().await;
}

async fn of_two_workers_with_the_same_job_one_sends(on: On) {
    let world = World::open(on).await;
    let hooked = Hooked::over(world.store.clone());
    let (one, other) = (Desk::over(&world, hooked.clone()), Desk::over(&world, world.again().await));
    // One worker after the other.
    one.due("b").await;
    let job = one.leased().await;
    let sending = other.flagged(&job).await;
    is_nothing(one.flag(&job).await);
    other.delivered(&sending).await.expect("the store is there").expect("is ours");
    is_nothing(one.flag(&job).await);
    // One worker writes between the other's read and its write.
    let id = one.due("c").await;
    let job = one.leased().await;
    let (first, same) = (other.clone(), job.clone());
    hooked.before_commit(async move { drop(first.flagged(&same).await) });
    is_nothing(one.flag(&job).await);
    assert_eq!(one.find(id).await.deliveries, [], "who does not send has nothing to say");
    world.close().await;
}

async fn of_many_workers_at_once_one_sends(on: On) {
    let world = World::open(on).await;
    let both = [Desk::over(&world, world.store.clone()), Desk::over(&world, world.again().await)];
    for round in 0..5 {
        both[0].due(&format!("b{round}")).await;
        // A queue that gives the same job to every worker.
        let job = both[0].leased().await;
        let workers = (0..16).map(|worker| {
            let (desk, job) = (both[worker % 2].clone(), job.clone());
            tokio::spawn(async move { desk.flag(&job).await.expect("the store is there") })
        });
        let mut sends = vec![];
        for worker in workers.collect::<Vec<_>>() {
            match worker.await.expect("does not panic") {
                Worked::Send(kept, begun) => sends.push((*kept, *begun)),
                Worked::Nothing => {}
                missed => panic!("{missed:?}"),
            }
        }
        assert_eq!(sends.len(), 1);
        both[1].delivered(&sends[0]).await.expect("the store is there").expect("is ours");
    }
    world.close().await;
}

/// Sets the flag by the worker's own clock, which may have stood still.
async fn flag_at(desk: &Desk, job: &Job, now: Time) -> Result<Worked, StoreError> {
    desk.reminders.flag(job, now).await
}

async fn a_worker_that_wakes_after_its_lease_does_not_send(on: On) {
    let world = World::open(on).await;
    let desk = Desk::over(&world, world.store.clone());
    // No worker has taken over yet; then one has; then the reminder is finished.
    let id = desk.due("b").await;
    let slept = desk.leased().await;
    let stood = before(slept.lease_until, MILLI);
    world.clock.set(slept.lease_until);
    for now in [stood, desk.now()] {
        is_nothing(flag_at(&desk, &slept, now).await);
    }
    assert!(!desk.find(id).await.reminder_sent());
    let job = desk.leased().await;
    is_nothing(flag_at(&desk, &slept, stood).await);
    let sending = desk.flagged(&job).await;
    is_nothing(flag_at(&desk, &slept, stood).await);
    desk.delivered(&sending).await.expect("the store is there").expect("is ours");
    is_nothing(flag_at(&desk, &slept, stood).await);
    let after = desk.find(id).await;
    assert_eq!((after.state, after.deliveries.len()), (State::Sent, 1));
    world.close().await;
}

async fn a_worker_that_is_lost_after_the_flag_has_missed_it(on: On) {
    let world = World::open(on).await;
    let desk = Desk::over(&world, world.store.clone());
    let id = desk.due("b").await;
    let sending = desk.flagged(&desk.leased().await).await;
    world.clock.advance(LEASE - MILLI);
    assert!(desk.lease().await.is_none(), "it may still be at it");
    world.clock.advance(MILLI);
    // Too late, though no worker has handled the end of the lease yet.
    is_late(desk.delivered(&sending).await);
    let job = desk.leased().await;
    let kept = is_missed(desk.flag(&job).await, "its worker was lost after the flag was set");
    assert!(kept.document.reminder_sent() && kept.document.deliveries[0].maybe);
    assert!(desk.lease().await.is_none(), "it is out of the queue");
    // The worker was only paused.
    is_late(desk.delivered(&sending).await);
    assert!(desk.failed(&sending, Reached::No).await.is_none());
    assert_eq!(desk.find(id).await, kept.document);
    // The worker that handles the end of the lease may be lost, too.
    let id = desk.due("c").await;
    desk.flagged(&desk.leased().await).await;
    for _ in 0..3 {
        world.clock.advance(LEASE);
        desk.leased().await;
    }
    world.clock.advance(LEASE);
    assert_eq!(is_missed(desk.flag(&desk.leased().await).await, "lost").id, id);
    world.close().await;
}

async fn a_worker_that_is_lost_before_the_flag_has_done_nothing(on: On) {
    let world = World::open(on).await;
    let desk = Desk::over(&world, world.store.clone());
    let id = desk.due("b").await;
    for _ in 0..5 {
        desk.leased().await;
        world.clock.advance(LEASE);
    }
    let sending = desk.flagged(&desk.leased().await).await;
    desk.delivered(&sending).await.expect("the store is there").expect("is ours");
    let after = desk.find(id).await;
    assert_eq!((after.state, after.deliveries.len()), (State::Sent, 1));
    world.close().await;
}

/// The job of a person's retry has the id of the first job, and its token and version begin again.
async fn a_worker_of_before_a_person_had_it_sent_changes_nothing(on: On) {
    let world = World::open(on).await;
    let desk = Desk::over(&world, world.store.clone());
    let id = desk.due("b").await;
    let slept = desk.leased().await;
    let stood = before(slept.lease_until, MILLI);
    let first = desk.flagged(&slept).await;
    world.clock.advance(LEASE);
    is_missed(desk.flag(&desk.leased().await).await, "lost");
    desk.send_missed(id, "ann").await.expect("was missed");
    let job = desk.leased().await;
    assert_eq!((job.token, job.version), (slept.token, slept.version), "they look alike");
    is_nothing(flag_at(&desk, &slept, stood).await);
    let second = desk.flagged(&job).await;
    is_late(desk.reminders.delivered(&first.0, &first.1, None, stood).await);
    assert_eq!(desk.find(id).await.state, State::Sending);
    desk.delivered(&second).await.expect("the store is there").expect("is ours");
    // The same if it was cancelled and scheduled again.
    let id = desk.due("c").await;
    let slept = desk.leased().await;
    let stood = before(slept.lease_until, MILLI);
    world.clock.advance(LEASE);
    desk.cancel(id).await.expect("nobody has it");
    let edit = Edit { send_at: Some(desk.now()), ..Default::default() };
    desk.reminders.edit(&workspace(), id, &edit, |_| Ok(())).await.expect("is scheduled anew");
    is_nothing(flag_at(&desk, &slept, stood).await);
    let job = desk.leased().await;
    is_nothing(flag_at(&desk, &slept, stood).await);
    desk.flagged(&job).await;
    world.close().await;
}

async fn an_answer_that_gets_lost_is_looked_up(on: On) {
    let world = World::open(on).await;
    let hooked = Hooked::over(world.store.clone());
    let desk = Desk::over(&world, hooked.clone());
    // The flag was written, so this worker sends.
    let id = desk.due("b").await;
    let job = desk.leased().await;
    hooked.lose_answer(true);
    let sending = desk.flagged(&job).await;
    hooked.lose_answer(true);
    assert_eq!(desk.delivered(&sending).await.expect("is looked up").expect("is ours").id, id);
    assert_eq!(desk.delivered(&sending).await.expect("the store is there").expect("again is right").id, id);
    assert!(desk.failed(&sending, Reached::No).await.is_none(), "something else is not");
    assert_eq!(desk.find(id).await.deliveries.len(), 1);
    // The flag was not written: this worker does not send, and the next worker may.
    let id = desk.due("c").await;
    let job = desk.leased().await;
    hooked.lose_answer(false);
    let lost = desk.flag(&job).await;
    assert!(matches!(lost, Err(StoreError::Unknown(_))), "{lost:?}");
    assert!(!desk.find(id).await.reminder_sent());
    let sending = desk.flagged(&job).await;
    hooked.lose_answer(false);
    assert!(matches!(desk.delivered(&sending).await, Err(StoreError::Unknown(_))));
    assert_eq!(desk.delivered(&sending).await.expect("is written").expect("is ours").id, id);
    // A missed reminder is reported as well.
    desk.due("d").await;
    desk.flagged(&desk.leased().await).await;
    world.clock.advance(LEASE);
    let job = desk.leased().await;
    hooked.lose_answer(true);
    is_missed(desk.flag(&job).await, "lost");
    world.close().await;
}

/// A later try writes the flag of a reminder that already has it. The record then looks the same, whichever worker wrote it.
async fn a_flag_that_looks_like_ours_and_is_anothers_is_not_ours_to_send(on: On) {
    let world = World::open(on).await;
    let hooked = Hooked::over(world.store.clone());
    let (one, other) = (Desk::over(&world, hooked.clone()), Desk::over(&world, world.again().await));
    let id = one.due("b").await;
    let sending = one.flagged(&one.leased().await).await;
    one.failed(&sending, Reached::No).await.expect("is ours");
    world.clock.advance(SECOND * 2);
    let job = one.leased().await;
    let (theirs, taken) = tokio::sync::oneshot::channel();
    let (second, clock) = (other.clone(), world.clock.clone());
    hooked.before_commit(async move {
        clock.advance(LEASE);
        let _ = theirs.send(second.flagged(&second.leased().await).await);
    });
    hooked.lose_answer(false);
    let flagged = one.flag(&job).await;
    assert!(!matches!(flagged, Ok(Worked::Send(..))), "another sends it: {flagged:?}");
    let sending = taken.await.expect("the hook ran");
    assert_eq!(other.delivered(&sending).await.expect("the store is there").expect("is ours").id, id);
    world.close().await;
}

async fn what_the_carrier_has_taken_was_not_missed_whoever_said_so(on: On) {
    let world = World::open(on).await;
    let desk = Desk::over(&world, world.store.clone());
    for (is_missed, is_let_be, is_sent_by_hand) in
        [(false, false, false), (true, false, false), (true, true, false), (true, false, true)]
    {
        let id = desk.due(&format!("{is_missed} {is_let_be} {is_sent_by_hand}")).await;
        let ours = desk.flagged(&desk.leased().await).await;
        world.clock.advance(LEASE);
        is_late(desk.delivered(&ours).await);
        if is_missed {
            assert!(matches!(desk.flag(&desk.leased().await).await, Ok(Worked::Missed(_))));
        }
        if is_let_be {
            desk.resolve(id, false).await.expect("was missed");
        }
        if is_sent_by_hand {
            desk.reminders.send_missed(&workspace(), id, "ada").await.expect("was missed");
        }
        let late = desk.reminders.delivered_late(&ours.0, &ours.1, Some("p-1".into()), desk.now()).await;
        let late = late.expect("the store is there");
        // After a person's retry, the report about the first try is not accepted for the second.
        assert_eq!(late.is_some(), !is_sent_by_hand);
        let state = desk.find(id).await.state;
        assert_eq!(state, if is_sent_by_hand { State::Sending } else { State::Sent });
        assert_eq!(desk.lease().await.is_some(), is_sent_by_hand, "what is over is out of the queue");
    }
    world.close().await;
}

async fn what_the_carrier_has_taken_counts_though_a_person_lets_it_be_at_that_moment(on: On) {
    let world = World::open(on).await;
    let hooked = Hooked::over(world.store.clone());
    let (desk, person) = (Desk::over(&world, hooked.clone()), Desk::over(&world, world.store.clone()));
    let id = desk.due("b").await;
    let ours = desk.flagged(&desk.leased().await).await;
    world.clock.advance(LEASE);
    assert!(matches!(desk.flag(&desk.leased().await).await, Ok(Worked::Missed(_))));
    hooked.before_commit(async move {
        person.resolve(id, false).await.expect("was missed");
    });
    let late = desk.reminders.delivered_late(&ours.0, &ours.1, Some("p-1".into()), desk.now()).await;
    assert!(late.expect("the store is there").is_some());
    let reminder = desk.find(id).await;
    assert_eq!((reminder.state, reminder.resolved.map(|said| said.sent)), (State::Sent, Some(false)));
    world.close().await;
}
