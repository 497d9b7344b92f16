//! The workload of the benchmark: claims, where every second claim repeats the key before it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncegate::store::{Op, Store};
use oncegate::{ClaimKey, Command, GuardName, Lost, Terms, WorkspaceName};

use super::Measured;
use super::stats::{Latency, Rate};
use oncegate_process::failure::Failure;

/// The key of a caller's `turn`: a fresh key on even turns, the same key again on odd ones.
pub fn key(caller: usize, turn: u64) -> ClaimKey {
    let guard = GuardName::new("bench").expect("a good name");
    let parts = [Some((caller as u64).to_le_bytes()), Some((turn / 2).to_le_bytes())];
    ClaimKey::of(&WorkspaceName::default_workspace(), &guard, &parts)
}

pub fn terms() -> Terms {
    Terms::new(Duration::from_secs(24 * 3600), Duration::from_secs(30), Lost::TakeOver)
}

/// `callers` tasks that each decide again as soon as they are answered, for `span`.
pub async fn measure(
    name: &'static str,
    store: &Arc<dyn Store>,
    callers: usize,
    span: Duration,
) -> Result<Measured, Failure> {
    let start = Instant::now();
    let tasks = (0..callers).map(|caller| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut micros = vec![];
            while start.elapsed() < span {
                let asked = Instant::now();
                let op = Op { key: key(caller, micros.len() as u64), command: Command::Claim(terms()) };
                store.commit(op.into()).await?;
                micros.push(asked.elapsed().as_micros() as u32);
            }
            Ok::<_, oncegate::StoreError>(micros)
        })
    });
    let mut micros = vec![];
    for task in tasks.collect::<Vec<_>>() {
        micros.extend(task.await.map_err(|error| Failure::new(error.to_string()))??);
    }
    let rate = Rate(micros.len() as f64 / start.elapsed().as_secs_f64());
    Ok(Measured { name, rate, latency: Latency::of(micros) })
}
