//! Callers that wait for another owner's claim to settle.
//!
//! A waiter registers first and reads the claim afterwards, so a settle between the two
//! wakes the waiter. Waiters do not poll.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use oncegate_core::{ClaimId, Command, WorkspaceName};
use tokio::sync::Notify;

use crate::{Bell, Commit, Op};

type Place = (WorkspaceName, ClaimId);

/// The waiters of this process, by claim.
#[derive(Debug, Default)]
pub struct Waiters {
    by_claim: Mutex<HashMap<Place, Entry>>,
    /// Wakes the workers that wait for jobs.
    pub jobs: Bell,
}

#[derive(Debug)]
struct Entry {
    notify: Arc<Notify>,
    waiting: usize,
}

impl Waiters {
    /// Registers a waiter. From then on it misses no wake-up.
    pub fn register(self: &Arc<Self>, workspace: &WorkspaceName, id: ClaimId) -> Waiter {
        let place = (workspace.clone(), id);
        let mut by_claim = self.lock();
        let entry = by_claim.entry(place.clone()).or_insert_with(|| Entry { notify: Arc::default(), waiting: 0 });
        entry.waiting += 1;
        let notified = Box::pin(entry.notify.clone().notified_owned());
        Waiter { waiters: self.clone(), place, notify: entry.notify.clone(), notified }
    }

    /// Wakes the waiters of this claim.
    pub fn wake(&self, workspace: &WorkspaceName, id: ClaimId) {
        let by_claim = self.lock();
        if by_claim.is_empty() {
            return;
        }
        if let Some(entry) = by_claim.get(&(workspace.clone(), id)) {
            entry.notify.notify_waiters();
        }
    }

    /// Wakes the waiters that a written commit concerns.
    pub fn wake_after(&self, commit: &Commit) {
        commit.ops.iter().for_each(|op| self.wake_after_op(op));
        commit.changes.iter().for_each(|change| self.jobs.ring_after(change));
    }

    fn wake_after_op(&self, op: &Op) {
        if !matches!(op.command, Command::Claim(_) | Command::Renew { .. }) {
            self.wake(&op.key.workspace, op.key.id);
        }
    }

    /// Wakes all waiters, after a time in which wake-ups may have been lost.
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
    /// Waits for a wake-up since the last return of this function, or since the registration.
    pub async fn woken(&mut self) {
        self.notified.as_mut().await;
        // A `notified` future counts from its creation, not from its first poll, so a wake-up while the caller reads is not missed.
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
