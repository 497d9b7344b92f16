//! The document of an action: in its job while the action is in the queue, in its record when the action has ended.

use bytes::Bytes;
use oncegate_core::job::{Delivery, Job, Reached, WORKER_LOST};
use oncegate_core::{Time, WorkspaceName};
use oncegate_store::{At, JobFilter, Place, Record, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::Recurrence;

/// The kind of the records of ended actions.
pub const KIND: &str = "action";
/// The prefix of the kinds of jobs of actions; the action's type follows.
pub const JOBS: &str = "action:";

/// How many revisions and tries are kept: the last ones.
const KEPT_MAX: usize = 50;

/// An action, as its job or its record stores it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Action {
    /// The type of the action, which selects its handler.
    #[serde(rename = "type")]
    pub action_type: String,
    /// The JSON that the handler gets.
    pub payload: Box<RawValue>,
    /// The entity that the payload names, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entity: Option<Entity>,
    /// 1 for a new action, and one more for each schedule that has updated it.
    pub revision: i64,
    /// When the action was created.
    pub created_us: i64,
    /// When the last revisions were made. It includes the first revision until there are more than are kept.
    pub revised_us: Vec<i64>,
    /// The end of the window in which duplicates coalesce into this action. `None` if the action is not deduplicated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_until_us: Option<i64>,
    /// The last tries that failed, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tries: Vec<Try>,
    /// When the action runs again, if it is a recurring schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recurrence: Option<Recurrence>,
    /// The schedule, if this action was one tick of a schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tick_of: Option<Uuid>,
    /// How the action ended; `None` while it is in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
    /// The version of the record, if a person has retried the action and a record exists already; otherwise 0.
    #[serde(default, skip_serializing_if = "is_none")]
    pub record_version: i64,
}

fn is_none(version: &i64) -> bool {
    *version == 0
}

/// The entity that an action is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entity {
    /// The id of the entity.
    pub id: String,
    /// The type of the entity, if the payload gives one.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub entity_type: Option<String>,
}

/// A try that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Try {
    /// The number of the try: 1 for the first.
    pub attempt: i32,
    /// When the failure was recorded.
    pub at_us: i64,
    /// Why the try failed, for people.
    pub error: String,
    /// Whether the effect may have happened despite the error.
    pub maybe: bool,
}

/// How an action ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ended {
    /// The status of the action. A person may have resolved it since its end.
    pub status: Status,
    /// When the action ended.
    pub at_us: i64,
    /// When the action was due. For a tick, this is the time of the tick.
    pub due_us: i64,
    /// How many tries had begun.
    pub attempt: i32,
    /// The token of the lease under which it ended. A repeated report with this token is recognised.
    pub token: i64,
    /// The result that the handler returned, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    /// Why the last try failed; `None` if the queue ended the action as completed or cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The most tries of the action. A person's retry uses this and the next three fields again.
    pub tries_max: i32,
    /// The backoff between the first try and the second.
    pub pause_us: i64,
    /// The longest backoff.
    pub pause_max_us: i64,
    /// Whether a try that may have reached the receiver is not retried.
    pub at_most_once: bool,
    /// How a person resolved it later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Resolved>,
}

/// How a person resolved an action that ended without success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved {
    /// The status before it was resolved.
    pub was: Status,
    /// The name of the person.
    pub by: String,
    /// The person's note, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// When the action was resolved.
    pub at_us: i64,
}

/// The status of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It waits for its due time, and no try has begun.
    Pending,
    /// A worker has leased it. That worker may be lost since.
    Running,
    /// The last try failed; the action waits for the next.
    Failed,
    /// A worker has done it, or a person has resolved it as done.
    Completed,
    /// It surely did not happen, and has no tries left.
    Dead,
    /// It may have happened.
    Unknown,
    /// It was cancelled, or a person has resolved it as not done.
    Cancelled,
}

impl Status {
    /// All statuses.
    pub const ALL: [Status; 7] = [
        Status::Pending,
        Status::Running,
        Status::Failed,
        Status::Completed,
        Status::Dead,
        Status::Unknown,
        Status::Cancelled,
    ];

