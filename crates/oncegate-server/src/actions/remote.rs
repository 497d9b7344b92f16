//! Workers elsewhere, in any language: they wait for actions over HTTP, and say what became of them.

use std::time::Duration;

use oncegate::actions::{Action, Applied, Leased};
use oncegate::store::{Wanted, Whose};
use oncegate::{StoreError, Time, WorkspaceName};
use oncegate_core::job::{Command, Job};
use tokio::time::Instant;

use super::Runner;
use crate::worker::Look;

/// What a worker asks for.
pub struct LeaseRequest {
    pub workspace: WorkspaceName,
    pub types: Vec<String>,
    pub max: usize,
    pub lease: Duration,
    /// How long to wait for the first.
    pub wait: Duration,
}

impl Runner {
    /// Leases what is due, once something is, or nothing when the wait is over.
    pub async fn lease(&self, request: &LeaseRequest) -> Result<Vec<Leased>, StoreError> {
        let kinds: Vec<String> = request.types.iter().map(|name| Action::job_kind(name)).collect();
        let whose = Whose::One { workspace: request.workspace.clone(), max: request.max };
        let wanted = Wanted { kinds: kinds.clone(), lease: request.lease, whose };
        let listener = self.main.waiters().jobs.listen(kinds);
        let deadline = Instant::now() + request.wait;
        loop {
            let at = Instant::now();
            let leased = self.store.lease_jobs(&wanted).await?;
            let mut begun = vec![];
            for job in leased.value.jobs {
                begun.extend(self.begin(job, leased.now).await?);
            }
            if !begun.is_empty() || Instant::now() >= deadline {
                return Ok(begun);
            }
            // What is due is another workspace's, or somebody has just taken it.
            let next_at = leased.value.next_at.unwrap_or(Time::NEVER).max(leased.now + LOOK_PAUSE);
            let look = Look { found: false, next_at, now: leased.now, at };
            tokio::select! {
                () = look.heard_or_due(&listener) => {}
                () = tokio::time::sleep_until(deadline) => {}
                () = self.worker.stopped() => return Ok(vec![]),
            }
        }
    }

    /// Ends one that has no more tries, and writes down that others begin: from here on they may happen.
    async fn begin(&self, job: Job, now: Time) -> Result<Option<Leased>, StoreError> {
        let token = job.token;
        if job.fate().is_some() {
            let applied = self.actions.work(&job, Command::GiveUp { token }, now).await?;
            super::run::tell(&job, &applied);
            return Ok(None);
        }
        if job.begun {
            return Leased::read(job).map(Some);
        }
        match self.actions.work(&job, Command::Begin { token }, now).await? {
            Applied::Kept(begun) => Leased::read(*begun).map(Some),
            _ => Ok(None),
        }
    }

    /// Nobody heard that they were leased: the next worker may have them at once.
    pub async fn give_back(&self, leased: Vec<Leased>) {
        for Leased { job, .. } in leased {
            let command = Command::GiveBack { token: job.token };
            // If this is not heard either, the lease ends.
            let _ = self.actions.apply(&job.workspace, job.id, command).await;
        }
    }
}

/// Between two looks at what is due and cannot be had.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
