//! Lanes: connection loops with one connection each, which process a batch at a time.
//!
//! Reading lanes read the records of waiting commits and decide. A commit that changes nothing is answered at once, without a COMMIT,
//! unless it is refused or the server is in doubt. Writing lanes write the others conditionally and commit. A commit that lost a race,
//! or whose connection broke before COMMIT, returns to the head of the queue.

use std::sync::Arc;
use std::time::Duration;

use oncegate_store::StoreError;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::batch::{Batch, Review};
use crate::commit::{Outcome, commit, confirm};
use crate::decide::{Decided, Keys, decide_all};
use crate::fault::Fault;
use crate::job::Job;
use crate::link::Link;
use crate::listen::Channel;
use crate::mark::{self, Acknowledged, COMMITS_MAX, Found, Mark, find, find_loss, raise_floor};
use crate::queue::Queue;
use crate::row::read;
use crate::server::{CONNECT_PAUSE, Server};
use crate::write::{Written, write};

/// How often the queue is searched for commits that waited too long.
const EXPIRE_EVERY: Duration = Duration::from_millis(50);

/// The error text when a server was replaced, and no time is left to ask the next one.
const MOVED: &str = "the server was replaced by another";
/// The error text for commits that lost too many races, or had no time for another try.
const LOST: &str = "others were faster, every time";

pub(crate) struct Lane {
    pub queue: Arc<Queue>,
    pub server: Arc<Server>,
    pub channel: Arc<Channel>,
}

/// What a lane remembers about its earlier connections.
#[derive(Default)]
struct Past {
    /// The last commit that was acknowledged.
    acknowledged: Option<Acknowledged>,
    /// The last commit whose outcome could not be found out.
    unresolved: Option<Mark>,
}

impl Past {
    /// How many commits were acknowledged over a connection.
    fn commits(&self, connection: Uuid) -> i64 {
        self.acknowledged.filter(|last| last.mark.connection == connection).map_or(0, |last| last.mark.number)
    }
}

/// A connection for writing, and its mark.
struct Writing {
    link: Link,
    connection: Uuid,
}

impl Lane {
    /// Reads and decides until the queue is finished. Uses `first` as its first connection.
    pub async fn keep_reading(self, first: Link) {
        let mut first = Some(first);
        while let Some(link) = self.connect(&mut first).await {
            self.queue.lane_is_up();
            while link.is_usable() {
                let next = tokio::select! {
                    next = self.queue.next_unread() => next,
                    () = link.closed() => break,
                };
                match next {
                    Some(jobs) if link.is_usable() => self.read(&link, jobs).await,
                    // The replica met another server while this lane waited.
                    Some(jobs) => self.queue.push_again(jobs, MOVED),
                    None => break,
                }
            }
            self.queue.lane_is_down();
        }
    }

    /// Writes and commits until the queue is finished. Uses `first` as its first connection.
    pub async fn keep_writing(self, first: Link) {
        let mut first = Some(first);
        let mut past = Past::default();
        while let Some(Writing { link, mut connection }) = self.connect_to_write(&mut first, &mut past).await {
            self.queue.lane_is_up();
            while link.is_usable() {
                if past.commits(connection) >= COMMITS_MAX {
                    match mark::add(&link).await {
                        Ok(next) => connection = next,
                        Err(_) => break,
                    }
                }
                let next = tokio::select! {
                    next = self.queue.next_decided() => next,
                    () = link.closed() => break,
                };
                match next {
                    Some(decided) => {
                        let is_read_here =
                            |decided: &Decided| link.is_usable() && decided.generation == link.generation;
                        let (here, elsewhere): (Vec<_>, Vec<_>) = decided.into_iter().partition(is_read_here);
                        self.queue.push_again(elsewhere.into_iter().flat_map(Decided::into_jobs).collect(), MOVED);
                        if !here.is_empty() {
                            self.write(&link, connection, here, &mut past).await;
                        }
                    }
                    None => break,
                }
            }
            self.queue.lane_is_down();
        }
    }

    /// Retries until it has a connection; `None` once the queue is finished. Returns `first` if that has not been used.
    async fn connect(&self, first: &mut Option<Link>) -> Option<Link> {
        while !self.queue.is_finished() {
            let linked = match first.take() {
                Some(link) => Ok(link),
                None => Link::open_for_probes(self.server.clone()).await,
            };
            match linked {
                Ok(link) => return Some(link),
                Err(fault) => self.pause_after(&fault).await,
            }
        }
        None
    }

    async fn connect_to_write(&self, first: &mut Option<Link>, past: &mut Past) -> Option<Writing> {
        while let Some(link) = self.connect(first).await {
            match self.begin_writing(link, past).await {
                Ok(writing) => return Some(writing),
                Err(fault) => self.pause_after(&fault).await,
            }
        }
        None
    }

    async fn pause_after(&self, fault: &Fault) {
        self.queue.server_is_away(fault.message());
        sleep(CONNECT_PAUSE).await;
    }

