//! Records: documents that are kept beside claims, and changed together with them.
//!
//! A lead, a message, an action that has ended, a saga's instance. What a record means is for whoever writes it; a store knows
//! its place, its version, what it is called, and which lists it is in.

use bytes::Bytes;
use oncegate_core::job::Job;
use oncegate_core::{Time, WorkspaceName};
use uuid::Uuid;

/// A document under an id. Ids grow with time (UUIDv7): lists are in the order of their making.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub workspace: WorkspaceName,
    /// What it is: `lead`, `message`, `action`.
    pub kind: &'static str,
    pub id: Uuid,
    /// 1, and one more with each change.
    pub version: i64,
    /// One word by which it can be listed.
    pub state: Option<String>,
    /// From then on the store removes it, by itself, with its names and lists; until it has, it is there.
    pub expires_at: Option<Time>,
    /// JSON.
    pub body: Bytes,
}

impl Record {
    pub fn place(&self) -> Place {
        Place { workspace: self.workspace.clone(), kind: self.kind, at: At::Id(self.id) }
    }
}

/// Where a record is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub workspace: WorkspaceName,
    pub kind: &'static str,
    pub at: At,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    Id(Uuid),
    /// One of its names, each of which is one record's alone.
    Name(String),
}

/// A conditional write. The condition decides the race: where it does not hold, nothing of the commit is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Unless its id, or one of these names, is taken. It is in these lists for good.
    Create { record: Record, names: Vec<String>, lists: Vec<String> },
    /// Onto the version before it. These names, which nobody else has, are added to those that it has.
    Replace { record: Record, names: Vec<String> },
    /// Away: this version of it, with these names and lists, which are all that it has.
    Remove { record: Record, names: Vec<String>, lists: Vec<String> },
    /// Into the queue, unless there is a job with its id; one that is born leased, within its lease.
    Enqueue(Job),
    /// Onto the version before it, within the lease that it was decided under. If it has left its lane, the next in it is woken.
    Requeue { job: Job, stands_until: Time },
    /// Out of the queue: this version of it, within its lease. The next in its lane is woken.
    Dequeue(Job),
}

impl Change {
    pub fn create(record: Record) -> Change {
        Change::Create { record, names: vec![], lists: vec![] }
    }

    pub fn replace(record: Record) -> Change {
        Change::Replace { record, names: vec![] }
    }

    /// The job that leaves its lane with this: it is over, or begins again from the beginning.
    pub fn leaves_lane(&self) -> Option<&Job> {
        match self {
            Change::Dequeue(job) => Some(job),
            Change::Requeue { job, .. } if !job.started && !job.is_untouched() => Some(job),
            _ => None,
        }
        .filter(|job| job.lane.is_some())
    }

    /// A kind of job that somebody has to look at once this is written, and when.
    pub fn wakes(&self) -> Option<(&str, Time)> {
        // Whoever is next in its lane may go.
        if let Some(job) = self.leaves_lane() {
            return Some((&job.kind, Time::LONG_AGO));
        }
        match self {
            Change::Enqueue(job) | Change::Requeue { job, .. } => Some((&job.kind, job.wakes_at())),
            Change::Dequeue(_) | Change::Create { .. } | Change::Replace { .. } | Change::Remove { .. } => None,
        }
    }

    /// How much it brings.
    pub fn bytes(&self) -> usize {
        match self {
            Change::Create { record, .. } | Change::Replace { record, .. } => record.body.len(),
            Change::Enqueue(job) | Change::Requeue { job, .. } => job.payload.len(),
            Change::Remove { .. } | Change::Dequeue(_) => 0,
        }
    }
}

/// Which records to list, newest first, or to count.
#[derive(Clone, Debug)]
pub struct Listing {
    pub workspace: WorkspaceName,
    pub kind: &'static str,
    pub list: Option<String>,
    pub state: Option<String>,
    pub limit: usize,
    /// Those older than this one.
    pub before: Option<Uuid>,
}

impl Listing {
    /// Records of a list that a page may end after, if those in the state are fewer: nobody waits for all to be looked at.
    pub const LOOKED_MAX: usize = 10_000;

    /// Whether those that fit may be few among many.
    pub fn is_sparse(&self) -> bool {
        self.list.is_some() && self.state.is_some()
    }
}

#[derive(Clone, Debug)]
pub struct Listed {
    pub records: Vec<Record>,
    /// There are more, older than this one, or may be.
    pub next: Option<Uuid>,
}

impl Listed {
    /// Whether it ended before it was full, though there may be more: enough was looked at, for one who waits.
    pub fn ended_early(&self, limit: usize) -> bool {
        self.next.is_some() && self.records.len() < limit
    }
}
