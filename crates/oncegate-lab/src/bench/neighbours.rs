//! How much one workspace suffers while another one takes all it can get: a claim every few milliseconds, without load and under each
//! attack.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use super::http::{Client, start};
use super::stats::{Latency, Rate};
use super::{Measured, Setting};
use oncegate_process::failure::Failure;

/// How often the calm workspace claims.
const CLAIM_EVERY: Duration = Duration::from_millis(5);
/// Time for the attack to get under way.
const ATTACK_FIRST: Duration = Duration::from_millis(500);
/// How many claims there are between two health checks of the server. Each check uses a new connection.
const HEALTH_EVERY: usize = 20;
/// How soon an attacker reconnects.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// How many connections each of the silent attackers keeps open.
const SILENT_EACH: usize = 64;

#[derive(Clone, Copy)]
enum Attack {
    None,
    Claims,
    Batches,
    Events,
    Pages,
    Silence,
    StalledBodies,
    Waiters,
    Followers,
    UnreadAnswers,
    Outcomes,
}

const ATTACKS: [(Attack, &str); 11] = [
    (Attack::None, "a claim, undisturbed"),
    (Attack::Claims, "a claim, beside claims over 256 connections"),
    (Attack::Batches, "a claim, beside batches of 1,000 over 8 connections"),
    (Attack::Events, "a claim, beside lists of 500 events over 70 connections"),
    (Attack::Pages, "a claim, beside lists of 500 claims over 64 connections"),
    (Attack::Silence, "a claim, beside 4,096 connections that say nothing"),
    (Attack::StalledBodies, "a claim, beside 500 bodies of 4 MB that stall"),
    (Attack::Waiters, "a claim, beside 2,000 callers that wait"),
    (Attack::Followers, "a claim, beside 64 followers that read"),
    (Attack::UnreadAnswers, "a claim, beside 200 answers that are not read"),
    (Attack::Outcomes, "a claim, beside outcomes of 1 MB over 8 connections"),
];

