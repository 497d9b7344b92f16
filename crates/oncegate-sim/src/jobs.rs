//! One job, several workers, and everything that can go wrong between them.
//!
//! [`JobModel`] promises, over every order of events within its [`Bounds`]: an at-most-once effect does not happen twice;
//! an effect that happened is never called failed; a completed job's effect has happened; and one worker at a time has the job.
//! With a [`Fault`] built into the queue these promises break, which shows that the checker can detect a violation.

use std::time::Duration;

use bytes::Bytes;
use oncegate_core::job::{Command, Decision, Delivery, End, Failure, Job, Reached, Tries, decide};
use oncegate_core::{Time, WorkspaceName};
use stateright::{Model, Property};

pub const AT_MOST_ONCE: &str = "what is to happen at most once does not happen twice";
pub const NOT_CALLED_FAILED: &str = "what has happened is not called failed";
pub const COMPLETED_HAS_HAPPENED: &str = "what is called completed has happened";
pub const ONE_WORKER: &str = "one worker at a time has it";

const START: Time = Time::from_micros(1_000);
const TICK: Duration = Duration::from_micros(10);
/// A lease lasts longer than one tick, and ends within two.
const LEASE: Duration = Duration::from_micros(15);

/// The bounds of the checker's search.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub ticks: u8,
    /// The total of crashes, lost answers, late writes and jobs that are given back.
    pub mishaps: u8,
    pub tries: i32,
}

/// A safeguard of the queue that is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Writes are applied even if the job has changed since.
    Unfenced,
    /// A lost worker is treated as if it had not begun.
    LossForgiven,
}

#[derive(Clone, Debug)]
pub struct JobModel {
    pub workers: usize,
    pub delivery: Delivery,
    pub fault: Option<Fault>,
    pub bounds: Bounds,
}

/// Everything at one instant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub now: Time,
    /// The job as the queue has it, or how it left the queue.
    pub row: Result<Job, End>,
    pub workers: Vec<Worker>,
    /// Writes whose sender no longer waits, and that may still arrive.
    late: Vec<Write>,
    /// How many times the effect has really happened.
    pub happened: u8,
    ticks: u8,
    mishaps: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Worker {
    /// The job that the worker holds, or believes that it holds.
    job: Option<Job>,
    /// What the worker knows of its try, once it has made one.
    tried: Option<Knows>,
}

/// What a worker knows of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Knows {
    ItHappened,
    ItDidNot,
    Nothing,
}

/// A write: the job that it was decided from, and its result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Write {
    from: Job,
    to: Result<Job, End>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Lease(usize),
    /// The job is leased, but the answer to the worker is lost.
    LeaseUnheard(usize),
    Begin(usize),
    /// A try: whether the effect really happens, and what the worker learns.
    Try(usize, bool, Knows),
    /// The worker writes what it knows, or that the job is given up.
    Finish(usize),
    /// The same, but the write is delayed.
    FinishLate(usize),
    GiveBack(usize),
    Arrive(usize),
    Crash(usize),
    Tick,
}

impl JobModel {
    fn job(&self) -> Job {
        let tries = Tries { max: self.bounds.tries, pause: Duration::ZERO, pause_max: Duration::ZERO };
        let workspace = WorkspaceName::default_workspace();
        Job { delivery: self.delivery, ..Job::new(&workspace, uuid::Uuid::nil(), "k", Bytes::new(), tries, START) }
    }

    fn lease(&self, row: &Job, now: Time) -> Option<Job> {
        let mut row = row.clone();
        if self.fault == Some(Fault::LossForgiven) {
            row.begun = false;
        }
        match decide(&row, &Command::Lease { lease: LEASE }, now) {
            Decision::Keep(next) => Some(next),
            _ => None,
        }
    }

    /// Writes as every store does: a compare-and-set on the version that the write was decided from, within its lease.
    fn write(&self, world: &mut World, write: Write) -> bool {
        let stands = world.row.as_ref().is_ok_and(|row| row.version == write.from.version)
            && world.now < write.from.stands_until();
        let lands = stands || self.fault == Some(Fault::Unfenced);
        if lands {
            world.row = write.to;
        }
        lands
    }

    /// A worker decides at a time within its lease, when it last read the clock. Its write may arrive later.
    fn decided(job: &Job, command: &Command) -> Option<Write> {
        let in_time = Time::from_micros(job.lease_until.micros() - 1);
        let to = match decide(job, command, in_time) {
            Decision::Keep(next) => Ok(next),
            Decision::End(end) => Err(end),
            Decision::Refuse(_) => return None,
        };
        Some(Write { from: job.clone(), to })
    }
}

impl Worker {
    fn finish(&self) -> Option<Write> {
        let job = self.job.as_ref()?;
        let token = job.token;
        let failed = |reached| Command::Fail {
            token,
            failure: Failure { error: String::new(), reached, is_final: false, retry_in: None },
        };
        let command = match self.tried {
            _ if job.fate().is_some() => Command::GiveUp { token },
            Some(Knows::ItHappened) => Command::Complete { token },
            Some(Knows::ItDidNot) => failed(Reached::No),
            Some(Knows::Nothing) => failed(Reached::Maybe),
            None => return None,
        };
        JobModel::decided(job, &command)
    }

