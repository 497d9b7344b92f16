//! What is written together: decided commits, one for each key, in the order in which every replica locks.

use std::collections::HashMap;

use oncegate_core::ClaimKey;
use oncegate_store::Change;

use crate::commit::Evidence;
use crate::decide::{Decided, Write};
use crate::job::Job;
use crate::write::Written;

/// Either one commit of any number of writes, or any number of commits of one write each.
pub(crate) struct Batch(Vec<Decided>);

impl Batch {
    pub fn of(decided: Vec<Decided>) -> Batch {
        let mut batch = Batch(one_for_each_key(decided));
        batch.0.iter_mut().for_each(|decided| decided.writes.sort_unstable_by(|a, b| a.next.key.cmp(&b.next.key)));
        batch.0.sort_unstable_by(|a, b| a.key().cmp(&b.key()));
        batch
    }

    /// In the order of their keys.
    pub fn writes(&self) -> impl Iterator<Item = &Write> {
        self.0.iter().flat_map(|decided| &decided.writes)
    }

    /// Of a commit that is alone: what it changes beside claims.
    pub fn changes(&self) -> impl Iterator<Item = &Change> {
        self.0.iter().flat_map(Decided::changes)
    }

    /// Answers the one commit whose change found something else than it expects.
    pub fn answer_conflict(self, place: usize) {
        self.0.into_iter().for_each(|decided| decided.answer_conflict(place));
    }

    /// One of the writes that are there once this is committed; `None` if it must not be.
    pub fn evidence(&self, written: &Written) -> Option<Evidence<'_>> {
        // A created record whose token may be no larger than one that its key had before: nothing stands.
        let is_overtaken = |write: &Write| write.was.is_none() && write.next.token <= written.seal.token_floor;
        if self.writes().any(is_overtaken) {
            return None;
        }
        let mut landed = written.landed.as_slice();
        self.0.iter().find(|decided| decided.take_landed(&mut landed)).map(|decided| {
            let record = decided.changes().iter().find_map(|change| match change {
                Change::Create { record, .. } | Change::Replace { record, .. } => Some(record),
                Change::Enqueue(_) | Change::Requeue { .. } | Change::Dequeue(_) => None,
            });
            decided.writes.first().map(Evidence::Claim).or(record.map(Evidence::Record)).unwrap_or(Evidence::None)
        })
    }

    /// Answers those that were written, now that it is committed. Hands back the others.
    pub fn answer(self, written: &Written) -> Vec<Job> {
        self.answer_landed(written, Decided::answer)
    }

    /// Answers those that may have been written. Hands back those that surely were not.
    pub fn answer_unknown(self, written: &Written, why: &str) -> Vec<Job> {
        self.answer_landed(written, |decided| decided.answer_unknown(why))
    }

    fn answer_landed(self, written: &Written, answer: impl Fn(Decided) -> Vec<Job>) -> Vec<Job> {
        let mut landed = written.landed.as_slice();
        let mut others = vec![];
        for decided in self.0 {
            let has_landed = decided.take_landed(&mut landed);
            others.extend(if has_landed { answer(decided) } else { decided.into_losers() });
        }
        others
    }

    pub fn into_losers(self) -> Vec<Job> {
        self.0.into_iter().flat_map(Decided::into_losers).collect()
    }

    pub fn into_jobs(self) -> Vec<Job> {
        self.0.into_iter().flat_map(Decided::into_jobs).collect()
    }
}

/// Makes those that write to one key follow the first of them.
fn one_for_each_key(all: Vec<Decided>) -> Vec<Decided> {
    let mut places: HashMap<ClaimKey, usize> = HashMap::with_capacity(all.len());
    let mut leaders: Vec<Decided> = Vec::with_capacity(all.len());
    for decided in all {
        match decided.key().and_then(|key| places.get(key)) {
            Some(&place) => leaders[place].lead(decided),
            None => {
                places.extend(decided.key().map(|key| (key.clone(), leaders.len())));
                leaders.push(decided);
            }
        }
    }
    leaders
}
