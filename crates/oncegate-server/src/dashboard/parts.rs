//! What pages are made of. A page of a list, or of one thing, is said in these words, and drawn by one template.

use std::fmt::Display;

use oncegate::Time;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::decisions::words::span;

/// How something stands, at a glance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Good,
    Busy,
    Warn,
    Bad,
}

impl Tone {
    pub const fn class(self) -> &'static str {
        match self {
            Tone::Plain => "plain",
            Tone::Good => "good",
            Tone::Busy => "busy",
            Tone::Warn => "warn",
            Tone::Bad => "bad",
        }
    }

    /// Of a state by its name, whatever it is a state of.
    pub fn of(state: &str) -> Tone {
        match state {
            "done" | "sent" | "completed" | "retried" => Tone::Good,
            "in_flight" | "sending" | "running" | "queued" | "pending" | "scheduled" => Tone::Busy,
            "failed" | "lost" => Tone::Warn,
            "unknown" | "dead" | "missed" | "open" | "error" => Tone::Bad,
            _ => Tone::Plain,
        }
    }
}

/// One thing that is shown.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    pub text: String,
    pub href: Option<String>,
    pub tone: Option<Tone>,
    pub is_code: bool,
    /// Of a time: itself, where the text says how far off it is.
    pub at: Option<String>,
}

impl Cell {
    pub fn text(text: impl Display) -> Cell {
        Cell { text: text.to_string(), ..Cell::default() }
    }

    pub fn code(text: impl Display) -> Cell {
        Cell { is_code: true, ..Cell::text(text) }
    }

    pub fn state(name: &str) -> Cell {
        Cell { tone: Some(Tone::of(name)), ..Cell::text(name.replace('_', " ")) }
    }

    pub fn time(at: Time, now: Time) -> Cell {
        Cell { at: Some(at.to_string()), ..Cell::text(ago(at, now)) }
    }

    pub fn maybe(text: Option<impl Display>) -> Cell {
        text.map_or_else(Cell::default, Cell::text)
    }

    pub fn link(self, href: impl Into<String>) -> Cell {
        Cell { href: Some(href.into()), ..self }
    }
}

/// How far off a time is.
pub fn ago(at: Time, now: Time) -> String {
    match (at, now) {
        (Time::NEVER, _) => "never".into(),
        (at, now) if at > now => format!("in {}", span(at.since(now))),
        (at, now) => format!("{} ago", span(now.since(at))),
    }
}

/// The time of the day, with its milliseconds.
pub fn clock(at: Time) -> String {
    let printed = at.to_string();
    printed.split_once('T').map_or(printed.clone(), |(_, time)| time.trim_end_matches('Z').to_owned())
}

/// The beginning of an id, enough to know it again by.
pub fn short(id: &str) -> String {
    // Ids that grow with time differ at their ends.
    let dashed = id.contains('-');
    let chars: Vec<char> = id.chars().collect();
    match chars.len() {
        0..=12 => id.to_owned(),
        len if dashed => format!("…{}", chars[len - 8..].iter().collect::<String>()),
        _ => format!("{}…", chars[..8].iter().collect::<String>()),
    }
}

/// What is left as it is in a path or a query.
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// For a path or a query.
pub fn encoded(text: &str) -> String {
    utf8_percent_encode(text, KEPT).to_string()
}

/// A path with a query of those values that are there.
pub fn query<'a>(path: &str, values: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut href = path.to_owned();
    for (name, value) in values.into_iter().filter(|(_, value)| !value.is_empty()) {
        href.push(if href.contains('?') { '&' } else { '?' });
        href.push_str(&format!("{name}={}", encoded(value)));
    }
    href
}

#[derive(Clone, Debug)]
pub struct Table {
    pub title: String,
    pub head: Vec<&'static str>,
    pub rows: Vec<Vec<Cell>>,
    /// What is said where there are none.
    pub empty: &'static str,
}

pub struct Filter {
    pub name: &'static str,
    pub label: &'static str,
    pub value: String,
    /// What there is to choose from; nothing, where anything can be written.
    pub options: Vec<String>,
}

