//! Lookups and lists of actions, and what people do with an action.

use std::time::Duration;

use oncegate_core::job::{Command, Job, Refusal};
use oncegate_core::{Time, Token, WorkspaceName};
use oncegate_store::{Change, Commit, JobListing, KindFilter, Listed, Listing, StoreError};
use uuid::Uuid;

use super::coalesce::Standing;
use super::{Action, Actions, Applied, Ended, Entity, JOBS, KIND, Resolved, Status};
use crate::document::{self, Batch, Resolution, commit_or_read_again, until_written};

/// How long a command waits for a worker that may finish soon.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// An action, with its workspace and id.
#[derive(Clone, Debug)]
pub struct Found {
    /// The workspace that owns the action.
    pub workspace: WorkspaceName,
    /// The id of the action.
    pub id: Uuid,
    /// The document of the action.
    pub action: Action,
    /// Its job, while it is in the queue.
    pub job: Option<Job>,
    /// The version of its record, if there is one.
    record_version: i64,
}

/// Which actions to list, newest first.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only actions with this status; `None` for all statuses.
    pub status: Option<Status>,
    /// Only actions of this type; `None` for all types.
    pub action_type: Option<String>,
    /// Only actions about entities with this id; `None` for all actions.
    pub entity_id: Option<String>,
    /// Only the ticks of this schedule that have run.
    pub schedule: Option<Uuid>,
    /// The most actions on a page.
    pub limit: usize,
    /// Only actions older than this one.
    pub before: Option<Uuid>,
}

/// A page of actions, newest first.
pub type Page = document::Page<Found>;

/// Why a person's command changed nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refused {
    /// There is no action with this id in the workspace.
    #[error("there is no such action")]
    Missing,
    /// The status of the action, in which the command changes nothing, and the reason.
    #[error("the action is {0}: {1}")]
    Status(&'static str, String),
    /// The store returned an error. The action may be unchanged.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Found {
    /// The status: from the job while the action is in the queue, from the record after that.
    pub fn status(&self) -> Status {
        match (&self.job, &self.action.ended) {
            (Some(job), _) => Status::of(job),
            (None, Some(ended)) => ended.status,
            // Its record is marked for a retry and its job was not found yet: a person has just retried it.
            (None, None) => Status::Pending,
        }
    }

    /// When the action is due, or was due if it has ended.
    pub fn run_at(&self) -> Time {
        let ended = self.action.ended.as_ref().map_or(0, |ended| ended.due_us);
        self.job.as_ref().map_or(Time::from_micros(ended), |job| job.due_at)
    }
}

impl Actions {
    /// The action with this id, in the queue or ended; `None` if the workspace has none.
    pub async fn find(&self, workspace: &WorkspaceName, id: Uuid) -> Result<Option<Found>, StoreError> {
        // The job is read first, so that an action that leaves the queue meanwhile is found as a record.
        let job = self.store.find_jobs(&[(workspace.clone(), id)]).await?.value.remove(0);
        if let Some(job) = job.filter(|job| job.kind.starts_with(JOBS)) {
            return found_job(job).map(Some);
        }
        let record = self.store.find(&[Action::place(workspace, id)]).await?.value.remove(0);
        record.map(found_record).transpose()
    }

    /// Counts the actions that ended with this status, up to `limit`.
    pub async fn count(&self, workspace: &WorkspaceName, ended: Status, limit: usize) -> Result<usize, StoreError> {
        let (workspace, state) = (workspace.clone(), Some(ended.as_str().to_owned()));
        self.store.count(Listing { workspace, kind: KIND, list: None, state, limit, before: None }).await
    }

    /// Lists a page of actions. A page of large actions has fewer of them.
    pub async fn list(&self, workspace: &WorkspaceName, filter: &Filter) -> Result<Page, StoreError> {
        document::page(filter.limit, filter.before, |limit, before| {
            self.list_some(workspace, Filter { limit, before, ..filter.clone() })
        })
        .await
    }

