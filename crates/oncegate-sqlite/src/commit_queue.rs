//! The queue of commits waiting for the writer. Any thread adds to it, and the writer takes everything at once.
//!
//! A commit therefore takes the lock once to enter and never to leave. It wakes the writer only if the writer sleeps and enough
//! commits wait.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use oncegate_store::StoreError;

/// The largest total weight that may wait for the writer (see [`Commit::weight`](oncegate_store::Commit::weight)): this many
/// operations, or 256 MiB of outcomes. More is refused, so that memory stays bounded.
const WEIGHT_MAX: usize = 65_536;

pub struct CommitQueue<T> {
    inside: Mutex<Inside<T>>,
    some: Condvar,
}

struct Inside<T> {
    /// Each entry with its weight.
    waiting: VecDeque<(usize, T)>,
    /// The weight of the entries that wait, and of those that were taken but not begun.
    weight: usize,
    is_closed: bool,
    /// Set while the writer sleeps: it must be woken when this many entries wait. Otherwise the writer looks by itself, which saves
    /// a system call for each entry.
    wakes_at: Option<usize>,
}

impl<T> Default for CommitQueue<T> {
    fn default() -> Self {
        let inside = Inside { waiting: VecDeque::new(), weight: 0, is_closed: false, wakes_at: None };
        CommitQueue { inside: Mutex::new(inside), some: Condvar::new() }
    }
}

impl<T> CommitQueue<T> {
    /// Adds an entry with its weight. A refused entry is dropped.
    pub fn put(&self, weight: usize, thing: T) -> Result<(), StoreError> {
        if weight > WEIGHT_MAX {
            return Err(StoreError::Refused("this is more than one commit may bring".into()));
        }
        let mut inside = self.lock();
        if inside.is_closed {
            return Err(StoreError::Unavailable("the store is closed".into()));
        }
        if inside.weight + weight > WEIGHT_MAX {
            return Err(StoreError::Unavailable("too much is waiting for the writer already".into()));
        }
        inside.weight += weight;
        inside.waiting.push_back((weight, thing));
        let waiting = inside.waiting.len();
        let is_enough = inside.wakes_at.take_if(|enough| waiting >= *enough).is_some();
        // The lock is released before the wake-up, or the woken writer would only wait for it.
        drop(inside);
        if is_enough {
            self.some.notify_one();
        }
        Ok(())
    }

    /// Refuses new entries from now on. The waiting entries are left to the writer.
    pub fn close(&self) {
        let mut inside = self.lock();
        inside.is_closed = true;
        inside.wakes_at = None;
        self.some.notify_one();
    }

    // The functions below are for the writer only.

    /// Appends all waiting entries to `taken`. If both are empty, it waits for an entry, or until the queue is closed.
    pub fn take(&self, taken: &mut VecDeque<(usize, T)>) {
        let mut inside = self.lock();
        while taken.is_empty() && inside.waiting.is_empty() && !inside.is_closed {
            inside.wakes_at = Some(1);
            inside = self.some.wait(inside).expect("no holder of this lock panics");
        }
        match taken.is_empty() {
            true => std::mem::swap(&mut inside.waiting, taken),
            false => taken.append(&mut inside.waiting),
        }
    }

    /// The same without waiting. Returns false if `taken` is empty and no entry will come any more.
    pub fn try_take(&self, taken: &mut VecDeque<(usize, T)>) -> bool {
        let mut inside = self.lock();
        taken.append(&mut inside.waiting);
        !taken.is_empty() || !inside.is_closed
    }

    /// Waits for more entries, until `enough` are taken in all or `at_most` has passed.
    pub fn linger(&self, enough: usize, at_most: Duration, taken: &mut VecDeque<(usize, T)>) {
        let mut inside = self.lock();
        let missing = enough.saturating_sub(taken.len());
        if inside.waiting.len() < missing && !inside.is_closed {
            inside.wakes_at = Some(missing);
            // After a spurious wake-up the writer continues with fewer entries.
            (inside, _) = self.some.wait_timeout(inside, at_most).expect("no holder of this lock panics");
            inside.wakes_at = None;
        }
        taken.append(&mut inside.waiting);
    }

