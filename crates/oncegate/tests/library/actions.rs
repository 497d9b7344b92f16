//! Actions on each store, on a clock that the test sets: windows, modes, what has started, recurrence, a person's verbs.

use std::sync::Arc;
use std::time::Duration;

use oncegate::actions::{
    Action, Actions, Applied, Filter, Mode, Outcome, Refused, Repeats, Schedule, ScheduleError, Scheduled, Status, When,
};
use oncegate::store::{MainStore, Wanted, Whose};
use oncegate::{StoreError, Time, WorkspaceName};
use oncegate_core::job::{Command, Delivery, Failure, Job, Reached};
use serde_json::{Value, json};

use crate::support::{Hooked, On, START, World, on_each};

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(30);

on_each![
    duplicates_within_a_window_fold_into_one_action,
    a_window_is_counted_from_its_creation_to_the_millisecond,
    what_is_not_deduplicated_is_an_action_of_its_own,
    a_missing_entity_type_is_a_value_of_its_own,
    what_has_started_or_ended_is_left_as_it_is,
    a_worker_that_comes_between_the_look_and_the_write_loses_no_update,
    an_action_that_was_given_back_is_not_revised,
    an_answer_that_gets_lost_is_looked_up,
    each_mode_does_what_it_says,
    many_at_once_are_one_action_and_one_revision_each,
    a_schedule_has_one_run_for_each_tick,
    a_tick_that_fails_is_tried_again_and_the_schedule_goes_on,
    what_was_missed_is_made_up_for_once,
    people_cancel_retry_and_run_now,
    what_ended_without_success_is_settled_once_whoever_says_what_of_it,
    lists_show_what_lives_and_what_has_ended,
    what_is_not_right_is_refused_by_name,
];

fn workspace() -> WorkspaceName {
    WorkspaceName::default_workspace()
}

fn over(store: Arc<dyn MainStore>) -> Actions {
    Actions::over(store)
}

fn about(id: &str, more: Value) -> Value {
    let mut payload = json!({"entityId": id, "entityType": "lead"});
    payload.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    payload
}

fn sync(payload: &Value) -> Schedule {
    Schedule::new("crm:sync", payload).expect("is right")
}

async fn schedule(actions: &Actions, schedule: Schedule) -> Scheduled {
    actions.schedule(&workspace(), schedule).await.expect("is scheduled")
}

async fn lease(store: &dyn MainStore, max: usize) -> Vec<Job> {
    let whose = Whose::One { workspace: workspace(), max };
    let wanted = Wanted::new([Action::job_kind("crm:sync")], LEASE, whose);
    store.lease_jobs(&wanted).await.expect("the store is there").value.jobs
}

fn payload(job: &Job) -> Value {
    let action = Action::read(&job.payload, job.id).expect("is an action");
    serde_json::from_str(action.payload.get()).expect("is JSON")
}

async fn complete(actions: &Actions, job: &Job) -> Applied {
    let command = Command::Complete { token: job.token };
    actions.apply(&workspace(), job.id, command).await.expect("the store is there")
}

async fn fail(actions: &Actions, job: &Job, reached: Reached) -> Applied {
    let failure = Failure { error: "no".into(), reached, is_final: false, retry_in: None };
    let command = Command::Fail { token: job.token, failure };
    actions.apply(&workspace(), job.id, command).await.expect("the store is there")
}

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
    // One that remembers the slot, and one that has to look.
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
    // Nor is what differs in a part of its key.
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
    // A try that failed waits for the next, and has started all the same.
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
    // Were it written to the first, which runs first, the second would bring back what is older.
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

async fn each_mode_does_what_it_says(on: On) {
    let world = World::open(on).await;
    let actions = over(world.store.clone());
    let at = |seconds: f64| START + Duration::from_secs_f64(seconds);
    let payload_of = async |id| {
        let found = actions.find(&workspace(), id).await.expect("the store is there").expect("is there");
        serde_json::from_str::<Value>(found.action.payload.get()).expect("is JSON")
    };
    // The first is kept.
    let keep = |n: u32| sync(&about("keep", json!({"n": n}))).mode(Mode::KeepFirst);
    let first = schedule(&actions, keep(1)).await;
    let second = schedule(&actions, keep(2)).await;
    assert_eq!((second.id, second.outcome, second.revision), (first.id, Outcome::Dropped, 1));
    assert_eq!(payload_of(first.id).await["n"], 1);
    // Merged.
    let merge = |more: Value| sync(&about("merge", more)).mode(Mode::Merge);
    let first = schedule(&actions, merge(json!({"name": "Ada", "tags": {"a": 1, "b": 2}}))).await;
    let second = schedule(&actions, merge(json!({"name": null, "tags": {"b": 3}, "email": "a@b.test"}))).await;
    assert_eq!((second.id, second.revision), (first.id, 2));
    assert_eq!(payload_of(first.id).await, about("merge", json!({"tags": {"a": 1, "b": 3}, "email": "a@b.test"})));
    // Put off with each, up to a bound.
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
    // Replaced, also when it runs.
    let first = schedule(&actions, sync(&about("when", json!({}))).when(When::After(SECOND))).await;
    let later = schedule(&actions, sync(&about("when", json!({}))).when(When::After(SECOND * 60))).await;
    assert_eq!((later.id, later.run_at), (first.id, at(68.0)));
    assert_eq!(schedule(&actions, sync(&about("when", json!({})))).await.run_at, at(68.0), "or as it was");
    world.close().await;
}

