//! The saga that ships with Oncegate, row by row: every event in every state.

mod shipped;

use std::collections::BTreeMap;
use std::time::Duration;

use oncegate_core::Time;
use oncegate_saga::{Cell, Command, Event, Instance, Next, Step, Timer};
use serde_json::{Value, json};
use shipped::{EVENTS, definition};

const NOW: Time = Time::from_micros(1_790_000_000_000_000);
const STATES: [Option<&str>; 6] =
    [None, Some("Uploading"), Some("Uploaded"), Some("Parsing"), Some("Completed"), Some("Error")];
fn saved() -> Value {
    json!({ "projectId": "p", "searchId": "s", "searchName": "n", "referenceFiles": ["a", "b"] })
}

/// An instance in a state, with the data that it has in that state.
fn instance(state: &str) -> Instance {
    let data = match state {
        "Uploading" => {
            json!({ "projectId": null, "searchId": "s", "searchName": null, "referenceFiles": [], "waiting": [] })
        }
        _ => {
            json!({ "projectId": "p", "searchId": "s", "searchName": "n", "referenceFiles": ["a", "b"], "waiting": ["a", "b"] })
        }
    };
    let timers = match state {
        "Uploading" => BTreeMap::from([("UploadTimeout".to_owned(), "1".to_owned())]),
        _ => BTreeMap::new(),
    };
    Instance { state: state.into(), data: data.as_object().expect("a map").clone(), timers, completed_us: None }
}

fn step(state: Option<&str>, event: &str, data: Value) -> Step {
    definition().step(state.map(instance).as_ref(), &Event::new(event, data), NOW)
}

fn applied(state: Option<&str>, event: &str, data: Value) -> Next {
    match step(state, event, data) {
        Step::Apply(next) => *next,
        other => panic!("{event} in {state:?} is {other:?}"),
    }
}

fn parse(file: &str) -> Command {
    let payload = json!({ "projectId": "p", "searchId": "s", "fileId": file });
    Command { name: "StartParsingReferenceFile".into(), payload }
}

#[test]
fn the_table_is_the_one_of_the_specification() {
    let handled = |state: Option<&str>, event: &str| {
        matches!(
            (state, event),
            (None | Some("Uploading"), "SearchUploadStarted" | "SearchUploadSaved")
                | (Some("Uploading"), "UploadTimeout")
                | (Some("Uploaded" | "Parsing"), "SearchUploadStarted")
                | (Some("Parsing"), "ReferenceFileParsingCompleted" | "ReferenceFileFaulted" | "StartParsingFaulted")
        )
    };
    let ignored = |state: Option<&str>, event: &str| {
        matches!(
            (state, event),
            (Some("Completed" | "Error"), _) | (Some("Uploaded" | "Parsing"), "SearchUploadSaved" | "UploadTimeout")
        )
    };
    let definition = definition();
    for state in STATES {
        for event in EVENTS {
            match definition.cell(state, event) {
                Some(Cell::Handled(_)) => assert!(handled(state, event), "{event} in {state:?} is handled"),
                Some(Cell::Ignored) => assert!(ignored(state, event), "{event} in {state:?} is ignored"),
                Some(Cell::Unexpected) => {
                    assert!(!handled(state, event) && !ignored(state, event), "{event} in {state:?} is unexpected");
                }
                None => panic!("nothing is said of {event} in {state:?}"),
            }
        }
    }
    assert_eq!(definition.retention(), Duration::from_secs(7 * 24 * 3600));
    assert_eq!(definition.commands().into_iter().collect::<Vec<_>>(), ["StartParsingReferenceFile"]);
}

#[test]
fn an_upload_that_starts_waits_an_hour_for_its_end() {
    let next = applied(None, "SearchUploadStarted", json!({ "searchId": "s", "projectId": "p" }));
    assert_eq!((next.state.as_str(), next.completes, next.commands), ("Uploading", false, vec![]));
    let due_at = NOW + Duration::from_secs(3600);
    assert_eq!(next.timers, [Timer { event: "UploadTimeout".into(), due_at, data: json!({}) }]);
    assert_eq!((&next.data["projectId"], &next.data["searchId"]), (&json!("p"), &json!("s")));
}

