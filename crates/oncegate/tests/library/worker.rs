//! A worker in the user's own process, on each store: actions, reminders, sends and their ends.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use oncegate::actions::{Schedule, Status, When};
use oncegate::reminders::{New, Options as ReminderOptions, Set, State, Text};
use oncegate::sends::{Begin, Lost, Options as SendOptions, SendError};
use oncegate::store::{Clock, SystemClock};
use oncegate::worker::{Channel, Outgoing, Receipt, Run, Sent};
use oncegate::{Failure, Gate, job};
use serde_json::{Value, json};
use tokio::sync::{Notify, oneshot};
use uuid::Uuid;

use crate::support::{On, World, on_each};

on_each![
    a_handler_gets_its_payload_and_its_result_is_kept,
    a_handler_that_refuses_ends_the_action_and_a_payload_of_another_shape_too,
    two_workers_run_each_action_once,
    a_worker_that_stops_ends_what_it_has_begun_and_leaves_the_rest,
    a_handler_that_outlives_its_lease_keeps_it,
    a_reminder_goes_through_the_channel_that_it_names,
    a_send_is_made_once_and_renewed_while_the_provider_is_slow,
    a_send_that_may_have_happened_is_not_made_again,
    a_send_stops_when_its_lease_ends_while_the_store_is_away,
    a_worker_that_is_dropped_leases_nothing_more,
];

fn gate(world: &World) -> Gate {
    Gate::over(world.store.clone(), Arc::new(()))
}

async fn schedule(gate: &Gate, action_type: &str, payload: Value) -> Uuid {
    let schedule = Schedule::new(action_type, &payload).expect("is right").when(When::After(Duration::ZERO));
    gate.actions().schedule(schedule).await.expect("the store is there").id
}

async fn status(gate: &Gate, id: Uuid) -> (Status, Option<String>) {
    let found = gate.actions().find(id).await.expect("the store is there").expect("it was scheduled");
    let result = found.action.ended.as_ref().and_then(|ended| ended.result.as_ref());
    (found.status(), result.map(|result| result.get().to_owned()))
}

/// Returns when the action has ended.
async fn ended(gate: &Gate, id: Uuid) {
    let is_over = |status| matches!(status, Status::Completed | Status::Dead | Status::Unknown | Status::Cancelled);
    while !is_over(status(gate, id).await.0) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn a_handler_gets_its_payload_and_its_result_is_kept(on: On) {
    let world = World::open_with_real_time(on).await;
    let gate = gate(&world);
    let id = schedule(&gate, "add", json!([1, 2])).await;
    let add = |(a, b): (i32, i32), run: Run| async move {
        assert_eq!((run.attempt, run.effect_key), (1, run.id));
        Ok::<_, job::Failure>(a + b)
    };
    gate.worker().on::<(i32, i32)>("add", add).run(ended(&gate, id)).await;
    assert_eq!(status(&gate, id).await, (Status::Completed, Some("3".into())));
    world.close().await;
}

async fn a_handler_that_refuses_ends_the_action_and_a_payload_of_another_shape_too(on: On) {
    let world = World::open_with_real_time(on).await;
    let gate = gate(&world);
    let refused = schedule(&gate, "refuse", json!("no")).await;
    let misshapen = schedule(&gate, "refuse", json!({"a": 1})).await;
    let refuse = |_: String, _: Run| async { Err::<(), _>(job::Failure::refused("not today")) };
    let both = async { _ = tokio::join!(ended(&gate, refused), ended(&gate, misshapen)) };
    gate.worker().on::<String>("refuse", refuse).run(both).await;
    assert_eq!(status(&gate, refused).await.0, Status::Dead);
    assert_eq!(status(&gate, misshapen).await.0, Status::Dead);
    world.close().await;
}

async fn two_workers_run_each_action_once(on: On) {
    let world = World::open_with_real_time(on).await;
    let gates = [gate(&world), Gate::over(world.again().await, Arc::new(()))];
    let mut ids = vec![];
    for number in 0..60 {
        ids.push(schedule(&gates[0], "count", json!(number)).await);
    }
    let ran = Arc::new(Mutex::new(vec![]));
    let count = || {
        let ran = ran.clone();
        move |number: i32, _: Run| {
            ran.lock().expect("no holder panics").push(number);
            async { Ok::<_, job::Failure>(()) }
        }
    };
    let all = || async {
        for id in &ids {
            ended(&gates[0], *id).await;
        }
    };
    let [one, other] = &gates;
    tokio::join!(
        one.worker().on::<i32>("count", count()).concurrency(4).run(all()),
        other.worker().on::<i32>("count", count()).concurrency(4).run(all())
    );
    let mut ran = ran.lock().expect("no holder panics").clone();
    ran.sort_unstable();
    assert_eq!(ran, (0..60).collect::<Vec<_>>());
    gates[1].store().close().await;
    world.close().await;
}

async fn a_worker_that_stops_ends_what_it_has_begun_and_leaves_the_rest(on: On) {
    let world = World::open_with_real_time(on).await;
    let gate = gate(&world);
    let (begun, left) = (schedule(&gate, "slow", json!(1)).await, schedule(&gate, "slow", json!(2)).await);
    let (starts, started) = oneshot::channel();
    let starts = Mutex::new(Some(starts));
    let slow = move |_: i32, _: Run| {
        _ = starts.lock().expect("no holder panics").take().map(|starts| starts.send(()));
        async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok::<_, job::Failure>(())
        }
    };
    gate.worker().on::<i32>("slow", slow).concurrency(1).run(async { started.await.expect("it starts") }).await;
    assert_eq!(status(&gate, begun).await.0, Status::Completed);
    assert_eq!(status(&gate, left).await.0, Status::Pending);
    world.close().await;
}

