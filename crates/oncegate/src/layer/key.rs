//! What a request's key is made of.

use bytes::Bytes;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::request::Parts;

const HEADER: &str = "idempotency-key";
/// Characters of a key.
const KEY_LENGTH: std::ops::RangeInclusive<usize> = 1..=255;

#[derive(Clone, Copy)]
pub enum KeyOf {
    Header,
    Content,
}

impl KeyOf {
    /// Whether the request has what its key is made of.
    pub fn guards(self, request: &Parts) -> bool {
        match self {
            KeyOf::Content => true,
            KeyOf::Header => request.headers.contains_key(HEADER),
        }
    }

    /// The parts of the key, or why it is no key.
    ///
    /// Who asks is a part of it, as far as `Authorization` tells: one caller's key, or words, must not get another
    /// caller's response.
    pub fn parts(self, request: &Parts, body: &Bytes) -> Result<[Option<Vec<u8>>; 4], &'static str> {
        let last = match self {
            KeyOf::Content => body.to_vec(),
            KeyOf::Header => header(&request.headers)?.as_bytes().to_vec(),
        };
        let path = request.uri.path_and_query().map_or("/", |path| path.as_str());
        let caller = request.headers.get(AUTHORIZATION).map(|value| value.as_bytes().to_vec());
        Ok([Some(request.method.as_str().into()), Some(path.into()), caller, Some(last)])
    }
}

/// Quoted, as a structured field, or bare.
fn header(headers: &HeaderMap) -> Result<&str, &'static str> {
    const WRONG: &str = "Idempotency-Key: one key of 1 to 255 visible characters, quoted or bare";
    let mut values = headers.get_all(HEADER).iter();
    let value = values.next().ok_or(WRONG)?;
    if values.next().is_some() {
        return Err(WRONG);
    }
    let value = value.to_str().map_err(|_| WRONG)?.trim();
    let key = match value.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"').filter(|key| !key.contains(['"', '\\'])).ok_or(WRONG)?,
        None => value,
    };
    let visible = key.bytes().all(|byte| byte.is_ascii_graphic());
    if visible && KEY_LENGTH.contains(&key.len()) { Ok(key) } else { Err(WRONG) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_quoted_or_bare_and_of_visible_characters() {
        let read = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HEADER, value.parse().unwrap());
            header(&headers).map(str::to_owned)
        };
        assert_eq!(read("abc"), Ok("abc".into()));
        assert_eq!(read("\"abc\""), Ok("abc".into()), "quoted and bare are the same key");
        let long = "k".repeat(256);
        for wrong in ["", "\"\"", "\"abc", "a b", "\"a\\\"b\"", &long] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
        let mut twice = HeaderMap::new();
        twice.append(HEADER, "a".parse().unwrap());
        twice.append(HEADER, "b".parse().unwrap());
        assert!(header(&twice).is_err());
    }
}
