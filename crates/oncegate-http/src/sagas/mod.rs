//! Sagas in the server: definitions from files, events from HTTP and brokers, timers and removals from the queue.
//!
//! The library (`oncegate::sagas`) defines what an event does. This module passes events to the library, and logs the
//! outcomes.

mod run;
mod tell;
mod view;

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use futures::future::try_join_all;
use oncegate::actions::Schedule;
use oncegate::sagas as library;
use oncegate::sagas::{DeadLetter, Defects, Definition, Draft, Event, Handled, NotRetried, Options, RETIRE, TIMER};
use oncegate::store::MainStore;
use oncegate::{Ledger, StoreError, WorkspaceName};
use tokio::sync::Semaphore;
use uuid::Uuid;

pub use tell::{COUNTER, handled as tell};
pub use view::{DeadLetterView, HandledView, InstanceView};

use crate::audit::{Act, Audit, By, Receipt};
use crate::observe;
use oncegate::worker::Queue;
use oncegate_config::{self as config, Config};
use oncegate_process::crash;
use oncegate_process::failure::Failure;
use oncegate_process::output::say;
use oncegate_transports::trace;

/// Runs sagas with the workers of actions.
pub struct Sagas {
    pub sagas: library::Sagas,
    store: Arc<dyn MainStore>,
    queue: Arc<Queue>,
}

/// Why a definition cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum NotLoaded {
    #[error("{0} cannot be read: {1}")]
    File(String, std::io::Error),
    #[error(transparent)]
    Defects(#[from] Defects),
    #[error("{0}: another file has a saga {1:?} already")]
    Twice(String, String),
}

/// Loads the definition in a file.
pub fn load(file: &Path) -> Result<Definition, NotLoaded> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|error| NotLoaded::File(name.clone(), error))?;
    Ok(Draft::read(&name, &text)?.check()?)
}

/// Loads all definitions that the configuration names.
pub fn load_all(config: &config::Sagas) -> Result<Vec<Definition>, NotLoaded> {
    let mut definitions: Vec<Definition> = vec![];
    for file in &config.files {
        let definition = load(file)?;
        if definitions.iter().any(|other| other.name() == definition.name()) {
            return Err(NotLoaded::Twice(file.display().to_string(), definition.name().to_owned()));
        }
        definitions.push(definition);
    }
    Ok(definitions)
}

/// The library's `Sagas`, with the options from the configuration.
pub fn engine(config: &Config, store: Arc<dyn MainStore>, ledger: Arc<Ledger>) -> Result<library::Sagas, NotLoaded> {
    let actions = config.actions.clone();
    let commands = move |command: Schedule| {
        let of_type = actions.of_type(command.action_type());
        let (tries, delivery) = (of_type.max_attempts, of_type.delivery);
        command.tries(tries).delivery(delivery)
    };
    let options = Options {
        retries: config.sagas.retries.clone(),
        replica: observe::replica(),
        store_parts: config.privacy.store_parts,
        steps: config.limits.saga_steps,
        out_of_steps: Arc::new(|workspace| observe::limited(Some(workspace), "saga_steps")),
        commands: Box::new(commands),
    };
    Ok(library::Sagas::over(store, ledger, load_all(&config.sagas)?, options)
        .expect("`load_all` refuses a name that is taken"))
}

impl Sagas {
    pub fn new(sagas: library::Sagas, store: Arc<dyn MainStore>, queue: Arc<Queue>) -> Arc<Sagas> {
        Arc::new(Sagas { sagas, store, queue })
    }

    /// Starts to handle timers and removals.
    pub fn start(self: &Arc<Sagas>) {
        // Dead letters are removed even if there is no saga.
        let mut kinds = vec![RETIRE.to_owned()];
        if !self.sagas.definitions().is_empty() {
            kinds.push(TIMER.to_owned());
        }
        tokio::spawn(self.queue.clone().keep_leasing(kinds, self.clone()));
    }

