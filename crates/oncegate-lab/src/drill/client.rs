//! The drill's requests to the server.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use hyper::Method;
use serde_json::Value;

use super::report::GuardFound;
use oncegate_process::failure::Failure;
pub use oncegate_process::loopback::NoAnswer;
use oncegate_process::loopback::ask;

pub async fn get(address: SocketAddr, path: &str) -> Result<Value, NoAnswer> {
    let (_, text) = ask(address, Method::GET, path, None, None).await?;
    serde_json::from_str(&text).map_err(|_| NoAnswer)
}

pub async fn get_text(address: SocketAddr, path: &str) -> Result<String, NoAnswer> {
    ask(address, Method::GET, path, None, None).await.map(|(_, text)| text)
}

/// Returns the status.
pub async fn post(address: SocketAddr, path: &str, key: Option<&str>, body: &Value) -> Result<u16, NoAnswer> {
    ask(address, Method::POST, path, key, Some(body)).await.map(|(status, _)| status)
}

/// The guards that were asked, with the server's counts.
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
    let stopped = counted(oncegate_http::observe::STOPPED);
    let decisions = counted("oncegate_decisions_total").into_iter().filter(|(_, count)| *count > 0);
    let found = decisions.map(|(name, count)| GuardFound {
        stopped: stopped.get(&name).copied(),
        decisions: Some(count),
        kept: "claims of the store behind ONCEGATE_URL".to_owned(),
        name,
    });
    Ok(found.collect())
}
