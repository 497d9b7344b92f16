//! The workers of the one queue: they lease what is due, run it, and are woken by commits and by time.
//!
//! A slot is an effect that may be under way: there are so many of them, and what is due beyond that waits in the queue. Slots are shared
//! between workspaces as `oncegate_core::job::share` says. Whoever puts something into the queue that is due at once may take a free slot with it,
//! and run it without leasing it again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use oncegate::store::{
    Change, Commit, Leased, Listener, MainStore, Reading, StoreError, Waiters, Wanted, Whose, find_written,
};
use oncegate::{Time, WorkspaceName};
use oncegate_core::job::{self, Decision, Failure, Job, Reached};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

/// Jobs that are leased at once, at most.
const LEASED_MAX: usize = 64;
/// How long the queue goes without a look: a replica may die before it has told the others of a new job.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Before the next look, where one found nothing though something is due: another replica may be leasing it, or a workspace has all the
/// slots that it can get. Twice as long each time,
const LOOK_PAUSE: Duration = Duration::from_millis(5);
/// up to this.
const LOOK_PAUSE_MAX: Duration = Duration::from_millis(320);
/// What it takes to write down how effects ended.
const LAST_WORDS: Duration = Duration::from_millis(1500);
/// A lease is renewed when so much of it has passed.
const RENEWED_AFTER: f64 = 0.4;

/// Runs jobs.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Runs it, and writes down what became of it. If it does not, the next worker does when the lease ends.
    async fn run(self: Arc<Self>, held: Held);
}

/// A place among the effects that are under way, and whose it is.
pub struct Slot {
    slots: Arc<Slots>,
    workspace: WorkspaceName,
    /// The last to go.
    _permit: OwnedSemaphorePermit,
}

struct Slots {
    free: Arc<Semaphore>,
    taken: Mutex<BTreeMap<WorkspaceName, usize>>,
    released: Notify,
}

impl Slots {
    fn taken(&self) -> BTreeMap<WorkspaceName, usize> {
        self.taken.lock().expect("no holder of this lock panics").clone()
    }

    fn give(self: &Arc<Slots>, permit: OwnedSemaphorePermit, workspace: &WorkspaceName) -> Slot {
        *self.taken.lock().expect("no holder of this lock panics").entry(workspace.clone()).or_default() += 1;
        Slot { slots: self.clone(), workspace: workspace.clone(), _permit: permit }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.slots.taken.lock().expect("no holder of this lock panics");
        if let Some(count) = taken.get_mut(&self.workspace) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.workspace);
            }
        }
        self.slots.released.notify_one();
    }
}

/// A leased job.
pub struct Held {
    pub job: Job,
    /// Let go of when the effect is over.
    pub slot: Option<Slot>,
    /// The store's time, and ours just before.
    pub leased: (Time, Instant),
}

impl Held {
    /// The store's time, by our clock: rather ahead than behind. Also past a time in which this process was stopped.
    pub fn now(&self) -> Time {
        self.leased.0 + self.leased.1.elapsed()
    }

    pub fn lease_left(&self) -> Duration {
        self.job.lease_until.since(self.now())
    }

    /// It was not done, surely, and is tried again later; if that is not written, when the lease ends.
    pub async fn put_off(&self, store: &Arc<dyn MainStore>, error: String) {
        let failure = Failure { error, reached: Reached::No, is_final: false, retry_in: None };
        let command = job::Command::Fail { token: self.job.token, failure };
        if let Decision::Keep(job) = job::decide(&self.job, &command, self.now()) {
            let change = Change::Requeue { job, stands_until: self.job.stands_until() };
            let _ = store.commit(Commit { ops: vec![], changes: vec![change] }).await;
        }
    }

