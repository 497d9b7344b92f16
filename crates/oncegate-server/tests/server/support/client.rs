//! A JSON client with one connection, which is kept alive and opened again after it was closed.

use std::fmt;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{HeaderMap, Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::PATIENCE;

/// Longer than the longest wait that a caller may request.
const ANSWER_MAX: std::time::Duration = std::time::Duration::from_secs(70);

pub struct Client {
    address: SocketAddr,
    headers: HeaderMap,
    connection: Option<SendRequest<Full<Bytes>>>,
}

/// An answer, with its body as JSON where the body is JSON.
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
    pub body: Value,
}

impl Client {
    pub fn new(address: SocketAddr) -> Client {
        Client { address, headers: HeaderMap::new(), connection: None }
    }

    pub fn header(mut self, name: &'static str, value: &str) -> Client {
        self.headers.insert(name, value.parse().expect("a header's value"));
        self
    }

    pub async fn get(&mut self, path: &str) -> Reply {
        self.send(Method::GET, path, None).await
    }

    pub async fn delete(&mut self, path: &str) -> Reply {
        self.send(Method::DELETE, path, None).await
    }

    pub async fn post(&mut self, path: &str, body: &Value) -> Reply {
        self.send(Method::POST, path, Some(body.to_string().into())).await
    }

    pub async fn put(&mut self, path: &str, body: &Value) -> Reply {
        self.send(Method::PUT, path, Some(body.to_string().into())).await
    }

    /// Posts a form as one of our own pages does.
    pub async fn submit(&mut self, path: &str, fields: &[(&str, &str)]) -> Reply {
        let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let own = [("sec-fetch-site", "same-origin"), ("content-type", "application/x-www-form-urlencoded")];
        let before = self.headers.clone();
        for (name, value) in own {
            self.headers.insert(name, value.parse().expect("a header's value"));
        }
        let reply = self.send(Method::POST, path, Some(form.into())).await;
        self.headers = before;
        reply
    }

    /// Logs in, and returns the cookie as a browser sends it back.
    pub async fn log_in(&mut self, key: &str) -> String {
        let answer = self.submit("/login", &[("key", key)]).await.expect(303);
        let cookie = answer.header("set-cookie").expect("a cookie").to_owned();
        cookie.split(';').next().expect("a name and a value").to_owned()
    }

    /// Claims, and returns the whole answer.
    pub async fn claim(&mut self, body: &Value) -> Reply {
        self.post("/api/claims", body).await
    }

    /// Claims, must win, and returns the id and the token.
    pub async fn win(&mut self, body: &Value) -> (String, i64) {
        let won = self.claim(body).await.expect(201);
        (won.text("id"), won.body["token"].as_i64().expect("a token"))
    }

    /// Calls one of the owner's verbs.
    pub async fn owner(&mut self, verb: &str, guard: &str, id: &str, token: i64) -> Reply {
        self.post(&format!("/api/claims/{id}/{verb}"), &json!({"guard": guard, "token": token})).await
    }

    pub async fn settle(&mut self, guard: &str, id: &str, token: i64, outcome: &Value) -> Reply {
        let body = json!({"guard": guard, "token": token, "outcome": outcome});
        self.post(&format!("/api/claims/{id}/settle"), &body).await
    }

    pub async fn show(&mut self, guard: &str, id: &str) -> Reply {
        self.get(&format!("/api/claims/{id}?guard={guard}")).await
    }

    pub async fn send(&mut self, method: Method, path: &str, body: Option<Bytes>) -> Reply {
        match self.try_send(method.clone(), path, body).await {
            Ok(reply) => reply,
            Err(error) => panic!("{method} {path}: {error}"),
        }
    }

    /// An error does not tell whether the request was carried out.
    pub async fn try_send(&mut self, method: Method, path: &str, body: Option<Bytes>) -> Result<Reply, String> {
        let mut request = Request::builder().method(method).uri(path).header(HOST, self.address.to_string());
        if body.is_some() && !self.headers.contains_key(CONTENT_TYPE) {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let headers = request.headers_mut().ok_or("a bad path")?;
        headers.extend(self.headers.clone());
        let request = request.body(Full::new(body.unwrap_or_default())).map_err(|error| error.to_string())?;
        let answered = timeout(ANSWER_MAX, self.exchange(request)).await;
        let reply = answered.map_err(|_| "no answer".to_owned()).and_then(|answered| answered);
        if reply.is_err() {
            self.connection = None;
        }
        reply
    }

    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> Result<Reply, String> {
        let sender = self.connected().await?;
        let response = sender.send_request(request).await.map_err(|error| format!("{error:?}"))?;
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ok(Reply { status: head.status.as_u16(), headers: head.headers, text, body })
    }

    async fn connected(&mut self) -> Result<&mut SendRequest<Full<Bytes>>, String> {
        let open = match self.connection.take() {
            Some(mut sender) => sender.ready().await.is_ok().then_some(sender),
            None => None,
        };
        let sender = match open {
            Some(sender) => sender,
            None => connect(self.address).await?,
        };
        Ok(self.connection.insert(sender))
    }
}

async fn connect(address: SocketAddr) -> Result<SendRequest<Full<Bytes>>, String> {
    let connecting = timeout(PATIENCE, TcpStream::connect(address)).await;
    let stream = connecting.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    Ok(sender)
}

impl Reply {
    /// Checks the status; the panic shows the answer.
    #[track_caller]
    pub fn expect(self, status: u16) -> Reply {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// A problem of this name, complete by RFC 9457 and our conventions.
    #[track_caller]
    pub fn expect_problem(self, status: u16, name: &str) -> Reply {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        assert_eq!((self.status, &self.body["status"]), (status, &json!(status)), "{self:?}");
        assert_eq!(self.body["type"], format!("/problems/{name}"), "{self:?}");
        for member in ["title", "detail", "hint", "requestId"] {
            assert!(self.body[member].as_str().is_some_and(|text| !text.is_empty()), "{member}: {self:?}");
        }
        self
    }

    /// A page for people, complete, with this status.
    #[track_caller]
    pub fn expect_page(self, status: u16) -> Reply {
        let is_html = self.header("content-type").is_some_and(|media| media.starts_with("text/html"));
        assert!(is_html && self.text.trim_end().ends_with("</html>"), "no page: {self:?}");
        assert!(self.header("content-security-policy").is_some(), "{self:?}");
        self.expect(status)
    }

    /// A refusal of the input, whose detail names `what`.
    #[track_caller]
    pub fn expect_invalid(self, what: &str) -> Reply {
        let reply = self.expect_problem(400, "invalid-request");
        assert!(reply.body["detail"].as_str().is_some_and(|detail| detail.contains(what)), "{what}: {reply:?}");
        reply
    }

    #[track_caller]
    pub fn text(&self, field: &str) -> String {
        self.body[field].as_str().unwrap_or_else(|| panic!("{field}: {self:?}")).to_owned()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {}", self.status, self.headers, self.text.chars().take(2000).collect::<String>())
    }
}
