//! The workers of the queue. They lease due jobs and run them. Commits and the time wake them.
//!
//! A slot is the right to run one effect. The number of slots is limited, and further due jobs wait in the queue.
//! `oncegate_core::job::share` defines how workspaces share the slots. A request that enqueues a job that is due at once
//! may take a free slot with it, and run the job without leasing it again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use oncegate_core::job::{self, Decision, Failure, Job, Reached};
use oncegate_core::{Time, WorkspaceName};
use oncegate_store::{
    Change, Commit, Leased, Listener, MainStore, Reading, StoreError, Waiters, Wanted, Whose, find_written,
};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

/// The most jobs that are leased at once.
const LEASED_MAX: usize = 64;
/// The longest time between two looks at the queue. A replica may die before it has told the others of a new job.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The pause before the next look, if a look found nothing although a job is due. Another replica may be leasing the job,
/// or a workspace has all the slots that it can get. The pause doubles each time,
const LOOK_PAUSE: Duration = Duration::from_millis(5);
/// up to this limit.
const LOOK_PAUSE_MAX: Duration = Duration::from_millis(320);
/// The time that is reserved for writing the outcomes of effects.
const LAST_WORDS: Duration = Duration::from_millis(1500);
/// A lease is renewed when this part of it has passed.
const RENEWED_AFTER: f64 = 0.4;

/// Runs the jobs of some kinds.
#[async_trait]
pub trait RunJob: Send + Sync + 'static {
    /// Runs the job, and writes the outcome. If that fails, the next worker runs the job when the lease ends.
    async fn run(self: Arc<Self>, held: Held);
}

/// The right to run one effect, and the workspace that uses it.
pub struct Slot {
    slots: Arc<Slots>,
    workspace: WorkspaceName,
    /// Declared last, so that it is dropped last.
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
    /// The job, as this worker last wrote it.
    pub job: Job,
    /// Released when the effect is over.
    pub slot: Option<Slot>,
    /// The store's time, and the local time just before.
    pub leased: (Time, Instant),
}

impl Held {
    /// The store's time by the local clock: never behind, possibly ahead. It stays right after a pause of this process.
    pub fn now(&self) -> Time {
        self.leased.0 + self.leased.1.elapsed()
    }

    /// The rest of the lease; zero once the lease has ended.
    pub fn lease_left(&self) -> Duration {
        self.job.lease_until.since(self.now())
    }

    /// Records that the job was not done for certain, and is to be retried. If that write fails, the job is retried when
    /// the lease ends.
    pub async fn put_off(&self, store: &Arc<dyn MainStore>, error: String) {
        let failure = Failure { error, reached: Reached::No, is_final: false, retry_in: None };
        let command = job::Command::Fail { token: self.job.token, failure };
        if let Decision::Keep(job) = job::decide(&self.job, &command, self.now()) {
            let change = Change::Requeue { job, stands_until: self.job.stands_until() };
            let _ = store.commit(Commit { ops: vec![], changes: vec![change] }).await;
        }
    }

    /// Waits for an effect, and renews the lease as often as needed. `None` if the lease is lost: the worker that has the
    /// job now decides its outcome.
    pub async fn renewed<T>(
        &mut self,
        store: &Arc<dyn MainStore>,
        lease: Duration,
        effect: impl Future<Output = T>,
    ) -> Option<T> {
        let mut effect = std::pin::pin!(effect);
        loop {
            let left = self.lease_left();
            // The clock is checked first: a worker that was paused past its lease must not go on with the effect.
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
            // The effect continues meanwhile. If it ends first, its outcome is written on top of what the renewal has
            // written.
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
                // The renewal failed: there is still time to retry it, or for the effect to end.
                None => {}
            }
            if done.is_some() {
                return done;
            }
        }
    }
}

/// The job with a longer lease. The job as the store has it, if an answer got lost. `None` without an answer, or if another worker
/// has the job now; the end of the lease will show which.
async fn renew(store: Arc<dyn MainStore>, job: Job, lease: Duration, now: Time) -> Option<Box<Job>> {
    let command = job::Command::Renew { token: job.token, lease };
    let Decision::Keep(next) = job::decide(&job, &command, now) else { return None };
    let change = Change::Requeue { job: next.clone(), stands_until: job.stands_until() };
    let place = [(job.workspace.clone(), job.id)];
    match store.commit(Commit { ops: vec![], changes: vec![change] }).await {
        Ok(committed) if committed.is_written() => Some(Box::new(next)),
        // An earlier renewal may have been written although its answer got lost.
        Ok(_) | Err(StoreError::Unknown(_)) => {
            let look = || async { store.find_jobs(&place).await.map(|mut found| found.value.remove(0)) };
            let found = find_written(&*store, look).await.map(Box::new);
            found.filter(|found| found.token == job.token && found.state == job::State::Running)
        }
        Err(_) => None,
    }
}

