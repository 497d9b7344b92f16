//! Jobs: work that a worker leases and does once it is due.
//!
//! A message to send, a scheduled action, a command of a saga and a reminder are all rows of one queue, under one
//! set of rules. A worker leases a job under a token that grows with every lease, and finishes the job under that token.
//! A worker that was paused past its lease is refused. [`decide`] is the only place that defines what a command does.
//!
//! The queue holds live work only. A job that has ended leaves the queue in the commit that writes its end on the record
//! that the job is for. People look at the record.

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

/// The error of a try whose worker was lost before it could report one.
pub const WORKER_LOST: &str = "its worker was lost";

/// The state of a job in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Waits until it is due and a worker leases it.
    Pending,
    /// A worker has leased it. That worker may be lost since.
    Running,
}

/// How a job leaves the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The worker has done the job.
    Completed,
    /// The effect surely did not happen, and there are no more tries (dead letter).
    Dead,
    /// The effect may have happened, and must not happen twice; or it was still in doubt after the last try.
    Unknown,
    /// A person has cancelled the job while no try was under way.
    Cancelled,
}

/// Whether to retry after a try that may or may not have reached the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// Retry under the same idempotency key, for receivers that honour it.
    AtLeastOnce,
    /// Do not retry.
    AtMostOnce,
}

/// The number of tries, and the backoff between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tries {
    /// The most tries of a job.
    pub max: i32,
    /// The backoff between the first try and the second. It doubles with each further try, less a jitter.
    pub pause: Duration,
    /// The longest backoff.
    pub pause_max: Duration,
}

/// Whether a try reached the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reached {
    /// Surely not.
    No,
    /// The try may have reached the receiver, so the effect may have happened.
    Maybe,
}

/// The record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    /// The workspace that owns the job.
    pub workspace: WorkspaceName,
    /// Also the idempotency key that every try sends to the receiver, and the id of the record that the job is for.
    pub id: Uuid,
    /// Which handler the job is for.
    pub kind: String,
    /// What the handler needs for the job, in the handler's own format.
    pub payload: Bytes,
    /// The group of the job. Jobs of one group never run at the same time: the job that has started holds the group until it ends.
    pub lane: Option<String>,
    /// Whether the job waits, or a worker has leased it.
    pub state: State,
    /// A worker has leased it, so it holds its group until it ends, even while it waits for a retry or after it was given back.
    pub started: bool,
    /// When the job may run at the earliest. A failed try moves it by the backoff.
    pub due_at: Time,
    /// The job waits for its group until this time, even if it is due. It is woken earlier when the group becomes free.
    pub postponed_until: Time,
    /// The token of the last lease.
    pub token: Token,
    /// The end of the last lease. It counts only while the job is `Running`.
    pub lease_until: Time,
    /// Grows by one with each write. A write is a compare-and-set on the version that it was decided from.
    pub version: i64,
    /// The number of tries that have begun.
    pub tried: i32,
    /// How many tries the job gets, and the backoff between them.
    pub tries: Tries,
    /// Whether to retry after a try that may have reached the receiver.
    pub delivery: Delivery,
    /// The try of this lease may be under way. With `AtMostOnce` it begins only after the worker has written `Begin`;
    /// with `AtLeastOnce` every lease counts as a try.
    pub begun: bool,
    /// Whether any try may have reached the receiver.
    pub reached: Reached,
    /// When the job was made. Neither a retry nor a new run changes it.
    pub created_at: Time,
    /// Why the last try failed.
    pub error: Option<String>,
}

impl Job {
    /// A new job that no worker has leased: due at once, in no group, delivered at least once.
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

    /// Whether a worker has leased the job and that lease has not ended at `now`.
    pub fn is_leased(&self, now: Time) -> bool {
        self.state == State::Running && now < self.lease_until
    }

    /// When a worker must look at the job next: to run it, or to take it over from a lost worker.
    pub fn wakes_at(&self) -> Time {
        match self.state {
            State::Pending => self.due_at.max(self.postponed_until),
            State::Running => self.lease_until,
        }
    }

    /// No worker has ever leased the job, so it may still be revised. A job that was leased and given back may not be revised,
    /// because a caller may have seen it start and acted on that.
    pub fn is_untouched(&self) -> bool {
        !self.started && self.token == Token(0)
    }

    /// The same job, reset to run again from the beginning at `due_at`.
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

    /// For the worker that has leased the job: how the job ends without another try, or `None` if the worker must try it.
    pub fn fate(&self) -> Option<End> {
        match self.delivery {
            Delivery::AtMostOnce if self.reached == Reached::Maybe => Some(End::Unknown),
            _ if self.tried > self.tries.max => Some(self.given_up()),
            _ => None,
        }
    }

    /// How the job ends when there are no more tries.
    fn given_up(&self) -> End {
        match self.reached {
            Reached::No => End::Dead,
            Reached::Maybe => End::Unknown,
        }
    }

