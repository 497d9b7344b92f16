//! Runs a due reminder: first the flag, then the channel's call, then the delivery log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use oncegate_core::Time;
use oncegate_core::job::{Failure, Reached};
use oncegate_store::StoreError;

use super::{Channels, Held, Outgoing, RunJob, Sent, Watcher};
use crate::channel;
use crate::reminders::{Kept, Reminders, State, Worked};

/// The pause between two attempts to write the outcome.
const WRITE_PAUSE: Duration = Duration::from_millis(100);
/// The same pause after the lease has ended, and how long the attempts go on then.
const LATE_PAUSE: Duration = Duration::from_secs(1);
const LATE_WORD: Duration = Duration::from_secs(600);

/// How an attempt to send a reminder ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReminderEvent {
    /// The channel took it.
    Sent,
    /// It was not sent, and is not tried again.
    Missed,
    /// The attempt surely reached no recipient. It will be retried.
    Failed,
    /// The worker reported its attempt too late: its lease was lost.
    LeaseLost,
}

impl ReminderEvent {
    fn of(kept: &Kept) -> ReminderEvent {
        match kept.document.state {
            State::Sent => ReminderEvent::Sent,
            State::Missed => ReminderEvent::Missed,
            State::Scheduled | State::Sending | State::Cancelled => ReminderEvent::Failed,
        }
    }
}

/// Runs the jobs of reminders.
pub struct ReminderJobs {
    /// The reminders.
    pub reminders: Reminders,
    /// Sends each reminder, through the channel that it names.
    pub channels: Arc<dyn Channels>,
    /// Hears of the attempts.
    pub watcher: Arc<dyn Watcher>,
}

#[async_trait]
impl RunJob for ReminderJobs {
    async fn run(self: Arc<Self>, mut held: Held) {
        self.watcher.reached("reminder.leased").await;
        let kept = match self.reminders.flag(&held.job, held.now()).await {
            Ok(Worked::Send(kept, begun)) => {
                held.job = *begun;
                *kept
            }
            Ok(Worked::Missed(kept)) => return self.tell(&kept, ReminderEvent::of(&kept)),
            Ok(Worked::Nothing) => return,
            // If the flag is not set, the next worker may set it. If the flag is set but the answer got lost, this change
            // has no effect, because the job has changed.
            Err(error) => {
                tracing::warn!(event = "reminder.put_off", workspace = %held.job.workspace, reminderId = %held.job.id, %error);
                return held.put_off(&self.reminders.store, error.to_string()).await;
            }
        };
        self.watcher.reached("reminder.flagged").await;
        let sent = self.call(&held, &kept).await;
        held.slot = None;
        self.watcher.reached("reminder.called").await;
        self.write_down(&held, &kept, sent).await;
        self.watcher.reached("reminder.finished").await;
    }
}

impl ReminderJobs {
    fn tell(&self, kept: &Kept, event: ReminderEvent) {
        self.watcher.reminder(&kept.workspace, kept.id, event);
    }

    /// Calls the channel within the lease. A tenth of the lease is reserved for writing the outcome.
    async fn call(&self, held: &Held, kept: &Kept) -> Sent {
        let within = held.lease_left().mul_f64(0.9);
        // The worker was paused past its lease. The worker that has the job now has recorded a miss, and a person may have
        // had the reminder sent.
        if within.is_zero() {
            return Err(Failure::of("its lease ended before the carrier was called", Reached::No));
        }
        let text = &kept.document.text;
        let outgoing = Outgoing {
            policy: "reminder",
            workspace: &kept.workspace,
            id: kept.id,
            channel: &text.channel,
            phone: text.phone.as_deref(),
            email: text.email.as_deref(),
            text: &text.message,
            attachments: &[],
            metadata: None,
        };
        // An attempt that reached no recipient for certain may be retried; `grace` limits for how long.
        channel::send(&*self.channels, &outgoing, within).await.map_err(|failure| match failure.reached {
            Reached::No => Failure { is_final: false, ..failure },
            Reached::Maybe => failure,
        })
    }

    /// The lease has ended, and the next worker has recorded a miss. If the channel took the reminder, that record is
    /// corrected.
    async fn tell_late(&self, held: &Held, kept: &Kept, sent: Sent, now: Time) {
        self.tell(kept, ReminderEvent::LeaseLost);
        let Ok(receipt) = sent else { return };
        match self.reminders.delivered_late(kept, &held.job, receipt.provider_message_id, now).await {
            Ok(Some(kept)) => self.tell(&kept, ReminderEvent::of(&kept)),
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
                Ok(Some(kept)) => return self.tell(&kept, ReminderEvent::of(&kept)),
                Ok(None) => return self.tell_late(held, kept, sent, now).await,
                Err(error) => {
                    tracing::error!(event = "reminder.not_written", workspace = %kept.workspace, reminderId = %kept.id, %error);
                    let is_over = held.lease_left() <= WRITE_PAUSE;
                    // The channel's receipt is retried for longer: no other worker knows of it.
                    if matches!(error, StoreError::Refused(_) | StoreError::Unreadable(_))
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