    /// Prepares the first write over a connection: the server may be a new one that lacks earlier commits.
    async fn begin_writing(&self, link: Link, past: &mut Past) -> Result<Writing, Fault> {
        let health = &self.server.health;
        // Every further commit would wait as this one does, and keep a backend.
        if let Some(mark) = &past.unresolved
            && matches!(find(&link, mark).await?, Found::Open)
        {
            return Err(Fault::Unable(
                "an earlier commit of this replica is still open: it may wait for a standby".into(),
            ));
        }
        if let Some(last) = &past.acknowledged
            && let Some(loss) = find_loss(&link, last).await?
        {
            health.lost(&loss);
            past.acknowledged = None;
        }
        if !health.has_raised_floor(&link.identity) {
            raise_floor(&link).await?;
            health.raised_floor(&link.identity);
        }
        let connection = mark::add(&link).await?;
        Ok(Writing { link, connection })
    }

    async fn read(&self, link: &Link, jobs: Vec<Job>) {
        let Keys { distinct, places } = Keys::of(&jobs);
        match read(link, &distinct).await {
            Ok(records) if link.is_usable() => self.queue.push_decided(decide_all(jobs, &places, &records)),
            Ok(_) => self.queue.push_again(jobs, MOVED),
            Err(fault) => self.give_back(jobs, fault),
        }
    }

    async fn write(&self, link: &Link, connection: Uuid, decided: Vec<Decided>, past: &mut Past) {
        let (batch, later) = Batch::of(decided);
        self.queue.push_again(later, LOST);
        match write(link, connection, &self.channel, &batch).await {
            Ok(written) => self.conclude(link, batch, written, past).await,
            Err(fault) => {
                match &fault {
                    Fault::Unable(why) => self.server.health.refused(why),
                    _ => self.server.health.failed(),
                }
                undo(link).await;
                self.give_back(batch.into_jobs(), fault);
            }
        }
    }

    /// Commits the writes of a batch that took effect. Undoes the batch if nothing did, or if some commit was written in part: a commit
    /// of several writes takes effect completely or not at all.
    async fn conclude(&self, link: &Link, batch: Batch, written: Written, past: &mut Past) {
        let again = match batch.review(&written) {
            Review::Stands => return self.commit(link, batch, written, past).await,
            Review::Nothing => batch.into_losers(),
            Review::Partly => batch.answer_partly(&written),
        };
        undo(link).await;
        self.queue.push_again(again, LOST);
    }

    async fn commit(&self, link: &Link, batch: Batch, written: Written, past: &mut Past) {
        let (health, mark) = (&self.server.health, written.seal.mark);
        let doubts = health.doubts();
        // After the doubts were read. A replaced server commits nothing more for this replica.
        if !link.is_current() {
            undo(link).await;
            return self.queue.push_again(batch.into_jobs(), MOVED);
        }
        let outcome = match batch.is_probe() {
            true => confirm(link).await,
            false => commit(link, &written.seal).await,
        };
        match outcome {
            Outcome::Committed => {
                health.committed(doubts, batch.is_probe());
                batch.writes().for_each(|write| health.saw_token(write.next.token));
                *past = Past { acknowledged: Some(Acknowledged { mark, at: Instant::now() }), unresolved: None };
                batch.decided_changes().for_each(|(change, at)| self.channel.wake_after(change, at));
                self.queue.push_again(batch.answer(&written), LOST);
            }
            Outcome::Undone => {
                health.failed();
                self.queue
                    .push_again(batch.into_jobs(), "the connection broke before COMMIT, or the server was replaced");
            }
            Outcome::Unknown(why) => {
                health.failed();
                past.unresolved = Some(mark);
                self.queue.push_again(batch.answer_unknown(&written, &why), &why);
            }
        }
    }

    /// Retries or answers commits that were not written.
    fn give_back(&self, mut jobs: Vec<Job>, fault: Fault) {
        match fault {
            Fault::Gone(why) => self.queue.push_again(jobs, &why),
            Fault::Conflict(why) => {
                jobs.iter_mut().for_each(Job::lost_a_race);
                self.queue.push_again(jobs, &why);
            }
            // One of them is at fault, and the others must not fail because of it.
            Fault::Data(why) if jobs.len() > 1 => {
                jobs.iter_mut().for_each(|job| job.alone = true);
                self.queue.push_again(jobs, &why);
            }
            Fault::Data(_) | Fault::Unable(_) | Fault::Unknown(_) => {
                let error = StoreError::from(fault);
                jobs.into_iter().for_each(|job| job.answer(Err(error.clone())));
            }
        }
    }
}

async fn undo(link: &Link) {
    // If the link is broken, or breaks now, the server undoes the transaction by itself.
    if link.is_usable() {
        let _ = link.within(link.client.batch_execute("ROLLBACK")).await;
    }
}

/// Answers commits that no lane takes up in time, until the queue is finished.
pub(crate) async fn expire(queue: Arc<Queue>) {
    while !queue.is_finished() {
        queue.expire();
        sleep(EXPIRE_EVERY).await;
    }
}
