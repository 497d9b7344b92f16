//! The kinds of values, and how each is read from TOML and from text.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use toml_edit::Item;

use super::error::{Fault, nearest};
use oncegate_core::units::{DURATION_HINT, SIZE_HINT, parse_duration, parse_size, show_duration, show_size};

/// The kinds of a setting's value.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Address,
    Bool,
    Choice(&'static [&'static str]),
    Duration {
        min: Duration,
        max: Duration,
    },
    Integer {
        min: u64,
        max: u64,
    },
    Size {
        min: u64,
        max: u64,
    },
    /// A list of networks, as `Texts` is a list of texts and `Millis` one of milliseconds.
    Networks,
    Millis {
        max: Duration,
    },
    /// A number, possibly a fraction; zero and below mean none.
    Seconds {
        max: Duration,
    },
    StoreUrl,
    Text,
    Texts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Address(SocketAddr),
    Bool(bool),
    Duration(Duration),
    Integer(u64),
    Millis(Vec<Duration>),
    Networks(Vec<IpNet>),
    Seconds(Duration),
    Size(u64),
    /// A text, a choice by its name, or a store's URL.
    Text(String),
    Texts(Vec<String>),
}

impl Kind {
    /// Reads a value from a file. Numbers and booleans are written bare, everything else in quotes.
    pub fn read_toml(self, item: &Item) -> Result<Value, Fault> {
        let wrong_type =
            || Fault::new(format!("is {}, not {}", article(item.type_name()), self.name()), self.example());
        match (self, item) {
            (Kind::Bool, _) => item.as_bool().map(Value::Bool).ok_or_else(wrong_type),
            (Kind::Integer { .. }, _) => match item.as_integer() {
                Some(number) => self.read_text(&number.to_string()),
                None => Err(wrong_type()),
            },
            (Kind::Seconds { .. }, _) => match item.as_integer().map(|number| number as f64).or(item.as_float()) {
                Some(number) => self.read_text(&number.to_string()),
                None => Err(wrong_type()),
            },
            (Kind::Texts, _) => {
                let items = item.as_array().ok_or_else(wrong_type)?.iter();
                let texts = items.map(|text| text.as_str().filter(|text| !text.is_empty()).map(str::to_owned));
                texts.collect::<Option<_>>().map(Value::Texts).ok_or_else(wrong_type)
            }
            (Kind::Networks, _) => {
                let items = item.as_array().ok_or_else(wrong_type)?.iter();
                let texts = items.map(|text| text.as_str().ok_or_else(wrong_type));
                self.read_text(&texts.collect::<Result<Vec<_>, _>>()?.join(","))
            }
            (Kind::Millis { .. }, _) => {
                let items = item.as_array().ok_or_else(wrong_type)?.iter();
                let numbers = items.map(|number| number.as_integer().map(|number| number.to_string()));
                let numbers = numbers.collect::<Option<Vec<_>>>().ok_or_else(wrong_type)?;
                self.read_text(&numbers.join(","))
            }
            (Kind::Size { .. }, _) if item.is_integer() => {
                self.read_text(&item.as_integer().map(|bytes| bytes.to_string()).unwrap_or_default())
            }
            _ => item.as_str().ok_or_else(wrong_type).and_then(|text| self.read_text(text)),
        }
    }

    /// Reads a value from a variable, a flag or a quoted string.
    pub fn read_text(self, text: &str) -> Result<Value, Fault> {
        let not_one = || Fault::new(format!("is {text:?}, which is not {}", self.name()), self.example());
        let value = match self {
            Kind::Address => Value::Address(text.parse().map_err(|_| not_one())?),
            Kind::Bool => Value::Bool(text.parse().map_err(|_| not_one())?),
            Kind::Choice(names) => {
                let name = names.iter().find(|name| **name == text).ok_or_else(|| not_chosen(text, names))?;
                Value::Text((*name).to_owned())
            }
            Kind::Duration { min, max } => {
                let span = parse_duration(text).ok_or_else(not_one)?;
                within(span, min, max, show_duration)?;
                Value::Duration(span)
            }
            Kind::Integer { min, max } => {
                let number = text.parse().map_err(|_| not_one())?;
                within(number, min, max, |number| number.to_string())?;
                Value::Integer(number)
            }
            Kind::Size { min, max } => {
                let bytes = parse_size(text).ok_or_else(not_one)?;
                within(bytes, min, max, show_size)?;
                Value::Size(bytes)
            }
            Kind::Seconds { max } => {
                let seconds: f64 = text.parse().map_err(|_| not_one())?;
                let span = Duration::try_from_secs_f64(seconds.max(0.0)).map_err(|_| not_one())?;
                within(span, Duration::ZERO, max, show_duration)?;
                Value::Seconds(span)
            }
            Kind::Networks => Value::Networks(networks(text).ok_or_else(not_one)?),
            Kind::Millis { max } => {
                let spans = listed(text).map(|number| number.parse().map(Duration::from_millis).map_err(|_| not_one()));
                let spans = spans.collect::<Result<Vec<_>, _>>()?;
                spans.iter().try_for_each(|span| within(*span, Duration::ZERO, max, show_duration))?;
                Value::Millis(spans)
            }
            Kind::Texts => Value::Texts(listed(text).map(str::to_owned).collect()),
            Kind::StoreUrl => Value::Text(store_url(text)?),
            Kind::Text if text.is_empty() => return Err(Fault::new("is empty", "leave it out to get its default")),
            Kind::Text => Value::Text(text.to_owned()),
        };
        Ok(value)
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Address => "an address and port",
            Kind::Bool => "true or false",
            Kind::Choice(_) => "one of its names",
            Kind::Duration { .. } => "a duration",
            Kind::Integer { .. } => "a whole number",
            Kind::Size { .. } => "a size",
            Kind::Networks => "a list of networks",
            Kind::Millis { .. } => "a list of milliseconds",
            Kind::Texts => "a list of texts",
            Kind::Seconds { .. } => "a number of seconds",
            Kind::StoreUrl => "a store's URL",
            Kind::Text => "text in quotes",
        }
    }

    fn example(self) -> String {
        match self {
            Kind::Address => r#"write "127.0.0.1:4600", or "[::1]:4600""#.into(),
            Kind::Bool => "write true or false, without quotes".into(),
            Kind::Choice(names) => format!("write one of {}", quoted(names)),
            Kind::Duration { .. } => DURATION_HINT.into(),
            Kind::Integer { min, max } => format!("write a whole number from {min} to {max}, without quotes"),
            Kind::Size { .. } => SIZE_HINT.into(),
            Kind::Networks => r#"write ["127.0.0.0/8", "10.1.2.3"]; in a variable 127.0.0.0/8,10.1.2.3"#.into(),
            Kind::Millis { .. } => "write [100, 200, 500]; in a variable 100,200,500".into(),
            Kind::Texts => r#"write ["one", "another"]; in a variable one,another"#.into(),
            Kind::Seconds { .. } => "write a number, such as 5 or 0.5, without quotes; 0 turns it off".into(),
            Kind::StoreUrl => STORE_HINT.into(),
            Kind::Text => "put it in quotes".into(),
        }
    }
}

