//! Parts of a key, converted from the values that a caller has.

use oncegate_core::KeyPart;
use serde::{Serialize, Serializer};

/// One part of a key: text, bytes, an integer, or absent, which is a value of its own.
///
/// The integer 17 and the text `"17"` are different parts. An integer is the same part whatever its type: `17u8` is `17i64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Absent,
    Bytes(Vec<u8>),
    Integer(i128),
}

impl From<&str> for Part {
    fn from(text: &str) -> Self {
        Part(Kind::Bytes(text.into()))
    }
}

impl From<String> for Part {
    fn from(text: String) -> Self {
        Part(Kind::Bytes(text.into_bytes()))
    }
}

impl From<&[u8]> for Part {
    fn from(bytes: &[u8]) -> Self {
        Part(Kind::Bytes(bytes.to_vec()))
    }
}

impl From<Vec<u8>> for Part {
    fn from(bytes: Vec<u8>) -> Self {
        Part(Kind::Bytes(bytes))
    }
}

macro_rules! integers {
    ($($integer:ty)*) => {
        $(impl From<$integer> for Part {
            fn from(number: $integer) -> Self {
                Part(Kind::Integer(number as i128))
            }
        })*
    };
}
// Each of these fits into an `i128`.
integers!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize);

impl<T: Into<Part>> From<Option<T>> for Part {
    fn from(part: Option<T>) -> Self {
        part.map_or(Part(Kind::Absent), Into::into)
    }
}

impl<'a> From<&'a Part> for KeyPart<'a> {
    fn from(part: &'a Part) -> Self {
        match &part.0 {
            Kind::Absent => KeyPart::Absent,
            Kind::Bytes(bytes) => KeyPart::Bytes(bytes),
            Kind::Integer(number) => KeyPart::Integer(*number),
        }
    }
}

/// For people to read: bytes that are not UTF-8 are shown with replacement characters.
impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Kind::Absent => serializer.serialize_none(),
            Kind::Bytes(bytes) => serializer.serialize_str(&String::from_utf8_lossy(bytes)),
            Kind::Integer(number) => serializer.serialize_i128(*number),
        }
    }
}

/// The parts of a key, in order.
pub fn parts<I>(parts: I) -> Vec<Part>
where
    I: IntoIterator,
    I::Item: Into<Part>,
{
    parts.into_iter().map(Into::into).collect()
}
