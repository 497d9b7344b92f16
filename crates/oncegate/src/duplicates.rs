//! Counts duplicates in the background, so that a caller who meets a settled claim costs no write.
//!
//! Counts wait in memory, in order of arrival. Once a second they are written, with all counts of a claim added up.
//! A crash loses at most that second of counts, and nothing else.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_core::{Claim, Time};
use oncegate_store::{DuplicateCount, Store};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

const WRITE_EVERY: Duration = Duration::from_secs(1);
/// How many counts may wait; beyond it they are written early. At twice this number the counts of each claim are added up.
/// If there are still more claims than this, the counts of the claims with the fewest duplicates are dropped.
const COUNTS_MAX: usize = 16_384;
/// Counts in one write. A small number, so that no other caller waits long behind the write.
const BATCH: usize = 256;

pub struct Duplicates {
    shared: Arc<Shared>,
    task: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    store: Arc<dyn Store>,
    counts: Mutex<Vec<DuplicateCount>>,
    /// Wakes the task: there are counts to write.
    some: Notify,
    /// Ends the pause of the task early.
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
        if counts.len() >= COUNTS_MAX {
            self.shared.now.notify_one();
        }
        if counts.len() >= 2 * COUNTS_MAX {
            fold(&mut counts);
            if counts.len() > COUNTS_MAX {
                counts.sort_unstable_by_key(|count| Reverse(count.count));
                counts.truncate(COUNTS_MAX);
            }
        }
        counts.push(DuplicateCount { key: met.key.clone(), token: met.token, count: 1, last_at: now });
    }

    /// Writes the counts that are left, and stops the task.
    pub async fn stop(&self) {
        let task = self.task.lock().expect("no holder of this lock panics").take();
        if let Some(task) = task {
            // Signalled, not aborted: the task still writes the counts that it has taken.
            self.shared.stop.store(true, Ordering::SeqCst);
            self.shared.some.notify_one();
            self.shared.now.notify_one();
            let _ = task.await;
            self.shared.write(&mut vec![]).await;
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
        let mut taken = vec![];
        while !self.stop.load(Ordering::SeqCst) {
            self.some.notified().await;
            let _ = tokio::time::timeout(WRITE_EVERY, self.now.notified()).await;
            self.write(&mut taken).await;
        }
    }

    /// Swaps the waiting counts for an empty list that keeps its capacity from the last write. A list that grows would copy all
    /// its counts several times while all callers wait for the lock.
    async fn write(&self, taken: &mut Vec<DuplicateCount>) {
        std::mem::swap(&mut *self.counts.lock().expect("no holder of this lock panics"), taken);
        fold(taken);
        let mut counts = taken.drain(..);
        while !counts.as_slice().is_empty() {
            if let Err(error) = self.store.count_duplicates(counts.by_ref().take(BATCH).collect()).await {
                // Counts are only shown to people, so they are dropped rather than delay anything.
                tracing::warn!(event = "claim.duplicates_not_counted", %error);
                return;
            }
        }
    }
}

/// Adds up the counts of each claim. Sorts by token, the order in which the claims were made, so that neighbouring records
/// are written together.
fn fold(counts: &mut Vec<DuplicateCount>) {
    counts.sort_unstable_by(|a, b| (a.token, &a.key).cmp(&(b.token, &b.key)));
    counts.dedup_by(|next, kept| {
        let is_same = (next.token, &next.key) == (kept.token, &kept.key);
        if is_same {
            kept.count += next.count;
            kept.last_at = kept.last_at.max(next.last_at);
        }
        is_same
    });
}

#[cfg(test)]
mod tests {
    use oncegate_core::{Answer, ClaimKey, Command, GuardName, Lost, Terms, WorkspaceName};
    use oncegate_store::{MemoryStore, Op};

    use super::*;

    fn key(part: &str) -> ClaimKey {
        ClaimKey::of(&WorkspaceName::default_workspace(), &GuardName::new("g").unwrap(), &[Some(part)])
    }

    async fn claim(store: &Arc<dyn Store>, key: &ClaimKey) -> (Arc<Claim>, Time) {
        let terms = Terms::new(Duration::from_secs(60), Duration::from_secs(60), Lost::Hold);
        let op = Op { key: key.clone(), command: Command::Claim(terms) };
        let committed = store.commit(op.into()).await.unwrap();
        let now = committed.now;
        match committed.only() {
            Answer::Won(claim) => (claim, now),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_flood_is_counted_whole_and_nothing_grows_beyond_its_bounds() {
        const FLOOD: usize = 5 * COUNTS_MAX;
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let (met, now) = claim(&store, &key("met")).await;
        let (other, _) = claim(&store, &key("other")).await;
        let duplicates = Duplicates::start(store.clone());
        // This task never yields, so the background task cannot write meanwhile.
        for turn in 0..FLOOD {
            duplicates.count(&met, now);
            if turn % 1000 == 0 {
                duplicates.count(&other, now);
            }
            assert!(duplicates.shared.counts.lock().unwrap().len() <= 2 * COUNTS_MAX);
        }
        duplicates.stop().await;
        let counted = async |key| store.read(&key).await.unwrap().value.unwrap().duplicates;
        assert_eq!(counted(key("met")).await, FLOOD as i64);
        assert_eq!(counted(key("other")).await, FLOOD.div_ceil(1000) as i64);
    }

    #[tokio::test]
    async fn of_too_many_claims_those_that_were_met_most_are_counted() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let (once, now) = claim(&store, &key("once")).await;
        let (often, _) = claim(&store, &key("often")).await;
        let duplicates = Duplicates::start(store.clone());
        for number in 0..3 * COUNTS_MAX {
            duplicates.count(&Claim { key: key(&number.to_string()), ..Claim::clone(&once) }, now);
            if number % 10 == 0 {
                duplicates.count(&often, now);
            }
            assert!(duplicates.shared.counts.lock().unwrap().len() <= 2 * COUNTS_MAX);
        }
        duplicates.stop().await;
        let counted = store.read(&key("often")).await.unwrap().value.unwrap().duplicates;
        assert_eq!(counted, (3 * COUNTS_MAX).div_ceil(10) as i64);
    }
}
