//! Sagas over a store: an event finds its instance, and all its changes are one commit.
//!
//! [`Definition::step`], which is pure, decides what an event does. One commit writes the result:
//! - the instance, onto the version that was read, or as a new record;
//! - the event's id in the inbox, as a claim that is settled as it is made;
//! - the event's line in the history;
//! - the commands and timers, as jobs of the queue.
//!
//! If any part conflicts, nothing is written and nothing is sent. The event is then applied again to the current instance.
//! Only such a conflict is retried.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use oncegate::Gate;
//! use oncegate::sagas::{Draft, Effects, Event, Options};
//! use serde_json::json;
//!
//! let door = Draft::new("door")
//!     .correlation("event.data.doorId")
//!     .events(["Opened", "Closed"])
//!     .states(["Open", "Shut"])
//!     .terminal(["Shut"])
//!     .on("none", "Opened", Effects::default().send("Ring", &[("door", "event.data.doorId")]).to("Open"))
//!     .on("Open", "Closed", Effects::default().to("Shut"))
//!     .ignore("Open", "Opened")
//!     .ignore("Shut", "*")
//!     .unexpected("none", "Closed")
//!     .check()?;
//! let gate = Gate::open("memory:").await?; // or sqlite:FILE, postgres://…
//! let sagas = gate.sagas([door], Options::default())?;
//!
//! let opened = Event::new("Opened", json!({ "doorId": "7" })).id("1");
//! let first = sagas.handle(&opened).await?;
//! let again = sagas.handle(&opened).await?;
//! assert_eq!((first[0].outcome.as_str(), first[0].state.as_deref()), ("applied", Some("Open")));
//! assert_eq!((again[0].outcome.as_str(), again[0].state.as_deref()), ("duplicate", Some("Open")));
//! # Ok(())
//! # }
//! ```
//!
//! Commands are actions, and timers are jobs: a [`Gate::worker`](crate::Gate::worker) or a server on the same store runs them.

mod apply;
mod dead;
mod evaluate;
mod keyed_lock;
mod query;
mod record;
mod retire;
mod timer;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures::future::try_join_all;
use oncegate_core::{GuardName, Time, WorkspaceName};
use oncegate_saga::Steps;
use oncegate_store::{MainStore, StoreError};
use uuid::Uuid;

pub use dead::{DeadLetter, LetterState, NotRetried};
pub use oncegate_saga::{
    Cell, DATA_BYTES_MAX, Defect, Defects, Definition, Draft, Effects, Event, FieldKind, Instance, NONE, Notification,
    PICTURE_STYLE, Picture, STEPS_DEFAULT,
};
pub use query::{Found, LineSeen, Page};
pub use record::{Line, Sent};
pub use timer::Fired;

use crate::actions::Schedule;
use crate::ledger::Ledger;
use crate::scoped::Scoped;
use evaluate::Evaluations;
use keyed_lock::KeyedLocks;

/// The guard of the inbox. No other part of the system makes claims under it.
pub static GUARD: LazyLock<GuardName> = LazyLock::new(|| GuardName::new("saga").expect("a good name"));

/// The kind of the jobs that are timers.
pub const TIMER: &str = "saga:timer";
/// The kind of the jobs that remove data which has been kept for long enough.
pub const RETIRE: &str = "saga:retire";

/// The default pauses after conflicts.
pub const RETRIES: [Duration; 3] = [Duration::from_millis(100), Duration::from_millis(200), Duration::from_millis(500)];

/// Runs sagas. Cheap to clone.
#[derive(Clone)]
pub struct Sagas {
    pub(crate) store: Arc<dyn MainStore>,
    ledger: Arc<Ledger>,
    definitions: Arc<Vec<Arc<Definition>>>,
    by_event: Arc<HashMap<String, Vec<Arc<Definition>>>>,
    options: Arc<Options>,
    locks: Arc<KeyedLocks>,
    evaluations: Arc<Evaluations>,
}

/// Two definitions have this name. They would share their instances.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("two sagas are called {0}")]
pub struct NameTaken(pub String);

/// How sagas are run.
pub struct Options {
    /// The pause after each conflict. The last pause repeats, up to the limit of conflicts.
    pub retries: Vec<Duration>,
    /// The name of this replica in the lines of the history.
    pub replica: String,
    /// Whether the parts of the inbox's keys are also stored with its claims.
    pub store_parts: bool,
    /// How many steps the expressions of one event may take. An event that exceeds them becomes a dead letter.
    pub steps: u64,
    /// Called with each workspace whose event exceeds `steps`.
    pub out_of_steps: Arc<dyn Fn(&WorkspaceName) + Send + Sync>,
    /// Sets how commands are delivered.
    pub commands: Box<dyn Fn(Schedule) -> Schedule + Send + Sync>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            retries: RETRIES.into(),
            replica: String::new(),
            store_parts: false,
            steps: STEPS_DEFAULT,
            out_of_steps: Arc::new(|_| ()),
            commands: Box::new(|command| command),
        }
    }
}

/// The result of an event in one saga.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handled {
    /// `None` if no saga knows the event.
    pub saga: Option<String>,
    /// `None` if the event has no correlation id that can be found.
    pub correlation_id: Option<String>,
    /// What the event did.
    pub outcome: Outcome,
    /// The state of the instance, if there is one.
    pub state: Option<String>,
    /// How often another writer was first.
    pub conflicts: u32,
}

