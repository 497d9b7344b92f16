//! A definition means the same in TOML and in Rust.

mod shipped;

use std::time::Duration;

use oncegate_core::Time;
use oncegate_saga::{Definition, Draft, Effects, Event, FieldKind, Instance, Step};
use proptest::prelude::*;
use serde_json::{Value, json};

const FIELDS: [&str; 4] = ["projectId", "searchId", "searchName", "referenceFiles"];

/// The same saga, in Rust.
fn built() -> Definition {
    let effects = Effects::default;
    Draft::new("search-import")
        .doc("a search is uploaded, and its reference files are parsed")
        .correlation("event.data.searchId")
        .retention("7d")
        .events(shipped::EVENTS)
        .states(["Uploading", "Uploaded", "Parsing", "Completed", "Error"])
        .terminal(["Completed", "Error"])
        .unreached(["Uploaded"])
        .data("projectId", FieldKind::String)
        .data("searchId", FieldKind::String)
        .data("searchName", FieldKind::String)
        .data("referenceFiles", FieldKind::List)
        .data("waiting", FieldKind::List)
        .on(
            "none",
            "SearchUploadStarted",
            effects().take(FIELDS).schedule("UploadTimeout", Duration::from_secs(3600)).to("Uploading"),
        )
        .on(
            "none, Uploading",
            "SearchUploadSaved",
            effects()
                .take(FIELDS)
                .set("waiting", "saga.referenceFiles.unique()")
                .require(FIELDS, "Error")
                .unschedule("UploadTimeout")
                .send_each(
                    "StartParsingReferenceFile",
                    "saga.waiting",
                    &[("projectId", "saga.projectId"), ("searchId", "saga.searchId"), ("fileId", "each")],
                )
                .to("Parsing"),
        )
        .on("Uploading", "UploadTimeout", effects().to("Error"))
        .on("Uploading, Uploaded, Parsing", "SearchUploadStarted", effects().fill(FIELDS).expect(FIELDS))
        .on(
            "Parsing",
            "ReferenceFileParsingCompleted",
            effects()
                .set("waiting", "saga.waiting.filter(file, file != event.data.fileId)")
                .branch(effects().when("saga.waiting.size() == 0").to("Completed")),
        )
        .on("Parsing", "ReferenceFileFaulted, StartParsingFaulted", effects().to("Error"))
        .ignore("Uploaded, Parsing", "SearchUploadSaved, UploadTimeout")
        .ignore("Completed, Error", "*")
        .unexpected(
            "none, Uploading, Uploaded",
            "ReferenceFileParsingCompleted, ReferenceFileFaulted, StartParsingFaulted",
        )
        .unexpected("none", "UploadTimeout")
        .s3(
            Some("s3.eventName.startsWith('ObjectCreated:') && s3.key.matches('^searches/[^/]+/[^/]+/.+')"),
            "SearchUploadStarted",
            &[("projectId", "s3.key.split('/')[1]"), ("searchId", "s3.key.split('/')[2]")],
        )
        .check()
        .expect("it is right")
}

/// Data that an event may bring: right, wrong, and missing.
fn data() -> impl Strategy<Value = Value> {
    let field = || prop_oneof![Just(json!("a")), Just(json!("")), Just(json!(null)), Just(json!(7))];
    let files = prop_oneof![
        proptest::collection::vec(prop_oneof![Just("a"), Just("b")], 0..3).prop_map(|files| json!(files)),
        Just(json!("a")),
        Just(json!(null)),
    ];
    (field(), field(), field(), files).prop_map(|(project, name, file, files)| {
        json!({ "searchId": "s", "projectId": project, "searchName": name, "fileId": file, "referenceFiles": files })
    })
}

proptest! {
    #[test]
    fn the_same_events_do_the_same(events in proptest::collection::vec((0..6_usize, data()), 1..12)) {
        let (written, built) = (shipped::definition(), built());
        let mut instance: Option<Instance> = None;
        let mut now = Time::from_micros(1_790_000_000_000_000);
        for (number, data) in events {
            now = now + Duration::from_secs(60);
            let event = Event::new(written.events()[number].clone(), data);
            let step = written.step(instance.as_ref(), &event, now);
            prop_assert_eq!(&step, &built.step(instance.as_ref(), &event, now));
            if let Step::Apply(next) = step {
                // Whatever arrives: a completed instance stays completed, and its timers are gone.
                let before = instance.as_ref().map(|instance| instance.state.clone());
                prop_assert!(!before.is_some_and(|state| written.is_terminal(&state)));
                prop_assert_eq!(next.completes, written.is_terminal(&next.state));
                prop_assert!(!next.completes || next.timers.is_empty());
                let completed_us = next.completes.then(|| now.micros());
                instance = Some(Instance { state: next.state, data: next.data, timers: Default::default(), completed_us });
            }
        }
    }
}

#[test]
fn both_are_drawn_alike() {
    assert_eq!(shipped::definition().mermaid(), built().mermaid());
    assert_eq!(shipped::definition().svg(&Default::default()), built().svg(&Default::default()));
}
