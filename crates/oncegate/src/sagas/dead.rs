//! Dead letters: events that could not be applied, with the reason. No event is lost: a person retries or discards it.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::{Time, WorkspaceName};
use oncegate_saga::{Definition, Event};
use oncegate_store::{At, Change, Commit, Listing, Place, Record, StoreError};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::apply::{Also, Arrival, retirement};
use super::query::{is_name, legible};
use super::record::{bytes, inbox_key, list_of, read};
use super::{Handled, Outcome, Sagas};
use crate::document::{self, Page};

/// The kind of the records of dead letters.
pub const LETTER: &str = "dead_letter";
/// How long a settled dead letter is kept.
const SETTLED_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// The state of a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LetterState {
    /// It waits for a person to retry or discard it.
    Open,
    /// A person has retried it, and the event was applied or changes nothing.
    Retried,
    /// A person has discarded it.
    Discarded,
}

impl LetterState {
    /// All states.
    pub const ALL: [LetterState; 3] = [LetterState::Open, LetterState::Retried, LetterState::Discarded];

    /// The name of the state, as the API shows it and the stores write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            LetterState::Open => "open",
            LetterState::Retried => "retried",
            LetterState::Discarded => "discarded",
        }
    }

    /// The state with this name; `None` if no state has it.
    pub fn parse(name: &str) -> Option<LetterState> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

/// An event that could not be applied, or input that is not an event.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeadLetter {
    /// The id of the dead letter.
    #[serde(skip)]
    pub id: Uuid,
    /// The saga that could not apply the event; `None` if no saga knows the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saga: Option<String>,
    /// The correlation id of the event, if it was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// The state of the instance when the event came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Why the event could not be applied the last time, for people.
    pub reason: String,
    /// The event; `None` if the input is not an event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Event>,
    /// The input, unchanged, if it is not an event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<String>,
    /// When the event became a dead letter.
    pub at_us: i64,
    /// How many retries failed.
    #[serde(default)]
    pub retries: u32,
    /// When it was last settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    settled_us: Option<i64>,
    /// Whether the dead letter is open, retried or discarded.
    pub standing: LetterState,
    /// The name of its record. A second delivery of the same event finds the dead letter by this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

/// Why a dead letter was not retried, or not discarded.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotRetried {
    /// There is no dead letter with this id in the workspace.
    #[error("there is no such dead letter")]
    Missing,
    /// The dead letter is settled already. This is the name of its state.
    #[error("it is {0} already")]
    Settled(&'static str),
    /// The input is not an event, so no saga can apply it.
    #[error("it is not an event, and cannot be retried; the input is in `raw`")]
    NoEvent,
    /// The store returned an error. The dead letter may be unchanged.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl DeadLetter {
    fn read(record: &Record) -> Result<DeadLetter, StoreError> {
        Ok(DeadLetter { id: record.id, ..read(record)? })
    }

    fn record(&self, workspace: &WorkspaceName, version: i64) -> Record {
        let state = Some(self.standing.as_str().to_owned());
        Record {
            workspace: workspace.clone(),
            kind: LETTER,
            id: self.id,
            version,
            state,
            expires_at: None,
            body: bytes(self),
        }
    }

    fn lists(&self) -> Vec<String> {
        self.saga.iter().map(list_of).collect()
    }

    fn place(workspace: &WorkspaceName, id: Uuid) -> Place {
        Place { workspace: workspace.clone(), kind: LETTER, at: At::Id(id) }
    }
}

/// Settles a dead letter. The record is kept for a while, so that people find it.
pub(super) fn settled(letter: &Record, standing: LetterState, now: Time) -> Result<Vec<Change>, StoreError> {
    let settled = DeadLetter { standing, settled_us: Some(now.micros()), ..DeadLetter::read(letter)? };
    let replaced = Change::replace(settled.record(&letter.workspace, letter.version + 1));
    let retired = retirement(&letter.workspace, letter.id, now + SETTLED_FOR, now);
    Ok(vec![replaced, Change::Enqueue(retired)])
}

impl Sagas {
    /// Keeps an event that no saga accepts.
    pub(super) async fn handle_unknown(&self, workspace: &WorkspaceName, event: &Event) -> Result<Handled, StoreError> {
        let reason = format!("no saga knows the event {}", event.event_type);
        self.bury_without_instance(workspace, None, event, Also::Nothing, reason).await
    }

    /// Keeps input that is not an event, unchanged.
    pub async fn bury_raw(
        &self,
        workspace: &WorkspaceName,
        raw: String,
        reason: String,
    ) -> Result<Handled, StoreError> {
        // A second delivery of the same input gives the same dead letter.
        let name = Some(inbox_key(workspace, "", "raw", None, &raw).id.to_string());
        let letter = DeadLetter { raw: Some(raw), name, ..new_letter(reason.clone()) };
        let outcome = self.bury_new(workspace, letter, Also::Nothing, reason).await?;
        Ok(Handled { saga: None, correlation_id: None, outcome, state: None, conflicts: 0 })
    }

