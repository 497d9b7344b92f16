//! Reminders in the server: their jobs run with the workers and channels of messages.
//!
//! The library (`oncegate::reminders`) defines what a reminder is and when its flag is set.

mod events;
mod view;

use std::sync::Arc;

use oncegate::reminders as library;
use oncegate::reminders::{JOB, Kept, Options, Resolution};
use oncegate::store::MainStore;
use oncegate::{Ledger, WorkspaceName};
use uuid::Uuid;

pub use events::Event;
pub use view::ReminderView;

use crate::audit::{self, Act, Audit, By, Receipt};
use crate::problem::Problem;
use crate::task::to_the_end;
use oncegate::worker::{Queue, ReminderJobs, Watcher};
use oncegate_config::Config;
use oncegate_transports::channels::Channels;

pub struct Reminders {
    pub reminders: library::Reminders,
    pub channels: Arc<Channels>,
    queue: Arc<Queue>,
}

/// The options from the configuration.
pub fn options(config: &Config) -> Options {
    Options { grace: config.reminders.grace, store_parts: config.privacy.store_parts }
}

impl Reminders {
    pub fn new(
        config: &Config,
        store: Arc<dyn MainStore>,
        ledger: Arc<Ledger>,
        channels: Arc<Channels>,
        queue: Arc<Queue>,
    ) -> Arc<Reminders> {
        Arc::new(Reminders { reminders: library::Reminders::over(store, ledger, options(config)), channels, queue })
    }

    /// Sends a missed reminder on a person's request, with the person and the reason in the log.
    pub async fn send_by_hand(
        self: Arc<Reminders>,
        audit: Arc<Audit>,
        workspace: WorkspaceName,
        id: Uuid,
        by: By,
        why: Option<String>,
    ) -> Result<Kept, Problem> {
        to_the_end(async move {
            let act = Act::new("audit.reminder_sent", &workspace, ("reminder", id), &by, why.as_deref());
            let (kept, Receipt { seq, hash }) =
                audit.act(act, async { Ok::<_, Problem>(self.reminders.send_missed(&workspace, id, &by.id).await?) }).await?;
            let by = by.id;
            // Logged as a warning, so that no usual log level hides it.
            tracing::warn!(event = "audit.reminder_sent", %workspace, reminderId = %id, by, why, auditSeq = seq, auditHash = hash);
            Ok(kept)
        })
        .await
    }

    /// Records a person's decision on a missed reminder, with the person and the reason in the log.
    pub async fn resolve_by_hand(
        self: Arc<Reminders>,
        audit: Arc<Audit>,
        workspace: WorkspaceName,
        id: Uuid,
        sent: bool,
        by: By,
        why: Option<String>,
    ) -> Result<Kept, Problem> {
        to_the_end(async move {
            let act = Act::new("audit.reminder_resolved", &workspace, ("reminder", id), &by, why.as_deref());
            let act = act.about("sent", sent);
            let resolution = Resolution { happened: sent, by: by.id.clone(), note: why.clone() };
            let resolve = self.reminders.resolve(&workspace, id, &resolution);
            let (kept, receipt) = audit.act(act.clone(), async { Ok::<_, Problem>(resolve.await?) }).await?;
            if kept.document.resolved.as_ref().is_some_and(|said| said.is_by(&by.id, why.as_deref())) {
                let (by, Receipt { seq, hash }) = (by.id, receipt);
                tracing::warn!(event = "audit.reminder_resolved", %workspace, reminderId = %id, sent, by, why, auditSeq = seq, auditHash = hash);
            } else {
                audit.ended(act, &receipt, "unchanged", audit::SETTLED_BEFORE).await;
            }
            Ok(kept)
        })
        .await
    }

    /// Cancels a reminder on a person's request, with the person and the reason in the log.
    pub async fn cancel_by_hand(
        self: Arc<Reminders>,
        audit: Arc<Audit>,
        workspace: WorkspaceName,
        id: Uuid,
        by: By,
        why: Option<String>,
    ) -> Result<Kept, Problem> {
        to_the_end(async move {
            let act = Act::new("audit.reminder_cancelled", &workspace, ("reminder", id), &by, why.as_deref());
            let cancel = self.reminders.cancel(&workspace, id);
            let (kept, Receipt { seq, hash }) = audit.act(act, async { Ok::<_, Problem>(cancel.await?) }).await?;
            Event::Cancelled.tell(&workspace, id);
            let by = by.id;
            tracing::warn!(event = "audit.reminder_cancelled", %workspace, reminderId = %id, by, why, auditSeq = seq, auditHash = hash);
            Ok(kept)
        })
        .await
    }

    /// Starts to send the reminders that are due.
    pub fn start(self: &Arc<Reminders>, watcher: Arc<dyn Watcher>) {
        let jobs = ReminderJobs { reminders: self.reminders.clone(), channels: self.channels.clone(), watcher };
        tokio::spawn(self.queue.clone().keep_leasing(vec![JOB.to_owned()], Arc::new(jobs)));
    }
}
