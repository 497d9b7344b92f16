//! Runs a due reminder: first the flag, then the carrier's call, then the delivery log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use oncegate::reminders::{Kept, Worked};
use oncegate::{StoreError, Time};
use oncegate_core::job::{Failure, Reached};

use super::{Desk, Event};
use crate::channels::{Outgoing, Sent, failure};
use crate::crash;
use crate::trace;
use oncegate::worker::{Handler, Held};

/// The pause between two attempts to write the outcome.
const WRITE_PAUSE: Duration = Duration::from_millis(100);
/// The same pause after the lease has ended, and how long the attempts go on then.
const LATE_PAUSE: Duration = Duration::from_secs(1);
const LATE_WORD: Duration = Duration::from_secs(600);

#[async_trait]
impl Handler for Desk {
    async fn run(self: Arc<Self>, mut held: Held) {
        crash::point("reminder.leased").await;
        let kept = match self.reminders.flag(&held.job, held.now()).await {
            Ok(Worked::Send(kept, begun)) => {
                held.job = *begun;
                *kept
            }
            Ok(Worked::Missed(kept)) => return Event::of(&kept).tell(&kept.workspace, kept.id),
            Ok(Worked::Nothing) => return,
            // If the flag is not set, the next worker may set it. If the flag is set but the answer got lost, this change
            // has no effect, because the job has changed.
            Err(error) => {
                tracing::warn!(event = "reminder.put_off", workspace = %held.job.workspace, reminderId = %held.job.id, %error);
                return held.put_off(&self.store, error.to_string()).await;
            }
        };
        crash::point("reminder.flagged").await;
        let sent = self.call(&held, &kept).await;
        held.slot = None;
        crash::point("reminder.called").await;
        self.write_down(&held, &kept, sent).await;
        crash::point("reminder.finished").await;
    }
}

impl Desk {
    /// Calls the carrier within the lease. A tenth of the lease is reserved for writing the outcome.
    async fn call(&self, held: &Held, kept: &Kept) -> Sent {
        let within = held.lease_left().mul_f64(0.9);
        // The worker was paused past its lease. The worker that has the job now has recorded a miss, and a person may have
        // had the reminder sent.
        if within.is_zero() {
            return Err(failure("its lease ended before the carrier was called", Reached::No));
        }
        let text = &kept.reminder.text;
        let outgoing = Outgoing {
            workspace: &kept.workspace,
            id: kept.id,
            channel: &text.channel,
            phone: text.phone.as_deref(),
            email: text.email.as_deref(),
            text: &text.message,
            attachments: &[],
            metadata: None,
        };
        let channel = self.channels.of(&kept.workspace, &text.channel);
        let about = &[("oncegate.reminder.id", &kept.id as _), ("oncegate.channel", &channel.kind() as _)];
        let sent = trace::call("send reminder", &kept.workspace, about, channel.send(&outgoing, within)).await;
        // An attempt that reached no recipient for certain may be retried; `grace` limits for how long.
        sent.map_err(|failure| match failure.reached {
            Reached::No => Failure { is_final: false, ..failure },
            Reached::Maybe => failure,
        })
    }

    /// The lease has ended, and the next worker has recorded a miss. If the carrier accepted the reminder, that record is
    /// corrected.
    async fn tell_late(&self, held: &Held, kept: &Kept, sent: Sent, now: Time) {
        Event::LeaseLost.tell(&kept.workspace, kept.id);
        let Ok(receipt) = sent else { return };
        match self.reminders.delivered_late(kept, &held.job, receipt.provider_message_id, now).await {
            Ok(Some(kept)) => Event::of(&kept).tell(&kept.workspace, kept.id),
            Ok(None) => {}
            Err(error) => {
                tracing::error!(event = "reminder.not_written", workspace = %kept.workspace, reminderId = %kept.id, %error);
            }
        }
    }

    /// Writes the outcome, with retries for as long as the lease lasts. After that, the worker that leases the job next
    /// finds the flag set.
    async fn write_down(&self, held: &Held, kept: &Kept, sent: Sent) {
        // Reuses one timestamp, so that a retry recognises its own unacknowledged write.
        let (now, began) = (held.now(), Instant::now());
        loop {
            let written = match &sent {
                Ok(receipt) => {
                    let id = receipt.provider_message_id.clone();
                    self.reminders.delivered(kept, &held.job, id, now).await
                }
                Err(failure) => self.reminders.not_delivered(kept, &held.job, failure.clone(), now).await,
            };
            match written {
                Ok(Some(kept)) => return Event::of(&kept).tell(&kept.workspace, kept.id),
                Ok(None) => return self.tell_late(held, kept, sent, now).await,
                Err(error) => {
                    tracing::error!(event = "reminder.not_written", workspace = %kept.workspace, reminderId = %kept.id, %error);
                    let is_over = held.lease_left() <= WRITE_PAUSE;
                    // A carrier's acceptance is retried for longer: no other worker knows of it.
                    if matches!(error, StoreError::Refused(_))
                        || is_over && (sent.is_err() || began.elapsed() > LATE_WORD)
                    {
                        return;
                    }
                    tokio::time::sleep(if is_over { LATE_PAUSE } else { WRITE_PAUSE }).await;
                }
            }
        }
    }
}
