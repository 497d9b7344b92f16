//! The transitions of a claim.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{Answer, Claim, Command, Decision, Moment, Refusal, State, Terms, Token, Verdict};
use crate::key::ClaimKey;
use crate::policy::Lost;
use crate::time::Time;

/// Decides what `command` does to the record under `key`, at the store's `moment`.
///
/// `existing` is the stored record under the key, expired or not. An expired record
/// still holds the last token, and the next owner's token must be larger.
pub fn decide(key: &ClaimKey, existing: Option<&Arc<Claim>>, command: &Command, moment: Moment) -> Decision {
    let now = moment.now;
    let live = existing.filter(|claim| claim.is_live(now));
    let result = match command {
        Command::Claim(terms) => {
            return match live {
                None => won(first_owner(key, existing.map(Arc::as_ref), terms, moment)),
                Some(claim) => meet(claim, terms, moment),
            };
        }
        Command::Renew { token, lease } => {
            owned(live, *token, now).map(|claim| write(renewed(claim, lease.unwrap_or(claim.lease), now)))
        }
        Command::Settle { token, verdict, outcome } => settle(live, *token, *verdict, outcome, now),
        Command::Release { token } => owned(live, *token, now).map(|claim| write(ended(claim))),
        Command::Abandon { token } => owned(live, *token, now).map(|claim| write(abandoned(claim, now))),
        Command::Retract { token } => made_by(live, *token).map(|claim| write(ended(claim))),
        Command::Forget => live.ok_or(Refusal::Missing).map(|claim| write(ended(claim))),
        Command::Resolve { done, outcome } => resolve(live, *done, outcome, now),
    };
    match result {
        Ok(Change::Write(next)) => Decision { write: Some(next.clone()), answer: Answer::Applied(next) },
        Ok(Change::None(claim)) => Decision { write: None, answer: Answer::Already(claim) },
        Err(refusal) => Decision { write: None, answer: Answer::Refused(refusal) },
    }
}

enum Change {
    Write(Arc<Claim>),
    None(Arc<Claim>),
}

fn write(next: Claim) -> Change {
    Change::Write(Arc::new(next))
}

fn won(claim: Claim) -> Decision {
    let claim = Arc::new(claim);
    Decision { write: Some(claim.clone()), answer: Answer::Won(claim) }
}

/// A caller meets a live claim.
fn meet(claim: &Arc<Claim>, terms: &Terms, moment: Moment) -> Decision {
    if terms.replaces == Some(claim.token) {
        return won(first_owner(&claim.key, Some(claim), terms, moment));
    }
    let answer = |answer: Answer| Decision { write: None, answer };
    if let (Some(made_from), Some(brought)) = (&claim.fingerprint, &terms.fingerprint)
        && made_from != brought
    {
        return answer(Answer::Mismatch(claim.clone()));
    }
    match claim.state_at(moment.now) {
        State::Done | State::Failed => answer(Answer::Duplicate(claim.clone())),
        State::Unknown => answer(Answer::Held(claim.clone())),
        State::InFlight if claim.owner_is_alive(moment.now) => answer(Answer::InFlight(claim.clone())),
        State::InFlight => {
            debug_assert_eq!(claim.lost, Lost::TakeOver, "a held claim whose lease ended is unknown");
            won(next_owner(claim, terms, moment))
        }
    }
}

fn first_owner(key: &ClaimKey, expired: Option<&Claim>, terms: &Terms, moment: Moment) -> Claim {
    let now = moment.now;
    let expires_at = now + terms.window;
    Claim {
        key: key.clone(),
        state: if terms.outcome.is_some() { State::Done } else { State::InFlight },
        token: next_token(expired, moment),
        version: expired.map_or(1, |claim| claim.version + 1),
        attempt: 1,
        lost: terms.lost,
        lease: terms.lease,
        lease_until: lease_until(now, terms.lease, expires_at),
        expires_at,
        created_at: now,
        settled_at: terms.outcome.is_some().then_some(now),
        fingerprint: terms.fingerprint.clone(),
        outcome: terms.outcome.clone(),
        duplicates: 0,
        last_duplicate_at: None,
        attributes: terms.attributes.clone(),
        parts: terms.parts.clone(),
    }
}

