//! One slot of a window: several schedulers, several workers, and every order of their steps.
//!
//! [`SlotModel`] promises, over every order of events within its [`Bounds`]: when all work is finished, the payload delivered last
//! is the one acknowledged last; and no two workers run one entity's actions at the same time. Schedulers read and write in two
//! steps, as they do over a store, and remember the claim that they last saw. With a [`Fault`] built in, these promises break.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncegate_core::job::{self, Decision, Job, State, Tries};
use oncegate_core::{
    Answer, Claim, ClaimKey, Command, GuardName, Lost, Moment, Terms, Time, Token, WorkspaceName, decide,
};
use stateright::{Model, Property};
use uuid::Uuid;

pub const LAST_IS_DELIVERED_LAST: &str = "what was acknowledged last is delivered last";
pub const ONE_AT_A_TIME: &str = "one worker at a time is at an entity's actions";

const START: Time = Time::from_micros(1_000);
const TICK: Duration = Duration::from_micros(10);
/// A lease lasts longer than one tick, and ends within two; so does a window.
const LEASE: Duration = Duration::from_micros(15);
const WINDOW: Duration = Duration::from_micros(25);

#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub ticks: u8,
    /// The total of workers that crash or give a job back.
    pub mishaps: u8,
    /// How many times each scheduler schedules.
    pub schedules: u8,
}

/// A safeguard that is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An update is written even if the action has changed since.
    Unconditional,
    /// An action that was leased and given back counts as one that has not started.
    StartForgotten,
    /// Two actions of one entity may run at the same time.
    NoLanes,
}

#[derive(Clone, Debug)]
pub struct SlotModel {
    pub schedulers: usize,
    pub workers: usize,
    pub fault: Option<Fault>,
    pub bounds: Bounds,
}

/// A claim, hashed by its token and version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot(Arc<Claim>);

