//! The checker: reads a history and reports the first answer that no order of the calls explains.
//!
//! A call takes effect at one moment between its call and its return. A call with an unknown answer takes effect at any moment
//! after its call, or never. The checker reports an answer only if no choice of these moments allows it. Tokens order the
//! owners of a key, so each owner is compared only with its neighbour, and a history is checked in `n log n` steps.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncegate_core::{State, Token};

use super::event::{Call, Event, Reply, Stamp};

/// Events of the key that a report shows before the violation. The whole history of a busy key is too long to read.
const SHOWN_BEFORE: usize = 60;
/// Events that a report shows after the violation. Later answers often show what the store contained.
const SHOWN_AFTER: usize = 10;

/// What the checker may assume of a store.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// How much the store's clock and the history's clock may differ over a lease or a window.
    pub slack: Duration,
    /// An owner whose lease ended may still settle or release until another owner has begun. This holds for sends, not for claims.
    pub late_words: bool,
}

/// Counts of a history without a violation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The calls in the history.
    pub events: usize,
    /// The keys that were called.
    pub keys: usize,
    /// The claims that made their caller the owner.
    pub wins: usize,
    /// Wins of a key that had an owner before.
    pub successions: usize,
    /// Answers after which the write may have happened.
    pub unknown: usize,
    /// The answers after which nothing was written: [`Reply::NotWritten`].
    pub not_written: usize,
}

impl std::ops::AddAssign for Figures {
    fn add_assign(&mut self, more: Figures) {
        self.events += more.events;
        self.keys += more.keys;
        self.wins += more.wins;
        self.successions += more.successions;
        self.unknown += more.unknown;
        self.not_written += more.not_written;
    }
}

/// An answer that cannot be right, and the history of its key.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The key of the history.
    pub key: Arc<str>,
    /// Why the answer cannot be right.
    pub what: String,
    /// The answer that cannot be right.
    pub event: Event,
    /// All events of the key, in the order of the calls.
    pub history: Vec<Event>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "violation: {}", self.what)?;
        writeln!(f, "key: {}", self.key)?;
        let is_it = |event: &Event| event.called.order == self.event.called.order && event.call == self.event.call;
        let place = self.history.iter().position(is_it).unwrap_or(0);
        let (from, to) = (place.saturating_sub(SHOWN_BEFORE), (place + SHOWN_AFTER + 1).min(self.history.len()));
        if from > 0 {
            writeln!(f, "    … {from} earlier calls")?;
        }
        for event in &self.history[from..to] {
            writeln!(f, "{}{event}", if is_it(event) { ">>> " } else { "    " })?;
        }
        match self.history.len() - to {
            0 => Ok(()),
            more => writeln!(f, "    … {more} later calls"),
        }
    }
}

/// Checks every key of a history. Reports the violation whose answer came first.
pub fn check(history: &[Event], rules: Rules) -> Result<Figures, Box<Violation>> {
    let mut by_key: HashMap<&Arc<str>, Vec<&Event>> = HashMap::new();
    for event in history {
        by_key.entry(&event.key).or_default().push(event);
    }
    let mut figures = Figures::default();
    let mut first: Option<Box<Violation>> = None;
    for events in by_key.into_values() {
        match check_key(events, rules) {
            Ok(of_key) => figures += of_key,
            Err(found) => {
                if first.as_ref().is_none_or(|first| found.event.returned.order < first.event.returned.order) {
                    first = Some(found);
                }
            }
        }
    }
    first.map_or(Ok(figures), Err)
}