/// From two replicas, where there can be two.
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
    // The tick alone is tried again, under its key.
    let retried = actions.retry(&workspace(), key).await.expect("is dead");
    assert_eq!((retried.status(), retried.id), (Status::Pending, key));
    let job = lease(&*world.store, 1).await.remove(0);
    assert_eq!(oncegate::actions::Leased::read(job.clone()).expect("is an action").effect_key(), key);
    assert!(matches!(complete(&actions, &job).await, Applied::Ended(Status::Completed, id) if id == key));
    // What may have happened, and must not happen twice, is left to people.
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

async fn people_cancel_retry_and_run_now(on: On) {
    let world = World::open(on).await;
    let actions = over(world.store.clone());
    let status = async |id| actions.find(&workspace(), id).await.expect("answers").expect("is there").status();
    let nobody = uuid::Uuid::now_v7();
    for missing in [
        actions.cancel(&workspace(), nobody).await,
        actions.retry(&workspace(), nobody).await,
        actions.run_now(&workspace(), nobody).await,
    ] {
        assert!(matches!(missing, Err(Refused::Missing)), "{missing:?}");
    }
    let later = || sync(&about("7", json!({}))).when(When::After(SECOND * 60)).tries(1);
    let made = schedule(&actions, later()).await;
    assert!(matches!(actions.retry(&workspace(), made.id).await, Err(Refused::Status("pending", _))));
    assert_eq!(actions.run_now(&workspace(), made.id).await.expect("waits").run_at(), START);
    let job = lease(&*world.store, 1).await.remove(0);
    for refused in [actions.cancel(&workspace(), made.id).await, actions.run_now(&workspace(), made.id).await] {
        assert!(matches!(refused, Err(Refused::Status("running", _))), "{refused:?}");
    }
    assert!(matches!(fail(&actions, &job, Reached::No).await, Applied::Ended(Status::Dead, _)));
    assert_eq!(status(made.id).await, Status::Dead);
    // Of two who have it tried again, one does.
    let here = workspace();
    let (one, two) = tokio::join!(actions.retry(&here, made.id), actions.retry(&here, made.id));
    assert_eq!([&one, &two].iter().filter(|retried| retried.is_ok()).count(), 1, "{one:?} {two:?}");
    let again = lease(&*world.store, 5).await;
    assert_eq!((again.len(), again[0].id), (1, made.id));
    assert!(again[0].token > job.token, "the worker before is fenced");
    assert!(matches!(complete(&actions, &job).await, Applied::Refused(_)));
    assert!(matches!(complete(&actions, &again[0]).await, Applied::Ended(Status::Completed, _)));
    assert!(matches!(actions.retry(&workspace(), made.id).await, Err(Refused::Status("completed", _))));
    let found = actions.find(&workspace(), made.id).await.expect("answers").expect("is there");
    assert_eq!(found.action.tries.len(), 1, "what went wrong before is still to be seen");
    let cancelled = schedule(&actions, later()).await;
    assert_eq!(actions.cancel(&workspace(), cancelled.id).await.expect("waits").status(), Status::Cancelled);
    assert!(matches!(actions.cancel(&workspace(), cancelled.id).await, Err(Refused::Status("cancelled", _))));
    assert_eq!(actions.retry(&workspace(), cancelled.id).await.expect("is cancelled").status(), Status::Pending);
    // A schedule that is run now runs when it is due as well.
    let daily = Repeats::parse("daily", None, false).expect("is right");
    let daily = schedule(&actions, sync(&json!({})).repeats(Some(daily)).when(When::After(SECOND * 3600))).await;
    actions.run_now(&workspace(), daily.id).await.expect("waits");
    let jobs = lease(&*world.store, 5).await;
    let job = jobs.iter().find(|job| job.id == daily.id).expect("runs now");
    assert!(matches!(complete(&actions, job).await, Applied::Ended(Status::Completed, _)));
    let next = actions.find(&workspace(), daily.id).await.expect("answers").expect("is there");
    assert_eq!(next.run_at(), START + SECOND * 3600);
    // What has lost its worker can be cancelled, though it may have happened.
    let lost = schedule(&actions, sync(&json!({}))).await;
    assert!(lease(&*world.store, 5).await.iter().any(|job| job.id == lost.id));
    world.clock.set(START + LEASE);
    assert_eq!(actions.cancel(&workspace(), lost.id).await.expect("nobody has it").status(), Status::Unknown);
    world.close().await;
}

