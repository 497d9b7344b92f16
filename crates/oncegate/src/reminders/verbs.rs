//! What people do with a reminder: move, reword or cancel it, send a missed one, or resolve a missed one.

use oncegate_core::job::{self, Decision, Job};
use oncegate_core::{Time, WorkspaceName};
use oncegate_store::{Change, Reading, StoreError};
use uuid::Uuid;

use super::{Kept, Reminder, Reminders, State, Text};
use crate::document::{Resolution, until_written};

/// The fields of a reminder to change. `None` keeps a field as it is.
#[derive(Clone, Debug, Default)]
pub struct Edit {
    /// The new due time.
    pub send_at: Option<Time>,
    /// The name of the new channel.
    pub channel: Option<String>,
    /// The new phone number of the recipient.
    pub phone: Option<String>,
    /// The new email address of the recipient.
    pub email: Option<String>,
    /// The new text of the message.
    pub message: Option<String>,
}

/// Why a reminder was not changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotChanged {
    /// There is no reminder with this id in the workspace.
    #[error("there is no such reminder")]
    Missing,
    /// The reminder is in the wrong state for this change.
    #[error("{0}")]
    Wrong(String),
    /// The due time of the changed reminder is past by more than the grace.
    #[error("sendAt: {0} is over, by more than the grace")]
    TooLate(Time),
    /// The changed reminder could not be sent.
    #[error("{0}")]
    Invalid(String),
    /// The store returned an error. The reminder may be unchanged.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn wrong(what: &str, reminder: &Reminder) -> NotChanged {
    NotChanged::Wrong(format!("{what}; it is {}", reminder.state.as_str()))
}

impl Edit {
    /// The changed text and recipient.
    pub fn text(&self, before: &Text) -> Text {
        let either = |new: &Option<String>, old: &Option<String>| new.clone().or_else(|| old.clone());
        Text {
            channel: self.channel.clone().unwrap_or_else(|| before.channel.clone()),
            phone: either(&self.phone, &before.phone),
            email: either(&self.email, &before.email),
            message: self.message.clone().unwrap_or_else(|| before.message.clone()),
        }
    }
}

impl Reminders {
    /// Moves or rewords a reminder, until its flag is set. A cancelled reminder is scheduled again if the edit gives a new due
    /// time. `check` returns what is wrong with the changed reminder.
    pub async fn edit(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        edit: &Edit,
        check: impl Fn(&Text) -> Result<(), String>,
    ) -> Result<Kept, NotChanged> {
        self.change(workspace, id, |kept, job, now| {
            let before = &kept.document;
            check(&edit.text(&before.text)).map_err(NotChanged::Invalid)?;
            let send_at = edit.send_at.unwrap_or(Time::from_micros(before.send_at_us));
            let next = kept.with(Reminder {
                send_at_us: send_at.micros(),
                grace_until_us: (send_at + self.options.grace).micros(),
                text: edit.text(&before.text),
                state: State::Scheduled,
                ended_us: None,
                ..before.clone()
            });
            let change = match (before.state, job) {
                (State::Scheduled, Some(job)) if job.is_leased(now) => {
                    return Err(NotChanged::Wrong("a worker is about to send it: it is too late".into()));
                }
                // Also a reminder whose worker died before it set the flag.
                (State::Scheduled, Some(job)) => {
                    Change::Requeue { job: job.again(job.payload.clone(), send_at), stands_until: Time::NEVER }
                }
                // It was missed, and a person has resolved it as not sent.
                (State::Cancelled, None) if before.resolved.is_some() => {
                    return Err(NotChanged::Wrong("it was missed, and a person dismissed it".into()));
                }
                (State::Cancelled, None) if edit.send_at.is_some() => Change::Enqueue(next.job(send_at, now)),
                (State::Cancelled, None) => {
                    return Err(wrong("only with a new sendAt is one scheduled anew that was cancelled", before));
                }
                _ => return Err(wrong("only one that has not been sent can be changed", before)),
            };
            match now > send_at + self.options.grace {
                true => Err(NotChanged::TooLate(send_at)),
                false => Ok(Some((next, Some(change)))),
            }
        })
        .await
    }

    /// Cancels a reminder, until its flag is set.
    pub async fn cancel(&self, workspace: &WorkspaceName, id: Uuid) -> Result<Kept, NotChanged> {
        self.change(workspace, id, |kept, job, now| match (kept.document.state, job) {
            (State::Scheduled, Some(job)) => match job::decide(job, &job::Command::Cancel, now) {
                Decision::End(_) => {
                    Ok(Some((kept.with(kept.document.ended(State::Cancelled, now)), Some(removed(job)))))
                }
                _ => Err(NotChanged::Wrong("a worker is about to send it: it is too late".into())),
            },
            (State::Cancelled, _) => Ok(None),
            _ => Err(wrong("only one that has not been sent can be cancelled", &kept.document)),
        })
        .await
    }

    /// Sends a missed reminder, as a person has decided. The key stays the same.
    pub async fn send_missed(&self, workspace: &WorkspaceName, id: Uuid, by: &str) -> Result<Kept, NotChanged> {
        self.change(workspace, id, |kept, _, now| match kept.document.state {
            State::Missed => {
                let next = kept.with(Reminder {
                    state: State::Sending,
                    flagged_us: kept.document.flagged_us.or(Some(now.micros())),
                    grace_until_us: (now + self.options.grace).micros(),
                    sent_by: Some(by.to_owned()),
                    ended_us: None,
                    ..kept.document.clone()
                });
                let job = next.job(now, now);
                Ok(Some((next, Some(Change::Enqueue(job)))))
            }
            _ => Err(wrong("only one that was missed can be sent by hand", &kept.document)),
        })
        .await
    }

    /// A person resolves a missed reminder: the carrier has sent it after all, or it was not sent and never will be.
    pub async fn resolve(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        resolution: &Resolution,
    ) -> Result<Kept, NotChanged> {
        let sent = resolution.happened;
        let state = if sent { State::Sent } else { State::Cancelled };
        self.change(workspace, id, |kept, _, now| match (kept.document.state, &kept.document.resolved) {
            (State::Missed, _) => {
                let flagged_us = kept.document.flagged_us.or(sent.then(|| now.micros()));
                let resolved = Some(resolution.at(now));
                Ok(Some((kept.with(Reminder { state, flagged_us, resolved, ..kept.document.clone() }), None)))
            }
            // A repeated request: the answer to the first may have been lost.
            (is, Some(_)) if is == state => Ok(None),
            _ => Err(wrong("only one that was missed can be settled", &kept.document)),
        })
        .await
    }

    /// Writes the reminder and its job in one commit, and decides again after a lost race. Writes nothing if nothing changes.
    async fn change(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        decide: impl Fn(&Kept, Option<&Job>, Time) -> Result<Option<(Kept, Option<Change>)>, NotChanged>,
    ) -> Result<Kept, NotChanged> {
        until_written(|| async {
            let Reading { value, now } = self.load(workspace, id).await?;
            let (kept, job) = value.ok_or(NotChanged::Missing)?;
            // The record and the job were read one after the other, and another writer changed both in between.
            if kept.document.is_live() != job.is_some() {
                return Ok(None);
            }
            match decide(&kept, job.as_ref(), now)? {
                Some((next, change)) => Ok(self.write_once(next, change).await?),
                None => Ok(Some(kept)),
            }
        })
        .await
    }
}

/// Removes the job from the queue, whatever its last worker has written to it.
pub(super) fn removed(job: &Job) -> Change {
    Change::Dequeue(Job { state: job::State::Pending, ..job.clone() })
}