/// Checks the history of one key.
pub fn check_key(mut events: Vec<&Event>, rules: Rules) -> Result<Figures, Box<Violation>> {
    events.sort_by_key(|event| event.called.order);
    let count = |fits: fn(&&&Event) -> bool| events.iter().filter(fits).count();
    let wins = count(|event| matches!(event.reply, Reply::Won(_)));
    let figures = Figures {
        events: events.len(),
        keys: 1,
        wins,
        successions: wins.saturating_sub(1),
        unknown: count(|event| event.reply == Reply::Unknown),
        not_written: count(|event| event.reply == Reply::NotWritten),
    };
    let found = Key::of(&events, rules).and_then(|key| events.iter().try_for_each(|event| key.check(event)));
    match found {
        Ok(()) => Ok(figures),
        Err(Wrong { event, what }) => Err(Box::new(Violation {
            key: event.key.clone(),
            what,
            event: event.clone(),
            history: events.into_iter().cloned().collect(),
        })),
    }
}

/// An answer that cannot be right.
struct Wrong<'a> {
    event: &'a Event,
    what: String,
}

fn wrong<T>(event: &Event, what: impl Into<String>) -> Result<T, Wrong<'_>> {
    Err(Wrong { event, what: what.into() })
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// The first moment at which a claim was surely settled, and how.
#[derive(Clone)]
struct Settlement {
    since: Stamp,
    state: State,
    outcome: Bytes,
}

/// A lease that was surely granted.
struct Grant {
    called: u64,
    /// The latest possible end of the lease.
    until: i64,
    /// The latest possible end of the earlier grants.
    until_before: i64,
}

impl Grant {
    fn new(event: &Event, lease: i64, until_before: i64) -> Grant {
        Grant { called: event.called.order, until: event.returned.at.saturating_add(lease), until_before }
    }
}

/// One owner of a key, and everything that its calls prove about it. Times are in microseconds.
struct Owner<'a> {
    win: &'a Event,
    token: Token,
    holds: bool,
    /// The earliest and the latest possible end of its window.
    window_ends: (i64, i64),
    /// When the last lease that was surely granted was asked for.
    last_lease_asked_at: i64,
    shortest_lease: i64,
    /// Leases that were surely granted, the win's first, in the order of their calls.
    grants: Vec<Grant>,
    /// What renewals with unknown answers may have added to the lease.
    maybe_added: i64,
    /// The first call that may have ended the claim: a settle or a release.
    first_end_called: u64,
    /// The earliest moment at which a release may have happened.
    released_at: i64,
    /// The order by which a release had surely happened.
    released_by: u64,
    settled: Option<Settlement>,
}

