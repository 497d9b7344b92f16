//! Schedules of one slot wait in a queue, and each round coalesces all that wait.
//!
//! Without the queue, the schedules of this process would race for the same record, and all but one would lose, again and
//! again. Schedules that arrive while a round is being written are coalesced in the next round.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use oncegate_core::job::{self, Command as JobCommand, Decision, Job};
use oncegate_core::{Answer, Claim, ClaimKey, Command, Lost, Terms, Time, Token, WorkspaceName};
use oncegate_store::{Change, Commit, Op, Reading, StoreError, find_written};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::coalesce::Standing;
use super::{Action, Actions, Outcome, Schedule, ScheduleError, Scheduled};

/// How often a round is retried after a lost race.
const ROUNDS_MAX: usize = 1000;
/// The shortest window of a claim, however short the window of the action.
const CLAIM_MIN: Duration = Duration::from_secs(1);
/// How many slots the cache of claims holds.
const REMEMBERED_MAX: usize = 32 * 1024;

type Answered = Result<Scheduled, ScheduleError>;

struct Waiting {
    schedule: Schedule,
    answer: oneshot::Sender<Answered>,
}

#[derive(Default)]
pub(super) struct SlotQueues {
    waiting: Mutex<HashMap<ClaimKey, Vec<Waiting>>>,
    remembered: Mutex<Remembered>,
}

/// A cache of the slots' claims, in two generations: the newer half and the older half.
#[derive(Default)]
struct Remembered {
    newer: HashMap<ClaimKey, Arc<Claim>>,
    older: HashMap<ClaimKey, Arc<Claim>>,
}

impl SlotQueues {
    fn waiting(&self) -> MutexGuard<'_, HashMap<ClaimKey, Vec<Waiting>>> {
        self.waiting.lock().expect("no holder of this lock panics")
    }

    /// Adds a schedule. Returns `true` if it is the first in its queue.
    fn join(&self, slot: &ClaimKey, waiting: Waiting) -> bool {
        let mut queues = self.waiting();
        match queues.get_mut(slot) {
            Some(line) => {
                line.push(waiting);
                false
            }
            None => {
                queues.insert(slot.clone(), vec![waiting]);
                true
            }
        }
    }

    /// Takes all waiting schedules. If there are none, removes the queue.
    fn next(&self, slot: &ClaimKey) -> Vec<Waiting> {
        let mut queues = self.waiting();
        let next = queues.get_mut(slot).map(std::mem::take).unwrap_or_default();
        if next.is_empty() {
            queues.remove(slot);
        }
        next
    }

    fn remember(&self, claim: Arc<Claim>) {
        let mut remembered = self.remembered.lock().expect("no holder of this lock panics");
        if remembered.newer.len() >= REMEMBERED_MAX / 2 {
            remembered.older = std::mem::take(&mut remembered.newer);
        }
        remembered.newer.insert(claim.key.clone(), claim);
    }

    fn recall(&self, slot: &ClaimKey) -> Option<Arc<Claim>> {
        let remembered = self.remembered.lock().expect("no holder of this lock panics");
        remembered.newer.get(slot).or_else(|| remembered.older.get(slot)).cloned()
    }
}

/// Removes the queue if the task that serves it is dropped early. The waiting callers then get an error.
struct Counter<'a> {
    slots: &'a SlotQueues,
    slot: &'a ClaimKey,
    is_closed: bool,
}

impl Drop for Counter<'_> {
    fn drop(&mut self) {
        if !self.is_closed {
            self.slots.waiting().remove(self.slot);
        }
    }
}

impl Actions {
    /// Schedules an action, or revises the pending action of its slot.
    pub async fn schedule(&self, workspace: &WorkspaceName, schedule: Schedule) -> Answered {
        let Some(entity) = schedule.deduplicated() else { return self.schedule_alone(workspace, &schedule).await };
        let slot = Actions::slot(workspace, &schedule.action_type, entity);
        let (answer, answered) = oneshot::channel();
        if self.slots.join(&slot, Waiting { schedule, answer }) {
            // On a separate task: the first caller may leave, and the other callers still need their answers.
            tokio::spawn(self.clone().serve(slot));
        }
        answered.await.unwrap_or_else(|_| Err(StoreError::Unknown("the writer was stopped".into()).into()))
    }

