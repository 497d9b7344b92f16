//! Remote workers, in any language: they wait for actions over HTTP, and report the outcomes.

use std::sync::Arc;
use std::time::Duration;

use oncegate::actions::{Action, Applied, Leased};
use oncegate::store::{self, Reading, Wanted, Whose};
use oncegate::{StoreError, Time, WorkspaceName};
use oncegate_core::job::{Command, Job};
use tokio::time::Instant;

use super::Actions;
use oncegate::worker::Look;
use oncegate_process::crash;

/// The most actions that one statement leases: each payload may be up to a megabyte.
const AT_ONCE: usize = 8;
/// No more actions are leased once their payloads reach this many bytes together.
const LEASE_BYTES: usize = 4 * 1024 * 1024;

/// A worker's request.
pub struct LeaseRequest {
    pub workspace: WorkspaceName,
    pub types: Vec<String>,
    pub max: usize,
    pub lease: Duration,
    /// How long to wait for the first action.
    pub wait: Duration,
}

/// Actions that were leased for a worker. If they do not reach the worker, they are given back, and the next worker may
/// have them at once.
pub struct ForWorker {
    leased: Vec<Leased>,
    actions: Arc<Actions>,
}

impl ForWorker {
    /// The size of the payloads together.
    pub fn bytes(&self) -> usize {
        self.leased.iter().map(|leased| leased.action.payload.get().len()).sum()
    }

    pub fn take(mut self) -> Vec<Leased> {
        std::mem::take(&mut self.leased)
    }
}

impl Drop for ForWorker {
    fn drop(&mut self) {
        let leased = std::mem::take(&mut self.leased);
        if !leased.is_empty() {
            let actions = self.actions.clone();
            tokio::spawn(async move { actions.give_back(leased).await });
        }
    }
}

impl Actions {
    /// Waits for due actions and leases them, a few at a time, for as long as they fit into `LEASE_BYTES`. Returns
    /// nothing if the wait is over or the worker has `gone`.
    pub async fn lease(
        self: &Arc<Actions>,
        request: &LeaseRequest,
        gone: impl Future<Output = ()>,
    ) -> Result<ForWorker, StoreError> {
        let kinds: Vec<String> = request.types.iter().map(|name| Action::job_kind(name)).collect();
        let wanted = |max| {
            let whose = Whose::One { workspace: request.workspace.clone(), max };
            Wanted::new(kinds.clone(), request.lease, whose)
        };
        let listener = self.main.waiters().jobs.listen(kinds.clone());
        let deadline = Instant::now() + request.wait;
        let mut gone = std::pin::pin!(gone);
        let mut looks_left = LOOKS_MAX;
        let mut for_worker = ForWorker { leased: vec![], actions: self.clone() };
        loop {
            let at = Instant::now();
            let max = AT_ONCE.min(request.max - for_worker.leased.len());
            let (some, looked, now) = match self.lease_some(&wanted(max)).await {
                Ok(some) => some,
                Err(error) if for_worker.leased.is_empty() => return Err(error),
                // The actions that were leased before the error still go to the worker.
                Err(_) => return Ok(for_worker),
            };
            let may_be_more = some.len() == max;
            for_worker.leased.extend(some);
            if !for_worker.leased.is_empty() {
                if may_be_more && for_worker.leased.len() < request.max && for_worker.bytes() < LEASE_BYTES {
                    continue;
                }
                crash::point("action.leased_for_worker").await;
                return Ok(for_worker);
            }
            // The jobs of busy groups are postponed now, and no longer hide other jobs. So look again, even for a request
            // that does not wait.
            if looked.postponed > 0 && looks_left > 0 {
                looks_left -= 1;
                continue;
            }
            let next_at = match looked.next_at.unwrap_or(Time::NEVER) {
                // Another worker has just taken the due job.
                due if due <= now => now + LOOK_PAUSE,
                later => later,
            };
            let look = Look { found: false, next_at, now, at };
            let is_over = tokio::select! {
                biased;
                () = tokio::time::sleep_until(deadline) => true,
                () = self.queue.stopped() => true,
                () = &mut gone => true,
                () = look.heard_or_due(&listener) => false,
            };
            if is_over {
                return Ok(for_worker);
            }
        }
    }

    /// Leases due jobs and begins them. Returns the begun ones, and the rest of what the lease statement returned.
    async fn lease_some(&self, wanted: &Wanted) -> Result<(Vec<Leased>, store::Leased, Time), StoreError> {
        let Reading { value: mut looked, now } = self.store.lease_jobs(wanted).await?;
        let jobs = std::mem::take(&mut looked.jobs);
        Ok((self.begin_all(jobs, now).await?, looked, now))
    }

    /// Ends the jobs that have no tries left, and records that the others begin: from then on their effects may happen. A
    /// job that cannot be begun is given back.
    async fn begin_all(&self, jobs: Vec<Job>, now: Time) -> Result<Vec<Leased>, StoreError> {
        let (mut begun, mut failed, mut back) = (vec![], None, vec![]);
        for job in jobs {
            match self.begin(job.clone(), now).await {
                Ok(leased) => begun.extend(leased),
                Err(error) => {
                    failed = Some(error);
                    back.push(job);
                }
            }
        }
        for job in back {
            self.actions.give_back(&job).await;
        }
        match failed {
            Some(error) if begun.is_empty() => Err(error),
            _ => Ok(begun),
        }
    }

    async fn begin(&self, job: Job, now: Time) -> Result<Option<Leased>, StoreError> {
        let token = job.token;
        if job.fate().is_some() {
            let applied = self.actions.work(&job, Command::GiveUp { token }, now).await?;
            super::tell(&job, oncegate::worker::ActionEvent::of(&applied));
            return Ok(None);
        }
        let leased = Leased::read(job)?;
        if leased.job.begun {
            return Ok(Some(leased));
        }
        match self.actions.work(&leased.job, Command::Begin { token }, now).await? {
            Applied::Kept(begun) => Ok(Some(Leased { job: *begun, ..leased })),
            _ => Ok(None),
        }
    }

    /// Gives the jobs back as if they had not been leased.
    pub async fn give_back(&self, leased: Vec<Leased>) {
        for Leased { job, .. } in leased {
            self.actions.give_back(&job).await;
        }
    }
}

/// The most looks in a row, past jobs of busy groups.
const LOOKS_MAX: usize = 100;
/// The pause before the next look, if a due job could not be leased.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
