//! A batch: decided commits that touch different things and are written together, in the order in which every replica locks.

use std::collections::{HashMap, HashSet};

use oncegate_core::{ClaimKey, Time, WorkspaceName};
use oncegate_store::Change;
use uuid::Uuid;

use crate::decide::{Decided, Write};
use crate::pending::Pending;
use crate::written::Written;

pub(crate) struct Batch {
    decided: Vec<Decided>,
    /// The places of the writes (commit, write within the commit), in the order of their keys.
    order: Vec<(usize, usize)>,
}

impl Batch {
    /// Picks the commits that can be written together and hands back the others. A commit is handed back if it touches what a picked
    /// commit touches. It is to be decided again after that one is committed.
    pub fn of(all: Vec<Decided>) -> (Batch, Vec<Pending>) {
        let mut touched = Touched::default();
        let mut leaders: HashMap<ClaimKey, usize> = HashMap::with_capacity(all.len());
        let mut decided: Vec<Decided> = Vec::with_capacity(all.len());
        let mut later = vec![];
        for next in all {
            let leader = next.only_key().and_then(|key| leaders.get(key));
            match leader {
                Some(&leader) => decided[leader].lead(next),
                None if touched.overlaps(&next) => later.extend(next.into_jobs()),
                None => {
                    leaders.extend(next.only_key().map(|key| (key.clone(), decided.len())));
                    touched.add(&next);
                    decided.push(next);
                }
            }
        }
        let places = decided.iter().enumerate();
        let mut order: Vec<_> = places.flat_map(|(i, next)| (0..next.writes.len()).map(move |j| (i, j))).collect();
        order.sort_unstable_by_key(|&(i, j)| &decided[i].writes[j].next.key);
        (Batch { decided, order }, later)
    }

    /// All writes, in the order of their keys.
    pub fn writes(&self) -> impl Iterator<Item = &Write> {
        self.order.iter().map(|&(i, j)| &self.decided[i].writes[j])
    }

    /// Whether the batch writes nothing but the mark of its connection.
    pub fn is_probe(&self) -> bool {
        self.order.is_empty() && self.changes().next().is_none()
    }

    /// What the commits change beside claims.
    pub fn changes(&self) -> impl Iterator<Item = &Change> {
        self.decided.iter().flat_map(Decided::changes)
    }

    /// Each change, and when it was decided.
    pub fn decided_changes(&self) -> impl Iterator<Item = (&Change, Time)> {
        self.decided.iter().flat_map(|decided| decided.changes().iter().map(|change| (change, decided.decided_at())))
    }

    /// For each commit, whether all of it was written.
    fn landed(&self, written: &Written) -> Vec<bool> {
        let mut landed = vec![true; self.decided.len()];
        for (&(i, _), has_landed) in self.order.iter().zip(&written.claims) {
            landed[i] &= has_landed;
        }
        let mut changes = written.changes.as_slice();
        for (decided, landed) in self.decided.iter().zip(&mut landed) {
            let (own, others) = changes.split_at(decided.changes().len());
            *landed &= own.iter().all(|change| *change);
            changes = others;
        }
        landed
    }

    /// What can be said about the batch before COMMIT.
    pub fn review(&self, written: &Written) -> Review {
        // A new owner's token may be no larger than an earlier token of the same key: nothing of the batch is valid.
        let is_overtaken = |write: &Write| write.new_owner && write.next.token <= written.seal.token_floor;
        if self.writes().any(is_overtaken) {
            return Review::Nothing;
        }
        let landed = self.landed(written);
        // A part of the commit may be written.
        if self.decided.iter().zip(&landed).any(|(decided, landed)| decided.is_whole() && !landed) {
            return Review::Partly;
        }
        if landed.contains(&true) { Review::Stands } else { Review::Nothing }
    }

    /// Answers the commits that were written, after COMMIT has succeeded. Hands back the others.
    pub fn answer(self, written: &Written) -> Vec<Pending> {
        self.answer_landed(written, Decided::answer)
    }

