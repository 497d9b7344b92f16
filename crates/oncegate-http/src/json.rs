//! Reads JSON, within limits.

use oncegate::Time;
use serde::de::DeserializeOwned;

use crate::problem::{Kind, Problem};

/// The deepest nesting of JSON.
pub const JSON_DEPTH_MAX: usize = 64;
/// The most values and names in one JSON body.
pub const JSON_VALUES_MAX: usize = 200_000;

pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    Shape::of(body).check()?;
    read(body)
}

/// Parses JSON. The error has the path to the wrong field.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| {
        // Parses again to find the path to the field: only a refused body pays for that.
        let path = serde_path_to_error::deserialize::<_, T>(&mut serde_json::Deserializer::from_slice(body))
            .err()
            .map(|error| error.path().to_string())
            .filter(|path| path != ".")
            .map_or(String::new(), |path| format!("{path}: "));
        Kind::InvalidRequest.because(format!("{path}{error}"))
    })
}

/// The facts about JSON that can be found before it is parsed, without allocating memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Shape {
    /// The deepest nesting of brackets outside strings. (The parser checks whether they match.)
    pub depth: usize,
    /// The number of values and names, or slightly more.
    pub values: usize,
}

impl Shape {
    pub fn of(json: &[u8]) -> Shape {
        let (mut depth, mut deepest, mut values, mut in_string, mut escaped) = (0_usize, 0, 1, false, false);
        for byte in json {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if in_string => escaped = true,
                b'"' => in_string = !in_string,
                _ if in_string => {}
                b'[' | b'{' => {
                    depth += 1;
                    deepest = deepest.max(depth);
                    values += 1;
                }
                b',' | b':' => values += 1,
                b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        Shape { depth: deepest, values }
    }

    /// Refuses JSON that is nested too deep, or that would take far more memory than its bytes.
    pub fn check(&self) -> Result<(), Problem> {
        if self.depth > JSON_DEPTH_MAX {
            return Err(Kind::InvalidRequest.because(format!("the JSON is nested over {JSON_DEPTH_MAX} deep")));
        }
        if self.values > JSON_VALUES_MAX {
            let (values, most) = (self.values, JSON_VALUES_MAX);
            let detail = format!("the JSON has about {values} values and names; {most} are the most");
            return Err(Kind::PayloadTooLarge.because(detail));
        }
        Ok(())
    }
}

/// A time, as the API shows it.
pub fn time(micros: i64) -> String {
    Time::from_micros(micros).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_and_values_are_counted_outside_strings_only() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(Shape::of(nested(64).as_bytes()).check().is_ok());
        assert_eq!(Shape::of(nested(65).as_bytes()).check().unwrap_err().kind, Kind::InvalidRequest);
        let flat = format!("[{}]", vec!["{}"; 100].join(","));
        assert_eq!(Shape::of(flat.as_bytes()), Shape { depth: 2, values: 201 });
        let text = format!(r#"["{}\"{},:"]"#, "[".repeat(100), "{".repeat(100));
        assert_eq!(Shape::of(text.as_bytes()), Shape { depth: 1, values: 2 });
        assert_eq!(Shape::of(br#"{"a":1,"b":{"c":[]}}"#), Shape { depth: 3, values: 8 });
        let ones = |count: usize| format!("[{}]", vec!["1"; count].join(","));
        assert!(Shape::of(ones(JSON_VALUES_MAX - 1).as_bytes()).check().is_ok());
        let refused = Shape::of(ones(JSON_VALUES_MAX).as_bytes()).check().unwrap_err();
        assert_eq!(refused.kind, Kind::PayloadTooLarge);
    }

    #[test]
    fn what_is_refused_is_named() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Body {
            #[allow(dead_code)]
            key: Vec<Option<String>>,
        }
        let refused = |json: &str| parse::<Body>(json.as_bytes()).unwrap_err().detail.into_owned();
        assert!(refused(r#"{"key":["a",5]}"#).starts_with("key[1]: invalid type: integer `5`, expected a string"));
        assert!(refused(r#"{"keys":[]}"#).contains("unknown field `keys`, expected `key`"));
        assert!(refused("{}").contains("missing field `key`"));
        assert!(refused("{").contains("EOF while parsing"));
    }
}
