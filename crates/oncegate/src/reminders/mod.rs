//! Reminders: set before send.
//!
//! One reminder for each booking and kind: a **claim** of guard `reminder`, settled as it is made, decides who makes it. Its **record** is what people see, and a **job**
//! of the queue sends it when its time comes, at most once. The flag `reminderSent` is set in one conditional write before the carrier is called ([`Reminders::flag`]);
//! who changes no row does not send, and nothing takes the flag back.
//!
//! So a crash between the flag and the call leaves a reminder that was not sent. It shows as [`State::Missed`], and a person can send it. The other way round, a crash
//! between the call and the flag, would send a second one, and that cannot be taken back.

mod look;
mod record;
mod verbs;
mod work;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use oncegate_core::{Command, GuardName, Lost, Policy, Terms, Time, WorkspaceName};
use oncegate_store::{At, Change, Commit, MainStore, Op, Reading, StoreError};
use serde_json::json;
use uuid::Uuid;

pub use look::{Filter, Page};
pub use record::{Kept, Reminder, Row, State, Text};
pub use verbs::{Edit, NotChanged};
pub use work::Worked;

use crate::ledger::Ledger;
use record::key_of;

/// The guard of reminders. Nobody else makes claims under it.
pub static GUARD: LazyLock<GuardName> = LazyLock::new(|| GuardName::new("reminder").expect("a good name"));

/// What their jobs are.
pub const JOB: &str = "reminder";

/// What a reminder's kind is that has none.
pub const DEFAULT_KIND: &str = "reminder";

/// The reminders of a store. Cheap to clone.
#[derive(Clone)]
pub struct Reminders {
    store: Arc<dyn MainStore>,
    ledger: Arc<Ledger>,
    options: Options,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// How long after its time a reminder may still be sent, and a try that surely reached nobody be repeated.
    pub grace: Duration,
    /// Whether booking and kind are kept with the claim, too.
    pub store_parts: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { grace: Duration::from_secs(600), store_parts: false }
    }
}

/// What is to be sent, and when.
#[derive(Clone, Debug)]
pub struct New {
    pub booking: String,
    pub kind: String,
    pub send_at: Time,
    pub text: Text,
}

/// Whether it was made, or was there already.
#[derive(Clone, Debug)]
pub enum Set {
    Made(Kept),
    Found(Kept),
    /// Its time is over, by more than the grace.
    TooLate,
}

impl Reminders {
    /// Over the store that the ledger is over, too.
    pub fn over(store: Arc<dyn MainStore>, ledger: Arc<Ledger>, options: Options) -> Reminders {
        Reminders { store, ledger, options }
    }

    /// Sets a reminder, unless there is one for this booking and kind.
    pub async fn set(&self, workspace: &WorkspaceName, new: &New) -> Result<Set, StoreError> {
        let key = key_of(workspace, &new.booking, &new.kind);
        // The same request again, however late, gets the one that is there.
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
        let kept = Kept { workspace: workspace.clone(), id: Uuid::now_v7(), version: 1, reminder };
        let op = Op { key: key.clone(), command: Command::Claim(self.terms(new, kept.id)) };
        let changes = vec![kept.created(), Change::Enqueue(kept.job(new.send_at, now))];
        let committed = self.ledger.commit(Commit { ops: vec![op], changes }).await?;
        if committed.is_written() {
            return Ok(Set::Made(kept));
        }
        // The claim is there; or a person has forgotten it, and the reminder's name is taken all the same.
        let found = self.find_at(workspace, At::Name(key.id.to_string())).await?;
        let lost = || StoreError::Refused(format!("the claim {} has lost its reminder", key.id));
        Ok(Set::Found(found.ok_or_else(lost)?))
    }

    fn terms(&self, new: &New, id: Uuid) -> Terms {
        Terms {
            window: Policy::FOR_GOOD,
            lease: Policy::DEFAULT_LEASE,
            lost: Lost::Hold,
            fingerprint: None,
            attributes: None,
            parts: self.options.store_parts.then(|| json!([new.booking, new.kind]).to_string()),
            outcome: Some(id.to_string().into()),
            replaces: None,
        }
    }
}