/// Leases due jobs and runs them.
pub struct Queue {
    store: Arc<dyn MainStore>,
    waiters: Arc<Waiters>,
    /// How long a worker may go without a renewal before its jobs go to other workers.
    pub lease: Duration,
    slots: Arc<Slots>,
    /// The deadline by which all work must be over, once the worker has been stopped.
    stops_by: watch::Sender<Option<Instant>>,
    /// Everything in progress holds a clone of this.
    under_way: Arc<()>,
}

impl Queue {
    /// The queue of `store`, with this number of slots. The store wakes the listeners among `waiters` when it writes a job.
    pub fn new(store: Arc<dyn MainStore>, waiters: Arc<Waiters>, lease: Duration, slots: usize) -> Arc<Queue> {
        let free = Arc::new(Semaphore::new(slots));
        Arc::new(Queue {
            store,
            waiters,
            lease,
            slots: Arc::new(Slots { free, taken: Mutex::default(), released: Notify::new() }),
            stops_by: watch::Sender::new(None),
            under_way: Arc::new(()),
        })
    }

    /// A free slot, for a job that is leased from its first version on.
    pub fn try_slot(&self, workspace: &WorkspaceName) -> Option<Slot> {
        let permit = self.slots.free.clone().try_acquire_owned().ok()?;
        Some(self.slots.give(permit, workspace))
    }

    /// A clone is held by all work that must finish before the process ends.
    pub fn under_way(&self) -> Arc<()> {
        self.under_way.clone()
    }

    /// Whether the worker has been stopped. It leases no more jobs then.
    pub fn is_stopped(&self) -> bool {
        self.stops_by.borrow().is_some()
    }

    /// Returns when the worker has been stopped.
    pub async fn stopped(&self) {
        // The sender lives as long as `self`, so the wait cannot fail.
        let _ = self.stops_by.subscribe().wait_for(Option::is_some).await;
    }

    /// Returns when only the time to write the outcomes is left.
    pub async fn cut_off(&self) {
        self.stopped().await;
        let stops_by = *self.stops_by.borrow();
        if let Some(by) = stops_by {
            tokio::time::sleep_until(by - LAST_WORDS).await;
        }
    }

    /// Leases jobs of these kinds and runs them, until the worker is stopped.
    pub async fn keep_leasing(self: Arc<Self>, kinds: Vec<String>, handler: Arc<dyn RunJob>) {
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

    /// Waits for a free permit, and takes all that are free. A leased job begins at once, so that no lease is spent on
    /// waiting.
    async fn free_permits(&self) -> Vec<OwnedSemaphorePermit> {
        let free = &self.slots.free;
        let mut permits = vec![free.clone().acquire_owned().await.expect("never closed")];
        permits.extend(std::iter::from_fn(|| free.clone().try_acquire_owned().ok()).take(LEASED_MAX - 1));
        permits
    }

    /// Leases at most as many jobs as there are permits.
    async fn lease_some(
        &self,
        kinds: &[String],
        mut permits: Vec<OwnedSemaphorePermit>,
        handler: &Arc<dyn RunJob>,
    ) -> Look {
        // Leased jobs are run, even if the worker is stopped just now.
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
        // Jobs of busy groups were postponed, and no longer hide other jobs. That counts as progress too.
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

    /// Leases again, after a stop.
    pub(crate) fn start_again(&self) {
        self.stops_by.send_replace(None);
    }

    /// Stops leasing.
    pub fn stop_by(&self, deadline: Instant) {
        self.stops_by.send_replace(Some(deadline));
    }

    /// Waits for the work in progress.
    pub async fn finish_by(&self, deadline: Instant) {
        while Arc::strong_count(&self.under_way) > 1 && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// The result of a look at the queue.
pub struct Look {
    /// A job was leased or postponed.
    pub found: bool,
    /// When the next job is due.
    pub next_at: Time,
    /// The store's time of the look.
    pub now: Time,
    /// The local time just before the look.
    pub at: Instant,
}

impl Look {
    fn in_a_while(at: Instant) -> Look {
        Look { found: false, next_at: Time::NEVER, now: Time::LONG_AGO, at }
    }

    /// Returns when it is time to look again: a job is due, a commit has announced one, or `LOOK_EVERY` has passed.
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
