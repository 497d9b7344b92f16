//! Recurring actions on each store, on a clock that the test sets.

use oncegate::Time;
use oncegate::actions::{Action, Applied, Filter, Repeats, Status, When};
use oncegate_core::job::{Command, Delivery, Reached};
use serde_json::json;

use crate::support::actions::{SECOND, about, complete, fail, lease, over, schedule, sync, workspace};
use crate::support::{On, START, World, on_each};

on_each![
    a_schedule_has_one_run_for_each_tick,
    a_tick_that_fails_is_tried_again_and_the_schedule_goes_on,
    what_was_missed_is_made_up_for_once,
];

async fn a_schedule_has_one_run_for_each_tick(on: On) {
    let world = World::open(on).await;
    let actions = over(world.store.clone());
    let repeats = Repeats::parse("15m", None, false).expect("is right");
    let every = sync(&about("7", json!({}))).repeats(Some(repeats)).when(When::After(SECOND));
    let made = schedule(&actions, every).await;
    let mut keys = vec![];
    for tick in 0..3 {
        let due = START + SECOND + SECOND * 900 * tick;
        world.clock.set(due + SECOND * 2);
        let job = lease(&*world.store, 5).await.remove(0);
        assert_eq!((job.id, job.due_at), (made.id, due));
        let leased = oncegate::actions::Leased::read(job.clone()).expect("is an action");
        keys.push(leased.effect_key());
        let Applied::Ended(Status::Completed, id) = complete(&actions, &job).await else { panic!("not completed") };
        assert_eq!(id, leased.effect_key());
        assert!(lease(&*world.store, 5).await.is_empty(), "once");
        assert!(matches!(complete(&actions, &job).await, Applied::Already(Status::Completed, again) if again == id));
    }
    let ticks = Filter { schedule: Some(made.id), limit: 10, ..Filter::default() };
    let ticks = actions.list(&workspace(), &ticks).await.expect("the store is there").items;
    keys.reverse();
    assert_eq!(ticks.iter().map(|tick| tick.id).collect::<Vec<_>>(), keys, "each has an id of its own, in order");
    actions.cancel(&workspace(), made.id).await.expect("is cancelled");
    world.clock.set(START + SECOND * 9000);
    assert!(lease(&*world.store, 5).await.is_empty());
    world.close().await;
}

async fn a_tick_that_fails_is_tried_again_and_the_schedule_goes_on(on: On) {
    let world = World::open(on).await;
    let actions = over(world.store.clone());
    let repeats = || Some(Repeats::parse("hourly", None, false).expect("is right"));
    let made = schedule(&actions, sync(&json!({})).repeats(repeats()).tries(2)).await;
    let job = lease(&*world.store, 1).await.remove(0);
    let key = oncegate::actions::Leased::read(job.clone()).expect("is an action").effect_key();
    assert!(matches!(fail(&actions, &job, Reached::No).await, Applied::Kept(_)));
    world.clock.set(START + SECOND * 2);
    let job = lease(&*world.store, 1).await.remove(0);
    let again = oncegate::actions::Leased::read(job.clone()).expect("is an action").effect_key();
    assert_eq!(again, key, "the same tick, though it is due later");
    assert!(matches!(fail(&actions, &job, Reached::No).await, Applied::Ended(Status::Dead, id) if id == key));
    let live = actions.find(&workspace(), made.id).await.expect("the store is there").expect("is there");
    assert_eq!((live.status(), live.run_at()), (Status::Pending, START + SECOND * 3600));
    // Only the tick is retried, under its key.
    let retried = actions.retry(&workspace(), key).await.expect("is dead");
    assert_eq!((retried.status(), retried.id), (Status::Pending, key));
    let job = lease(&*world.store, 1).await.remove(0);
    assert_eq!(oncegate::actions::Leased::read(job.clone()).expect("is an action").effect_key(), key);
    assert!(matches!(complete(&actions, &job).await, Applied::Ended(Status::Completed, id) if id == key));
    // An effect that may have happened, and must not happen twice, is left to a person.
    let once = sync(&json!({})).repeats(repeats()).delivery(Delivery::AtMostOnce);
    schedule(&actions, once).await;
    let job = lease(&*world.store, 1).await.remove(0);
    let begun = actions.apply(&workspace(), job.id, Command::Begin { token: job.token }).await;
    let Ok(Applied::Kept(job)) = begun else { panic!("{begun:?}") };
    assert!(matches!(fail(&actions, &job, Reached::Maybe).await, Applied::Ended(Status::Unknown, _)));
    world.close().await;
}

async fn what_was_missed_is_made_up_for_once(on: On) {
    let world = World::open(on).await;
    let actions = over(world.store.clone());
    let run_all = async || {
        let mut due = vec![];
        while let [job] = &lease(&*world.store, 1).await[..] {
            let action = Action::read(&job.payload, job.id).expect("is an action");
            let tick = Time::from_micros(action.recurrence.expect("repeats").tick_us);
            due.push(tick.since(START).as_secs() / 3600);
            complete(&actions, job).await;
        }
        due
    };
    let repeats = |catch_up| Some(Repeats::parse("hourly", None, catch_up).expect("is right"));
    let once = schedule(&actions, sync(&json!({})).repeats(repeats(false))).await;
    assert_eq!(run_all().await, [0]);
    world.clock.set(START + SECOND * (5 * 3600 + 60));
    assert_eq!(run_all().await, [1], "five were missed");
    world.clock.set(START + SECOND * (6 * 3600));
    assert_eq!(run_all().await, [6], "and from here on it goes as it went");
    actions.cancel(&workspace(), once.id).await.expect("is cancelled");
    world.clock.set(START);
    schedule(&actions, sync(&json!({})).repeats(repeats(true))).await;
    world.clock.set(START + SECOND * (3 * 3600 + 60));
    assert_eq!(run_all().await, [0, 1, 2, 3], "each of them");
    world.close().await;
}
