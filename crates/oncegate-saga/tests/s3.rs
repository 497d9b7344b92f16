//! Notifications of S3, as AWS writes them.

use oncegate_core::Time;
use oncegate_saga::{Definition, Draft, Event, Notification};
use serde_json::{Value, json};

const NOW: Time = Time::from_micros(1_790_000_000_000_000);

fn search_import() -> Definition {
    let text = include_str!("../../../sagas/search-import.toml");
    Draft::read("search-import.toml", text).and_then(Draft::check).expect("what ships is right")
}

fn record(name: &str, key: &str, version: Option<&str>, sequencer: &str) -> Value {
    let mut record = json!({
        "eventVersion": "2.1", "eventSource": "aws:s3", "awsRegion": "eu-west-1",
        "eventTime": "2026-11-15T09:30:00.000Z", "eventName": name,
        "userIdentity": { "principalId": "AWS:AROAEXAMPLE:uploader" },
        "requestParameters": { "sourceIPAddress": "203.0.113.7" },
        "responseElements": { "x-amz-request-id": "C3D13FE58DE4C810", "x-amz-id-2": "FMyUVURIY8" },
        "s3": {
            "s3SchemaVersion": "1.0", "configurationId": "uploads",
            "bucket": { "name": "uploads", "ownerIdentity": { "principalId": "A3NL1KOZZKExample" }, "arn": "arn:aws:s3:::uploads" },
            "object": { "key": key, "size": 1024, "eTag": "d41d8cd98f00b204e9800998ecf8427e", "sequencer": sequencer },
        },
    });
    if let Some(version) = version {
        record["s3"]["object"]["versionId"] = json!(version);
    }
    record
}

fn events(document: &Value) -> Vec<Option<Event>> {
    let notification = Notification::read(&serde_json::to_vec(document).expect("JSON")).expect("a notification");
    notification.records.iter().map(|record| search_import().event_of(record, NOW).expect("an event")).collect()
}

#[test]
fn keys_are_decoded_and_each_record_is_an_event_of_its_own() {
    let document = json!({ "Records": [
        record("ObjectCreated:Put", "searches/p+1/s%2B7/caf%C3%A9+menu.pdf", None, "0055AED6DCD90281E5"),
        record("ObjectCreated:CompleteMultipartUpload", "searches/p/s/a.pdf", Some("096fKKXTRTtl3on89fVO.nfljtsv6qko"), "0055AED6DCD90281E6"),
        record("ObjectRemoved:Delete", "searches/p/s/a.pdf", None, "0055AED6DCD90281E7"),
        record("ObjectCreated:Put", "elsewhere/a.pdf", None, "0055AED6DCD90281E8"),
    ]});
    let events = events(&document);
    let first = events[0].as_ref().expect("it is one");
    assert_eq!(first.event_type, "SearchUploadStarted");
    assert_eq!(first.data, json!({ "projectId": "p 1", "searchId": "s+7" }));
    assert_eq!(first.id.as_deref(), Some("s3:uploads:0055AED6DCD90281E5::searches/p 1/s+7/café menu.pdf"));
    assert_eq!(first.time.as_deref(), Some("2026-11-15T09:30:00.000Z"));
    let second = events[1].as_ref().expect("it is one");
    assert_eq!(
        second.id.as_deref(),
        Some("s3:uploads:0055AED6DCD90281E6:096fKKXTRTtl3on89fVO.nfljtsv6qko:searches/p/s/a.pdf")
    );
    assert_eq!(events[2..], [None, None], "the saga has no use for them");
}

#[test]
fn the_same_notification_has_the_same_ids_and_another_version_has_another() {
    let id = |key: &str, version: Option<&str>, sequencer: &str| {
        let document = json!({ "Records": [record("ObjectCreated:Put", key, version, sequencer)] });
        events(&document)[0].as_ref().expect("it is one").id.clone()
    };
    let first = id("searches/p/s/a", Some("v1"), "1");
    assert_eq!(first, id("searches/p/s/a", Some("v1"), "1"));
    let others = [
        id("searches/p/s/b", Some("v1"), "1"),
        id("searches/p/s/a", Some("v2"), "1"),
        id("searches/p/s/a", Some("v1"), "2"),
        id("searches/p/s/a", None, "1"),
    ];
    assert!(others.iter().all(|other| *other != first), "{others:?}");
}

#[test]
fn the_test_event_is_taken_and_means_nothing() {
    let document = json!({
        "Service": "Amazon S3", "Event": "s3:TestEvent", "Time": "2026-11-15T09:30:00.000Z", "Bucket": "uploads",
        "RequestId": "5582815E1AEA5ADF", "HostId": "8cLeGAmw098X5cv4Zkwcmo8vvZa3eH3eKxsPzbB9wrR",
    });
    assert!(events(&document).is_empty());
}

#[test]
fn what_is_no_notification_is_refused_by_name() {
    let refused = |document: Value| {
        Notification::read(&serde_json::to_vec(&document).expect("JSON")).expect_err("refused").to_string()
    };
    assert_eq!(refused(json!({})), "this is no notification of S3: it has no `Records`");
    assert_eq!(refused(json!({ "Event": "s3:Other" })), "this is no notification of S3: it has no `Records`");
    let mut other = record("ObjectCreated:Put", "a", None, "1");
    other["eventSource"] = json!("aws:sqs");
    assert_eq!(
        refused(json!({ "Records": [other] })),
        "this is no notification of S3: Records[0].eventSource is \"aws:sqs\", not \"aws:s3\""
    );
    let bad = record("ObjectCreated:Put", "%FF", None, "1");
    assert_eq!(
        refused(json!({ "Records": [bad] })),
        "this is no notification of S3: Records[0].s3.object.key is no UTF-8"
    );
    assert!(refused(json!({ "Records": [{ "eventName": "x" }] })).contains("missing field `s3`"));
    assert!(Notification::read(b"not JSON").is_err());
}
