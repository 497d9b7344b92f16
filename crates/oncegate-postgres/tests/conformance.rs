//! PostgreSQL passes the suite that every store passes.

mod support;

use std::sync::Arc;

use oncegate_store::ManualClock;
use oncegate_store::conformance::World;

async fn postgres(clock: Arc<ManualClock>) -> World {
    let schema = support::Schema::create().await;
    let store = Arc::new(schema.open(Some(clock.clone())).await);
    World { store, clock, keep: Box::new(schema) }
}

oncegate_store::suite!(
    #[ignore = "needs PostgreSQL: run make test"]
    postgres,
    rounds = 1_000
);
