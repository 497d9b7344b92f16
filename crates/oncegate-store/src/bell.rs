//! Wakes the workers that wait for jobs.
//!
//! A worker looks at the queue, learns when the next job is due, and sleeps until then. A job that is enqueued earlier
//! wakes the worker.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use oncegate_core::Time;
use tokio::sync::Notify;

use crate::Change;

/// Announces changes of the queue to the workers of this process.
#[derive(Debug, Default)]
pub struct Bell(Mutex<Vec<Weak<Ear>>>);

#[derive(Debug)]
struct Ear {
    kinds: Vec<String>,
    /// The earliest time that was announced and that the listener has not taken yet.
    earliest: Mutex<Option<Time>>,
    notify: Notify,
}

/// The registration of a worker that waits for jobs of some kinds. Dropping it unregisters the worker.
#[derive(Debug)]
pub struct Listener(Arc<Ear>);

impl Bell {
    /// Registers a worker that waits for jobs of these kinds. From then on the worker misses no announcement.
    pub fn listen(&self, kinds: Vec<String>) -> Listener {
        let ear = Arc::new(Ear { kinds, earliest: Mutex::default(), notify: Notify::new() });
        let mut ears = self.lock();
        ears.retain(|ear| ear.strong_count() > 0);
        ears.push(Arc::downgrade(&ear));
        Listener(ear)
    }

    /// Announces that a worker must look at a job of this kind at this time.
    pub fn ring(&self, kind: &str, at: Time) {
        self.each(|ear| {
            if ear.kinds.iter().any(|heard| heard == kind) {
                ear.tell(at);
            }
        });
    }

    /// Announces that any job may have changed.
    pub fn ring_all(&self) {
        self.each(|ear| ear.tell(Time::LONG_AGO));
    }

    /// Announces a change that was written to the workers that wait for its kind of job.
    pub fn ring_after(&self, change: &Change) {
        if let Some((kind, at)) = change.wakes() {
            self.ring(kind, at);
        }
    }

    fn each(&self, tell: impl Fn(&Ear)) {
        self.lock().iter().filter_map(Weak::upgrade).for_each(|ear| tell(&ear));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Ear>>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl Ear {
    fn tell(&self, at: Time) {
        let mut earliest = self.earliest.lock().expect("no holder of this lock panics");
        if earliest.is_none_or(|earliest| at < earliest) {
            *earliest = Some(at);
            self.notify.notify_one();
        }
    }
}

impl Listener {
    /// Waits for an announcement, and returns the earliest time announced since the last call.
    pub async fn heard(&self) -> Time {
        loop {
            if let Some(at) = self.0.earliest.lock().expect("no holder of this lock panics").take() {
                return at;
            }
            self.0.notify.notified().await;
        }
    }
}