impl Filter {
    pub fn choice(name: &'static str, label: &'static str, value: &str, options: &[&'static str]) -> Filter {
        Filter { name, label, value: value.into(), options: options.iter().map(|&option| option.into()).collect() }
    }

    pub fn text(name: &'static str, label: &'static str, value: &str) -> Filter {
        Filter::choice(name, label, value, &[])
    }
}

/// A page of many.
pub struct List {
    pub path: String,
    pub lead: String,
    pub picture: Option<String>,
    pub filters: Vec<Filter>,
    pub table: Table,
    /// Where the next page begins.
    pub next: Option<String>,
}

impl List {
    pub fn is_filtered(&self) -> bool {
        self.filters.iter().any(|filter| !filter.value.is_empty())
    }

    /// The same, from the cursor on, if there are more.
    pub fn then(mut self, cursor: Option<String>) -> List {
        if cursor.is_some() {
            self.table.empty = "There are none among the newest. Older ones may be.";
        }
        let next = cursor.map(|cursor| {
            let filters = self.filters.iter().map(|filter| (filter.name, filter.value.as_str()));
            query(&self.path, filters.chain([("cursor", cursor.as_str())]))
        });
        List { next, ..self }
    }
}

/// What happened, by when it did.
pub fn in_order(mut moments: Vec<(i64, Happened)>) -> Vec<Happened> {
    moments.sort_by_key(|(at_us, _)| *at_us);
    moments.into_iter().map(|(_, moment)| moment).collect()
}

/// Something that a person can do, with a reason.
pub struct Button {
    pub name: &'static str,
    pub action: String,
    /// What it will do.
    pub explains: &'static str,
    /// It cannot be taken back.
    pub is_grave: bool,
    pub fields: Vec<(&'static str, String)>,
}

/// Something that happened.
pub struct Happened {
    pub at: String,
    pub clock: String,
    pub says: String,
    pub about: Option<String>,
    pub times: u32,
    pub tone: Tone,
}

impl Happened {
    pub fn new(at: Time, tone: Tone, says: impl Into<String>) -> Happened {
        let (at, clock) = (at.to_string(), at.to_string().replace('T', " ").trim_end_matches('Z').to_owned());
        Happened { at, clock, says: says.into(), about: None, times: 1, tone }
    }

    pub fn about(self, about: impl Into<String>) -> Happened {
        Happened { about: Some(about.into()), ..self }
    }
}

pub struct Section {
    pub title: &'static str,
    pub body: Body,
}

pub enum Body {
    Facts(Vec<(&'static str, Cell)>),
    Moments(Vec<Happened>),
    Text(String),
    Picture(String),
}

/// A page of one thing.
pub struct Detail {
    /// The list that it is in.
    pub above: (&'static str, String),
    pub state: Cell,
    pub says: String,
    /// What has just been done to it.
    pub did: Option<&'static str>,
    pub buttons: Vec<Button>,
    pub sections: Vec<Section>,
}

impl Detail {
    pub fn verbs(&self) -> String {
        self.buttons.iter().map(|button| button.name.to_lowercase()).collect::<Vec<_>>().join(" or ")
    }
}

/// Facts of which there is something to say.
pub fn facts(title: &'static str, facts: Vec<(&'static str, Cell)>) -> Section {
    let facts = facts.into_iter().filter(|(_, cell)| !cell.text.is_empty()).collect();
    Section { title, body: Body::Facts(facts) }
}

/// JSON, for people.
pub fn pretty(json: &str) -> String {
    match serde_json::from_str::<serde_json::Value>(json) {
        Ok(value) => format!("{value:#}"),
        Err(_) => json.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_holds_anything_and_only_what_is_there() {
        assert_eq!(query("/claims", [("guard", ""), ("state", "")]), "/claims");
        let held = query("/x", [("a", "b c&d=\"<é"), ("e", "f")]);
        assert_eq!(held, "/x?a=b%20c%26d%3D%22%3C%C3%A9&e=f");
    }

    #[test]
    fn a_time_is_said_by_how_far_off_it_is() {
        let now = Time::from_micros(1_000_000_000);
        let at = |seconds: i64| Time::from_micros(1_000_000_000 + seconds * 1_000_000);
        assert_eq!(ago(at(-5), now), "5 s ago");
        assert_eq!(ago(at(300), now), "in 5 min");
        assert_eq!(ago(Time::NEVER, now), "never");
        assert_eq!(clock(Time::from_micros(1_700_000_000_123_456)), "22:13:20.123");
    }

    #[test]
    fn an_id_is_short_enough_and_still_known() {
        assert_eq!(short("abc"), "abc");
        assert_eq!(short("0123456789abcdef0123"), "01234567…");
        assert_eq!(short("01998a5e-0000-7000-8000-0123456789ab"), "…456789ab");
    }
}
