//! What an observer who sees everything writes down, and the store does not get to see.
//!
//! The ledger reckons windows and owners for itself, from the answers that were given.
//! A property that asked the record about the record would prove nothing.

use bytes::Bytes;
use oncegate_core::{Answer, Claim, Lost, State, Time, Token};

use super::worker::{Letter, Verb};

/// What a step did, where that is worth noticing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The owner's lease ended, and another won within the window.
    TakenOver,
    /// A caller was told that nobody may take over.
    Held,
    /// What a former owner had sent arrived, and was refused.
    LateWriteFenced,
    /// A settle arrived for the second time, and was a success.
    SettleRepeated,
    /// Wrong: somebody who is not the owner changed the record.
    StaleWriteApplied,
    /// Wrong: a new owner's token is no larger than an earlier one's.
    TokenDidNotGrow,
}

/// A window by the observer's reckoning: from the first owner's claim until its time is over
/// or its owner gave it back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Window {
    first: Token,
    ends: Time,
    /// Effects started by its owners. A start counts for the window that it was won in.
    starts: u8,
    outcome: Option<Outcome>,
}

type Outcome = (State, Option<Bytes>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    /// Whoever won last, also after its window: if the clock steps back it is the owner again.
    owner: Token,
    window: Option<Window>,
}

impl Default for Ledger {
    fn default() -> Self {
        Ledger { owner: Token(0), window: None }
    }
}

impl Ledger {
    /// How often the effect was started in the window that is open.
    pub fn starts(&self) -> u8 {
        self.window.as_ref().map_or(0, |window| window.starts)
    }

    /// What the open window was first settled with.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.window.as_ref().and_then(|window| window.outcome.as_ref())
    }

    /// Notes that the clock shows `now`. A window that has ended stays ended if the clock steps back.
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

    /// Notes what the store did with `letter`: it had `before` and has `after`.
    pub fn note(
        &mut self,
        letter: &Letter,
        answer: &Answer,
        (before, after): (Option<&Claim>, Option<&Claim>),
        now: Time,
    ) -> Option<Event> {
        match (letter.verb, answer) {
            (Verb::Claim, Answer::Won(claim)) => self.won(claim, before, now),
            (Verb::Claim, Answer::Held(_)) => Some(Event::Held),
            (Verb::Claim, _) => None,
            _ => self.owner_wrote(letter, answer, (before, after), now),
        }
    }

    fn won(&mut self, claim: &Claim, before: Option<&Claim>, now: Time) -> Option<Event> {
        let taken_over = before.is_some_and(|claim| claim.is_live(now));
        let grown = claim.token > self.owner;
        self.owner = claim.token;
        let fresh = Window { first: claim.token, ends: claim.expires_at, starts: 0, outcome: None };
        self.window = Some(match self.window.take() {
            // Nobody should have won: what the window had stays noted, for the properties to find.
            Some(open) if claim.lost == Lost::Hold || open.outcome.is_some() => open,
            _ => fresh,
        });
        match (grown, taken_over) {
            (false, _) => Some(Event::TokenDidNotGrow),
            (true, taken_over) => taken_over.then_some(Event::TakenOver),
        }
    }

    fn owner_wrote(
        &mut self,
        letter: &Letter,
        answer: &Answer,
        (before, after): (Option<&Claim>, Option<&Claim>),
        now: Time,
    ) -> Option<Event> {
        let is_owner = letter.token == Some(self.owner);
        let is_alive = before.is_some_and(|claim| now < claim.lease_until);
        if before != after && !(is_owner && is_alive) {
            return Some(Event::StaleWriteApplied);
        }
        match (letter.verb, answer) {
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

    /// Keeps the first outcome: a second one is then seen to differ from it.
    fn settled(&mut self, claim: &Claim) {
        if let Some(window) = &mut self.window {
            window.outcome.get_or_insert_with(|| (claim.state, claim.outcome.clone()));
        }
    }
}
