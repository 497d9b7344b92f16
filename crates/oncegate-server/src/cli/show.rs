//! How commands print records, and pages of them.

use serde::Serialize;
use uuid::Uuid;

use super::fields;
use oncegate_http::api::Page;
use oncegate_process::output::{Format, table};

/// Prints a record: for people, its fields.
pub fn record(view: &impl Serialize, format: Format) {
    format.print(view, |view| {
        let json = serde_json::to_string(view).expect("output is JSON");
        table(["FIELD", "VALUE"], fields::rows(&json))
    });
}

/// Prints a page of a list: `items` for programs, `rows` for people.
pub fn page<V: Serialize, const N: usize>(
    format: Format,
    items: Vec<V>,
    next_cursor: Option<Uuid>,
    head: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) {
    format.print(&Page { items, next_cursor }, |_| table(head, rows) + &more(next_cursor));
}

/// How to get the next page, for people.
pub fn more(next: Option<impl std::fmt::Display>) -> String {
    next.map_or(String::new(), |cursor| format!("\nmore: --cursor {cursor}"))
}

/// The text without the characters that a terminal would obey.
pub fn plain(text: &str) -> String {
    text.replace(char::is_control, " ")
}
