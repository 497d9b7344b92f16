//! Actions on each store, on a clock that the test sets: windows, modes, and actions that have started.

use std::time::Duration;

use oncegate::actions::{Applied, Mode, Outcome, Repeats, Schedule, ScheduleError, Scheduled, Status, When};
use oncegate::{StoreError, Time, WorkspaceName};
use oncegate_core::job::{Command, Reached};
use serde_json::{Value, json};

use crate::support::actions::{MILLI, SECOND, about, complete, fail, lease, over, payload, schedule, sync, workspace};
use crate::support::{Hooked, On, START, World, on_each};

on_each![
    duplicates_within_a_window_fold_into_one_action,
    a_window_is_counted_from_its_creation_to_the_millisecond,
    what_is_not_deduplicated_is_an_action_of_its_own,
    a_missing_entity_type_is_a_value_of_its_own,
    what_has_started_or_ended_is_left_as_it_is,
    a_worker_that_comes_between_the_look_and_the_write_loses_no_update,
    an_action_that_was_given_back_is_not_revised,
    an_answer_that_gets_lost_is_looked_up,
    a_worker_is_refused_only_behind_a_commit,
    each_mode_does_what_it_says,
    many_at_once_are_one_action_and_one_revision_each,
];

async fn duplicates_within_a_window_fold_into_one_action(on: On) {
    let world = World::open(on).await;
    let actions = over(world.store.clone());
    let at = async |seconds: u64| {
        world.clock.set(START + SECOND * u32::try_from(seconds).expect("small"));
        schedule(&actions, sync(&about("7", json!({"t": seconds})))).await
    };
    let (t0, t2, t4, t6) = (at(0).await, at(2).await, at(4).await, at(6).await);
    let created = |id, run_at| Scheduled { id, outcome: Outcome::Created, run_at, revision: 1 };
    assert_eq!(t0, created(t0.id, START + SECOND * 5), "it runs when its window closes");
    assert_eq!(t2, Scheduled { outcome: Outcome::Updated, revision: 2, ..t0 });
    assert_eq!(t4, Scheduled { outcome: Outcome::Updated, revision: 3, ..t0 });
    assert_eq!(t6, created(t6.id, START + SECOND * 11));
    assert_ne!(t6.id, t0.id);
    let first = lease(&*world.store, 10).await;
    assert_eq!((first.len(), first[0].id, payload(&first[0])), (1, t0.id, about("7", json!({"t": 4}))));
    let shown = actions.find(&workspace(), t0.id).await.expect("the store is there").expect("is there");
    let times: Vec<Time> = shown.action.revised_us.iter().map(|us| Time::from_micros(*us)).collect();
    assert_eq!(times, [START, START + SECOND * 2, START + SECOND * 4]);
    world.close().await;
}

async fn a_window_is_counted_from_its_creation_to_the_millisecond(on: On) {
    let world = World::open(on).await;
    // One instance has the slot in its cache, and the other has to read it.
    let (actions, other) = (over(world.store.clone()), over(world.again().await));
    for (round, who) in [&actions, &other].into_iter().enumerate() {
        let begins = START + SECOND * 100 * u32::try_from(round).expect("small");
        world.clock.set(begins);
        let first = schedule(&actions, sync(&about("7", json!({})))).await;
        world.clock.set(begins + SECOND * 4);
        assert_eq!(schedule(who, sync(&about("7", json!({})))).await.id, first.id, "this does not extend it");
        world.clock.set(begins + (SECOND * 5).saturating_sub(MILLI));
        assert_eq!(schedule(who, sync(&about("7", json!({})))).await.id, first.id);
        world.clock.set(begins + SECOND * 5);
        assert_ne!(schedule(who, sync(&about("7", json!({})))).await.id, first.id, "from its end on");
    }
    world.close().await;
}

