//! The workers of the one queue: they lease what is due, run it, and are woken by commits and by time.
//!
//! A slot is an effect that may be under way: there are so many of them, and what is due beyond that waits in the queue.
//! Whoever puts something into the queue that is due at once may take a free slot with it, and run it without leasing it again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use oncegate::Time;
use oncegate::store::{Leased, MainStore, Reading};
use oncegate_core::job::Job;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Jobs that are leased at once, at most.
const LEASED_MAX: usize = 64;
/// How long the queue goes without a look. Other replicas put jobs into it too.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Between two looks of which the first found nothing: another replica may be leasing what is due.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// Runs jobs of one kind.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Runs it, and writes down what became of it. If it does not, the next worker does when the lease ends.
    async fn run(self: Arc<Self>, held: Held);
}

/// A place among the effects that are under way.
pub type Slot = OwnedSemaphorePermit;

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
}

pub struct Worker {
    store: Arc<dyn MainStore>,
    lease: Duration,
    slots: Arc<Semaphore>,
    woken: Notify,
    stopping: AtomicBool,
    /// One of these is held by everything that is under way.
    under_way: Arc<()>,
}

impl Worker {
    pub fn new(store: Arc<dyn MainStore>, lease: Duration, slots: usize) -> Arc<Worker> {
        Arc::new(Worker {
            store,
            lease,
            slots: Arc::new(Semaphore::new(slots)),
            woken: Notify::new(),
            stopping: AtomicBool::new(false),
            under_way: Arc::new(()),
        })
    }

    /// A free slot, for a job that is born leased.
    pub fn try_slot(&self) -> Option<Slot> {
        self.slots.clone().try_acquire_owned().ok()
    }

    /// Something is due.
    pub fn wake(&self) {
        self.woken.notify_one();
    }

    /// Held by what is to be finished before the process ends.
    pub fn under_way(&self) -> Arc<()> {
        self.under_way.clone()
    }

    /// Leases jobs of this kind and has them run, until it is stopped.
    pub async fn keep_leasing(self: Arc<Self>, kind: &str, handler: Arc<dyn Handler>) {
        let kinds = [kind.to_owned()];
        while !self.stopping.load(Ordering::SeqCst) {
            let slot = self.slots.clone().acquire_owned().await.expect("never closed");
            let pause = self.lease_some(&kinds, slot, &handler).await;
            let _ = tokio::time::timeout(pause, self.woken.notified()).await;
        }
    }

    /// Leases as much as there are slots for; says when to look again.
    async fn lease_some(&self, kinds: &[String], slot: Slot, handler: &Arc<dyn Handler>) -> Duration {
        let max = (1 + self.slots.available_permits()).min(LEASED_MAX);
        let before = Instant::now();
        let Reading { value: Leased { jobs, next_at }, now } = match self.store.lease_jobs(kinds, max, self.lease).await
        {
            Ok(leased) => leased,
            Err(error) => {
                tracing::warn!(event = "worker.not_leasing", %error);
                return LOOK_EVERY;
            }
        };
        let found = jobs.len();
        let mut slot = Some(slot);
        for job in jobs {
            let (slots, mine, handler) = (self.slots.clone(), slot.take(), handler.clone());
            let under_way = self.under_way();
            tokio::spawn(async move {
                let slot = match mine {
                    Some(slot) => slot,
                    None => slots.acquire_owned().await.expect("never closed"),
                };
                handler.run(Held { job, slot: Some(slot), leased: (now, before) }).await;
                drop(under_way);
            });
        }
        let next = next_at.map_or(LOOK_EVERY, |at| at.since(now)).min(LOOK_EVERY);
        if found == 0 { next.max(LOOK_PAUSE) } else { next }
    }

    /// Leases no more, and waits a while for what is under way.
    pub async fn stop(&self, within: Duration) {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake();
        let deadline = Instant::now() + within;
        while Arc::strong_count(&self.under_way) > 1 && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
