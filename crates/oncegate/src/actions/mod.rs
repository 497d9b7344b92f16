//! Scheduled actions: work to do later. Duplicates within a window coalesce into one action with the newest payload.
//!
//! The slot of a window is a claim. The caller that makes the claim makes the action in the same commit. A caller that meets
//! the claim revises that action, if no worker has leased it yet. An action that a worker has leased is never revised: the
//! newest payload becomes a new action, which succeeds it in the slot. So no update is lost.
//!
//! The revision of an action counts its duplicates, so its claim does not count them again.
//!
//! An action is a job of the queue until it ends; then it is a record.

mod action;
mod coalesce;
mod query;
mod recurrence;
mod registry;
mod schedule;
mod slot_queue;
mod work;

use std::sync::{Arc, LazyLock};

use oncegate_core::{ClaimKey, GuardName, Time};
use oncegate_store::{MainStore, StoreError};
use uuid::Uuid;

pub use crate::document::Resolution;
pub use action::{Action, Ended, Entity, JOBS, KIND, Resolved, Status, Try};
pub use query::{Filter, Found, Page, Refused};
pub use recurrence::{Recurrence, Repeats};
pub use registry::ScheduleLimits;
pub use schedule::{Mode, Schedule, When, check_name};
pub use work::{Applied, Done, Leased, effect_key};

use crate::scoped::Scoped;
use registry::Full;
use slot_queue::SlotQueues;

/// The guard of the slots. No other part of the system makes claims under it.
pub static GUARD: LazyLock<GuardName> = LazyLock::new(|| GuardName::new("action").expect("a good name"));

/// The longest payload, in bytes of JSON. A merged payload has the same limit.
pub const PAYLOAD_BYTES_MAX: usize = 1024 * 1024;

/// Schedules actions, lists them and applies commands to them. Cheap to clone.
#[derive(Clone)]
pub struct Actions {
    store: Arc<dyn MainStore>,
    slots: Arc<SlotQueues>,
    limits: ScheduleLimits,
    full: Arc<Full>,
}

/// The result of a schedule. Each result has the id of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// The id of the action.
    pub id: Uuid,
    /// Whether the schedule created an action, updated one, or was dropped.
    pub outcome: Outcome,
    /// When the action is due.
    pub run_at: Time,
    /// The revision of the action after this schedule.
    pub revision: i64,
}

/// What a schedule did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It created an action.
    Created,
    /// The pending action has this payload now.
    Updated,
    /// The pending action is unchanged: the first payload is kept.
    Dropped,
}

impl Outcome {
    /// The name of the outcome, as the API shows it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Outcome::Created => "created",
            Outcome::Updated => "updated",
            Outcome::Dropped => "dropped",
        }
    }
}

/// Why an action was not scheduled.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ScheduleError {
    /// The invalid field, and what is wrong with it.
    #[error("{0}")]
    Invalid(String),
    /// This field is larger than [`PAYLOAD_BYTES_MAX`].
    #[error("{0}: at most {PAYLOAD_BYTES_MAX} bytes of JSON")]
    TooLarge(&'static str),
    /// The workspace has reached its limit of recurring schedules.
    #[error("a workspace has at most {max} recurring schedules")]
    TooMany {
        /// The limit of the workspace.
        max: usize,
    },
    /// The store returned an error. The action may not be scheduled.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Actions {
    /// The actions of `store`, without limits for recurring schedules.
    pub fn over(store: Arc<dyn MainStore>) -> Actions {
        Actions { store, slots: Arc::default(), limits: ScheduleLimits::default(), full: Arc::default() }
    }

    /// Sets limits for recurring schedules. Schedules that were made without limits are not counted.
    pub fn limited(self, limits: ScheduleLimits) -> Actions {
        Actions { limits, ..self }
    }

    /// The slot of an action: the action's type, the entity's id and the entity's type.
    fn slot(workspace: &oncegate_core::WorkspaceName, action_type: &str, entity: &Entity) -> ClaimKey {
        ClaimKey::of(workspace, &GUARD, &[Some(action_type), Some(&entity.id), entity.entity_type.as_deref()])
    }
}

impl std::fmt::Debug for Actions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Actions").finish_non_exhaustive()
    }
}

/// The operations that need no workspace.
impl Scoped<Actions> {
    /// See [`Actions::schedule`].
    pub async fn schedule(&self, schedule: Schedule) -> Result<Scheduled, ScheduleError> {
        self.policy().schedule(self.workspace(), schedule).await
    }

    /// See [`Actions::find`].
    pub async fn find(&self, id: Uuid) -> Result<Option<Found>, StoreError> {
        self.policy().find(self.workspace(), id).await
    }

    /// See [`Actions::list`].
    pub async fn list(&self, filter: &Filter) -> Result<Page, StoreError> {
        self.policy().list(self.workspace(), filter).await
    }

    /// See [`Actions::cancel`].
    pub async fn cancel(&self, id: Uuid) -> Result<Found, Refused> {
        self.policy().cancel(self.workspace(), id).await
    }

    /// See [`Actions::retry`].
    pub async fn retry(&self, id: Uuid) -> Result<Found, Refused> {
        self.policy().retry(self.workspace(), id).await
    }

    /// See [`Actions::run_now`].
    pub async fn run_now(&self, id: Uuid) -> Result<Found, Refused> {
        self.policy().run_now(self.workspace(), id).await
    }
}
