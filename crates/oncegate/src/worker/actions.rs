//! Runs actions: begins each, calls the handler of its type, renews the lease meanwhile, and writes the outcome.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncegate_core::WorkspaceName;
use oncegate_core::job::{Command, Failure, Job};
use oncegate_store::StoreError;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::{Held, Queue, RunJob, Watcher};
use crate::actions::{Action, Actions, Applied, Done, JOBS, Leased, Status};

/// The pause between two attempts to write the outcome.
const WRITE_PAUSE: Duration = Duration::from_millis(100);
/// The longest delay that a handler may ask for. A longer one is cut to this.
const RETRY_IN_MAX: Duration = Duration::from_secs(3600);

/// One run of an action: one attempt of its effect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Run {
    /// The workspace of the action.
    pub workspace: WorkspaceName,
    /// The id of the action.
    pub id: Uuid,
    /// The idempotency key for the receiver: the same on every attempt of this run. Each tick of a schedule has its own.
    pub effect_key: Uuid,
    /// The type of the action.
    pub action_type: String,
    /// How many payloads have coalesced into the action.
    pub revision: i64,
    /// 1 for the first attempt. If it is larger, the effect may have happened before.
    pub attempt: i32,
}

impl Run {
    fn of(leased: &Leased) -> Run {
        let Leased { job, action } = leased;
        Run {
            workspace: job.workspace.clone(),
            id: job.id,
            effect_key: leased.effect_key(),
            action_type: action.action_type.clone(),
            revision: action.revision,
            attempt: job.tried,
        }
    }
}

/// Why an action was not performed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotRun {
    /// The attempt failed. The failure says whether the effect may have happened.
    Failed(Failure),
    /// The action was not attempted, and cannot be for this long. The attempt does not count.
    PutOff {
        /// The reason, which is stored with the action.
        why: &'static str,
        /// How long to wait.
        wait: Duration,
    },
}

impl From<Failure> for NotRun {
    fn from(failure: Failure) -> Self {
        NotRun::Failed(failure)
    }
}

/// Performs the effects of actions.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Performs the effect, with the payload as JSON. Returns the result, if it is to be kept with the action.
    ///
    /// The lease is renewed meanwhile. The future is dropped if the lease is lost or the worker is stopped.
    async fn run(&self, run: &Run, payload: &RawValue) -> Result<Option<Box<RawValue>>, NotRun>;
}

/// Handlers by action type. A workspace may have its own for a type.
#[derive(Clone, Default)]
pub struct Handlers {
    by_type: BTreeMap<String, Arc<dyn Handler>>,
    of_workspaces: HashMap<(WorkspaceName, String), Arc<dyn Handler>>,
}

impl Handlers {
    /// Sets the handler of an action type.
    pub fn set(&mut self, action_type: &str, handler: Arc<dyn Handler>) {
        self.by_type.insert(action_type.to_owned(), handler);
    }

    /// Sets the handler of an action type for one workspace. The type needs a handler for the other workspaces, too.
    pub fn set_for(&mut self, workspace: WorkspaceName, action_type: &str, handler: Arc<dyn Handler>) {
        self.of_workspaces.insert((workspace, action_type.to_owned()), handler);
    }

    /// The action types, as kinds of jobs.
    pub fn kinds(&self) -> Vec<String> {
        self.by_type.keys().map(|action_type| Action::job_kind(action_type)).collect()
    }

    fn get(&self, workspace: &WorkspaceName, action_type: &str) -> Option<&Arc<dyn Handler>> {
        // Usually no workspace has its own handlers, and the lookup is skipped.
        let own = match self.of_workspaces.is_empty() {
            true => None,
            false => self.of_workspaces.get(&(workspace.clone(), action_type.to_owned())),
        };
        own.or_else(|| self.by_type.get(action_type))
    }
}

/// How the run of an action ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionEvent {
    /// The action, or this tick of it, ended.
    Ended(Uuid, Status),
    /// The attempt failed, and the action will be retried.
    Failed,
    /// The lease was lost: the worker that has the action now decides its outcome.
    LeaseLost,
}

impl ActionEvent {
    /// The event for the outcome of a worker's command.
    pub fn of(applied: &Applied) -> ActionEvent {
        match applied {
            Applied::Kept(_) => ActionEvent::Failed,
            Applied::Ended(status, id) | Applied::Already(status, id) => ActionEvent::Ended(*id, *status),
            Applied::Refused(_) | Applied::Missing => ActionEvent::LeaseLost,
        }
    }
}

