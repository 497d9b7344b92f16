//! Scheduled actions: something to do later. Duplicates within a window fold into one action, which carries the newest payload.
//!
//! The slot of a window is a claim: whoever makes it makes the action in the same commit, and whoever meets it revises that
//! action, if nobody has leased it yet. An action that a worker has taken is never written to: the newest payload becomes an action
//! of its own, which succeeds it in the slot. So an update is never lost. How many there were is the action's revision; its claim does not
//! count them a second time.
//!
//! An action that lives is a job of the queue; when it has ended it is a record.

mod action;
mod fold;
mod lines;
mod look;
mod recurrence;
mod registry;
mod schedule;
mod work;

use std::sync::{Arc, LazyLock};

use oncegate_core::{ClaimKey, GuardName, Time};
use oncegate_store::{MainStore, StoreError};
use uuid::Uuid;

pub use action::{Action, Ended, Entity, JOBS, KIND, Resolved, Status, Try};
pub use look::{Filter, Found, Page, Refused};
pub use recurrence::{Recurrence, Repeats};
pub use registry::ScheduleLimits;
pub use schedule::{Mode, Schedule, When, check_name};
pub use work::{Applied, Done, Leased, effect_key};

use lines::Lines;
use registry::Full;

/// The guard of the slots. Nobody else makes claims under it.
pub static GUARD: LazyLock<GuardName> = LazyLock::new(|| GuardName::new("action").expect("a good name"));

/// The longest payload, in bytes of JSON. Payloads that are merged may grow up to it.
pub const PAYLOAD_BYTES_MAX: usize = 1024 * 1024;

/// Schedules actions, and looks after them. Cheap to clone.
#[derive(Clone)]
pub struct Actions {
    store: Arc<dyn MainStore>,
    lines: Arc<Lines>,
    limits: ScheduleLimits,
    full: Arc<Full>,
}

/// What became of a schedule. There is always an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduled {
    pub id: Uuid,
    pub outcome: Outcome,
    pub run_at: Time,
    pub revision: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Created,
    /// The action that stands carries this payload now.
    Updated,
    /// The action that stands is as it was: the first is kept.
    Dropped,
}

impl Outcome {
    pub const fn as_str(self) -> &'static str {
        match self {
            Outcome::Created => "created",
            Outcome::Updated => "updated",
            Outcome::Dropped => "dropped",
        }
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum ScheduleError {
    /// Which field, and what is wrong with it.
    #[error("{0}")]
    Invalid(String),
    #[error("{0}: at most {PAYLOAD_BYTES_MAX} bytes of JSON")]
    TooLarge(&'static str),
    /// The workspace has as many recurring schedules as it may.
    #[error("a workspace has at most {max} recurring schedules")]
    TooMany { max: usize },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Actions {
    pub fn over(store: Arc<dyn MainStore>) -> Actions {
        Actions { store, lines: Arc::default(), limits: ScheduleLimits::default(), full: Arc::default() }
    }

    /// The same, with limits for recurring schedules. Those that were made without are not counted.
    pub fn limited(self, limits: ScheduleLimits) -> Actions {
        Actions { limits, ..self }
    }

    /// The slot of an action: its type, its entity, and the type of that.
    fn slot(workspace: &oncegate_core::WorkspaceName, action_type: &str, entity: &Entity) -> ClaimKey {
        ClaimKey::of(workspace, &GUARD, &[Some(action_type), Some(&entity.id), entity.entity_type.as_deref()])
    }
}
