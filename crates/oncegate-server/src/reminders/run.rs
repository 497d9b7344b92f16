//! A reminder that is due: the flag, the carrier, the delivery log. In this order.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncegate::StoreError;
use oncegate::reminders::{Kept, Worked};
use oncegate_core::job::{Failure, Reached};

use super::{Desk, Event};
use crate::channels::{Outgoing, Sent, failure};
use crate::crash;
use crate::worker::{Handler, Held};

/// Between two attempts to write down how it went.
const WRITE_PAUSE: Duration = Duration::from_millis(100);

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
            // The flag is not set: the next worker may.
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
            id: kept.id,
            channel: &text.channel,
            phone: text.phone.as_deref(),
            email: text.email.as_deref(),
            text: &text.message,
            attachments: &[],
            metadata: None,
        };
        let sent = self.channels.get(&text.channel).send(&outgoing, within).await;
        // Whatever surely reached nobody may be tried again: the grace says for how long.
        sent.map_err(|failure| match failure.reached {
            Reached::No => Failure { is_final: false, ..failure },
            Reached::Maybe => failure,
        })
    }

    /// Writes, if need be again and again, for as long as the lease lasts. After that whoever leases it next finds the flag set.
    async fn write_down(&self, held: &Held, kept: &Kept, sent: Sent) {
        // The same time again and again: what was written though nobody said so is known again.
        let now = held.now();
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
                Ok(None) => return Event::LeaseLost.tell(&kept.workspace, kept.id),
                Err(error) => {
                    tracing::error!(event = "reminder.not_written", workspace = %kept.workspace, reminderId = %kept.id, %error);
                    if held.lease_left() <= WRITE_PAUSE || matches!(error, StoreError::Refused(_)) {
                        return;
                    }
                    tokio::time::sleep(WRITE_PAUSE).await;
                }
            }
        }
    }
}
