//! A queue of commits, taken a batch at a time.

use std::collections::VecDeque;
use std::time::Instant;

use crate::pending::Pending;

/// The most commits in one batch, and their largest total weight.
const BATCH_MAX: usize = 512;
const BATCH_WEIGHT_MAX: usize = 8 * 1024;

/// An entry of the queue: a commit, and the followers that wait for its result.
pub(crate) trait InLine: AsRef<Pending> {
    fn into_followers(self) -> Vec<Pending>;
}

impl AsRef<Pending> for Pending {
    fn as_ref(&self) -> &Pending {
        self
    }
}

impl InLine for Pending {
    fn into_followers(self) -> Vec<Pending> {
        vec![]
    }
}

pub(crate) struct Line<T>(VecDeque<T>);

impl<T> Default for Line<T> {
    fn default() -> Self {
        Line(VecDeque::new())
    }
}

impl<T: InLine> Line<T> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn push_back(&mut self, item: T) {
        self.0.push_back(item);
    }

    pub fn push_front(&mut self, items: Vec<T>) {
        items.into_iter().rev().for_each(|item| self.0.push_front(item));
    }

    pub fn extend(&mut self, items: Vec<T>) {
        self.0.extend(items);
    }

    /// Takes a batch from the head. A commit that has to be alone is a batch of its own. Also returns the followers of entries whose
    /// callers are gone: those followers are to be decided again.
    pub fn take_batch(&mut self) -> (Vec<T>, Vec<Pending>) {
        let mut batch: Vec<T> = vec![];
        let mut orphans = vec![];
        let mut weight = 0;
        while let Some(next) = self.0.front().map(T::as_ref) {
            let is_full = batch.len() >= BATCH_MAX || weight + next.weight() > BATCH_WEIGHT_MAX;
            if !batch.is_empty() && (next.alone || is_full) {
                break;
            }
            let (alone, is_abandoned, own_weight) = (next.alone, next.is_abandoned(), next.weight());
            let item = self.0.pop_front().expect("there is one in front");
            // Nothing of it has been written, and its caller is gone.
            if is_abandoned {
                orphans.extend(item.into_followers().into_iter().filter(|job| !job.is_abandoned()));
                continue;
            }
            weight += own_weight;
            batch.push(item);
            if alone {
                break;
            }
        }
        (batch, orphans)
    }

    /// Takes the entries at the head that have waited too long. The queue is in order of arrival.
    pub fn take_late(&mut self, now: Instant) -> Vec<T> {
        let mut late = vec![];
        while let Some(item) = self.0.pop_front_if(|item| (*item).as_ref().is_late(now)) {
            late.push(item);
        }
        late
    }
}