    /// Waits for an effect, and says in time, again and again, that its worker is alive. `None` if the lease is lost: whoever has it
    /// now says what became of it.
    pub async fn renewed<T>(
        &mut self,
        store: &Arc<dyn MainStore>,
        lease: Duration,
        effect: impl Future<Output = T>,
    ) -> Option<T> {
        let mut effect = std::pin::pin!(effect);
        loop {
            let left = self.lease_left();
            // The clock first: whoever was stopped past its lease does not go on with the effect.
            tokio::select! {
                biased;
                () = tokio::time::sleep(left.mul_f64(RENEWED_AFTER)), if !left.is_zero() => {}
                done = &mut effect, if !left.is_zero() => return Some(done),
                else => return None,
            }
            let left = self.lease_left();
            let mut renewal = std::pin::pin!(renew(store.clone(), self.job.clone(), lease, self.now()));
            let mut over = std::pin::pin!(tokio::time::sleep(left));
            let mut done = None;
            // The effect goes on meanwhile. If it is over first, its end is written onto what the renewal has written.
            let renewed = loop {
                tokio::select! {
                    biased;
                    () = &mut over => break None,
                    renewed = &mut renewal => break renewed,
                    ended = &mut effect, if done.is_none() => done = Some(ended),
                }
            };
            match renewed {
                Some(renewed) => self.job = *renewed,
                None if self.lease_left().is_zero() => return None,
                // It was not heard: there is some time left to try again, or to be done.
                None => {}
            }
            if done.is_some() {
                return done;
            }
        }
    }
}

/// The job with a longer lease; or as it is, where an answer came late; or nothing, where there is none, or it is another's now, which the end
/// of the lease will show.
async fn renew(store: Arc<dyn MainStore>, job: Job, lease: Duration, now: Time) -> Option<Box<Job>> {
    let command = job::Command::Renew { token: job.token, lease };
    let Decision::Keep(next) = job::decide(&job, &command, now) else { return None };
    let change = Change::Requeue { job: next.clone(), stands_until: job.stands_until() };
    let place = [(job.workspace.clone(), job.id)];
    match store.commit(Commit { ops: vec![], changes: vec![change] }).await {
        Ok(committed) if committed.is_written() => Some(Box::new(next)),
        // An earlier renewal may have been written, though its answer was lost.
        Ok(_) | Err(StoreError::Unknown(_)) => {
            let look = || async { store.find_jobs(&place).await.map(|mut found| found.value.remove(0)) };
            let found = find_written(&*store, look).await.map(Box::new);
            found.filter(|found| found.token == job.token && found.state == job::State::Running)
        }
        Err(_) => None,
    }
}

pub struct Worker {
    store: Arc<dyn MainStore>,
    waiters: Arc<Waiters>,
    pub lease: Duration,
    slots: Arc<Slots>,
    /// By when it has to be over, once it is told to stop.
    stops_by: watch::Sender<Option<Instant>>,
    /// One of these is held by everything that is under way.
    under_way: Arc<()>,
}

impl Worker {
    pub fn new(store: Arc<dyn MainStore>, waiters: Arc<Waiters>, lease: Duration, slots: usize) -> Arc<Worker> {
        let free = Arc::new(Semaphore::new(slots));
        Arc::new(Worker {
            store,
            waiters,
            lease,
            slots: Arc::new(Slots { free, taken: Mutex::default(), released: Notify::new() }),
            stops_by: watch::Sender::new(None),
            under_way: Arc::new(()),
        })
    }

    /// A free slot, for a job that is born leased.
    pub fn try_slot(&self, workspace: &WorkspaceName) -> Option<Slot> {
        let permit = self.slots.free.clone().try_acquire_owned().ok()?;
        Some(self.slots.give(permit, workspace))
    }

    /// Held by what is to be finished before the process ends.
    pub fn under_way(&self) -> Arc<()> {
        self.under_way.clone()
    }

    pub fn is_stopped(&self) -> bool {
        self.stops_by.borrow().is_some()
    }

    /// Returns when it has been told to stop.
    pub async fn stopped(&self) {
        // It is not dropped while somebody asks.
        let _ = self.stops_by.subscribe().wait_for(Option::is_some).await;
    }

    /// Returns when there is just time enough left to write down what is under way.
    pub async fn cut_off(&self) {
        self.stopped().await;
        let stops_by = *self.stops_by.borrow();
        if let Some(by) = stops_by {
            tokio::time::sleep_until(by - LAST_WORDS).await;
        }
    }

