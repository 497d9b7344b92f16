//! Positions in the source: a byte of a file, or a line of the code that builds the definition.

use std::fmt;
use std::panic::Location;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use toml::Spanned;

#[derive(Clone, Copy, Debug)]
pub enum At {
    Byte(usize),
    Code(&'static Location<'static>),
}

/// A value, and where it was written.
#[derive(Clone, Debug)]
pub struct Span<T> {
    pub value: T,
    pub at: At,
}

impl<T> Span<T> {
    #[track_caller]
    pub fn here(value: T) -> Span<T> {
        Span { value, at: At::Code(Location::caller()) }
    }
}

impl<T> std::ops::Deref for Span<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Span<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<T>::deserialize(deserializer)?;
        Ok(Span { at: At::Byte(spanned.span().start), value: spanned.into_inner() })
    }
}

/// One name, or a list of them.
#[derive(Clone, Debug, Default)]
pub struct Names(pub Vec<Span<String>>);

impl Names {
    #[track_caller]
    pub fn here<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Names {
        let at = At::Code(Location::caller());
        Names(names.into_iter().map(|name| Span { value: name.into(), at }).collect())
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        enum Written {
            One(String),
            Many(Vec<Span<String>>),
        }
        struct OneOrMany;

        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Written;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name, or a list of names")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Written, E> {
                Ok(Written::One(name.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<Written, A::Error> {
                let mut many = vec![];
                while let Some(name) = names.next_element()? {
                    many.push(name);
                }
                Ok(Written::Many(many))
            }
        }

        impl<'de> Deserialize<'de> for Written {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(OneOrMany)
            }
        }

        let written = Span::<Written>::deserialize(deserializer)?;
        Ok(Names(match written.value {
            Written::One(value) => vec![Span { value, at: written.at }],
            Written::Many(many) => many,
        }))
    }
}
