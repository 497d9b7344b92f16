//! Decides commits whose records have been read, as far as possible before anything is written.
//!
//! Several commits may be about one key. A commit that changes nothing is answered from the record that was read, or after a COMMIT.
//! The first commit that changes something is written. The later ones on the same key follow it, and are decided again after that write
//! is committed. So no caller gets an answer that rests on a write that may still be undone.

use std::collections::HashMap;
use std::sync::Arc;

use oncegate_core::{Answer, Claim, ClaimKey, Command, Decision, Moment, State, Time, Token, decide};
use oncegate_store::{Change, Committed, StoreError};

use crate::line::InLine;
use crate::pending::Pending;
use crate::row::{Read, Records};

/// One record to be written.
pub(crate) struct Write {
    /// Token and version of the record that this write replaces; `None` if it creates one.
    pub was: Option<(Token, i64)>,
    pub next: Arc<Claim>,
    /// The decision is invalid after this time: the lease that it was made under, or that it gives, has ended.
    pub stands_until: Time,
    /// True for a claim, which replaces the data of the last owner. False for a verb, which keeps that data.
    pub new_owner: bool,
    /// Whether waiting callers want to be notified.
    pub announce: bool,
}

/// A commit that is answered after a COMMIT, because it has something to write or its answer has to be confirmed.
pub(crate) struct Decided {
    job: Pending,
    answers: Vec<Answer>,
    moment: Moment,
    /// The generation of the server that it was read from. It is not written to another server, which may have other records with the
    /// same versions.
    pub generation: u64,
    /// The commit writes nothing.
    confirms_only: bool,
    /// Written all together or not at all.
    pub writes: Vec<Write>,
    /// Later commits on the same key, and when the last of them was read.
    followers: Vec<Pending>,
    followed_at: Read,
}

impl AsRef<Pending> for Decided {
    fn as_ref(&self) -> &Pending {
        &self.job
    }
}

impl InLine for Decided {
    fn into_followers(self) -> Vec<Pending> {
        self.followers
    }
}

/// The distinct keys of some commits, and the index of each operation's key among them.
pub(crate) struct Keys<'a> {
    pub distinct: Vec<&'a ClaimKey>,
    pub places: Vec<usize>,
}

impl<'a> Keys<'a> {
    pub fn of(jobs: &'a [Pending]) -> Keys<'a> {
        let mut known = HashMap::new();
        let mut keys = Keys { distinct: vec![], places: vec![] };
        for key in jobs.iter().flat_map(Pending::keys) {
            let place = *known.entry(key).or_insert(keys.distinct.len());
            if place == keys.distinct.len() {
                keys.distinct.push(key);
            }
            keys.places.push(place);
        }
        keys
    }
}

/// Decides all commits, answers those that need no COMMIT, and returns the others. `places` is from [`Keys`].
pub(crate) fn decide_all(jobs: Vec<Pending>, places: &[usize], records: &Records) -> Vec<Decided> {
    let mut all: Vec<Decided> = vec![];
    let mut leaders: Vec<Option<usize>> = vec![None; records.claims.len()];
    let mut places = places;
    for job in jobs {
        let (of_job, rest) = places.split_at(job.commit.ops.len());
        places = rest;
        if job.is_whole() {
            all.extend(decide_together(job, of_job, records));
            continue;
        }
        let place = of_job[0];
        match leaders[place] {
            Some(leader) => all[leader].followers.push(job),
            None => {
                if let Some(decided) = decide_one(job, records.claims[place].as_ref(), records.read, false) {
                    leaders[place] = decided.only_key().map(|_| all.len());
                    all.push(decided);
                }
            }
        }
    }
    all
}

/// Decides a commit of one operation. `is_locked`: the record was read under its row's lock.
fn decide_one(job: Pending, existing: Option<&Arc<Claim>>, read: Read, is_locked: bool) -> Option<Decided> {
    let op = &job.commit.ops[0];
    let Decision { write, answer } = decide(&op.key, existing, &op.command, read.moment);
    let write = match (write, &answer) {
        (Some(next), _) => Some(Write::new(existing, &op.command, next)),
        // The owner may have renewed or settled in time, in a transaction that is not committed yet. Only the row's lock shows that.
        (None, Answer::Held(claim)) if claim.state == State::InFlight && !is_locked => Some(Write::unchanged(claim)),
        (None, _) => None,
    };
    match write {
        Some(write) => Some(Decided::new(job, [answer].into(), vec![write], read)),
        None => answer_or_confirm(job, [answer].into(), read),
    }
}

/// Answers a commit that writes nothing, unless its answer might be wrong: then a COMMIT comes first.
///
/// A replaced server must not cause the refusal of an owner, because the next server may have the owner's claim. And a restarted server
/// may show commits that are not on the standbys that its COMMIT waits for.
fn answer_or_confirm(job: Pending, answers: Vec<Answer>, read: Read) -> Option<Decided> {
    let is_refused = answers.iter().any(|answer| matches!(answer, Answer::Refused(_)));
    if is_refused || !read.is_confirmed {
        return Some(Decided { confirms_only: true, ..Decided::new(job, answers, vec![], read) });
    }
    job.answer(Ok(Committed::of_claims(answers, read.moment.now)));
    None
}

/// Decides a commit of several operations: all of them take effect, or none.
fn decide_together(job: Pending, places: &[usize], records: &Records) -> Option<Decided> {
    if places.iter().enumerate().any(|(i, place)| places[..i].contains(place)) {
        job.answer(Err(StoreError::Refused("two operations of one commit have the same key".into())));
        return None;
    }
    let read = records.read;
    let mut writes = vec![];
    let mut answers = vec![];
    let mut is_needed = false;
    for (op, &place) in job.commit.ops.iter().zip(places) {
        let existing = records.claims[place].as_ref();
        let Decision { write, answer } = decide(&op.key, existing, &op.command, read.moment);
        is_needed |= write.is_some();
        // An accepted operation that changes nothing is written too, so that its record is unchanged when the others are committed.
        let next = write.or_else(|| existing.filter(|_| answer.is_accepted()).cloned());
        writes.extend(next.map(|next| Write::new(existing, &op.command, next)));
        answers.push(answer);
    }
    is_needed |= !job.commit.changes.is_empty() || job.is_probe;
    let is_accepted = answers.iter().all(Answer::is_accepted);
    if is_needed && is_accepted {
        return Some(Decided::new(job, answers, writes, read));
    }
    answer_or_confirm(job, answers, read)
}

impl Decided {
    fn new(job: Pending, answers: Vec<Answer>, writes: Vec<Write>, read: Read) -> Decided {
        let Read { moment, generation, .. } = read;
        let followers = vec![];
        Decided { job, answers, moment, generation, confirms_only: false, writes, followers, followed_at: read }
    }

