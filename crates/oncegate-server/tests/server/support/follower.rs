//! A follower of server-sent events.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::PATIENCE;

pub struct Follower {
    body: Incoming,
    buffered: String,
    // Keeps the connection open.
    _sender: SendRequest<Empty<Bytes>>,
}

/// A received event.
#[derive(Debug)]
pub struct Came {
    pub event: String,
    pub data: String,
}

impl Came {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Follower {
    pub async fn open(address: SocketAddr, path: &str) -> Follower {
        Follower::open_with(address, path, &[]).await
    }

    /// Opens the stream with these headers.
    pub async fn open_with(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Follower {
        let stream = TcpStream::connect(address).await.expect("the server listens");
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await.expect("a connection");
        tokio::spawn(connection);
        let mut request = Request::get(path).header(HOST, address.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Empty::new()).expect("a path and headers");
        let answered = timeout(PATIENCE, sender.send_request(request)).await.expect("in time");
        let response = answered.expect("an answer");
        assert_eq!(response.status().as_u16(), 200, "{path}: {response:?}");
        assert_eq!(response.headers()["content-type"], "text/event-stream", "{path}");
        Follower { body: response.into_body(), buffered: String::new(), _sender: sender }
    }

    /// The next event; none when the server has ended the stream.
    pub async fn next(&mut self) -> Option<Came> {
        loop {
            if let Some((event, rest)) = self.buffered.split_once("\n\n") {
                let field = |name: &str| {
                    let lines = event.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
                    lines.collect::<Vec<_>>().join("\n")
                };
                let came = Came { event: field("event"), data: field("data") };
                self.buffered = rest.to_owned();
                // Comments only keep the connection alive.
                if !came.event.is_empty() {
                    return Some(came);
                }
                continue;
            }
            let frame = timeout(PATIENCE, self.body.frame()).await.expect("nothing came for too long");
            let frame = frame?.ok()?;
            self.buffered.push_str(std::str::from_utf8(frame.data_ref()?).expect("events are text"));
        }
    }

    /// The next decision.
    pub async fn decision(&mut self) -> Value {
        let came = self.next().await.expect("the stream goes on");
        assert_eq!(came.event, "decision", "{came:?}");
        came.json()
    }

    /// The next part of a page with this name.
    pub async fn part(&mut self, name: &str) -> String {
        loop {
            let came = self.next().await.expect("the stream goes on");
            if came.event == name {
                return came.data;
            }
        }
    }
}