    async fn list_some(&self, workspace: &WorkspaceName, filter: Filter) -> Result<Batch<Found>, StoreError> {
        let Filter { status, action_type, entity_id, schedule, limit, before } = &filter;
        let mut items = vec![];
        // Jobs are read first, so that an action that leaves the queue meanwhile is found twice, and not missed.
        if status.is_none_or(|status| status.in_queue().is_some()) && schedule.is_none() {
            let kind = action_type.as_ref().map(|name| KindFilter::Is(Action::job_kind(name)));
            let listing = JobListing {
                workspace: workspace.clone(),
                kind: kind.unwrap_or(KindFilter::BeginsWith(JOBS)),
                lane_prefix: entity_id.as_deref().map(Entity::lane_prefix),
                state: status.and_then(Status::in_queue),
                limit: limit + 1,
                before: *before,
            };
            for job in self.store.list_jobs(listing).await? {
                items.push(found_job(job)?);
            }
        }
        let (mut looked_to, mut ended_early) = (None, false);
        if status.is_none_or(|status| status.in_queue().is_none()) {
            let listed = self.list_ended(workspace, &filter).await?;
            (looked_to, ended_early) = (listed.next, listed.ended_early(*limit));
            let ended = listed.records.into_iter().map(found_record).collect::<Result<Vec<_>, _>>()?;
            items.extend(ended.into_iter().filter(|found| fits_ended(&filter, found)));
        }
        // If an action was found twice, its record is newer than its job.
        items.sort_by_key(|found| std::cmp::Reverse((found.id, found.job.is_none())));
        items.dedup_by_key(|found| found.id);
        // Records were read down to `looked_to`. Below it, unread records may come before the jobs, so those jobs are left out.
        items.retain(|found| looked_to.is_none_or(|looked_to| found.id >= looked_to));
        let more = items.len() > *limit;
        items.truncate(*limit);
        let next = items.last().map(|last| last.id).filter(|_| more).or(looked_to);
        let bytes = items.iter().map(|found| found.action.bytes().len()).sum();
        Ok(Batch { items, next, bytes, ended_early })
    }

    /// Reads a page of records. Some of them may not match the filter.
    async fn list_ended(&self, workspace: &WorkspaceName, filter: &Filter) -> Result<Listed, StoreError> {
        let Filter { status, action_type, entity_id, schedule, limit, before } = filter;
        let of_type = || action_type.as_deref().map(Action::list_of_type);
        let of_entity = || entity_id.as_deref().map(Action::list_of_entity);
        let listing = Listing {
            workspace: workspace.clone(),
            kind: KIND,
            list: schedule.map(Action::list_of_schedule).or_else(of_entity).or_else(of_type),
            state: status.map(|status| status.as_str().to_owned()),
            limit: *limit,
            before: *before,
        };
        self.store.list(listing).await
    }

    /// Cancels the action. A cancelled schedule has no more ticks.
    pub async fn cancel(&self, workspace: &WorkspaceName, id: Uuid) -> Result<Found, Refused> {
        let cancelled = self.tell(workspace, id, Command::Cancel).await;
        self.full.forget(workspace);
        cancelled
    }

    /// Runs a waiting action now.
    pub async fn run_now(&self, workspace: &WorkspaceName, id: Uuid) -> Result<Found, Refused> {
        self.tell(workspace, id, Command::RunNow).await
    }

    /// Applies a command. If a worker has leased a schedule, retries for a while: with short intervals that is often so.
    async fn tell(&self, workspace: &WorkspaceName, id: Uuid, command: Command) -> Result<Found, Refused> {
        let give_up_at = tokio::time::Instant::now() + PATIENCE;
        loop {
            let applied = self.apply(workspace, id, command.clone()).await?;
            let found = self.find(workspace, id).await?.ok_or(Refused::Missing)?;
            match applied {
                Applied::Kept(_) | Applied::Ended(..) => return Ok(found),
                Applied::Refused(Refusal::Leased { until }) => {
                    let repeats = found.action.recurrence.is_some();
                    if !repeats || tokio::time::Instant::now() > give_up_at {
                        return Err(Refused::Status("running", format!("a worker has it until {until}")));
                    }
                    tokio::time::sleep(LOOK_PAUSE).await;
                }
                Applied::Already(..) | Applied::Refused(_) | Applied::Missing => {
                    return Err(Refused::Status(found.status().as_str(), "it is not in the queue any more".into()));
                }
            }
        }
    }

