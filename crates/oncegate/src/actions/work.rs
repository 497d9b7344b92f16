//! What a worker does to an action. The queue's rules decide each command, and one commit writes the job and the record.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::job::{self, Command, Decision, Delivery, End, Job, Refusal, State, Tries};
use oncegate_core::{Time, WorkspaceName};
use oncegate_store::{Change, Commit, MainStore, Reading, StoreError, find_written};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::{Action, Actions, Ended, JOBS, Status};

/// How often a command is retried after a lost race.
const ROUNDS_MAX: usize = 100;

/// An action that a worker has leased.
#[derive(Clone, Debug)]
pub struct Leased {
    /// The job, as the lease has changed it.
    pub job: Job,
    /// The document of the action.
    pub action: Action,
}

/// The result of a command.
#[derive(Clone, Debug)]
pub enum Applied {
    /// The action is in the queue, with this job.
    Kept(Box<Job>),
    /// The action ended with this status. The id is that of the action, or of the tick.
    Ended(Status, Uuid),
    /// The action had ended with this status before: the worker repeats its report.
    Already(Status, Uuid),
    /// The action is unchanged: the rules of the queue refuse the command, for this reason.
    Refused(Refusal),
    /// The queue has no such action.
    Missing,
}

/// A worker's command, with the result of the action.
#[derive(Clone, Debug)]
pub struct Done {
    /// The command on the job.
    pub command: Command,
    /// The result that the handler returned, if it is to be kept with the action.
    pub result: Option<Box<RawValue>>,
}

impl From<Command> for Done {
    fn from(command: Command) -> Self {
        Done { command, result: None }
    }
}

/// The idempotency key for the receiver, the same for each try of one run. A tick has a key from its schedule and due time.
pub fn effect_key(id: Uuid, action: &Action) -> Uuid {
    match &action.recurrence {
        Some(recurrence) => tick_id(id, recurrence.tick_us),
        None => id,
    }
}

/// The id of a tick: always the same for the same tick, and ordered by time like all ids.
fn tick_id(schedule: Uuid, tick_us: i64) -> Uuid {
    let mixed = uuid::Uuid::new_v5(&schedule, &tick_us.to_le_bytes());
    let millis = u64::try_from(tick_us / 1000).unwrap_or(0);
    let random: [u8; 10] = mixed.as_bytes()[6..].try_into().expect("ten of sixteen bytes");
    uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
}

impl Leased {
    /// Reads the action in the payload of a leased job.
    pub fn read(job: Job) -> Result<Leased, StoreError> {
        Ok(Leased { action: Action::read(&job.payload, job.id)?, job })
    }

    /// The idempotency key for the receiver, the same for each try of this run.
    pub fn effect_key(&self) -> Uuid {
        effect_key(self.job.id, &self.action)
    }
}

/// The changes of a command.
struct Plan {
    changes: Vec<Change>,
    applied: Applied,
}

/// Decides a command, and the record that people will see.
fn plan(job: &Job, done: &Done, now: Time) -> Result<Plan, StoreError> {
    let mut action = Action::read(&job.payload, job.id)?;
    action.note_lost(job, now);
    if done.command == Command::RunNow {
        // An extra tick: the planned tick still comes when it is due.
        action.recurrence = action.recurrence.map(|recurrence| recurrence.early(now));
    }
    if let Command::Fail { failure, .. } = &done.command {
        action.failed(job.tried, now, &failure.error, failure.reached);
    }
    let stands_until = job.stands_until();
    let end = match job::decide(job, &done.command, now) {
        Decision::Refuse(refusal) => return Ok(Plan { changes: vec![], applied: Applied::Refused(refusal) }),
        Decision::Keep(next) => {
            let next = Job { payload: action.bytes(), ..next };
            let changes = vec![Change::Requeue { job: next.clone(), stands_until }];
            return Ok(Plan { changes, applied: Applied::Kept(Box::new(next)) });
        }
        Decision::End(end) => end,
    };
    // A job whose lease has ended belongs to no worker, so a person may end it.
    let free = Job { state: State::Pending, ..job.clone() };
    let job = if job.state == State::Running && !job.is_leased(now) { &free } else { job };
    let ended = ended(job, &action, end, done, now);
    let status = ended.status;
    let next_tick = action.recurrence.as_ref().filter(|_| done.command != Command::Cancel).map(|recurrence| {
        let tick = Time::from_micros(recurrence.tick_us);
        (tick_id(job.id, recurrence.tick_us), recurrence.next(tick, now))
    });
    let Some((tick, next)) = next_tick else {
        let changes = vec![Change::Dequeue(job.clone()), Action { ended: Some(ended), ..action }.end(job, job.id)];
        return Ok(Plan { changes, applied: Applied::Ended(status, job.id) });
    };
    let ticked = Action {
        ended: Some(ended.clone()),
        tick_of: Some(job.id),
        recurrence: None,
        record_version: 0,
        ..action.clone()
    };
    let mut changes = vec![ticked.end(job, tick)];
    match next {
        Some(due_at) => {
            let recurrence = action.recurrence.map(|recurrence| recurrence.at_tick(due_at));
            let again = Action { recurrence, tries: vec![], ..action };
            // A tick that is caught up must not run before the actions that were queued earlier.
            changes.push(Change::Requeue { job: job.again(again.bytes(), due_at.max(now)), stands_until });
        }
        // There is no next tick, so the schedule itself ends.
        None => {
            changes.push(Change::Dequeue(job.clone()));
            changes.push(Action { ended: Some(ended), ..action }.end(job, job.id));
        }
    }
    Ok(Plan { changes, applied: Applied::Ended(status, tick) })
}