pub async fn measure(setting: &Setting) -> Result<Vec<Measured>, Failure> {
    let mut measured = vec![];
    for (attack, name) in ATTACKS {
        let server = start(&["serve", "--listen", "127.0.0.1:0"], setting).await?;
        let broken = |error: std::io::Error| Failure::new(format!("{name}: {error}"));
        let address = server.address;
        prepare(address).await.map_err(broken)?;
        // The attackers end with the set, after the calm workspace has been measured.
        let _attackers = attack.begin(address).await.map_err(broken)?;
        tokio::time::sleep(ATTACK_FIRST).await;
        let mut calm = Client::connect(address).await.map_err(broken)?;
        let (begun, mut micros) = (Instant::now(), vec![]);
        while begun.elapsed() < setting.span {
            let body = format!(r#"{{"guard":"calm","key":["{}"]}}"#, micros.len());
            let request = request(address, "calm", "POST", "/api/claims", &body);
            let asked = Instant::now();
            calm.ask(&request).await.map_err(broken)?;
            micros.push(asked.elapsed().as_micros() as u32);
            if micros.len() % HEALTH_EVERY == 0 {
                let mut asker = Client::connect(address).await.map_err(broken)?;
                asker.ask(&self::request(address, "calm", "GET", "/healthz", "")).await.map_err(broken)?;
            }
            tokio::time::sleep(CLAIM_EVERY.saturating_sub(asked.elapsed())).await;
        }
        let rate = Rate(micros.len() as f64 / begun.elapsed().as_secs_f64());
        measured.push(Measured { name, rate, latency: Latency::of(micros) });
        server.kill().await;
    }
    Ok(measured)
}

fn request(address: SocketAddr, workspace: &str, method: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\noncegate-workspace: {workspace}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

fn busy(address: SocketAddr, path: &str, body: &str) -> Vec<u8> {
    request(address, "busy", "POST", path, body)
}

/// Creates a claim in flight, and eight claims with an outcome of a megabyte.
async fn prepare(address: SocketAddr) -> std::io::Result<()> {
    let mut client = Client::connect(address).await?;
    client.ask(&busy(address, "/api/claims", r#"{"guard":"busy","key":["in flight"],"leaseSeconds":600}"#)).await?;
    for number in 0..8 {
        settle_large(&mut client, address, &number.to_string()).await?;
    }
    Ok(())
}

/// A claim with an outcome of a megabyte, with a window of ten years.
async fn settle_large(client: &mut Client, address: SocketAddr, part: &str) -> std::io::Result<()> {
    let claim = format!(r#"{{"guard":"busy","key":["{part}"],"ttlSeconds":315360000}}"#);
    client.ask(&busy(address, "/api/claims", &claim)).await?;
    let won: serde_json::Value = serde_json::from_slice(client.answer())?;
    let outcome = "x".repeat(1_000_000);
    let settle = format!(r#"{{"guard":"busy","token":{},"outcome":"{outcome}"}}"#, won["token"]);
    let path = format!("/api/claims/{}/settle", won["id"].as_str().unwrap_or_default());
    client.ask(&busy(address, &path, &settle)).await
}

impl Attack {
    async fn begin(self, address: SocketAddr) -> std::io::Result<JoinSet<()>> {
        let mut attackers = JoinSet::new();
        let count = match self {
            Attack::None => 0,
            Attack::Claims => 256,
            Attack::Batches => 8,
            Attack::Events => 70,
            Attack::Pages => 64,
            Attack::Silence => 64,
            Attack::StalledBodies => 500,
            Attack::Waiters => 2_000,
            Attack::Followers => 64,
            Attack::UnreadAnswers => 200,
            Attack::Outcomes => 8,
        };
        for number in 0..count {
            let mut client = Client::connect(address).await?;
            attackers.spawn(async move {
                // An attacker that is cut off reconnects.
                loop {
                    let _ = self.go_on(address, number, client).await;
                    client = loop {
                        tokio::time::sleep(AGAIN_AFTER).await;
                        if let Ok(client) = Client::connect(address).await {
                            break client;
                        }
                    };
                }
            });
        }
        Ok(attackers)
    }

    async fn go_on(self, address: SocketAddr, number: usize, mut client: Client) -> std::io::Result<()> {
        let silent = std::future::pending::<std::io::Result<()>>();
        for turn in 0_u64.. {
            let request = match self {
                Attack::None => return silent.await,
                Attack::Claims => {
                    let body = format!(r#"{{"guard":"busy","key":["{number}","{turn}"]}}"#);
                    busy(address, "/api/claims", &body)
                }
                Attack::Batches => {
                    let claim = |i| format!(r#"{{"guard":"busy","key":["{number}","{turn}","{i}"]}}"#);
                    let claims: Vec<String> = (0..1_000).map(claim).collect();
                    busy(address, "/api/claims/batch", &format!("[{}]", claims.join(",")))
                }
                Attack::Events => {
                    let event = |i| {
                        let id = format!("{number} {turn} {i}");
                        format!(r#"{{"type":"Unknown","id":"{id}","correlationId":"{id}","data":{{}}}}"#)
                    };
                    let events: Vec<String> = (0..500).map(event).collect();
                    busy(address, "/api/events", &format!("[{}]", events.join(",")))
                }
                Attack::Outcomes => {
                    settle_large(&mut client, address, &format!("{number} {turn}")).await?;
                    continue;
                }
                Attack::Pages => request(address, "busy", "GET", "/api/claims?limit=500", ""),
                Attack::Waiters => {
                    busy(address, "/api/claims", r#"{"guard":"busy","key":["in flight"],"waitSeconds":60}"#)
                }
                Attack::Silence => {
                    let mut open = VecDeque::from([client]);
                    loop {
                        open.push_back(Client::connect(address).await?);
                        if open.len() > SILENT_EACH {
                            open.pop_front();
                            tokio::time::sleep(AGAIN_AFTER).await;
                        }
                    }
                }
                Attack::StalledBodies => {
                    let head = format!(
                        "POST /api/events HTTP/1.1\r\nhost: {address}\r\noncegate-workspace: busy\r\n\
                         content-type: application/json\r\ncontent-length: 4000000\r\n\r\n["
                    );
                    client.stream().write_all(head.as_bytes()).await?;
                    return client.read_on().await;
                }
                Attack::Followers => {
                    client.stream().write_all(&request(address, "busy", "GET", "/api/decisions", "")).await?;
                    return client.read_on().await;
                }
                Attack::UnreadAnswers => {
                    let claims: Vec<String> = (0..8).map(|i| format!(r#"{{"guard":"busy","key":["{i}"]}}"#)).collect();
                    let batch = busy(address, "/api/claims/batch", &format!("[{}]", claims.join(",")));
                    client.stream().write_all(&batch).await?;
                    return silent.await;
                }
            };
            client.exchange(&request).await?;
        }
        Ok(())
    }
}
