//! Claims: the record, the commands on it, and the answers.
//!
//! A claim is a durable record under a key. The first caller makes it, its owner settles it once, and later callers
//! read it. [`decide`] is the only place that defines what a command does to a claim.

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

/// A fencing token. Each new owner of a key gets a larger token than every owner before it, forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub i64);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The state of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// The owner is at work.
    InFlight,
    /// The effect happened.
    Done,
    /// The effect did not happen, and will not under this claim.
    Failed,
    /// It is not known whether the effect happened. A person or a reconcile hook settles the claim.
    Unknown,
}

impl State {
    /// All states.
    pub const ALL: [State; 4] = [State::InFlight, State::Done, State::Failed, State::Unknown];

    /// The name of the state, as the API shows it and the stores write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            State::InFlight => "in_flight",
            State::Done => "done",
            State::Failed => "failed",
            State::Unknown => "unknown",
        }
    }

    /// The state with this name; `None` if no state has it.
    pub fn parse(name: &str) -> Option<State> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// Whether it is known if the effect happened: the state is `done` or `failed`.
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
    /// Identifies the claim.
    pub key: ClaimKey,
    /// As stored. A caller sees [`Claim::state_at`].
    pub state: State,
    /// The token of the owner. A command with another token is refused.
    pub token: Token,
    /// Grows by one with each write. A write is a compare-and-set on the version that it was decided from.
    pub version: i64,
    /// The number of this owner: 1 for the first, one more for each take-over.
    pub attempt: i32,
    /// What happens to the claim if its owner is lost.
    pub lost: Lost,
    /// The length of the last lease. A renewal without a length of its own uses it again.
    pub lease: Duration,
    /// The end of the owner's lease. If the claim is still in flight then, its owner counts as lost.
    pub lease_until: Time,
    /// The end of the window. From this time on every caller sees the claim as absent.
    pub expires_at: Time,
    /// When the owner became the owner. A take-over sets it anew.
    pub created_at: Time,
    /// When a write made the claim `done`, `failed` or `unknown`; `None` before that.
    pub settled_at: Option<Time>,
    /// Identifies the request that made the claim. If a later caller also brings a fingerprint, it must be the same.
    pub fingerprint: Option<String>,
    /// The result of the effect, in the caller's own format. Later callers get it instead of running the effect again.
    pub outcome: Option<Bytes>,
    /// The number of later callers that met this claim. It is written asynchronously, so it may lag.
    pub duplicates: i64,
    /// When the last counted duplicate met the claim.
    pub last_duplicate_at: Option<Time>,
    /// Small JSON for people.
    pub attributes: Option<String>,
    /// The parts of the key as a JSON array, only if the guard's config keeps them.
    pub parts: Option<String>,
}

impl Claim {
    /// Every caller sees an expired claim as absent. The window ends at `expires_at`, not at the next sweep.
    pub fn is_live(&self, now: Time) -> bool {
        now < self.expires_at
    }

    /// Whether the claim is in flight and its owner's lease has not ended at `now`.
    pub fn owner_is_alive(&self, now: Time) -> bool {
        self.state == State::InFlight && now < self.lease_until
    }

    /// The state at `now`. A claim with `Lost::Hold` is `unknown` from the moment its owner's lease ends,
    /// without any write.
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
    /// How long the claim lasts, counted from the moment at which the caller becomes the owner.
    pub window: Duration,
    /// How long the owner may go without a renewal before it counts as lost.
    pub lease: Duration,
    /// What happens to the claim if this owner is lost.
    pub lost: Lost,
    /// Identifies the request. A live claim with another fingerprint answers with [`Answer::Mismatch`].
    pub fingerprint: Option<String>,
    /// Small JSON for people, stored with the claim.
    pub attributes: Option<String>,
    /// The parts of the key as a JSON array, stored with the claim; `None` if the guard does not keep them.
    pub parts: Option<String>,
    /// The outcome of an effect that is written in the same commit: the claim is created as settled with it.
    pub outcome: Option<Bytes>,
    /// Replaces the live claim with this token, although its window has not ended, because what that claim protects is over.
    /// A live claim with another token is met as usual.
    pub replaces: Option<Token>,
}

impl Terms {
    /// Terms with nothing optional set.
    pub fn new(window: Duration, lease: Duration, lost: Lost) -> Terms {
        Terms { window, lease, lost, fingerprint: None, attributes: None, parts: None, outcome: None, replaces: None }
    }
}

/// How an owner settles its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The effect happened.
    Done,
    /// The effect did not happen.
    Failed,
    /// The owner itself does not know whether the effect happened.
    Unknown,
}

impl Verdict {
    /// The state of a claim that is settled with this verdict.
    pub const fn state(self) -> State {
        match self {
            Verdict::Done => State::Done,
            Verdict::Failed => State::Failed,
            Verdict::Unknown => State::Unknown,
        }
    }
}

