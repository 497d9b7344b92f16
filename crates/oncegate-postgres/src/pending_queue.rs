//! Commits on their way: waiting to be read and decided, or waiting to be written.
//!
//! Bounded in number, bytes and time: a commit that no pipeline takes up in time is answered, not forgotten. While the server is known to
//! be away, no caller waits at all.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use oncegate_store::{Commit, StoreError};
use tokio::sync::{Notify, Semaphore, oneshot};

use crate::decide::Decided;
use crate::line::{InLine, Line};
use crate::pending::{Pending, Reply, weigh};

/// The total weight of commits on their way, by [`weigh`].
const QUEUE_WEIGHT_MAX: usize = 128 * 1024;
/// How long the server has to be away before callers get an error at once.
const PATIENCE: Duration = Duration::from_secs(1);

pub(crate) struct PendingQueue {
    lines: Mutex<Lines>,
    some_unread: Notify,
    some_decided: Notify,
    room: Arc<Semaphore>,
}

#[derive(Default)]
struct Lines {
    unread: Line<Pending>,
    decided: Line<Decided>,
    is_closed: bool,
    pipelines_up: usize,
    away: Option<(Instant, String)>,
}

impl PendingQueue {
    pub fn new() -> PendingQueue {
        let room = Arc::new(Semaphore::new(QUEUE_WEIGHT_MAX));
        PendingQueue { lines: Mutex::default(), some_unread: Notify::new(), some_decided: Notify::new(), room }
    }

    /// Adds a commit to the queue.
    pub fn push(&self, commit: Commit) -> Result<oneshot::Receiver<Reply>, StoreError> {
        let weight = weigh(&commit);
        self.push_job(commit, weight, false)
    }

    /// Adds a commit that writes nothing. Its answer shows that a commit succeeds, and that all earlier commits are as durable as this
    /// one.
    pub fn push_probe(&self) -> Result<oneshot::Receiver<Reply>, StoreError> {
        self.push_job(Commit::default(), 1, true)
    }

    fn push_job(&self, commit: Commit, weight: u32, is_probe: bool) -> Result<oneshot::Receiver<Reply>, StoreError> {
        if weight as usize > QUEUE_WEIGHT_MAX {
            return Err(StoreError::Refused("this is more than one commit may bring".into()));
        }
        let Ok(room) = self.room.clone().try_acquire_many_owned(weight) else {
            return Err(StoreError::Unavailable("too many operations wait for the server".into()));
        };
        let (job, answer) = Pending::new(commit, is_probe, room);
        let mut lines = self.lock();
        if lines.is_closed {
            return Err(StoreError::Unavailable("the store is closed".into()));
        }
        if let Some((since, why)) = &lines.away
            && lines.pipelines_up == 0
            && since.elapsed() > PATIENCE
        {
            return Err(StoreError::Unavailable(why.clone()));
        }
        lines.unread.push_back(job);
        drop(lines);
        self.some_unread.notify_one();
        Ok(answer)
    }

    /// Adds commits that are to be written.
    pub fn push_decided(&self, decided: Vec<Decided>) {
        if !decided.is_empty() {
            self.lock().decided.extend(decided);
            self.some_decided.notify_one();
        }
    }

    /// Returns commits that a pipeline could not finish to the head of the queue. Answers them with `why` after too many tries.
    pub fn push_again(&self, jobs: Vec<Pending>, why: &str) {
        let now = Instant::now();
        let (given_up, again): (Vec<Pending>, Vec<Pending>) = jobs.into_iter().partition(|job| job.is_hopeless(now));
        given_up.into_iter().for_each(|job| job.answer(Err(StoreError::Unavailable(why.into()))));
        if !again.is_empty() {
            self.lock().unread.push_front(again);
            self.some_unread.notify_one();
        }
    }

    /// A batch of commits to read; `None` when the queue is finished.
    pub async fn next_unread(&self) -> Option<Vec<Pending>> {
        self.next(&self.some_unread, |lines| &mut lines.unread).await
    }

    /// A batch of commits to write; `None` when the queue is finished.
    pub async fn next_decided(&self) -> Option<Vec<Decided>> {
        self.next(&self.some_decided, |lines| &mut lines.decided).await
    }

    async fn next<T: InLine>(&self, some: &Notify, line: fn(&mut Lines) -> &mut Line<T>) -> Option<Vec<T>> {
        loop {
            let mut ready = std::pin::pin!(some.notified());
            ready.as_mut().enable();
            {
                let mut lines = self.lock();
                let (batch, orphans) = line(&mut lines).take_batch();
                if !orphans.is_empty() {
                    lines.unread.push_front(orphans);
                    self.some_unread.notify_one();
                }
                if !line(&mut lines).is_empty() {
                    some.notify_one();
                }
                if !batch.is_empty() {
                    return Some(batch);
                }
                if lines.is_closed && self.is_idle() {
                    return None;
                }
            }
            ready.await;
        }
    }

    /// Answers commits whose time has passed.
    pub fn expire(&self) {
        let now = Instant::now();
        let mut lines = self.lock();
        let why = lines.away.as_ref().map_or("the server is too slow", |(_, why)| why).to_owned();
        let unread = lines.unread.take_late(now);
        let decided = lines.decided.take_late(now);
        drop(lines);
        let late = unread.into_iter().chain(decided.into_iter().flat_map(Decided::into_jobs));
        late.for_each(|job| job.answer(Err(StoreError::Unavailable(why.clone()))));
    }

    /// Accepts no more commits. The pipelines still finish the ones on their way.
    pub fn close(&self) {
        self.lock().is_closed = true;
    }

    /// Whether the queue is closed and all commits are answered. Then it wakes the pipelines, so that they end.
    pub fn is_finished(&self) -> bool {
        let is_finished = self.lock().is_closed && self.is_idle();
        if is_finished {
            self.some_unread.notify_waiters();
            self.some_decided.notify_waiters();
        }
        is_finished
    }

    fn is_idle(&self) -> bool {
        self.room.available_permits() == QUEUE_WEIGHT_MAX
    }

    pub fn pipeline_is_up(&self) {
        let mut lines = self.lock();
        lines.pipelines_up += 1;
        lines.away = None;
    }

    pub fn pipeline_is_down(&self) {
        self.lock().pipelines_up -= 1;
    }

    pub fn server_is_away(&self, why: &str) {
        let mut lines = self.lock();
        let since = lines.away.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        lines.away = Some((since, why.to_owned()));
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().expect("no holder of this lock panics")
    }
}