async fn what_ended_without_success_is_settled_once_whoever_says_what_of_it(on: On) {
    let world = World::open(on).await;
    let hooked = Hooked::over(world.store.clone());
    let actions = over(hooked.clone());
    let here = workspace();
    let dead = async |reached| {
        let made = schedule(&actions, sync(&json!({})).tries(1)).await;
        let job = lease(&*world.store, 1).await.remove(0);
        assert_eq!(job.id, made.id);
        fail(&actions, &job, reached).await;
        job
    };
    let resolve = async |id, done| actions.resolve(&here, id, done, "ada", Some("looked".into())).await;
    for reached in [Reached::No, Reached::Maybe] {
        for (done, status) in [(true, Status::Completed), (false, Status::Cancelled)] {
            let job = dead(reached).await;
            let was = actions.find(&here, job.id).await.expect("answers").expect("is there").status();
            let settled = resolve(job.id, done).await.expect("ended without success");
            assert_eq!(settled.status(), status);
            let ended = settled.action.ended.expect("has ended");
            assert_eq!((ended.was(), ended.resolved.map(|resolved| resolved.was)), (was, Some(was)));
            assert_eq!(resolve(job.id, done).await.expect("said again").status(), status);
            let other = resolve(job.id, !done).await;
            assert!(matches!(other, Err(Refused::Status(is, _)) if is == status.as_str()), "{other:?}");
            // The answer to its worker's last word got lost: it says the same again, and is right; another word is too late.
            assert!(matches!(fail(&actions, &job, reached).await, Applied::Already(..)));
            assert!(matches!(complete(&actions, &job).await, Applied::Refused(_)));
        }
    }
    // Two persons at once say the same, or not.
    let job = dead(Reached::Maybe).await;
    let (one, two) = tokio::join!(resolve(job.id, true), resolve(job.id, true));
    assert!(one.is_ok() && two.is_ok(), "{one:?} {two:?}");
    let job = dead(Reached::Maybe).await;
    let (one, two) = tokio::join!(resolve(job.id, true), resolve(job.id, false));
    assert_ne!(one.is_ok(), two.is_ok(), "{one:?} {two:?}");
    let job = dead(Reached::No).await;
    let (one, two) = tokio::join!(resolve(job.id, true), actions.retry(&here, job.id));
    assert_ne!(one.is_ok(), two.is_ok(), "{one:?} {two:?}");
    let in_queue = lease(&*world.store, 5).await;
    assert_eq!(in_queue.len(), usize::from(two.is_ok()));
    // What is let be can be tried again after all.
    for job in in_queue {
        complete(&actions, &job).await;
    }
    let job = dead(Reached::No).await;
    resolve(job.id, false).await.expect("is dead");
    assert_eq!(actions.retry(&here, job.id).await.expect("is cancelled").status(), Status::Pending);
    let again = lease(&*world.store, 5).await.remove(0);
    assert!(matches!(resolve(job.id, true).await, Err(Refused::Status("running", _))));
    assert!(matches!(complete(&actions, &again).await, Applied::Ended(Status::Completed, _)));
    assert!(matches!(resolve(job.id, true).await, Err(Refused::Status("completed", _))));
    // The answer to a person's word may get lost, too.
    for is_written in [true, false] {
        let job = dead(Reached::No).await;
        hooked.lose_answer(is_written);
        assert_eq!(resolve(job.id, true).await.expect("it is looked up").status(), Status::Completed);
    }
    assert!(matches!(resolve(uuid::Uuid::now_v7(), true).await, Err(Refused::Missing)));
    world.close().await;
}