    async fn schedule_alone(&self, workspace: &WorkspaceName, schedule: &Schedule) -> Answered {
        if let Some(repeats) = &schedule.repeats {
            repeats.at_least(self.limits.interval_min)?;
        }
        for _ in 0..ROUNDS_MAX {
            let now = self.store.now().await?;
            if let Some(repeats) = schedule.repeats.as_ref().filter(|_| self.limits.interval_min.is_some()) {
                repeats.begins_now_or_later(schedule.when, now)?;
            }
            let standing = Standing::first(schedule, now);
            let job = standing.job(workspace, schedule.tries, schedule.delivery, now);
            let counted = match schedule.repeats {
                Some(_) => self.counted(workspace, standing.id).await?,
                None => None,
            };
            let is_counted = counted.is_some();
            let changes = std::iter::once(Change::Enqueue(job.clone())).chain(counted).collect();
            match self.commit(Commit { ops: vec![], changes }, &job, &standing).await? {
                Some(_) => return Ok(standing.told(Outcome::Created)),
                // Another schedule was counted meanwhile, so try again.
                None if is_counted => {}
                None => return Err(StoreError::Unavailable("its id was taken".into()).into()),
            }
        }
        Err(StoreError::Unavailable("other writers were faster, every time; try again".into()).into())
    }

    /// Serves the queue of a slot until the queue is empty.
    async fn serve(self, slot: ClaimKey) {
        let mut counter = Counter { slots: &self.slots, slot: &slot, is_closed: false };
        loop {
            let line = self.slots.next(&slot);
            if line.is_empty() {
                counter.is_closed = true;
                return;
            }
            let (schedules, answers): (Vec<Schedule>, Vec<_>) =
                line.into_iter().map(|waiting| (waiting.schedule, waiting.answer)).unzip();
            let served = self.serve_together(&slot, &schedules).await;
            let served = served.unwrap_or_else(|error| vec![Err(error.into()); schedules.len()]);
            for (answer, answered) in answers.into_iter().zip(served) {
                // The caller may have left; the write remains valid.
                let _ = answer.send(answered);
            }
        }
    }

    /// Finds the action of the slot by its cached or met claim. Revises that action, or makes its successor if it has started or
    /// ended.
    async fn serve_together(&self, slot: &ClaimKey, schedules: &[Schedule]) -> Result<Vec<Answered>, StoreError> {
        let mut claim = self.slots.recall(slot);
        for _ in 0..ROUNDS_MAX {
            let id = claim.as_deref().and_then(action_of).map(|id| (slot.workspace.clone(), id));
            let Reading { mut value, now } = self.store.find_jobs(id.as_slice()).await?;
            let standing = match value.pop().flatten().filter(Job::is_untouched) {
                Some(job) => Some((Standing::read(&job)?, job)).filter(|(standing, _)| now < standing.until()),
                None => None,
            };
            let round = match standing {
                Some((standing, job)) => self.revise(standing, &job, schedules, now).await?,
                None => self.create(slot, schedules, claim.as_deref().map(|claim| claim.token), now).await?,
            };
            match round {
                Round::Written(answers) => return Ok(answers),
                Round::Met(met) => {
                    self.slots.remember(met.clone());
                    claim = Some(met);
                }
                Round::Again => {}
            }
        }
        Err(StoreError::Unavailable("other writers were faster, every time; try again".into()))
    }

