//! Runs what the library schedules: actions, reminders, sagas' commands and time-outs, and the ends of sends' leases.
//!
//! [`Gate::worker`](crate::Gate::worker) makes a worker in the user's own process. [`Queue`] leases the jobs; each policy runs its own
//! kinds of jobs, and calls the user's [`Handler`]s and [`Channel`]s for the effects.

mod actions;
mod embedded;
mod queue;
mod reminders;
#[cfg(feature = "sagas")]
mod sagas;
mod sends;

use std::time::Duration;

use async_trait::async_trait;
use oncegate_core::WorkspaceName;
use oncegate_core::job::{Failure, Job};
use uuid::Uuid;

pub use actions::{ActionEvent, ActionJobs, Handler, Handlers, NotRun, Run, type_of};
pub use embedded::{IntoHandler, Worker};
pub use queue::{Held, LOOK_EVERY, Look, Queue, RunJob, Slot};
pub use reminders::{ReminderEvent, ReminderJobs};
pub use sends::{Reconcile, SendJobs};

use crate::sends::State as SendState;

/// A message on its way to its recipient.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The workspace of the message.
    pub workspace: &'a WorkspaceName,
    /// The same on every attempt: the key by which the provider may recognise a retry.
    pub id: Uuid,
    /// The name of the channel.
    pub channel: &'a str,
    /// The phone number of the recipient.
    pub phone: Option<&'a str>,
    /// The email address of the recipient.
    pub email: Option<&'a str>,
    /// The text of the message.
    pub text: &'a str,
}

/// The provider has taken a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The provider's id of the message.
    pub provider_message_id: Option<String>,
}

/// The outcome of an attempt to send. A [`Failure`] says whether the message may have been sent.
pub type Sent = Result<Receipt, Failure>;

/// Sends messages to their recipients. A channel never retries: the queue does.
#[async_trait]
pub trait Channel: Send + Sync + 'static {
    /// Sends within this time.
    async fn send(&self, outgoing: &Outgoing<'_>, within: Duration) -> Sent;
}

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
