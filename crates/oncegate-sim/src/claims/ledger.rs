//! The records of an observer that sees every step. The store does not see them.
//!
//! The ledger computes windows and owners from the answers alone.
//! A property that checked the stored record against itself would prove nothing.

use bytes::Bytes;
use oncegate_core::{Answer, Claim, Lost, State, Time, Token};

use super::worker::{Letter, Verb};

/// A notable result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The owner's lease ended, and another worker won within the window.
    TakenOver,
    /// The store answered that no caller may take over.
    Held,
    /// A letter of a former owner arrived and was refused.
    LateWriteFenced,
    /// A settle arrived for the second time and succeeded.
    SettleRepeated,
    /// Wrong: a worker that is not the owner changed the record.
    StaleWriteApplied,
    /// Wrong: a new owner's token is no larger than an earlier one's.
    TokenDidNotGrow,
}

/// A window as the observer computes it: from the first owner's claim until the window ends
/// or an owner releases the claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Window {
    first: Token,
    ends: Time,
    /// The number of effects that its owners started. A start counts for the window in which its owner won.
    starts: u8,
    outcome: Option<Outcome>,
}

type Outcome = (State, Option<Bytes>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    /// The token of the last winner, kept after its window: if the clock steps back, that worker is the owner again.
    owner: Token,
    window: Option<Window>,
}

impl Default for Ledger {
    fn default() -> Self {
        Ledger { owner: Token(0), window: None }
    }
}

impl Ledger {
    /// How many times the effect was started in the open window.
    pub fn starts(&self) -> u8 {
        self.window.as_ref().map_or(0, |window| window.starts)
    }

    /// The first outcome of the open window.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.window.as_ref().and_then(|window| window.outcome.as_ref())
    }

    /// Records that the clock shows `now`. A window that has ended stays ended if the clock steps back.
    pub fn tick(&mut self, now: Time) {
        self.window.take_if(|window| window.ends <= now);
    }

    pub fn start(&mut self, token: Token) {
        if let Some(window) = &mut self.window
            && token >= window.first
        {
            window.starts += 1;
        }
    }

    pub fn resolved(&mut self, claim: &Claim) {
        self.settled(claim);
    }

    /// Records what the store did with `letter`. The store's record was `before` and is now `after`.
    pub fn note(
        &mut self,
        letter: &Letter,
        answer: &Answer,
        (before, after): (Option<&Claim>, Option<&Claim>),
        now: Time,
    ) -> Option<Event> {
        let is_owner = letter.token == Some(self.owner);
        let is_alive = before.is_some_and(|claim| now < claim.lease_until);
        match (letter.verb, answer) {
            (Verb::Claim, Answer::Won(claim)) => self.won(claim, before, now),
            (Verb::Claim, Answer::Held(_)) => Some(Event::Held),
            (Verb::Claim, _) => None,
            _ if before != after && !(is_owner && is_alive) => Some(Event::StaleWriteApplied),
            _ => self.owner_answered(letter.verb, answer, is_owner),
        }
    }

    fn won(&mut self, claim: &Claim, before: Option<&Claim>, now: Time) -> Option<Event> {
        let taken_over = before.is_some_and(|claim| claim.is_live(now));
        let grown = claim.token > self.owner;
        self.owner = claim.token;
        let fresh = Window { first: claim.token, ends: claim.expires_at, starts: 0, outcome: None };
        self.window = Some(match self.window.take() {
            // A wrong win: no worker should have won. The window keeps its starts and outcome, so that the properties detect it.
            Some(open) if claim.lost == Lost::Hold || open.outcome.is_some() => open,
            _ => fresh,
        });
        match (grown, taken_over) {
            (false, _) => Some(Event::TokenDidNotGrow),
            (true, taken_over) => taken_over.then_some(Event::TakenOver),
        }
    }

    fn owner_answered(&mut self, verb: Verb, answer: &Answer, is_owner: bool) -> Option<Event> {
        match (verb, answer) {
            (Verb::Settle, Answer::Applied(claim)) => self.settled(claim),
            (Verb::Settle, Answer::Already(_)) => return Some(Event::SettleRepeated),
            (Verb::Release, Answer::Applied(_)) => self.window = None,
            (_, Answer::Refused(refusal)) if refusal.name() == "fenced" && !is_owner => {
                return Some(Event::LateWriteFenced);
            }
            _ => {}
        }
        None
    }

    /// Keeps the first outcome, so that a different second one is detected.
    fn settled(&mut self, claim: &Claim) {
        if let Some(window) = &mut self.window {
            window.outcome.get_or_insert_with(|| (claim.state, claim.outcome.clone()));
        }
    }
}
