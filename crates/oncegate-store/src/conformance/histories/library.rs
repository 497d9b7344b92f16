//! Histories through the library: a client of a store that records each of its calls.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncegate_core::{Answer, Claim, ClaimKey, Command, Lost, Refusal, State, Terms, Token, Verdict};

use super::event::{Call, Event, Reply, Stamps};
use crate::{Clock, Op, Store, StoreError};

/// Calls a store, and records each call and its answer.
pub struct Client {
    /// The store that the client calls.
    pub store: Arc<dyn Store>,
    /// The store's clock, or one that runs as fast.
    pub clock: Arc<dyn Clock>,
    /// The stamps of the history, which all of its clients share.
    pub stamps: Arc<Stamps>,
    /// The number of the client in the history.
    pub number: u32,
    /// The calls that have returned, in order.
    pub history: Vec<Event>,
}

impl Client {
    /// Claims, and returns the token if the claim was won.
    pub async fn claim(&mut self, key: &ClaimKey, terms: Terms) -> Option<Token> {
        let Terms { lease, window, lost, .. } = terms;
        let call = Call::Claim { lease, window, holds: lost == Lost::Hold };
        match self.commit(key, call, Command::Claim(terms)).await {
            Reply::Won(token) => Some(token),
            _ => None,
        }
    }

    /// Renews the lease of the claim that was won with `token`.
    pub async fn renew(&mut self, key: &ClaimKey, token: Token, lease: Duration) -> Reply {
        self.commit(key, Call::Renew { token, lease }, Command::Renew { token, lease: Some(lease) }).await
    }

    /// Settles the claim that was won with `token`.
    pub async fn settle(&mut self, key: &ClaimKey, token: Token, verdict: Verdict, outcome: Bytes) -> Reply {
        let call = Call::Settle { token, verdict, outcome: outcome.clone() };
        self.commit(key, call, Command::Settle { token, verdict, outcome: Some(outcome) }).await
    }

    /// Releases the claim that was won with `token`.
    pub async fn release(&mut self, key: &ClaimKey, token: Token) -> Reply {
        self.commit(key, Call::Release { token }, Command::Release { token }).await
    }

    /// Deletes the claim, as a person does.
    pub async fn forget(&mut self, key: &ClaimKey) -> Reply {
        self.commit(key, Call::ByHand, Command::Forget).await
    }

    /// Reads the claim in its stored state.
    pub async fn read(&mut self, key: &ClaimKey) -> Reply {
        let called = self.stamps.next(self.clock.now().micros());
        let reply = match self.store.read(key).await {
            Ok(reading) => match reading.value {
                // The stored state, not `state_at`: a renewal decided before the end of the lease may still be about to commit.
                Some(claim) => seen(&claim, claim.state),
                None => Reply::Missing,
            },
            Err(_) => Reply::NotWritten,
        };
        self.record(key, called, Call::Read, reply)
    }

    async fn commit(&mut self, key: &ClaimKey, call: Call, command: Command) -> Reply {
        let called = self.stamps.next(self.clock.now().micros());
        let op = Op { key: key.clone(), command };
        let reply = match self.store.commit(op.into()).await {
            Ok(committed) => reply(&committed.only()),
            Err(StoreError::Unknown(_)) => Reply::Unknown,
            Err(StoreError::Unavailable(_) | StoreError::Refused(_) | StoreError::Unreadable(_)) => Reply::NotWritten,
        };
        self.record(key, called, call, reply)
    }

    fn record(&mut self, key: &ClaimKey, called: super::Stamp, call: Call, reply: Reply) -> Reply {
        let returned = self.stamps.next(self.clock.now().micros());
        let key = key.id.to_string().into();
        self.history.push(Event { key, client: self.number, called, returned, call, reply: reply.clone() });
        reply
    }
}

fn reply(answer: &Answer) -> Reply {
    match answer {
        Answer::Won(claim) => Reply::Won(claim.token),
        Answer::Duplicate(claim) => seen(claim, claim.state),
        Answer::InFlight(claim) => Reply::InFlight { token: Some(claim.token) },
        Answer::Held(claim) => Reply::Held { token: Some(claim.token) },
        Answer::Mismatch(_) => Reply::Mismatch,
        Answer::Applied(_) | Answer::Already(_) => Reply::Accepted,
        Answer::Refused(Refusal::Missing) => Reply::Missing,
        Answer::Refused(_) => Reply::Fenced,
    }
}

fn seen(claim: &Claim, state: State) -> Reply {
    let token = Some(claim.token);
    match state {
        State::InFlight => Reply::InFlight { token },
        State::Unknown => Reply::Held { token },
        State::Done | State::Failed => Reply::Settled { token, state, outcome: claim.outcome.clone() },
    }
}
