//! What becomes of commits whose records have been read, as far as it can be said before anything is written.
//!
//! Several of them may be about one key. Those that change nothing are answered from the record that was read, or after a COMMIT.
//! The first that changes something is to be written; those after it follow it, and are looked at again only
//! when that write is committed: nobody is told of something that may yet be undone.

use std::collections::HashMap;
use std::sync::Arc;

use oncegate_core::{Answer, Claim, ClaimKey, Command, Decision, Moment, State, Time, Token, decide};
use oncegate_store::{Answers, Change, Committed, StoreError};

use crate::job::Job;
use crate::line::InLine;
use crate::row::{Read, Records};

/// One record to be written.
pub(crate) struct Write {
    /// Token and version of the record that it replaces; `None` where it is created.
    pub was: Option<(Token, i64)>,
    pub next: Arc<Claim>,
    /// Past this the decision no longer stands: the lease that it was made under, or gives, is over.
    pub stands_until: Time,
    /// A claim, which replaces what the last owner brought; else a verb, which leaves that alone.
    pub new_owner: bool,
    /// Whether those who wait want to hear of it.
    pub announce: bool,
}

/// A commit that is answered after a COMMIT: it has something to write, or its answer has to be confirmed.
pub(crate) struct Decided {
    job: Job,
    answers: Answers,
    moment: Moment,
    /// Which server it was read from. It is not written to another: that one may have other records of the same versions.
    pub generation: u64,
    /// Nothing of the commit is written.
    confirms_only: bool,
    /// All or none of them.
    pub writes: Vec<Write>,
    /// Commits on the same key that came later, and when the last of them was read.
    followers: Vec<Job>,
    followed_at: Read,
}

impl AsRef<Job> for Decided {
    fn as_ref(&self) -> &Job {
        &self.job
    }
}

impl InLine for Decided {
    fn into_followers(self) -> Vec<Job> {
        self.followers
    }
}

/// The distinct keys of some commits, and where each operation's key is among them.
pub(crate) struct Keys<'a> {
    pub distinct: Vec<&'a ClaimKey>,
    pub places: Vec<usize>,
}

impl<'a> Keys<'a> {
    pub fn of(jobs: &'a [Job]) -> Keys<'a> {
        let mut known = HashMap::new();
        let mut keys = Keys { distinct: vec![], places: vec![] };
        for key in jobs.iter().flat_map(Job::keys) {
            let place = *known.entry(key).or_insert(keys.distinct.len());
            if place == keys.distinct.len() {
                keys.distinct.push(key);
            }
            keys.places.push(place);
        }
        keys
    }
}

/// Decides all, answers those that need no COMMIT, and returns the others. `places` is from [`Keys`].
pub(crate) fn decide_all(jobs: Vec<Job>, places: &[usize], records: &Records) -> Vec<Decided> {
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

/// `is_locked`: the record was read under its row's lock.
fn decide_one(job: Job, existing: Option<&Arc<Claim>>, read: Read, is_locked: bool) -> Option<Decided> {
    let op = &job.commit.ops[0];
    let Decision { write, answer } = decide(&op.key, existing, &op.command, read.moment);
    let write = match (write, &answer) {
        (Some(next), _) => Some(Write::new(existing, &op.command, next)),
        // Its owner may have renewed or settled in time, in a transaction that is not committed yet. The row's lock tells.
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
/// An owner is not refused on the word of a server that may have been replaced, since the next server may have its claim.
/// And what a server shows after a restart may be without the standbys that its COMMIT waits for.
fn answer_or_confirm(job: Job, answers: Answers, read: Read) -> Option<Decided> {
    let is_refused = answers.iter().any(|answer| matches!(answer, Answer::Refused(_)));
    if is_refused || !read.is_confirmed {
        return Some(Decided { confirms_only: true, ..Decided::new(job, answers, vec![], read) });
    }
    job.answer(Ok(Committed::of_claims(answers, read.moment.now)));
    None
}

/// All or nothing.
fn decide_together(job: Job, places: &[usize], records: &Records) -> Option<Decided> {
    if places.iter().enumerate().any(|(i, place)| places[..i].contains(place)) {
        job.answer(Err(StoreError::Refused("two operations of one commit have the same key".into())));
        return None;
    }
    let read = records.read;
    let mut writes = vec![];
    let mut answers = Answers::new();
    let mut is_needed = false;
    for (op, &place) in job.commit.ops.iter().zip(places) {
        let existing = records.claims[place].as_ref();
        let Decision { write, answer } = decide(&op.key, existing, &op.command, read.moment);
        is_needed |= write.is_some();
        // What is so already is written as it is, so that it is still so when the others are.
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
    fn new(job: Job, answers: Answers, writes: Vec<Write>, read: Read) -> Decided {
        let Read { moment, generation, .. } = read;
        let followers = vec![];
        Decided { job, answers, moment, generation, confirms_only: false, writes, followers, followed_at: read }
    }

    /// Of its only write, if it has only that: others on the same key may follow it.
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

    /// The change in this place found something else than it expects: nothing was written.
    pub fn answer_conflict(self, place: usize) {
        let Decided { job, answers, moment, .. } = self;
        job.answer(Ok(Committed { answers, conflict: Some(place), now: moment.now }));
    }

    /// Another that was decided on the same key, without knowing of this one.
    pub fn lead(&mut self, later: Decided) {
        self.followed_at = later.followed_at;
        self.followers.extend(later.into_jobs());
    }

    /// Its write is committed: it is answered, and so are those who followed it, as far as they too change
    /// nothing. Hands back those who do.
    pub fn answer(self) -> Vec<Job> {
        let Decided { job, answers, moment, writes, followers, followed_at, .. } = self;
        job.answer(Ok(Committed::of_claims(answers, moment.now)));
        let decide_again = |job| decide_one(job, Some(&writes[0].next), followed_at, true);
        followers.into_iter().filter_map(decide_again).flat_map(Decided::into_jobs).collect()
    }

    /// Whether it was written is not known. Hands back the commits that surely wrote nothing.
    pub fn answer_unknown(self, why: &str) -> Vec<Job> {
        if self.confirms_only || self.job.is_probe {
            return self.into_jobs();
        }
        self.job.answer(Err(StoreError::Unknown(why.into())));
        self.followers
    }

    /// It did not land whole, and is to be written by itself the next time.
    pub fn into_losers_alone(mut self) -> Vec<Job> {
        self.job.alone = true;
        self.into_losers()
    }

    /// Its write came too late.
    pub fn into_losers(mut self) -> Vec<Job> {
        self.job.lost_a_race();
        self.into_jobs()
    }

    pub fn into_jobs(self) -> Vec<Job> {
        let mut jobs = self.followers;
        jobs.insert(0, self.job);
        jobs
    }
}

impl Write {
    /// Locks the record for a moment, and leaves it as it is.
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
            // One that is settled as it is made needs no lease.
            Command::Claim(terms) if terms.outcome.is_some() => (next.expires_at, true, false),
            Command::Claim(_) => (next.lease_until, true, false),
            Command::Renew { .. } => (until(|claim| claim.lease_until), false, false),
            // The second of two equal settles, which needs no lease.
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
