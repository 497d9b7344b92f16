//! How a worker sends a reminder: it sets the flag, calls the carrier, and then writes a row of the delivery log.

use oncegate_core::Time;
use oncegate_core::job::{self, Decision, End, Failure, Job, Reached, WORKER_LOST};
use oncegate_store::{Change, Commit, StoreError, find_written};

use super::record::Row;
use super::verbs::removed;
use super::{Kept, Reminder, Reminders, State};
use crate::document::until_written;

/// What the worker has to do with a job that is due.
#[derive(Clone, Debug)]
pub enum Worked {
    /// The flag is set: send it.
    Send(Box<Kept>, Box<Job>),
    /// Its time is over: the reminder was missed.
    Missed(Box<Kept>),
    /// Nothing: the reminder must not be sent, or another worker has it.
    Nothing,
}

impl Reminders {
    /// Sets the flag in one conditional write. A worker whose write changes no row does not send.
    pub async fn flag(&self, job: &Job, now: Time) -> Result<Worked, StoreError> {
        let Some(kept) = self.find(&job.workspace, job.id).await? else {
            self.write(vec![Change::Dequeue(job.clone())]).await?;
            return Ok(Worked::Nothing);
        };
        let before = &kept.document;
        if !before.is_live() {
            self.write(vec![Change::Dequeue(job.clone())]).await?;
            return Ok(Worked::Nothing);
        }
        if job.fate().is_some() {
            let row = Row::failed(format!("{WORKER_LOST} after the flag was set"), Reached::Maybe, now);
            return self.miss(&kept, job, row, now).await;
        }
        if before.is_overdue(now) {
            let row = Row::failed("no worker could send it in time".into(), Reached::No, now);
            return self.miss(&kept, job, row, now).await;
        }
        let begin = job::Command::Begin { token: job.token };
        let Decision::Keep(begun) = job::decide(job, &begin, now) else { return Ok(Worked::Nothing) };
        let next = kept.with(before.flagged(now));
        let requeue = Change::Requeue { job: begun.clone(), stands_until: job.stands_until() };
        match self.write(vec![requeue, next.replaced()]).await {
            Ok(true) => Ok(Worked::Send(Box::new(next), Box::new(begun))),
            Ok(false) => Ok(Worked::Nothing),
            // The flag may be written although the store reported an error. If this worker wrote it, and the write is as durable as an
            // acknowledged one, this worker sends. For a reminder that already had its flag, only the job tells which worker wrote.
            Err(StoreError::Unknown(why)) => {
                let look = || async {
                    let found = self.load(&job.workspace, job.id).await?.value;
                    let is_flagged = |kept: &Kept| kept.version == next.version && kept.document == next.document;
                    Ok::<_, StoreError>(found.filter(|(kept, job)| is_flagged(kept) && job.as_ref() == Some(&begun)))
                };
                if find_written(&*self.store, look).await.is_some() {
                    Ok(Worked::Send(Box::new(next), Box::new(begun)))
                } else {
                    Err(StoreError::Unknown(why))
                }
            }
            Err(error) => Err(error),
        }
    }

    /// The carrier has accepted the reminder.
    pub async fn delivered(
        &self,
        kept: &Kept,
        job: &Job,
        provider_message_id: Option<String>,
        now: Time,
    ) -> Result<Option<Kept>, StoreError> {
        let next = kept.with(kept.document.logged(Row::sent(provider_message_id, now)).ended(State::Sent, now));
        self.write_down(next, Change::Dequeue(job.clone())).await
    }