async fn what_is_not_deduplicated_is_an_action_of_its_own(on: On) {
    let world = World::open(on).await;
    let actions = over(world.store.clone());
    let often = || Repeats::parse("daily", None, false).expect("is right");
    type Make = Box<dyn Fn() -> Schedule>;
    let cases: [(&str, Make); 5] = [
        ("no window", Box::new(|| sync(&about("1", json!({}))).window(Duration::ZERO))),
        ("no entity", Box::new(|| sync(&json!({"name": "x"})))),
        ("an entity that is null", Box::new(|| sync(&json!({"entityId": null})))),
        ("recurring", Box::new(move || sync(&about("1", json!({}))).repeats(Some(often())))),
        ("off", Box::new(|| sync(&about("1", json!({}))).mode(Mode::Off))),
    ];
    for (what, make) in &cases {
        let (first, second) = (schedule(&actions, make()).await, schedule(&actions, make()).await);
        assert_ne!(first.id, second.id, "{what}");
        assert_eq!((first.outcome, second.outcome), (Outcome::Created, Outcome::Created), "{what}");
        assert_eq!(first.run_at, START, "{what}: it runs at once");
    }
    // A field that differs in part of the key makes another action.
    let base = schedule(&actions, sync(&about("1", json!({})))).await;
    let of_type = Schedule::new("crm:other", &about("1", json!({}))).expect("is right");
    assert_ne!(schedule(&actions, of_type).await.id, base.id, "another type");
    assert_ne!(schedule(&actions, sync(&about("2", json!({})))).await.id, base.id, "another entity");
    let elsewhere = WorkspaceName::new("other").expect("a good name");
    let other = actions.schedule(&elsewhere, sync(&about("1", json!({})))).await.expect("is scheduled");
    assert_ne!(other.id, base.id, "another workspace");
    world.close().await;
}

async fn a_missing_entity_type_is_a_value_of_its_own(on: On) {
    let world = World::open(on).await;
    let actions = over(world.store.clone());
    let id = async |payload: Value| schedule(&actions, sync(&payload)).await.id;
    let missing = id(json!({"entityId": "1"})).await;
    assert_eq!(id(json!({"entityId": "1"})).await, missing, "it deduplicates");
    assert_eq!(id(json!({"entityId": "1", "entityType": null})).await, missing);
    assert_eq!(id(json!({"entityId": 1})).await, missing, "a number is its digits");
    let number = |digits: &str| serde_json::from_str::<Box<serde_json::value::RawValue>>(digits).expect("is JSON");
    let large = async |digits: &str| {
        let payload = number(&format!("{{\"entityId\":{digits}}}"));
        schedule(&actions, Schedule::of("crm:sync".into(), payload).expect("is right")).await.id
    };
    assert_ne!(large("12345678901234567890123").await, large("12345678901234567890124").await, "all of them");
    let typed = id(json!({"entityId": "1", "entityType": "lead"})).await;
    assert_ne!(typed, missing);
    assert_eq!(id(json!({"entityId": "1", "entityType": "lead"})).await, typed);
    assert_ne!(id(json!({"entityId": "1", "entityType": "deal"})).await, typed);
    world.close().await;
}

async fn what_has_started_or_ended_is_left_as_it_is(on: On) {
    let world = World::open(on).await;
    let actions = over(world.store.clone());
    let due = || sync(&about("7", json!({}))).when(When::At(START));
    let started = schedule(&actions, due()).await;
    let job = lease(&*world.store, 1).await.remove(0);
    let second = schedule(&actions, due()).await;
    assert_eq!((second.outcome, job.id), (Outcome::Created, started.id), "it is running");
    assert_ne!(second.id, started.id);
    assert_eq!(schedule(&actions, due()).await.id, second.id, "that one stands now");
    assert!(lease(&*world.store, 1).await.is_empty(), "they do not run at the same time");
    // An action whose try failed waits for the next try, and counts as started.
    assert!(matches!(fail(&actions, &job, Reached::No).await, Applied::Kept(_)));
    assert_eq!(schedule(&actions, due()).await.id, second.id);
    world.clock.set(START + SECOND);
    let again = lease(&*world.store, 1).await.remove(0);
    assert_eq!(again.id, started.id, "and what came later does not overtake it");
    assert!(matches!(complete(&actions, &again).await, Applied::Ended(Status::Completed, _)));
    let job = lease(&*world.store, 1).await.remove(0);
    assert_eq!((job.id, lease(&*world.store, 1).await.len()), (second.id, 0));
    assert!(matches!(complete(&actions, &job).await, Applied::Ended(Status::Completed, _)));
    let third = schedule(&actions, due()).await;
    assert!(third.outcome == Outcome::Created && third.id != second.id, "it is over");
    actions.cancel(&workspace(), third.id).await.expect("is cancelled");
    let fourth = schedule(&actions, due()).await;
    assert!(fourth.outcome == Outcome::Created && fourth.id != third.id, "it is cancelled");
    world.close().await;
}

