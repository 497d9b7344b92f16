//! Callers that wait for somebody else's claim to settle.
//!
//! A waiter registers first and looks at the claim after: whatever happens between the two
//! wakes it. Nobody polls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use oncegate_core::{ClaimId, Command, WorkspaceName};
use tokio::sync::Notify;

use crate::{Bell, Commit, Op};

type Place = (WorkspaceName, ClaimId);

/// Who in this process waits, for which claims.
#[derive(Debug, Default)]
pub struct Waiters {
    by_claim: Mutex<HashMap<Place, Entry>>,
    /// For those who wait for jobs.
    pub jobs: Bell,
}

#[derive(Debug)]
struct Entry {
    notify: Arc<Notify>,
    waiting: usize,
}

impl Waiters {
    /// Registers a waiter. From here on no wake-up is missed.
    pub fn register(self: &Arc<Self>, workspace: &WorkspaceName, id: ClaimId) -> Waiter {
        let place = (workspace.clone(), id);
        let mut by_claim = self.lock();
        let entry = by_claim.entry(place.clone()).or_insert_with(|| Entry { notify: Arc::default(), waiting: 0 });
        entry.waiting += 1;
        let notified = Box::pin(entry.notify.clone().notified_owned());
        Waiter { waiters: self.clone(), place, notify: entry.notify.clone(), notified }
    }

    /// Wakes those who wait for this claim.
    pub fn wake(&self, workspace: &WorkspaceName, id: ClaimId) {
        let by_claim = self.lock();
        if by_claim.is_empty() {
            return;
        }
        if let Some(entry) = by_claim.get(&(workspace.clone(), id)) {
            entry.notify.notify_waiters();
        }
    }

    /// Wakes those for whom this commit, written, changed something.
    pub fn wake_after(&self, commit: &Commit) {
        commit.ops.iter().for_each(|op| self.wake_after_op(op));
        commit.changes.iter().for_each(|change| self.jobs.ring_after(change));
    }

    fn wake_after_op(&self, op: &Op) {
        if !matches!(op.command, Command::Claim(_) | Command::Renew { .. }) {
            self.wake(&op.key.workspace, op.key.id);
        }
    }

    /// Wakes everyone, after a time in which wake-ups may have been lost.
    pub fn wake_all(&self) {
        self.lock().values().for_each(|entry| entry.notify.notify_waiters());
        self.jobs.ring_all();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Place, Entry>> {
        self.by_claim.lock().expect("no holder of this lock panics")
    }
}

/// A registered waiter; dropping it unregisters.
#[derive(Debug)]
pub struct Waiter {
    waiters: Arc<Waiters>,
    place: Place,
    notify: Arc<Notify>,
    notified: std::pin::Pin<Box<tokio::sync::futures::OwnedNotified>>,
}

impl Waiter {
    /// Waits for a wake-up that came, or comes, after the last one returned (or after registering).
    pub async fn woken(&mut self) {
        self.notified.as_mut().await;
        // Counts from its creation, not from its first poll: what comes while the caller looks is not missed.
        self.notified.set(self.notify.clone().notified_owned());
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut by_claim = self.waiters.lock();
        if let Some(entry) = by_claim.get_mut(&self.place) {
            entry.waiting -= 1;
            if entry.waiting == 0 {
                by_claim.remove(&self.place);
            }
        }
    }
}
