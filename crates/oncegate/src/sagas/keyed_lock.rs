//! A mutex per key. Events of one instance wait for each other within a process: otherwise they would conflict on one record.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{Mutex as Queue, OwnedMutexGuard};

#[derive(Default)]
pub struct KeyedLocks(Mutex<HashMap<String, Arc<Queue<()>>>>);

/// Holds the mutex of one key until it is dropped.
pub struct KeyedLock {
    locks: Arc<KeyedLocks>,
    name: String,
    guard: Option<OwnedMutexGuard<()>>,
}

impl KeyedLocks {
    pub async fn take(self: &Arc<KeyedLocks>, name: String) -> KeyedLock {
        let queue = self.0.lock().expect("no holder of this lock panics").entry(name.clone()).or_default().clone();
        // Made before the wait, so that a caller that is dropped while it waits leaves nothing behind.
        let mut turn = KeyedLock { locks: self.clone(), name, guard: None };
        turn.guard = Some(queue.lock_owned().await);
        turn
    }
}

impl Drop for KeyedLock {
    fn drop(&mut self) {
        self.guard = None;
        let mut queues = self.locks.0.lock().expect("no holder of this lock panics");
        // Each caller that waits for the mutex holds a reference, too.
        if queues.get(&self.name).is_some_and(|queue| Arc::strong_count(queue) == 1) {
            queues.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_at_a_time_and_nothing_is_left_behind() {
        let locks = Arc::new(KeyedLocks::default());
        let first = locks.take("a".into()).await;
        let second = tokio::spawn({
            let locks = locks.clone();
            async move { locks.take("a".into()).await }
        });
        let other = locks.take("b".into()).await;
        tokio::task::yield_now().await;
        assert!(!second.is_finished());
        // A caller that gives up does not block the others.
        let impatient = locks.take("a".into());
        assert!(tokio::time::timeout(std::time::Duration::from_millis(5), impatient).await.is_err());
        drop(first);
        drop(second.await.expect("it is its turn"));
        drop(other);
        assert!(locks.0.lock().expect("not poisoned").is_empty());
    }
}
