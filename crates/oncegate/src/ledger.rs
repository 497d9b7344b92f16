//! The ledger: every claim of a process goes through here.
//!
//! It adds to a store what no store should have to think of: callers that wait and are woken,
//! duplicates counted behind their backs, and an [`Observer`] that hears of every decision.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncegate_core::limits::WAIT_MAX;
use oncegate_core::{Answer, Claim, ClaimKey, Command, Terms, Time};
use oncegate_store::{Commit, Committed, Op, Reading, Store, StoreError, Waiter, Waiters};
use tokio::time::Instant;

use crate::duplicates::Duplicates;
use crate::sweeper::Sweeper;

/// Hears of what the ledger does. Called on the caller's task: be quick.
pub trait Observer: Send + Sync + 'static {
    fn decided(&self, _decided: &Decided<'_>) {}
    /// One of several in a commit: whoever made the commit says what it was about.
    fn counted(&self, _decided: &Decided<'_>) {}
    /// Somebody met another's claim. If they asked for it, they are told so next.
    fn met(&self, _claim: &Claim, _now: Time) {}
    /// The same, of somebody who only looked: nothing else is told of them.
    fn met_alone(&self, _claim: &Claim, _now: Time) {}
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

    /// Whom the store wakes.
    pub fn waiters(&self) -> &Arc<Waiters> {
        &self.waiters
    }

    /// Claims `key`. Where its owner is at work, waits up to `wait` for it to settle, release or die.
    pub async fn claim(&self, key: &ClaimKey, terms: Terms, wait: Duration) -> Result<Reading<Answer>, StoreError> {
        let command = Command::Claim(terms);
        let (reading, waited) = self.claim_waiting(key, &command, wait).await?;
        self.tell(key, &command, &reading, waited);
        Ok(reading)
    }

    /// The same, and says whether it had to wait. Whoever asks says what it was about: it is counted, and not told.
    pub async fn claim_quietly(
        &self,
        key: &ClaimKey,
        terms: Terms,
        wait: Duration,
    ) -> Result<(Reading<Answer>, bool), StoreError> {
        let command = Command::Claim(terms);
        let (reading, waited) = self.claim_waiting(key, &command, wait).await?;
        let (answer, now) = (&reading.value, reading.now);
        self.observer.counted(&Decided { key, command: &command, answer, now, waited });
        Ok((reading, waited))
    }

    async fn claim_waiting(
        &self,
        key: &ClaimKey,
        command: &Command,
        wait: Duration,
    ) -> Result<(Reading<Answer>, bool), StoreError> {
        let mut reading = self.ask(key, command).await?;
        let waits = !wait.is_zero() && matches!(reading.value, Answer::InFlight(_));
        if waits {
            // Boxed: few wait, and nobody else is to carry what it takes.
            reading = Box::pin(self.wait_and_claim(key, command, wait)).await?;
        }
        if let Some(met) = reading.value.met() {
            self.meet(met, reading.now);
        }
        Ok((reading, waits))
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

    /// Writes claims and what goes with them, all or nothing.
    pub async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        let ops = commit.ops.clone();
        let committed = self.store.commit(commit).await.inspect_err(|error| {
            ops.iter().for_each(|op| self.observer.store_failed(&op.key, error));
        })?;
        for (op, answer) in ops.iter().zip(&committed.answers) {
            let (key, command, now) = (&op.key, &op.command, committed.now);
            if let Some(met) = answer.met() {
                self.meet(met, now);
            }
            if committed.is_written() || answer.met().is_some() {
                self.observer.counted(&Decided { key, command, answer, now, waited: false });
            }
        }
        Ok(committed)
    }

    /// Somebody met a claim that they only looked at.
    pub fn count_duplicate(&self, met: &Claim, now: Time) {
        self.meet(met, now);
        self.observer.met_alone(met, now);
    }

    fn meet(&self, met: &Claim, now: Time) {
        self.duplicates.count(met, now);
        self.observer.met(met, now);
    }

    /// The claim under a key, when nobody is at work on it any more, or as it stands after `wait`.
    pub async fn await_settled(&self, key: &ClaimKey, wait: Duration) -> Result<Reading<Option<Claim>>, StoreError> {
        let at_work = |reading: &Reading<Option<Claim>>| {
            reading.value.as_ref().is_some_and(|claim| claim.owner_is_alive(reading.now))
        };
        let reading = self.read(key).await?;
        if wait.is_zero() || !at_work(&reading) {
            return Ok(reading);
        }
        let mut waiting = self.wait_for(key, wait);
        loop {
            self.expect_wake(key).await?;
            let reading = self.read(key).await?;
            match reading.value.as_ref().filter(|_| at_work(&reading)) {
                Some(claim) if waiting.sleep(claim.lease_until.since(reading.now)).await => {}
                _ => return Ok(reading),
            }
        }
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
        let mut waiting = self.wait_for(key, wait);
        loop {
            self.expect_wake(key).await?;
            let reading = self.ask(key, command).await?;
            match &reading.value {
                Answer::InFlight(claim) if waiting.sleep(claim.lease_until.since(reading.now)).await => {}
                _ => return Ok(reading),
            }
        }
    }

    fn wait_for(&self, key: &ClaimKey, wait: Duration) -> Waiting<'_> {
        let waiter = self.waiters.register(&key.workspace, key.id);
        Waiting { waiter, deadline: Instant::now() + wait.min(WAIT_MAX), leaving: &self.leaving }
    }

    async fn expect_wake(&self, key: &ClaimKey) -> Result<(), StoreError> {
        self.store.expect_wake(key).await.inspect_err(|error| self.observer.store_failed(key, error))
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
            self.meet(met, reading.now);
        }
        self.tell(key, command, reading, waited);
    }

    fn tell(&self, key: &ClaimKey, command: &Command, reading: &Reading<Answer>, waited: bool) {
        self.observer.decided(&Decided { key, command, answer: &reading.value, now: reading.now, waited });
    }
}

/// Somebody who waits for a claim to settle.
struct Waiting<'a> {
    waiter: Waiter,
    deadline: Instant,
    leaving: &'a AtomicBool,
}

impl Waiting<'_> {
    /// Sleeps until there is reason to look again. False: the wait is over.
    async fn sleep(&mut self, lease_left: Duration) -> bool {
        if Instant::now() >= self.deadline || self.leaving.load(Ordering::SeqCst) {
            return false;
        }
        let until = self.deadline.min(Instant::now() + lease_left);
        // Whichever it is, the next look decides.
        let _ = tokio::time::timeout_at(until, self.waiter.woken()).await;
        true
    }
}
