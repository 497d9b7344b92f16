//! Lanes: one connection each, a batch at a time.
//!
//! Reading lanes read the records of what waits and decide; whoever changes nothing is answered at once, and does
//! not wait for anybody's COMMIT. Writing lanes write the others conditionally and commit. Who lost a race, or
//! whose connection broke before COMMIT, goes back to the head of the queue.

use std::sync::Arc;
use std::time::Duration;

use oncegate_store::StoreError;
use tokio::time::sleep;

use crate::batch::{Batch, Review};
use crate::commit::{Outcome, commit};
use crate::decide::{Decided, Keys, decide_all};
use crate::fault::Fault;
use crate::job::Job;
use crate::link::Link;
use crate::listen::Channel;
use crate::queue::Queue;
use crate::row::read;
use crate::server::{CONNECT_PAUSE, Server};
use crate::write::{Written, write};

/// How often the queue is looked through for those that waited too long.
const EXPIRE_EVERY: Duration = Duration::from_millis(50);

/// What is said to those who lost too many races, or had no time for another.
const LOST: &str = "others were faster, every time";

pub(crate) struct Lane {
    pub queue: Arc<Queue>,
    pub server: Arc<Server>,
    pub channel: Arc<Channel>,
}

impl Lane {
    /// Reads and decides until the queue is finished.
    pub async fn keep_reading(self) {
        while let Some(link) = self.connect().await {
            while link.is_usable() {
                let next = tokio::select! {
                    next = self.queue.next_unread() => next,
                    () = link.closed() => break,
                };
                match next {
                    Some(jobs) => self.read(&link, jobs).await,
                    None => break,
                }
            }
            self.queue.lane_is_down();
        }
    }

    /// Writes and commits until the queue is finished.
    pub async fn keep_writing(self) {
        while let Some(link) = self.connect().await {
            while link.is_usable() {
                let next = tokio::select! {
                    next = self.queue.next_decided() => next,
                    () = link.closed() => break,
                };
                match next {
                    Some(decided) => self.write(&link, decided).await,
                    None => break,
                }
            }
            self.queue.lane_is_down();
        }
    }

    /// Tries until it has a connection; `None` if there is nothing to have one for.
    async fn connect(&self) -> Option<Link> {
        while !self.queue.is_finished() {
            match self.open().await {
                Ok(link) => {
                    self.queue.lane_is_up();
                    return Some(link);
                }
                Err(fault) => self.queue.server_is_away(fault.message()),
            }
            sleep(CONNECT_PAUSE).await;
        }
        None
    }

    async fn open(&self) -> Result<Link, Fault> {
        let link = Link::open(self.server.clone()).await?;
        link.only_probes().await?;
        Ok(link)
    }

    async fn read(&self, link: &Link, jobs: Vec<Job>) {
        let Keys { distinct, places } = Keys::of(&jobs);
        match read(link, &distinct).await {
            Ok(records) => self.queue.push_decided(decide_all(jobs, &places, &records)),
            Err(fault) => self.give_back(jobs, fault),
        }
    }

    async fn write(&self, link: &Link, decided: Vec<Decided>) {
        let (batch, later) = Batch::of(decided);
        self.queue.push_again(later, LOST);
        match write(link, &self.channel, &batch).await {
            Ok(written) => self.conclude(link, batch, written).await,
            Err(fault) => {
                undo(link).await;
                self.give_back(batch.into_jobs(), fault);
            }
        }
    }

    /// Commits what landed, unless it is nothing, or some commit landed in part: one of several writes lands whole or not
    /// at all.
    async fn conclude(&self, link: &Link, batch: Batch, written: Written) {
        let evidence = match batch.review(&written) {
            Review::Stands(evidence) => evidence,
            Review::Nothing => {
                undo(link).await;
                return self.queue.push_again(batch.into_losers(), LOST);
            }
            Review::Partly => {
                undo(link).await;
                return self.queue.push_again(batch.answer_partly(&written), LOST);
            }
        };
        match commit(link, &written.seal, evidence).await {
            Outcome::Committed => {
                batch.decided_changes().for_each(|(change, at)| self.channel.wake_after(change, at));
                self.queue.push_again(batch.answer(&written), LOST);
            }
            Outcome::Undone => self.queue.push_again(batch.into_jobs(), "the connection broke before COMMIT"),
            Outcome::Unknown(why) => self.queue.push_again(batch.answer_unknown(&written, &why), &why),
        }
    }

    /// What to do with commits that were not written.
    fn give_back(&self, mut jobs: Vec<Job>, fault: Fault) {
        match fault {
            Fault::Gone(why) => self.queue.push_again(jobs, &why),
            Fault::Conflict(why) => {
                jobs.iter_mut().for_each(Job::lost_a_race);
                self.queue.push_again(jobs, &why);
            }
            // One of them is at fault, and the others need not suffer for it.
            Fault::Data(why) if jobs.len() > 1 => {
                jobs.iter_mut().for_each(|job| job.alone = true);
                self.queue.push_again(jobs, &why);
            }
            Fault::Data(_) | Fault::Unable(_) => {
                let error = StoreError::from(fault);
                jobs.into_iter().for_each(|job| job.answer(Err(error.clone())));
            }
        }
    }
}

async fn undo(link: &Link) {
    // Where the link is broken, or breaks now, the server undoes it by itself.
    if link.is_usable() {
        let _ = link.within(link.client.batch_execute("ROLLBACK")).await;
    }
}

/// Answers those that no lane takes in time, until the queue is finished.
pub(crate) async fn expire(queue: Arc<Queue>) {
    while !queue.is_finished() {
        queue.expire();
        sleep(EXPIRE_EVERY).await;
    }
}
