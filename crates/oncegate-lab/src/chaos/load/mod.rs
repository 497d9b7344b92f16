//! The load: one file for each policy. Each works on a generation of keys for some seconds, then checks what became of them, and begins anew.

mod actions;
mod claims;
mod messages;
mod reminders;
mod sagas;
mod sends;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Run;

/// How long a generation of keys is worked on.
const GENERATION: Duration = Duration::from_secs(6);
/// Of each policy, so that one is at work while the other is checked.
const WORKERS: u64 = 2;

/// Until the time is up, and all that was acknowledged is checked.
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

/// Until the generation has had its time.
struct Shift(Instant);

impl Shift {
    fn begin() -> Shift {
        Shift(Instant::now() + GENERATION)
    }

    fn is_over(&self, run: &Run) -> bool {
        Instant::now() >= self.0 || run.time_is_up()
    }
}
