//! `kill -9` under load, again and again: nothing that the server has acknowledged is lost or changed.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::support::{Home, Ledger, claims_and_settles, eventually, verify};

const KILLS: usize = 100;
const CLIENTS: usize = 8;
/// Acknowledged claims that are looked at after each restart; at the end, all are.
const SAMPLE: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_is_there_after_each_of_100_kills() {
    let home = Home::new();
    let ledger = Arc::new(Ledger::default());
    let started = Instant::now();
    for kill in 0..KILLS {
        let server = home.serve();
        let acknowledged = ledger.all();
        let every = acknowledged.len().div_ceil(SAMPLE).max(1);
        // The newest are the likeliest to be lost.
        let newest = acknowledged.iter().rev().take(SAMPLE).cloned();
        let sample: Vec<_> = acknowledged.iter().step_by(every).cloned().chain(newest).collect();
        verify(server.address, &sample).await;

        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (ledger, address) = (ledger.clone(), server.address);
                // In pairs, who race for the same keys.
                let name = format!("{kill}-{}", client / 2);
                tokio::spawn(async move { claims_and_settles(address, &name, &ledger, &AtomicBool::new(false)).await })
            })
            .collect();
        eventually("the load has begun", || async { (ledger.len() > acknowledged.len()).then_some(()) }).await;
        // A different moment each time, from at once to 60 ms.
        tokio::time::sleep(Duration::from_micros((kill as u64 * 7919) % 60_000)).await;
        server.kill();
        for client in clients {
            let cut_off = client.await.expect("no client was told anything that cannot be");
            assert!(cut_off.is_err(), "a client ends when its server does");
        }
    }
    ledger.assert_one_winner_each();
    let server = home.serve();
    verify(server.address, &ledger.all()).await;
    let (claims, settled) = (ledger.len(), ledger.settled());
    println!(
        "{KILLS} kills, {claims} acknowledged claims, {settled} acknowledged settles, all there; {:?}",
        started.elapsed()
    );
    assert!(settled > KILLS, "the load was too light to prove anything: {settled}");
}