    /// The name of the status, as the API shows it and the stores write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Pending => "pending",
            Status::Running => "running",
            Status::Failed => "failed",
            Status::Completed => "completed",
            Status::Dead => "dead",
            Status::Unknown => "unknown",
            Status::Cancelled => "cancelled",
        }
    }

    /// The status with this name; `None` if no status has it.
    pub fn parse(name: &str) -> Option<Status> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }

    /// The corresponding state in the queue; `None` if the action has left the queue.
    pub(super) fn in_queue(self) -> Option<JobFilter> {
        match self {
            Status::Pending => Some(JobFilter::Untouched),
            Status::Running => Some(JobFilter::Running),
            Status::Failed => Some(JobFilter::Failed),
            Status::Completed | Status::Dead | Status::Unknown | Status::Cancelled => None,
        }
    }

    /// The status of the action in this job.
    pub fn of(job: &Job) -> Status {
        match JobFilter::of(job) {
            JobFilter::Untouched => Status::Pending,
            JobFilter::Running => Status::Running,
            JobFilter::Failed => Status::Failed,
        }
    }
}

impl Entity {
    /// The group of the jobs of one type about this entity, which do not run at the same time. The groups of one entity id share a
    /// prefix.
    pub(super) fn lane(&self, action_type: &str) -> String {
        let about = self.entity_type.as_ref().map_or(String::new(), |name| format!(" {name}"));
        format!("{}{}:{action_type}{about}", Entity::lane_prefix(&self.id), action_type.len())
    }

    pub(super) fn lane_prefix(id: &str) -> String {
        format!("{}:{id} ", id.len())
    }
}

impl Action {
    /// Reads an action from the payload of its job or the body of its record. The id is for the error.
    pub fn read(bytes: &[u8], id: Uuid) -> Result<Action, StoreError> {
        // The message of the error is left out: it repeats parts of the document.
        serde_json::from_slice(bytes).map_err(|error| {
            StoreError::Unreadable(format!("the action {id} cannot be read, from its byte {} on", error.column()))
        })
    }

    pub(super) fn bytes(&self) -> Bytes {
        serde_json::to_vec(self).expect("an action is JSON").into()
    }

    /// The kind of the jobs of a type.
    pub fn job_kind(action_type: &str) -> String {
        format!("{JOBS}{action_type}")
    }

    pub(super) fn place(workspace: &WorkspaceName, id: Uuid) -> Place {
        Place { workspace: workspace.clone(), kind: KIND, at: At::Id(id) }
    }

    /// The lists that its record is in.
    pub(super) fn lists(&self) -> Vec<String> {
        let entity = self.entity.as_ref().map(|entity| Action::list_of_entity(&entity.id));
        let schedule = self.tick_of.map(Action::list_of_schedule);
        [Some(Action::list_of_type(&self.action_type)), entity, schedule].into_iter().flatten().collect()
    }

    pub(super) fn list_of_type(action_type: &str) -> String {
        format!("type:{action_type}")
    }

    pub(super) fn list_of_entity(id: &str) -> String {
        format!("entity:{id}")
    }

    pub(super) fn list_of_schedule(id: Uuid) -> String {
        format!("schedule:{id}")
    }

    /// The record. It has no state while the action is back in the queue for a retry.
    pub(super) fn record(&self, workspace: &WorkspaceName, id: Uuid, version: i64) -> Record {
        let state = self.ended.as_ref().map(|ended| ended.status.as_str().to_owned());
        Record { workspace: workspace.clone(), kind: KIND, id, version, state, expires_at: None, body: self.bytes() }
    }

    /// When a revision was made, if that time is still kept.
    pub(super) fn revised_at(&self, revision: i64) -> Option<i64> {
        let later = usize::try_from(self.revision.checked_sub(revision)?).ok()?;
        self.revised_us.iter().rev().nth(later).copied()
    }

    pub(super) fn revised(&mut self, now: Time) {
        self.revision += 1;
        keep(&mut self.revised_us, now.micros());
    }

    /// Records the try before this one as failed, if its worker was lost without a report.
    pub(super) fn note_lost(&mut self, job: &Job, now: Time) {
        // A job that is delivered at most once, and has not begun again, still counts the lost try as its last.
        let attempt = if job.delivery == Delivery::AtMostOnce && !job.begun { job.tried } else { job.tried - 1 };
        let is_noted = |failed: &Try| failed.attempt == attempt && failed.at_us >= job.created_at.micros();
        let is_noted = self.tries.iter().any(is_noted);
        if attempt > 0 && !is_noted && job.error.as_deref() == Some(WORKER_LOST) {
            self.failed(attempt, now, WORKER_LOST, Reached::Maybe);
        }
    }

    pub(super) fn failed(&mut self, attempt: i32, now: Time, error: &str, reached: Reached) {
        let failed = Try { attempt, at_us: now.micros(), error: error.into(), maybe: reached == Reached::Maybe };
        keep(&mut self.tries, failed);
    }
}

fn keep<T>(list: &mut Vec<T>, item: T) {
    if list.len() >= KEPT_MAX {
        list.remove(0);
    }
    list.push(item);
}
