//! Pipelines: connection loops with one connection each, which process a batch at a time.
//!
//! Reading pipelines read the records of waiting commits and decide. A commit that changes nothing is answered at once, without a COMMIT,
//! unless it is refused or the server is in doubt. Writing pipelines write the others conditionally and commit. A commit that lost a race,
//! or whose connection broke before COMMIT, returns to the head of the queue.

use std::sync::Arc;
use std::time::Duration;

use oncegate_store::StoreError;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::batch::{Batch, Review};
use crate::commit::{Outcome, commit, confirm};
use crate::connection::Connection;
use crate::decide::{Decided, Keys, decide_all};
use crate::fault::Fault;
use crate::listen::Channel;
use crate::mark::{self, Acknowledged, COMMITS_MAX, Found, Mark, find, find_loss, raise_floor};
use crate::pending::Pending;
use crate::pending_queue::PendingQueue;
use crate::row::read;
use crate::server::{CONNECT_PAUSE, Server};
use crate::write::write;
use crate::written::Written;

/// How often the queue is searched for commits that waited too long.
const EXPIRE_EVERY: Duration = Duration::from_millis(50);

/// The error text when a server was replaced, and no time is left to ask the next one.
const MOVED: &str = "the server was replaced by another";
/// The error text for commits that lost too many races, or had no time for another try.
const LOST: &str = "other writers were faster, every time; try again";

pub(crate) struct Pipeline {
    pub queue: Arc<PendingQueue>,
    pub server: Arc<Server>,
    pub channel: Arc<Channel>,
}

/// What a pipeline remembers about its earlier connections.
#[derive(Default)]
struct Past {
    /// The last commit that was acknowledged.
    acknowledged: Option<Acknowledged>,
    /// The last commit whose outcome could not be found out.
    unresolved: Option<Mark>,
}

impl Past {
    /// How many commits were acknowledged over a connection.
    fn commits(&self, connection_id: Uuid) -> i64 {
        self.acknowledged.filter(|last| last.mark.connection_id == connection_id).map_or(0, |last| last.mark.number)
    }
}

/// A connection for writing, and its mark.
struct Writing {
    connection: Connection,
    connection_id: Uuid,
}

impl Pipeline {
    /// Reads and decides until the queue is finished. Uses `first` as its first connection.
    pub async fn keep_reading(self, first: Connection) {
        let mut first = Some(first);
        while let Some(connection) = self.connect(&mut first).await {
            self.queue.pipeline_is_up();
            while connection.is_usable() {
                let next = tokio::select! {
                    next = self.queue.next_unread() => next,
                    () = connection.closed() => break,
                };
                match next {
                    Some(jobs) if connection.is_usable() => self.read(&connection, jobs).await,
                    // The replica met another server while this pipeline waited.
                    Some(jobs) => self.queue.push_again(jobs, MOVED),
                    None => break,
                }
            }
            self.queue.pipeline_is_down();
        }
    }

    /// Writes and commits until the queue is finished. Uses `first` as its first connection.
    pub async fn keep_writing(self, first: Connection) {
        let mut first = Some(first);
        let mut past = Past::default();
        while let Some(Writing { connection, mut connection_id }) = self.connect_to_write(&mut first, &mut past).await {
            self.queue.pipeline_is_up();
            while connection.is_usable() {
                if past.commits(connection_id) >= COMMITS_MAX {
                    match mark::add(&connection).await {
                        Ok(next) => connection_id = next,
                        Err(_) => break,
                    }
                }
                let next = tokio::select! {
                    next = self.queue.next_decided() => next,
                    () = connection.closed() => break,
                };
                match next {
                    Some(decided) => {
                        let is_read_here =
                            |decided: &Decided| connection.is_usable() && decided.generation == connection.generation;
                        let (here, elsewhere): (Vec<_>, Vec<_>) = decided.into_iter().partition(is_read_here);
                        self.queue.push_again(elsewhere.into_iter().flat_map(Decided::into_jobs).collect(), MOVED);
                        if !here.is_empty() {
                            self.write(&connection, connection_id, here, &mut past).await;
                        }
                    }
                    None => break,
                }
            }
            self.queue.pipeline_is_down();
        }
    }

