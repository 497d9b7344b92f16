//! SQLite passes the conformance suite.

use std::sync::Arc;

use oncegate_sqlite::{Options, SqliteStore};
use oncegate_store::ManualClock;
use oncegate_store::conformance::World;

async fn sqlite(clock: Arc<ManualClock>) -> World {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options { clock: clock.clone(), ..Options::default() };
    let store = SqliteStore::open(folder.path().join("new/oncegate.db"), options).expect("opens");
    World { store: Arc::new(store), clock, keep: Box::new(folder) }
}

oncegate_store::suite!(sqlite, rounds = 10_000);