async fn a_worker_that_comes_between_the_look_and_the_write_loses_no_update(on: On) {
    let world = World::open(on).await;
    let hooked = Hooked::over(world.store.clone());
    let actions = over(hooked.clone());
    let due = |n: u32| sync(&about("7", json!({"n": n}))).when(When::At(START));
    let first = schedule(&actions, due(1)).await;
    let store = world.store.clone();
    let (leased, taken) = tokio::sync::oneshot::channel();
    hooked.before_commit(async move {
        let _ = leased.send(lease(&*store, 1).await.remove(0));
    });
    let second = schedule(&actions, due(2)).await;
    let job = taken.await.expect("the hook ran");
    assert_eq!((job.id, payload(&job)["n"].clone()), (first.id, json!(1)), "what the worker has is what it gets");
    assert_eq!((second.outcome, second.revision), (Outcome::Created, 1));
    assert_ne!(second.id, first.id, "never onto one that has started");
    let as_it_is = actions.find(&workspace(), first.id).await.expect("the store is there").expect("is there");
    assert_eq!((as_it_is.action.revision, payload(&job)["n"].clone()), (1, json!(1)));
    complete(&actions, &job).await;
    let job = lease(&*world.store, 1).await.remove(0);
    assert_eq!((job.id, payload(&job)["n"].clone()), (second.id, json!(2)), "and never dropped");
    world.close().await;
}

async fn an_action_that_was_given_back_is_not_revised(on: On) {
    let world = World::open(on).await;
    let actions = over(world.store.clone());
    let due = |n: u32| sync(&about("7", json!({"n": n}))).when(When::At(START));
    let first = schedule(&actions, due(1)).await;
    let job = lease(&*world.store, 1).await.remove(0);
    let second = schedule(&actions, due(2)).await;
    let given = actions.apply(&workspace(), job.id, Command::GiveBack { token: job.token }).await;
    assert!(matches!(given, Ok(Applied::Kept(_))));
    // If the first action took the third payload, it would run first, and the second action would then restore an older payload.
    let third = schedule(&actions, due(3)).await;
    assert_eq!((third.id, third.revision), (second.id, 2));
    let other = schedule(&over(world.again().await), due(4)).await;
    assert_eq!((other.id, other.revision), (second.id, 3));
    for (id, n) in [(first.id, 1), (second.id, 4)] {
        let job = lease(&*world.store, 1).await.remove(0);
        assert_eq!((job.id, payload(&job)["n"].clone()), (id, json!(n)));
        complete(&actions, &job).await;
    }
    world.close().await;
}

async fn an_answer_that_gets_lost_is_looked_up(on: On) {
    let world = World::open(on).await;
    let hooked = Hooked::over(world.store.clone());
    let actions = over(hooked.clone());
    hooked.lose_answer(true);
    let first = schedule(&actions, sync(&about("7", json!({"n": 1})))).await;
    assert_eq!((first.outcome, first.revision), (Outcome::Created, 1));
    hooked.lose_answer(true);
    let second = schedule(&actions, sync(&about("7", json!({"n": 2})))).await;
    assert_eq!((second.id, second.outcome, second.revision), (first.id, Outcome::Updated, 2));
    hooked.lose_answer(true);
    let alone = schedule(&actions, sync(&json!({"n": 3}))).await;
    assert!(actions.find(&workspace(), alone.id).await.expect("the store is there").is_some());
    hooked.lose_answer(false);
    let lost = actions.schedule(&workspace(), sync(&about("7", json!({"n": 4})))).await;
    assert!(matches!(lost, Err(ScheduleError::Store(StoreError::Unknown(_)))), "{lost:?}");
    let again = schedule(&actions, sync(&about("7", json!({"n": 4})))).await;
    assert_eq!((again.id, again.revision), (first.id, 3), "it was not written, and asking again is safe");
    world.clock.set(START + SECOND * 5);
    let jobs = lease(&*world.store, 10).await;
    let job = jobs.iter().find(|job| job.id == first.id).expect("is due");
    hooked.lose_answer(true);
    assert!(matches!(complete(&actions, job).await, Applied::Ended(Status::Completed, id) if id == first.id));
    assert!(
        matches!(complete(&actions, job).await, Applied::Already(Status::Completed, _)),
        "saying it again is right"
    );
    assert!(matches!(fail(&actions, job, Reached::No).await, Applied::Refused(_)), "saying something else is not");
    world.close().await;
}

async fn a_worker_is_refused_only_behind_a_commit(on: On) {
    let world = World::open(on).await;
    let hooked = Hooked::over(world.store.clone());
    let actions = over(hooked.clone());
    schedule(&actions, sync(&about("7", json!({})))).await;
    world.clock.set(START + SECOND * 5);
    let job = lease(&*world.store, 1).await.remove(0);
    hooked.fall_behind();
    let applied = complete(&actions, &job).await;
    assert!(
        matches!(applied, Applied::Ended(Status::Completed, _)),
        "a server that was replaced knows of no lease: {applied:?}"
    );
    hooked.fall_behind();
    assert!(matches!(complete(&actions, &job).await, Applied::Already(Status::Completed, _)));
    hooked.cut_off();
    let again = actions.apply(&workspace(), job.id, Command::Complete { token: job.token }).await;
    assert!(matches!(again, Err(StoreError::Unavailable(_))), "no standby may have it: {again:?}");
    world.close().await;
}

