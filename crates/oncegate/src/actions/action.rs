//! An action as it is kept: in its job while it lives, in its record when it has ended.

use bytes::Bytes;
use oncegate_core::job::{Delivery, Job, Reached, WORKER_LOST};
use oncegate_core::{Time, WorkspaceName};
use oncegate_store::{At, JobFilter, Place, Record, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::Recurrence;

/// What the records of ended actions are.
pub const KIND: &str = "action";
/// What the kinds of their jobs begin with; the type is behind it.
pub const JOBS: &str = "action:";

/// Revisions and tries whose times are kept: the last ones.
const KEPT_MAX: usize = 50;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Action {
    #[serde(rename = "type")]
    pub action_type: String,
    pub payload: Box<RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entity: Option<Entity>,
    pub revision: i64,
    pub created_us: i64,
    /// When the last revisions were made, the first of all among them while there are few.
    pub revised_us: Vec<i64>,
    /// Until when duplicates fold into it; not at all where it is not deduplicated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_until_us: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tries: Vec<Try>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recurrence: Option<Recurrence>,
    /// The schedule that this was one tick of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tick_of: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
    /// Of the record that is there already, since somebody has it tried again; none is 0.
    #[serde(default, skip_serializing_if = "is_none")]
    pub record_version: i64,
}

fn is_none(version: &i64) -> bool {
    *version == 0
}

/// What an action is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entity {
    pub id: String,
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub entity_type: Option<String>,
}

/// A try that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Try {
    pub attempt: i32,
    pub at_us: i64,
    pub error: String,
    /// Whether it may have happened all the same.
    pub maybe: bool,
}

/// How it ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ended {
    pub status: Status,
    pub at_us: i64,
    pub due_us: i64,
    pub attempt: i32,
    /// Of the lease that it ended under: whoever says the same again is right.
    pub token: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How it was to be tried, in case somebody has it tried again.
    pub tries_max: i32,
    pub pause_us: i64,
    pub pause_max_us: i64,
    pub at_most_once: bool,
    /// What a person said of it later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Resolved>,
}

/// How somebody settled what had ended without success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved {
    /// What it was until then.
    pub was: Status,
    pub by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    pub at_us: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Pending,
    Running,
    /// The last try failed; it waits for the next.
    Failed,
    Completed,
    /// It surely did not happen, and there are no more tries.
    Dead,
    /// It may have happened.
    Unknown,
    Cancelled,
}

impl Status {
    pub const ALL: [Status; 7] = [
        Status::Pending,
        Status::Running,
        Status::Failed,
        Status::Completed,
        Status::Dead,
        Status::Unknown,
        Status::Cancelled,
    ];

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

    pub fn parse(name: &str) -> Option<Status> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }

    /// As the queue would say it; none if it has left the queue.
    pub(super) fn in_queue(self) -> Option<JobFilter> {
        match self {
            Status::Pending => Some(JobFilter::Untouched),
            Status::Running => Some(JobFilter::Running),
            Status::Failed => Some(JobFilter::Failed),
            Status::Completed | Status::Dead | Status::Unknown | Status::Cancelled => None,
        }
    }

    pub fn of(job: &Job) -> Status {
        match JobFilter::of(job) {
            JobFilter::Untouched => Status::Pending,
            JobFilter::Running => Status::Running,
            JobFilter::Failed => Status::Failed,
        }
    }
}

impl Entity {
    /// Actions in one lane are about one entity: they do not run at the same time. All that are about an entity's id begin alike.
    pub(super) fn lane(&self, action_type: &str) -> String {
        let about = self.entity_type.as_ref().map_or(String::new(), |name| format!(" {name}"));
        format!("{}{}:{action_type}{about}", Entity::lane_prefix(&self.id), action_type.len())
    }

    pub(super) fn lane_prefix(id: &str) -> String {
        format!("{}:{id} ", id.len())
    }
}

impl Action {
    pub fn read(bytes: &[u8], id: Uuid) -> Result<Action, StoreError> {
        // Not the error's own words: they repeat what is there.
        serde_json::from_slice(bytes).map_err(|error| {
            StoreError::Refused(format!("the action {id} cannot be read, from its byte {} on", error.column()))
        })
    }

    pub(super) fn bytes(&self) -> Bytes {
        serde_json::to_vec(self).expect("an action is JSON").into()
    }

    /// What the queue calls those of a type.
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

    /// One that has been given back to the queue is in no state.
    pub(super) fn record(&self, workspace: &WorkspaceName, id: Uuid, version: i64) -> Record {
        let state = self.ended.as_ref().map(|ended| ended.status.as_str().to_owned());
        Record { workspace: workspace.clone(), kind: KIND, id, version, state, expires_at: None, body: self.bytes() }
    }

    /// When a revision was made, if that is still kept.
    pub(super) fn revised_at(&self, revision: i64) -> Option<i64> {
        let later = usize::try_from(self.revision.checked_sub(revision)?).ok()?;
        self.revised_us.iter().rev().nth(later).copied()
    }

    pub(super) fn revised(&mut self, now: Time) {
        self.revision += 1;
        keep(&mut self.revised_us, now.micros());
    }

    /// The try before this one, whose worker did not live to say what became of it.
    pub(super) fn note_lost(&mut self, job: &Job, now: Time) {
        // What is to happen at most once has not begun again.
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