    /// Leases jobs of these kinds and has them run, until it is stopped.
    pub async fn keep_leasing(self: Arc<Self>, kinds: Vec<String>, handler: Arc<dyn Handler>) {
        let listener = self.waiters.jobs.listen(kinds.clone());
        let mut pause = LOOK_PAUSE;
        loop {
            let permits = tokio::select! {
                permits = self.free_permits() => permits,
                () = self.stopped() => return,
            };
            let look = self.lease_some(&kinds, permits, &handler).await;
            let is_stuck = !look.found && look.next_at <= look.now;
            let look = if is_stuck { Look { next_at: look.now + pause, ..look } } else { look };
            pause = if is_stuck { (pause * 2).min(LOOK_PAUSE_MAX) } else { LOOK_PAUSE };
            tokio::select! {
                () = look.heard_or_due(&listener) => {}
                () = self.slots.released.notified(), if is_stuck => {}
                () = self.stopped() => return,
            }
        }
    }

    /// Those that are free, once there is one. What is leased begins at once, so that no lease is spent on waiting.
    async fn free_permits(&self) -> Vec<OwnedSemaphorePermit> {
        let free = &self.slots.free;
        let mut permits = vec![free.clone().acquire_owned().await.expect("never closed")];
        permits.extend(std::iter::from_fn(|| free.clone().try_acquire_owned().ok()).take(LEASED_MAX - 1));
        permits
    }

    /// Leases as much as there are slots for.
    async fn lease_some(
        &self,
        kinds: &[String],
        mut permits: Vec<OwnedSemaphorePermit>,
        handler: &Arc<dyn Handler>,
    ) -> Look {
        // What is leased is run, also if it is told to stop just now.
        let _under_way = self.under_way();
        let before = Instant::now();
        let free = permits.len() + self.slots.free.available_permits();
        let whose = Whose::All { free, max: permits.len(), taken: self.slots.taken() };
        let leased = self.store.lease_jobs(&Wanted::new(kinds, self.lease, whose)).await;
        let Reading { value: Leased { jobs, postponed, next_at }, now } = match leased {
            Ok(leased) => leased,
            Err(error) => {
                tracing::warn!(event = "worker.not_leasing", %error);
                return Look::in_a_while(before);
            }
        };
        // Those who wait for their lanes are out of the way of others now.
        let found = !jobs.is_empty() || postponed > 0;
        for job in jobs {
            let slot = permits.pop().map(|permit| self.slots.give(permit, &job.workspace));
            let (handler, under_way) = (handler.clone(), self.under_way());
            tokio::spawn(async move {
                handler.run(Held { job, slot, leased: (now, before) }).await;
                drop(under_way);
            });
        }
        Look { found, next_at: next_at.unwrap_or(Time::NEVER), now, at: before }
    }

    /// Leases no more.
    pub fn stop_by(&self, deadline: Instant) {
        self.stops_by.send_replace(Some(deadline));
    }

    /// Waits for what is under way.
    pub async fn finish_by(&self, deadline: Instant) {
        while Arc::strong_count(&self.under_way) > 1 && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A look at the queue.
pub struct Look {
    /// Something was leased, or moved.
    pub found: bool,
    /// When there is something to look at again.
    pub next_at: Time,
    /// The store's time, and ours just before.
    pub now: Time,
    pub at: Instant,
}

impl Look {
    fn in_a_while(at: Instant) -> Look {
        Look { found: false, next_at: Time::NEVER, now: Time::LONG_AGO, at }
    }

    /// Returns when it is time to look again: something is due, or has been said to be, or it has been a while.
    pub async fn heard_or_due(&self, listener: &Listener) {
        let mut next_at = self.next_at;
        loop {
            let until = self.at + next_at.since(self.now).min(LOOK_EVERY);
            tokio::select! {
                () = tokio::time::sleep_until(until) => return,
                heard = listener.heard() => next_at = next_at.min(heard),
            }
        }
    }
}
