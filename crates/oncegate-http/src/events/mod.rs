//! Events as they arrive, by HTTP or from a queue: in our own format, or as CloudEvents 1.0 (structured, batched, binary).
//!
//! A body becomes one [`Event`] or several. An invalid event is refused with the name of the wrong field. If one event of a
//! batch is invalid, none of the batch is applied.

mod cloud;

use oncegate::sagas::Event;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

pub use cloud::read_binary;

use crate::json;
use crate::problem::{Kind, Problem};

/// The most events in one request or one message.
pub const EVENTS_MAX: usize = 500;
/// The most bytes of an event's type; the second limit holds for its id and for its source.
const TYPE_BYTES_MAX: usize = 255;
const ID_BYTES_MAX: usize = 4096;

/// The prefix of sources that this server uses for its own events.
pub const OURS: &str = "oncegate:";

/// The format that the media type of a body names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    Json,
    /// Structured mode.
    CloudEvent,
    CloudEvents,
}

impl Media {
    pub fn of(content_type: &str) -> Option<Media> {
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        let known = [
            ("application/json", Media::Json),
            ("application/cloudevents+json", Media::CloudEvent),
            ("application/cloudevents-batch+json", Media::CloudEvents),
        ];
        known.into_iter().find(|(name, _)| media_type.eq_ignore_ascii_case(name)).map(|(_, media)| media)
    }
}

/// The body: one event, or a list. A list is answered with a list.
#[derive(Debug)]
pub struct Received {
    pub events: Vec<Event>,
    pub is_list: bool,
}

/// An event.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an event with `type` and `data`")]
pub struct EventBody {
    /// What happened: `SearchUploadSaved`.
    #[serde(rename = "type")]
    event_type: String,
    /// The same on every delivery of this event.
    id: Option<String>,
    /// Which instance it is about; if it is left out, the saga knows where that is in the data.
    correlation_id: Option<String>,
    #[serde(default)]
    #[schema(value_type = Object)]
    data: Value,
}

fn bad(message: impl Into<String>) -> Problem {
    Kind::InvalidRequest.because(message.into())
}

/// Reads a body of this media type.
pub fn read(media: Media, body: &[u8]) -> Result<Received, Problem> {
    let is_list = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    let events: Vec<Event> = match (media, is_list) {
        (Media::Json, false) => vec![json::parse::<EventBody>(body)?.into()],
        (Media::Json, true) => json::parse::<Vec<EventBody>>(body)?.into_iter().map(Into::into).collect(),
        (Media::CloudEvent, false) => vec![cloud::read(json::parse(body)?)?],
        (Media::CloudEvents, true) => {
            let read = |(i, event)| cloud::read(event).map_err(|problem| bad(format!("[{i}].{}", problem.detail)));
            json::parse::<Vec<Value>>(body)?.into_iter().enumerate().map(read).collect::<Result<_, _>>()?
        }
        (Media::CloudEvent, true) => return Err(bad("a list of events is application/cloudevents-batch+json")),
        (Media::CloudEvents, false) => return Err(bad("application/cloudevents-batch+json is a list of events")),
    };
    if events.len() > EVENTS_MAX {
        return Err(bad(format!("at most {EVENTS_MAX} events at once; these are {}", events.len())));
    }
    for (i, event) in events.iter().enumerate() {
        let at = if is_list { format!("[{i}].") } else { String::new() };
        check(event).map_err(|why| bad(format!("{at}{why}")))?;
    }
    Ok(Received { events, is_list })
}

impl From<EventBody> for Event {
    fn from(body: EventBody) -> Self {
        let EventBody { event_type, id, correlation_id, data } = body;
        Event { id, correlation_id, ..Event::new(event_type, data) }
    }
}

/// Whether a transport's own id can be the id of an event that has none.
pub fn is_good_id(id: &str) -> bool {
    named("id", Some(id), ID_BYTES_MAX).is_ok()
}

fn named(field: &str, text: Option<&str>, max: usize) -> Result<(), String> {
    match text {
        None => Ok(()),
        Some("") => Err(format!("{field}: it is empty")),
        Some(text) if text.len() > max => Err(format!("{field}: at most {max} bytes; this one has {}", text.len())),
        Some(text) if text.chars().any(char::is_control) => Err(format!("{field}: control characters are not allowed")),
        Some(_) => Ok(()),
    }
}

/// Refuses events that a store could not keep, or whose ids could not be told apart.
fn check(event: &Event) -> Result<(), String> {
    named("type", Some(&event.event_type), TYPE_BYTES_MAX)?;
    named("id", event.id.as_deref(), ID_BYTES_MAX)?;
    named("source", event.source.as_deref(), ID_BYTES_MAX)?;
    named("subject", event.subject.as_deref(), ID_BYTES_MAX)?;
    match &event.source {
        Some(source) if source.starts_with(OURS) => Err(format!("source: {OURS}… is the server's own")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(media: Media, body: &str) -> String {
        read(media, body.as_bytes()).expect_err("it is refused").detail.into_owned()
    }

    #[test]
    fn one_event_or_a_list_of_them() {
        let one = read(Media::Json, br#"{"type":"A","id":"1","data":{"x":1}}"#).expect("an event");
        assert!(!one.is_list);
        assert_eq!(one.events, [Event::new("A", json!({ "x": 1 })).id("1")]);
        let two = read(Media::Json, br#" [{"type":"A"},{"type":"B","correlationId":"c"}]"#).expect("two events");
        assert!(two.is_list && two.events[1].correlation_id.as_deref() == Some("c"));
        assert!(read(Media::Json, b"[]").expect("no event").events.is_empty());
    }

    #[test]
    fn what_is_no_event_is_refused_by_name() {
        assert!(refused(Media::Json, r#"{"data":{}}"#).contains("missing field `type`"));
        assert!(refused(Media::Json, r#"{"type":"A","idd":"1"}"#).contains("unknown field `idd`"));
        assert!(
            refused(Media::Json, r#"[{"type":"A"},{"type":7}]"#).starts_with("[1].type: invalid type: integer `7`")
        );
        assert_eq!(refused(Media::Json, r#"[{"type":"A"},{"type":""}]"#), "[1].type: it is empty");
        assert_eq!(refused(Media::Json, r#"{"type":"A","id":"\u0000"}"#), "id: control characters are not allowed");
        let many = format!("[{}]", vec![r#"{"type":"A"}"#; 501].join(","));
        assert_eq!(refused(Media::Json, &many), "at most 500 events at once; these are 501");
        let deep = format!(r#"{{"type":"A","data":{}{}}}"#, "[".repeat(100), "]".repeat(100));
        assert_eq!(refused(Media::Json, &deep), "the JSON is nested over 64 deep");
    }

    #[test]
    fn media_types_are_known_whatever_their_parameters() {
        assert_eq!(Media::of("application/json; charset=utf-8"), Some(Media::Json));
        assert_eq!(Media::of("Application/CloudEvents+JSON"), Some(Media::CloudEvent));
        assert_eq!(Media::of("text/json"), None);
    }
}
