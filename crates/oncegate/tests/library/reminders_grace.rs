//! How often a reminder is tried, on each store, on a clock that the test sets: within its grace, and never once it may have arrived.

use std::time::Duration;

use oncegate::reminders::{Kept, State};
use oncegate_core::job::{Failure, Reached};

use crate::support::desk::{Desk, GRACE, LEASE, MILLI, SECOND, is_missed, is_nothing};
use crate::support::{On, START, World, on_each};

on_each![
    what_surely_reached_nobody_is_tried_again_within_the_grace,
    the_grace_ends_to_the_millisecond,
    what_may_have_arrived_is_never_tried_again,
    what_nobody_could_send_in_time_is_missed,
    the_delivery_log_keeps_the_last_rows,
];

async fn what_surely_reached_nobody_is_tried_again_within_the_grace(on: On) {
    let world = World::open(on).await;
    let desk = Desk::over(&world, world.store.clone());
    let id = desk.due("b").await;
    let mut job = desk.leased().await;
    let mut pauses = vec![];
    loop {
        let sending = desk.flagged(&job).await;
        let tried_at = desk.now();
        let Some(Kept { document: reminder, .. }) = desk.failed(&sending, Reached::No).await else {
            panic!("it is ours")
        };
        assert_eq!(reminder.deliveries.last().expect("a row").at_us, tried_at.micros());
        if reminder.state == State::Missed {
            assert!(desk.now() <= START + GRACE);
            assert!(desk.now() + SECOND * 60 >= START + GRACE, "the pauses are a minute at most");
            break;
        }
        assert_eq!(reminder.state, State::Sending);
        job = loop {
            match desk.lease().await {
                Some(next) => break next,
                None => world.clock.advance(SECOND / 2),
            }
        };
        pauses.push(desk.now().since(tried_at));
    }
    assert!(pauses[0] <= SECOND * 2 && pauses.iter().all(|pause| *pause <= SECOND * 60), "{pauses:?}");
    let after = desk.find(id).await;
    assert_eq!(after.deliveries.len(), pauses.len() + 1);
    assert!(after.deliveries.iter().all(|row| row.error.as_deref() == Some("refused") && !row.maybe));
    assert_eq!(after.flagged_us, Some(START.micros()));
    world.clock.advance(GRACE * 2);
    assert!(desk.lease().await.is_none());
    // The next try succeeds.
    let id = desk.due("c").await;
    let sending = desk.flagged(&desk.leased().await).await;
    desk.failed(&sending, Reached::No).await.expect("is ours");
    world.clock.advance(SECOND * 2);
    let sending = desk.flagged(&desk.leased().await).await;
    desk.delivered(&sending).await.expect("the store is there").expect("is ours");
    let after = desk.find(id).await;
    assert_eq!((after.state, after.deliveries.len()), (State::Sent, 2));
    assert_eq!(after.deliveries[1].provider_message_id.as_deref(), Some("p-1"));
    world.close().await;
}

async fn the_grace_ends_to_the_millisecond(on: On) {
    let world = World::open(on).await;
    let desk = Desk::over(&world, world.store.clone());
    // The first pause follows from the id, but a provider may ask for a longer one.
    for (booking, retry_in, state) in [
        ("just within", GRACE, State::Sending),
        ("just past", GRACE + MILLI, State::Missed),
        ("far past", GRACE * 100, State::Missed),
    ] {
        let id = desk.due(booking).await;
        let (kept, job) = desk.flagged(&desk.leased().await).await;
        let (error, retry_in) = ("busy".to_owned(), Some(retry_in));
        let failure = Failure { error, reached: Reached::No, is_final: false, retry_in };
        let after = desk.reminders.not_delivered(&kept, &job, failure, desk.now()).await;
        assert_eq!(after.expect("the store is there").expect("is ours").document.state, state, "{booking}");
        assert_eq!(desk.find(id).await.state, state, "{booking}");
    }
    // At the end of the grace it is sent, and a millisecond later it is not.
    for (late, is_sent) in [(Duration::ZERO, true), (MILLI, false)] {
        world.clock.set(START + GRACE + late);
        let job = desk.leased().await;
        match is_sent {
            true => drop(desk.flagged(&job).await),
            false => drop(is_missed(desk.flag(&job).await, "no worker could send it in time")),
        }
        world.clock.set(START);
        desk.due(&format!("after {late:?}")).await;
    }
    world.close().await;
}

async fn what_may_have_arrived_is_never_tried_again(on: On) {
    let world = World::open(on).await;
    let desk = Desk::over(&world, world.store.clone());
    for tries_before in 0..2 {
        let id = desk.due(&format!("b{tries_before}")).await;
        for _ in 0..tries_before {
            let sending = desk.flagged(&desk.leased().await).await;
            desk.failed(&sending, Reached::No).await.expect("is ours");
            world.clock.advance(SECOND * 2);
        }
        let sending = desk.flagged(&desk.leased().await).await;
        let after = desk.failed(&sending, Reached::Maybe).await.expect("is ours").document;
        assert_eq!((after.state, after.deliveries.len()), (State::Missed, tries_before + 1));
        assert!(after.deliveries[tries_before].maybe && after.ended_us.is_some());
        for _ in 0..3 {
            world.clock.advance(LEASE * 3);
            assert!(desk.lease().await.is_none());
        }
        // The queue may run the job again: the guard stops it.
        is_nothing(desk.flag(&sending.1).await);
        assert_eq!(desk.find(id).await, after);
    }
    world.close().await;
}

async fn what_nobody_could_send_in_time_is_missed(on: On) {
    let world = World::open(on).await;
    let desk = Desk::over(&world, world.store.clone());
    let id = desk.due("b").await;
    world.clock.set(START + GRACE + MILLI);
    let missed = is_missed(desk.flag(&desk.leased().await).await, "no worker could send it in time").document;
    assert!(!missed.reminder_sent() && !missed.deliveries[0].maybe, "nothing was sent, and nothing says so");
    assert!(desk.lease().await.is_none());
    desk.send_missed(id, "ann").await.expect("was missed");
    let sending = desk.flagged(&desk.leased().await).await;
    desk.delivered(&sending).await.expect("the store is there").expect("is ours");
    assert!(desk.find(id).await.reminder_sent());
    world.close().await;
}

async fn the_delivery_log_keeps_the_last_rows(on: On) {
    let world = World::open(on).await;
    let desk = Desk::over(&world, world.store.clone());
    let id = desk.missed("b").await;
    for _ in 0..25 {
        desk.send_missed(id, "ann").await.expect("was missed");
        world.clock.advance(SECOND);
        let sending = desk.flagged(&desk.leased().await).await;
        desk.failed(&sending, Reached::Maybe).await.expect("is ours");
    }
    let rows = desk.find(id).await.deliveries;
    assert_eq!((rows.len(), rows[19].at_us), (20, (START + SECOND * 25).micros()));
    world.close().await;
}
