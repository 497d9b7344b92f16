//! HTTP: our server beside a minimal HTTP server, each in its own process, under the same load generator.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::stats::{Latency, Rate};
use super::{Measured, Setting};
use oncegate_process::child::Served;
use oncegate_process::failure::Failure;

const HELLO: [(usize, &str); 3] =
    [(1, "hello world, 1 connection"), (32, "hello world, 32 connections"), (256, "hello world, 256 connections")];
const CLAIMS: [(usize, &str); 3] =
    [(1, "HTTP, 1 connection"), (32, "HTTP, 32 connections"), (256, "HTTP, 256 connections")];
const MESSAGES: [(usize, &str); 2] = [(32, "messages, 32 connections"), (256, "messages, 256 connections")];
/// How many recipients each caller writes to, in turn.
const LEADS_EACH: u64 = 16;
const SENDS: [(usize, &str); 2] =
    [(32, "sends, begin + sent, 32 connections"), (256, "sends, begin + sent, 256 connections")];
const BATCH: usize = 1_000;
const BATCH_CONNECTIONS: usize = 8;

const SERVE: &[&str] = &["serve", "--listen", "127.0.0.1:0"];
const SERVE_FROM_MEMORY: &[&str] = &["serve", "--listen", "127.0.0.1:0", "--store", "memory:"];

/// Sends the same requests to all servers, so that the load generator costs the same.
pub async fn measure(setting: &Setting) -> Result<Vec<Measured>, Failure> {
    let mut measured = vec![];
    for ((connections, hello_name), (_, claims_name)) in HELLO.into_iter().zip(CLAIMS) {
        measured.push(claims(hello_name, &["bench-hello"], connections, setting).await?);
        measured.push(claims(claims_name, SERVE, connections, setting).await?);
    }
    for (connections, name) in MESSAGES {
        measured.push(messages(name, connections, setting).await?);
    }
    measured.push(claims("HTTP, nothing durable, 256 connections", SERVE_FROM_MEMORY, 256, setting).await?);
    let ours = start(SERVE, setting).await?;
    let address = ours.address;
    let batches =
        load("HTTP, batches of 1,000", address, BATCH_CONNECTIONS, BATCH, setting.span, move |caller, turn, _| {
            let claims: Vec<String> = (0..BATCH as u64).map(|i| claim(caller, turn * BATCH as u64 + i)).collect();
            post(address, "/api/claims/batch", &format!("[{}]", claims.join(",")))
        });
    measured.push(batches.await?);
    ours.kill().await;
    Ok(measured)
}

/// Guarded messages, on the channel that writes to a file.
async fn messages(name: &'static str, connections: usize, setting: &Setting) -> Result<Measured, Failure> {
    let server = start(SERVE, setting).await?;
    let address = server.address;
    let request = move |caller, turn, _: &[u8]| post(address, "/api/messages", &message(caller, turn));
    let measured = load(name, address, connections, 1, setting.span, request).await?;
    server.kill().await;
    Ok(measured)
}