    /// Until when a decision of the worker is valid. After its lease ends, the worker no longer owns the job.
    pub fn stands_until(&self) -> Time {
        match self.state {
            State::Pending => Time::NEVER,
            State::Running => self.lease_until,
        }
    }
}

/// A command on a job. A command with a token is the command of the worker that has leased the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A worker takes the job.
    Lease {
        /// How long the worker may go without a renewal before it counts as lost.
        lease: Duration,
    },
    /// The worker is still at work.
    Renew {
        /// The token of the worker's lease.
        token: Token,
        /// The length of the new lease, counted from now. A renewal never shortens the lease.
        lease: Duration,
    },
    /// The worker is about to try: from here on the effect may happen.
    Begin {
        /// The token of the worker's lease.
        token: Token,
    },
    /// The worker has done the job. The job leaves the queue.
    Complete {
        /// The token of the worker's lease.
        token: Token,
    },
    /// The worker's try has failed. The job waits for a retry, or ends.
    Fail {
        /// The token of the worker's lease.
        token: Token,
        /// How the try failed. This decides whether there is a retry, and when.
        failure: Failure,
    },
    /// The worker ends the job as [`Job::fate`] says.
    GiveUp {
        /// The token of the worker's lease.
        token: Token,
    },
    /// The worker stops without having begun, as if it had not leased the job.
    GiveBack {
        /// The token of the worker's lease.
        token: Token,
    },
    /// The worker has found, without a try, that the job cannot be done before `until`. The job becomes as if it had not been
    /// leased, and is due at `until`.
    PutOff {
        /// The token of the worker's lease.
        token: Token,
        /// When the job is due again.
        until: Time,
        /// The reason, which becomes the job's `error`.
        why: String,
    },
    /// Another job of its group has started. The job waits until it is woken, or until `until`.
    Postpone {
        /// When the job may be leased again without a wake-up.
        until: Time,
    },
    /// Changes the payload and the due time of an untouched job.
    Revise {
        /// Replaces the payload of the job.
        payload: Bytes,
        /// Replaces the due time of the job.
        due_at: Time,
    },
    /// A person ends the job. A live worker's job is refused. If a lost worker had begun its try, the job ends as `Unknown`.
    Cancel,
    /// A person makes a pending job due at once.
    RunNow,
}

/// A try that has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why the try failed, for people.
    pub error: String,
    /// Whether the try reached the receiver.
    pub reached: Reached,
    /// A retry would fail in the same way.
    pub is_final: bool,
    /// The receiver may have asked for a delay. The retry waits for the longer of this delay and the backoff.
    pub retry_in: Option<Duration>,
}

impl Failure {
    /// The effect surely did not happen, and a retry would not help.
    pub fn refused(error: impl Into<String>) -> Failure {
        Failure { is_final: true, ..Failure::of(error, Reached::No) }
    }

    /// The effect surely did not happen. A retry may succeed, after this delay if the receiver has asked for one.
    pub fn busy(error: impl Into<String>, retry_in: Option<Duration>) -> Failure {
        Failure { retry_in, ..Failure::of(error, Reached::No) }
    }

    /// The effect may have happened.
    pub fn unknown(error: impl Into<String>) -> Failure {
        Failure::of(error, Reached::Maybe)
    }

    /// A failure that may be retried. The error may quote the receiver. Control characters are replaced, because stores refuse them and
    /// terminals obey them.
    pub fn of(error: impl Into<String>, reached: Reached) -> Failure {
        let error = error.into().replace(char::is_control, " ");
        Failure { error, reached, is_final: false, retry_in: None }
    }
}

/// With `?`, the effect counts as one that may have happened.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::unknown(error.to_string())
    }
}

/// The result of a command, and what to write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "most of them carry a job")]
pub enum Decision {
    /// The job stays in the queue, with this content.
    Keep(Job),
    /// The job leaves the queue.
    End(End),
    /// The command changes nothing, for this reason.
    Refuse(Refusal),
}

/// Why a command on a job changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The job cannot be leased yet: it is not due, or it is postponed.
    #[error("it is due at {at}")]
    NotDue {
        /// When the job can be leased.
        at: Time,
    },
    /// A worker has leased the job.
    #[error("a worker has it until {until}")]
    Leased {
        /// The end of that lease. It may be past, if the worker is lost.
        until: Time,
    },
    /// The command's token is not the token of the last lease.
    #[error("the token is not that of the last lease")]
    TokenOutdated,
    /// The worker's lease has ended, so the worker no longer owns the job.
    #[error("the lease ended at {at}")]
    LeaseEnded {
        /// The end of the lease.
        at: Time,
    },
    /// The job is pending: the worker has already given it back or failed.
    #[error("no worker has leased it")]
    NotLeased,
    /// The command is `GiveUp`, but [`Job::fate`] says that the worker must try the job.
    #[error("it has more tries")]
    NotGivenUp,
    /// The command is `Revise`, but a worker has already leased the job.
    #[error("it has started")]
    Started,
}
