//! A JSON object as rows for people.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The fields of an object, in their order, with their values as written. Callers may have stored JSON that no Rust type holds (`1e999`,
/// `"\ud800"`), so values stay text.
struct Fields<'a>(Vec<(String, &'a RawValue)>);

/// The fields of `object`, which is JSON, each with its value as people read it.
pub fn rows(object: &str) -> Vec<[String; 2]> {
    let Fields(fields) = serde_json::from_str(object).expect("an object");
    fields.into_iter().map(|(name, value)| [name, shown(value)]).collect()
}

/// A string without its quotes, everything else as JSON. The caller chose the string, and a terminal would obey its control characters. So
/// a
/// string with control characters stays JSON, where most of them are escaped.
fn shown(value: &RawValue) -> String {
    match serde_json::from_str::<String>(value.get()) {
        Ok(text) if !text.contains(char::is_control) => text,
        _ => value.get().replace(char::is_control, " "),
    }
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(InOrder)
    }
}

struct InOrder;

impl<'de> Visitor<'de> for InOrder {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = vec![];
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Fields(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_as_they_are_written_and_strings_without_quotes() {
        let deep = "[".repeat(2000) + &"]".repeat(2000);
        let object = format!(r#"{{"z":"a \"b\" ä","a":{{"x":1e999}},"n":null,"s":"\ud800","deep":{deep}}}"#);
        let wanted =
            [("z", r#"a "b" ä"#), ("a", r#"{"x":1e999}"#), ("n", "null"), ("s", r#""\ud800""#), ("deep", &deep)];
        assert_eq!(rows(&object), wanted.map(|(name, value)| [name.to_owned(), value.to_owned()]));
    }

    #[test]
    fn nothing_that_a_terminal_would_obey_is_shown() {
        let rows = rows("{\"escaped\":\"\\u001b[2J\",\"raw\":\"\u{9b}2J\",\"spaced\":{\n\"a\":1}}");
        assert!(rows.iter().flatten().all(|text| !text.contains(char::is_control)), "{rows:?}");
        assert_eq!(rows[0][1], r#""\u001b[2J""#);
    }
}
