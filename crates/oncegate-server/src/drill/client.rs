//! A JSON client for a server that may die at any moment: a connection for each request, and an error that says no more than that.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::report::GuardFound;
use crate::cli::Failure;

const WITHIN: Duration = Duration::from_secs(15);

/// There was no answer: whether anything was done is open.
#[derive(Debug)]
pub struct NoAnswer;

pub async fn get(address: SocketAddr, path: &str) -> Result<Value, NoAnswer> {
    let (_, text) = ask(address, Method::GET, path, None, None).await?;
    serde_json::from_str(&text).map_err(|_| NoAnswer)
}

pub async fn get_text(address: SocketAddr, path: &str) -> Result<String, NoAnswer> {
    ask(address, Method::GET, path, None, None).await.map(|(_, text)| text)
}

/// The status.
pub async fn post(address: SocketAddr, path: &str, key: Option<&str>, body: &Value) -> Result<u16, NoAnswer> {
    ask(address, Method::POST, path, key, Some(body)).await.map(|(status, _)| status)
}

async fn ask(
    address: SocketAddr,
    method: Method,
    path: &str,
    key: Option<&str>,
    body: Option<&Value>,
) -> Result<(u16, String), NoAnswer> {
    let asked = async {
        let stream = TcpStream::connect(address).await.ok()?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header(HOST, address.to_string());
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let bytes = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let response = sender.send_request(request.body(Full::new(bytes)).ok()?).await.ok()?;
        let status = response.status().as_u16();
        let text = response.into_body().collect().await.ok()?.to_bytes();
        Some((status, String::from_utf8_lossy(&text).into_owned()))
    };
    tokio::time::timeout(WITHIN, asked).await.ok().flatten().ok_or(NoAnswer)
}

/// The guards that were asked, as the server has counted.
pub async fn guards_found(address: SocketAddr) -> Result<Vec<GuardFound>, Failure> {
    let metrics = get_text(address, "/metrics").await;
    let metrics = metrics.map_err(|_| Failure::new("the server did not say what it has decided"))?;
    let counted = |name: &str| {
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for line in metrics.lines().filter(|line| line.starts_with(name)) {
            let guard = line.split_once("guard=\"").and_then(|(_, rest)| rest.split_once('"'));
            let count = line.rsplit_once(' ').and_then(|(_, count)| count.parse::<f64>().ok());
            if let (Some((guard, _)), Some(count)) = (guard, count) {
                *counts.entry(guard.to_owned()).or_default() += count as u64;
            }
        }
        counts
    };
    let stopped = counted(crate::observe::STOPPED);
    let decisions = counted("oncegate_decisions_total").into_iter().filter(|(_, count)| *count > 0);
    let found = decisions.map(|(name, count)| GuardFound {
        stopped: stopped.get(&name).copied(),
        decisions: Some(count),
        kept: "claims of the store behind ONCEGATE_URL".to_owned(),
        name,
    });
    Ok(found.collect())
}
