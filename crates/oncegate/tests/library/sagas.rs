//! Sagas on each store, on a clock that the test sets: one instance and one set of commands, for events that are duplicate, late
//! or concurrent.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use oncegate::sagas::{
    DATA_BYTES_MAX, Definition, Draft, Effects, Event, Fired, GUARD, Handled, LetterState, NotRetried, Options,
    Outcome, RETIRE, Sagas, TIMER,
};
use oncegate::store::{JobListing, KindFilter, Listing, MainStore, Query, Wanted, Whose};
use oncegate::{Ledger, StoreError, WorkspaceName};
use oncegate_core::job::Job;
use serde::Serialize;
use serde_json::{Value, json};

use crate::support::{Hooked, On, START, World, on_each};

const MILLI: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
const LEASE: Duration = Duration::from_secs(30);

on_each![
    an_event_makes_an_instance_its_history_and_its_commands,
    an_event_that_comes_again_is_a_duplicate_whatever_state_it_finds,
    the_same_event_on_two_replicas_at_once_is_applied_once,
    events_of_one_instance_that_race_are_all_applied,
    whoever_loses_the_race_starts_again_from_the_beginning,
    an_answer_that_gets_lost_is_looked_up,
    a_timer_comes_when_it_is_due_and_not_before,
    a_timer_that_is_not_awaited_any_more_changes_nothing,
    a_completed_instance_is_kept_for_seven_days_to_the_millisecond,
    what_is_removed_leaves_nothing_behind,
    what_cannot_be_applied_is_kept_with_the_reason,
    a_dead_letter_is_applied_again_once,
    a_large_event_behaves_as_a_small_one_does,
    a_removal_that_comes_late_leaves_the_next_instance_alone,
    a_dead_letter_that_comes_again_after_it_was_settled_is_open_again,
    a_timer_among_the_dead_letters_is_applied_only_while_it_is_awaited,
    what_can_never_be_written_goes_to_the_dead_letters,
    an_event_that_runs_out_of_steps_is_told_once_with_its_workspace,
    a_dead_letter_that_no_saga_knew_is_applied_in_each_that_knows_it_now,
];

fn search_import() -> Definition {
    let text = include_str!("../../../../sagas/search-import.toml");
    Draft::read("search-import.toml", text).and_then(Draft::check).expect("what ships is right")
}

fn workspace() -> WorkspaceName {
    WorkspaceName::default_workspace()
}

/// A replica. Its pauses after conflicts are short.
fn replica(store: &Arc<dyn MainStore>, name: &str) -> Sagas {
    let options = Options { retries: vec![5 * MILLI], replica: name.into(), ..Options::default() };
    sagas_of(store, [search_import()], options)
}

fn sagas_of(store: &Arc<dyn MainStore>, definitions: impl IntoIterator<Item = Definition>, options: Options) -> Sagas {
    let ledger = Arc::new(Ledger::start(store.clone(), Arc::new(())));
    Sagas::over(store.clone(), ledger, definitions, options).expect("the names differ")
}

fn event(name: &str, id: &str, data: Value) -> Event {
    Event::new(name, data).id(id)
}

fn started(search: &str) -> Event {
    event("SearchUploadStarted", &format!("started {search}"), json!({ "searchId": search, "projectId": "p" }))
}

/// A saga that counts the events of an id.
fn counter(name: &str) -> Draft {
    Draft::new(name)
        .correlation("event.data.id")
        .events(["Seen"])
        .states(["Counting"])
        .data("count", oncegate::sagas::FieldKind::Number)
        .on("none", "Seen", Effects::default().set("count", "1").to("Counting"))
        .on("Counting", "Seen", Effects::default().set("count", "saga.count + 1"))
}

fn saved(search: &str, files: &[impl Serialize]) -> Event {
    let data = json!({ "searchId": search, "projectId": "p", "searchName": "n", "referenceFiles": files });
    event("SearchUploadSaved", &format!("saved {search}"), data)
}

fn parsed(search: &str, file: &str) -> Event {
    let data = json!({ "searchId": search, "fileId": file });
    event("ReferenceFileParsingCompleted", &format!("parsed {search} {file}"), data)
}

async fn handle(sagas: &Sagas, event: &Event) -> Handled {
    let mut handled = sagas.handle(&workspace(), event).await.expect("the store is there");
    assert_eq!(handled.len(), 1, "one saga knows it");
    handled.remove(0)
}

/// The outcome of the event, and the state of the instance.
async fn told(sagas: &Sagas, event: &Event) -> (&'static str, Option<String>) {
    let handled = handle(sagas, event).await;
    (handled.outcome.as_str(), handled.state)
}

fn in_state(result: &'static str, state: &str) -> (&'static str, Option<String>) {
    (result, Some(state.to_owned()))
}

