//! The in-memory model passes the conformance suite.

use std::sync::Arc;

use oncegate_store::conformance::World;
use oncegate_store::{ManualClock, MemoryStore};

async fn memory(clock: Arc<ManualClock>) -> World {
    World { store: Arc::new(MemoryStore::with_clock(clock.clone())), clock, keep: Box::new(()) }
}

oncegate_store::suite!(memory, rounds = 10_000);
