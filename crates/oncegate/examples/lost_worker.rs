//! A worker dies between the effect and its record. Under `TakeOver` the next worker tries again, with a larger fencing
//! token. Under `Hold` no worker tries again, and a person sees an unknown claim.
//!
//! `cargo run -p oncegate --example lost_worker`

use std::time::Duration;

use oncegate::{Claimed, Gate, Lost, Policy};

pub async fn story(store: &str) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let gate = Gate::open(store).await?;
    let mut lines = vec![];
    for lost in [Lost::TakeOver, Lost::Hold] {
        let policy = Policy { lease: Duration::from_millis(50), lost, ..Policy::default() };
        let guard = gate.guard("reminder", policy)?.waiting(Duration::from_secs(5));
        let key = guard.key(["booking 4", if lost == Lost::Hold { "held" } else { "taken over" }]);

        let Claimed::Won(dead) = guard.claim(&key).await? else { return Err("the first caller wins".into()) };
        // The worker dies here, so its lease is not renewed and its claim not settled. The next caller waits until the lease ends.
        match guard.claim(&key).await? {
            Claimed::Won(next) => {
                assert!(next.token() > dead.token());
                next.settle(None).await?;
                let late = dead.settle(None).await.is_err();
                lines.push(format!("{lost:?}: attempt {} settled it, the dead one is fenced: {late}", next.attempt()));
            }
            Claimed::Held { .. } => lines.push(format!("{lost:?}: unknown, a person has to look")),
            _ => return Err("the lease has ended".into()),
        }
    }
    gate.close().await;
    Ok(lines)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    story("memory:").await.map(|lines| println!("{}", lines.join("\n")))
}
