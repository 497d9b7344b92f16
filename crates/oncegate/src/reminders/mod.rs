//! Reminders: the sent flag is set before the message is sent.
//!
//! There is one reminder for each booking and kind. A **claim** of guard `reminder`, settled as it is made, decides which
//! caller creates it. Its **record** is what people see. A **job** of the queue sends it when it is due, at most once.
//!
//! The worker sets the flag `reminderSent` in one conditional write before it calls the carrier ([`Reminders::flag`]). A
//! worker whose write changes no row does not send. The flag is never reset.
//!
//! So a crash between the flag and the call leaves a reminder that was not sent. It shows as [`State::Missed`], and a person
//! can send it. The opposite order would send a second message after a crash between the call and the flag, and a sent
//! message cannot be undone.

mod query;
mod record;
mod verbs;
mod work;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use oncegate_core::{Command, GuardName, Lost, Policy, Terms, Time, WorkspaceName};
use oncegate_store::{At, Change, Commit, MainStore, Op, Reading, StoreError};
use serde_json::json;
use uuid::Uuid;

pub use crate::document::Resolution;
pub use query::{Filter, Page};
pub use record::{Kept, Reminder, Row, State, Text};
pub use verbs::{Edit, NotChanged};
pub use work::Worked;

use crate::ledger::Ledger;
use crate::scoped::Scoped;
use record::key_of;

/// The guard of reminders. No other part of the system makes claims under it.
pub static GUARD: LazyLock<GuardName> = LazyLock::new(|| GuardName::new("reminder").expect("a good name"));

/// The kind of the jobs of reminders.
pub const JOB: &str = "reminder";

/// The kind of a reminder that names none.
pub const DEFAULT_KIND: &str = "reminder";

/// The reminders of a store. Cheap to clone.
#[derive(Clone)]
pub struct Reminders {
    pub(crate) store: Arc<dyn MainStore>,
    ledger: Arc<Ledger>,
    options: Options,
}

/// The settings of reminders.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long after its due time a reminder may still be sent, and a try that surely reached no recipient may be repeated.
    pub grace: Duration,
    /// Whether booking and kind are also stored with the claim.
    pub store_parts: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { grace: Duration::from_secs(600), store_parts: false }
    }
}

/// A new reminder: its text and its due time.
#[derive(Clone, Debug)]
pub struct New {
    /// The id of the booking.
    pub booking: String,
    /// The kind of the reminder. A booking has at most one reminder of each kind.
    pub kind: String,
    /// When the reminder is due.
    pub send_at: Time,
    /// The recipient and the message.
    pub text: Text,
}

/// The result of [`Reminders::set`]: the reminder was created, or existed already.
#[derive(Clone, Debug)]
pub enum Set {
    /// The reminder was created.
    Made(Kept),
    /// The booking has a reminder of this kind already. It is unchanged.
    Found(Kept),
    /// Its due time is past by more than the grace.
    TooLate,
}

impl Reminders {
    /// Makes the reminders of `store`. The `ledger` must use the same store.
    pub fn over(store: Arc<dyn MainStore>, ledger: Arc<Ledger>, options: Options) -> Reminders {
        Reminders { store, ledger, options }
    }

    /// Creates a reminder, unless there is one for this booking and kind.
    pub async fn set(&self, workspace: &WorkspaceName, new: &New) -> Result<Set, StoreError> {
        let key = key_of(workspace, &new.booking, &new.kind);
        // A repeated request, however late, gets the existing reminder.
        let Reading { value: claim, now } = self.ledger.read(&key).await?;
        if claim.is_none() && now > new.send_at + self.options.grace {
            return Ok(Set::TooLate);
        }
        let reminder = Reminder {
            booking: new.booking.clone(),
            kind: new.kind.clone(),
            send_at_us: new.send_at.micros(),
            text: new.text.clone(),
            state: State::Scheduled,
            flagged_us: None,
            grace_until_us: (new.send_at + self.options.grace).micros(),
            deliveries: vec![],
            sent_by: None,
            resolved: None,
            created_us: now.micros(),
            ended_us: None,
        };
        let kept = Kept::new(workspace, reminder);
        let op = Op { key: key.clone(), command: Command::Claim(self.terms(new, kept.id)) };
        let changes = vec![kept.created(), Change::Enqueue(kept.job(new.send_at, now))];
        let committed = self.ledger.commit(Commit { ops: vec![op], changes }).await?;
        if committed.is_written() {
            return Ok(Set::Made(kept));
        }
        // The claim exists. Or a person has removed the claim, but the name of the reminder is still taken.
        let found = self.find_at(workspace, At::Name(key.id.to_string())).await?;
        let lost = || StoreError::Refused(format!("the claim {} has lost its reminder", key.id));
        Ok(Set::Found(found.ok_or_else(lost)?))
    }

    fn terms(&self, new: &New, id: Uuid) -> Terms {
        Terms {
            parts: self.options.store_parts.then(|| json!([new.booking, new.kind]).to_string()),
            outcome: Some(id.to_string().into()),
            ..Terms::new(Policy::FOR_GOOD, Policy::DEFAULT_LEASE, Lost::Hold)
        }
    }
}

impl std::fmt::Debug for Reminders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reminders").finish_non_exhaustive()
    }
}

/// The operations that need no workspace.
impl Scoped<Reminders> {
    /// See [`Reminders::set`].
    pub async fn set(&self, new: &New) -> Result<Set, StoreError> {
        self.policy().set(self.workspace(), new).await
    }

    /// See [`Reminders::find`].
    pub async fn find(&self, id: Uuid) -> Result<Option<Kept>, StoreError> {
        self.policy().find(self.workspace(), id).await
    }

    /// See [`Reminders::list`].
    pub async fn list(&self, filter: &Filter) -> Result<Page, StoreError> {
        self.policy().list(self.workspace(), filter).await
    }

    /// See [`Reminders::cancel`].
    pub async fn cancel(&self, id: Uuid) -> Result<Kept, NotChanged> {
        self.policy().cancel(self.workspace(), id).await
    }
}
