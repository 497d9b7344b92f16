//! Runs what the library schedules: actions, reminders, sagas' commands and time-outs, and the ends of sends' leases.
//!
//! [`Gate::worker`](crate::Gate::worker) makes a worker in the user's own process. [`Queue`] leases the jobs; each policy runs its own
//! kinds of jobs, and calls the user's [`Handler`]s and [`Channel`]s for the effects.

mod actions;
mod embedded;
mod reminders;
#[cfg(feature = "sagas")]
mod sagas;
mod sends;

use async_trait::async_trait;
use oncegate_core::WorkspaceName;
use oncegate_core::job::Job;
use uuid::Uuid;

pub use crate::channel::{Channel, Channels, Outgoing, Receipt, Sent};
pub use crate::queue::{Held, LOOK_EVERY, Look, Queue, RunJob, Slot};
pub use actions::{ActionEvent, ActionJobs, Handler, Handlers, NotRun, Run, type_of};
pub use embedded::{IntoHandler, Worker};
pub use reminders::{ReminderEvent, ReminderJobs};
pub use sends::{Reconcile, SendJobs};

use crate::sends::State as SendState;

/// Hears what a worker does. The server logs and counts it, and its tests end the process at the steps.
#[async_trait]
pub trait Watcher: Send + Sync + 'static {
    /// The worker has reached this step of a job.
    async fn reached(&self, _step: &'static str) {}

    /// The run of an action has ended.
    fn action(&self, _job: &Job, _event: ActionEvent) {}

    /// A reminder has changed.
    fn reminder(&self, _workspace: &WorkspaceName, _id: Uuid, _event: ReminderEvent) {}

    /// A worker's lease on a send has ended, and the send is in this state now.
    fn send(&self, _workspace: &WorkspaceName, _id: Uuid, _state: SendState) {}

    /// The process of the worker, for the errors of effects that a stop interrupts.
    fn process(&self) -> &'static str {
        "worker"
    }
}

impl Watcher for () {}
