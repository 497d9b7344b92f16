//! Records: documents that are stored beside claims and changed in the same commits.
//!
//! A record is a lead, a message, an ended action or an instance of a saga. Only its writer knows what it means; the store
//! knows its place, its version, its names, and the lists that it is in.

use bytes::Bytes;
use oncegate_core::job::Job;
use oncegate_core::{Time, WorkspaceName};
use uuid::Uuid;

/// A document under an id. Ids grow with time (UUIDv7), so lists are in the order of creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The workspace that owns the record.
    pub workspace: WorkspaceName,
    /// The kind of record: `lead`, `message`, `action`.
    pub kind: &'static str,
    /// The id of the record, unique among the records of its workspace and kind.
    pub id: Uuid,
    /// 1 at first, and one more with each change.
    pub version: i64,
    /// One word to list the record by.
    pub state: Option<String>,
    /// After this time the store's sweep removes the record with its names and lists. Until then the record can still be read.
    pub expires_at: Option<Time>,
    /// JSON.
    pub body: Bytes,
}

impl Record {
    /// Where the record is found by its id.
    pub fn place(&self) -> Place {
        Place { workspace: self.workspace.clone(), kind: self.kind, at: At::Id(self.id) }
    }
}

/// Identifies a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The workspace that owns the record.
    pub workspace: WorkspaceName,
    /// The kind of the record.
    pub kind: &'static str,
    /// Which record of this workspace and kind.
    pub at: At,
}

/// What a lookup knows of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// The record's id.
    Id(Uuid),
    /// One of the record's names. A name belongs to one record only.
    Name(String),
}

/// A conditional write. The condition decides races: if it does not hold, nothing of the commit is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Creates a record, unless its id or one of these names is taken. The record stays in these lists for as long as it exists.
    Create {
        /// The new record.
        record: Record,
        /// Names under which the record is found. No other record of the workspace and kind may have them.
        names: Vec<String>,
        /// Lists in which the record is found.
        lists: Vec<String>,
    },
    /// Replaces the previous version. `names` are added to the record's names; no other record may have them.
    Replace {
        /// The next version: its `version` is one more than that of the stored record.
        record: Record,
        /// Names to add. Names that the record has already may be among them.
        names: Vec<String>,
    },
    /// Removes this version of the record, with its names and lists. The caller must pass all of them.
    Remove {
        /// The stored version.
        record: Record,
        /// All names of the record.
        names: Vec<String>,
        /// All lists of the record.
        lists: Vec<String>,
    },
    /// Puts a job into the queue, unless the queue has a job with its id. A job created as leased must still be within its lease.
    Enqueue(Job),
    /// Replaces the previous version, within the lease that it was decided under. If the job has left its group, the next job
    /// of the group is woken.
    Requeue {
        /// The next version: its `version` is one more than that of the stored job.
        job: Job,
        /// The end of the lease that the change was decided under. From then on the change is refused.
        stands_until: Time,
    },
    /// Takes this version of the job out of the queue, within its lease. The next job of its group is woken.
    Dequeue(Job),
}

impl Change {
    /// Creates a record without names or lists.
    pub fn create(record: Record) -> Change {
        Change::Create { record, names: vec![], lists: vec![] }
    }

    /// Replaces a record, and adds no names.
    pub fn replace(record: Record) -> Change {
        Change::Replace { record, names: vec![] }
    }

    /// The job that leaves its group with this change, because it has ended or restarts from the beginning.
    pub fn leaves_lane(&self) -> Option<&Job> {
        match self {
            Change::Dequeue(job) => Some(job),
            Change::Requeue { job, .. } if !job.started && !job.is_untouched() => Some(job),
            _ => None,
        }
        .filter(|job| job.lane.is_some())
    }

    /// The kind of job that a worker must look at once this change is written, and when.
    pub fn wakes(&self) -> Option<(&str, Time)> {
        // The next job of the group may run now.
        if let Some(job) = self.leaves_lane() {
            return Some((&job.kind, Time::LONG_AGO));
        }
        match self {
            Change::Enqueue(job) | Change::Requeue { job, .. } => Some((&job.kind, job.wakes_at())),
            Change::Dequeue(_) | Change::Create { .. } | Change::Replace { .. } | Change::Remove { .. } => None,
        }
    }

    /// The size of the change's payload.
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
    /// The workspace that owns the records.
    pub workspace: WorkspaceName,
    /// The kind of the records.
    pub kind: &'static str,
    /// Only records in this list. `None`: all records of the kind.
    pub list: Option<String>,
    /// Only records in this state. `None`: records in any state.
    pub state: Option<String>,
    /// The most records to return, or to count.
    pub limit: usize,
    /// Lists only records older than this one.
    pub before: Option<Uuid>,
}

impl Listing {
    /// The number of examined records after which a page may end early, if few of them are in the state. It bounds the caller's wait.
    pub const LOOKED_MAX: usize = 10_000;

    /// Whether few of many records may fit.
    pub fn is_sparse(&self) -> bool {
        self.list.is_some() && self.state.is_some()
    }
}

/// A page of records.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The records of the page, newest first.
    pub records: Vec<Record>,
    /// Set if there are, or may be, more records older than this one.
    pub next: Option<Uuid>,
}

impl Listed {
    /// Whether the page ended before it was full, although there may be more records, to bound the caller's wait.
    pub fn ended_early(&self, limit: usize) -> bool {
        self.next.is_some() && self.records.len() < limit
    }
}