async fn state(sagas: &Sagas, search: &str) -> Option<String> {
    let found = sagas.find(&workspace(), "search-import", search).await.expect("the store is there");
    found.map(|found| found.instance.state)
}

async fn jobs(store: &Arc<dyn MainStore>, kind: &str) -> Vec<Job> {
    let listing = JobListing {
        workspace: workspace(),
        kind: KindFilter::Is(kind.into()),
        lane_prefix: None,
        state: None,
        limit: 100_000,
        before: None,
    };
    store.list_jobs(listing).await.expect("the store is there")
}

async fn commands(store: &Arc<dyn MainStore>) -> Vec<Value> {
    let jobs = jobs(store, "action:StartParsingReferenceFile").await;
    let payload = |job: &Job| serde_json::from_slice::<Value>(&job.payload).expect("JSON")["payload"].clone();
    jobs.iter().rev().map(payload).collect()
}

/// Runs the removal jobs that are due.
async fn retire_due(store: &Arc<dyn MainStore>, sagas: &Sagas) {
    for job in lease(store, RETIRE).await {
        sagas.retire(&job).await.expect("the store is there");
    }
}

async fn lease(store: &Arc<dyn MainStore>, kind: &str) -> Vec<Job> {
    let whose = Whose::One { workspace: workspace(), max: 100 };
    let leased = store.lease_jobs(&Wanted::new([kind], LEASE, whose)).await;
    leased.expect("the store is there").value.jobs
}

async fn fire(sagas: &Sagas, job: &Job) -> Handled {
    match sagas.fire(job).await.expect("the store is there") {
        Fired::Done { handled, .. } => handled,
        other => panic!("{other:?}"),
    }
}

async fn an_event_makes_an_instance_its_history_and_its_commands(on: On) {
    let world = World::open(on).await;
    let sagas = replica(&world.store, "one");
    assert_eq!(told(&sagas, &started("s")).await, in_state("applied", "Uploading"));
    world.clock.advance(MILLI);
    assert_eq!(told(&sagas, &saved("s", &["a", "b"])).await, in_state("applied", "Parsing"));
    let payload = |file: &str| json!({ "projectId": "p", "searchId": "s", "fileId": file });
    assert_eq!(commands(&world.store).await, [payload("a"), payload("b")]);
    assert_eq!(jobs(&world.store, TIMER).await, [], "the upload is not waited for any more");
    for file in ["a", "b"] {
        world.clock.advance(MILLI);
        told(&sagas, &parsed("s", file)).await;
    }
    let found = sagas.find(&workspace(), "search-import", "s").await.expect("the store is there").expect("it is there");
    assert_eq!((found.instance.state.as_str(), found.instance.completed_at()), ("Completed", Some(START + 3 * MILLI)));
    let (history, is_cut) = sagas.history(&workspace(), &found, 10).await.expect("the store is there");
    let lines: Vec<_> = history
        .iter()
        .map(|seen| {
            (seen.line.event.as_str(), seen.line.from.as_deref(), seen.line.to.as_str(), seen.line.commands_sent)
        })
        .collect();
    let expected = [
        ("SearchUploadStarted", None, "Uploading", 0),
        ("SearchUploadSaved", Some("Uploading"), "Parsing", 2),
        ("ReferenceFileParsingCompleted", Some("Parsing"), "Parsing", 0),
        ("ReferenceFileParsingCompleted", Some("Parsing"), "Completed", 0),
    ];
    assert_eq!((lines.as_slice(), is_cut), (&expected[..], false));
    let ids: Vec<_> =
        jobs(&world.store, "action:StartParsingReferenceFile").await.iter().rev().map(|job| job.id).collect();
    assert_eq!(history[1].line.commands.iter().map(|sent| sent.id).collect::<Vec<_>>(), ids, "each under one key");
    assert!(history.iter().all(|seen| seen.line.replica == "one" && seen.duplicates == 0));
    world.close().await;
}