/// A command on the claim under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A caller asks to become the owner. It succeeds if there is no live claim, or if the owner is lost and the claim allows a
    /// take-over.
    Claim(Terms),
    /// The owner is alive. `lease` overrides the lease that the claim was made with.
    Renew {
        /// The token of the owner that renews.
        token: Token,
        /// The length of the new lease, counted from now; `None`: the length of the last one.
        lease: Option<Duration>,
    },
    /// The owner reports how its effect ended. A repeated settle with the same verdict and outcome succeeds.
    Settle {
        /// The token of the owner that settles.
        token: Token,
        /// Whether the effect happened.
        verdict: Verdict,
        /// The result of the effect, which later callers get.
        outcome: Option<Bytes>,
    },
    /// The owner gives the key back, because the effect did not happen.
    Release {
        /// The token of the owner that releases.
        token: Token,
    },
    /// The owner stops and does not know whether the effect happened. The claim is treated as if its lease had ended:
    /// the next caller takes over, or the claim is `unknown`.
    Abandon {
        /// The token of the owner that abandons.
        token: Token,
    },
    /// The owner takes its claim back, even after it was settled, because the effect did not happen after all.
    Retract {
        /// The token of the owner that retracts.
        token: Token,
    },
    /// A person deletes the claim.
    Forget,
    /// A person, or a reconcile hook, settles an unknown claim.
    Resolve {
        /// Whether the effect happened. The claim becomes `done` or `failed` accordingly.
        done: bool,
        /// The outcome to store; `None` keeps the outcome that the claim has.
        outcome: Option<Bytes>,
    },
}

/// The time of a decision. The store reads it in the statement or transaction that reads the record.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The store's time.
    pub now: Time,
    /// The largest token of any removed record. It keeps tokens growing
    /// when the record is gone and the clock has stepped back.
    pub token_floor: Token,
}

/// The answer to a command. It shares its claim with the store, which writes or caches that claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Answers `Claim`: the caller is the owner.
    Won(Arc<Claim>),
    /// Answers `Claim`: the claim is already settled.
    Duplicate(Arc<Claim>),
    /// Answers `Claim`: another owner is at work.
    InFlight(Arc<Claim>),
    /// Answers `Claim`: the claim was made with another fingerprint.
    Mismatch(Arc<Claim>),
    /// Answers `Claim`: the claim is `unknown`, and no caller may take over.
    Held(Arc<Claim>),
    /// Answers every other command: applied, and this is the claim now.
    Applied(Arc<Claim>),
    /// Answers a repeated settle: the claim was already settled with the same outcome.
    Already(Arc<Claim>),
    /// Answers every command but `Claim`: the command changed nothing, for this reason.
    Refused(Refusal),
}

impl Answer {
    /// Whether the command succeeded. A commit is written only if all of its commands are accepted.
    pub fn is_accepted(&self) -> bool {
        matches!(self, Answer::Won(_) | Answer::Applied(_) | Answer::Already(_))
    }

    /// The claim of another owner that the caller met.
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

/// Why a command on a claim changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no live claim under the key.
    #[error("there is no such claim, or its window has ended")]
    Missing,
    /// The token is smaller than the claim's: a later owner has the claim.
    #[error("the token is outdated: the claim has another owner, with token {current}")]
    TokenOutdated {
        /// The token of the claim.
        current: Token,
    },
    /// The token is larger than the claim's, so no owner of the claim has had it.
    #[error("the token is not one that this claim has had; its token is {current}")]
    TokenUnknown {
        /// The token of the claim.
        current: Token,
    },
    /// The owner's lease has ended, so the owner counts as lost.
    #[error("the lease ended at {at}; a caller that was paused past it is no longer the owner")]
    LeaseEnded {
        /// The end of the lease.
        at: Time,
    },
    /// The claim is no longer in flight, so its owner cannot renew, release or abandon it.
    #[error("the claim is {state} already: it needs no owner any more")]
    Settled {
        /// The state of the claim.
        state: State,
    },
    /// The claim was settled before with another verdict or another outcome, which stays.
    #[error("the claim was settled as {state} already, with another outcome")]
    SettledOtherwise {
        /// The state of the claim.
        state: State,
    },
    /// The command is `Resolve`, but the claim is not `unknown`.
    #[error("only an unknown claim can be resolved; this one is {state}")]
    NotUnknown {
        /// The state of the claim.
        state: State,
    },
}

impl Refusal {
    /// One word for logs and metrics. A refusal because of a token, a lease or an earlier settle is `fenced`.
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

/// What to write, if anything, and what to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The next record. It is created if there was none; otherwise it replaces the version that was decided from.
    pub write: Option<Arc<Claim>>,
    /// The answer to the caller.
    pub answer: Answer,
}