impl<'a> Owner<'a> {
    fn new(win: &'a Event, token: Token) -> Owner<'a> {
        let Call::Claim { lease, window, holds } = win.call else { unreachable!("only a claim is won") };
        let (lease, window) = (micros(lease), micros(window));
        Owner {
            win,
            token,
            holds,
            window_ends: (win.called.at.saturating_add(window), win.returned.at.saturating_add(window)),
            last_lease_asked_at: win.called.at,
            shortest_lease: lease,
            grants: vec![Grant::new(win, lease, i64::MIN)],
            maybe_added: 0,
            first_end_called: u64::MAX,
            released_at: i64::MAX,
            released_by: u64::MAX,
            settled: None,
        }
    }

    fn settle(&mut self, event: &'a Event, state: State, outcome: &Bytes) -> Result<(), Wrong<'a>> {
        match &mut self.settled {
            Some(before) if before.state != state || before.outcome != *outcome => {
                wrong(event, format!("a second outcome of the owner with token {}", self.token))
            }
            Some(before) if before.since.order <= event.returned.order => Ok(()),
            settled => {
                *settled = Some(Settlement { since: event.returned, state, outcome: outcome.clone() });
                Ok(())
            }
        }
    }

    fn take_in(&mut self, verb: &'a Event) -> Result<(), Wrong<'a>> {
        if !verb.may_have_happened() {
            return Ok(());
        }
        match &verb.call {
            Call::Renew { lease, .. } => {
                let lease = micros(*lease);
                self.shortest_lease = self.shortest_lease.min(lease);
                if verb.is_accepted() {
                    self.last_lease_asked_at = self.last_lease_asked_at.max(verb.called.at);
                    self.grants.push(Grant::new(verb, lease, self.granted_until()));
                } else {
                    self.maybe_added = self.maybe_added.saturating_add(lease);
                }
            }
            Call::Settle { verdict, outcome, .. } => {
                self.first_end_called = self.first_end_called.min(verb.called.order);
                if verb.is_accepted() {
                    self.settle(verb, verdict.state(), outcome)?;
                }
            }
            Call::Release { .. } => {
                self.first_end_called = self.first_end_called.min(verb.called.order);
                self.released_at = self.released_at.min(verb.called.at);
                if verb.is_accepted() {
                    self.released_by = self.released_by.min(verb.returned.order);
                }
            }
            Call::Claim { .. } | Call::ByHand | Call::Read => {}
        }
        Ok(())
    }

    /// The lease surely lasts until this time, if nothing ended the claim earlier.
    fn leased_at_least_until(&self) -> i64 {
        self.last_lease_asked_at.saturating_add(self.shortest_lease).min(self.window_ends.0)
    }

    fn granted_until(&self) -> i64 {
        self.grants.last().map_or(i64::MIN, |grant| grant.until.max(grant.until_before))
    }

    /// The lease is surely over from this time on.
    fn leased_at_most_until(&self) -> i64 {
        self.granted_until().saturating_add(self.maybe_added).min(self.window_ends.1)
    }

    /// The same for the decision about one command. A renewal is no evidence for itself.
    fn leased_at_most_until_for(&self, verb: &Event) -> i64 {
        let count = self.grants.partition_point(|grant| grant.called < verb.called.order);
        let before = self.grants[..count].last().map_or(i64::MIN, |grant| grant.until.max(grant.until_before));
        let meanwhile = self.grants[count..].iter().take_while(|grant| grant.called < verb.returned.order);
        let others = meanwhile.filter(|grant| grant.called != verb.called.order).map(|grant| grant.until);
        let until = others.fold(before, i64::max);
        until.saturating_add(self.maybe_added).min(self.window_ends.1)
    }

    /// No other caller can win before this time.
    fn blocks_until(&self) -> i64 {
        let end = match self.holds || self.settled.is_some() {
            true => self.window_ends.0,
            false => self.leased_at_least_until(),
        };
        end.min(self.released_at)
    }

    /// Whether the claim was surely no longer in flight when the call was made. A read shows a lost owner's claim as in flight
    /// until the next owner takes over.
    fn is_over(&self, event: &Event, slack: i64) -> bool {
        let is_settled = self.settled.as_ref().is_some_and(|settled| settled.since.order < event.called.order);
        let end = if event.call == Call::Read { self.window_ends.1 } else { self.leased_at_most_until() };
        is_settled || self.released_by < event.called.order || end.saturating_add(slack) < event.called.at
    }
}

/// The state that a claim is surely in during a whole call.
enum Surely<'k> {
    InFlight,
    Settled(&'k Settlement),
    Unsure,
}

/// Everything known about one key.
struct Key<'a> {
    owners: BTreeMap<Token, Owner<'a>>,
    /// The largest token that was granted by each return, in the order of the returns.
    newest: Vec<(u64, Token)>,
    /// Claims that may have been won without an answer.
    maybe_won: Option<u64>,
    by_hand: Vec<&'a Event>,
    /// Settles by their outcome, including refused ones.
    settles: HashMap<&'a Bytes, Vec<&'a Event>>,
    slack: i64,
    late_words: bool,
}

impl<'a> Key<'a> {
    fn of(events: &[&'a Event], rules: Rules) -> Result<Key<'a>, Wrong<'a>> {
        let mut key = Key {
            owners: BTreeMap::new(),
            newest: vec![],
            maybe_won: None,
            by_hand: vec![],
            settles: HashMap::new(),
            slack: micros(rules.slack),
            late_words: rules.late_words,
        };
        for event in events {
            match (&event.call, &event.reply) {
                (Call::Claim { .. }, Reply::Won(token)) => {
                    if key.owners.insert(*token, Owner::new(event, *token)).is_some() {
                        return wrong(event, format!("two owners with one token, {token}"));
                    }
                    key.newest.push((event.returned.order, *token));
                }
                (Call::Claim { .. }, Reply::Unknown) if key.maybe_won.is_none() => {
                    key.maybe_won = Some(event.called.order);
                }
                (Call::ByHand, _) if event.may_have_happened() => key.by_hand.push(event),
                (Call::Settle { outcome, .. }, _) => key.settles.entry(outcome).or_default().push(event),
                _ => {}
            }
        }
        key.newest.sort_unstable();
        let mut largest = Token(i64::MIN);
        for (_, token) in &mut key.newest {
            largest = largest.max(*token);
            *token = largest;
        }
        for event in events {
            let Some(token) = event.token() else { continue };
            // Checked first, because a stale owner's write would otherwise be blamed on the other owners.
            let newest = key.newest_before(event.called.order).map_or(token, |newest| newest.token);
            if event.is_accepted() && newest > token {
                return wrong(event, format!("accepted, though token {newest} had succeeded token {token}"));
            }
            if let Some(owner) = key.owners.get_mut(&token) {
                owner.take_in(event)?;
            }
        }
        key.take_in_outcomes(events)?;
        key.check_owners()?;
        Ok(key)
    }

    /// Records that every outcome that was read was settled, even if the settle itself got no answer.
    fn take_in_outcomes(&mut self, events: &[&'a Event]) -> Result<(), Wrong<'a>> {
        for event in events {
            let Reply::Settled { token, state, outcome: Some(outcome) } = &event.reply else { continue };
            let written_by = self.settles.get(outcome).into_iter().flatten();
            let mut possible = written_by.filter(|settle| {
                let is_of_state = matches!(&settle.call, Call::Settle { verdict, .. } if verdict.state() == *state);
                is_of_state && settle.may_have_happened() && token.is_none_or(|token| settle.token() == Some(token))
            });
            let Some(settle) = possible.next() else {
                return match self.settles.contains_key(outcome) {
                    true => wrong(event, "a settle that was refused, or not written, changed the claim"),
                    false => wrong(event, "an outcome that no owner wrote"),
                };
            };
            if event.returned.order < settle.called.order {
                return wrong(event, "an outcome was read before it was written");
            }
            let owner = settle.token().and_then(|token| self.owners.get_mut(&token));
            if let Some(owner) = owner {
                owner.settle(event, *state, outcome)?;
            }
        }
        Ok(())
    }

    /// Checks that tokens grow, and that a claim is won only after the previous owner has lost its right to it.
    fn check_owners(&self) -> Result<(), Wrong<'a>> {
        let mut last_called: Option<Stamp> = None;
        let mut before: Option<&Owner> = None;
        for owner in self.owners.values() {
            if let Some(last) = last_called
                && owner.win.returned.order < last.order
            {
                return wrong(owner.win, "an earlier owner had a larger token");
            }
            if let Some(before) = before
                && owner.win.returned.at.saturating_add(self.slack) < before.blocks_until()
                && !self.may_be_touched(before.win, owner.win.returned.order)
            {
                let of = format!("the owner with token {}", before.token);
                let what = match &before.settled {
                    Some(_) => format!("won, though {of} had settled it and its window has not ended"),
                    None if before.holds => format!("won, though {of} may not be taken over"),
                    None => format!("won, though the lease of {of} has not ended"),
                };
                return wrong(owner.win, what);
            }
            last_called = last_called.filter(|last| last.order > owner.win.called.order).or(Some(owner.win.called));
            before = Some(owner);
        }
        Ok(())
    }

    /// Whether a person may have forgotten or resolved the claim of `win` before `order`.
    fn may_be_touched(&self, win: &Event, order: u64) -> bool {
        let is_after = |by_hand: &&Event| by_hand.reply == Reply::Unknown || by_hand.returned.order > win.called.order;
        self.by_hand.iter().copied().filter(is_after).any(|by_hand| by_hand.called.order < order)
    }

    /// The newest owner that had surely won before this moment.
    fn newest_before(&self, order: u64) -> Option<&Owner<'a>> {
        let count = self.newest.partition_point(|(returned, _)| *returned < order);
        let (_, token) = self.newest[..count].last()?;
        self.owners.get(token)
    }

    fn check(&self, event: &'a Event) -> Result<(), Wrong<'a>> {
        if matches!(event.reply, Reply::Unknown | Reply::NotWritten) || event.call == Call::ByHand {
            return Ok(());
        }
        let newest = self.newest_before(event.called.order);
        if let Some(token) = event.token() {
            self.check_verb(event, token)?;
        }
        match &event.reply {
            Reply::Settled { token, outcome, .. } => self.check_settled(event, *token, outcome.as_ref(), newest)?,
            Reply::InFlight { token } => self.check_in_flight(event, *token, newest)?,
            Reply::Held { token } => self.check_token(event, *token, newest)?,
            _ => {}
        }
        let Some(newest) = newest else { return Ok(()) };
        if event.reply == Reply::Missing && event.call == Call::Read && self.surely_stands(newest, event) {
            return wrong(event, "missing: a claim whose owner has not ended it, within its window");
        }
        match self.surely(newest, event) {
            Surely::InFlight => self.check_while_in_flight(event, newest),
            Surely::Settled(settled) => self.check_while_settled(event, newest, settled),
            Surely::Unsure => Ok(()),
        }
    }

    /// Whether the newest owner's claim surely exists during the whole call: in flight or held, because no caller takes it over.
    fn surely_stands(&self, owner: &Owner, event: &Event) -> bool {
        matches!(owner.win.call, Call::Claim { holds: true, .. })
            && !self.may_be_touched(owner.win, event.returned.order)
            && event.returned.order < owner.first_end_called
            && event.returned.at.saturating_add(self.slack) < owner.window_ends.0
    }

    /// The state of the newest owner's claim during the whole call.
    fn surely<'k>(&self, owner: &'k Owner, event: &Event) -> Surely<'k> {
        let returned_at = event.returned.at.saturating_add(self.slack);
        if self.may_be_touched(owner.win, event.returned.order) {
            return Surely::Unsure;
        }
        if let Some(settled) = &owner.settled
            && settled.since.order < event.called.order
        {
            return if returned_at < owner.window_ends.0 { Surely::Settled(settled) } else { Surely::Unsure };
        }
        let is_leased = event.returned.order < owner.first_end_called && returned_at < owner.leased_at_least_until();
        if is_leased { Surely::InFlight } else { Surely::Unsure }
    }

    fn check_verb(&self, event: &'a Event, token: Token) -> Result<(), Wrong<'a>> {
        if !event.is_accepted() {
            return Ok(());
        }
        let Some(owner) = self.owners.get(&token) else {
            return match self.maybe_won {
                Some(_) => Ok(()),
                None => wrong(event, "a verb was accepted under a token that was never given"),
            };
        };
        let is_settle = matches!(event.call, Call::Settle { .. });
        if let Some(settled) = owner.settled.as_ref().filter(|_| !is_settle)
            && settled.since.order < event.called.order
        {
            return wrong(event, "accepted, though the claim was settled before");
        }
        // A repeated settle is accepted at any time.
        let is_repeat_of = |before: &&Event| {
            before.called.order < event.called.order && before.may_have_happened() && before.call == event.call
        };
        let may_be_late = match &event.call {
            Call::Settle { outcome, .. } => {
                self.late_words || self.settles.get(outcome).into_iter().flatten().any(is_repeat_of)
            }
            Call::Release { .. } => self.late_words,
            _ => false,
        };
        if !may_be_late && owner.leased_at_most_until_for(event).saturating_add(self.slack) < event.called.at {
            return wrong(event, "accepted, though the lease of its owner had ended");
        }
        Ok(())
    }

    fn check_token(&self, event: &'a Event, token: Option<Token>, newest: Option<&Owner>) -> Result<(), Wrong<'a>> {
        let Some(token) = token else { return Ok(()) };
        if let Some(newest) = newest.filter(|newest| newest.token > token) {
            return wrong(event, format!("a stale answer: token {} had succeeded token {token}", newest.token));
        }
        let may_be_unanswered = self.maybe_won.is_some_and(|called| called < event.returned.order);
        match self.owners.get(&token) {
            Some(owner) if owner.win.called.order > event.returned.order => {
                wrong(event, "a claim was seen before it was made")
            }
            None if !may_be_unanswered => wrong(event, format!("a claim that no caller made, with token {token}")),
            _ => Ok(()),
        }
    }

    fn check_settled(
        &self,
        event: &'a Event,
        token: Option<Token>,
        outcome: Option<&Bytes>,
        newest: Option<&Owner>,
    ) -> Result<(), Wrong<'a>> {
        let written_by = outcome.and_then(|outcome| self.settles.get(outcome)).into_iter().flatten();
        let token = token.or_else(|| written_by.filter_map(|settle| settle.token()).max());
        self.check_token(event, token, newest)?;
        let owner = token.and_then(|token| self.owners.get(&token));
        match owner {
            Some(owner) if owner.window_ends.1.saturating_add(self.slack) < event.called.at => {
                wrong(event, "answered as a duplicate, though the window had ended")
            }
            _ => Ok(()),
        }
    }

    fn check_in_flight(&self, event: &'a Event, token: Option<Token>, newest: Option<&Owner>) -> Result<(), Wrong<'a>> {
        self.check_token(event, token, newest)?;
        if self.maybe_won.is_some_and(|called| called < event.returned.order) {
            return Ok(());
        }
        let oldest = newest.map_or(Token(i64::MIN), |newest| newest.token);
        let mut owners = self.owners.range(oldest..).map(|(_, owner)| owner);
        let has_begun = |owner: &Owner| owner.win.called.order < event.returned.order;
        let is_it = |owner: &Owner| token.is_none_or(|token| token == owner.token);
        match owners.any(|owner| has_begun(owner) && is_it(owner) && !owner.is_over(event, self.slack)) {
            true => Ok(()),
            false => wrong(event, "said to be in flight, though no owner had a lease"),
        }
    }

    /// Checks a call during which the newest owner had its lease all the time.
    fn check_while_in_flight(&self, event: &'a Event, owner: &Owner) -> Result<(), Wrong<'a>> {
        let of = format!("the owner with token {}, whose lease has not ended", owner.token);
        let is_own = event.token() == Some(owner.token);
        match (&event.call, &event.reply) {
            (_, Reply::Fenced | Reply::Missing) if is_own => wrong(event, format!("refused to {of}")),
            (Call::Read, Reply::Missing) => wrong(event, format!("missing: the claim of {of}")),
            (_, Reply::Settled { .. } | Reply::Held { .. }) => wrong(event, format!("not said: the claim of {of}")),
            (_, Reply::InFlight { token: Some(token) }) if *token != owner.token => {
                wrong(event, format!("another owner than {of}"))
            }
            _ => Ok(()),
        }
    }

    /// Checks a call during which the newest owner's claim was settled all the time.
    fn check_while_settled(&self, event: &'a Event, owner: &Owner, settled: &Settlement) -> Result<(), Wrong<'a>> {
        let by = format!("the outcome that was settled with token {}", owner.token);
        let is_own = event.token() == Some(owner.token);
        match (&event.call, &event.reply) {
            (Call::Read, Reply::Missing) => wrong(event, format!("missing: {by}")),
            (_, Reply::Missing) if is_own => wrong(event, format!("missing: {by}")),
            (Call::Claim { .. } | Call::Read, Reply::InFlight { .. }) => wrong(event, format!("forgotten: {by}")),
            (Call::Claim { .. } | Call::Read, Reply::Held { .. }) if settled.state != State::Unknown => {
                wrong(event, format!("forgotten: {by}"))
            }
            (_, Reply::Settled { outcome: Some(outcome), state, .. })
                if *outcome != settled.outcome || *state != settled.state =>
            {
                wrong(event, format!("another outcome than {by}"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
