//! A worker: what it knows, and what it has asked for.
//!
//! A worker keeps to its side of the contract. It starts the effect only after it
//! was told that it won, settles only after it started, and gives back only what it
//! did not start. It looks at no clock: it may be paused anywhere, for any time.

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
    /// The sender's; a claim has none yet.
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

/// Each owner's outcome differs from every other's, so that no change of it goes unseen.
fn outcome_of(token: Token) -> Bytes {
    Bytes::copy_from_slice(&token.0.to_be_bytes())
}

/// A letter that its sender waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Request {
    pub letter: Letter,
    /// The store has it and has answered, and the answer was lost. The sender cannot tell.
    pub answer_lost: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Worker {
    /// Set while the worker takes itself for the owner, rightly or not.
    pub token: Option<Token>,
    pub started: bool,
    pub request: Option<Request>,
}

impl Worker {
    /// What the worker may send now, if it waits for nothing.
    pub fn verbs(&self) -> &'static [Verb] {
        match (self.request, self.token, self.started) {
            (Some(_), _, _) => &[],
            (None, None, _) => &[Verb::Claim],
            (None, Some(_), false) => &[Verb::Renew, Verb::Release],
            (None, Some(_), true) => &[Verb::Renew, Verb::Settle],
        }
    }

    /// Renewing goes on beside the effect; a worker that gave the key back must not start.
    pub fn may_start(&self) -> bool {
        let giving_back = self.request.is_some_and(|request| request.letter.verb != Verb::Renew);
        self.token.is_some() && !self.started && !giving_back
    }

    pub fn send(&mut self, verb: Verb) {
        self.request = Some(Request { letter: Letter { verb, token: self.token }, answer_lost: false });
    }

    /// Stops waiting, and returns the letter if it has yet to arrive.
    pub fn give_up(&mut self) -> Option<Letter> {
        self.request.take().filter(|request| !request.answer_lost).map(|request| request.letter)
    }

    /// Takes in the answer to its request. Whoever is refused knows that it is not the owner.
    pub fn hear(&mut self, answer: &Answer) {
        let request = self.request.take().expect("an answer is heard only by who waits for it");
        match (request.letter.verb, answer) {
            (Verb::Claim, Answer::Won(claim)) => self.token = Some(claim.token),
            (Verb::Renew, Answer::Applied(_)) => {}
            _ => *self = Worker::default(),
        }
    }
}
