//! The ledger: every claim of a caller goes through here.
//!
//! It adds to a store what every store would otherwise repeat: callers that wait and are woken, duplicates that are counted
//! in the background, and an [`Observer`] that hears of every decision.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use oncegate_core::limits::WAIT_MAX;
use oncegate_core::{Answer, Claim, ClaimKey, Command, Moment, Terms, Time, Token, decide};
use oncegate_store::{Commit, Committed, Op, Reading, Store, StoreError, Waiter, Waiters};
use tokio::time::Instant;

use crate::background::{Background, retry_within_lease};
use crate::duplicates::Duplicates;
use crate::observer::{Decided, Observer};
use crate::sweeper::Sweeper;

/// Applies commands to the claims of a store, wakes waiting callers, and reports each decision to an [`Observer`].
pub struct Ledger {
    store: Arc<dyn Store>,
    waiters: Arc<Waiters>,
    observer: Arc<dyn Observer>,
    duplicates: Duplicates,
    sweeper: Sweeper,
    background: Arc<Background>,
    /// No caller may wait any longer, because the process stops.
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
            background: Arc::new(Background::here()),
            leaving: AtomicBool::new(false),
            waiters,
            observer,
            store,
        }
    }

    /// The store of the claims.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The waiting callers that the store wakes.
    pub fn waiters(&self) -> &Arc<Waiters> {
        &self.waiters
    }

    /// Claims `key`. If another owner is at work, waits up to `wait` until that owner settles, releases or dies.
    pub fn claim(
        &self,
        key: &ClaimKey,
        terms: Terms,
        wait: Duration,
    ) -> impl Future<Output = Result<Reading<Answer>, StoreError>> {
        // No wrapper future: each would hold another copy of the terms, for every request.
        self.claim_unless_left(key, terms, wait, std::future::pending())
    }

    /// Like [`Ledger::claim`], for an owner in this process. If the caller is dropped before it hears that it won, nothing has
    /// begun, and a background task gives the claim back.
    pub(crate) fn claim_for_owner(
        &self,
        key: &ClaimKey,
        terms: Terms,
        wait: Duration,
    ) -> impl Future<Output = Result<Reading<Answer>, StoreError>> {
        let caller = Caller { wait, if_dropped: IfDropped::GiveBack };
        self.claim_and_tell(key, Command::Claim(terms), caller, std::future::pending())
    }

    /// Like [`Ledger::claim`], for a caller that may leave while it waits. Once `left` is ready, the caller still gets the
    /// outcome, but never wins: it is answered that the claim is in flight, because an owner that is gone would block the key.
    pub fn claim_unless_left(
        &self,
        key: &ClaimKey,
        terms: Terms,
        wait: Duration,
        left: impl Future<Output = ()>,
    ) -> impl Future<Output = Result<Reading<Answer>, StoreError>> {
        self.claim_and_tell(key, Command::Claim(terms), Caller { wait, if_dropped: IfDropped::Leave }, left)
    }

    async fn claim_and_tell(
        &self,
        key: &ClaimKey,
        command: Command,
        caller: Caller,
        left: impl Future<Output = ()>,
    ) -> Result<Reading<Answer>, StoreError> {
        let (reading, waited) = self.claim_waiting(key, &command, &caller, left).await?;
        self.tell(key, &command, &reading, waited);
        Ok(reading)
    }

    /// Like [`Ledger::claim`], and also returns whether the caller waited. The observer gets a `counted` call instead of a
    /// `decided` call, because the caller reports the decision itself.
    pub async fn claim_quietly(
        &self,
        key: &ClaimKey,
        terms: Terms,
        wait: Duration,
    ) -> Result<(Reading<Answer>, bool), StoreError> {
        let command = Command::Claim(terms);
        let caller = Caller { wait, if_dropped: IfDropped::Leave };
        let (reading, waited) = self.claim_waiting(key, &command, &caller, std::future::pending()).await?;
        let (answer, now) = (&reading.value, reading.now);
        self.observer.counted(&Decided { key, command: &command, answer, now, waited });
        Ok((reading, waited))
    }

    async fn claim_waiting(
        &self,
        key: &ClaimKey,
        command: &Command,
        caller: &Caller,
        left: impl Future<Output = ()>,
    ) -> Result<(Reading<Answer>, bool), StoreError> {
        let mut reading = self.ask(key, command, caller.if_dropped).await?;
        let waits = !caller.wait.is_zero() && matches!(reading.value, Answer::InFlight(_));
        if waits {
            // Boxed: few callers wait, and the future of the others stays small.
            reading = Box::pin(self.wait_and_claim(key, command, caller, left)).await?;
        }
        if let Some(met) = reading.value.met() {
            self.meet(met, reading.now);
        }
        Ok((reading, waits))
    }

    /// Claims many keys, all different, without waiting for any owner.
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

    /// Writes claims and the changes that belong to them, all or nothing.
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

    /// Counts a duplicate that was seen by a read-only lookup.
    pub fn count_duplicate(&self, met: &Claim, now: Time) {
        self.meet(met, now);
        self.observer.met_alone(met, now);
    }

    fn meet(&self, met: &Claim, now: Time) {
        self.duplicates.count(met, now);
        self.observer.met(met, now);
    }

    /// The claim under a key, once its owner has finished or died, or after `wait` in its current state.
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

    /// Applies a command of an owner or of a person.
    pub async fn apply(&self, key: &ClaimKey, command: Command) -> Result<Reading<Answer>, StoreError> {
        let reading = self.ask(key, &command, IfDropped::Leave).await?;
        self.tell(key, &command, &reading, false);
        Ok(reading)
    }

    /// The claim under a key, and the store's time. Changes nothing.
    pub async fn read(&self, key: &ClaimKey) -> Result<Reading<Option<Claim>>, StoreError> {
        self.store.read(key).await.inspect_err(|error| self.observer.store_failed(key, error))
    }

    /// Answers all waiting callers with the current state of their claims; from now on no caller waits. Commits under way are
    /// not cut off, so every new owner hears that it won.
    pub fn stop_waiting(&self) {
        self.leaving.store(true, Ordering::SeqCst);
        self.waiters.wake_all();
    }

    /// Finishes the background work, writes the pending counts, and closes the store.
    pub async fn close(&self) {
        self.background.finish().await;
        self.sweeper.stop();
        self.duplicates.stop().await;
        self.store.close().await;
    }

    /// Registers the waiter before it asks the store, so that a settle in between is not missed. Sleeps until the waiter is
    /// woken, or the owner's lease ends and the claim may be taken over, or `wait` is over.
    async fn wait_and_claim(
        &self,
        key: &ClaimKey,
        command: &Command,
        caller: &Caller,
        left: impl Future<Output = ()>,
    ) -> Result<Reading<Answer>, StoreError> {
        let mut left = std::pin::pin!(left);
        let mut waiting = self.wait_for(key, caller.wait);
        let met = loop {
            self.expect_wake(key).await?;
            let reading = self.ask(key, command, caller.if_dropped).await?;
            let Answer::InFlight(claim) = &reading.value else { return Ok(reading) };
            let goes_on = tokio::select! {
                biased;
                () = &mut left => break reading,
                goes_on = waiting.sleep(claim.lease_until.since(reading.now)) => goes_on,
            };
            if !goes_on {
                return Ok(reading);
            }
        };
        self.wait_and_look(key, command, waiting, met).await
    }

    /// Keeps waiting for a caller that has left, and writes nothing for it. `met` is the answer if the caller would have won.
    async fn wait_and_look(
        &self,
        key: &ClaimKey,
        command: &Command,
        mut waiting: Waiting<'_>,
        met: Reading<Answer>,
    ) -> Result<Reading<Answer>, StoreError> {
        loop {
            self.expect_wake(key).await?;
            let Reading { value, now } = self.read(key).await?;
            // The token floor matters only to a write, and nothing is written here.
            let moment = Moment { now, token_floor: Token(0) };
            let decision = decide(key, value.map(Arc::new).as_ref(), command, moment);
            if decision.write.is_some() {
                return Ok(met);
            }
            match &decision.answer {
                Answer::InFlight(claim) if waiting.sleep(claim.lease_until.since(now)).await => {}
                _ => return Ok(Reading { value: decision.answer, now }),
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

    /// Runs work that outlives its caller; `close` waits for it.
    pub(crate) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn(work);
    }

    async fn ask(
        &self,
        key: &ClaimKey,
        command: &Command,
        if_dropped: IfDropped,
    ) -> Result<Reading<Answer>, StoreError> {
        let commit = Commit::from(Op { key: key.clone(), command: command.clone() });
        // Boxed in both cases, so that the future of a request stays small.
        let committing = match if_dropped {
            IfDropped::Leave => self.store.commit(commit),
            IfDropped::GiveBack => Box::pin(Claiming::start(&self.store, &self.background, commit)),
        };
        match committing.await {
            Ok(committed) => Ok(Reading { now: committed.now, value: committed.only() }),
            Err(error) => {
                self.observer.store_failed(key, &error);
                Err(error)
            }
        }
    }

    /// Counts the duplicate, if there is one, and reports the decision.
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

/// How a claiming caller waits, and what happens if it is dropped.
struct Caller {
    /// How long the caller waits while another owner works under its key.
    wait: Duration,
    if_dropped: IfDropped,
}

/// What happens to a claim whose caller is dropped before it hears the answer.
#[derive(Clone, Copy)]
enum IfDropped {
    Leave,
    GiveBack,
}

type Committing = Pin<Box<dyn Future<Output = Result<Committed, StoreError>> + Send>>;

/// A claim under way. If it is dropped before the answer, a background task awaits the answer, and gives back a claim that
/// was won.
struct Claiming {
    /// `None` once it is answered.
    committing: Option<Committing>,
    store: Arc<dyn Store>,
    background: Arc<Background>,
}

impl Claiming {
    fn start(store: &Arc<dyn Store>, background: &Arc<Background>, commit: Commit) -> Self {
        let (store, background) = (store.clone(), background.clone());
        let committing = store.clone();
        Claiming { committing: Some(Box::pin(async move { committing.commit(commit).await })), store, background }
    }
}

impl Future for Claiming {
    type Output = Result<Committed, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let committing = self.committing.as_mut().expect("not polled after its answer");
        let answer = std::task::ready!(committing.as_mut().poll(context));
        self.committing = None;
        Poll::Ready(answer)
    }
}

impl Drop for Claiming {
    fn drop(&mut self) {
        let Some(committing) = self.committing.take() else { return };
        let store = self.store.clone();
        self.background.spawn(async move {
            let Ok(committed) = committing.await else { return };
            let Answer::Won(claim) = committed.only() else { return };
            let op = Op { key: claim.key.clone(), command: give_back(&claim) };
            if let Err(error) = retry_within_lease(claim.lease, || store.commit(op.clone().into())).await {
                tracing::warn!(event = "claim.release_failed", claimId = %claim.key.id, %error);
            }
        });
    }
}

/// The command by which an owner gives its claim back after nothing happened.
///
/// After a take-over the effect may have happened under an earlier owner. The command then keeps the number of attempts.
pub(crate) fn give_back(claim: &Claim) -> Command {
    let token = claim.token;
    if claim.attempt == 1 { Command::Release { token } } else { Command::Abandon { token } }
}

/// A caller that waits until a claim is settled.
struct Waiting<'a> {
    waiter: Waiter,
    deadline: Instant,
    leaving: &'a AtomicBool,
}

impl Waiting<'_> {
    /// Sleeps until the claim may have changed. Returns `false` once the wait is over.
    async fn sleep(&mut self, lease_left: Duration) -> bool {
        if Instant::now() >= self.deadline || self.leaving.load(Ordering::SeqCst) {
            return false;
        }
        let until = self.deadline.min(Instant::now() + lease_left);
        // Time-out or wake-up: the next read of the claim decides.
        let _ = tokio::time::timeout_at(until, self.waiter.woken()).await;
        true
    }
}