/// A take-over starts a new window, like a first claim, because its effect happens now if at all.
/// The count of duplicates is kept.
fn next_owner(lost: &Claim, terms: &Terms, moment: Moment) -> Claim {
    Claim {
        attempt: lost.attempt.saturating_add(1),
        duplicates: lost.duplicates,
        last_duplicate_at: lost.last_duplicate_at,
        fingerprint: terms.fingerprint.clone().or_else(|| lost.fingerprint.clone()),
        ..first_owner(&lost.key, Some(lost), terms, moment)
    }
}

fn next_token(previous: Option<&Claim>, moment: Moment) -> Token {
    let last = previous.map_or(moment.token_floor, |claim| claim.token.max(moment.token_floor));
    Token(moment.now.micros().max(last.0 + 1))
}

/// A lease never outlives its window. After the window another caller may claim the key, so an owner
/// with a longer lease would be a second live owner.
fn lease_until(now: Time, lease: Duration, expires_at: Time) -> Time {
    (now + lease).min(expires_at)
}

/// The claim, if `token` is its owner's token. The owner's lease may have ended.
fn made_by(live: Option<&Arc<Claim>>, token: Token) -> Result<&Claim, Refusal> {
    let claim = live.ok_or(Refusal::Missing)?;
    match token.cmp(&claim.token) {
        Ordering::Less => Err(Refusal::TokenOutdated { current: claim.token }),
        Ordering::Greater => Err(Refusal::TokenUnknown { current: claim.token }),
        Ordering::Equal => Ok(claim),
    }
}

/// The claim, if `token` is its owner's token, the claim is in flight and the lease has not ended.
fn owned(live: Option<&Arc<Claim>>, token: Token, now: Time) -> Result<&Claim, Refusal> {
    let claim = made_by(live, token)?;
    if claim.state != State::InFlight {
        return Err(Refusal::Settled { state: claim.state });
    }
    if !claim.owner_is_alive(now) {
        return Err(Refusal::LeaseEnded { at: claim.lease_until });
    }
    Ok(claim)
}

fn renewed(claim: &Claim, lease: Duration, now: Time) -> Claim {
    Claim { version: claim.version + 1, lease, lease_until: lease_until(now, lease, claim.expires_at), ..claim.clone() }
}

/// Expires the claim far in the past, not at `now`, so that it does not come back if the clock steps back.
/// The record stays until the sweeper removes it and keeps its token.
fn ended(claim: &Claim) -> Claim {
    Claim {
        version: claim.version + 1,
        expires_at: Time::LONG_AGO,
        lease_until: Time::LONG_AGO,
        outcome: None,
        ..claim.clone()
    }
}

/// As if the lease ended now. Unlike a release, it still counts as an attempt at the next take-over.
fn abandoned(claim: &Claim, now: Time) -> Claim {
    match claim.lost {
        Lost::Hold => settled(claim, State::Unknown, None, now),
        Lost::TakeOver => Claim { version: claim.version + 1, lease_until: now, ..claim.clone() },
    }
}

fn settled(claim: &Claim, state: State, outcome: Option<Bytes>, now: Time) -> Claim {
    Claim { version: claim.version + 1, state, outcome, settled_at: Some(now), ..claim.clone() }
}

fn settle(
    live: Option<&Arc<Claim>>,
    token: Token,
    verdict: Verdict,
    outcome: &Option<Bytes>,
    now: Time,
) -> Result<Change, Refusal> {
    // The answer to the first settle may have been lost, so a retry with the same outcome succeeds.
    if let Some(claim) = live
        && claim.token == token
        && claim.state == verdict.state()
        && claim.outcome == *outcome
    {
        return Ok(Change::None(claim.clone()));
    }
    match owned(live, token, now) {
        Ok(claim) => Ok(write(settled(claim, verdict.state(), outcome.clone(), now))),
        Err(Refusal::Settled { state }) => Err(Refusal::SettledOtherwise { state }),
        Err(refusal) => Err(refusal),
    }
}

fn resolve(live: Option<&Arc<Claim>>, done: bool, outcome: &Option<Bytes>, now: Time) -> Result<Change, Refusal> {
    let claim = live.ok_or(Refusal::Missing)?;
    match claim.state_at(now) {
        State::Unknown => {
            let state = if done { State::Done } else { State::Failed };
            let outcome = outcome.clone().or_else(|| claim.outcome.clone());
            Ok(write(settled(claim, state, outcome, now)))
        }
        state => Err(Refusal::NotUnknown { state }),
    }
}
