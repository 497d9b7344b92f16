//! Jobs: something to do once it is due, by whoever leases it.
//!
//! A message to send, a scheduled action, a command of a saga, a reminder: all of them are rows of one queue, under one
//! set of rules. A worker leases a job under a token that grows with every lease, and finishes it under that token;
//! one that was paused past its lease is refused. [`decide`] is the only place where it is said what a command does.
//!
//! The queue holds live work only. What has ended leaves it, in the commit that writes down how it ended on the record that
//! the job is for: the record is what people look at.

mod decide;
mod share;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use crate::claim::Token;
use crate::names::WorkspaceName;
use crate::time::Time;

pub use decide::decide;
pub use share::{Due, Share, share};

/// Why a try failed whose worker did not live to say so.
pub const WORKER_LOST: &str = "its worker was lost";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Waits until it is due and somebody leases it.
    Pending,
    /// A worker has it, or had it when it was lost.
    Running,
}

/// How a job leaves the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    Completed,
    /// It surely did not happen, and there are no more tries.
    Dead,
    /// It may have happened, and must not happen twice; or nobody could tell until the last try.
    Unknown,
    Cancelled,
}

/// What becomes of a try of which nobody can say whether it reached anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// It is repeated, under the same key: for receivers that honour it.
    AtLeastOnce,
    /// It is not repeated.
    AtMostOnce,
}

/// How often, and how far apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tries {
    pub max: i32,
    /// Between the first and the second. It doubles from try to try,
    pub pause: Duration,
    /// up to this.
    pub pause_max: Duration,
}

/// Whether a try reached anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reached {
    /// Surely not.
    No,
    Maybe,
}

/// The record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    pub workspace: WorkspaceName,
    /// Also the key under which every try reaches the receiver, and the id of the record that the job is for.
    pub id: Uuid,
    /// What to do: which handler it is for.
    pub kind: String,
    pub payload: Bytes,
    /// Jobs in one lane are not at work at the same time: the one that has started has the lane until it ends.
    pub lane: Option<String>,
    pub state: State,
    /// A worker has leased it, and it has its lane until it ends: also while it waits for another try, or was given back.
    pub started: bool,
    pub due_at: Time,
    /// It waits for its lane until then, though it is due. When the lane is free, it is woken before.
    pub postponed_until: Time,
    /// Of the last lease.
    pub token: Token,
    pub lease_until: Time,
    /// Grows by one with each write: a write is made only onto the version it was decided from.
    pub version: i64,
    /// Tries that have begun.
    pub tried: i32,
    pub tries: Tries,
    pub delivery: Delivery,
    /// The try of this lease may be under way. What is sent at most once is not, until its worker has written down that
    /// it begins; otherwise a lease is as good as a try.
    pub begun: bool,
    /// Whether any try may have reached the receiver.
    pub reached: Reached,
    pub created_at: Time,
    /// Why the last try failed.
    pub error: Option<String>,
}

impl Job {
    /// A new one, that nobody has leased: due at once, in no lane, to be done at least once.
    pub fn new(
        workspace: &WorkspaceName,
        id: Uuid,
        kind: impl Into<String>,
        payload: Bytes,
        tries: Tries,
        now: Time,
    ) -> Job {
        Job {
            workspace: workspace.clone(),
            id,
            kind: kind.into(),
            payload,
            lane: None,
            state: State::Pending,
            started: false,
            due_at: now,
            postponed_until: Time::LONG_AGO,
            token: Token(0),
            lease_until: Time::LONG_AGO,
            version: 1,
            tried: 0,
            tries,
            delivery: Delivery::AtLeastOnce,
            begun: false,
            reached: Reached::No,
            created_at: now,
            error: None,
        }
    }

    pub fn is_leased(&self, now: Time) -> bool {
        self.state == State::Running && now < self.lease_until
    }

    /// When somebody has to look at it next: to run it, or to see to it that its worker is gone.
    pub fn wakes_at(&self) -> Time {
        match self.state {
            State::Pending => self.due_at.max(self.postponed_until),
            State::Running => self.lease_until,
        }
    }

    /// Nobody has ever leased it: it may still become something else. What was leased and given back may not, since somebody may have
    /// seen it start, and gone on from there.
    pub fn is_untouched(&self) -> bool {
        !self.started && self.token == Token(0)
    }

    /// The same job from the beginning, for the next time that it is due.
    pub fn again(&self, payload: Bytes, due_at: Time) -> Job {
        Job {
            payload,
            due_at,
            state: State::Pending,
            started: false,
            postponed_until: Time::LONG_AGO,
            version: self.version + 1,
            tried: 0,
            begun: false,
            reached: Reached::No,
            error: None,
            ..self.clone()
        }
    }

    /// To whoever has leased it: how it ends without another try, or `None` if it is to be tried.
    pub fn fate(&self) -> Option<End> {
        match self.delivery {
            Delivery::AtMostOnce if self.reached == Reached::Maybe => Some(End::Unknown),
            _ if self.tried > self.tries.max => Some(self.given_up()),
            _ => None,
        }
    }

    /// There are no more tries.
    fn given_up(&self) -> End {
        match self.reached {
            Reached::No => End::Dead,
            Reached::Maybe => End::Unknown,
        }
    }

    /// Up to when a decision of its worker stands: past its lease it is no longer the worker's.
    pub fn stands_until(&self) -> Time {
        match self.state {
            State::Pending => Time::NEVER,
            State::Running => self.lease_until,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A worker takes it.
    Lease {
        lease: Duration,
    },
    /// The worker is still at it.
    Renew {
        token: Token,
        lease: Duration,
    },
    /// The worker is about to do it: from here on it may happen.
    Begin {
        token: Token,
    },
    Complete {
        token: Token,
    },
    Fail {
        token: Token,
        failure: Failure,
    },
    /// The worker writes down what [`Job::fate`] says.
    GiveUp {
        token: Token,
    },
    /// The worker stops without having begun: as if it had not leased it.
    GiveBack {
        token: Token,
    },
    /// The worker has found that it cannot be done before then, and has not tried: as if it had not leased it, and no sooner.
    PutOff {
        token: Token,
        until: Time,
        why: String,
    },
    /// Another in its lane has started: it has to wait, until woken or until then.
    Postpone {
        until: Time,
    },
    /// It is to be something else, at another time; if it is untouched.
    Revise {
        payload: Bytes,
        due_at: Time,
    },
    /// A person's verbs.
    Cancel,
    RunNow,
}

/// A try that has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub error: String,
    pub reached: Reached,
    /// The same again would fail again.
    pub is_final: bool,
    /// The receiver may have said when to come back; no sooner than the next try is due anyway.
    pub retry_in: Option<Duration>,
}

/// What became of a command, and what to write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "most of them carry a job")]
pub enum Decision {
    /// It stays in the queue, like this.
    Keep(Job),
    /// It leaves the queue.
    End(End),
    Refuse(Refusal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("it is due at {at}")]
    NotDue { at: Time },
    #[error("a worker has it until {until}")]
    Leased { until: Time },
    #[error("the token is not that of the last lease")]
    TokenOutdated,
    #[error("the lease ended at {at}")]
    LeaseEnded { at: Time },
    #[error("nobody has leased it")]
    NotLeased,
    #[error("it has more tries")]
    NotGivenUp,
    #[error("it has started")]
    Started,
}
