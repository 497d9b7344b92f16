//! The ledger: every claim of a process goes through here.
//!
//! It adds to a store what no store should have to think of: callers that wait and are woken,
//! duplicates counted behind their backs, and an [`Observer`] that hears of every decision.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncegate_core::limits::WAIT_MAX;
use oncegate_core::{Answer, Claim, ClaimKey, Command, Terms, Time};
use oncegate_store::{Commit, Op, Reading, Store, StoreError, Waiters};
use tokio::time::Instant;

use crate::duplicates::Duplicates;
use crate::sweeper::Sweeper;

/// Hears of what the ledger does. Called on the caller's task: be quick.
pub trait Observer: Send + Sync + 'static {
    fn decided(&self, _decided: &Decided<'_>) {}
    fn store_failed(&self, _key: &ClaimKey, _error: &StoreError) {}
    fn swept(&self, _claims: usize) {}
}

/// Somebody asked something of a claim, and this is what they were told.
pub struct Decided<'a> {
    pub key: &'a ClaimKey,
    pub command: &'a Command,
    pub answer: &'a Answer,
    pub now: Time,
    /// Whether the caller waited for another's claim.
    pub waited: bool,
}

/// The observer that does nothing.
impl Observer for () {}

pub struct Ledger {
    store: Arc<dyn Store>,
    waiters: Arc<Waiters>,
    observer: Arc<dyn Observer>,
    duplicates: Duplicates,
    sweeper: Sweeper,
    /// Nobody is to wait any longer.
    leaving: AtomicBool,
}

impl Ledger {
    /// Starts the ledger's background work on the current tokio runtime.
    pub fn start(store: Arc<dyn Store>, observer: Arc<dyn Observer>) -> Self {
        let waiters = Arc::new(Waiters::default());
        store.attach(waiters.clone());
        Ledger {
            duplicates: Duplicates::start(store.clone()),
            sweeper: Sweeper::start(store.clone(), observer.clone()),
            leaving: AtomicBool::new(false),
            waiters,
            observer,
            store,
        }
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Claims `key`. Where its owner is at work, waits up to `wait` for it to settle, release or die.
    pub async fn claim(&self, key: &ClaimKey, terms: Terms, wait: Duration) -> Result<Reading<Answer>, StoreError> {
        let command = Command::Claim(terms);
        let mut reading = self.ask(key, &command).await?;
        let waits = !wait.is_zero() && matches!(reading.value, Answer::InFlight(_));
        if waits {
            reading = self.wait_and_claim(key, &command, wait).await?;
        }
        self.met(key, &command, &reading, waits);
        Ok(reading)
    }

    /// Claims many keys, all different, without waiting for anybody.
    pub async fn claim_all(&self, claims: Vec<(&ClaimKey, Terms)>) -> Vec<Result<Reading<Answer>, StoreError>> {
        let ops = claims.into_iter().map(|(key, terms)| Op { key: key.clone(), command: Command::Claim(terms) });
        let ops: Vec<Op> = ops.collect();
        let committed = self.store.commit_all(ops.iter().cloned().map(Commit::from).collect()).await;
        let answered = ops.iter().zip(committed).map(|(op, committed)| match committed {
            Ok(committed) => {
                let reading = Reading { now: committed.now, value: committed.only() };
                self.met(&op.key, &op.command, &reading, false);
                Ok(reading)
            }
            Err(error) => {
                self.observer.store_failed(&op.key, &error);
                Err(error)
            }
        });
        answered.collect()
    }

    /// An owner's or a person's verb.
    pub async fn apply(&self, key: &ClaimKey, command: Command) -> Result<Reading<Answer>, StoreError> {
        let reading = self.ask(key, &command).await?;
        self.tell(key, &command, &reading, false);
        Ok(reading)
    }

    pub async fn read(&self, key: &ClaimKey) -> Result<Reading<Option<Claim>>, StoreError> {
        self.store.read(key).await.inspect_err(|error| self.observer.store_failed(key, error))
    }

    /// Sends those who wait away with what they know: from now on nobody waits. Nothing that is being decided
    /// is cut off, so nobody becomes an owner without being told.
    pub fn stop_waiting(&self) {
        self.leaving.store(true, Ordering::SeqCst);
        self.waiters.wake_all();
    }

    /// Stops the background work, writes what is still to be written behind, and closes the store.
    pub async fn close(&self) {
        self.sweeper.stop();
        self.duplicates.stop().await;
        self.store.close().await;
    }

    /// Registers first and asks after, so that a settle in between is not missed. Sleeps until woken,
    /// or until the owner's lease ends and the claim may be taken over, or until `wait` is over.
    async fn wait_and_claim(
        &self,
        key: &ClaimKey,
        command: &Command,
        wait: Duration,
    ) -> Result<Reading<Answer>, StoreError> {
        let deadline = Instant::now() + wait.min(WAIT_MAX);
        let mut waiter = self.waiters.register(&key.workspace, key.id);
        loop {
            self.store.expect_wake(key).await.inspect_err(|error| self.observer.store_failed(key, error))?;
            let reading = self.ask(key, command).await?;
            let Answer::InFlight(claim) = &reading.value else { return Ok(reading) };
            if Instant::now() >= deadline || self.leaving.load(Ordering::SeqCst) {
                return Ok(reading);
            }
            let lease_left = claim.lease_until.since(reading.now);
            let until = deadline.min(Instant::now() + lease_left);
            // Whichever it is, the next look decides.
            let _ = tokio::time::timeout_at(until, waiter.woken()).await;
        }
    }

    async fn ask(&self, key: &ClaimKey, command: &Command) -> Result<Reading<Answer>, StoreError> {
        let op = Op { key: key.clone(), command: command.clone() };
        match self.store.commit(op.into()).await {
            Ok(committed) => Ok(Reading { now: committed.now, value: committed.only() }),
            Err(error) => {
                self.observer.store_failed(key, &error);
                Err(error)
            }
        }
    }

    /// What follows every claim: whoever met another's is counted.
    fn met(&self, key: &ClaimKey, command: &Command, reading: &Reading<Answer>, waited: bool) {
        if let Some(met) = reading.value.met() {
            self.duplicates.count(met, reading.now);
        }
        self.tell(key, command, reading, waited);
    }

    fn tell(&self, key: &ClaimKey, command: &Command, reading: &Reading<Answer>, waited: bool) {
        self.observer.decided(&Decided { key, command, answer: &reading.value, now: reading.now, waited });
    }
}
