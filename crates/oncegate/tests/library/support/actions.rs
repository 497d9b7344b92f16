//! Actions of one type, and a worker that runs them.

use std::sync::Arc;
use std::time::Duration;

use oncegate::WorkspaceName;
use oncegate::actions::{Action, Actions, Applied, Schedule, Scheduled};
use oncegate::store::{MainStore, Wanted, Whose};
use oncegate_core::job::{Command, Failure, Job, Reached};
use serde_json::{Value, json};

pub const SECOND: Duration = Duration::from_secs(1);
pub const MILLI: Duration = Duration::from_millis(1);
pub const LEASE: Duration = Duration::from_secs(30);

pub fn workspace() -> WorkspaceName {
    WorkspaceName::default_workspace()
}

pub fn over(store: Arc<dyn MainStore>) -> Actions {
    Actions::over(store)
}

pub fn about(id: &str, more: Value) -> Value {
    let mut payload = json!({"entityId": id, "entityType": "lead"});
    payload.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    payload
}

pub fn sync(payload: &Value) -> Schedule {
    Schedule::new("crm:sync", payload).expect("is right")
}

pub async fn schedule(actions: &Actions, schedule: Schedule) -> Scheduled {
    actions.schedule(&workspace(), schedule).await.expect("is scheduled")
}

pub async fn lease(store: &dyn MainStore, max: usize) -> Vec<Job> {
    let whose = Whose::One { workspace: workspace(), max };
    let wanted = Wanted::new([Action::job_kind("crm:sync")], LEASE, whose);
    store.lease_jobs(&wanted).await.expect("the store is there").value.jobs
}

pub fn payload(job: &Job) -> Value {
    let action = Action::read(&job.payload, job.id).expect("is an action");
    serde_json::from_str(action.payload.get()).expect("is JSON")
}

pub async fn complete(actions: &Actions, job: &Job) -> Applied {
    let command = Command::Complete { token: job.token };
    actions.apply(&workspace(), job.id, command).await.expect("the store is there")
}

pub async fn fail(actions: &Actions, job: &Job, reached: Reached) -> Applied {
    let failure = Failure { error: "no".into(), reached, is_final: false, retry_in: None };
    let command = Command::Fail { token: job.token, failure };
    actions.apply(&workspace(), job.id, command).await.expect("the store is there")
}
