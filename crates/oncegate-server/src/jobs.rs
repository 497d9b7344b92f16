//! What the server does at the steps of a job: it logs and counts, and tests end the process there.

use async_trait::async_trait;
use oncegate::worker::{ActionEvent, ReminderEvent, Watcher};
use oncegate::{WorkspaceName, sends};
use oncegate_core::job::Job;
use uuid::Uuid;

use crate::crash;

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
