//! A reminder that is due: the flag, the carrier, the delivery log. In this order.

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
use crate::worker::{Handler, Held};

/// Between two attempts to write down how it went.
const WRITE_PAUSE: Duration = Duration::from_millis(100);
/// The same, once the lease is over; and for how long.
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
            // If the flag is not set the next worker may; if it is, though nobody said so, this changes nothing, since the job is not as it was.
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
    /// The carrier's call, within the lease: part of it is for writing down how it went.
    async fn call(&self, held: &Held, kept: &Kept) -> Sent {
        let within = held.lease_left().mul_f64(0.9);
        // It was paused past its lease: whoever has it now has called it missed, and a person may have had it sent.
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
        // Whatever surely reached nobody may be tried again: the grace says for how long.
        sent.map_err(|failure| match failure.reached {
            Reached::No => Failure { is_final: false, ..failure },
            Reached::Maybe => failure,
        })
    }

    /// Its lease is over, and whoever leased it since has called it missed. If the carrier has taken it, it was not.
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

    /// Writes, if need be again and again, for as long as the lease lasts. After that whoever leases it next finds the flag set.
    async fn write_down(&self, held: &Held, kept: &Kept, sent: Sent) {
        // The same time again and again: what was written though nobody said so is known again.
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
                    // What a carrier has taken is worth saying for longer: nobody else can.
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