    pub(super) async fn bury_without_instance(
        &self,
        workspace: &WorkspaceName,
        definition: Option<&Arc<Definition>>,
        event: &Event,
        also: Also<'_>,
        reason: String,
    ) -> Result<Handled, StoreError> {
        let saga = definition.map(|definition| definition.name().to_owned());
        let handled =
            |outcome| Handled { saga: saga.clone(), correlation_id: None, outcome, state: None, conflicts: 0 };
        if let Also::DeadLetter(letter) = also {
            let id = self.still_dead(letter, &reason).await?;
            return Ok(handled(Outcome::DeadLetter { id, reason }));
        }
        let name = event.id.as_ref().map(|id| {
            inbox_key(workspace, saga.as_deref().unwrap_or_default(), "", event.source.as_deref(), id).id.to_string()
        });
        let letter = DeadLetter { saga: saga.clone(), event: Some(event.clone()), name, ..new_letter(reason.clone()) };
        let outcome = self.bury_new(workspace, letter, also, reason).await?;
        Ok(handled(outcome))
    }

    /// The id of the dead letter. `None` if another writer was first.
    pub(super) async fn write_letter(
        &self,
        arrival: &Arrival<'_>,
        state: Option<String>,
        reason: &str,
        now: Time,
    ) -> Result<Option<Uuid>, StoreError> {
        let Arrival { workspace, definition, correlation_id, event, also, .. } = arrival;
        if let Also::DeadLetter(letter) = also {
            return self.still_dead(letter, reason).await.map(Some);
        }
        let name = event.id.as_ref().map(|id| {
            inbox_key(workspace, definition.name(), correlation_id, event.source.as_deref(), id).id.to_string()
        });
        let letter = DeadLetter {
            saga: Some(definition.name().to_owned()),
            correlation_id: Some(correlation_id.clone()),
            state,
            event: Some(Event::clone(event)),
            at_us: now.micros(),
            name,
            ..new_letter(reason.to_owned())
        };
        self.create_letter(workspace, &letter, also.changes(now)?).await
    }

    async fn bury_new(
        &self,
        workspace: &WorkspaceName,
        letter: DeadLetter,
        also: Also<'_>,
        reason: String,
    ) -> Result<Outcome, StoreError> {
        let now = self.now().await?;
        let letter = DeadLetter { at_us: now.micros(), ..letter };
        match self.create_letter(workspace, &letter, also.changes(now)?).await? {
            Some(id) => Ok(Outcome::DeadLetter { id, reason }),
            None => Err(StoreError::Unavailable("another writer was faster; try again".into())),
        }
    }

    /// Creates a dead letter. A second delivery of the same event gives the same dead letter.
    async fn create_letter(
        &self,
        workspace: &WorkspaceName,
        letter: &DeadLetter,
        also: Vec<Change>,
    ) -> Result<Option<Uuid>, StoreError> {
        let names: Vec<String> = letter.name.iter().cloned().collect();
        let place =
            names.first().map(|name| Place { workspace: workspace.clone(), kind: LETTER, at: At::Name(name.clone()) });
        let created = Change::Create { record: letter.record(workspace, 1), names, lists: letter.lists() };
        let changes = std::iter::once(created).chain(also.iter().cloned()).collect();
        if self.store.commit(Commit { ops: vec![], changes }).await?.is_written() {
            return Ok(Some(letter.id));
        }
        let Some(place) = place else { return Ok(None) };
        let Some(there) = self.store.find(&[place]).await?.value.remove(0) else { return Ok(None) };
        let mut changes = also;
        if DeadLetter::read(&there)?.standing != LetterState::Open {
            // The dead letter was settled before, and is opened again.
            let again = DeadLetter { id: there.id, ..letter.clone() };
            changes.push(Change::replace(again.record(workspace, there.version + 1)));
        }
        let is_over = changes.is_empty() || self.store.commit(Commit { ops: vec![], changes }).await?.is_written();
        Ok(is_over.then_some(there.id))
    }

    async fn still_dead(&self, letter: &Record, reason: &str) -> Result<Uuid, StoreError> {
        let read = DeadLetter::read(letter)?;
        let again = DeadLetter { reason: reason.to_owned(), retries: read.retries + 1, ..read };
        // If another retry has failed at the same time, its record is as good as this one.
        let change = Change::replace(again.record(&letter.workspace, letter.version + 1));
        self.store.commit(Commit { ops: vec![], changes: vec![change] }).await?;
        Ok(letter.id)
    }

    /// The dead letter with this id; `None` if the workspace has none.
    pub async fn dead_letter(&self, workspace: &WorkspaceName, id: Uuid) -> Result<Option<DeadLetter>, StoreError> {
        let found = self.store.find(&[DeadLetter::place(workspace, id)]).await?.value.remove(0);
        found.map(|record| DeadLetter::read(&record)).transpose()
    }