async fn a_handler_that_outlives_its_lease_keeps_it(on: On) {
    let world = World::open_with_real_time(on).await;
    let gate = gate(&world);
    let id = schedule(&gate, "slow", json!(1)).await;
    let runs = Arc::new(AtomicU32::new(0));
    let slow = || {
        let runs = runs.clone();
        move |_: i32, _: Run| {
            runs.fetch_add(1, Ordering::SeqCst);
            async {
                tokio::time::sleep(Duration::from_millis(1500)).await;
                Ok::<_, job::Failure>(())
            }
        }
    };
    let worker = || gate.worker().on::<i32>("slow", slow()).lease(Duration::from_millis(500)).run(ended(&gate, id));
    tokio::join!(worker(), worker());
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    world.close().await;
}

/// A channel that keeps what it is given.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<String>>>, Arc<Notify>);

#[async_trait]
impl Channel for Kept {
    async fn send(&self, outgoing: &Outgoing<'_>, _within: Duration) -> Sent {
        let to = outgoing.phone.or(outgoing.email).unwrap_or_default();
        self.0.lock().expect("no holder panics").push(format!("{to}: {}", outgoing.text));
        self.1.notify_one();
        Ok(Receipt { provider_message_id: Some("carrier 1".into()) })
    }
}

async fn a_reminder_goes_through_the_channel_that_it_names(on: On) {
    let world = World::open_with_real_time(on).await;
    let gate = gate(&world);
    let reminders = gate.reminders(ReminderOptions::default());
    let text =
        Text { phone: Some("+15550100".into()), email: None, channel: "sms".into(), message: "Tomorrow, 9".into() };
    let new = New { booking: "b1".into(), kind: "day before".into(), send_at: SystemClock.now(), text };
    let Set::Made(made) = reminders.set(&new).await.expect("the store is there") else { panic!("it is new") };
    let channel = Kept::default();
    let sent = channel.1.clone();
    gate.worker().reminders(&reminders).channel("sms", channel.clone()).run(sent.notified()).await;
    assert_eq!(*channel.0.lock().expect("no holder panics"), ["+15550100: Tomorrow, 9"]);
    let found = reminders.find(made.id).await.expect("the store is there").expect("it was made");
    assert_eq!(found.document.state, State::Sent);
    world.close().await;
}

