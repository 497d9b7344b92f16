//! The load: one file for each policy. Each policy uses one generation of keys for some seconds, checks the outcomes, and starts with
//! new keys.

mod actions;
mod claims;
mod messages;
mod reminders;
mod sagas;
mod sends;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Run;

/// How long a generation of keys is used.
const GENERATION: Duration = Duration::from_secs(6);
/// Workers of each policy, so that one generates load while the other checks.
const WORKERS: u64 = 2;

/// Runs until the time is up and everything that was acknowledged is checked.
pub async fn run(run: Arc<Run>) {
    let mut all = tokio::task::JoinSet::new();
    macro_rules! policies {
        ($($policy:ident),*) => {
            $(for worker in 0..WORKERS {
                let run = run.clone();
                all.spawn(async move {
                    let mut number = worker;
                    // At least one generation is checked.
                    loop {
                        if let Err(violation) = $policy::generation(&run, number).await {
                            if violation.is_empty() {
                                return;
                            }
                            run.tally.violate(format!("{}: {violation}", stringify!($policy)));
                        }
                        number += WORKERS;
                        if run.time_is_up() {
                            return;
                        }
                    }
                });
            })*
        };
    }
    policies!(claims, messages, actions, sends, reminders, sagas);
    while let Some(ended) = all.join_next().await {
        if let Err(error) = ended {
            run.tally.fail(format!("a check of the load ended by itself: {error}"));
        }
    }
}

/// When a generation's time is up.
struct Shift(Instant);

impl Shift {
    fn begin() -> Shift {
        Shift(Instant::now() + GENERATION)
    }

    fn is_over(&self, run: &Run) -> bool {
        Instant::now() >= self.0 || run.time_is_up()
    }
}