async fn each_mode_does_what_it_says(on: On) {
    let world = World::open(on).await;
    let actions = over(world.store.clone());
    let at = |seconds: f64| START + Duration::from_secs_f64(seconds);
    let payload_of = async |id| {
        let found = actions.find(&workspace(), id).await.expect("the store is there").expect("is there");
        serde_json::from_str::<Value>(found.action.payload.get()).expect("is JSON")
    };
    // Mode `KeepFirst`: the first payload is kept.
    let keep = |n: u32| sync(&about("keep", json!({"n": n}))).mode(Mode::KeepFirst);
    let first = schedule(&actions, keep(1)).await;
    let second = schedule(&actions, keep(2)).await;
    assert_eq!((second.id, second.outcome, second.revision), (first.id, Outcome::Dropped, 1));
    assert_eq!(payload_of(first.id).await["n"], 1);
    // Mode `Merge`: the payloads are merged.
    let merge = |more: Value| sync(&about("merge", more)).mode(Mode::Merge);
    let first = schedule(&actions, merge(json!({"name": "Ada", "tags": {"a": 1, "b": 2}}))).await;
    let second = schedule(&actions, merge(json!({"name": null, "tags": {"b": 3}, "email": "a@b.test"}))).await;
    assert_eq!((second.id, second.revision), (first.id, 2));
    assert_eq!(payload_of(first.id).await, about("merge", json!({"tags": {"a": 1, "b": 3}, "email": "a@b.test"})));
    // Mode `Debounce`: each duplicate delays the action, up to a bound.
    let debounce = || sync(&about("debounce", json!({}))).mode(Mode::Debounce).max_wait(Some(SECOND * 8));
    let first = schedule(&actions, debounce()).await;
    assert_eq!(first.run_at, at(5.0));
    let mut told = vec![];
    for seconds in [3.0, 4.0, 7.999] {
        world.clock.set(at(seconds));
        told.push(schedule(&actions, debounce()).await);
    }
    assert!(told.iter().all(|later| later.id == first.id), "its window is as long as it may be put off");
    assert_eq!(told.iter().map(|later| later.run_at).collect::<Vec<_>>(), [at(8.0), at(8.0), at(8.0)]);
    let slowly = || sync(&about("slowly", json!({}))).mode(Mode::Debounce).when(When::After(SECOND * 120));
    let first = schedule(&actions, slowly()).await;
    assert_eq!(schedule(&actions, slowly()).await.run_at, first.run_at, "put off, never brought forward");
    world.clock.set(at(8.0));
    assert_ne!(schedule(&actions, debounce()).await.id, told[0].id);
    // Mode `Replace`: the due time is replaced, too.
    let first = schedule(&actions, sync(&about("when", json!({}))).when(When::After(SECOND))).await;
    let later = schedule(&actions, sync(&about("when", json!({}))).when(When::After(SECOND * 60))).await;
    assert_eq!((later.id, later.run_at), (first.id, at(68.0)));
    assert_eq!(schedule(&actions, sync(&about("when", json!({})))).await.run_at, at(68.0), "or as it was");
    world.close().await;
}

/// The callers use two replicas, if the store allows two.
async fn many_at_once_are_one_action_and_one_revision_each(on: On) {
    const CALLS: usize = 100;
    let world = World::open(on).await;
    let both = [over(world.store.clone()), over(world.again().await)];
    for round in 0..5 {
        let calls = (0..CALLS).map(|call| {
            let actions = both[call % 2].clone();
            tokio::spawn(
                async move { schedule(&actions, sync(&about(&round.to_string(), json!({"call": call})))).await },
            )
        });
        let mut told = vec![];
        for call in calls.collect::<Vec<_>>() {
            told.push(call.await.expect("does not panic"));
        }
        assert!(told.iter().all(|other| other.id == told[0].id), "one id");
        let mut revisions: Vec<i64> = told.iter().map(|one| one.revision).collect();
        let last = told.iter().position(|one| one.revision == CALLS as i64).expect("the last to commit");
        revisions.sort_unstable();
        assert_eq!(revisions, (1..=CALLS as i64).collect::<Vec<_>>());
        assert_eq!(told.iter().filter(|one| one.outcome == Outcome::Created).count(), 1);
        let found = both[0].find(&workspace(), told[0].id).await.expect("the store is there").expect("is there");
        let kept: Value = serde_json::from_str(found.action.payload.get()).expect("is JSON");
        assert_eq!((found.action.revision, &kept["call"]), (CALLS as i64, &json!(last)), "the last one's payload");
    }
    world.close().await;
}