    /// Retries until it has a connection; `None` once the queue is finished. Returns `first` if that has not been used.
    async fn connect(&self, first: &mut Option<Connection>) -> Option<Connection> {
        while !self.queue.is_finished() {
            let linked = match first.take() {
                Some(connection) => Ok(connection),
                None => Connection::open_for_probes(self.server.clone()).await,
            };
            match linked {
                Ok(connection) => return Some(connection),
                Err(fault) => self.pause_after(&fault).await,
            }
        }
        None
    }

    async fn connect_to_write(&self, first: &mut Option<Connection>, past: &mut Past) -> Option<Writing> {
        while let Some(connection) = self.connect(first).await {
            match self.begin_writing(connection, past).await {
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
    async fn begin_writing(&self, connection: Connection, past: &mut Past) -> Result<Writing, Fault> {
        let health = &self.server.health;
        // Every further commit would wait as this one does, and keep a backend.
        if let Some(mark) = &past.unresolved
            && matches!(find(&connection, mark).await?, Found::Open)
        {
            return Err(Fault::Unable(
                "an earlier commit of this replica is still open: it may wait for a standby".into(),
            ));
        }
        if let Some(last) = &past.acknowledged
            && let Some(loss) = find_loss(&connection, last).await?
        {
            health.lost(&loss);
            past.acknowledged = None;
        }
        if !health.has_raised_floor(&connection.identity) {
            raise_floor(&connection).await?;
            health.raised_floor(&connection.identity);
        }
        let connection_id = mark::add(&connection).await?;
        Ok(Writing { connection, connection_id })
    }

    async fn read(&self, connection: &Connection, jobs: Vec<Pending>) {
        let Keys { distinct, places } = Keys::of(&jobs);
        match read(connection, &distinct).await {
            Ok(records) if connection.is_usable() => self.queue.push_decided(decide_all(jobs, &places, &records)),
            Ok(_) => self.queue.push_again(jobs, MOVED),
            Err(fault) => self.give_back(jobs, fault),
        }
    }

    async fn write(&self, connection: &Connection, connection_id: Uuid, decided: Vec<Decided>, past: &mut Past) {
        let (batch, later) = Batch::of(decided);
        self.queue.push_again(later, LOST);
        match write(connection, connection_id, &self.channel, &batch).await {
            Ok(written) => self.conclude(connection, batch, written, past).await,
            Err(fault) => {
                match &fault {
                    Fault::Unable(why) => self.server.health.refused(why),
                    _ => self.server.health.failed(),
                }
                undo(connection).await;
                self.give_back(batch.into_jobs(), fault);
            }
        }
    }

    /// Commits the writes of a batch that took effect. Undoes the batch if nothing did, or if some commit was written in part: a commit
    /// of several writes takes effect completely or not at all.
    async fn conclude(&self, connection: &Connection, batch: Batch, written: Written, past: &mut Past) {
        let again = match batch.review(&written) {
            Review::Stands => return self.commit(connection, batch, written, past).await,
            Review::Nothing => batch.into_losers(),
            Review::Partly => batch.answer_partly(&written),
        };
        undo(connection).await;
        self.queue.push_again(again, LOST);
    }

    async fn commit(&self, connection: &Connection, batch: Batch, written: Written, past: &mut Past) {
        let (health, mark) = (&self.server.health, written.seal.mark);
        let doubts = health.doubts();
        // After the doubts were read. A replaced server commits nothing more for this replica.
        if !connection.is_current() {
            undo(connection).await;
            return self.queue.push_again(batch.into_jobs(), MOVED);
        }
        let outcome = match batch.is_probe() {
            true => confirm(connection).await,
            false => commit(connection, &written.seal).await,
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
    fn give_back(&self, mut jobs: Vec<Pending>, fault: Fault) {
        match fault {
            Fault::Gone(why) => self.queue.push_again(jobs, &why),
            Fault::Conflict(why) => {
                jobs.iter_mut().for_each(Pending::lost_a_race);
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

async fn undo(connection: &Connection) {
    // If the connection is broken, or breaks now, the server undoes the transaction by itself.
    if connection.is_usable() {
        let _ = connection.within(connection.client.batch_execute("ROLLBACK")).await;
    }
}

/// Answers commits that no pipeline takes up in time, until the queue is finished.
pub(crate) async fn expire(queue: Arc<PendingQueue>) {
    while !queue.is_finished() {
        queue.expire();
        sleep(EXPIRE_EVERY).await;
    }
}