    /// The key of the only write, if there is just one: later commits on the same key may follow it.
    pub fn only_key(&self) -> Option<&ClaimKey> {
        self.writes.first().filter(|_| !self.is_whole()).map(|write| &write.next.key)
    }

    pub fn is_whole(&self) -> bool {
        self.job.is_whole()
    }

    pub fn decided_at(&self) -> Time {
        self.moment.now
    }

    pub fn changes(&self) -> &[Change] {
        if self.confirms_only { &[] } else { &self.job.commit.changes }
    }

    /// The change at this index did not find the state that it expects: nothing was written.
    pub fn answer_conflict(self, place: usize) {
        let Decided { job, answers, moment, .. } = self;
        job.answer(Ok(Committed { answers, conflict: Some(place), now: moment.now }));
    }

    /// Takes over as a follower another commit that was decided on the same key, independently of this one.
    pub fn lead(&mut self, later: Decided) {
        self.followed_at = later.followed_at;
        self.followers.extend(later.into_jobs());
    }

    /// The write is committed. Answers this commit, and each follower that changes nothing. Hands back the others.
    pub fn answer(self) -> Vec<Pending> {
        let Decided { job, answers, moment, writes, followers, followed_at, .. } = self;
        job.answer(Ok(Committed::of_claims(answers, moment.now)));
        let decide_again = |job| decide_one(job, Some(&writes[0].next), followed_at, true);
        followers.into_iter().filter_map(decide_again).flat_map(Decided::into_jobs).collect()
    }

    /// The outcome of the write is unknown. Hands back the commits that certainly wrote nothing.
    pub fn answer_unknown(self, why: &str) -> Vec<Pending> {
        if self.confirms_only || self.job.is_probe {
            return self.into_jobs();
        }
        self.job.answer(Err(StoreError::Unknown(why.into())));
        self.followers
    }

    /// A part of the commit was not written. It is to be written in its own batch the next time.
    pub fn into_losers_alone(mut self) -> Vec<Pending> {
        self.job.alone = true;
        self.into_losers()
    }

    /// The write lost its race.
    pub fn into_losers(mut self) -> Vec<Pending> {
        self.job.lost_a_race();
        self.into_jobs()
    }

    pub fn into_jobs(self) -> Vec<Pending> {
        let mut jobs = self.followers;
        jobs.insert(0, self.job);
        jobs
    }
}

impl Write {
    /// Locks the record for a moment, and leaves it unchanged.
    fn unchanged(claim: &Arc<Claim>) -> Write {
        Write {
            was: Some((claim.token, claim.version)),
            next: claim.clone(),
            stands_until: claim.expires_at,
            new_owner: false,
            announce: false,
        }
    }

    fn new(existing: Option<&Arc<Claim>>, command: &Command, next: Arc<Claim>) -> Write {
        let until = |end: fn(&Claim) -> Time| existing.map_or(Time::NEVER, |claim| end(claim));
        let (stands_until, new_owner, announce) = match command {
            // A claim that is settled when it is created needs no lease.
            Command::Claim(terms) if terms.outcome.is_some() => (next.expires_at, true, false),
            Command::Claim(_) => (next.lease_until, true, false),
            Command::Renew { .. } => (until(|claim| claim.lease_until), false, false),
            // The second of two equal settles needs no lease.
            Command::Settle { .. } if existing == Some(&next) => (next.expires_at, false, false),
            Command::Settle { .. } | Command::Release { .. } | Command::Abandon { .. } => {
                (until(|claim| claim.lease_until), false, true)
            }
            Command::Retract { .. } | Command::Forget | Command::Resolve { .. } => {
                (until(|claim| claim.expires_at), false, true)
            }
        };
        let was = existing.map(|claim| (claim.token, claim.version));
        Write { was, next, stands_until, new_owner, announce }
    }
}
