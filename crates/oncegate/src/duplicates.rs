//! Duplicates are counted behind their callers' backs: meeting a settled claim costs no write.
//!
//! Counts wait in memory, one entry for each claim that was met, and are written once a second.
//! A crash loses at most that second of counts, and nothing else.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_core::{Claim, ClaimKey, Time, Token};
use oncegate_store::{DuplicateCount, Store};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

const WRITE_EVERY: Duration = Duration::from_secs(1);
/// Claims whose counts may wait; beyond it counts are written early, and past twice it dropped.
const CLAIMS_MAX: usize = 16_384;
/// Counts in one write, so that no other caller waits long behind it.
const BATCH: usize = 256;

type Counts = HashMap<(ClaimKey, Token), (i64, Time)>;

pub struct Duplicates {
    shared: Arc<Shared>,
    task: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    store: Arc<dyn Store>,
    counts: Mutex<Counts>,
    /// There is something to write.
    some: Notify,
    /// Do not wait for the second to be over.
    now: Notify,
    stop: AtomicBool,
}

impl Duplicates {
    pub fn start(store: Arc<dyn Store>) -> Self {
        let shared = Arc::new(Shared {
            store,
            counts: Mutex::default(),
            some: Notify::new(),
            now: Notify::new(),
            stop: AtomicBool::new(false),
        });
        let task = tokio::spawn(shared.clone().write_behind());
        Duplicates { shared, task: Mutex::new(Some(task)) }
    }

    pub fn count(&self, met: &Claim, now: Time) {
        let mut counts = self.shared.counts.lock().expect("no holder of this lock panics");
        if counts.is_empty() {
            self.shared.some.notify_one();
        }
        if counts.len() >= CLAIMS_MAX {
            self.shared.now.notify_one();
            if counts.len() >= 2 * CLAIMS_MAX {
                return;
            }
        }
        let (count, last_at) = counts.entry((met.key.clone(), met.token)).or_insert((0, now));
        *count += 1;
        *last_at = now.max(*last_at);
    }

    /// Writes what is left.
    pub async fn stop(&self) {
        let task = self.task.lock().expect("no holder of this lock panics").take();
        if let Some(task) = task {
            // Told, not aborted: what it has taken out to write, it writes.
            self.shared.stop.store(true, Ordering::SeqCst);
            self.shared.some.notify_one();
            self.shared.now.notify_one();
            let _ = task.await;
            self.shared.write(&mut Counts::new()).await;
        }
    }
}

impl Drop for Duplicates {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().expect("no holder of this lock panics") {
            task.abort();
        }
    }
}

impl Shared {
    async fn write_behind(self: Arc<Self>) {
        let mut taken = Counts::new();
        while !self.stop.load(Ordering::SeqCst) {
            self.some.notified().await;
            let _ = tokio::time::timeout(WRITE_EVERY, self.now.notified()).await;
            self.write(&mut taken).await;
        }
    }

    /// Takes out what waits, in exchange for an empty map: once that has been used it has room for as many again. (One that grows
    /// moves all that is in it several times, with everybody waiting.)
    async fn write(&self, taken: &mut Counts) {
        std::mem::swap(&mut *self.counts.lock().expect("no holder of this lock panics"), taken);
        let counts = taken.drain();
        let counts = counts.map(|((key, token), (count, last_at))| DuplicateCount { key, token, count, last_at });
        let mut counts: Vec<_> = counts.collect();
        // In the order in which the claims were made, so that those whose records lie together are written together.
        counts.sort_unstable_by_key(|count| count.token);
        let mut counts = counts.into_iter();
        while !counts.as_slice().is_empty() {
            if let Err(error) = self.store.count_duplicates(counts.by_ref().take(BATCH).collect()).await {
                // Counts are for people; they are not worth holding anything up for.
                tracing::warn!(event = "claim.duplicates_not_counted", %error);
                return;
            }
        }
    }
}
