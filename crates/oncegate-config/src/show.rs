//! The effective configuration, for people and for programs, without its secrets.

use std::fmt::Write;

use super::Loaded;
use super::layers::{Entry, Origin};
use super::path::KeyPath;
use super::secret_url::without_password;
use super::settings::SETTINGS;
use super::value::Value;

impl Loaded {
    /// The effective configuration as TOML, with the source of each value on its line.
    pub fn to_toml(&self) -> String {
        let mut shown = String::new();
        let mut open = KeyPath::default();
        for (path, entry) in self.in_order() {
            let Some((table, name)) = path.split_last() else { continue };
            if table != open {
                line(&mut shown, format_args!("\n[{table}]"));
                open = table;
            }
            let key = KeyPath::of(&[name]);
            line(&mut shown, format_args!("{key} = {}  # {}", shown_value(entry).to_toml(), origin(&entry.origin)));
        }
        shown
    }

    /// The same as JSON: a list of key, value, source and a line of explanation.
    pub fn to_json(&self) -> serde_json::Value {
        let setting = |(path, entry): (&KeyPath, &Entry)| {
            serde_json::json!({
                "key": path.to_string(),
                "value": shown_value(entry).to_json(),
                "source": origin(&entry.origin),
                "doc": entry.setting.doc,
            })
        };
        self.in_order().map(setting).collect()
    }

    /// The entries in the order of the table of settings. Entries under one name of the user's stay together.
    fn in_order(&self) -> impl Iterator<Item = (&KeyPath, &Entry)> {
        let mut entries: Vec<_> = self.layers.iter().collect();
        entries.sort_by_key(|(path, entry)| {
            let table_rank = SETTINGS.iter().position(|setting| setting.table() == entry.setting.table());
            let rank = SETTINGS.iter().position(|setting| setting.key == entry.setting.key);
            (table_rank, path.split_last().map(|(table, _)| table), rank)
        });
        entries.into_iter()
    }
}

fn line(shown: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(shown, "{text}").expect("writing to a string does not fail");
}

fn shown_value(entry: &Entry) -> Value {
    match &entry.value {
        Value::Text(text) if entry.setting.secret || entry.setting.is_url() || text.contains("://") => {
            Value::Text(without_password(text))
        }
        value => value.clone(),
    }
}

/// The source on one line, even if the file's name has line breaks.
fn origin(origin: &Origin) -> String {
    match origin {
        Origin::File { path, line, .. } => format!("{}:{line}", path.display()).replace(char::is_control, "?"),
        other => other.to_string(),
    }
}
