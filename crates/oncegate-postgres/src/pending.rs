//! A commit on its way, and the caller that waits for its answer.

use std::time::{Duration, Instant};

use oncegate_core::{ClaimKey, Command};
use oncegate_store::{Change, Commit, Committed, StoreError};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// The time from the call to the last moment at which a pipeline may still take the commit up.
const TAKEN_UP_WITHIN: Duration = Duration::from_millis(2500);
/// How often a commit may lose its race before the store gives it up.
const RACES_MAX: u32 = 32;

pub(crate) type Reply = Result<Committed, StoreError>;

pub(crate) struct Pending {
    pub commit: Commit,
    /// Written in its own batch, so that its faults affect no other commit.
    pub alone: bool,
    /// Writes nothing but the mark of its connection, to show that a commit succeeds.
    pub is_probe: bool,
    races: u32,
    reply: oneshot::Sender<Reply>,
    late_at: Instant,
    room: OwnedSemaphorePermit,
}

impl Pending {
    pub fn new(commit: Commit, is_probe: bool, room: OwnedSemaphorePermit) -> (Pending, oneshot::Receiver<Reply>) {
        let (reply, answer) = oneshot::channel();
        let late_at = Instant::now() + TAKEN_UP_WITHIN;
        (Pending { commit, alone: false, is_probe, races: 0, reply, late_at, room }, answer)
    }

    /// Whether it has several writes, which succeed or fail together.
    pub fn is_whole(&self) -> bool {
        self.commit.ops.len() != 1 || !self.commit.changes.is_empty()
    }

    pub fn answer(self, reply: Reply) {
        // A caller that has gone away wants no answer.
        let _ = self.reply.send(reply);
    }

    /// The caller no longer waits for the answer.
    pub fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    pub fn is_late(&self, now: Instant) -> bool {
        self.late_at <= now
    }

    /// Another commit was first, or the decision was no longer valid.
    pub fn lost_a_race(&mut self) {
        self.races += 1;
    }

    /// Whether retrying no longer makes sense.
    pub fn is_hopeless(&self, now: Instant) -> bool {
        self.races > RACES_MAX || self.is_late(now)
    }

    pub fn keys(&self) -> impl Iterator<Item = &ClaimKey> {
        self.commit.ops.iter().map(|op| &op.key)
    }

    pub fn weight(&self) -> usize {
        self.room.num_permits()
    }
}

/// The weight of a commit: one for each operation and change, and one for each KiB of data in them.
pub(crate) fn weigh(commit: &Commit) -> u32 {
    let option = |bytes: &Option<bytes::Bytes>| bytes.as_ref().map_or(0, |bytes| bytes.len());
    let of_ops = commit.ops.iter().map(|op| match &op.command {
        Command::Settle { outcome, .. } | Command::Resolve { outcome, .. } => option(outcome),
        Command::Claim(terms) => {
            let texts = [&terms.parts, &terms.attributes].into_iter().flatten().map(String::len);
            texts.sum::<usize>() + option(&terms.outcome)
        }
        Command::Renew { .. }
        | Command::Release { .. }
        | Command::Abandon { .. }
        | Command::Retract { .. }
        | Command::Forget => 0,
    });
    let bytes = of_ops.sum::<usize>() + commit.changes.iter().map(Change::bytes).sum::<usize>();
    u32::try_from(commit.ops.len() + commit.changes.len() + bytes / 1024).unwrap_or(u32::MAX)
}
