//! The registry of a workspace's recurring schedules, if their number is limited.
//!
//! One record names the schedules. The commit that makes a schedule also replaces this record, onto the version that was read. So
//! if two calls race for the last place, one of them is refused. Schedules that have ended are removed from the record when it
//! is full, so no other code has to write it.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use oncegate_core::WorkspaceName;
use oncegate_core::job::Job;
use oncegate_store::{At, Change, Place, Record, StoreError};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Action, Actions, ScheduleError};
use crate::document::{bytes, read};

/// The kind of the record, and its name. Each workspace has one such record.
const KIND: &str = "schedules";
const NAME: &str = "schedules";
/// How many schedules are read at once: their payloads may be large.
const LOOKED_AT_ONCE: usize = 50;
/// How long a workspace is assumed to stay full, unless this process cancels one of its schedules. A caller that retries at once
/// then does not read all schedules each time.
const FULL_FOR: Duration = Duration::from_secs(1);

/// How many recurring schedules a workspace may have, and how often they may run. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScheduleLimits {
    /// The most recurring schedules of one workspace.
    pub per_workspace: Option<usize>,
    /// The shortest time between two runs of a schedule.
    pub interval_min: Option<Duration>,
}

impl ScheduleLimits {
    /// Limits with this number of schedules, and this shortest time between two runs.
    pub fn new(per_workspace: Option<usize>, interval_min: Option<Duration>) -> ScheduleLimits {
        ScheduleLimits { per_workspace, interval_min }
    }
}

/// A cache of the workspaces that were found full, and when.
#[derive(Default)]
pub(super) struct Full(Mutex<HashMap<WorkspaceName, Instant>>);

impl Full {
    fn is(&self, workspace: &WorkspaceName) -> bool {
        let mut full = self.0.lock().expect("no holder of this lock panics");
        full.retain(|_, since| since.elapsed() < FULL_FOR);
        full.contains_key(workspace)
    }

    fn note(&self, workspace: &WorkspaceName) {
        self.0.lock().expect("no holder of this lock panics").insert(workspace.clone(), Instant::now());
    }

    pub fn forget(&self, workspace: &WorkspaceName) {
        self.0.lock().expect("no holder of this lock panics").remove(workspace);
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Registry {
    schedules: Vec<Uuid>,
}

impl Actions {
    /// The change that counts a new schedule, written in the same commit. `None` if there is no limit.
    pub(super) async fn counted(&self, workspace: &WorkspaceName, id: Uuid) -> Result<Option<Change>, ScheduleError> {
        let Some(max) = self.limits.per_workspace else { return Ok(None) };
        if self.full.is(workspace) {
            return Err(ScheduleError::TooMany { max });
        }
        let place = Place { workspace: workspace.clone(), kind: KIND, at: At::Name(NAME.into()) };
        let found = self.store.find(&[place]).await?.value.remove(0);
        let mut registry: Registry = match &found {
            Some(record) => read(record)?,
            None => Registry::default(),
        };
        if registry.schedules.len() >= max {
            registry.schedules = self.alive(workspace, registry.schedules).await?;
        }
        if registry.schedules.len() >= max {
            self.full.note(workspace);
            return Err(ScheduleError::TooMany { max });
        }
        registry.schedules.push(id);
        let record = Record {
            workspace: workspace.clone(),
            kind: KIND,
            id: found.as_ref().map_or_else(Uuid::now_v7, |record| record.id),
            version: found.as_ref().map_or(1, |record| record.version + 1),
            state: None,
            expires_at: None,
            body: bytes(&registry),
        };
        Ok(Some(match found {
            Some(_) => Change::replace(record),
            None => Change::Create { record, names: vec![NAME.into()], lists: vec![] },
        }))
    }

    /// The schedules that are still in the queue.
    async fn alive(&self, workspace: &WorkspaceName, ids: Vec<Uuid>) -> Result<Vec<Uuid>, StoreError> {
        let mut alive = vec![];
        let repeats = |job: &Job| Action::read(&job.payload, job.id).is_ok_and(|action| action.recurrence.is_some());
        for some in ids.chunks(LOOKED_AT_ONCE) {
            let places: Vec<_> = some.iter().map(|id| (workspace.clone(), *id)).collect();
            let jobs = self.store.find_jobs(&places).await?.value.into_iter().flatten();
            alive.extend(jobs.filter(repeats).map(|job| job.id));
        }
        Ok(alive)
    }
}
