//! One key, several workers, and everything that can go wrong between them.
//!
//! [`ClaimModel`] promises, over every order of events within its [`Bounds`]:
//! one live owner, tokens that grow, one outcome for a window, stale writes that
//! change nothing, and under [`Lost::Hold`] an effect started at most once in a
//! window. With a [`Fault`] built into the store those promises break, which is
//! how we know that the checker would notice.

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

/// How far the checker goes. Each bound ends one way in which the world could go on for good.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How often the clock moves on.
    pub ticks: u8,
    /// How often the clock steps back.
    pub steps_back: u8,
    /// Crashes, lost answers and requests given up on while under way, in all.
    pub mishaps: u8,
    /// How often an owner gives the key back. Each time the next token can run further ahead of the clock.
    pub releases: u8,
}

/// The model: whose workers these are, under which policy, on a store with which fault.
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
    /// In order of what they know and not of who they are: workers are alike, and so are
    /// worlds in which two of them have changed places.
    pub workers: Vec<Worker>,
    /// Letters that nobody waits for any more, and that may still arrive.
    pub late: Vec<Letter>,
    pub left: Left,
    pub ledger: Ledger,
    /// What the last step did, where that is worth noticing.
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
