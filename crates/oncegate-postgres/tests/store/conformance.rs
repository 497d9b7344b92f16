//! PostgreSQL passes the suite that every store passes.

use std::sync::Arc;

use oncegate_store::ManualClock;
use oncegate_store::conformance::World;

use crate::support::Schema;

async fn postgres(clock: Arc<ManualClock>) -> World {
    let schema = Schema::create().await;
    let store = Arc::new(schema.open(Some(clock.clone())).await);
    World { store, clock, keep: Box::new(schema) }
}

oncegate_store::suite!(
    #[ignore = "needs PostgreSQL: run make test"]
    postgres,
    rounds = 1_000
);
