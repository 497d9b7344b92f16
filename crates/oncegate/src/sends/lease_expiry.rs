//! Handles the end of a worker's lease, and asks the reconcile hook. Each send that a worker has begun, or that the hook has to
//! resolve, has one job. The job wakes when the lease ends, and when it is time to ask the hook. A send that needs no more
//! checks has no job; the store removes its record when it expires.

use std::time::Duration;

use oncegate_core::Time;
use oncegate_core::job::Job;
use oncegate_store::{At, Change, Commit, StoreError};

use super::{Kept, Send, Sends, State};

/// How often the reconcile hook is asked about one send: after one minute, two, four, and so on, up to one hour apart.
const ASKED_MAX: u32 = 24;
const ASK_PAUSE: Duration = Duration::from_secs(60);
const ASK_PAUSE_MAX: Duration = Duration::from_secs(3600);

/// The result of a check.
#[derive(Clone, Debug)]
pub enum Tended {
    /// Its worker's lease has ended: the send is lost or unknown now.
    Overdue(Kept),
    /// The send is unknown. If there is a reconcile hook, ask it.
    Open(Kept),
    /// Nothing to do, or another writer was first.
    Nothing,
}

impl Sends {
    /// Checks a send, for the worker that has leased its job.
    pub async fn tend(&self, job: &Job) -> Result<Tended, StoreError> {
        let Some((kept, _, now)) = self.load(&job.workspace, At::Id(job.id)).await? else {
            self.write(vec![Change::Dequeue(job.clone())]).await?;
            return Ok(Tended::Nothing);
        };
        let is_over = now.micros() >= kept.document.expires_us;
        match kept.document.state {
            State::Sending if !is_over => self.tend_to_worker(&kept, job, now).await,
            State::Unknown if !is_over => Ok(Tended::Open(kept)),
            // The job was left in the queue by an earlier version, whose records never expired.
            _ => self.rest(&kept, Some(job), now).await.map(|()| Tended::Nothing),
        }
    }

    /// The claim decides whether the send's worker is alive.
    async fn tend_to_worker(&self, kept: &Kept, job: &Job, now: Time) -> Result<Tended, StoreError> {
        let reading = self.ledger.read(&kept.document.key(&kept.workspace)).await?;
        if let Some(claim) = reading.value.filter(|claim| claim.owner_is_alive(reading.now)) {
            let send = Send { lease_until_us: claim.lease_until.micros(), ..kept.document.clone() };
            self.write(kept.replaced(send, Some(job), now).1).await?;
            return Ok(Tended::Nothing);
        }
        let (next, changes) = kept.replaced(kept.document.overdue(now), Some(job), now);
        Ok(if self.write(changes).await? { Tended::Overdue(next) } else { Tended::Nothing })
    }

    /// Leaves the send unresolved. If the hook was asked, it is asked again later. Otherwise the job has nothing more to do.
    pub async fn leave(&self, kept: &Kept, was_asked: bool) -> Result<(), StoreError> {
        let Some((kept, job, now)) = self.load(&kept.workspace, At::Id(kept.id)).await? else { return Ok(()) };
        if !kept.document.state.is_open() {
            return Ok(());
        }
        if !was_asked {
            return self.rest(&kept, job.as_ref(), now).await;
        }
        let asked = kept.document.asked + 1;
        let pause = ASK_PAUSE.saturating_mul(1 << (asked - 1).min(10)).min(ASK_PAUSE_MAX);
        let wakes_at = (asked < ASKED_MAX).then_some(now + pause);
        let send = Send { asked, ..kept.document.clone() };
        self.write(kept.replaced_until(send, wakes_at, job.as_ref(), now).1).await.map(drop)
    }

    /// Removes the job, because nothing has to be checked any more.
    async fn rest(&self, kept: &Kept, job: Option<&Job>, now: Time) -> Result<(), StoreError> {
        self.write(kept.replaced_until(kept.document.clone(), None, job, now).1).await.map(drop)
    }

    async fn write(&self, changes: Vec<Change>) -> Result<bool, StoreError> {
        Ok(self.store.commit(Commit { ops: vec![], changes }).await?.is_written())
    }
}
