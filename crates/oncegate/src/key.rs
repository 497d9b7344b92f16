//! Parts of a key, from what call sites have at hand.

/// One part of a key; absent is a value of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part(Option<Vec<u8>>);

impl From<&str> for Part {
    fn from(text: &str) -> Self {
        Part(Some(text.into()))
    }
}

impl From<String> for Part {
    fn from(text: String) -> Self {
        Part(Some(text.into_bytes()))
    }
}

impl From<&[u8]> for Part {
    fn from(bytes: &[u8]) -> Self {
        Part(Some(bytes.to_vec()))
    }
}

impl From<Vec<u8>> for Part {
    fn from(bytes: Vec<u8>) -> Self {
        Part(Some(bytes))
    }
}

impl From<u64> for Part {
    fn from(number: u64) -> Self {
        Part::from(number.to_string())
    }
}

impl<T: Into<Part>> From<Option<T>> for Part {
    fn from(part: Option<T>) -> Self {
        part.map_or(Part(None), Into::into)
    }
}

/// Parts as the hash takes them.
pub fn parts<I>(parts: I) -> Vec<Option<Vec<u8>>>
where
    I: IntoIterator,
    I::Item: Into<Part>,
{
    parts.into_iter().map(|part| part.into().0).collect()
}