    /// Coalesces schedules into an action that no worker has leased. One conditional write decides whether that is still true, and
    /// whether the window is still open.
    async fn revise(
        &self,
        mut standing: Standing,
        job: &Job,
        schedules: &[Schedule],
        now: Time,
    ) -> Result<Round, StoreError> {
        let until = standing.until();
        let answers: Vec<Answered> = schedules.iter().map(|schedule| standing.fold(schedule, now)).collect();
        let is_update = |answer: &Answered| matches!(answer, Ok(Scheduled { outcome: Outcome::Updated, .. }));
        if answers.iter().any(is_update) {
            let command = JobCommand::Revise { payload: standing.action.bytes(), due_at: standing.due_at };
            let Decision::Keep(next) = job::decide(job, &command, now) else { return Ok(Round::Again) };
            let changes = vec![Change::Requeue { job: next.clone(), stands_until: until }];
            if self.commit(Commit { ops: vec![], changes }, &next, &standing).await?.is_none() {
                return Ok(Round::Again);
            }
        }
        Ok(Round::Written(answers))
    }

    /// Makes the claim and the action together. If another caller's claim exists, and is not the one to succeed, that claim counts.
    async fn create(
        &self,
        slot: &ClaimKey,
        schedules: &[Schedule],
        replaces: Option<Token>,
        now: Time,
    ) -> Result<Round, StoreError> {
        let first = &schedules[0];
        let mut standing = Standing::first(first, now);
        let mut answers = vec![Ok(standing.told(Outcome::Created))];
        answers.extend(schedules[1..].iter().map(|schedule| standing.fold(schedule, now)));
        let job = standing.job(&slot.workspace, first.tries, first.delivery, now);
        let terms = Terms {
            outcome: Some(standing.id.to_string().into()),
            replaces,
            // The window of the action decides; the claim only has to outlive the write.
            ..Terms::new(first.stands_for().max(CLAIM_MIN), CLAIM_MIN, Lost::TakeOver)
        };
        let op = Op { key: slot.clone(), command: Command::Claim(terms) };
        let commit = Commit { ops: vec![op], changes: vec![Change::Enqueue(job.clone())] };
        match self.commit(commit, &job, &standing).await? {
            None => Ok(Round::Again),
            Some(mut written) => match written.pop() {
                Some(Answer::Won(claim)) => {
                    self.slots.remember(claim);
                    Ok(Round::Written(answers))
                }
                Some(met) => Ok(met.met().map_or(Round::Again, |met| Round::Met(met.clone()))),
                // The answer was lost, and the claim with it; but the action was written.
                None => Ok(Round::Written(answers)),
            },
        }
    }

    /// Writes an action. `None` after a conflict. The answers belong to the operations; they are empty if the answer was lost.
    async fn commit(&self, commit: Commit, job: &Job, standing: &Standing) -> Result<Option<Vec<Answer>>, StoreError> {
        match self.store.commit(commit).await {
            Ok(committed) if committed.conflict.is_some() => Ok(None),
            Ok(committed) => Ok(Some(committed.answers)),
            // The commit may be written although the store reported an error. It counts if it is as durable as an acknowledged one.
            Err(StoreError::Unknown(why)) => {
                let look = || async { self.is_there(job, standing).await.map(|is| is.then_some(())) };
                let is_found = find_written(&*self.store, look).await.is_some();
                if is_found { Ok(Some(vec![])) } else { Err(StoreError::Unknown(why)) }
            }
            Err(error) => Err(error),
        }
    }

    /// Whether this revision of the action was written, and not another revision of the same number. The action may have run since.
    async fn is_there(&self, job: &Job, standing: &Standing) -> Result<bool, StoreError> {
        let found = self.find(&job.workspace, job.id).await?;
        let Action { revision, revised_us, .. } = &standing.action;
        Ok(found.is_some_and(|found| found.action.revised_at(*revision) == revised_us.last().copied()))
    }
}

enum Round {
    Written(Vec<Answered>),
    /// Another caller's claim.
    Met(Arc<Claim>),
    Again,
}

/// The action that a slot's claim was made for.
fn action_of(claim: &Claim) -> Option<Uuid> {
    std::str::from_utf8(claim.outcome.as_deref()?).ok()?.parse().ok()
}