    /// Whether the worker may try. It does not check the clock, because it may be paused between its last check and the try.
    fn may_try(&self) -> bool {
        self.tried.is_none() && self.job.as_ref().is_some_and(|job| job.begun && job.fate().is_none())
    }
}

impl Model for JobModel {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            now: START,
            row: Ok(self.job()),
            workers: vec![Worker::default(); self.workers],
            late: vec![],
            happened: 0,
            ticks: self.bounds.ticks,
            mishaps: self.bounds.mishaps,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for (place, worker) in world.workers.iter().enumerate() {
            match &worker.job {
                None => {
                    actions.push(Action::Lease(place));
                    if world.mishaps > 0 {
                        actions.push(Action::LeaseUnheard(place));
                    }
                }
                Some(job) => {
                    if !job.begun && job.fate().is_none() {
                        actions.push(Action::Begin(place));
                        // Counted as a mishap, because otherwise the job could be leased and given back forever.
                        if world.mishaps > 0 {
                            actions.push(Action::GiveBack(place));
                        }
                    }
                    if worker.may_try() {
                        let outcomes = [
                            (true, Knows::ItHappened),
                            (true, Knows::Nothing),
                            (false, Knows::ItDidNot),
                            (false, Knows::Nothing),
                        ];
                        actions.extend(outcomes.map(|(happens, knows)| Action::Try(place, happens, knows)));
                    }
                    if worker.finish().is_some() {
                        actions.push(Action::Finish(place));
                        if world.mishaps > 0 {
                            actions.push(Action::FinishLate(place));
                        }
                    }
                    if world.mishaps > 0 {
                        actions.push(Action::Crash(place));
                    }
                }
            }
        }
        actions.extend((0..world.late.len()).map(Action::Arrive));
        if world.ticks > 0 {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::Lease(place) | Action::LeaseUnheard(place) => {
                let leased = self.lease(next.row.as_ref().ok()?, next.now)?;
                next.row = Ok(leased.clone());
                match action {
                    Action::Lease(_) => next.workers[place].job = Some(leased),
                    _ => next.mishaps -= 1,
                }
            }
            Action::Begin(place) => {
                let job = next.workers[place].job.clone()?;
                let write = JobModel::decided(&job, &Command::Begin { token: job.token })?;
                let begun = write.to.clone().ok()?;
                // A worker that cannot write `Begin` does not begin.
                let landed = self.write(&mut next, write);
                next.workers[place].job = landed.then_some(begun);
            }
            Action::GiveBack(place) => {
                next.mishaps -= 1;
                let job = next.workers[place].job.take()?;
                let write = JobModel::decided(&job, &Command::GiveBack { token: job.token })?;
                self.write(&mut next, write);
            }
            Action::Try(place, happens, knows) => {
                next.happened += u8::from(happens);
                next.workers[place].tried = Some(knows);
            }
            Action::Finish(place) => {
                let write = next.workers[place].finish()?;
                next.workers[place] = Worker::default();
                self.write(&mut next, write);
            }
            Action::FinishLate(place) => {
                next.mishaps -= 1;
                next.late.push(next.workers[place].finish()?);
                next.workers[place] = Worker::default();
            }
            Action::Arrive(place) => {
                let write = next.late.remove(place);
                self.write(&mut next, write);
            }
            Action::Crash(place) => {
                next.mishaps -= 1;
                next.workers[place] = Worker::default();
            }
            Action::Tick => {
                next.ticks -= 1;
                next.now = next.now + TICK;
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties: Vec<Property<Self>> = vec![
            Property::always(NOT_CALLED_FAILED, |_, world: &World| world.row != Err(End::Dead) || world.happened == 0),
            Property::always(COMPLETED_HAS_HAPPENED, |_, world: &World| {
                world.row != Err(End::Completed) || world.happened > 0
            }),
            Property::always(ONE_WORKER, |_, world: &World| {
                let owns = |job: &Job| {
                    world.row.as_ref().is_ok_and(|row| row.version == job.version) && job.is_leased(world.now)
                };
                world.workers.iter().filter_map(|worker| worker.job.as_ref()).filter(|job| owns(job)).count() <= 1
            }),
            Property::sometimes("it is completed", |_, world: &World| world.row == Err(End::Completed)),
            Property::sometimes("it is given up as failed", |_, world: &World| world.row == Err(End::Dead)),
            Property::sometimes("nobody can say", |_, world: &World| world.row == Err(End::Unknown)),
        ];
        match self.delivery {
            Delivery::AtMostOnce => {
                properties.push(Property::always(AT_MOST_ONCE, |_, world: &World| world.happened <= 1))
            }
            Delivery::AtLeastOnce => properties
                .push(Property::sometimes("it happens again, under its one key", |_, world: &World| {
                    world.happened > 1
                })),
        }
        properties
    }
}
