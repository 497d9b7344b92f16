//! A line of commits, taken a batch at a time.

use std::collections::VecDeque;
use std::time::Instant;

use crate::job::Job;

/// Commits in one batch, and what they may weigh.
const BATCH_MAX: usize = 512;
const BATCH_WEIGHT_MAX: usize = 8 * 1024;

pub(crate) struct Line<T>(VecDeque<T>);

impl<T> Default for Line<T> {
    fn default() -> Self {
        Line(VecDeque::new())
    }
}

impl<T: AsRef<Job>> Line<T> {
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

    /// Those in front, up to a batch of them; one that is to be alone is alone.
    pub fn take_batch(&mut self) -> Vec<T> {
        let mut batch: Vec<T> = vec![];
        let mut weight = 0;
        while let Some(next) = self.0.front().map(T::as_ref) {
            let is_full = batch.len() >= BATCH_MAX || weight + next.weight() > BATCH_WEIGHT_MAX;
            if !batch.is_empty() && (next.alone || is_full) {
                break;
            }
            let (alone, is_abandoned) = (next.alone, next.is_abandoned());
            weight += next.weight();
            let item = self.0.pop_front().expect("there is one in front");
            // Nothing has been written of it, and nobody wants it to be.
            if is_abandoned {
                continue;
            }
            batch.push(item);
            if alone {
                break;
            }
        }
        batch
    }

    /// Those in front that have been in line for too long. The line is in the order of their coming.
    pub fn take_late(&mut self, now: Instant) -> Vec<T> {
        let mut late = vec![];
        while let Some(item) = self.0.pop_front_if(|item| (*item).as_ref().is_late(now)) {
            late.push(item);
        }
        late
    }
}
