//! Applies an event: reads the instance, decides, and writes one commit. Repeats that after every conflict.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::job::{Job, State, Tries};
use oncegate_core::limits::WINDOW_MAX;
use oncegate_core::{Answer, ClaimKey, Command, Lost, Terms, Time, WorkspaceName};
use oncegate_saga::{DATA_BYTES_MAX, Definition, Event, Instance, Next, Step, Steps, Timer};
use oncegate_store::{At, Change, Commit, Op, Reading, Record, StoreError, find_written};
use serde_json::json;
use uuid::Uuid;

use super::dead::LetterState;
use super::record::{Kept, Line, Sent, Stored, bytes, id_of, inbox_key, name_of};
use super::{Handled, Outcome, RETIRE, Sagas, TIMER};
use crate::actions::Schedule;
use crate::document;

/// How many conflicts of one event are retried.
const CONFLICTS_MAX: u32 = 20;
/// How many ids of commands the history keeps for one event. It keeps the number of all commands.
const LINE_COMMANDS_MAX: usize = 100;
/// Event and instance of more bytes than this are decided on the thread pool at once.
const LARGE_BYTES: usize = 64 * 1024;
/// The lease of a claim that is settled as it is made. Every claim needs one.
const LEASE: Duration = Duration::from_secs(1);
/// Timers and removals are retried without limit.
pub(super) const TRIES: Tries =
    Tries { max: i32::MAX - 1, pause: Duration::from_secs(1), pause_max: Duration::from_secs(60) };

/// What else is written in the commit of the event.
#[derive(Clone, Copy)]
pub(super) enum Also<'a> {
    Nothing,
    /// The event comes from a timer. The commit removes the timer's job.
    Timer(&'a Job),
    /// The event comes from a dead letter. The commit settles the dead letter.
    DeadLetter(&'a Record),
}

impl Also<'_> {
    /// The changes to write once the result of the event is known.
    pub fn changes(&self, now: Time) -> Result<Vec<Change>, StoreError> {
        match self {
            Also::Nothing => Ok(vec![]),
            Also::Timer(job) => Ok(vec![Change::Dequeue((*job).clone())]),
            Also::DeadLetter(letter) => super::dead::settled(letter, LetterState::Retried, now),
        }
    }
}

/// One event for one instance.
pub(super) struct Arrival<'a> {
    pub workspace: &'a WorkspaceName,
    pub definition: &'a Arc<Definition>,
    pub correlation_id: String,
    pub event: &'a Arc<Event>,
    pub id: String,
    pub also: Also<'a>,
}

impl Arrival<'_> {
    fn key(&self) -> ClaimKey {
        inbox_key(self.workspace, self.definition.name(), &self.correlation_id, self.event.source.as_deref(), &self.id)
    }

    fn is_timer(&self) -> bool {
        self.event.source.as_deref() == Some(super::timer::SOURCE)
    }

    /// Whether the event comes from a timer, and the instance waits for that timer.
    fn is_awaited(&self, instance: &Instance) -> bool {
        self.is_timer() && instance.timers.get(&self.event.event_type) == self.event.id.as_ref()
    }

    pub fn handled(&self, outcome: Outcome, state: Option<String>, conflicts: u32) -> Handled {
        let saga = Some(self.definition.name().to_owned());
        Handled { saga, correlation_id: Some(self.correlation_id.clone()), outcome, state, conflicts }
    }
}

/// The result of one round.
enum Round {
    Done(Outcome, Option<String>),
    /// Another writer was first. Nothing was written.
    Conflict,
    /// The obstacle was removed, so the next round starts at once.
    Again,
}

impl Sagas {
    /// Returns `None` if another worker has the timer, or has changed the dead letter, that the event comes from.
    pub(super) async fn apply(
        &self,
        workspace: &WorkspaceName,
        definition: &Arc<Definition>,
        event: &Arc<Event>,
        also: Also<'_>,
    ) -> Result<Option<Handled>, StoreError> {
        let correlation_id = match self.correlation_id(workspace, definition, event).await {
            Ok(correlation_id) => correlation_id,
            Err(why) => {
                return self.bury_without_instance(workspace, Some(definition), event, also, why).await.map(Some);
            }
        };
        let arrival = Arrival { workspace, definition, correlation_id, event, id: id_of(event), also };
        let name = format!("{workspace} {}", super::record::name_of(definition.name(), &arrival.correlation_id));
        let _turn = self.locks.take(name).await;
        let mut conflicts = 0;
        loop {
            let round = match self.round(&arrival).await {
                // A retry cannot succeed, so a person has to look at the dead letter.
                Err(StoreError::Refused(why)) => self.bury(&arrival, None, why, self.now().await?).await?,
                round => round?,
            };
            match round {
                Round::Done(outcome, state) => return Ok(Some(arrival.handled(outcome, state, conflicts))),
                Round::Again => {}
                Round::Conflict if !self.is_ours(also).await? => return Ok(None),
                Round::Conflict if conflicts < CONFLICTS_MAX => {
                    let retries = &self.options.retries;
                    let pause = retries.get(conflicts as usize).or(retries.last()).copied();
                    tokio::time::sleep(pause.unwrap_or_default()).await;
                    conflicts += 1;
                }
                Round::Conflict => {
                    return Err(StoreError::Unavailable("other writers were faster, every time; try again".into()));
                }
            }
        }
    }

