//! One key, several workers, and everything that can go wrong between them.
//!
//! [`ClaimModel`] promises, over every order of events within its [`Bounds`]:
//! one live owner, tokens that grow, one outcome for a window, stale writes that
//! change nothing, and under [`Lost::Hold`] an effect started at most once in a
//! window. With a [`Fault`] built into the store these promises break, which
//! shows that the checker can detect a violation.

mod actions;
mod ledger;
pub mod properties;
mod shelf;
mod worker;

use oncegate_core::{Lost, Time};
use stateright::{Model, Property};

pub use actions::Action;
pub use ledger::{Event, Ledger};
pub use shelf::{Fault, Shelf};
pub use worker::{Letter, Verb, Worker};

/// The bounds of the checker's search. Each bound limits one way in which the search could run forever.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How many times the clock moves on.
    pub ticks: u8,
    /// How many times the clock steps back.
    pub steps_back: u8,
    /// The total of crashes, lost answers and delayed requests.
    pub mishaps: u8,
    /// How many times an owner releases the key. Each release lets the next token run further ahead of the clock.
    pub releases: u8,
}

/// The model: a number of workers under a policy, on a store with or without a fault.
#[derive(Clone, Debug)]
pub struct ClaimModel {
    pub workers: usize,
    pub lost: Lost,
    pub fault: Option<Fault>,
    pub bounds: Bounds,
}

/// Everything at one instant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub now: Time,
    pub shelf: Shelf,
    /// Sorted by what the workers know. Workers are interchangeable, so two worlds that differ only
    /// in the order of their workers are the same world.
    pub workers: Vec<Worker>,
    /// Letters whose sender no longer waits, and that may still arrive.
    pub late: Vec<Letter>,
    pub left: Left,
    pub ledger: Ledger,
    /// The notable result of the last step, if any.
    pub just: Option<Event>,
}

/// What is left of the [`Bounds`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Left {
    pub ticks: u8,
    pub steps_back: u8,
    pub mishaps: u8,
    pub releases: u8,
}

impl Model for ClaimModel {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let Bounds { ticks, steps_back, mishaps, releases } = self.bounds;
        vec![World {
            now: shelf::START,
            shelf: Shelf::default(),
            workers: vec![Worker::default(); self.workers],
            late: Vec::new(),
            left: Left { ticks, steps_back, mishaps, releases },
            ledger: Ledger::default(),
            just: None,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        world.possible(self.fault, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = World { just: None, ..world.clone() };
        self.take(&mut next, action);
        next.workers.sort_unstable();
        next.late.sort_unstable();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::of(self.lost)
    }
}
