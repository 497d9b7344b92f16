//! Parts of a key, converted from the values that a caller has.

use oncegate_core::KeyPart;
use serde::{Serialize, Serializer};
use uuid::Uuid;

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

impl From<&String> for Part {
    fn from(text: &String) -> Self {
        Part(Kind::Bytes(text.as_bytes().to_vec()))
    }
}

/// The same part as its text with hyphens, which is what callers over HTTP send.
impl From<Uuid> for Part {
    fn from(id: Uuid) -> Self {
        Part::from(id.to_string())
    }
}

impl From<&Uuid> for Part {
    fn from(id: &Uuid) -> Self {
        Part::from(*id)
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
integers!(u8 u16 u32 u64 usize i8 i16 i32 i64 i128 isize);

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

/// A value that names a claim: one part, or several in order.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use oncegate::{Gate, Policy};
/// let guard = Gate::open("memory:").await?.guard("charge", Policy::default())?;
/// let order = String::from("order 17");
///
/// // Parts of one type, of several types, and a single part.
/// assert_eq!(guard.key(["order 17", "card"]), guard.key((&order, "card")));
/// assert_eq!(guard.key(["order 17"]), guard.key(&order));
/// // A number is not the text of its digits.
/// assert_ne!(guard.key(17), guard.key("17"));
/// # Ok(())
/// # }
/// ```
pub trait IntoKey {
    /// The parts of the key, in order.
    fn into_key(self) -> Vec<Part>;
}

impl<P: Into<Part>, const N: usize> IntoKey for [P; N] {
    fn into_key(self) -> Vec<Part> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<P: Into<Part>> IntoKey for Vec<P> {
    fn into_key(self) -> Vec<Part> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<P: Into<Part> + Clone> IntoKey for &[P] {
    fn into_key(self) -> Vec<Part> {
        self.iter().cloned().map(Into::into).collect()
    }
}

macro_rules! tuples {
    ($(($($part:ident)+))*) => {
        $(impl<$($part: Into<Part>),+> IntoKey for ($($part,)+) {
            fn into_key(self) -> Vec<Part> {
                #[allow(non_snake_case, reason = "the names of the types serve as names of the parts")]
                let ($($part,)+) = self;
                vec![$($part.into()),+]
            }
        })*
    };
}
tuples!((A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H));

macro_rules! single {
    ($($part:ty)*) => {
        $(impl IntoKey for $part {
            fn into_key(self) -> Vec<Part> {
                vec![self.into()]
            }
        })*
    };
}
single!(&str String &String Uuid &Uuid u8 u16 u32 u64 usize i8 i16 i32 i64 i128 isize);

impl IntoKey for Part {
    fn into_key(self) -> Vec<Part> {
        vec![self]
    }
}