    /// Puts an action that ended without success back into the queue, with all its tries. An action that waits for its next try
    /// runs now.
    pub async fn retry(&self, workspace: &WorkspaceName, id: Uuid) -> Result<Found, Refused> {
        let found = self.find(workspace, id).await?.ok_or(Refused::Missing)?;
        let ended = match (&found.job, found.action.ended.clone()) {
            (Some(job), _) if Status::of(job) == Status::Failed => return self.run_now(workspace, id).await,
            (None, Some(ended)) if ended.status != Status::Completed => ended,
            _ => {
                return Err(Refused::Status(
                    found.status().as_str(),
                    "only an action that ended without success can be retried".into(),
                ));
            }
        };
        let now = self.store.now().await?;
        let mut action = Action { ended: None, record_version: found.record_version + 1, ..found.action };
        let mut due_at = now;
        if let Some(recurrence) = action.recurrence.take() {
            let tick = Time::from_micros(recurrence.tick_us);
            due_at = if tick > now { tick } else { recurrence.next(now, now).unwrap_or(now) };
            action.recurrence = Some(recurrence.at_tick(due_at));
        }
        let record = action.record(workspace, id, action.record_version);
        let fresh = Standing { id, action, due_at }.job(workspace, ended.tries(), ended.delivery(), now);
        // The token exceeds that of earlier workers. The job counts as touched, so that no schedule coalesces into it.
        let job = Job { token: Token(ended.token.max(1)), ..fresh };
        // If two people retry the action at the same time, one of them finds the record unchanged and succeeds.
        let changes = vec![Change::replace(record), Change::Enqueue(job)];
        let committed = self.store.commit(Commit { ops: vec![], changes }).await?;
        let found = self.find(workspace, id).await?.ok_or(Refused::Missing)?;
        match committed.is_written() {
            true => Ok(found),
            false => Err(Refused::Status(found.status().as_str(), "another person was faster".into())),
        }
    }

    /// Resolves a dead or unknown action, as a person decides: it happened, or it did not happen and must not.
    pub async fn resolve(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        resolution: &Resolution,
    ) -> Result<Found, Refused> {
        let status = if resolution.happened { Status::Completed } else { Status::Cancelled };
        until_written(|| async {
            let found = self.find(workspace, id).await?.ok_or(Refused::Missing)?;
            let ended = match (&found.job, found.action.ended.clone()) {
                // A repeated request: the answer to the first may have been lost.
                (None, Some(Ended { status: is, resolved: Some(_), .. })) if is == status => return Ok(Some(found)),
                (None, Some(ended)) if matches!(ended.status, Status::Dead | Status::Unknown) => ended,
                _ => {
                    let why = "only a dead or unknown action can be resolved".into();
                    return Err(Refused::Status(found.status().as_str(), why));
                }
            };
            let now = self.store.now().await?;
            let Resolution { by, note, .. } = resolution.clone();
            let resolved = Resolved { was: ended.status, by, note, at_us: now.micros() };
            let ended = Some(Ended { status, resolved: Some(resolved), ..ended });
            let record_version = found.record_version + 1;
            let action = Action { ended, ..found.action };
            // If another person retries the action at the same time, one of the two finds the record unchanged and succeeds.
            let changes = vec![Change::replace(action.record(workspace, id, record_version))];
            let is_written = commit_or_read_again(&*self.store, Commit { ops: vec![], changes }).await?;
            Ok(is_written.then_some(Found { action, record_version, ..found }))
        })
        .await
    }
}

/// Checks the parts of the filter that the list of the store does not cover.
fn fits_ended(filter: &Filter, found: &Found) -> bool {
    let Action { ended, entity, action_type, .. } = &found.action;
    ended.is_some()
        && filter.action_type.as_ref().is_none_or(|wanted| wanted == action_type)
        && filter.entity_id.as_ref().is_none_or(|id| entity.as_ref().is_some_and(|entity| entity.id == *id))
}

fn found_job(job: Job) -> Result<Found, StoreError> {
    let action = Action::read(&job.payload, job.id)?;
    let record_version = action.record_version;
    Ok(Found { workspace: job.workspace.clone(), id: job.id, action, job: Some(job), record_version })
}

fn found_record(record: oncegate_store::Record) -> Result<Found, StoreError> {
    let action = Action::read(&record.body, record.id)?;
    Ok(Found { workspace: record.workspace, id: record.id, action, job: None, record_version: record.version })
}