/// Every second message repeats the one before it.
fn message(caller: usize, turn: u64) -> String {
    let number = turn / 2;
    let phone = caller as u64 * LEADS_EACH + number % LEADS_EACH;
    format!(r#"{{"recipientPhone":"+1555{phone:07}","message":"Your parcel {number} is on its way."}}"#)
}

async fn claims(
    name: &'static str,
    arguments: &[&str],
    connections: usize,
    setting: &Setting,
) -> Result<Measured, Failure> {
    let server = start(arguments, setting).await?;
    let address = server.address;
    let request = move |caller, turn, _: &[u8]| post(address, "/api/claims", &claim(caller, turn));
    let measured = load(name, address, connections, 1, setting.span, request).await?;
    server.kill().await;
    Ok(measured)
}

/// Every second claim repeats the key before it.
fn claim(caller: usize, turn: u64) -> String {
    format!(r#"{{"guard":"bench","key":["{caller}","{}"]}}"#, turn / 2)
}

pub fn post(address: SocketAddr, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// Measures pairs of requests: a worker's question before it sends, and its report after that. Each pair is about another recipient.
pub async fn sends(setting: &Setting) -> Result<Vec<Measured>, Failure> {
    let mut measured = vec![];
    for (connections, name) in SENDS {
        let server = start(SERVE, setting).await?;
        let address = server.address;
        let request = move |caller: usize, turn: u64, answer: &[u8]| match turn % 2 {
            0 => post(address, "/api/sends", &format!(r#"{{"campaignId":"bench","recipientId":"{caller}-{turn}"}}"#)),
            _ => {
                let begun: serde_json::Value = serde_json::from_slice(answer).expect("an answer is JSON");
                let id = begun["id"].as_str().expect("nobody else sends it");
                let sent = format!(r#"{{"token":{},"espMessageId":"bench"}}"#, begun["token"]);
                post(address, &format!("/api/sends/{id}/sent"), &sent)
            }
        };
        let requests = load(name, address, connections, 1, setting.span, request).await?;
        measured.push(Measured { rate: Rate(requests.rate.0 / 2.0), ..requests });
        server.kill().await;
    }
    Ok(measured)
}

/// `connections` clients that each ask again as soon as they are answered, for `span`. One request counts for `worth` operations. The
/// next request may depend on the last answer.
async fn load(
    name: &'static str,
    address: SocketAddr,
    connections: usize,
    worth: usize,
    span: Duration,
    request: impl Fn(usize, u64, &[u8]) -> Vec<u8> + Copy + Send + 'static,
) -> Result<Measured, Failure> {
    let broken = |error: std::io::Error| Failure::new(format!("{name}: {error}"));
    let mut clients = vec![];
    for _ in 0..connections {
        clients.push(Client::connect(address).await.map_err(broken)?);
    }
    let start = Instant::now();
    let tasks = clients.into_iter().enumerate().map(|(caller, mut client)| {
        tokio::spawn(async move {
            let mut micros = vec![];
            while start.elapsed() < span {
                let request = request(caller, micros.len() as u64, client.answer());
                let asked = Instant::now();
                client.ask(&request).await?;
                micros.push(asked.elapsed().as_micros() as u32);
            }
            Ok::<_, std::io::Error>(micros)
        })
    });
    let mut micros = vec![];
    for task in tasks.collect::<Vec<_>>() {
        micros.extend(task.await.map_err(|error| Failure::new(error.to_string()))?.map_err(broken)?);
    }
    let rate = Rate((micros.len() * worth) as f64 / start.elapsed().as_secs_f64());
    Ok(Measured { name, rate, latency: Latency::of(micros) })
}

/// A minimal HTTP client, so that the client itself is not what is measured.
pub struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// The length of the last response's head.
    head: usize,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Client { stream, buffer: Vec::with_capacity(64 * 1024), head: 0 })
    }

    /// Sends a request and reads its whole response, which must not be a refusal or a server's error.
    pub async fn ask(&mut self, request: &[u8]) -> std::io::Result<()> {
        self.exchange(request).await?;
        let line = self.buffer.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let is_expected =
            ["HTTP/1.1 2", "HTTP/1.1 303", "HTTP/1.1 409"].iter().any(|status| line.starts_with(status.as_bytes()));
        if is_expected { Ok(()) } else { Err(std::io::Error::other(String::from_utf8_lossy(line).into_owned())) }
    }

    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Reads and discards whatever arrives.
    pub async fn read_on(&mut self) -> std::io::Result<()> {
        loop {
            self.buffer.clear();
            self.read_more().await?;
        }
    }

    /// Sends a request and reads its whole response, whatever its status is.
    pub async fn exchange(&mut self, request: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        let (head, length) = loop {
            self.read_more().await?;
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break (end + 4, content_length(&self.buffer[..end])?);
            }
        };
        while self.buffer.len() < head + length {
            self.read_more().await?;
        }
        self.head = head;
        Ok(())
    }

    /// The body of the last response.
    pub fn answer(&self) -> &[u8] {
        &self.buffer[self.head..]
    }

    async fn read_more(&mut self) -> std::io::Result<()> {
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

fn content_length(head: &[u8]) -> std::io::Result<usize> {
    let head = String::from_utf8_lossy(head);
    head.lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok())
        .ok_or_else(|| std::io::Error::other("a response without a length"))
}

/// Starts this same program, on an empty store.
pub async fn start(arguments: &[&str], setting: &Setting) -> Result<Served, Failure> {
    let broken = |error: std::io::Error| Failure::new(format!("cannot start {}: {error}", arguments[0]));
    let folder = setting.folder.join("server");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).map_err(broken)?;
    let served = Served::start(arguments, &folder, &[]).await?;
    served.ok_or_else(|| Failure::new(format!("{} has ended", arguments[0])))
}

/// The peer: a bare axum server.
pub async fn hello() -> Result<(), Failure> {
    let broken = |error: std::io::Error| Failure::new(error.to_string());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.map_err(broken)?;
    eprintln!("hello world on http://{}", listener.local_addr().map_err(broken)?);
    let router = axum::Router::new().route("/api/claims", axum::routing::post(|| async { "hello, world\n" }));
    axum::serve(listener, router).await.map_err(broken)
}
