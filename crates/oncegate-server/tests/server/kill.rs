//! `kill -9` and a power cut under load, again and again: nothing that the server has acknowledged is lost or changed.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use oncegate_lab::power::Shim;

use crate::support::{Faults, Home, Ledger, Server, claims_and_settles, eventually, verify};

const KILLS: usize = 100;
const CLIENTS: usize = 8;
/// The number of acknowledged claims that are checked after each restart; at the end, all are.
const SAMPLE: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_is_there_after_each_of_100_power_cuts() {
    let home = Home::new();
    let power = Shim::new(home.path().join("oncegate-data"), home.path().join("power")).expect("cc builds the shim");
    let ledger = Arc::new(Ledger::default());
    let (started, mut undone) = (Instant::now(), 0);
    for kill in 0..KILLS {
        let mut command = home.command(["serve", "--listen", "127.0.0.1:0"]);
        power.apply_to(&mut command);
        let server = Server::start(command);
        let acknowledged = ledger.all();
        let every = acknowledged.len().div_ceil(SAMPLE).max(1);
        // The newest claims are the likeliest to be lost.
        let newest = acknowledged.iter().rev().take(SAMPLE).cloned();
        let sample: Vec<_> = acknowledged.iter().step_by(every).cloned().chain(newest).collect();
        verify(server.address, &sample).await;

        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (ledger, address) = (ledger.clone(), server.address);
                // In pairs, whose clients race for the same keys.
                let name = format!("{kill}-{}", client / 2);
                tokio::spawn(async move {
                    claims_and_settles(address, &name, &ledger, &AtomicBool::new(false), Faults::None).await
                })
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
        // A kill alone keeps the page cache, with all writes that were never synced.
        undone += power.cut(kill as u64).expect("cuts the power").undone;
    }
    ledger.assert_one_winner_each();
    let server = home.serve();
    verify(server.address, &ledger.all()).await;
    let (claims, settled) = (ledger.len(), ledger.settled());
    println!(
        "{KILLS} power cuts undid {undone} changes; {claims} acknowledged claims, {settled} acknowledged settles, all there; {:?}",
        started.elapsed()
    );
    assert!(undone > 0, "no cut found anything that was not synced");
    assert!(settled > KILLS, "the load was too light to prove anything: {settled}");
}
