//! The parts of pages. A list page and a detail page are built from these types, and drawn by one template each.

use std::fmt::Display;

use oncegate::Time;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use oncegate_http::decisions::words::span;

/// The state of something, at a glance.
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

    /// The tone of a state's name, whatever has the state.
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

/// One value that is shown.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    pub text: String,
    pub href: Option<String>,
    pub tone: Option<Tone>,
    pub is_code: bool,
    /// The exact time, where the text shows a relative one.
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

/// The distance of a time from now.
pub fn ago(at: Time, now: Time) -> String {
    match (at, now) {
        (Time::NEVER, _) => "never".into(),
        (at, now) if at > now => format!("in {}", span(at.since(now))),
        (at, now) => format!("{} ago", span(now.since(at))),
    }
}

/// The time of day, with milliseconds.
pub fn clock(at: Time) -> String {
    let printed = at.to_string();
    printed.split_once('T').map_or(printed.clone(), |(_, time)| time.trim_end_matches('Z').to_owned())
}

/// A shortened id, enough to recognise it.
pub fn short(id: &str) -> String {
    // Time-ordered ids differ at their ends.
    let dashed = id.contains('-');
    let chars: Vec<char> = id.chars().collect();
    match chars.len() {
        0..=12 => id.to_owned(),
        len if dashed => format!("…{}", chars[len - 8..].iter().collect::<String>()),
        _ => format!("{}…", chars[..8].iter().collect::<String>()),
    }
}

/// Characters that are not encoded in a path or a query.
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Encodes a text for a path or a query.
pub fn encoded(text: &str) -> String {
    utf8_percent_encode(text, KEPT).to_string()
}

/// A path, with a query of the values that are not empty.
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
    /// The text of an empty list.
    pub empty: &'static str,
}

impl Table {
    pub fn new<const N: usize>(
        title: &str,
        head: [&'static str; N],
        rows: impl IntoIterator<Item = [Cell; N]>,
    ) -> Table {
        let rows = rows.into_iter().map(Vec::from).collect();
        Table { title: title.into(), head: head.into(), rows, empty: "There are none." }
    }
}

pub struct Filter {
    pub name: &'static str,
    pub label: &'static str,
    pub value: String,
    /// The options to choose from; empty for free text.
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

/// A page with a list.
pub struct List {
    pub path: String,
    pub lead: String,
    pub picture: Option<String>,
    pub filters: Vec<Filter>,
    pub table: Table,
    /// The cursor of the next page.
    pub next: Option<String>,
}

impl List {
    pub fn new(path: impl Into<String>, lead: impl Into<String>, table: Table) -> List {
        List { path: path.into(), lead: lead.into(), picture: None, filters: vec![], table, next: None }
    }

    pub fn filters(self, filters: impl Into<Vec<Filter>>) -> List {
        List { filters: filters.into(), ..self }
    }

    pub fn is_filtered(&self) -> bool {
        self.filters.iter().any(|filter| !filter.value.is_empty())
    }

    /// The same list, with a link to the next page if there is a cursor.
    pub fn then(mut self, cursor: Option<impl Display>) -> List {
        let cursor = cursor.map(|cursor| cursor.to_string());
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

/// The events, ordered by time.
pub fn in_order(mut moments: Vec<(i64, Happened)>) -> Vec<Happened> {
    moments.sort_by_key(|(at_us, _)| *at_us);
    moments.into_iter().map(|(_, moment)| moment).collect()
}

/// An act that a person can do, with a reason.
pub struct Button {
    pub name: &'static str,
    pub action: String,
    /// The consequence of the act.
    pub explains: &'static str,
    /// The act cannot be undone.
    pub is_grave: bool,
    pub fields: Vec<(&'static str, String)>,
}

impl Button {
    pub fn new(name: &'static str, action: impl Into<String>, explains: &'static str) -> Button {
        Button { name, action: action.into(), explains, is_grave: false, fields: vec![] }
    }

    pub fn grave(self) -> Button {
        Button { is_grave: true, ..self }
    }

    /// The same button, with a field that the form posts.
    pub fn with(mut self, field: &'static str, value: impl Into<String>) -> Button {
        self.fields.push((field, value.into()));
        self
    }
}

/// The buttons for what a person found out at the provider, each with an explanation.
pub fn was_sent(action: &str, sent: &'static str, not_sent: &'static str) -> Vec<Button> {
    vec![
        Button::new("Mark as sent", action, sent).with("as", "sent"),
        Button::new("Mark as not sent", action, not_sent).grave().with("as", "not_sent"),
    ]
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

/// A page of one object.
pub struct Detail {
    /// The list that contains the object.
    pub above: (&'static str, String),
    pub state: Cell,
    pub says: String,
    /// The act that was just done to it.
    pub did: Option<&'static str>,
    pub buttons: Vec<Button>,
    pub sections: Vec<Section>,
}

impl Detail {
    pub fn verbs(&self) -> String {
        self.buttons.iter().map(|button| button.name.to_lowercase()).collect::<Vec<_>>().join(" or ")
    }
}

/// A section of the facts that are not empty.
pub fn facts(title: &'static str, facts: Vec<(&'static str, Cell)>) -> Section {
    let facts = facts.into_iter().filter(|(_, cell)| !cell.text.is_empty()).collect();
    Section { title, body: Body::Facts(facts) }
}

/// JSON, formatted for people.
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