const STORE_HINT: &str = r#"write "sqlite:FILE" or "postgres://USER@HOST/DATABASE""#;

/// The error does not repeat the text: it may contain a password.
fn store_url(text: &str) -> Result<String, Fault> {
    match text.parse::<oncegate::StoreUrl>() {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(Fault::new("is not a store's URL", STORE_HINT)),
    }
}

/// Networks or single addresses, separated by commas.
fn networks(text: &str) -> Option<Vec<IpNet>> {
    let one = |text: &str| text.parse().ok().or_else(|| Some(IpNet::from(text.parse::<IpAddr>().ok()?)));
    listed(text).map(one).collect()
}

/// The items between commas.
fn listed(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|text| !text.is_empty())
}

fn not_chosen(text: &str, names: &[&str]) -> Fault {
    let hint = match nearest(text, names.iter().copied()) {
        Some(name) => format!("did you mean {name:?}? It is one of {}", quoted(names)),
        None => format!("write one of {}", quoted(names)),
    };
    Fault::new(format!("is {text:?}"), hint)
}

fn within<T: Copy + PartialOrd>(value: T, min: T, max: T, show: impl Fn(T) -> String) -> Result<(), Fault> {
    let hint = || format!("write something from {} to {}", show(min), show(max));
    if value < min {
        return Err(Fault::new(format!("is {}; the least is {}", show(value), show(min)), hint()));
    }
    if value > max {
        return Err(Fault::new(format!("is {}; the most is {}", show(value), show(max)), hint()));
    }
    Ok(())
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

fn article(type_name: &str) -> String {
    let an = type_name.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {type_name}", if an { "an" } else { "a" })
}

impl Value {
    /// The value as TOML writes it.
    pub fn to_toml(&self) -> toml_edit::Value {
        match self {
            Value::Address(address) => address.to_string().into(),
            Value::Bool(value) => (*value).into(),
            Value::Duration(span) => show_duration(*span).into(),
            Value::Integer(number) => i64::try_from(*number).unwrap_or(i64::MAX).into(),
            Value::Millis(spans) => spans.iter().map(millis).collect::<toml_edit::Value>(),
            Value::Networks(networks) => networks.iter().map(IpNet::to_string).collect::<toml_edit::Value>(),
            Value::Seconds(span) if span.subsec_nanos() == 0 => {
                i64::try_from(span.as_secs()).unwrap_or(i64::MAX).into()
            }
            Value::Seconds(span) => span.as_secs_f64().into(),
            Value::Size(bytes) => show_size(*bytes).into(),
            Value::Text(text) => text.as_str().into(),
            Value::Texts(texts) => texts.iter().cloned().collect::<toml_edit::Value>(),
        }
    }

    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Value::Address(address) => address.to_string().into(),
            Value::Bool(value) => (*value).into(),
            Value::Duration(span) => show_duration(*span).into(),
            Value::Integer(number) => (*number).into(),
            Value::Millis(spans) => spans.iter().map(millis).collect::<Vec<_>>().into(),
            Value::Networks(networks) => networks.iter().map(IpNet::to_string).collect::<Vec<_>>().into(),
            Value::Seconds(span) if span.subsec_nanos() == 0 => span.as_secs().into(),
            Value::Seconds(span) => span.as_secs_f64().into(),
            Value::Size(bytes) => show_size(*bytes).into(),
            Value::Text(text) => text.as_str().into(),
            Value::Texts(texts) => texts.clone().into(),
        }
    }
}

fn millis(span: &Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}