async fn a_send_is_made_once_and_renewed_while_the_provider_is_slow(on: On) {
    let world = World::open_with_real_time(on).await;
    let options = SendOptions { lease: Duration::from_millis(500), ..SendOptions::default() };
    let sends = gate(&world).sends(options);
    let begin = Begin::new("spring", "ada@example.com").expect("is right");
    let calls = AtomicU32::new(0);
    let provider = async |_| {
        calls.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(1500)).await;
        Ok::<_, Failure<String>>(Some("esp-1".to_owned()))
    };
    let slow = sends.send(&begin, provider);
    let late = async {
        // Past the first lease, which was renewed.
        tokio::time::sleep(Duration::from_millis(900)).await;
        sends.send(&begin, provider).await
    };
    let (first, busy) = tokio::join!(slow, late);
    assert!(!first.expect("it is sent").is_duplicate);
    assert!(matches!(busy, Err(SendError::Busy { .. })), "{busy:?}");
    let again = sends.send(&begin, provider).await.expect("it was sent");
    assert_eq!((again.is_duplicate, again.sent.esp_message_id.as_deref()), (true, Some("esp-1")));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    world.close().await;
}

async fn a_send_that_may_have_happened_is_not_made_again(on: On) {
    let world = World::open_with_real_time(on).await;
    let sends = gate(&world).sends(SendOptions { lost: Lost::Hold, ..SendOptions::default() });
    let begin = Begin::new("spring", "ada@example.com").expect("is right");
    let first = sends.send(&begin, |_| async { Err(Failure::Unknown("no answer".to_owned())) }).await;
    assert!(matches!(first, Err(SendError::MayHaveHappened(_))), "{first:?}");
    let again = sends.send(&begin, |_| async { Ok::<_, Failure<String>>(None) }).await;
    assert!(matches!(again, Err(SendError::Unknown { .. })), "{again:?}");

    let begin = Begin::new("spring", "bob@example.com").expect("is right");
    let first = sends.send(&begin, |_| async { Err(Failure::NotDone("refused".to_owned())) }).await;
    assert!(matches!(first, Err(SendError::NotDone(_))), "{first:?}");
    assert!(sends.send(&begin, |_| async { Ok::<_, Failure<String>>(None) }).await.is_ok(), "it surely was not sent");
    world.close().await;
}

async fn a_send_stops_when_its_lease_ends_while_the_store_is_away(on: On) {
    if on == On::Memory {
        return;
    }
    let world = World::open_with_real_time(on).await;
    let options = SendOptions { lease: Duration::from_millis(500), ..SendOptions::default() };
    let sends = gate(&world).sends(options);
    let begin = Begin::new("spring", "ada@example.com").expect("is right");
    let provider = async |_| {
        world.store.close().await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok::<_, Failure<String>>(None)
    };
    // The next worker may send it now, so this one must not go on.
    let sent = tokio::time::timeout(Duration::from_secs(30), sends.send(&begin, provider)).await;
    assert!(matches!(sent, Ok(Err(SendError::LeaseLost))), "{sent:?}");
    world.close().await;
}

async fn a_worker_that_is_dropped_leases_nothing_more(on: On) {
    let world = World::open_with_real_time(on).await;
    let gate = gate(&world);
    let first = schedule(&gate, "note", json!(1)).await;
    let note = |_: i32, _: Run| async { Ok::<_, job::Failure>(()) };
    tokio::select! {
        () = gate.worker().on::<i32>("note", note).run(std::future::pending()) => unreachable!("it is not told to stop"),
        () = ended(&gate, first) => {}
    }
    let second = schedule(&gate, "note", json!(2)).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(status(&gate, second).await.0, Status::Pending, "a worker looks once a second at least");
    world.close().await;
}
