//! Builds the key of a request.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{AUTHORIZATION, COOKIE, HeaderName};
use http::request::Parts;

use crate::idempotency::{WRONG_KEY, idempotency_key};

const HEADER: &str = "idempotency-key";
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

#[derive(Clone, Copy)]
pub enum KeyOf {
    Header,
    Content,
}

/// Distinguishes the callers. No caller ever gets the response of another caller.
///
/// The default is safe and strict: the whole of `Authorization`, `Cookie` and `X-Api-Key`. A caller whose token or cookies
/// have changed counts as another caller, and its repeated request runs again. So name a part that stays the same, as in
/// `Caller::cookie("session")`, or read the user that an outer layer has found:
/// `Caller::by(|request| request.extensions.get::<User>().map(|user| user.id.clone()))`.
#[derive(Clone)]
pub struct Caller(Vec<Source>);

type ReadCaller = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

#[derive(Clone)]
enum Source {
    Header(HeaderName),
    Cookie(String),
    By(ReadCaller),
}

impl Default for Caller {
    fn default() -> Self {
        Caller([AUTHORIZATION, COOKIE, API_KEY].map(Source::Header).into())
    }
}

impl Caller {
    /// The value of a header.
    pub fn header(name: HeaderName) -> Self {
        Caller(vec![Source::Header(name)])
    }

    /// The value of one cookie.
    pub fn cookie(name: impl Into<String>) -> Self {
        Caller(vec![Source::Cookie(name.into())])
    }

    /// The name that `caller` reads from the request. All callers for which it returns `None` count as one caller.
    pub fn by(caller: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Caller(vec![Source::By(Arc::new(caller))])
    }

    /// All callers count as one: each gets the response to the same request of any other.
    pub fn anyone() -> Self {
        Caller(vec![])
    }

    /// Combines both: callers are the same only if both are the same.
    pub fn and(mut self, other: Caller) -> Self {
        self.0.extend(other.0);
        self
    }

    fn of(&self, request: &Parts) -> Vec<Option<Vec<u8>>> {
        self.0.iter().map(|source| source.of(request)).collect()
    }
}

impl Source {
    fn of(&self, request: &Parts) -> Option<Vec<u8>> {
        let values = |name: &HeaderName| {
            let values: Vec<&[u8]> = request.headers.get_all(name).iter().map(|value| value.as_bytes()).collect();
            // A header value contains no line break, so several values differ from one.
            (!values.is_empty()).then(|| values.join(&b'\n'))
        };
        match self {
            Source::Header(name) => values(name),
            Source::Cookie(name) => {
                let all = values(&COOKIE)?;
                let pairs = all.split(|byte| matches!(byte, b';' | b'\n'));
                let named =
                    pairs.filter_map(|pair| pair.trim_ascii().strip_prefix(name.as_bytes())?.strip_prefix(b"="));
                let named: Vec<&[u8]> = named.collect();
                (!named.is_empty()).then(|| named.join(&b'\n'))
            }
            Source::By(caller) => caller(request).map(String::into_bytes),
        }
    }
}

/// Distinguishes the resources.
#[derive(Clone, Default)]
pub enum PathOf {
    /// Path and query as the client sent them, if a router has kept them; otherwise as this layer sees them.
    #[default]
    Original,
    By(Arc<dyn Fn(&Parts) -> String + Send + Sync>),
}

impl PathOf {
    fn of(&self, request: &Parts) -> String {
        #[cfg(feature = "tower")]
        let uri = request.extensions.get::<axum::extract::OriginalUri>().map_or(&request.uri, |original| &original.0);
        #[cfg(not(feature = "tower"))]
        let uri = &request.uri;
        match self {
            PathOf::Original => uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
            PathOf::By(path) => path(request),
        }
    }
}

impl KeyOf {
    /// Whether the layer guards the request: by content always, by header only if the request has the header.
    pub fn guards(self, request: &Parts) -> bool {
        match self {
            KeyOf::Content => true,
            KeyOf::Header => request.headers.contains_key(HEADER),
        }
    }

    /// The parts of the key, or the reason why there is no key.
    pub fn parts(
        self,
        request: &Parts,
        path: &PathOf,
        caller: &Caller,
        body: &Bytes,
    ) -> Result<Vec<Option<Vec<u8>>>, &'static str> {
        let last = match self {
            KeyOf::Content => body.to_vec(),
            KeyOf::Header => header(&request.headers)?.as_bytes().to_vec(),
        };
        let mut caller = caller.of(request).into_iter();
        let path = path.of(request).into_bytes();
        let mut parts = vec![Some(request.method.as_str().into()), Some(path), caller.next().flatten(), Some(last)];
        // The other parts of a caller come last, and only if they exist. So a claim keeps its id if only `Authorization`
        // distinguishes its callers.
        parts.extend(caller);
        while parts.last().is_some_and(Option::is_none) {
            parts.pop();
        }
        Ok(parts)
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

    fn request(headers: &[(&str, &str)]) -> Parts {
        let mut request = http::Request::post("/pay");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn parts(caller: &Caller, headers: &[(&str, &str)]) -> Vec<Option<Vec<u8>>> {
        KeyOf::Content.parts(&request(headers), &PathOf::Original, caller, &Bytes::from("b")).unwrap()
    }

    #[test]
    fn keys_of_requests_with_authorization_alone_are_pinned_because_stored_claims_depend_on_them() {
        let text = |text: &str| Some(text.as_bytes().to_vec());
        let default = Caller::default();
        assert_eq!(parts(&default, &[]), [text("POST"), text("/pay"), None, text("b")]);
        let bearer = parts(&default, &[("authorization", "a")]);
        assert_eq!(bearer, [text("POST"), text("/pay"), text("a"), text("b")]);
    }

    #[test]
    fn every_credential_tells_callers_apart_unless_the_layer_names_one() {
        let credentials: [&[(&str, &str)]; 7] = [
            &[],
            &[("authorization", "x")],
            &[("cookie", "x")],
            &[("x-api-key", "x")],
            &[("cookie", "s=1; t=1")],
            &[("cookie", "s=1; t=2")],
            &[("cookie", "s=1"), ("cookie", "t=1")],
        ];
        for (place, one) in credentials.iter().enumerate() {
            for other in &credentials[place + 1..] {
                assert_ne!(parts(&Caller::default(), one), parts(&Caller::default(), other), "{one:?} {other:?}");
                assert_eq!(parts(&Caller::anyone(), one), parts(&Caller::anyone(), other));
            }
        }
        let session = Caller::cookie("s");
        let of = |cookie| parts(&session, &[("cookie", cookie)]);
        assert_eq!(of("s=1; t=1"), of("t=2;s=1"));
        assert_ne!(of("s=1"), of("s=2"));
        assert_ne!(of("s=1"), of("ss=1"));
        let user = Caller::header(HeaderName::from_static("x-user")).and(session);
        assert_ne!(parts(&user, &[("x-user", "a")]), parts(&user, &[("x-user", "a"), ("cookie", "s=1")]));
    }
}
