//! What can happen next, and what it does.

use oncegate_core::{Answer, Command, State, Time};

use super::worker::{Letter, Request, Verb, Worker};
use super::{ClaimModel, Fault, World, shelf};

/// One step. Workers and late letters are named by their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Send(usize, Verb),
    /// The worker's letter reaches the store, and the answer reaches the worker.
    Arrive(usize),
    /// The letter reaches the store and does its work; the answer is lost.
    ArriveUnanswered(usize),
    /// The worker has waited long enough and sends the same again. What it gave up on may still arrive.
    Repeat(usize),
    StartEffect(usize),
    /// The worker dies and is started again, knowing nothing.
    Crash(usize),
    ArriveLate(usize),
    Tick,
    StepBack,
    Sweep,
    /// A person settles what is unknown.
    Resolve,
}

impl World {
    pub(super) fn possible(&self, fault: Option<Fault>, actions: &mut Vec<Action>) {
        for (place, worker) in self.workers.iter().enumerate() {
            if self.is_first_of_its_kind(place) {
                self.possible_for(place, worker, actions);
            }
        }
        actions.extend((0..self.late.len()).map(Action::ArriveLate));
        if self.left.ticks > 0 {
            actions.push(Action::Tick);
        }
        if self.left.steps_back > 0 && self.now > shelf::START {
            actions.push(Action::StepBack);
        }
        if self.shelf.can_sweep(self.now, fault) {
            actions.push(Action::Sweep);
        }
        if self.shelf.record().is_some_and(|claim| claim.state_at(self.now) == State::Unknown) {
            actions.push(Action::Resolve);
        }
    }

    /// Two workers that know the same would do the same.
    fn is_first_of_its_kind(&self, place: usize) -> bool {
        place == 0 || self.workers[place] != self.workers[place - 1]
    }

    fn possible_for(&self, place: usize, worker: &Worker, actions: &mut Vec<Action>) {
        let mishaps_left = self.left.mishaps > 0;
        actions.extend(worker.verbs().iter().map(|verb| Action::Send(place, *verb)));
        if worker.may_start() {
            actions.push(Action::StartEffect(place));
        }
        match worker.request {
            Some(Request { answer_lost: true, .. }) => actions.push(Action::Repeat(place)),
            Some(Request { answer_lost: false, .. }) => {
                actions.push(Action::Arrive(place));
                if mishaps_left {
                    actions.extend([Action::ArriveUnanswered(place), Action::Repeat(place)]);
                }
            }
            None => {}
        }
        if mishaps_left && *worker != Worker::default() {
            actions.push(Action::Crash(place));
        }
    }
}

impl ClaimModel {
    pub(super) fn take(&self, world: &mut World, action: Action) {
        match action {
            Action::Send(place, verb) => world.workers[place].send(verb),
            Action::Arrive(place) => {
                let letter = world.request(place).letter;
                let answer = self.deliver(world, letter);
                world.workers[place].hear(&answer);
            }
            Action::ArriveUnanswered(place) => {
                world.left.mishaps -= 1;
                let letter = world.request(place).letter;
                self.deliver(world, letter);
                world.workers[place].request = Some(Request { letter, answer_lost: true });
            }
            Action::Repeat(place) => {
                let verb = world.request(place).letter.verb;
                if let Some(letter) = world.workers[place].give_up() {
                    world.left.mishaps -= 1;
                    world.late.push(letter);
                }
                world.workers[place].send(verb);
            }
            Action::StartEffect(place) => {
                let worker = &mut world.workers[place];
                worker.started = true;
                world.ledger.start(worker.token.expect("only an owner starts"));
            }
            Action::Crash(place) => {
                world.left.mishaps -= 1;
                let under_way = world.workers[place].give_up();
                world.late.extend(under_way);
                world.workers[place] = Worker::default();
            }
            Action::ArriveLate(place) => {
                let letter = world.late.remove(place);
                self.deliver(world, letter);
            }
            Action::Tick => {
                world.left.ticks -= 1;
                world.now = world.now + shelf::TICK;
                world.ledger.tick(world.now);
            }
            Action::StepBack => {
                world.left.steps_back -= 1;
                world.now = Time::from_micros(world.now.micros() - 1);
            }
            Action::Sweep => world.shelf.sweep(self.fault),
            Action::Resolve => self.resolve(world),
        }
    }

    fn deliver(&self, world: &mut World, letter: Letter) -> Answer {
        let before = world.shelf.clone();
        let answer = world.shelf.commit(&letter.command(shelf::terms(self.lost)), world.now, self.fault);
        let records = (before.record(), world.shelf.record());
        world.just = world.ledger.note(&letter, &answer, records, world.now);
        answer
    }

    fn resolve(&self, world: &mut World) {
        let resolve = Command::Resolve { done: false, outcome: None };
        if let Answer::Applied(claim) = world.shelf.commit(&resolve, world.now, self.fault) {
            world.ledger.resolved(&claim);
        }
    }
}

impl World {
    fn request(&self, place: usize) -> Request {
        self.workers[place].request.expect("the action is possible only while the worker waits")
    }
}