async fn an_event_that_comes_again_is_a_duplicate_whatever_state_it_finds(on: On) {
    let world = World::open(on).await;
    let ledger = Arc::new(Ledger::start(world.store.clone(), Arc::new(())));
    let sagas = Sagas::over(world.store.clone(), ledger.clone(), [search_import()], Options::default())
        .expect("the names differ");
    let events = [started("s"), saved("s", &["a"]), parsed("s", "a")];
    let mut last = None;
    for event in &events {
        let (result, state) = told(&sagas, event).await;
        assert_eq!(result, "applied");
        for before in &events[..=events.iter().position(|other| other == event).expect("it is one of them")] {
            assert_eq!(told(&sagas, before).await, ("duplicate", state.clone()), "{before:?}");
        }
        last = state;
    }
    assert_eq!(last.as_deref(), Some("Completed"));
    // An event that was never applied, and comes too late.
    assert_eq!(
        told(&sagas, &event("UploadTimeout", "late", json!({ "searchId": "s" }))).await,
        in_state("ignored", "Completed")
    );
    // The same id from another source is another event. An event without an id is always another event.
    let other = Event { source: Some("elsewhere".into()), ..saved("s", &["a"]) };
    assert_eq!(told(&sagas, &other).await, in_state("ignored", "Completed"));
    assert_eq!(told(&sagas, &Event { id: None, ..saved("s", &["a"]) }).await, in_state("ignored", "Completed"));
    assert_eq!(commands(&world.store).await.len(), 1);
    let found = sagas.find(&workspace(), "search-import", "s").await.expect("there").expect("there");
    // Duplicates are counted in the background.
    let mut counted = vec![];
    for _ in 0..200 {
        let (history, _) = sagas.history(&workspace(), &found, 10).await.expect("the store is there");
        counted = history.iter().map(|seen| seen.duplicates).collect();
        if counted == [3, 2, 1] {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(counted, [3, 2, 1]);
    world.close().await;
}

async fn the_same_event_on_two_replicas_at_once_is_applied_once(on: On) {
    let world = World::open(on).await;
    let other = world.again().await;
    let replicas = [replica(&world.store, "one"), replica(&other, "two")];
    for round in 0..20 {
        let search = format!("s{round}");
        let saved = saved(&search, &["a", "b", "c"]);
        let handled = join_all((0..8).map(|i| told(&replicas[i % 2], &saved))).await;
        let applied = handled.iter().filter(|(result, _)| *result == "applied").count();
        assert_eq!(applied, 1, "{handled:?}");
        assert!(handled.iter().all(|(_, state)| state.as_deref() == Some("Parsing")));
        assert_eq!(commands(&world.store).await.len(), 3 * (round + 1));
    }
    // Equal events without an id: only the state of the instance can recognise the second.
    let unnamed = Event { id: None, ..saved("unnamed", &["a"]) };
    let mut handled = join_all((0..8).map(|i| told(&replicas[i % 2], &unnamed))).await;
    handled.sort();
    assert_eq!(
        handled.iter().map(|(result, _)| *result).collect::<Vec<_>>(),
        [["applied"; 1].as_slice(), &["ignored"; 7]].concat()
    );
    other.close().await;
    world.close().await;
}

async fn events_of_one_instance_that_race_are_all_applied(on: On) {
    let world = World::open(on).await;
    let other = world.again().await;
    let replicas = [replica(&world.store, "one"), replica(&other, "two")];
    let files: Vec<String> = (0..30).map(|i| format!("file {i}")).collect();
    told(&replicas[0], &saved("s", &files)).await;
    // Each file twice, on both replicas, all at the same time.
    let events: Vec<Event> = files.iter().map(|file| parsed("s", file)).collect();
    let handled = join_all((0..60).map(|i| told(&replicas[i % 2], &events[i / 2]))).await;
    assert_eq!(handled.iter().filter(|(result, _)| *result == "applied").count(), 30);
    assert!(handled.iter().all(|(result, _)| ["applied", "duplicate"].contains(result)), "{handled:?}");
    assert_eq!(state(&replicas[0], "s").await.as_deref(), Some("Completed"));
    other.close().await;
    world.close().await;
}

async fn whoever_loses_the_race_starts_again_from_the_beginning(on: On) {
    let world = World::open(on).await;
    let hooked = Hooked::over(world.store.clone());
    let (slow, fast) = (replica(&(hooked.clone() as Arc<dyn MainStore>), "slow"), replica(&world.store, "fast"));
    // It has read that there is no instance. Before it writes, another replica makes one.
    hooked.before_commit({
        let fast = fast.clone();
        async move { assert_eq!(told(&fast, &saved("s", &["a"])).await, in_state("applied", "Parsing")) }
    });
    let late = handle(&slow, &started("s")).await;
    assert_eq!((late.outcome.as_str(), late.state.as_deref(), late.conflicts), ("applied", Some("Parsing"), 1));
    assert_eq!(jobs(&world.store, TIMER).await, [], "what it would have scheduled was never written");
    // The same with a duplicate: it conflicts, and the next round finds that it is a duplicate.
    hooked.before_commit({
        let fast = fast.clone();
        async move { assert_eq!(told(&fast, &parsed("s", "a")).await, in_state("applied", "Completed")) }
    });
    let same = handle(&slow, &parsed("s", "a")).await;
    assert_eq!((same.outcome.as_str(), same.state.as_deref()), ("duplicate", Some("Completed")));
    assert_eq!(commands(&world.store).await.len(), 1);
    world.close().await;
}

async fn an_answer_that_gets_lost_is_looked_up(on: On) {
    let world = World::open(on).await;
    let hooked = Hooked::over(world.store.clone());
    let sagas = replica(&(hooked.clone() as Arc<dyn MainStore>), "one");
    hooked.lose_answer(true);
    assert_eq!(told(&sagas, &saved("s", &["a"])).await, in_state("applied", "Parsing"), "it was written");
    assert_eq!(commands(&world.store).await.len(), 1);
    hooked.lose_answer(false);
    let lost = sagas.handle(&workspace(), &parsed("s", "a")).await;
    assert!(matches!(lost, Err(StoreError::Unknown(_))), "{lost:?}");
    assert_eq!(told(&sagas, &parsed("s", "a")).await, in_state("applied", "Completed"), "it was not");
    world.close().await;
}

async fn a_timer_comes_when_it_is_due_and_not_before(on: On) {
    let world = World::open(on).await;
    let sagas = replica(&world.store, "one");
    told(&sagas, &started("s")).await;
    world.clock.advance(HOUR - MILLI);
    assert_eq!(lease(&world.store, TIMER).await, []);
    world.clock.advance(MILLI);
    let leased = lease(&world.store, TIMER).await;
    let handled = fire(&sagas, &leased[0]).await;
    assert_eq!((handled.outcome.as_str(), handled.state.as_deref()), ("applied", Some("Error")));
    assert_eq!(jobs(&world.store, TIMER).await, [], "it has left the queue with the commit");
    // The worker that had the job before now continues, and changes nothing.
    let again = sagas.fire(&leased[0]).await.expect("the store is there");
    assert_eq!(again, Fired::Lost);
    let found = sagas.find(&workspace(), "search-import", "s").await.expect("there").expect("there");
    assert_eq!((found.instance.completed_at(), found.instance.timers.len()), (Some(START + HOUR), 0));
    world.close().await;
}

async fn a_timer_that_is_not_awaited_any_more_changes_nothing(on: On) {
    let world = World::open(on).await;
    let sagas = replica(&world.store, "one");
    told(&sagas, &started("s")).await;
    world.clock.advance(HOUR);
    // A worker has leased the timer already when the search is saved after all.
    let leased = lease(&world.store, TIMER).await;
    assert_eq!(told(&sagas, &saved("s", &["a"])).await, in_state("applied", "Parsing"));
    let handled = fire(&sagas, &leased[0]).await;
    assert_eq!((handled.outcome, handled.state.as_deref()), (Outcome::Ignored, Some("Parsing")));
    assert_eq!(jobs(&world.store, TIMER).await, []);
    // The other way round: the timer's commit comes between the event's read and its write.
    let hooked = Hooked::over(world.store.clone());
    let slow = replica(&(hooked.clone() as Arc<dyn MainStore>), "slow");
    told(&sagas, &started("t")).await;
    world.clock.advance(HOUR);
    let leased = lease(&world.store, TIMER).await;
    hooked.before_commit({
        let (sagas, job) = (sagas.clone(), leased[0].clone());
        async move { drop(fire(&sagas, &job).await) }
    });
    assert_eq!(told(&slow, &saved("t", &["a"])).await, in_state("ignored", "Error"), "it was too late");
    assert_eq!(commands(&world.store).await.len(), 1, "only the first search's");
    world.close().await;
}

async fn a_completed_instance_is_kept_for_seven_days_to_the_millisecond(on: On) {
    let world = World::open(on).await;
    let sagas = replica(&world.store, "one");
    told(&sagas, &saved("s", &["a"])).await;
    told(&sagas, &parsed("s", "a")).await;
    world.clock.advance(WEEK - MILLI);
    assert_eq!(told(&sagas, &saved("s", &["a"])).await, in_state("duplicate", "Completed"));
    let anew = Event { id: None, ..saved("s", &["a"]) };
    assert_eq!(told(&sagas, &anew).await, in_state("ignored", "Completed"), "a correlation id is one-shot");
    assert_eq!(lease(&world.store, RETIRE).await, []);
    assert_eq!(sagas.list(&workspace(), Some("search-import"), None, 10, None).await.expect("there").items.len(), 1);
    world.clock.advance(MILLI);
    // The instance has expired. It is not removed yet, but counts as absent.
    assert_eq!(state(&sagas, "s").await, None);
    assert_eq!(sagas.list(&workspace(), Some("search-import"), None, 10, None).await.expect("there").items.len(), 0);
    assert_eq!(told(&sagas, &saved("s", &["a"])).await, in_state("applied", "Parsing"), "it is another search");
    // The removal job of the earlier instance finds nothing to do, and leaves the new instance unchanged.
    retire_due(&world.store, &sagas).await;
    assert_eq!(jobs(&world.store, RETIRE).await, []);
    assert_eq!(told(&sagas, &saved("s", &["a"])).await, in_state("duplicate", "Parsing"));
    world.close().await;
}

async fn what_is_removed_leaves_nothing_behind(on: On) {
    let world = World::open(on).await;
    let sagas = replica(&world.store, "one");
    // More lines than are removed at once.
    let files: Vec<String> = (0..250).map(|i| format!("file {i}")).collect();
    told(&sagas, &saved("s", &files)).await;
    for file in &files {
        told(&sagas, &parsed("s", file)).await;
    }
    told(&sagas, &saved("other", &["a"])).await;
    world.clock.advance(WEEK);
    let leased = lease(&world.store, RETIRE).await;
    // Two workers at the same time: one of them has lost its lease.
    let both = [sagas.retire(&leased[0]), sagas.retire(&leased[0])];
    join_all(both).await.into_iter().for_each(|done| done.expect("the store is there"));
    assert_eq!(jobs(&world.store, RETIRE).await, []);
    let count = async |kind: &'static str| {
        let listing = Listing { workspace: workspace(), kind, list: None, state: None, limit: 1000, before: None };
        world.store.list(listing).await.expect("the store is there").records.len()
    };
    assert_eq!((count("saga").await, count("saga_event").await), (1, 1), "the other search's");
    let query = Query { workspace: workspace(), guard: Some(GUARD.clone()), state: None, limit: 1000, after: None };
    assert_eq!(world.store.scan(query).await.expect("the store is there").claims.len(), 1, "the other search's inbox");
    assert_eq!(state(&sagas, "other").await.as_deref(), Some("Parsing"));
    world.close().await;
}

async fn what_cannot_be_applied_is_kept_with_the_reason(on: On) {
    let world = World::open(on).await;
    let sagas = replica(&world.store, "one");
    told(&sagas, &started("s")).await;
    let cases = [
        (parsed("s", "a"), "event ReferenceFileParsingCompleted is not accepted in state Uploading"),
        (event("Unheard", "1", json!({})), "no saga knows the event Unheard"),
        (event("UploadTimeout", "2", json!({})), "no correlation id: `event.data.searchId`: there is no `searchId`"),
        (
            event("SearchUploadSaved", "3", json!({ "searchId": "s", "referenceFiles": { "a": 1 } })),
            "event SearchUploadSaved in state Uploading: `referenceFiles` is a list; this is a map",
        ),
    ];
    for (event, expected) in &cases {
        let first = handle(&sagas, event).await.outcome;
        let Outcome::DeadLetter { id, reason } = &first else { panic!("{first:?}") };
        assert_eq!(reason, expected);
        assert_eq!(handle(&sagas, event).await.outcome, first, "delivered again, it is the same dead letter");
        let letter = sagas.dead_letter(&workspace(), *id).await.expect("there").expect("there");
        assert_eq!((letter.event.as_ref(), letter.standing), (Some(event), LetterState::Open), "nothing is lost");
    }
    let unnamed = Event { id: None, ..parsed("s", "a") };
    assert_ne!(handle(&sagas, &unnamed).await.outcome, handle(&sagas, &unnamed).await.outcome, "nobody knows better");
    let open = async |saga| {
        sagas.dead_letters(&workspace(), saga, Some(LetterState::Open), 10, None).await.expect("there").items
    };
    assert_eq!(open(None).await.len(), 6);
    assert_eq!(open(Some("search-import")).await.len(), 5);
    assert_eq!(state(&sagas, "s").await.as_deref(), Some("Uploading"), "and nothing has changed");
    world.close().await;
}

async fn a_dead_letter_is_applied_again_once(on: On) {
    let world = World::open(on).await;
    let sagas = replica(&world.store, "one");
    told(&sagas, &started("s")).await;
    // This event came before the one that it follows.
    let Outcome::DeadLetter { id, .. } = handle(&sagas, &parsed("s", "a")).await.outcome else { panic!("too early") };
    let again = sagas.retry_dead_letter(&workspace(), id).await.expect("it is tried");
    assert!(matches!(again.outcome, Outcome::DeadLetter { id: same, .. } if same == id), "it is still too early");
    told(&sagas, &saved("s", &["a", "b"])).await;
    let own = workspace();
    let retried = join_all((0..4).map(|_| sagas.retry_dead_letter(&own, id))).await;
    let applied =
        retried.iter().filter(|one| matches!(one, Ok(Handled { outcome: Outcome::Applied { .. }, .. }))).count();
    assert_eq!(applied, 1, "{retried:?}");
    let found = sagas.find(&workspace(), "search-import", "s").await.expect("there").expect("there");
    assert_eq!(found.instance.data["waiting"], json!(["b"]));
    let letter = sagas.dead_letter(&workspace(), id).await.expect("there").expect("there");
    assert_eq!((letter.standing, letter.retries), (LetterState::Retried, 1));
    assert!(matches!(sagas.retry_dead_letter(&workspace(), id).await, Err(NotRetried::Settled("retried"))));
    assert!(matches!(sagas.discard_dead_letter(&workspace(), id).await, Err(NotRetried::Settled("retried"))));
    // The event that was delivered is a duplicate now, too.
    assert_eq!(told(&sagas, &parsed("s", "a")).await, in_state("duplicate", "Parsing"));
    let Outcome::DeadLetter { id: other, .. } = handle(&sagas, &event("Unheard", "1", json!({}))).await.outcome else {
        panic!("nobody knows it")
    };
    assert_eq!(
        sagas.discard_dead_letter(&workspace(), other).await.expect("it is open").standing,
        LetterState::Discarded
    );
    // A settled dead letter is removed after a while.
    world.clock.advance(WEEK);
    retire_due(&world.store, &sagas).await;
    for id in [id, other] {
        assert!(sagas.dead_letter(&workspace(), id).await.expect("there").is_none());
    }
    assert!(matches!(sagas.retry_dead_letter(&workspace(), id).await, Err(NotRetried::Missing)));
    world.close().await;
}

async fn a_large_event_behaves_as_a_small_one_does(on: On) {
    let world = World::open(on).await;
    let sagas = replica(&world.store, "one");
    // 1.5 MB of file ids, as a document lists them.
    let files: Vec<String> = (0..38_000).map(|i| format!("0193f1a2-7c4d-7e10-9b3a-{i:012}")).collect();
    let large = saved("s", &files);
    assert!(serde_json::to_vec(&large.data).expect("JSON").len() > 1_480_000);
    assert_eq!(told(&sagas, &large).await, in_state("applied", "Parsing"));
    assert_eq!(told(&sagas, &large).await, in_state("duplicate", "Parsing"));
    assert_eq!(jobs(&world.store, "action:StartParsingReferenceFile").await.len(), files.len());
    assert_eq!(told(&sagas, &parsed("s", &files[7])).await, in_state("applied", "Parsing"));
    // Data that exceeds the limit of an instance becomes a dead letter, and no command is sent.
    let huge =
        json!({ "searchId": "t", "projectId": "x".repeat(DATA_BYTES_MAX), "searchName": "n", "referenceFiles": ["a"] });
    let handled = handle(&sagas, &event("SearchUploadSaved", "huge", huge)).await;
    let Outcome::DeadLetter { reason, .. } = handled.outcome else { panic!("{handled:?}") };
    assert!(reason.starts_with("an instance's data is at most 4194304 bytes"), "{reason}");
    assert_eq!(jobs(&world.store, "action:StartParsingReferenceFile").await.len(), files.len());
    world.close().await;
}

async fn a_removal_that_comes_late_leaves_the_next_instance_alone(on: On) {
    let world = World::open(on).await;
    let hooked = Hooked::over(world.store.clone());
    let (slow, fast) = (replica(&(hooked.clone() as Arc<dyn MainStore>), "slow"), replica(&world.store, "fast"));
    told(&fast, &saved("s", &["a"])).await;
    told(&fast, &parsed("s", "a")).await;
    world.clock.advance(WEEK);
    let leased = lease(&world.store, RETIRE).await;
    // Paused between its read and its write. Meanwhile another worker removes the instance, and the same event begins the next one.
    hooked.before_commit({
        let fast = fast.clone();
        async move { assert_eq!(told(&fast, &saved("s", &["a"])).await, in_state("applied", "Parsing")) }
    });
    slow.retire(&leased[0]).await.expect("the store is there");
    assert_eq!(told(&fast, &saved("s", &["a"])).await, in_state("duplicate", "Parsing"), "its inbox is as it was");
    assert_eq!(told(&fast, &parsed("s", "a")).await, in_state("applied", "Completed"));
    world.close().await;
}

async fn a_dead_letter_that_comes_again_after_it_was_settled_is_open_again(on: On) {
    let world = World::open(on).await;
    let sagas = replica(&world.store, "one");
    let Outcome::DeadLetter { id, .. } = handle(&sagas, &parsed("s", "a")).await.outcome else { panic!("too early") };
    sagas.discard_dead_letter(&workspace(), id).await.expect("it is open");
    let again = handle(&sagas, &parsed("s", "a")).await.outcome;
    assert!(matches!(again, Outcome::DeadLetter { id: same, .. } if same == id), "{again:?}");
    let letter = sagas.dead_letter(&workspace(), id).await.expect("there").expect("there");
    assert_eq!(letter.standing, LetterState::Open, "somebody has to look again");
    // The dead letter is settled again, later: its retention begins again.
    world.clock.advance(HOUR);
    sagas.discard_dead_letter(&workspace(), id).await.expect("it is open");
    world.clock.advance(WEEK - HOUR);
    retire_due(&world.store, &sagas).await;
    assert!(
        sagas.dead_letter(&workspace(), id).await.expect("there").is_some(),
        "its last settling was not so long ago"
    );
    handle(&sagas, &parsed("s", "a")).await;
    // Its removal job is due, and leaves it unchanged.
    world.clock.advance(WEEK);
    retire_due(&world.store, &sagas).await;
    assert!(sagas.dead_letter(&workspace(), id).await.expect("there").is_some());
    world.close().await;
}

async fn a_timer_among_the_dead_letters_is_applied_only_while_it_is_awaited(on: On) {
    let world = World::open(on).await;
    let definition = Draft::new("reminder")
        .correlation("event.data.id")
        .events(["Set", "Due", "Stop"])
        .states(["Waiting", "Stopped", "Done"])
        .terminal(["Done"])
        .data("ready", oncegate::sagas::FieldKind::Bool)
        .on("none", "Set", Effects::default().schedule("Due", HOUR).to("Waiting"))
        // Until the saga is ready, this timer fails.
        .on("Waiting", "Due", Effects::default().branch(Effects::default().when("saga.ready").to("Done")))
        .on("Waiting", "Set", Effects::default().set("ready", "true"))
        .on("Waiting", "Stop", Effects::default().unschedule("Due").to("Stopped"))
        .on("Stopped", "Due, Set, Stop", Effects::default().to("Done"))
        .ignore("Done", "*")
        .unexpected("none", "Due, Stop")
        .check()
        .expect("it is right");
    let sagas = sagas_of(&world.store, [definition], Options::default());
    let set = |id: &str, event: &str| Event::new(event, json!({ "id": id }));
    let mut letters = vec![];
    for id in ["a", "b"] {
        handle(&sagas, &set(id, "Set")).await;
    }
    world.clock.advance(HOUR);
    for job in lease(&world.store, TIMER).await {
        let handled = fire(&sagas, &job).await;
        let Outcome::DeadLetter { id, .. } = handled.outcome else { panic!("{handled:?}") };
        letters.push((handled.correlation_id.expect("it has one"), id));
    }
    letters.sort();
    assert_eq!(jobs(&world.store, TIMER).await, []);
    // One saga is made ready, and its timer is applied. The other is stopped, and its timer has no effect.
    handle(&sagas, &set("a", "Set")).await;
    handle(&sagas, &set("b", "Stop")).await;
    let retried = sagas.retry_dead_letter(&workspace(), letters[0].1).await.expect("it is tried");
    assert_eq!((retried.outcome.as_str(), retried.state.as_deref()), ("applied", Some("Done")));
    let retried = sagas.retry_dead_letter(&workspace(), letters[1].1).await.expect("it is tried");
    assert_eq!((retried.outcome.as_str(), retried.state.as_deref()), ("ignored", Some("Stopped")));
    world.close().await;
}

async fn what_can_never_be_written_goes_to_the_dead_letters(on: On) {
    let world = World::open(on).await;
    let definition = Draft::new("log")
        .correlation("event.data.id")
        .events(["Said"])
        .states(["Open"])
        .data("said", oncegate::sagas::FieldKind::Any)
        .data("names", oncegate::sagas::FieldKind::List)
        .on(
            "none, Open",
            "Said",
            Effects::default()
                .take(["names"])
                .set("said", "[event.data.?said, saga.said]")
                .send_each("Tell", "saga.names", &[("all", "saga.names")])
                .to("Open"),
        )
        .check()
        .expect("it is right");
    let sagas = sagas_of(&world.store, [definition], Options::default());
    // Each event nests the data deeper.
    let mut reasons = vec![];
    for number in 0..70 {
        let event = event("Said", &number.to_string(), json!({ "id": "deep" }));
        if let Outcome::DeadLetter { reason, .. } = handle(&sagas, &event).await.outcome {
            reasons.push(reason);
        }
    }
    assert!(reasons.len() > 5 && reasons[0].ends_with("`said` is nested over 64 deep"), "{reasons:?}");
    assert_eq!(
        sagas.list(&workspace(), None, None, 10, None).await.expect("there").items.len(),
        1,
        "it can still be read"
    );
    // Each command contains all of the names.
    let names: Vec<String> = (0..5000).map(|name| format!("name {name}")).collect();
    let handled = handle(&sagas, &event("Said", "many", json!({ "id": "many", "names": names }))).await;
    let Outcome::DeadLetter { reason, .. } = handled.outcome else { panic!("{handled:?}") };
    assert!(reason.ends_with("the commands of an event have at most 16777216 bytes, all together"), "{reason}");
    assert_eq!(jobs(&world.store, "action:Tell").await, []);
    world.close().await;
}

async fn an_event_that_runs_out_of_steps_is_told_once_with_its_workspace(on: On) {
    let world = World::open(on).await;
    // The first limit is reached on the thread of the request, the second on the pool.
    for steps in [5_000, 50_000] {
        let definition = Draft::new(format!("match{steps}"))
            .correlation("event.data.id")
            .events(["Asked"])
            .states(["Answered"])
            .data("matched", oncegate::sagas::FieldKind::Bool)
            .on(
                "none, Answered",
                "Asked",
                Effects::default().set("matched", "event.data.list.all(one, one in event.data.list)").to("Answered"),
            )
            .check()
            .expect("it is right");
        let told = Arc::new(std::sync::Mutex::new(vec![]));
        let heard = told.clone();
        let tell = move |workspace: &WorkspaceName| heard.lock().expect("not poisoned").push(workspace.clone());
        let options = Options { steps, out_of_steps: Arc::new(tell), ..Options::default() };
        let sagas = sagas_of(&world.store, [definition], options);
        for (id, count, outcome, times) in [("small", 20, "applied", 0), ("large", 300, "dead_letter", 1)] {
            let list: Vec<usize> = (0..count).collect();
            let handled = handle(&sagas, &event("Asked", id, json!({ "id": id, "list": list }))).await;
            assert_eq!(handled.outcome.as_str(), outcome, "{handled:?}");
            assert_eq!(*told.lock().expect("not poisoned"), vec![workspace(); times], "{id}, {steps}");
        }
    }
    world.close().await;
}

async fn a_dead_letter_that_no_saga_knew_is_applied_in_each_that_knows_it_now(on: On) {
    let world = World::open(on).await;
    let before = replica(&world.store, "before");
    // The event has no id, and still counts as one event.
    let unnamed = Event::new("Seen", json!({ "id": "x" }));
    let Outcome::DeadLetter { id, .. } = handle(&before, &unnamed).await.outcome else { panic!("nobody knows it") };
    // The last saga does not accept it yet. The other sagas apply it once, however often it is retried.
    let late = Draft::new("late")
        .correlation("event.data.id")
        .events(["Seen", "Ready"])
        .states(["Open", "Done"])
        .terminal(["Done"])
        .on("none", "Ready", Effects::default().to("Open"))
        .on("Open", "Seen", Effects::default().to("Done"))
        .ignore("Open", "Ready")
        .ignore("Done", "*")
        .unexpected("none", "Seen");
    let definitions = [counter("one"), counter("two"), late].map(|draft| draft.check().expect("it is right"));
    let after = sagas_of(&world.store, definitions, Options::default());
    for _ in 0..3 {
        let tried = after.retry_dead_letter(&workspace(), id).await.expect("it is tried");
        assert_eq!(tried.outcome.as_str(), "dead_letter");
    }
    handle(&after, &Event::new("Ready", json!({ "id": "x" }))).await;
    let tried = after.retry_dead_letter(&workspace(), id).await.expect("it is tried");
    assert_eq!((tried.outcome.as_str(), tried.state.as_deref()), ("applied", Some("Done")));
    for saga in ["one", "two"] {
        let found = after.find(&workspace(), saga, "x").await.expect("there").expect("there");
        assert_eq!(found.instance.data["count"], 1, "{saga}");
    }
    world.close().await;
}

#[tokio::test]
async fn an_event_of_two_sagas_is_applied_in_both() {
    let world = World::open(On::Memory).await;
    let counters = ["one", "two"].map(|name| counter(name).check().expect("it is right"));
    let sagas = sagas_of(&world.store, counters, Options::default());
    for id in ["1", "2", "2"] {
        let handled = sagas.handle(&workspace(), &event("Seen", id, json!({ "id": "x" }))).await.expect("there");
        assert_eq!(handled.iter().map(|one| one.saga.as_deref()).collect::<Vec<_>>(), [Some("one"), Some("two")]);
    }
    for saga in ["one", "two"] {
        let found = sagas.find(&workspace(), saga, "x").await.expect("there").expect("there");
        assert_eq!(found.instance.data["count"], 2);
    }
    // Events of one instance keep their order within a list, in each saga, even if they have different instances in another saga.
    let other = |name: &str, by: &str| {
        Draft::new(name)
            .correlation(by)
            .events(["First", "Second"])
            .states(["Begun", "Done"])
            .terminal(["Done"])
            .on("none", "First", Effects::default().to("Begun"))
            .on("Begun", "Second", Effects::default().to("Done"))
            .ignore("Begun", "First")
            .ignore("Done", "*")
            .unexpected("none", "Second")
            .check()
            .expect("it is right")
    };
    let definitions = [other("apart", "event.data.own"), other("together", "event.data.shared")];
    let ordered = sagas_of(&world.store, definitions, Options::default());
    for round in 0..20 {
        let data = |own: &str| json!({ "own": format!("{own} {round}"), "shared": format!("{round}") });
        let events = [Event::new("First", data("a")), Event::new("Second", data("b"))];
        let own = workspace();
        let handled = join_all(events.iter().map(|event| ordered.handle(&own, event))).await;
        let last = handled[1].as_ref().expect("the store is there");
        assert_eq!(last[1].state.as_deref(), Some("Done"), "{last:?}");
    }
    // Another workspace has its own instances.
    let elsewhere = WorkspaceName::new("elsewhere").expect("a name");
    assert!(sagas.find(&elsewhere, "one", "x").await.expect("there").is_none());
    world.close().await;
}
