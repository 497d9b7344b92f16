//! What the server does at the steps of a job: it logs and counts, and tests end the process there.

use std::time::Duration;

use async_trait::async_trait;
use oncegate::worker::{ActionEvent, ReminderEvent, Watcher};
use oncegate::{ClaimKey, StoreError, WorkspaceName, messages, sends};
use oncegate_core::job::Job;
use uuid::Uuid;

use oncegate_process::crash;

pub struct ServerWatcher;

#[async_trait]
impl Watcher for ServerWatcher {
    async fn reached(&self, step: &'static str) {
        crash::point(step).await;
    }

    fn action(&self, job: &Job, event: ActionEvent) {
        crate::actions::tell(job, event);
    }

    fn reminder(&self, workspace: &WorkspaceName, id: Uuid, event: ReminderEvent) {
        crate::reminders::Event::from(event).tell(workspace, id);
    }

    fn send(&self, workspace: &WorkspaceName, id: Uuid, state: sends::State) {
        crate::sends::Event::Stands(state).tell(workspace, id);
    }

    fn process(&self) -> &'static str {
        "server"
    }
}

#[async_trait]
impl messages::Watcher for ServerWatcher {
    async fn reached(&self, step: &'static str) {
        crash::point(step).await;
    }

    fn message(
        &self,
        event: messages::Event,
        workspace: &WorkspaceName,
        claim: Option<&ClaimKey>,
        message: Option<Uuid>,
        age: Duration,
    ) {
        crate::messages::tell(event, workspace, claim, message, age);
    }

    fn guard_failed(&self, claim: &ClaimKey, error: &StoreError) {
        crate::messages::tell_guard_failed(claim, error);
    }
}
