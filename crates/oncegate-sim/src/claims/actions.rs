//! The possible actions in a world, and their effects.

use oncegate_core::{Answer, Command, State, Time};

use super::worker::{Letter, Verb, Worker};
use super::{ClaimModel, Fault, World, shelf};

/// One step. An index identifies a worker or a late letter; a step may change the indexes.
///
/// A letter that is not delayed is sent and answered in one step. The other workers cannot tell a sender
/// that is paused before it asks from one that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Ask(usize, Verb),
    /// The store applies the letter, but the answer is lost.
    AskUnanswered(usize, Verb),
    /// The letter is delayed. Its sender gives up waiting and may ask again, or crash, before the letter arrives.
    AskDelayed(usize, Verb),
    ArriveLate(usize),
    StartEffect(usize),
    /// The worker crashes and restarts without any knowledge.
    Crash(usize),
    Tick,
    StepBack,
    Sweep,
    /// A person settles an unknown claim.
    Resolve,
}

impl World {
    pub(super) fn possible(&self, fault: Option<Fault>, actions: &mut Vec<Action>) {
        for (place, worker) in self.workers.iter().enumerate() {
            // Two workers with the same knowledge would do the same.
            if place == 0 || *worker != self.workers[place - 1] {
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

    fn possible_for(&self, place: usize, worker: &Worker, actions: &mut Vec<Action>) {
        let mishaps_left = self.left.mishaps > 0;
        for verb in worker.verbs() {
            if *verb == Verb::Release && worker.unanswered.is_none() && self.left.releases == 0 {
                continue;
            }
            actions.push(Action::Ask(place, *verb));
            if mishaps_left {
                actions.push(Action::AskUnanswered(place, *verb));
            }
            // A claim does not identify its sender, so a late claim equals an unanswered claim of another worker.
            if mishaps_left && *verb != Verb::Claim {
                actions.push(Action::AskDelayed(place, *verb));
            }
        }
        if worker.may_start() {
            actions.push(Action::StartEffect(place));
        }
        if mishaps_left && *worker != Worker::default() {
            actions.push(Action::Crash(place));
        }
    }
}

impl ClaimModel {
    pub(super) fn take(&self, world: &mut World, action: Action) {
        match action {
            Action::Ask(place, verb) => {
                let answer = self.deliver(world, world.workers[place].letter(verb));
                world.workers[place].hears(verb, &answer);
            }
            Action::AskUnanswered(place, verb) => {
                world.left.mishaps -= 1;
                self.deliver(world, world.workers[place].letter(verb));
                world.workers[place].hears_nothing(verb);
            }
            Action::AskDelayed(place, verb) => {
                world.left.mishaps -= 1;
                world.late.push(world.workers[place].letter(verb));
                world.workers[place].hears_nothing(verb);
            }
            Action::ArriveLate(place) => {
                let letter = world.late.remove(place);
                self.deliver(world, letter);
            }
            Action::StartEffect(place) => {
                let worker = &mut world.workers[place];
                worker.started = true;
                world.ledger.start(worker.token.expect("only an owner starts"));
            }
            Action::Crash(place) => {
                world.left.mishaps -= 1;
                world.workers[place] = Worker::default();
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
        if letter.verb == Verb::Release && answer.is_accepted() {
            world.left.releases = world.left.releases.saturating_sub(1);
        }
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
