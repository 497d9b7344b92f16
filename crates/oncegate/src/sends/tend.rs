//! One job for each send: it wakes when the worker's lease ends, while the hook has to be asked, and when the send has been kept for long enough.

use std::time::Duration;

use oncegate_core::Time;
use oncegate_core::job::Job;
use oncegate_store::{At, Change, Commit, StoreError};

use super::{Kept, Send, Sends, State};

/// How often the reconcile hook is asked of one send, by and by: after a minute, two, four, up to an hour.
const ASKED_MAX: u32 = 24;
const ASK_PAUSE: Duration = Duration::from_secs(60);
const ASK_PAUSE_MAX: Duration = Duration::from_secs(3600);

/// What there was to do.
#[derive(Clone, Debug)]
pub enum Tended {
    /// Its worker's lease has ended: it is lost or unknown now.
    Overdue(Kept),
    /// It is unknown: if there is a hook, it is the hook's turn.
    Open(Kept),
    /// It is gone.
    Removed,
    /// Nothing, or somebody else was faster.
    Nothing,
}

impl Sends {
    /// Sees to a send, to whoever has leased its job.
    pub async fn tend(&self, job: &Job) -> Result<Tended, StoreError> {
        let Some((kept, _, now)) = self.load(&job.workspace, At::Id(job.id)).await? else {
            self.write(vec![Change::Dequeue(job.clone())]).await?;
            return Ok(Tended::Nothing);
        };
        if now.micros() >= kept.send.expires_us {
            // The claim's end is counted from its commit, a little later: whoever meets it can look at its send.
            if let Some(claim) = self.ledger.read(&kept.send.key(&kept.workspace)).await?.value {
                self.write(vec![kept.tended_at(claim.expires_at, Some(job), now)]).await?;
                return Ok(Tended::Nothing);
            }
            let removed = self.write(vec![kept.removed(), Change::Dequeue(job.clone())]).await?;
            return Ok(if removed { Tended::Removed } else { Tended::Nothing });
        }
        match kept.send.state {
            State::Sending => self.tend_to_worker(&kept, job, now).await,
            State::Unknown => Ok(Tended::Open(kept)),
            State::Sent | State::Failed | State::Lost => {
                self.write(vec![kept.tended_at(kept.send.wakes_at(), Some(job), now)]).await?;
                Ok(Tended::Nothing)
            }
        }
    }

    /// The claim knows whether its worker lives.
    async fn tend_to_worker(&self, kept: &Kept, job: &Job, now: Time) -> Result<Tended, StoreError> {
        let reading = self.ledger.read(&kept.send.key(&kept.workspace)).await?;
        if let Some(claim) = reading.value.filter(|claim| claim.owner_is_alive(reading.now)) {
            self.write(vec![kept.tended_at(claim.lease_until, Some(job), now)]).await?;
            return Ok(Tended::Nothing);
        }
        let (next, changes) = kept.replaced(kept.send.overdue(now), Some(job), now);
        Ok(if self.write(changes).await? { Tended::Overdue(next) } else { Tended::Nothing })
    }

    /// It stays as it is. If the hook was asked, it is asked again after a while; else there is nothing to do until its time is over.
    pub async fn leave(&self, kept: &Kept, was_asked: bool) -> Result<(), StoreError> {
        let Some((kept, job, now)) = self.load(&kept.workspace, At::Id(kept.id)).await? else { return Ok(()) };
        if !kept.send.state.is_open() {
            return Ok(());
        }
        let expires_at = Time::from_micros(kept.send.expires_us);
        if !was_asked {
            return self.write(vec![kept.tended_at(expires_at, job.as_ref(), now)]).await.map(drop);
        }
        let asked = kept.send.asked + 1;
        let (next, mut changes) = kept.replaced(Send { asked, ..kept.send.clone() }, job.as_ref(), now);
        if asked < ASKED_MAX {
            let pause = ASK_PAUSE.saturating_mul(1 << (asked - 1).min(10)).min(ASK_PAUSE_MAX);
            changes[1] = next.tended_at((now + pause).min(expires_at), job.as_ref(), now);
        }
        self.write(changes).await.map(drop)
    }

    async fn write(&self, changes: Vec<Change>) -> Result<bool, StoreError> {
        Ok(self.store.commit(Commit { ops: vec![], changes }).await?.is_written())
    }
}
