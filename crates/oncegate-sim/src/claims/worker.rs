//! A worker: what it knows, and the commands that it sends.
//!
//! A worker keeps its side of the contract. It starts the effect only after the
//! store answered that it won, settles only after the start, and releases only
//! before the start. It never checks a clock, so it may be paused anywhere, for any time.

use bytes::Bytes;
use oncegate_core::{Answer, Command, Terms, Token, Verdict};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    Claim,
    Renew,
    Settle,
    Release,
}

/// A command on its way to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Letter {
    pub verb: Verb,
    /// The sender's token. A claim has none yet.
    pub token: Option<Token>,
}

impl Letter {
    pub fn command(&self, terms: Terms) -> Command {
        let token = || self.token.expect("only an owner sends anything but a claim");
        match self.verb {
            Verb::Claim => Command::Claim(terms),
            Verb::Renew => Command::Renew { token: token(), lease: None },
            Verb::Settle => {
                Command::Settle { token: token(), verdict: Verdict::Done, outcome: Some(outcome_of(token())) }
            }
            Verb::Release => Command::Release { token: token() },
        }
    }
}

/// A unique outcome for each owner, so that every change of an outcome is detected.
fn outcome_of(token: Token) -> Bytes {
    Bytes::copy_from_slice(&token.0.to_be_bytes())
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Worker {
    /// Set while the worker believes that it is the owner, rightly or not.
    pub token: Option<Token>,
    pub started: bool,
    /// The owner's command whose answer was lost. The worker does not know whether the command arrived, and
    /// retries it until it gets an answer.
    pub unanswered: Option<Verb>,
}

impl Worker {
    /// The commands that the worker may send now.
    pub fn verbs(&self) -> &[Verb] {
        match (self.token, &self.unanswered, self.started) {
            (None, _, _) => &[Verb::Claim],
            (Some(_), Some(again), _) => std::slice::from_ref(again),
            (Some(_), None, false) => &[Verb::Renew, Verb::Release],
            (Some(_), None, true) => &[Verb::Renew, Verb::Settle],
        }
    }

    /// A worker renews its lease while the effect runs, but a worker that is releasing the key must not start.
    pub fn may_start(&self) -> bool {
        self.token.is_some() && !self.started && matches!(self.unanswered, None | Some(Verb::Renew))
    }

    pub fn letter(&self, verb: Verb) -> Letter {
        Letter { verb, token: self.token }
    }

    pub fn hears_nothing(&mut self, verb: Verb) {
        self.unanswered = self.token.map(|_| verb);
    }

    /// Records an answer. A worker that is refused knows that it is not the owner.
    pub fn hears(&mut self, verb: Verb, answer: &Answer) {
        self.unanswered = None;
        match (verb, answer) {
            (Verb::Claim, Answer::Won(claim)) => self.token = Some(claim.token),
            (Verb::Renew, Answer::Applied(_)) => {}
            _ => *self = Worker::default(),
        }
    }
}
