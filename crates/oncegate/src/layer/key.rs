//! What a request's key is made of.

use bytes::Bytes;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::request::Parts;

use crate::idempotency::{WRONG_KEY, idempotency_key};

const HEADER: &str = "idempotency-key";

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

fn header(headers: &HeaderMap) -> Result<&str, &'static str> {
    let mut values = headers.get_all(HEADER).iter();
    let value = values.next().ok_or(WRONG_KEY)?;
    if values.next().is_some() {
        return Err(WRONG_KEY);
    }
    idempotency_key(value.to_str().map_err(|_| WRONG_KEY)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_one_key() {
        let mut headers = HeaderMap::new();
        headers.append(HEADER, "\"a\"".parse().unwrap());
        assert_eq!(header(&headers), Ok("a"));
        headers.append(HEADER, "b".parse().unwrap());
        assert!(header(&headers).is_err());
    }
}