    /// Whether the timer or the dead letter that the event comes from is unchanged.
    async fn is_ours(&self, also: Also<'_>) -> Result<bool, StoreError> {
        match also {
            Also::Nothing => Ok(true),
            Also::Timer(job) => {
                let Reading { mut value, now } = self.store.find_jobs(&[(job.workspace.clone(), job.id)]).await?;
                Ok(value.remove(0).is_some_and(|found| found.version == job.version && found.is_leased(now)))
            }
            Also::DeadLetter(letter) => {
                let found = self.store.find(&[letter.place()]).await?.value.remove(0);
                Ok(found.is_some_and(|found| found.version == letter.version))
            }
        }
    }

    async fn round(&self, arrival: &Arrival<'_>) -> Result<Round, StoreError> {
        let Reading { value: stored, now } = self.look(arrival).await?;
        if let Some(stored) = stored.as_ref().filter(|stored| stored.document.is_expired(now)) {
            // The instance has expired but is not removed yet. The event belongs to the next instance.
            self.remove_instance(stored).await?;
            return Ok(Round::Again);
        }
        let is_awaited = |stored: &Kept| arrival.is_awaited(&stored.document.instance);
        if arrival.is_timer() && !stored.as_ref().is_some_and(is_awaited) {
            // The instance does not wait for this timer any more.
            return self.write_also(arrival, Reading { value: stored.as_ref(), now }, Outcome::Ignored).await;
        }
        let stored = stored.map(Arc::new);
        let step = self.step(arrival, stored.clone(), now).await;
        let read = Reading { value: stored.as_deref(), now };
        match step {
            Step::Apply(next) => self.write(arrival, read, *next).await,
            // Only the inbox knows whether the event was applied before.
            _ if self.is_seen(arrival).await? => self.write_also(arrival, read, Outcome::Duplicate).await,
            Step::Ignore => self.write_also(arrival, read, Outcome::Ignored).await,
            Step::Refuse(reason) => self.bury(arrival, read.value.map(Kept::state), reason, now).await,
        }
    }

    async fn is_seen(&self, arrival: &Arrival<'_>) -> Result<bool, StoreError> {
        if arrival.event.id.is_none() {
            return Ok(false);
        }
        let Reading { value, now } = self.ledger.read(&arrival.key()).await?;
        value.iter().for_each(|met| self.ledger.count_duplicate(met, now));
        Ok(value.is_some())
    }

    /// Writes an event that does not change the state of the instance.
    async fn write_also(
        &self,
        arrival: &Arrival<'_>,
        read: Reading<Option<&Kept>>,
        outcome: Outcome,
    ) -> Result<Round, StoreError> {
        let Reading { value: stored, now } = read;
        let state = stored.map(Kept::state);
        let mut changes = arrival.also.changes(now)?;
        if changes.is_empty() {
            return Ok(Round::Done(outcome, state));
        }
        if let Some(stored) = stored.filter(|stored| arrival.is_awaited(&stored.document.instance)) {
            let mut document = stored.document.clone();
            document.instance.timers.remove(&arrival.event.event_type);
            changes.push(Change::replace(stored.with(document).record()));
        }
        match self.store.commit(Commit { ops: vec![], changes }).await?.is_written() {
            true => Ok(Round::Done(outcome, state)),
            false => Ok(Round::Conflict),
        }
    }

    async fn bury(
        &self,
        arrival: &Arrival<'_>,
        state: Option<String>,
        reason: String,
        now: Time,
    ) -> Result<Round, StoreError> {
        match self.write_letter(arrival, state.clone(), &reason, now).await? {
            Some(id) => Ok(Round::Done(Outcome::DeadLetter { id, reason }, state)),
            None => Ok(Round::Conflict),
        }
    }