    /// Applies events; events about one instance are applied in their order. Each event waits for a permit of its
    /// workspace. Returns the outcome of each event in each saga that handles it.
    pub async fn handle(
        &self,
        workspace: &WorkspaceName,
        events: &[Arc<Event>],
        turns: &Semaphore,
    ) -> Result<Vec<Vec<Handled>>, StoreError> {
        crash::point("saga.received").await;
        let handled = try_join_all(events.iter().map(async |event| {
            let _turn = turns.acquire().await.expect("never closed");
            let about = &[("oncegate.event.type", &event.event_type as _)];
            let handled =
                trace::work("apply event", workspace, about, self.sagas.handle_shared(workspace, event)).await?;
            handled.iter().for_each(|handled| tell::handled(workspace, &event.event_type, handled));
            Ok::<_, StoreError>(handled)
        }));
        let handled = handled.await?;
        crash::point("saga.committed").await;
        Ok(handled)
    }

    /// Keeps a message that is not an event as a dead letter.
    pub async fn bury_raw(&self, workspace: &WorkspaceName, raw: String, why: String) -> Result<Handled, StoreError> {
        let handled = self.sagas.bury_raw(workspace, raw, why).await?;
        tell::handled(workspace, "(no event)", &handled);
        Ok(handled)
    }

    /// Applies a dead letter's event again, on a person's request.
    pub async fn retry(
        &self,
        audit: &Audit,
        workspace: &WorkspaceName,
        id: Uuid,
        by: &By,
        why: Option<&str>,
    ) -> Result<Handled, NotRetried> {
        let act = Act::new("audit.dead_letter_retried", workspace, ("dead letter", id), by, why);
        let (handled, Receipt { seq, hash }) = audit.act(act, self.sagas.retry_dead_letter(workspace, id)).await?;
        tell::handled(workspace, "(dead letter)", &handled);
        let by = &by.id;
        // Logged as a warning, so that no usual log level hides it.
        tracing::warn!(event = "audit.dead_letter_retried", %workspace, deadLetterId = %id, by, why, auditSeq = seq, auditHash = hash);
        Ok(handled)
    }

    pub async fn discard(
        &self,
        audit: &Audit,
        workspace: &WorkspaceName,
        id: Uuid,
        by: &By,
        why: Option<&str>,
    ) -> Result<DeadLetter, NotRetried> {
        let act = Act::new("audit.dead_letter_discarded", workspace, ("dead letter", id), by, why);
        let (letter, Receipt { seq, hash }) = audit.act(act, self.sagas.discard_dead_letter(workspace, id)).await?;
        let by = &by.id;
        tracing::warn!(event = "audit.dead_letter_discarded", %workspace, deadLetterId = %id, by, why, auditSeq = seq, auditHash = hash);
        Ok(letter)
    }

    /// Applies events in one saga only.
    pub async fn handle_in(
        &self,
        workspace: &WorkspaceName,
        definition: &Arc<Definition>,
        events: &[Event],
        turns: &Semaphore,
    ) -> Result<Vec<Handled>, StoreError> {
        crash::point("saga.received").await;
        let handled = try_join_all(events.iter().map(async |event| {
            let _turn = turns.acquire().await.expect("never closed");
            let applying = self.sagas.handle_in(workspace, definition, event);
            let about = &[("oncegate.event.type", &event.event_type as _)];
            let handled = trace::work("apply event", workspace, about, applying).await?;
            tell::handled(workspace, &event.event_type, &handled);
            Ok::<_, StoreError>(handled)
        }));
        let handled = handled.await?;
        crash::point("saga.committed").await;
        Ok(handled)
    }
}

/// Lists each defect of a definition separately.
pub fn not_loaded(error: NotLoaded) -> Failure {
    match error {
        NotLoaded::Defects(Defects(defects)) => {
            let (last, others) = defects.split_last().expect("a failure has a reason");
            for defect in others {
                say(format_args!("oncegate: {defect}"));
            }
            Failure::new(last.to_string()).hint(format!("oncegate saga check {}", last.file))
        }
        NotLoaded::File(_, ref why) if why.kind() == ErrorKind::NotFound => {
            Failure::not_found(error.to_string()).hint("a file is named on the command line, or under [sagas] files")
        }
        error => Failure::new(error.to_string()).hint("a saga is a TOML file; each has a name of its own"),
    }
}
