//! The checker of histories detects each of these broken stores, and reports nothing for the store without a defect.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use oncegate_core::{Answer, ClaimKey, Command, Refusal};
use oncegate_store::conformance::histories::{Flaky, Rules, Violation, check, record};
use oncegate_store::conformance::{START, Wrapper};
use oncegate_store::{Commit, Committed, ManualClock, MemoryStore, Op, Store, StoreError};

/// A broken store fails only once in this many calls, and the checker still detects it.
const ONE_IN: u64 = 8;
/// Runs with different interleavings, of which one must show the violation. Nearly always the first run does.
const RUNS: usize = 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Defect {
    None,
    /// A claim whose owner is alive is taken over.
    NoLeaseCheck,
    /// An outdated token is as good as the current one.
    NoFence,
    /// A settle is acknowledged and not written.
    Forgets,
    /// The claim that a caller met is answered to the next callers too, for some calls.
    StaleCache,
}

struct Broken {
    inner: MemoryStore,
    defect: Defect,
    calls: AtomicU64,
    cache: Mutex<HashMap<ClaimKey, (u64, Committed)>>,
}

impl Broken {
    fn new(defect: Defect, clock: Arc<ManualClock>) -> Broken {
        let inner = MemoryStore::with_clock(clock);
        Broken { inner, defect, calls: AtomicU64::new(0), cache: Mutex::default() }
    }

    async fn one(&self, key: &ClaimKey, command: Command) -> Result<Committed, StoreError> {
        self.inner.commit(Op { key: key.clone(), command }.into()).await
    }
}

#[async_trait]
impl Wrapper for Broken {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        let is_its_turn = call.is_multiple_of(ONE_IN);
        let Op { key, command } = commit.ops[0].clone();
        match (self.defect, &command) {
            (Defect::Forgets, Command::Settle { token, .. }) if is_its_turn => {
                let found = self.inner.read(&key).await?;
                if let Some(claim) =
                    found.value.filter(|claim| claim.token == *token && claim.owner_is_alive(found.now))
                {
                    return Ok(Committed::of_claims([Answer::Applied(claim.into())].into_iter().collect(), found.now));
                }
            }
            (Defect::StaleCache, Command::Claim(_)) => {
                let cached = self.cache.lock().expect("no holder panics").get(&key).cloned();
                if let Some((_, answer)) = cached.filter(|(since, _)| call < since + 5 * ONE_IN) {
                    return Ok(answer);
                }
            }
            _ => {}
        }
        let committed = self.inner.commit(commit).await?;
        match (self.defect, committed.answers.first().expect("one operation"), command) {
            (Defect::NoLeaseCheck, Answer::InFlight(_), command) if is_its_turn => {
                self.one(&key, Command::Forget).await?;
                self.one(&key, command).await
            }
            (Defect::NoFence, Answer::Refused(Refusal::TokenOutdated { current }), command) => {
                let current = *current;
                let with_current = match command {
                    Command::Renew { lease, .. } => Command::Renew { token: current, lease },
                    Command::Settle { verdict, outcome, .. } => Command::Settle { token: current, verdict, outcome },
                    Command::Release { .. } => Command::Release { token: current },
                    other => other,
                };
                self.one(&key, with_current).await
            }
            (Defect::StaleCache, answer, _) if answer.met().is_some() => {
                self.cache.lock().expect("no holder panics").insert(key, (call, committed.clone()));
                Ok(committed)
            }
            _ => Ok(committed),
        }
    }
}

async fn run(defect: Defect) -> Result<(), Box<Violation>> {
    let clock = Arc::new(ManualClock::starting_at(START));
    let store = Flaky::new(Arc::new(Broken::new(defect, clock.clone())));
    let history = record(Arc::new(store), clock).await;
    check(&history, Rules::default()).map(drop)
}

async fn is_found_out(defect: Defect) {
    for _ in 0..RUNS {
        if let Err(violation) = run(defect).await {
            return println!("{violation}");
        }
    }
    panic!("not found in {RUNS} histories");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_that_is_not_broken_has_no_violation() {
    for _ in 0..RUNS {
        if let Err(violation) = run(Defect::None).await {
            panic!("{violation}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_without_the_lease_check_is_found_out() {
    is_found_out(Defect::NoLeaseCheck).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_without_the_fence_is_found_out() {
    is_found_out(Defect::NoFence).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_that_forgets_acknowledged_writes_is_found_out() {
    is_found_out(Defect::Forgets).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_that_answers_from_a_stale_cache_is_found_out() {
    is_found_out(Defect::StaleCache).await;
}
