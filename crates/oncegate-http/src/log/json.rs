//! Events as JSON lines.
//!
//! The JSON is flat: `timestamp` and `level` first, then the event's own fields with the names of the log call. Every decision makes a
//! line, so
//! a line is written in one pass into a reused buffer. The general formatter of `tracing-subscriber` takes several times as long.

use std::cell::RefCell;
use std::fmt::{Debug, Write};
use std::ops::Range;
use std::sync::Arc;

use oncegate::Time;
use oncegate::store::{Clock, SystemClock};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::sink::Sink;
use crate::decisions::Decisions;

/// Writes lines to the log, and passes decisions on.
pub struct JsonLines {
    /// None, where the log has another form, for people.
    pub log: Option<Arc<Sink>>,
    pub level: LevelFilter,
    pub decisions: Arc<Decisions>,
}

thread_local! {
    static LINE: RefCell<Line> = RefCell::default();
}

impl<S: Subscriber> Layer<S> for JsonLines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        // An event that is logged while another one is formatted finds the buffer in use, and is dropped.
        LINE.with(|line| {
            if let Ok(mut line) = line.try_borrow_mut() {
                let now = SystemClock.now();
                line.begin(*event.metadata().level(), now);
                event.record(&mut *line);
                line.text.push_str("}\n");
                if let Some(log) = self.log.as_ref().filter(|_| *event.metadata().level() <= self.level) {
                    log.append(line.text.as_bytes());
                }
                if let (Some(event), Some(workspace)) = (line.seen(Seen::Event), line.seen(Seen::Workspace)) {
                    self.decisions.hear(event, workspace, line.place(Seen::Guard), &line.text, now);
                }
            }
        });
    }
}

#[derive(Default)]
struct Line {
    text: String,
    /// A buffer for values that can only be read through their formatter.
    value: String,
    /// A second, and its formatted prefix.
    second: (i64, String),
    /// The ranges in the text of the fields in `Seen`.
    seen: [Option<Range<usize>>; 3],
}

/// The fields that identify a decision.
#[derive(Clone, Copy)]
enum Seen {
    Event,
    Workspace,
    Guard,
}

impl Seen {
    fn of(field: &str) -> Option<Seen> {
        match field {
            "event" => Some(Seen::Event),
            "workspace" => Some(Seen::Workspace),
            "guard" => Some(Seen::Guard),
            _ => None,
        }
    }
}

impl Line {
    fn begin(&mut self, level: Level, now: Time) {
        let level = match level {
            Level::ERROR => "error",
            Level::WARN => "warn",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        self.text.clear();
        self.seen = Default::default();
        self.text.push_str("{\"timestamp\":\"");
        self.timestamp(now);
        self.text.push_str("\",\"level\":\"");
        self.text.push_str(level);
        self.text.push('"');
    }

    /// A busy server writes thousands of lines within a second, and only the milliseconds of their times differ. So the rest is cached.
    fn timestamp(&mut self, now: Time) {
        let (second, micros) = (now.micros().div_euclid(1_000_000), now.micros().rem_euclid(1_000_000));
        if self.second.0 != second || self.second.1.is_empty() {
            let printed = Time::from_micros(second * 1_000_000).to_string();
            self.second = (second, printed.strip_suffix("000Z").unwrap_or(&printed).to_owned());
        }
        self.text.push_str(&self.second.1);
        self.push(format_args!("{:03}Z", micros / 1_000));
    }

    /// Text that needs no escaping.
    fn push(&mut self, text: std::fmt::Arguments<'_>) {
        self.text.write_fmt(text).expect("a String takes anything");
    }

    fn seen(&self, what: Seen) -> Option<&str> {
        self.place(what).map(|place| &self.text[place])
    }

    fn place(&self, what: Seen) -> Option<Range<usize>> {
        self.seen[what as usize].clone()
    }

    fn name(&mut self, field: &Field) {
        // The message of an event that has no name of its own.
        let name = if field.name() == "message" { "detail" } else { field.name() };
        for piece in [",\"", name, "\":"] {
            self.text.push_str(piece);
        }
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut printed = std::mem::take(&mut self.value);
        printed.clear();
        write!(printed, "{value:?}").expect("a String takes anything");
        self.record_str(field, &printed);
        self.value = printed;
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.name(field);
        // The scan always runs to the end, so that the compiler can check several bytes at a time.
        let is_odd = |byte: u8| (byte < b' ') | (byte == b'"') | (byte == b'\\');
        if !value.bytes().fold(false, |odd, byte| odd | is_odd(byte)) {
            self.text.push('"');
            if let Some(what) = Seen::of(field.name()) {
                self.seen[what as usize] = Some(self.text.len()..self.text.len() + value.len());
            }
            self.text.push_str(value);
            self.text.push('"');
        } else {
            self.text.push_str(&serde_json::to_string(value).expect("text is JSON"));
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.name(field);
        self.push(format_args!("{value}"));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.name(field);
        self.push(format_args!("{value}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.name(field);
        self.push(format_args!("{value}"));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.name(field);
        if value.is_finite() { self.push(format_args!("{value}")) } else { self.text.push_str("null") }
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn an_event_is_one_flat_line_of_json_whatever_its_fields_hold() {
        let sink = Arc::new(Sink::default());
        let decisions = Arc::new(Decisions::default());
        let layer = JsonLines { log: Some(sink.clone()), level: LevelFilter::INFO, decisions: decisions.clone() };
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            let nothing: Option<&str> = None;
            tracing::info!(event = "a.b", text = "quote \" and\nnewline \\ ü", number = -7, share = 0.5, yes = true, nothing, shown = %"x\"y");
            tracing::warn!("plain {}", 1);
            tracing::debug!(event = "claim.won", workspace = %"w", guard = "g", below = "the log's level");
            tracing::info!(event = "server.listening", workspace = "w", no = "decision");
        });
        sink.close();
        let mut written = vec![];
        sink.write_until_closed(&mut written);
        let lines: Vec<serde_json::Value> =
            String::from_utf8(written).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        let heard = decisions.since("w", Default::default()).told;
        assert_eq!(heard.len(), 1, "a decision is heard whatever the log's level is, and nothing else");
        assert_eq!(heard[0].read()["guard"], "g");
        assert_eq!(lines[0]["level"], "info");
        assert_eq!(lines[0]["event"], "a.b");
        assert_eq!(lines[0]["text"], "quote \" and\nnewline \\ ü");
        assert_eq!(
            (&lines[0]["number"], &lines[0]["share"], &lines[0]["yes"]),
            (&(-7).into(), &0.5.into(), &true.into())
        );
        assert_eq!((lines[0].get("nothing"), &lines[0]["shown"]), (None, &"x\"y".into()));
        assert_eq!(lines[1]["detail"], "plain 1");
    }
}
