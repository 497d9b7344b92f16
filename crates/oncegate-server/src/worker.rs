//! The workers of the one queue: they lease what is due, run it, and are woken by commits and by time.
//!
//! A slot is an effect that may be under way: there are so many of them, and what is due beyond that waits in the queue.
//! Whoever puts something into the queue that is due at once may take a free slot with it, and run it without leasing it again.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncegate::Time;
use oncegate::store::{Leased, MainStore, Reading};
use oncegate_core::job::Job;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
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
    is_stopping: watch::Sender<bool>,
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
            is_stopping: watch::Sender::new(false),
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

    /// Returns when it has been told to stop.
    pub async fn stopped(&self) {
        // It is not dropped while somebody asks.
        let _ = self.is_stopping.subscribe().wait_for(|stopping| *stopping).await;
    }

    /// Leases jobs of this kind and has them run, until it is stopped.
    pub async fn keep_leasing(self: Arc<Self>, kind: &str, handler: Arc<dyn Handler>) {
        let kinds = [kind.to_owned()];
        loop {
            let slots = tokio::select! {
                slots = self.free_slots() => slots,
                () = self.stopped() => return,
            };
            let pause = self.lease_some(&kinds, slots, &handler).await;
            tokio::select! {
                _ = tokio::time::timeout(pause, self.woken.notified()) => {}
                () = self.stopped() => return,
            }
        }
    }

    /// Those that are free, once there is one. What is leased begins at once, so that no lease is spent on waiting.
    async fn free_slots(&self) -> Vec<Slot> {
        let mut slots = vec![self.slots.clone().acquire_owned().await.expect("never closed")];
        slots.extend(std::iter::from_fn(|| self.try_slot()).take(LEASED_MAX - 1));
        slots
    }

    /// Leases as much as there are slots for; says when to look again.
    async fn lease_some(&self, kinds: &[String], mut slots: Vec<Slot>, handler: &Arc<dyn Handler>) -> Duration {
        // What is leased is run, also if it is told to stop just now.
        let _under_way = self.under_way();
        let before = Instant::now();
        let leased = self.store.lease_jobs(kinds, slots.len(), self.lease).await;
        let Reading { value: Leased { jobs, next_at }, now } = match leased {
            Ok(leased) => leased,
            Err(error) => {
                tracing::warn!(event = "worker.not_leasing", %error);
                return LOOK_EVERY;
            }
        };
        let found = jobs.len();
        for job in jobs {
            let (slot, handler, under_way) = (slots.pop(), handler.clone(), self.under_way());
            tokio::spawn(async move {
                handler.run(Held { job, slot, leased: (now, before) }).await;
                drop(under_way);
            });
        }
        let next = next_at.map_or(LOOK_EVERY, |at| at.since(now)).min(LOOK_EVERY);
        if found == 0 { next.max(LOOK_PAUSE) } else { next }
    }

    /// Leases no more.
    pub fn stop(&self) {
        self.is_stopping.send_replace(true);
    }

    /// Waits for what is under way.
    pub async fn finish_by(&self, deadline: Instant) {
        while Arc::strong_count(&self.under_way) > 1 && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
