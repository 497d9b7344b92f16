//! Reminders in the server: their jobs are run with the workers and channels of messages.
//!
//! What a reminder is, and when its flag is set, is the library's (`oncegate::reminders`).

mod events;
mod run;
mod view;

use std::sync::Arc;

use oncegate::Ledger;
use oncegate::reminders::{JOB, Options, Reminders};
use oncegate::store::MainStore;

pub use events::Event;
pub use view::ReminderView;

use crate::channels::Channels;
use crate::config::Config;
use crate::worker::Worker;

pub struct Desk {
    pub reminders: Reminders,
    pub channels: Arc<Channels>,
    store: Arc<dyn MainStore>,
    worker: Arc<Worker>,
}

/// As the configuration says.
pub fn options(config: &Config) -> Options {
    Options { grace: config.reminders.grace, store_parts: config.privacy.store_parts }
}

impl Desk {
    pub fn new(
        config: &Config,
        store: Arc<dyn MainStore>,
        ledger: Arc<Ledger>,
        channels: Arc<Channels>,
        worker: Arc<Worker>,
    ) -> Arc<Desk> {
        Arc::new(Desk { reminders: Reminders::over(store.clone(), ledger, options(config)), channels, store, worker })
    }

    /// Begins to send what is due.
    pub fn start(self: &Arc<Desk>) {
        tokio::spawn(self.worker.clone().keep_leasing(vec![JOB.to_owned()], self.clone()));
    }
}