async fn lists_show_what_lives_and_what_has_ended(on: On) {
    let world = World::open(on).await;
    let actions = over(world.store.clone());
    let mut ids = vec![];
    for n in 0..6 {
        let entity = ["even", "odd", "failing", "odd", "even", "odd"][n];
        let payload = about(entity, json!({"n": n}));
        let made = schedule(&actions, sync(&payload).window(Duration::ZERO).when(When::At(START))).await;
        ids.push(made.id);
        let job = lease(&*world.store, 1).await.remove(0);
        match n {
            0 | 1 => _ = complete(&actions, &job).await,
            2 => _ = fail(&actions, &job, Reached::No).await,
            _ => _ = actions.apply(&workspace(), job.id, Command::GiveBack { token: job.token }).await,
        }
        if n > 2 {
            actions.cancel(&workspace(), made.id).await.expect("waits");
        }
    }
    let last = schedule(&actions, Schedule::new("crm:other", &about("odd", json!({}))).expect("is right")).await.id;
    ids.push(last);
    let list = async |filter: Filter| {
        let page = actions.list(&workspace(), &Filter { limit: filter.limit.max(1), ..filter }).await.expect("answers");
        let places = page.items.iter().map(|found| ids.iter().position(|id| *id == found.id).expect("is one of them"));
        (places.collect::<Vec<_>>(), page.next.and_then(|next| ids.iter().position(|id| *id == next)))
    };
    let all = Filter { limit: 50, ..Filter::default() };
    assert_eq!(list(all.clone()).await, (vec![6, 5, 4, 3, 2, 1, 0], None));
    assert_eq!(list(Filter { limit: 3, ..all.clone() }).await, (vec![6, 5, 4], Some(4)));
    assert_eq!(list(Filter { limit: 3, before: Some(ids[4]), ..all.clone() }).await, (vec![3, 2, 1], Some(1)));
    let of_status = |status| Filter { status: Some(status), ..all.clone() };
    assert_eq!(list(of_status(Status::Completed)).await.0, [1, 0]);
    assert_eq!(list(of_status(Status::Cancelled)).await.0, [5, 4, 3]);
    assert_eq!(list(of_status(Status::Failed)).await.0, [2]);
    assert_eq!(list(of_status(Status::Pending)).await.0, [6]);
    assert_eq!(list(of_status(Status::Running)).await.0, [0; 0]);
    let entity = Filter { entity_id: Some("odd".into()), ..all.clone() };
    assert_eq!(list(entity.clone()).await.0, [6, 5, 3, 1]);
    assert_eq!(list(Filter { action_type: Some("crm:sync".into()), ..entity.clone() }).await.0, [5, 3, 1]);
    assert_eq!(list(Filter { action_type: Some("crm:sync".into()), limit: 1, ..entity }).await, (vec![5], Some(5)));
    assert_eq!(list(Filter { action_type: Some("crm:other".into()), ..all }).await.0, [6]);
    world.close().await;
}

async fn what_is_not_right_is_refused_by_name(on: On) {
    let world = World::open(on).await;
    let actions = over(world.store.clone());
    let refused = |action_type: &str, payload: Value| match Schedule::new(action_type, &payload) {
        Err(ScheduleError::Invalid(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(refused("", json!({})).starts_with("actionType: "));
    assert!(refused("a\0b", json!({})).starts_with("actionType: "));
    assert!(refused(&"x".repeat(256), json!({})).starts_with("actionType: "));
    assert!(refused("t", json!({"entityId": {"a": 1}})).starts_with("payload.entityId: "));
    assert!(refused("t", json!({"entityId": ""})).starts_with("payload.entityId: "));
    assert!(refused("t", json!({"entityId": "a\0"})).starts_with("payload.entityId: "));
    assert!(refused("t", json!({"entityId": "a", "entityType": true})).starts_with("payload.entityType: "));
    let large = Schedule::new("t", &json!({"text": "x".repeat(1024 * 1024)}));
    assert!(matches!(large, Err(ScheduleError::TooLarge(_))));
    // Merging refuses who makes it too large, and no one else.
    let merge = |name: &str, size: usize| {
        sync(&about("7", json!({name: "x".repeat(size)}))).mode(Mode::Merge).when(When::After(SECOND))
    };
    let first = schedule(&actions, merge("a", 700_000)).await;
    let too_large = actions.schedule(&workspace(), merge("b", 700_000)).await;
    assert!(matches!(too_large, Err(ScheduleError::TooLarge(_))), "{too_large:?}");
    let small = schedule(&actions, merge("c", 7)).await;
    assert_eq!((small.id, small.revision), (first.id, 2));
    world.close().await;
}