    /// Writes all changes of the event in one commit.
    async fn write(
        &self,
        arrival: &Arrival<'_>,
        read: Reading<Option<&Kept>>,
        next: Next,
    ) -> Result<Round, StoreError> {
        let Reading { value: stored, now } = read;
        let line_id = Uuid::now_v7();
        let missing = next.missing.clone();
        let to = next.state.clone();
        let changes = match self.changes(arrival, stored, next, line_id, now).await? {
            Ok(changes) => changes,
            Err(why) => return self.bury(arrival, stored.map(Kept::state), why, now).await,
        };
        let key = arrival.key();
        let outcome = json!({ "line": line_id }).to_string();
        let op = Op { key: key.clone(), command: Command::Claim(self.terms(arrival, outcome)) };
        match self.ledger.commit(Commit { ops: vec![op], changes }).await {
            Ok(committed) if committed.is_written() => Ok(Round::Done(Outcome::Applied { missing }, Some(to))),
            Ok(committed) => match committed.answers[..] {
                // If the claim and the instance both conflict, the claim decides: the event is a duplicate.
                [Answer::Duplicate(_)] => self.duplicate(arrival).await,
                [Answer::Won(_)] => Ok(Round::Conflict),
                _ => Err(StoreError::Refused("the place of this event in the inbox is not ours".into())),
            },
            // The commit may be written although the store reported an error. It counts if it is as durable as an acknowledged one.
            Err(StoreError::Unknown(why)) => {
                let look = || async { self.ledger.read(&key).await.map(|reading| reading.value) };
                match find_written(&*self.store, look).await {
                    None => Err(StoreError::Unknown(why)),
                    Some(claim) if claim.outcome.as_deref().is_some_and(|outcome| is_of(outcome, line_id)) => {
                        Ok(Round::Done(Outcome::Applied { missing }, Some(to)))
                    }
                    Some(_) => self.duplicate(arrival).await,
                }
            }
            Err(error) => Err(error),
        }
    }

    /// The event was applied between the read and the write, so the instance is read again.
    async fn duplicate(&self, arrival: &Arrival<'_>) -> Result<Round, StoreError> {
        let Reading { value: stored, now } = self.look(arrival).await?;
        self.write_also(arrival, Reading { value: stored.as_ref(), now }, Outcome::Duplicate).await
    }

    async fn look(&self, arrival: &Arrival<'_>) -> Result<Reading<Option<Kept>>, StoreError> {
        let at = At::Name(name_of(arrival.definition.name(), &arrival.correlation_id));
        document::find(&*self.store, arrival.workspace, at).await
    }

    fn terms(&self, arrival: &Arrival<'_>, outcome: String) -> Terms {
        let parts = json!([arrival.definition.name(), arrival.correlation_id, arrival.event.source, arrival.id]);
        Terms {
            parts: self.options.store_parts.then(|| parts.to_string()),
            outcome: Some(outcome.into()),
            // The claim lasts as long as its instance. The removal of the instance also removes the claim.
            ..Terms::new(WINDOW_MAX, LEASE, Lost::Hold)
        }
    }

    /// The changes that are written beside the inbox, or the reason why they cannot be written.
    async fn changes(
        &self,
        arrival: &Arrival<'_>,
        stored: Option<&Kept>,
        next: Next,
        line_id: Uuid,
        now: Time,
    ) -> Result<Result<Vec<Change>, String>, StoreError> {
        let Arrival { workspace, definition, event, also, .. } = arrival;
        let before = stored.map(|stored| &stored.document);
        let mut timers = before.map(|kept| kept.instance.timers.clone()).unwrap_or_default();
        let mut changes = vec![];
        if arrival.is_timer() {
            timers.remove(&event.event_type);
        }
        let over: Vec<String> = next.unscheduled.iter().filter_map(|name| timers.remove(name)).collect();
        changes.extend(self.unscheduled(workspace, &over).await?);
        let mut line = Line {
            event: event.event_type.clone(),
            event_id: arrival.id.clone(),
            source: event.source.clone(),
            from: before.map(|kept| kept.instance.state.clone()),
            to: next.state.clone(),
            commands: vec![],
            commands_sent: next.commands.len(),
            scheduled: next.timers.iter().map(|timer| timer.event.clone()).collect(),
            missing: next.missing,
            at_us: now.micros(),
            replica: self.options.replica.clone(),
        };
        for command in next.commands {
            let payload = serde_json::value::to_raw_value(&command.payload).expect("what was JSON is JSON");
            let schedule = match Schedule::of_any_size(command.name.clone(), payload) {
                Ok(schedule) => (self.options.commands)(schedule),
                Err(why) => return Ok(Err(format!("command {}: {why}", command.name))),
            };
            let job = schedule.into_job(workspace, now);
            if line.commands.len() < LINE_COMMANDS_MAX {
                line.commands.push(Sent { command: command.name, id: job.id });
            }
            changes.push(Change::Enqueue(job));
        }
        for timer in next.timers {
            let job = arrival.timer_job(&timer, now);
            timers.insert(timer.event, job.id.to_string());
            changes.push(Change::Enqueue(job));
        }
        let completed_us = next.completes.then(|| now.micros());
        let expires_at = next.completes.then(|| now + definition.retention());
        let document = Stored {
            saga: definition.name().to_owned(),
            correlation_id: arrival.correlation_id.clone(),
            instance: Instance { state: next.state, data: next.data, timers, completed_us },
            created_us: before.map_or(now.micros(), |kept| kept.created_us),
            updated_us: now.micros(),
            expires_us: expires_at.map(Time::micros),
        };
        let kept = match stored {
            None => Kept::new(workspace, document),
            Some(stored) => stored.with(document),
        };
        let record = kept.record();
        if record.body.len() > DATA_BYTES_MAX {
            let bytes = record.body.len();
            return Ok(Err(format!("an instance's data is at most {DATA_BYTES_MAX} bytes; it would have {bytes}")));
        }
        changes.push(match stored {
            None => Change::Create { record, names: kept.document.names(), lists: kept.document.lists() },
            Some(_) => Change::replace(record),
        });
        changes.push(line.created(workspace, line_id, kept.id));
        changes.extend(expires_at.map(|at| Change::Enqueue(retirement(workspace, kept.id, at, now))));
        changes.extend(also.changes(now)?);
        Ok(Ok(changes))
    }

