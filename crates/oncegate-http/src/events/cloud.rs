//! CloudEvents 1.0. The source and the id together identify an event.

use axum::http::HeaderMap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use oncegate::Time;
use oncegate::sagas::Event;
use serde_json::{Map, Value};

use super::{bad, check};
use crate::json::{self, Shape};
use crate::problem::Problem;

/// The attribute with the version. As a header, it marks the binary mode.
const VERSION: &str = "specversion";
/// An extension by which a sender may name the instance that the event is about.
const CORRELATION: &str = "correlationid";

/// Structured mode: everything is in the body. Unknown extensions are allowed.
pub fn read(event: Value) -> Result<Event, Problem> {
    let Value::Object(mut fields) = event else { return Err(bad("a CloudEvent is an object")) };
    let data = match (fields.remove("data"), fields.remove("data_base64")) {
        (Some(_), Some(_)) => return Err(bad("data, data_base64: one of them, not both")),
        (Some(data), None) => data,
        (None, Some(Value::String(text))) => decoded(&text)?,
        (None, Some(_)) => return Err(bad("data_base64: not a text")),
        (None, None) => Value::Null,
    };
    made(|name| text(&fields, name), data)
}

/// Binary mode: the headers are the attributes, and the body is the data. `None` if the headers are not those of a
/// CloudEvent.
pub fn read_binary(headers: &HeaderMap, body: &[u8]) -> Option<Result<Event, Problem>> {
    headers.get(format!("ce-{VERSION}"))?;
    let attribute = |name: &str| {
        let Some(value) = headers.get(format!("ce-{name}")) else { return Ok(None) };
        let text = percent_encoding::percent_decode(value.as_bytes()).decode_utf8();
        text.map(|text| Some(text.into_owned())).map_err(|_| bad(format!("ce-{name}: not UTF-8")))
    };
    let data = if body.is_empty() { Ok(Value::Null) } else { json::parse(body) };
    Some(data.and_then(|data| made(attribute, data)).and_then(|event| match check(&event) {
        Ok(()) => Ok(event),
        Err(why) => Err(bad(why)),
    }))
}

fn made(attribute: impl Fn(&str) -> Result<Option<String>, Problem>, data: Value) -> Result<Event, Problem> {
    let required = |name: &str| attribute(name)?.ok_or_else(|| bad(format!("{name}: a CloudEvent has one")));
    match required(VERSION)?.as_str() {
        "1.0" => {}
        other => return Err(bad(format!("{VERSION}: 1.0, not {other:?}"))),
    }
    let time = attribute("time")?;
    if let Some(wrong) = time.as_ref().filter(|text| Time::parse(text).is_none()) {
        return Err(bad(format!("time: {wrong:?} is not a time; one is \"2026-11-15T09:30:00Z\"")));
    }
    Ok(Event {
        event_type: required("type")?,
        id: Some(required("id")?),
        source: Some(required("source")?),
        correlation_id: attribute(CORRELATION)?,
        subject: attribute("subject")?,
        time,
        data,
    })
}

fn text(fields: &Map<String, Value>, name: &str) -> Result<Option<String>, Problem> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(bad(format!("{name}: not a text"))),
    }
}

/// The data as JSON if it is valid JSON, else as the text that arrived.
fn decoded(text: &str) -> Result<Value, Problem> {
    let bytes = STANDARD.decode(text).map_err(|_| bad("data_base64: not base64"))?;
    Shape::of(&bytes).check().map_err(|problem| problem.of("data_base64"))?;
    Ok(serde_json::from_slice(&bytes).unwrap_or_else(|_| Value::String(text.to_owned())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event() -> Value {
        json!({
            "specversion": "1.0", "id": "1", "source": "/uploads", "type": "SearchUploadSaved", "subject": "s",
            "time": "2026-11-15T09:30:00Z", "datacontenttype": "application/json", "traceparent": "00-…",
            "correlationid": "s-17", "data": { "searchId": "s-17" },
        })
    }

    #[test]
    fn structured_and_binary_mode_are_the_same_event() {
        let structured = read(event()).expect("an event");
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("ce-specversion", "1.0"),
            ("ce-id", "1"),
            ("ce-source", "/uploads"),
            ("ce-type", "SearchUploadSaved"),
            ("ce-subject", "s"),
            ("ce-time", "2026-11-15T09:30:00Z"),
            ("ce-correlationid", "s%2D17"),
        ] {
            headers.insert(name, value.parse().expect("a header"));
        }
        let binary = read_binary(&headers, br#"{"searchId":"s-17"}"#).expect("binary").expect("an event");
        assert_eq!(binary, structured);
        assert_eq!(
            (structured.source.as_deref(), structured.correlation_id.as_deref()),
            (Some("/uploads"), Some("s-17"))
        );
        assert!(read_binary(&HeaderMap::new(), b"{}").is_none());
    }

    #[test]
    fn data_may_come_as_base64() {
        let mut event = event();
        event.as_object_mut().expect("a map").remove("data");
        event["data_base64"] = json!(STANDARD.encode(r#"{"searchId":"s-17"}"#));
        assert_eq!(read(event.clone()).expect("an event").data, json!({ "searchId": "s-17" }));
        event["data_base64"] = json!("/w==");
        assert_eq!(read(event.clone()).expect("an event").data, json!("/w=="), "what is no JSON stays as it is");
        event["data_base64"] = json!(STANDARD.encode(format!("{}{}", "[".repeat(100), "]".repeat(100))));
        assert_eq!(read(event.clone()).expect_err("too deep").detail, "data_base64: the JSON is nested over 64 deep");
        event["data_base64"] = json!("%");
        assert_eq!(read(event).expect_err("no base64").detail, "data_base64: not base64");
    }

    #[test]
    fn what_every_cloud_event_has_is_asked_for_by_name() {
        for name in ["specversion", "id", "source", "type"] {
            let mut without = event();
            without.as_object_mut().expect("a map").remove(name);
            assert_eq!(read(without).expect_err("refused").detail, format!("{name}: a CloudEvent has one"));
            let mut wrong = event();
            wrong[name] = json!(7);
            assert_eq!(read(wrong).expect_err("refused").detail, format!("{name}: not a text"));
        }
        let mut newer = event();
        newer["specversion"] = json!("2.0");
        assert_eq!(read(newer).expect_err("refused").detail, "specversion: 1.0, not \"2.0\"");
        let mut dated = event();
        dated["time"] = json!("yesterday");
        assert!(read(dated).expect_err("refused").detail.starts_with("time: \"yesterday\" is not a time"));
    }
}
