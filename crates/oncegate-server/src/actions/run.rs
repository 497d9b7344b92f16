//! One attempt of an action by a worker of this server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncegate::StoreError;
use oncegate::actions::{Applied, Done, Leased};
use oncegate_core::job::{Command, Failure, Job};

use super::{Effect, Event, NotRun, Runner};
use crate::channels::unknown;
use crate::crash;
use crate::trace;
use oncegate::worker::{Handler, Held};

/// The pause between two attempts to write the outcome.
const WRITE_PAUSE: Duration = Duration::from_millis(100);
/// The longest `Retry-After` that is honoured. A longer one is cut to this.
const RETRY_IN_MAX: Duration = Duration::from_secs(3600);

#[async_trait]
impl Handler for Runner {
    async fn run(self: Arc<Self>, mut held: Held) {
        crash::point("action.leased").await;
        let token = held.job.token;
        if held.job.fate().is_some() {
            return self.write_down(&held, Command::GiveUp { token }).await;
        }
        let leased = match Leased::read(held.job.clone()) {
            Ok(leased) => leased,
            Err(error) => return tracing::error!(event = "action.unreadable", workspace = %held.job.workspace, %error),
        };
        let Some(handler) = self.handler(&leased.job.workspace, &leased.action.action_type) else { return };
        // An action that may happen at most once is not run before its begin is recorded.
        if !held.job.begun {
            match self.actions.work(&held.job, Command::Begin { token }, held.now()).await {
                Ok(Applied::Kept(begun)) => held.job = *begun,
                // The begin is not recorded: the next worker may run the action.
                _ => return self.give_back(vec![leased]).await,
            }
            crash::point("action.begun").await;
        }
        crash::point("action.running").await;
        let workspace = &leased.job.workspace;
        let about =
            &[("oncegate.action.id", &leased.job.id as _), ("oncegate.action.type", &leased.action.action_type as _)];
        let effect = trace::work("run action", workspace, about, async {
            tokio::select! {
                ran = handler.run(Effect::of(&leased)) => ran,
                () = self.worker.cut_off() => Err(unknown("the server was stopped").into()),
            }
        });
        let ran = held.renewed(&self.store, self.config.lease, effect).await;
        held.slot = None;
        crash::point("action.ran").await;
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
            None => return Event::LeaseLost.tell(&held.job.workspace, held.job.id, &leased.action.action_type),
        };
        self.write_down(&held, done).await;
        crash::point("action.finished").await;
    }
}

impl Runner {
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
                        return tell(job, &Applied::Missing);
                    }
                }
                Ok(applied) => return tell(job, &applied),
                Err(StoreError::Refused(why)) => {
                    return tracing::error!(event = "action.unreadable", workspace = %job.workspace, why);
                }
                Err(error) if held.lease_left() > WRITE_PAUSE => {
                    tracing::warn!(event = "action.not_written", workspace = %job.workspace, actionId = %job.id, %error);
                    tokio::time::sleep(WRITE_PAUSE).await;
                    applied = self.actions.work(job, done.clone(), held.now()).await;
                }
                // The worker that leases the job next decides the outcome.
                Err(_) => return tell(job, &Applied::Missing),
            }
        }
    }
}

/// Logs one line for the outcome that a worker reported.
pub fn tell(job: &Job, applied: &Applied) {
    let action_type = job.kind.strip_prefix(oncegate::actions::JOBS).unwrap_or(&job.kind);
    let (event, id) = match applied {
        Applied::Kept(_) => (Event::Failed, job.id),
        Applied::Ended(status, id) | Applied::Already(status, id) => (Event::Ended(*status), *id),
        Applied::Refused(_) | Applied::Missing => (Event::LeaseLost, job.id),
    };
    event.tell(&job.workspace, id, action_type);
}