impl Hash for Slot {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0.token, self.0.version).hash(state);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    now: Time,
    slot: Option<Slot>,
    queue: Vec<Job>,
    schedulers: Vec<Scheduler>,
    workers: Vec<Option<Held>>,
    /// Payloads in the order of their commits.
    acknowledged: Vec<u8>,
    delivered: Vec<u8>,
    ticks: u8,
    mishaps: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Scheduler {
    left: u8,
    remembered: Option<Slot>,
    /// The job that the scheduler read, and when. Set while the scheduler is about to write.
    looked: Option<(Option<Job>, Time)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Held {
    job: Job,
    has_delivered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Look(usize),
    Write(usize),
    Lease(usize),
    Deliver(usize),
    Finish(usize),
    GiveBack(usize),
    Crash(usize),
    Tick,
}

fn key() -> ClaimKey {
    let guard = GuardName::new("action").expect("a good name");
    ClaimKey::of(&WorkspaceName::default_workspace(), &guard, &[Some("slot")])
}

fn new_job(number: usize, payload: u8, now: Time) -> Job {
    let (workspace, id) = (WorkspaceName::default_workspace(), Uuid::from_u128(number as u128));
    let tries = Tries { max: 100, pause: Duration::ZERO, pause_max: Duration::ZERO };
    Job { lane: Some("lane".into()), ..Job::new(&workspace, id, "k", Bytes::from(vec![payload]), tries, now) }
}

impl World {
    /// The number of jobs ever created. Jobs are numbered in order, and each has a claim of its own.
    fn made(&self) -> usize {
        self.slot.as_ref().map_or(0, |slot| action_of(&slot.0) + 1)
    }

    fn find(&self, number: usize) -> Option<&Job> {
        self.queue.iter().find(|job| job.id.as_u128() == number as u128)
    }

    /// Replaces a job by a compare-and-set on the version that `next` was decided from, before `until`.
    fn replace(&mut self, next: Job, until: Time, is_forced: bool) -> bool {
        let now = self.now;
        let found = self.queue.iter_mut().find(|job| job.id == next.id);
        match found.filter(|job| is_forced || (job.version + 1 == next.version && now < until)) {
            Some(job) if is_forced => {
                job.payload = next.payload;
                true
            }
            Some(job) => {
                *job = next;
                true
            }
            None => false,
        }
    }
}

fn action_of(claim: &Claim) -> usize {
    let outcome = claim.outcome.as_deref().expect("a slot's claim is settled as it is made");
    usize::from(outcome[0])
}

impl SlotModel {
    /// A unique payload for each schedule.
    fn payload(&self, scheduler: usize, left: u8) -> u8 {
        u8::try_from(scheduler).expect("few") * 16 + left
    }

    fn is_untouched(&self, job: &Job) -> bool {
        match self.fault {
            Some(Fault::StartForgotten) => job.state == State::Pending,
            _ => job.is_untouched(),
        }
    }

    fn write(&self, world: &mut World, place: usize) -> Option<()> {
        let Scheduler { left, remembered, looked } = world.schedulers[place].clone();
        let (job, now) = looked?;
        let payload = self.payload(place, left);
        world.schedulers[place].looked = None;
        let until = remembered.as_ref().map_or(Time::LONG_AGO, |slot| slot.0.expires_at);
        if let Some(job) = job.filter(|job| self.is_untouched(job) && now < until) {
            let next = Job { payload: Bytes::from(vec![payload]), version: job.version + 1, ..job };
            if world.replace(next, until, self.fault == Some(Fault::Unconditional)) {
                world.acknowledge(place, payload);
            }
            return Some(());
        }
        let number = world.made();
        let terms = Terms {
            outcome: Some(Bytes::from(vec![u8::try_from(number).expect("few")])),
            replaces: remembered.map(|slot| slot.0.token),
            ..Terms::new(WINDOW, WINDOW, Lost::TakeOver)
        };
        let moment = Moment { now: world.now, token_floor: Token(0) };
        let decided = decide(&key(), world.slot.as_ref().map(|slot| &slot.0), &Command::Claim(terms), moment);
        match decided.answer {
            Answer::Won(claim) => {
                world.queue.push(new_job(number, payload, world.now));
                world.slot = Some(Slot(claim.clone()));
                world.schedulers[place].remembered = Some(Slot(claim));
                world.acknowledge(place, payload);
            }
            Answer::Duplicate(met) => world.schedulers[place].remembered = Some(Slot(met)),
            other => panic!("{other:?}"),
        }
        Some(())
    }

    /// Leases the first job that is due and whose group is free.
    fn lease(&self, world: &mut World, place: usize) -> Option<()> {
        let now = world.now;
        let is_free = |job: &Job, others: &[Job]| {
            self.fault == Some(Fault::NoLanes) || !others.iter().any(|other| other.id != job.id && other.started)
        };
        let mut due: Vec<&Job> = world.queue.iter().filter(|job| job.wakes_at() <= now).collect();
        due.sort_by_key(|job| (job.wakes_at(), job.id));
        let job = due.into_iter().find(|job| is_free(job, &world.queue))?;
        let Decision::Keep(next) = job::decide(job, &job::Command::Lease { lease: LEASE }, now) else { return None };
        let held = Held { job: next.clone(), has_delivered: false };
        world.replace(next, Time::NEVER, false).then_some(())?;
        world.workers[place] = Some(held);
        Some(())
    }
}

impl World {
    fn acknowledge(&mut self, place: usize, payload: u8) {
        self.acknowledged.push(payload);
        self.schedulers[place].left -= 1;
    }

    fn is_quiet(&self) -> bool {
        self.queue.is_empty()
            && self.schedulers.iter().all(|scheduler| scheduler.left == 0)
            && self.workers.iter().all(Option::is_none)
    }
}

impl Model for SlotModel {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let scheduler = Scheduler { left: self.bounds.schedules, remembered: None, looked: None };
        vec![World {
            now: START,
            slot: None,
            queue: vec![],
            schedulers: vec![scheduler; self.schedulers],
            workers: vec![None; self.workers],
            acknowledged: vec![],
            delivered: vec![],
            ticks: self.bounds.ticks,
            mishaps: self.bounds.mishaps,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for (place, scheduler) in world.schedulers.iter().enumerate().filter(|(_, scheduler)| scheduler.left > 0) {
            actions.push(if scheduler.looked.is_none() { Action::Look(place) } else { Action::Write(place) });
        }
        for (place, held) in world.workers.iter().enumerate() {
            match held {
                None => actions.push(Action::Lease(place)),
                Some(held) => {
                    actions.push(if held.has_delivered { Action::Finish(place) } else { Action::Deliver(place) });
                    if world.mishaps > 0 {
                        actions.push(Action::Crash(place));
                        if !held.has_delivered {
                            actions.push(Action::GiveBack(place));
                        }
                    }
                }
            }
        }
        if world.ticks > 0 {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::Look(place) => {
                let claim = next.schedulers[place].remembered.as_ref().map(|slot| action_of(&slot.0));
                let job = claim.and_then(|number| next.find(number).cloned());
                next.schedulers[place].looked = Some((job, next.now));
            }
            Action::Write(place) => self.write(&mut next, place)?,
            Action::Lease(place) => self.lease(&mut next, place)?,
            Action::Deliver(place) => {
                let held = next.workers[place].as_mut()?;
                // A worker checks the clock before it begins. A try that has begun runs to its end.
                if next.now >= held.job.lease_until {
                    next.workers[place] = None;
                } else {
                    held.has_delivered = true;
                    next.delivered.push(held.job.payload[0]);
                }
            }
            Action::Finish(place) => {
                let held = next.workers[place].take()?;
                let (now, job) = (next.now, held.job);
                next.queue
                    .retain(|found| !(found.id == job.id && found.version == job.version && now < job.stands_until()));
            }
            Action::GiveBack(place) => {
                next.mishaps -= 1;
                let job = next.workers[place].take()?.job;
                let command = job::Command::GiveBack { token: job.token };
                if let Decision::Keep(given) = job::decide(&job, &command, next.now) {
                    next.replace(given, job.stands_until(), false);
                }
            }
            Action::Crash(place) => {
                next.mishaps -= 1;
                next.workers[place] = None;
            }
            Action::Tick => {
                next.ticks -= 1;
                next.now = next.now + TICK;
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(LAST_IS_DELIVERED_LAST, |_, world: &World| {
                !world.is_quiet() || world.delivered.last() == world.acknowledged.last()
            }),
            Property::always(ONE_AT_A_TIME, |_, world: &World| {
                let at_work = |held: &&Held| world.now < held.job.lease_until;
                world.workers.iter().flatten().filter(at_work).count() <= 1
            }),
            Property::sometimes("an update is folded in", |_, world: &World| {
                world.is_quiet() && world.made() < world.acknowledged.len()
            }),
            Property::sometimes("an action is succeeded", |_, world: &World| world.made() > 1),
            Property::sometimes("something is delivered again", |_, world: &World| {
                world.is_quiet() && world.delivered.len() > world.made()
            }),
        ]
    }
}