    /// Lists the dead letters, newest first.
    pub async fn dead_letters(
        &self,
        workspace: &WorkspaceName,
        saga: Option<&str>,
        standing: Option<LetterState>,
        limit: usize,
        before: Option<Uuid>,
    ) -> Result<Page<DeadLetter>, StoreError> {
        if !saga.is_none_or(is_name) {
            return Ok(Page { items: vec![], next: None });
        }
        let listing = Listing {
            workspace: workspace.clone(),
            kind: LETTER,
            list: saga.map(list_of),
            state: standing.map(|standing| standing.as_str().to_owned()),
            limit,
            before,
        };
        document::page(limit, before, |limit, before| {
            document::batch(&*self.store, Listing { limit, before, ..listing.clone() }, |record| {
                Ok(legible(DeadLetter::read(&record)))
            })
        })
        .await
    }

    /// Counts the open dead letters, up to `limit`.
    pub async fn count_dead_letters(&self, workspace: &WorkspaceName, limit: usize) -> Result<usize, StoreError> {
        let (workspace, state) = (workspace.clone(), Some(LetterState::Open.as_str().to_owned()));
        self.store.count(Listing { workspace, kind: LETTER, list: None, state, limit, before: None }).await
    }

    /// Applies the event now, and settles the dead letter in the same commit.
    pub async fn retry_dead_letter(&self, workspace: &WorkspaceName, id: Uuid) -> Result<Handled, NotRetried> {
        loop {
            let (record, letter) = self.open_letter(workspace, id).await?;
            let mut event = letter.event.ok_or(NotRetried::NoEvent)?;
            // Every retry uses the same event id.
            event.id.get_or_insert_with(|| format!("dead letter {id}"));
            let event = Arc::new(event);
            let definitions: Vec<&Arc<Definition>> = match &letter.saga {
                Some(saga) => self.definition(saga).into_iter().collect(),
                None => self.by_event.get(&event.event_type).into_iter().flatten().collect(),
            };
            let Some((last, others)) = definitions.split_last() else {
                let reason = match &letter.saga {
                    Some(saga) => format!("there is no saga {saga} here"),
                    None => format!("no saga knows the event {}", event.event_type),
                };
                let id = self.still_dead(&record, &reason).await?;
                let outcome = Outcome::DeadLetter { id, reason };
                return Ok(Handled { saga: letter.saga, correlation_id: None, outcome, state: None, conflicts: 0 });
            };
            for definition in others {
                self.handle_shared_in(workspace, definition, &event).await?;
            }
            // If another person was first, the dead letter is settled, or its retry has failed.
            if let Some(handled) = self.apply(workspace, last, &event, Also::DeadLetter(&record)).await? {
                return Ok(handled);
            }
        }
    }

    /// Discards a dead letter, so that it is not retried.
    pub async fn discard_dead_letter(&self, workspace: &WorkspaceName, id: Uuid) -> Result<DeadLetter, NotRetried> {
        loop {
            let (record, letter) = self.open_letter(workspace, id).await?;
            let changes = settled(&record, LetterState::Discarded, self.now().await?)?;
            // If it is not written, another person has settled it, or a retry has failed.
            if self.store.commit(Commit { ops: vec![], changes }).await?.is_written() {
                return Ok(DeadLetter { standing: LetterState::Discarded, ..letter });
            }
        }
    }

    async fn open_letter(&self, workspace: &WorkspaceName, id: Uuid) -> Result<(Record, DeadLetter), NotRetried> {
        let found = self.store.find(&[DeadLetter::place(workspace, id)]).await?.value.remove(0);
        let record = found.ok_or(NotRetried::Missing)?;
        let letter = DeadLetter::read(&record)?;
        match letter.standing {
            LetterState::Open => Ok((record, letter)),
            settled => Err(NotRetried::Settled(settled.as_str())),
        }
    }

    pub(super) async fn remove_letter(&self, record: Record, now: Time) -> Result<(), StoreError> {
        let letter = DeadLetter::read(&record)?;
        let is_over = |settled_us: i64| now >= Time::from_micros(settled_us) + SETTLED_FOR;
        if letter.standing == LetterState::Open || !letter.settled_us.is_some_and(is_over) {
            // The event has come again since, so the dead letter is kept.
            return Ok(());
        }
        let (names, lists) = (letter.name.iter().cloned().collect(), letter.lists());
        let change = Change::Remove { record, names, lists };
        self.store.commit(Commit { ops: vec![], changes: vec![change] }).await.map(drop)
    }
}

fn new_letter(reason: String) -> DeadLetter {
    DeadLetter {
        id: Uuid::now_v7(),
        saga: None,
        correlation_id: None,
        state: None,
        reason,
        event: None,
        raw: None,
        at_us: 0,
        retries: 0,
        settled_us: None,
        standing: LetterState::Open,
        name: None,
    }
}