#[test]
fn a_search_that_is_saved_has_each_of_its_files_parsed() {
    for state in [None, Some("Uploading")] {
        let next = applied(state, "SearchUploadSaved", saved());
        assert_eq!((next.state.as_str(), next.completes), ("Parsing", false));
        assert_eq!(next.commands, [parse("a"), parse("b")]);
        assert_eq!((next.timers, next.missing), (vec![], vec![]));
        assert!(next.unscheduled.contains("UploadTimeout"), "from {state:?}");
    }
    let twice = json!({ "projectId": "p", "searchId": "s", "searchName": "n", "referenceFiles": ["a", "b", "a"] });
    assert_eq!(
        applied(None, "SearchUploadSaved", twice).commands,
        [parse("a"), parse("b")],
        "a file that is named twice"
    );
}

#[test]
fn what_a_saved_search_lacks_is_fatal() {
    for state in [None, Some("Uploading")] {
        for field in ["projectId", "searchId", "searchName", "referenceFiles"] {
            let (mut without, mut empty) = (saved(), saved());
            without.as_object_mut().expect("a map").remove(field);
            empty[field] = if field == "referenceFiles" { json!([]) } else { json!("") };
            for data in [without, empty] {
                // An upload that has started already knows its search.
                if state.is_some() && field == "searchId" {
                    continue;
                }
                let next = applied(state, "SearchUploadSaved", data);
                assert_eq!((next.state.as_str(), next.completes), ("Error", true), "without {field}");
                assert_eq!((next.missing, next.commands), (vec![field.to_owned()], vec![]));
                assert_eq!(next.unscheduled.contains("UploadTimeout"), state.is_some(), "it is not awaited any more");
            }
        }
    }
}

#[test]
fn an_upload_that_takes_too_long_is_an_error() {
    let next = applied(Some("Uploading"), "UploadTimeout", json!({}));
    assert_eq!((next.state.as_str(), next.completes), ("Error", true));
}

#[test]
fn a_late_start_fills_what_is_missing_and_changes_no_state() {
    for state in ["Uploading", "Uploaded", "Parsing"] {
        let data = json!({ "projectId": "other", "searchId": "s", "searchName": "other" });
        let next = applied(Some(state), "SearchUploadStarted", data);
        assert_eq!((next.state.as_str(), next.completes), (state, false));
        assert_eq!((next.commands, next.timers), (vec![], vec![]), "nothing begins anew");
        let is_filled = state == "Uploading";
        assert_eq!(next.data["projectId"], if is_filled { json!("other") } else { json!("p") });
        let missing: &[&str] = if is_filled { &["referenceFiles"] } else { &[] };
        assert_eq!(next.missing, missing, "a warning, and no error");
    }
}

#[test]
fn a_parsed_file_counts_once_and_the_last_one_completes_the_search() {
    let definition = definition();
    let parsed = |instance: &Instance, file: &str| {
        let event = Event::new("ReferenceFileParsingCompleted", json!({ "searchId": "s", "fileId": file }));
        match definition.step(Some(instance), &event, NOW) {
            Step::Apply(next) => *next,
            other => panic!("{other:?}"),
        }
    };
    let after = |next: &Next| Instance { state: next.state.clone(), data: next.data.clone(), ..instance("Parsing") };
    let first = parsed(&instance("Parsing"), "a");
    assert_eq!((first.state.as_str(), &first.data["waiting"]), ("Parsing", &json!(["b"])));
    let again = parsed(&after(&first), "a");
    assert_eq!((again.state.as_str(), &again.data["waiting"]), ("Parsing", &json!(["b"])));
    let foreign = parsed(&after(&again), "another search's");
    assert_eq!((foreign.state.as_str(), &foreign.data["waiting"]), ("Parsing", &json!(["b"])));
    let last = parsed(&after(&foreign), "b");
    assert_eq!((last.state.as_str(), last.completes), ("Completed", true));
}

#[test]
fn a_fault_while_parsing_is_an_error() {
    for event in ["ReferenceFileFaulted", "StartParsingFaulted"] {
        let next = applied(Some("Parsing"), event, json!({ "searchId": "s", "fileId": "a" }));
        assert_eq!((next.state.as_str(), next.completes, next.commands), ("Error", true, vec![]));
    }
}

