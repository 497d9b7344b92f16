//! One call of a history: the request, the answer, and the times of both.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use oncegate_core::{State, Token, Verdict};

/// A moment of a call. `order` says which of two moments came first; `at` says how far apart they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// From one counter that all clients share.
    pub order: u64,
    /// Microseconds on a clock that runs as fast as the store's.
    pub at: i64,
}

/// Hands out the stamps of one history.
#[derive(Debug, Default)]
pub struct Stamps(AtomicU64);

impl Stamps {
    /// The next stamp, at this time in microseconds.
    pub fn next(&self, at: i64) -> Stamp {
        Stamp { order: self.0.fetch_add(1, Ordering::SeqCst), at }
    }
}

/// One call of a client, and its answer.
#[derive(Clone, Debug)]
pub struct Event {
    /// The key that was called, as text.
    pub key: Arc<str>,
    /// The number of the client, for people who read the history.
    pub client: u32,
    /// When the client made the call.
    pub called: Stamp,
    /// When the client got its answer, or gave up.
    pub returned: Stamp,
    /// What the client asked for.
    pub call: Call,
    /// What the client got.
    pub reply: Reply,
}

/// What a client asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// The client asks to become the owner.
    Claim {
        /// The lease that the client asks for.
        lease: Duration,
        /// The window that the client asks for.
        window: Duration,
        /// A lost owner's claim is held for a person instead of taken over.
        holds: bool,
    },
    /// The owner extends its lease.
    Renew {
        /// The token that the client won.
        token: Token,
        /// The length of the new lease.
        lease: Duration,
    },
    /// Outcomes are unique in a history, so each identifies the settle that wrote it.
    Settle {
        /// The token that the client won.
        token: Token,
        /// Whether the effect happened.
        verdict: Verdict,
        /// The outcome to store.
        outcome: Bytes,
    },
    /// The owner gives the key back.
    Release {
        /// The token that the client won.
        token: Token,
    },
    /// A person deletes the claim, or resolves an unknown one.
    ByHand,
    /// The client reads the claim without asking to become the owner.
    Read,
}

/// The answer that the client got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Answers a claim: the client is the owner, with this token.
    Won(Token),
    /// Answers a claim or a read: the claim is settled. Over HTTP the answer to a duplicate has no token.
    Settled {
        /// The token of the claim, if the answer has it.
        token: Option<Token>,
        /// Whether the claim is `done` or `failed`.
        state: State,
        /// The stored outcome.
        outcome: Option<Bytes>,
    },
    /// Answers a claim or a read.
    InFlight {
        /// The token of the claim, if the answer has it.
        token: Option<Token>,
    },
    /// Answers a claim or a read: the state is `unknown`.
    Held {
        /// The token of the claim, if the answer has it.
        token: Option<Token>,
    },
    /// Answers a claim: the claim has another fingerprint.
    Mismatch,
    /// Answers an owner's command: applied, now or by an earlier try.
    Accepted,
    /// Answers an owner's command: the client is not the owner, or no longer.
    Fenced,
    /// Answers an owner's command or a read: there is no such claim.
    Missing,
    /// An error after which nothing was written.
    NotWritten,
    /// An error after which the write may have happened, may still happen, or may never happen.
    Unknown,
}

impl Event {
    /// Whether the write happened or may have happened.
    pub fn may_have_happened(&self) -> bool {
        matches!(self.reply, Reply::Won(_) | Reply::Accepted | Reply::Unknown)
    }

    /// Whether an owner's command was applied.
    pub fn is_accepted(&self) -> bool {
        self.reply == Reply::Accepted
    }

    /// The token that an owner sent with its command.
    pub fn token(&self) -> Option<Token> {
        match self.call {
            Call::Renew { token, .. } | Call::Settle { token, .. } | Call::Release { token } => Some(token),
            Call::Claim { .. } | Call::ByHand | Call::Read => None,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.called.at as f64 / 1e6, self.returned.at as f64 / 1e6);
        write!(f, "{from:14.6} … {to:14.6}  #{:<4} {} → {}", self.client, self.call, self.reply)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Claim { lease, window, holds } => {
                write!(f, "claim (lease {lease:?}, window {window:?}{})", if *holds { ", held when lost" } else { "" })
            }
            Call::Renew { token, lease } => write!(f, "renew {token} (lease {lease:?})"),
            Call::Settle { token, verdict, outcome } => {
                write!(f, "settle {token} as {} with {}", verdict.state(), text(outcome))
            }
            Call::Release { token } => write!(f, "release {token}"),
            Call::ByHand => f.write_str("forget or resolve by hand"),
            Call::Read => f.write_str("read"),
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |token: &Option<Token>| token.map_or(String::new(), |token| format!(" (token {token})"));
        match self {
            Reply::Won(token) => write!(f, "won with token {token}"),
            Reply::Settled { token, state, outcome } => {
                let outcome = outcome.as_ref().map_or("no outcome".into(), text);
                write!(f, "{state} with {outcome}{}", of(token))
            }
            Reply::InFlight { token } => write!(f, "in flight{}", of(token)),
            Reply::Held { token } => write!(f, "held{}", of(token)),
            Reply::Mismatch => f.write_str("fingerprint mismatch"),
            Reply::Accepted => f.write_str("accepted"),
            Reply::Fenced => f.write_str("fenced"),
            Reply::Missing => f.write_str("missing"),
            Reply::NotWritten => f.write_str("error: not written"),
            Reply::Unknown => f.write_str("error: may have been written"),
        }
    }
}

fn text(outcome: &Bytes) -> String {
    String::from_utf8_lossy(outcome).into_owned()
}