    /// Removes timers that are not awaited any more. A worker that has already leased such a timer ignores it.
    async fn unscheduled(&self, workspace: &WorkspaceName, ids: &[String]) -> Result<Vec<Change>, StoreError> {
        let ids: Vec<_> = ids.iter().filter_map(|id| Some((workspace.clone(), id.parse().ok()?))).collect();
        if ids.is_empty() {
            return Ok(vec![]);
        }
        let jobs = self.store.find_jobs(&ids).await?.value.into_iter().flatten();
        Ok(jobs.filter(|job| job.state == State::Pending).map(Change::Dequeue).collect())
    }
}

impl Arrival<'_> {
    fn timer_job(&self, timer: &Timer, now: Time) -> Job {
        let payload = super::timer::Payload {
            saga: self.definition.name().to_owned(),
            correlation_id: self.correlation_id.clone(),
            event: timer.event.clone(),
            data: timer.data.clone(),
        };
        job(self.workspace, TIMER, bytes(&payload), timer.due_at, now)
    }
}

impl Sagas {
    async fn correlation_id(
        &self,
        workspace: &WorkspaceName,
        definition: &Arc<Definition>,
        event: &Arc<Event>,
    ) -> Result<String, String> {
        let (definition, event) = (definition.clone(), event.clone());
        let find = move |steps: &Steps| definition.correlation_id_within(&event, steps);
        self.evaluations.run(workspace, false, find).await
    }

    /// Decides what the event does. This is the pure function, on the thread pool if event and instance are large.
    async fn step(&self, arrival: &Arrival<'_>, stored: Option<Arc<Kept>>, now: Time) -> Step {
        let size = |stored: &Arc<Kept>| stored.document.instance.data.values().map(oncegate_saga::size).sum::<usize>();
        let bytes = stored.as_ref().map_or(0, size) + oncegate_saga::size(&arrival.event.data);
        let (definition, event) = (arrival.definition.clone(), arrival.event.clone());
        let decide = move |steps: &Steps| {
            let instance = stored.as_ref().map(|stored| &stored.document.instance);
            definition.step_within(instance, &event, now, steps)
        };
        self.evaluations.run(arrival.workspace, bytes > LARGE_BYTES, decide).await
    }
}

/// Whether the outcome of a claim names this line of the history.
pub(super) fn is_of(outcome: &[u8], line: Uuid) -> bool {
    let outcome: Option<serde_json::Value> = serde_json::from_slice(outcome).ok();
    outcome.is_some_and(|outcome| outcome["line"] == json!(line))
}

pub(super) fn retirement(workspace: &WorkspaceName, id: Uuid, due_at: Time, now: Time) -> Job {
    job(workspace, RETIRE, bytes(&super::retire::Payload { id }), due_at, now)
}

fn job(workspace: &WorkspaceName, kind: &str, payload: bytes::Bytes, due_at: Time, now: Time) -> Job {
    Job { due_at, ..Job::new(workspace, Uuid::now_v7(), kind, payload, TRIES, now) }
}