    /// Subtracts the weight of taken entries that the writer has begun.
    pub fn begun(&self, weight: usize) {
        self.lock().weight -= weight;
    }

    fn lock(&self) -> MutexGuard<'_, Inside<T>> {
        self.inside.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn all_that_waits_is_taken_at_once_and_in_order() {
        let commit_queue = Arc::new(CommitQueue::default());
        let putting = std::thread::spawn({
            let commit_queue = commit_queue.clone();
            move || {
                (0..10_000).for_each(|number| commit_queue.put(1, number).unwrap());
                commit_queue.close();
            }
        });
        let (mut all, mut taken) = (vec![], VecDeque::new());
        loop {
            commit_queue.take(&mut taken);
            if taken.is_empty() {
                break;
            }
            commit_queue.begun(taken.len());
            all.extend(taken.drain(..).map(|(_, number)| number));
        }
        assert!(all.into_iter().eq(0..10_000));
        putting.join().unwrap();
    }

    #[test]
    fn whoever_lingers_goes_on_when_enough_have_come_or_its_time_is_over_or_nobody_will_come() {
        const LONG: Duration = Duration::from_secs(600);
        let commit_queue = Arc::new(CommitQueue::default());
        let mut taken = VecDeque::from([(1, 0)]);
        commit_queue.put(1, 1).unwrap();
        commit_queue.linger(2, LONG, &mut taken);
        assert_eq!(taken, [(1, 0), (1, 1)], "they are here already");
        let putting = std::thread::spawn({
            let commit_queue = commit_queue.clone();
            move || (2..5).for_each(|number| commit_queue.put(1, number).unwrap())
        });
        commit_queue.linger(5, LONG, &mut taken);
        assert_eq!(taken, [(1, 0), (1, 1), (1, 2), (1, 3), (1, 4)]);
        putting.join().unwrap();
        commit_queue.put(1, 5).unwrap();
        commit_queue.linger(1_000, Duration::from_millis(1), &mut taken);
        assert_eq!(taken.len(), 6, "with fewer than it hoped for");
        let closing = std::thread::spawn({
            let commit_queue = commit_queue.clone();
            move || commit_queue.close()
        });
        commit_queue.linger(1_000, LONG, &mut taken);
        closing.join().unwrap();
        commit_queue.linger(1_000, LONG, &mut taken);
        assert_eq!(taken.len(), 6);
    }

    #[test]
    fn it_holds_so_much_until_that_is_begun_and_nothing_once_it_is_closed() {
        let commit_queue = CommitQueue::default();
        assert!(matches!(commit_queue.put(WEIGHT_MAX + 1, 'a'), Err(StoreError::Refused(_))));
        commit_queue.put(WEIGHT_MAX, 'b').unwrap();
        assert!(matches!(commit_queue.put(1, 'c'), Err(StoreError::Unavailable(_))));
        let mut taken = VecDeque::new();
        assert!(commit_queue.try_take(&mut taken));
        assert_eq!(taken, [(WEIGHT_MAX, 'b')]);
        assert!(commit_queue.put(1, 'c').is_err(), "it still waits");
        commit_queue.begun(WEIGHT_MAX);
        commit_queue.put(1, 'd').unwrap();
        commit_queue.take(&mut taken);
        assert_eq!(taken, [(WEIGHT_MAX, 'b'), (1, 'd')], "behind what was taken before");
        commit_queue.put(1, 'd').unwrap();
        commit_queue.close();
        assert!(commit_queue.put(1, 'e').is_err());
        taken.clear();
        commit_queue.take(&mut taken);
        assert_eq!(taken, [(1, 'd')], "what waits is not lost");
        taken.clear();
        assert!(!commit_queue.try_take(&mut taken));
    }
}
