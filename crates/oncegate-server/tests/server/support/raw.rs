//! A bare connection, for requests that no well-behaved client would send.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

pub struct Raw {
    stream: TcpStream,
    address: SocketAddr,
    /// A header line, if there is a key.
    key: String,
    read: Vec<u8>,
}

impl Raw {
    pub async fn connect(address: SocketAddr) -> Raw {
        let stream = TcpStream::connect(address).await.expect("the server listens");
        Raw { stream, address, key: String::new(), read: Vec::new() }
    }

    /// A connection with a small receive buffer. By default, the system buffers megabytes that the test does not read, and more with time.
    pub async fn connect_narrow(address: SocketAddr) -> Raw {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("an option of the system's");
        let stream = socket.connect(address).await.expect("the server listens");
        Raw { stream, address, key: String::new(), read: Vec::new() }
    }

    /// Sends this key with each request that [`Raw::post`] makes.
    pub fn with_key(self, key: &str) -> Raw {
        Raw { key: format!("authorization: Bearer {key}\r\n"), ..self }
    }

    /// The head of a `POST /api/claims` as JSON, with these header lines too.
    pub async fn post_head(&mut self, more: &str) {
        let address = self.address;
        let head =
            format!("POST /api/claims HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n{more}\r\n\r\n");
        self.write(head.as_bytes()).await;
    }

    /// Closes the sending half, and continues to read.
    pub async fn close_half(&mut self) {
        self.stream.shutdown().await.expect("the connection is open");
    }

    /// Closes with a FIN, as the system does for a process that ends.
    pub fn close(self) {}

    /// Closes with a RST.
    pub fn reset(self) {
        self.stream.set_zero_linger().expect("an option of the system's");
    }

    /// A whole `POST` of JSON, as the bytes of one request.
    pub fn post(&self, path: &str, body: &Value) -> String {
        let (address, key, body) = (self.address, &self.key, body.to_string());
        let length = body.len();
        format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\n{key}content-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        )
    }

    pub async fn write(&mut self, bytes: &[u8]) {
        self.try_write(bytes).await.expect("the connection is open");
    }

    pub async fn try_write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// The status of the next answer.
    pub async fn read_status(&mut self) -> u16 {
        let mut head = [0; 12];
        let read = timeout(super::PATIENCE, self.stream.read_exact(&mut head)).await;
        read.expect("in time").expect("an answer");
        let status = std::str::from_utf8(&head[9..]).ok().and_then(|status| status.parse().ok());
        status.expect("a status")
    }

    /// Everything until the server closes the connection.
    pub async fn read_to_close(&mut self, limit: Duration) -> String {
        match self.read_for(limit).await {
            Some(text) => text,
            None => panic!("still open after {limit:?}: {:?}", String::from_utf8_lossy(&self.read)),
        }
    }

    /// The data received before the connection was closed, if it is closed within `limit`.
    pub async fn read_for(&mut self, limit: Duration) -> Option<String> {
        // A reset after the answer counts as a close, too: the client had sent more than the server read.
        let read = timeout(limit, self.stream.read_to_end(&mut self.read)).await;
        read.is_ok().then(|| String::from_utf8_lossy(&self.read).into_owned())
    }
}