    /// Answers the commits that may have been written. Hands back the ones that certainly were not.
    pub fn answer_unknown(self, written: &Written, why: &str) -> Vec<Pending> {
        self.answer_landed(written, |decided| decided.answer_unknown(why))
    }

    fn answer_landed(self, written: &Written, answer: impl Fn(Decided) -> Vec<Pending>) -> Vec<Pending> {
        let landed = self.landed(written);
        let answered =
            |(decided, landed): (Decided, bool)| if landed { answer(decided) } else { decided.into_losers() };
        self.decided.into_iter().zip(landed).flat_map(answered).collect()
    }

    /// Handles a batch that was undone because a commit was written in part. A commit that was alone is answered, or is retried if only
    /// its claims came too late. Of several commits, the ones at fault are retried alone, and the others together.
    pub fn answer_partly(self, written: &Written) -> Vec<Pending> {
        let is_alone = self.decided.len() == 1;
        let claims_landed = written.claims.iter().all(|landed| *landed);
        if let (true, true, Some(place)) = (is_alone, claims_landed, written.changes.iter().position(|landed| !landed))
        {
            self.decided.into_iter().for_each(|decided| decided.answer_conflict(place));
            return vec![];
        }
        let landed = self.landed(written);
        let again = |(decided, landed): (Decided, bool)| match landed {
            true => decided.into_jobs(),
            false => decided.into_losers_alone(),
        };
        self.decided.into_iter().zip(landed).flat_map(again).collect()
    }

    pub fn into_losers(self) -> Vec<Pending> {
        self.decided.into_iter().flat_map(Decided::into_losers).collect()
    }

    pub fn into_jobs(self) -> Vec<Pending> {
        self.decided.into_iter().flat_map(Decided::into_jobs).collect()
    }
}

pub(crate) enum Review {
    /// The batch may be committed.
    Stands,
    /// Nothing of the batch took effect, or none of it may be committed.
    Nothing,
    /// The batch must not be committed: a commit was written in part.
    Partly,
}

/// What a batch writes to. One statement must not write to the same row twice.
#[derive(Default)]
struct Touched {
    claims: HashSet<ClaimKey>,
    records: HashSet<(WorkspaceName, &'static str, Uuid)>,
    names: HashSet<(WorkspaceName, &'static str, String)>,
    jobs: HashSet<(WorkspaceName, Uuid)>,
}

impl Touched {
    fn overlaps(&self, decided: &Decided) -> bool {
        decided.writes.iter().any(|write| self.claims.contains(&write.next.key))
            || decided.changes().iter().any(|change| match change {
                Change::Create { record, names, .. }
                | Change::Replace { record, names }
                | Change::Remove { record, names, .. } => {
                    let (workspace, kind) = (&record.workspace, record.kind);
                    self.records.contains(&(workspace.clone(), kind, record.id))
                        || names.iter().any(|name| self.names.contains(&(workspace.clone(), kind, name.clone())))
                }
                Change::Enqueue(job) | Change::Requeue { job, .. } | Change::Dequeue(job) => {
                    self.jobs.contains(&(job.workspace.clone(), job.id))
                }
            })
    }

    fn add(&mut self, decided: &Decided) {
        self.claims.extend(decided.writes.iter().map(|write| write.next.key.clone()));
        for change in decided.changes() {
            match change {
                Change::Create { record, names, .. }
                | Change::Replace { record, names }
                | Change::Remove { record, names, .. } => {
                    let (workspace, kind) = (&record.workspace, record.kind);
                    self.records.insert((workspace.clone(), kind, record.id));
                    self.names.extend(names.iter().map(|name| (workspace.clone(), kind, name.clone())));
                }
                Change::Enqueue(job) | Change::Requeue { job, .. } | Change::Dequeue(job) => {
                    self.jobs.insert((job.workspace.clone(), job.id));
                }
            }
        }
    }
}
