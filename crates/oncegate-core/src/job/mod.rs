//! Jobs: something to do once it is due, by whoever leases it.
//!
//! A message to send, a scheduled action, a command of a saga, a reminder: all of them are rows of one queue, under one
//! set of rules. A worker leases a job under a token that grows with every lease, and finishes it under that token;
//! one that was paused past its lease is refused. [`decide`] is the only place where it is said what a command does.

mod decide;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use crate::claim::Token;
use crate::names::WorkspaceName;
use crate::time::Time;

pub use decide::decide;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Waits until it is due and somebody leases it.
    Pending,
    /// A worker has it.
    Running,
    Completed,
    /// All tries have failed. A person can have it tried again.
    Dead,
    /// It may have happened, and must not happen twice. A person looks.
    Unknown,
    Cancelled,
}

impl State {
    pub const ALL: [State; 6] =
        [State::Pending, State::Running, State::Completed, State::Dead, State::Unknown, State::Cancelled];

    pub const fn as_str(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Running => "running",
            State::Completed => "completed",
            State::Dead => "dead",
            State::Unknown => "unknown",
            State::Cancelled => "cancelled",
        }
    }

    pub fn parse(name: &str) -> Option<State> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tries {
    pub max: i32,
    /// Between the first and the second. It doubles from try to try,
    pub pause: Duration,
    /// up to this.
    pub pause_max: Duration,
}

/// The record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub workspace: WorkspaceName,
    /// Also the key under which every try reaches the receiver.
    pub id: Uuid,
    /// What to do: which handler it is for.
    pub kind: String,
    pub payload: Bytes,
    /// As written. What others see is [`Job::state_at`].
    pub state: State,
    pub due_at: Time,
    /// Of the last lease.
    pub token: Token,
    pub lease_until: Time,
    /// Grows by one with each write: a write is made only onto the version it was decided from.
    pub version: i64,
    /// Tries that have begun.
    pub tried: i32,
    pub tries: Tries,
    pub delivery: Delivery,
    pub created_at: Time,
    pub ended_at: Option<Time>,
    /// Why the last try failed.
    pub error: Option<String>,
}

impl Job {
    pub fn is_leased(&self, now: Time) -> bool {
        self.state == State::Running && now < self.lease_until
    }

    /// How the job stands. A worker that is gone has left it to the next one, if there is to be a next one; that holds
    /// from the moment its lease ends, without anybody having to write it down.
    pub fn state_at(&self, now: Time) -> State {
        match self.state {
            State::Running if !self.is_leased(now) => decide::after_loss(self),
            state => state,
        }
    }
}

/// Whether a try that failed reached anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reached {
    /// Surely not.
    No,
    Maybe,
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
    Complete {
        token: Token,
    },
    /// A try has failed. The receiver may have said when to come back.
    Fail {
        token: Token,
        error: String,
        reached: Reached,
        retry_in: Option<Duration>,
    },
    /// The worker stops without having begun: as if it had not leased it.
    GiveBack {
        token: Token,
    },
    /// A person's verbs.
    Cancel,
    Retry,
    RunNow,
}

/// What became of a command, and what to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Write(Job),
    /// It is so already: an answer was lost, and the command came again.
    Already,
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
    #[error("it is {}", state.as_str())]
    WrongState { state: State },
}
