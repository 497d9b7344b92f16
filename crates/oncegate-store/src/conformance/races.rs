//! Real concurrency on one key.

use std::sync::Arc;

use oncegate_core::{Answer, Command};
use tokio::sync::Barrier;

use super::{World, key, settle, terms};
use crate::Op;

const TASKS: usize = 64;

/// In each round all tasks claim one fresh key at once. One task wins, and the other tasks read
/// its outcome when they claim again.
pub async fn one_winner_each_round(world: World, rounds: usize) {
    let store = world.store.clone();
    let barrier = Arc::new(Barrier::new(TASKS));
    let tasks = (0..TASKS).map(|_| {
        let (store, barrier) = (store.clone(), barrier.clone());
        tokio::spawn(async move {
            let mut wins = 0;
            for round in 0..rounds {
                let key = key(&format!("round {round}"));
                let op = Op { key: key.clone(), command: Command::Claim(terms()) };
                barrier.wait().await;
                match store.commit(op.into()).await.expect("the store is there").only() {
                    Answer::Won(claim) => {
                        wins += 1;
                        let op = Op { key, command: settle(claim.token, round.to_string()) };
                        assert!(store.commit(op.into()).await.expect("the store is there").is_written());
                    }
                    Answer::InFlight(_) => {}
                    Answer::Duplicate(claim) => {
                        assert_eq!(claim.outcome.as_deref(), Some(round.to_string().as_bytes()));
                    }
                    other => panic!("{other:?}"),
                }
            }
            wins
        })
    });
    let mut wins = 0;
    for task in tasks.collect::<Vec<_>>() {
        wins += task.await.expect("does not panic");
    }
    assert_eq!(wins, rounds, "each round has one winner");
}