/// The type of the action in a job.
pub fn type_of(job: &Job) -> &str {
    job.kind.strip_prefix(JOBS).unwrap_or(&job.kind)
}

/// Runs the jobs of actions.
pub struct ActionJobs {
    /// The actions.
    pub actions: Actions,
    /// The queue that leases the jobs.
    pub queue: Arc<Queue>,
    /// The handlers.
    pub handlers: Handlers,
    /// Hears of the runs.
    pub watcher: Arc<dyn Watcher>,
}

#[async_trait]
impl RunJob for ActionJobs {
    async fn run(self: Arc<Self>, mut held: Held) {
        self.watcher.reached("action.leased").await;
        let token = held.job.token;
        if held.job.fate().is_some() {
            return self.write_down(&held, Command::GiveUp { token }).await;
        }
        let leased = match Leased::read(held.job.clone()) {
            Ok(leased) => leased,
            Err(error) => return tracing::error!(event = "action.unreadable", workspace = %held.job.workspace, %error),
        };
        let Some(handler) = self.handlers.get(&leased.job.workspace, &leased.action.action_type) else {
            return self.actions.give_back(&leased.job).await;
        };
        // An action that may happen at most once is not run before its begin is recorded.
        if !held.job.begun {
            match self.actions.work(&held.job, Command::Begin { token }, held.now()).await {
                Ok(Applied::Kept(begun)) => held.job = *begun,
                // The begin is not recorded: the next worker may run the action.
                _ => return self.actions.give_back(&leased.job).await,
            }
            self.watcher.reached("action.begun").await;
        }
        self.watcher.reached("action.running").await;
        let run = Run::of(&leased);
        let effect = async {
            tokio::select! {
                ran = handler.run(&run, &leased.action.payload) => ran,
                () = self.queue.cut_off() => {
                    Err(Failure::unknown(format!("the {} was stopped", self.watcher.process())).into())
                }
            }
        };
        let ran = held.renewed(self.actions.store(), self.queue.lease, effect).await;
        held.slot = None;
        self.watcher.reached("action.ran").await;
        let done = match ran {
            Some(Ok(result)) => Done { command: Command::Complete { token }, result },
            Some(Err(NotRun::PutOff { why, wait })) => {
                let until = held.now() + wait.min(RETRY_IN_MAX);
                Command::PutOff { token, until, why: why.into() }.into()
            }
            Some(Err(NotRun::Failed(failure))) => {
                let retry_in = failure.retry_in.map(|span| span.min(RETRY_IN_MAX));
                Command::Fail { token, failure: Failure { retry_in, ..failure } }.into()
            }
            None => return self.watcher.action(&held.job, ActionEvent::LeaseLost),
        };
        self.write_down(&held, done).await;
        self.watcher.reached("action.finished").await;
    }
}

impl ActionJobs {
    /// Writes the outcome, with retries for as long as the lease lasts.
    async fn write_down(&self, held: &Held, done: impl Into<Done>) {
        let (done, job) = (done.into(), &held.job);
        let mut applied = self.actions.work(job, done.clone(), held.now()).await;
        loop {
            match applied {
                // The job has changed: an unacknowledged write of a renewal, or of this same outcome, may have gone
                // through.
                Ok(Applied::Missing) | Err(StoreError::Unknown(_)) if !held.lease_left().is_zero() => {
                    tokio::time::sleep(WRITE_PAUSE).await;
                    applied = self.actions.apply(&job.workspace, job.id, done.clone()).await;
                    if matches!(applied, Ok(Applied::Missing)) {
                        return self.watcher.action(job, ActionEvent::LeaseLost);
                    }
                }
                Ok(applied) => return self.watcher.action(job, ActionEvent::of(&applied)),
                Err(StoreError::Refused(why)) => {
                    return tracing::error!(event = "action.unreadable", workspace = %job.workspace, why);
                }
                Err(error) if held.lease_left() > WRITE_PAUSE => {
                    tracing::warn!(event = "action.not_written", workspace = %job.workspace, actionId = %job.id, %error);
                    tokio::time::sleep(WRITE_PAUSE).await;
                    applied = self.actions.work(job, done.clone(), held.now()).await;
                }
                // The worker that leases the job next decides the outcome.
                Err(_) => return self.watcher.action(job, ActionEvent::LeaseLost),
            }
        }
    }
}