fn ended(job: &Job, action: &Action, end: End, done: &Done, now: Time) -> Ended {
    let micros = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    let error = match (&done.command, end) {
        (Command::Fail { failure, .. }, _) => Some(failure.error.clone()),
        (_, End::Completed | End::Cancelled) => None,
        _ => job.error.clone(),
    };
    Ended {
        status: match end {
            End::Completed => Status::Completed,
            End::Dead => Status::Dead,
            End::Unknown => Status::Unknown,
            End::Cancelled => Status::Cancelled,
        },
        at_us: now.micros(),
        due_us: action.recurrence.as_ref().map_or(job.due_at.micros(), |recurrence| recurrence.tick_us),
        attempt: job.tried.min(job.tries.max),
        token: job.token.0,
        result: done.result.clone(),
        error,
        tries_max: job.tries.max,
        pause_us: micros(job.tries.pause),
        pause_max_us: micros(job.tries.pause_max),
        at_most_once: job.delivery == Delivery::AtMostOnce,
        resolved: None,
    }
}

impl Ended {
    /// The status that its last worker left, even if a person has resolved it later.
    pub fn was(&self) -> Status {
        self.resolved.as_ref().map_or(self.status, |resolved| resolved.was)
    }

    pub(super) fn tries(&self) -> Tries {
        let span = |micros: i64| Duration::from_micros(micros.unsigned_abs());
        Tries { max: self.tries_max, pause: span(self.pause_us), pause_max: span(self.pause_max_us) }
    }

    pub(super) fn delivery(&self) -> Delivery {
        if self.at_most_once { Delivery::AtMostOnce } else { Delivery::AtLeastOnce }
    }
}

impl Action {
    /// Creates the record, or replaces the one that exists after a person's retry.
    fn end(&self, job: &Job, id: Uuid) -> Change {
        match self.record_version {
            0 => Change::Create { record: self.record(&job.workspace, id, 1), names: vec![], lists: self.lists() },
            version => Change::replace(self.record(&job.workspace, id, version + 1)),
        }
    }
}

impl Actions {
    /// Gives a leased job back as if it had not been leased. If this write fails, the lease ends by itself.
    pub async fn give_back(&self, job: &Job) {
        let command = Command::GiveBack { token: job.token };
        let _ = self.apply(&job.workspace, job.id, command).await;
    }

    /// The store of the actions.
    pub fn store(&self) -> &Arc<dyn MainStore> {
        &self.store
    }

    /// Applies a worker's command to its job, by the worker's clock. `Missing` if the job has changed since the worker read it.
    pub async fn work(&self, job: &Job, done: impl Into<Done>, now: Time) -> Result<Applied, StoreError> {
        let plan = plan(job, &done.into(), now)?;
        if plan.changes.is_empty() {
            return Ok(plan.applied);
        }
        match self.store.commit(Commit { ops: vec![], changes: plan.changes }).await {
            Ok(committed) if committed.is_written() => Ok(plan.applied),
            Ok(_) => Ok(Applied::Missing),
            Err(StoreError::Unknown(why)) => {
                let look = || async { self.is_applied(job, &plan.applied).await.map(|is| is.then_some(())) };
                let is_found = find_written(&*self.store, look).await.is_some();
                if is_found { Ok(plan.applied) } else { Err(StoreError::Unknown(why)) }
            }
            Err(error) => Err(error),
        }
    }

