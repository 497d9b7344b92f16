//! Actions on each store: what people do with an action, lists, and refusals.

use std::time::Duration;

use oncegate::actions::{Applied, Filter, Mode, Refused, Repeats, Schedule, ScheduleError, Status, When};
use oncegate::document::Resolution;
use oncegate_core::job::{Command, Reached};
use serde_json::{Value, json};

use crate::support::actions::{LEASE, SECOND, about, complete, fail, lease, over, schedule, sync, workspace};
use crate::support::{Hooked, On, START, World, on_each};

on_each![
    people_cancel_retry_and_run_now,
    what_ended_without_success_is_settled_once_whoever_says_what_of_it,
    lists_show_what_lives_and_what_has_ended,
    what_is_not_right_is_refused_by_name,
];

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
    // If two people retry the action, one of them succeeds.
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
    // A schedule that a person runs now still runs when it is due.
    let daily = Repeats::parse("daily", None, false).expect("is right");
    let daily = schedule(&actions, sync(&json!({})).repeats(Some(daily)).when(When::After(SECOND * 3600))).await;
    actions.run_now(&workspace(), daily.id).await.expect("waits");
    let jobs = lease(&*world.store, 5).await;
    let job = jobs.iter().find(|job| job.id == daily.id).expect("runs now");
    assert!(matches!(complete(&actions, job).await, Applied::Ended(Status::Completed, _)));
    let next = actions.find(&workspace(), daily.id).await.expect("answers").expect("is there");
    assert_eq!(next.run_at(), START + SECOND * 3600);
    // An action that has lost its worker can be cancelled, though its effect may have happened.
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
    let resolve = async |id, done| {
        let resolution = Resolution { happened: done, by: "ada".into(), note: Some("looked".into()) };
        actions.resolve(&here, id, &resolution).await
    };
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
            // The answer to the worker's last report was lost. A repeated report succeeds; a different report is too late.
            assert!(matches!(fail(&actions, &job, reached).await, Applied::Already(..)));
            assert!(matches!(complete(&actions, &job).await, Applied::Refused(_)));
        }
    }
    // Two people resolve it at the same time, with the same result or not.
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
    // A cancelled action can still be retried.
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
    // The answer to a person's command may be lost, too.
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
    // A payload that is too large after the merge is refused; the other callers succeed.
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