#[test]
fn what_comes_too_late_is_ignored() {
    for state in ["Uploaded", "Parsing"] {
        for event in ["SearchUploadSaved", "UploadTimeout"] {
            assert_eq!(step(Some(state), event, saved()), Step::Ignore, "{event} in {state}");
        }
    }
    for state in ["Completed", "Error"] {
        for event in EVENTS {
            // Whatever data the event brings.
            for data in [saved(), json!({}), json!(null), json!({ "referenceFiles": 7 })] {
                assert_eq!(step(Some(state), event, data), Step::Ignore, "{event} in {state}");
            }
        }
    }
}

#[test]
fn what_is_not_accepted_says_so() {
    let parsing = ["ReferenceFileParsingCompleted", "ReferenceFileFaulted", "StartParsingFaulted"];
    let of = |states: &[Option<&'static str>], events: &[&'static str]| {
        states.iter().flat_map(|state| events.iter().map(|event| (*state, *event))).collect::<Vec<_>>()
    };
    let unexpected =
        [of(&[None, Some("Uploading"), Some("Uploaded")], &parsing), of(&[None], &["UploadTimeout"])].concat();
    for (state, event) in unexpected {
        let reason = format!("event {event} is not accepted in state {}", state.unwrap_or("none"));
        assert_eq!(step(state, event, saved()), Step::Refuse(reason));
    }
}

#[test]
fn wrong_types_are_refused_by_name() {
    let refused = |state: Option<&str>, event: &str, data: Value| match step(state, event, data) {
        Step::Refuse(reason) => reason,
        other => panic!("{other:?}"),
    };
    let files = json!({ "projectId": "p", "searchId": "s", "searchName": "n", "referenceFiles": "a,b" });
    assert_eq!(
        refused(None, "SearchUploadSaved", files),
        "event SearchUploadSaved in state none: `referenceFiles` is a list; this is a text"
    );
    assert_eq!(
        refused(None, "SearchUploadStarted", json!({ "projectId": 7, "searchId": "s" })),
        "event SearchUploadStarted in state none: `projectId` is a string; this is a number"
    );
    assert_eq!(
        refused(Some("Parsing"), "ReferenceFileParsingCompleted", json!({ "searchId": "s" })),
        "event ReferenceFileParsingCompleted in state Parsing: \
         `saga.waiting.filter(file, file != event.data.fileId)`: there is no `fileId`"
    );
}

#[test]
fn the_correlation_id_is_the_searchs() {
    let of = |event: Event| definition().correlation_id(&event);
    assert_eq!(of(Event::new("SearchUploadSaved", saved())), Ok("s".into()));
    assert_eq!(of(Event::new("SearchUploadSaved", json!({ "searchId": 17 }))), Ok("17".into()));
    let said = Event { correlation_id: Some("said".into()), ..Event::new("SearchUploadSaved", saved()) };
    assert_eq!(of(said), Ok("said".into()));
    for (data, why) in [
        (json!({}), "no correlation id: `event.data.searchId`: there is no `searchId`"),
        (json!({ "searchId": "" }), "the correlation id is empty"),
        (json!({ "searchId": ["s"] }), "the correlation id is a text or a whole number; this is a list"),
        (json!({ "searchId": 1.5 }), "the correlation id is a text or a whole number; this is a number"),
        (json!({ "searchId": "a\nb" }), "control characters are not allowed in a correlation id"),
        (json!({ "searchId": "x".repeat(513) }), "a correlation id is at most 512 bytes; this one has 513"),
    ] {
        assert_eq!(of(Event::new("SearchUploadSaved", data)), Err(why.into()));
    }
}

#[test]
fn a_search_of_as_many_files_as_an_event_may_send_commands_is_within_the_steps_of_one_event() {
    let files: Vec<String> = (0..50_000).map(|i| format!("0193f1a2-7c4d-7e10-9b3a-{i:012}")).collect();
    let data = json!({ "searchId": "s", "projectId": "p", "searchName": "n", "referenceFiles": files });
    let steps = oncegate_saga::Steps::default();
    let step = definition().step_within(None, &Event::new("SearchUploadSaved", data), NOW, &steps);
    let Step::Apply(next) = step else { panic!("{} steps", steps.taken()) };
    assert_eq!(next.commands.len(), 50_000);
}
