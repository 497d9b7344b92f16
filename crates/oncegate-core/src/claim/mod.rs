//! Claims: the record, the commands on it, and the answers.
//!
//! A claim is a durable record under a key, made by whoever comes first, settled
//! once, and read by everyone who comes later. [`decide`] is the only place where
//! it is said what a command does to it.

mod decide;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::key::ClaimKey;
use crate::policy::Lost;
use crate::time::Time;

pub use decide::decide;

/// A fencing token: larger for each new owner of the same key, for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub i64);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How a claim stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Its owner is at work.
    InFlight,
    /// The effect happened.
    Done,
    /// The effect did not happen, and will not under this claim.
    Failed,
    /// Nobody can say whether the effect happened. A person or a reconcile hook settles it.
    Unknown,
}

impl State {
    pub const ALL: [State; 4] = [State::InFlight, State::Done, State::Failed, State::Unknown];

    pub const fn as_str(self) -> &'static str {
        match self {
            State::InFlight => "in_flight",
            State::Done => "done",
            State::Failed => "failed",
            State::Unknown => "unknown",
        }
    }

    pub fn parse(name: &str) -> Option<State> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    pub const fn is_settled(self) -> bool {
        matches!(self, State::Done | State::Failed)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub key: ClaimKey,
    /// As written. What a caller sees is [`Claim::state_at`].
    pub state: State,
    pub token: Token,
    /// Grows by one with each write: a write is made only onto the version it was decided from.
    pub version: i64,
    /// Which owner this is: 1, and one more for each take-over.
    pub attempt: i32,
    pub lost: Lost,
    pub lease: Duration,
    pub lease_until: Time,
    pub expires_at: Time,
    pub created_at: Time,
    pub settled_at: Option<Time>,
    /// What the claim was made from; a second caller's, if it brings one too, must be the same.
    pub fingerprint: Option<String>,
    pub outcome: Option<Bytes>,
    /// Later callers that met this claim, as last written behind.
    pub duplicates: i64,
    pub last_duplicate_at: Option<Time>,
    /// Small JSON for people.
    pub attributes: Option<String>,
    /// The parts of the key as a JSON array, only where the guard's config keeps them.
    pub parts: Option<String>,
}

impl Claim {
    /// Expired and absent are the same to everyone: the window ends at its end, not at the next sweep.
    pub fn is_live(&self, now: Time) -> bool {
        now < self.expires_at
    }

    pub fn owner_is_alive(&self, now: Time) -> bool {
        self.state == State::InFlight && now < self.lease_until
    }

    /// How the claim stands: a lost owner's claim that nobody may take over is `unknown`,
    /// from the moment its lease ends and without anybody having to write it down.
    pub fn state_at(&self, now: Time) -> State {
        match self.state {
            State::InFlight if self.lost == Lost::Hold && now >= self.lease_until => State::Unknown,
            state => state,
        }
    }
}

/// What a caller brings to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    pub window: Duration,
    pub lease: Duration,
    pub lost: Lost,
    pub fingerprint: Option<String>,
    pub attributes: Option<String>,
    pub parts: Option<String>,
    /// The effect is written in the same commit: the claim is settled as it is made, with this.
    pub outcome: Option<Bytes>,
    /// The owner that is to be succeeded, though its window has not ended: what it stands for is over. Another's claim is met
    /// as ever.
    pub replaces: Option<Token>,
}

/// How an owner settles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    Done,
    Failed,
    /// The owner itself cannot say.
    Unknown,
}

impl Verdict {
    pub const fn state(self) -> State {
        match self {
            Verdict::Done => State::Done,
            Verdict::Failed => State::Failed,
            Verdict::Unknown => State::Unknown,
        }
    }
}