/// What an event did to its instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The event was applied. `missing` names the required data that the instance still lacks.
    Applied {
        /// The names of that data.
        missing: Vec<String>,
    },
    /// The event changes nothing in this state.
    Ignored,
    /// The event was applied before.
    Duplicate,
    /// The event could not be applied. It is kept as a dead letter, under this id and for this reason.
    DeadLetter {
        /// The id of the dead letter.
        id: Uuid,
        /// Why the event could not be applied, for people.
        reason: String,
    },
}

impl Outcome {
    /// The name of the outcome, as the API shows it.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Outcome::Applied { .. } => "applied",
            Outcome::Ignored => "ignored",
            Outcome::Duplicate => "duplicate",
            Outcome::DeadLetter { .. } => "dead_letter",
        }
    }
}

impl Sagas {
    /// Makes the sagas of `store`. The `ledger` must use the same store.
    pub fn over(
        store: Arc<dyn MainStore>,
        ledger: Arc<Ledger>,
        definitions: impl IntoIterator<Item = Definition>,
        options: Options,
    ) -> Result<Sagas, NameTaken> {
        let definitions: Vec<Arc<Definition>> = definitions.into_iter().map(Arc::new).collect();
        for (i, definition) in definitions.iter().enumerate() {
            if definitions[..i].iter().any(|before| before.name() == definition.name()) {
                return Err(NameTaken(definition.name().to_owned()));
            }
        }
        let mut by_event: HashMap<String, Vec<Arc<Definition>>> = HashMap::new();
        for definition in &definitions {
            for event in definition.events() {
                by_event.entry(event.clone()).or_default().push(definition.clone());
            }
        }
        Ok(Sagas {
            store,
            ledger,
            definitions: Arc::new(definitions),
            by_event: Arc::new(by_event),
            evaluations: Arc::new(Evaluations::new(options.steps, options.out_of_steps.clone())),
            options: Arc::new(options),
            locks: Arc::default(),
        })
    }

    /// The store's time.
    async fn now(&self) -> Result<Time, StoreError> {
        self.store.now().await
    }

    /// All definitions, in the order in which they were given.
    pub fn definitions(&self) -> &[Arc<Definition>] {
        &self.definitions
    }

    /// The definition with this name; `None` if there is none.
    pub fn definition(&self, name: &str) -> Option<&Arc<Definition>> {
        self.definitions.iter().find(|definition| definition.name() == name)
    }

    /// Applies an event in each saga that knows it. An event that no saga knows becomes a dead letter.
    pub async fn handle(&self, workspace: &WorkspaceName, event: &Event) -> Result<Vec<Handled>, StoreError> {
        self.handle_shared(workspace, &Arc::new(event.clone())).await
    }

    /// Like [`Sagas::handle`], without a copy of the event.
    pub async fn handle_shared(
        &self,
        workspace: &WorkspaceName,
        event: &Arc<Event>,
    ) -> Result<Vec<Handled>, StoreError> {
        let Some(definitions) = self.by_event.get(&event.event_type) else {
            return Ok(vec![self.handle_unknown(workspace, event).await?]);
        };
        // All sagas queue the event now, so that the events of one instance keep their order in each saga.
        try_join_all(definitions.iter().map(|definition| self.handle_shared_in(workspace, definition, event))).await
    }

    /// Turns the records of a notification into events, or says why a record gives none. All records share the steps of one event.
    pub async fn events_of(
        &self,
        workspace: &WorkspaceName,
        definition: &Arc<Definition>,
        notification: Notification,
    ) -> Result<Vec<Result<Option<Event>, String>>, StoreError> {
        let (definition, now) = (definition.clone(), self.now().await?);
        let events = move |steps: &Steps| {
            notification.records.iter().map(|record| definition.event_of_within(record, now, steps)).collect()
        };
        Ok(self.evaluations.run(workspace, false, events).await)
    }

    /// Applies an event in one saga.
    pub async fn handle_in(
        &self,
        workspace: &WorkspaceName,
        definition: &Arc<Definition>,
        event: &Event,
    ) -> Result<Handled, StoreError> {
        self.handle_shared_in(workspace, definition, &Arc::new(event.clone())).await
    }

    async fn handle_shared_in(
        &self,
        workspace: &WorkspaceName,
        definition: &Arc<Definition>,
        event: &Arc<Event>,
    ) -> Result<Handled, StoreError> {
        let handled = self.apply(workspace, definition, event, apply::Also::Nothing).await?;
        Ok(handled.expect("what comes from nowhere is nobody else's"))
    }
}

/// The operations that need no workspace.
impl Scoped<Sagas> {
    /// See [`Sagas::handle`].
    pub async fn handle(&self, event: &Event) -> Result<Vec<Handled>, StoreError> {
        self.policy().handle(self.workspace(), event).await
    }

    /// See [`Sagas::find`].
    pub async fn find(&self, saga: &str, correlation_id: &str) -> Result<Option<Found>, StoreError> {
        self.policy().find(self.workspace(), saga, correlation_id).await
    }

    /// See [`Sagas::history`].
    pub async fn history(&self, found: &Found, limit: usize) -> Result<(Vec<LineSeen>, bool), StoreError> {
        self.policy().history(self.workspace(), found, limit).await
    }
}

impl std::fmt::Debug for Sagas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.definitions.iter().map(|definition| definition.name()).collect();
        f.debug_struct("Sagas").field("definitions", &names).finish_non_exhaustive()
    }
}