    /// The carrier accepted the reminder, but its worker reported that late. A reminder that counted as missed becomes sent, even if
    /// a person has resolved it as not sent. `None` if a person has had it sent since.
    pub async fn delivered_late(
        &self,
        kept: &Kept,
        job: &Job,
        provider_message_id: Option<String>,
        now: Time,
    ) -> Result<Option<Kept>, StoreError> {
        until_written(|| async {
            let Some((found, in_queue)) = self.load(&kept.workspace, kept.id).await?.value else {
                return Ok(Some(None));
            };
            let removed = match (found.document.state, in_queue) {
                // A cancelled reminder with its flag set was missed before.
                (State::Missed | State::Cancelled, None)
                    if found.document.reminder_sent() && found.document.sent_by == kept.document.sent_by =>
                {
                    None
                }
                // The end of the lease has not been handled yet.
                (State::Sending, Some(found_job)) if found.version == kept.version && found_job.token == job.token => {
                    Some(removed(&found_job))
                }
                _ => return Ok(Some(None)),
            };
            let row = Row::sent(provider_message_id.clone(), now);
            let next = found.with(found.document.logged(row).ended(State::Sent, now));
            let changes = std::iter::once(next.replaced()).chain(removed).collect();
            Ok(self.write(changes).await?.then_some(Some(next)))
        })
        .await
    }

    /// The carrier has not accepted the reminder, or the result is unknown. A try that surely reached no recipient is repeated
    /// within the grace. Any other try is never repeated.
    pub async fn not_delivered(
        &self,
        kept: &Kept,
        job: &Job,
        failure: Failure,
        now: Time,
    ) -> Result<Option<Kept>, StoreError> {
        let logged = kept.document.logged(Row::failed(failure.error.clone(), failure.reached, now));
        let fail = job::Command::Fail { token: job.token, failure };
        let (next, change) = match job::decide(job, &fail, now) {
            Decision::Keep(again) if again.due_at.micros() <= logged.grace_until_us => {
                let requeue = Change::Requeue { job: again, stands_until: job.stands_until() };
                (kept.with(Reminder { state: State::Sending, ..logged }), requeue)
            }
            Decision::Keep(_) | Decision::End(End::Unknown | End::Dead | End::Cancelled | End::Completed) => {
                (kept.with(logged.ended(State::Missed, now)), Change::Dequeue(job.clone()))
            }
            // The worker that has the job now reports the result.
            Decision::Refuse(_) => return Ok(None),
        };
        self.write_down(next, change).await
    }

    async fn miss(&self, kept: &Kept, job: &Job, row: Row, now: Time) -> Result<Worked, StoreError> {
        let next = kept.with(kept.document.logged(row).ended(State::Missed, now));
        let written = self.write_down(next, Change::Dequeue(job.clone())).await?;
        Ok(written.map_or(Worked::Nothing, |kept| Worked::Missed(Box::new(kept))))
    }

    /// Returns the reminder as it was written, or `None` if another writer changed it first.
    pub(super) async fn write_once(&self, next: Kept, change: Option<Change>) -> Result<Option<Kept>, StoreError> {
        match self.write([next.replaced()].into_iter().chain(change).collect()).await {
            Err(StoreError::Unknown(why)) => match find_written(&*self.store, || self.found_as(&next)).await {
                None => Err(StoreError::Unknown(why)),
                found => Ok(found),
            },
            written => Ok(written?.then_some(next)),
        }
    }

    /// Like `write_once`, for a worker that retries because the answer was lost: then its first write counts. (If two people make
    /// the same change at the same moment, only one of them has made it. So `write_once` does not look.)
    async fn write_down(&self, next: Kept, change: Change) -> Result<Option<Kept>, StoreError> {
        match self.write_once(next.clone(), Some(change)).await? {
            None => self.found_as(&next).await,
            written => Ok(written),
        }
    }

    /// The stored reminder, if it equals `next`.
    async fn found_as(&self, next: &Kept) -> Result<Option<Kept>, StoreError> {
        let found = self.find(&next.workspace, next.id).await?;
        Ok(found.filter(|found| found.version == next.version && found.document == next.document))
    }

    async fn write(&self, changes: Vec<Change>) -> Result<bool, StoreError> {
        Ok(self.store.commit(Commit { ops: vec![], changes }).await?.is_written())
    }
}