/// What somebody wants of the claim under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    Claim(Terms),
    /// The owner lives. `lease` overrides the length that the claim was made with.
    Renew {
        token: Token,
        lease: Option<Duration>,
    },
    Settle {
        token: Token,
        verdict: Verdict,
        outcome: Option<Bytes>,
    },
    /// The owner gives the key back: nothing happened.
    Release {
        token: Token,
    },
    /// The owner stops, and cannot say whether the effect happened. The claim is what it would be at the end of its lease:
    /// the next caller takes over, or the claim is `unknown`.
    Abandon {
        token: Token,
    },
    /// Whoever made the claim takes it back, though it is settled: what it was settled with did not happen after all.
    Retract {
        token: Token,
    },
    /// A person deletes the lock.
    Forget,
    /// A person, or a reconcile hook, settles an unknown claim.
    Resolve {
        done: bool,
        outcome: Option<Bytes>,
    },
}

/// When, as the store says in the statement or transaction that reads the record.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub now: Time,
    /// The largest token of a record that has been removed. With it tokens keep growing
    /// when the record is gone and the clock has stepped back.
    pub token_floor: Token,
}

/// What somebody is told. The claim in it is shared with the store, which writes it or remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To a claim: the caller is the owner.
    Won(Arc<Claim>),
    /// To a claim: settled already.
    Duplicate(Arc<Claim>),
    /// To a claim: its owner is at work.
    InFlight(Arc<Claim>),
    /// To a claim: made from another fingerprint.
    Mismatch(Arc<Claim>),
    /// To a claim: `unknown`; nobody may take over.
    Held(Arc<Claim>),
    /// To every other command: done, and this is the claim now.
    Applied(Arc<Claim>),
    /// To a settle that had happened already, with this same outcome.
    Already(Arc<Claim>),
    Refused(Refusal),
}

impl Answer {
    /// Whether the command got what it wanted. A commit is written only if all of its commands did.
    pub fn is_accepted(&self) -> bool {
        matches!(self, Answer::Won(_) | Answer::Applied(_) | Answer::Already(_))
    }

    /// The claim that a caller met and that was somebody else's.
    pub fn met(&self) -> Option<&Arc<Claim>> {
        match self {
            Answer::Duplicate(claim) | Answer::InFlight(claim) | Answer::Mismatch(claim) | Answer::Held(claim) => {
                Some(claim)
            }
            _ => None,
        }
    }

    /// One word for logs and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Answer::Won(_) => "won",
            Answer::Duplicate(_) => "duplicate",
            Answer::InFlight(_) => "in_flight",
            Answer::Mismatch(_) => "mismatch",
            Answer::Held(_) => "held",
            Answer::Applied(_) => "applied",
            Answer::Already(_) => "already",
            Answer::Refused(refusal) => refusal.name(),
        }
    }
}

/// Why a command on a claim changed nothing. Each way has its own name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("there is no such claim, or its window has ended")]
    Missing,
    #[error("the token is outdated: the claim has another owner, with token {current}")]
    TokenOutdated { current: Token },
    #[error("the token is not one that this claim has had; its token is {current}")]
    TokenUnknown { current: Token },
    #[error("the lease ended at {at}; whoever was paused past it is no longer the owner")]
    LeaseEnded { at: Time },
    #[error("the claim is {state} already: it needs no owner any more")]
    Settled { state: State },
    #[error("the claim was settled as {state} already, with another outcome")]
    SettledOtherwise { state: State },
    #[error("only an unknown claim can be resolved; this one is {state}")]
    NotUnknown { state: State },
}

impl Refusal {
    pub fn name(&self) -> &'static str {
        match self {
            Refusal::Missing => "missing",
            Refusal::TokenOutdated { .. }
            | Refusal::TokenUnknown { .. }
            | Refusal::LeaseEnded { .. }
            | Refusal::Settled { .. }
            | Refusal::SettledOtherwise { .. } => "fenced",
            Refusal::NotUnknown { .. } => "not_unknown",
        }
    }
}

/// What to write, if anything, and what to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The next record: created where there was none, else replacing the version that was decided from.
    pub write: Option<Arc<Claim>>,
    pub answer: Answer,
}