    /// Applies a command to an action by its id, on the store's clock. The command comes from a remote worker or a person.
    pub async fn apply(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        done: impl Into<Done>,
    ) -> Result<Applied, StoreError> {
        Ok(self.apply_to(workspace, id, done.into()).await?.0)
    }

    /// Like [`Actions::apply`], and also returns the type of the action, if it is in the queue.
    pub async fn apply_to(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        done: Done,
    ) -> Result<(Applied, String), StoreError> {
        let (applied, kind) = self.try_to_apply(workspace, id, done.clone()).await?;
        if matches!(applied, Applied::Kept(_) | Applied::Ended(..)) {
            return Ok((applied, kind));
        }
        // Nothing was written. The first read may be outdated: it came from a server that was since replaced, or that shows commits
        // which its standby does not have. So read again after a confirmed commit.
        self.store.confirm().await?;
        self.try_to_apply(workspace, id, done).await
    }

    async fn try_to_apply(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        done: Done,
    ) -> Result<(Applied, String), StoreError> {
        for _ in 0..ROUNDS_MAX {
            let Reading { mut value, now } = self.store.find_jobs(&[(workspace.clone(), id)]).await?;
            let Some(job) = value.remove(0).filter(|job| job.kind.starts_with(JOBS)) else {
                return Ok((self.already(workspace, id, &done.command).await?, String::new()));
            };
            let applied = match self.work(&job, done.clone(), now).await? {
                Applied::Missing => continue,
                // For a schedule, the command may belong to the last tick.
                Applied::Refused(refusal) => self.already_ticked(&job, &done.command, refusal).await?,
                applied => applied,
            };
            return Ok((applied, job.kind[JOBS.len()..].to_owned()));
        }
        Err(StoreError::Unavailable("other writers were faster, every time; try again".into()))
    }

    /// Whether this worker's command was written. Another worker may have ended the same action since.
    async fn is_applied(&self, job: &Job, applied: &Applied) -> Result<bool, StoreError> {
        let workspace = &job.workspace;
        match applied {
            Applied::Kept(job) => {
                let found = self.store.find_jobs(&[(workspace.clone(), job.id)]).await?.value.remove(0);
                Ok(found.as_ref() == Some(&**job))
            }
            Applied::Ended(status, id) => {
                let ended = self.ended(workspace, *id).await?;
                Ok(ended.is_some_and(|ended| ended.was() == *status && ended.token == job.token.0))
            }
            Applied::Already(..) | Applied::Refused(_) | Applied::Missing => Ok(false),
        }
    }

    /// A repeated report succeeds, because the answer to the first may have been lost.
    async fn already(&self, workspace: &WorkspaceName, id: Uuid, command: &Command) -> Result<Applied, StoreError> {
        let Some(ended) = self.ended(workspace, id).await? else { return Ok(Applied::Missing) };
        let says_the_same = match command {
            Command::Complete { token } => ended.was() == Status::Completed && token.0 == ended.token,
            Command::Fail { token, .. } => {
                matches!(ended.was(), Status::Dead | Status::Unknown) && token.0 == ended.token
            }
            _ => false,
        };
        match says_the_same {
            true => Ok(Applied::Already(ended.was(), id)),
            false => Ok(Applied::Refused(Refusal::NotLeased)),
        }
    }

    async fn already_ticked(&self, job: &Job, command: &Command, refusal: Refusal) -> Result<Applied, StoreError> {
        if let Command::Fail { token, .. } = command
            && *token == job.token
            && refusal == Refusal::NotLeased
            && job.tried > 0
        {
            // Nothing is written here, so the data that was read must be as durable as a commit.
            self.store.confirm().await?;
            return Ok(Applied::Kept(Box::new(job.clone())));
        }
        let action = Action::read(&job.payload, job.id)?;
        let Some(last) = action.recurrence.and_then(|recurrence| recurrence.last_us) else {
            return Ok(Applied::Refused(refusal));
        };
        match self.already(&job.workspace, tick_id(job.id, last), command).await? {
            already @ Applied::Already(..) => Ok(already),
            _ => Ok(Applied::Refused(refusal)),
        }
    }

    pub(super) async fn ended(&self, workspace: &WorkspaceName, id: Uuid) -> Result<Option<Ended>, StoreError> {
        let found = self.store.find(&[Action::place(workspace, id)]).await?.value.remove(0);
        let action = found.map(|record| Action::read(&record.body, record.id)).transpose()?;
        Ok(action.and_then(|action| action.ended))
    }
}
