//! The model: a map under a lock. The other stores must behave as this one does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use oncegate_core::job::{self, Due, Job, Share};
use oncegate_core::{Claim, ClaimKey, Moment, Time, Token, WorkspaceName, decide};
use uuid::Uuid;

use crate::{
    ApiKey, At, Change, Clock, Commit, Committed, Cursor, DuplicateCount, JobFilter, JobListing, Keyring, Leased,
    Listed, Listing, MainStore, Page, Place, Query, Reading, Record, Report, Store, StoreError, Swept, SystemClock,
    Usage, UsageFrom, UsagePart, Waiters, Wanted,
};

/// Keeps everything in memory only, until the process ends. For tests and simulation.
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    shelves: Mutex<Shelves>,
    waiters: OnceLock<Arc<Waiters>>,
}

/// A workspace and a kind of record.
type Shelf = (WorkspaceName, &'static str);

#[derive(Default)]
struct Shelves {
    claims: BTreeMap<ClaimKey, Arc<Claim>>,
    books: Books,
    token_floor: i64,
    workspaces: BTreeMap<WorkspaceName, Time>,
    keys: Vec<ApiKey>,
}

/// The state beside claims: records, their names and lists, and jobs.
#[derive(Default)]
struct Books {
    records: BTreeMap<(Shelf, Uuid), Record>,
    names: BTreeMap<(Shelf, String), Uuid>,
    lists: BTreeSet<(Shelf, String, Uuid)>,
    jobs: BTreeMap<(WorkspaceName, Uuid), Job>,
    /// The previous values of everything that this commit has changed, in order. They are put back if the commit is not written.
    found: Vec<Found>,
}

enum Found {
    Record((Shelf, Uuid), Option<Record>),
    Name((Shelf, String), Option<Uuid>),
    List((Shelf, String, Uuid), bool),
    Job((WorkspaceName, Uuid), Option<Job>),
}

impl Books {
    /// Applies all changes or none. Returns the index of the first change that did not find what it expects.
    fn apply_all(&mut self, changes: &[Change], now: Time) -> Option<usize> {
        let conflict = changes.iter().position(|change| !self.apply(change, now));
        let found = std::mem::take(&mut self.found);
        if conflict.is_some() {
            found.into_iter().rev().for_each(|found| self.put_back(found));
        }
        conflict
    }

    fn put_back(&mut self, found: Found) {
        match found {
            Found::Record(place, record) => drop(put(&mut self.records, place, record)),
            Found::Name(name, id) => drop(put(&mut self.names, name, id)),
            Found::Job(place, job) => drop(put(&mut self.jobs, place, job)),
            Found::List(entry, true) => drop(self.lists.insert(entry)),
            Found::List(entry, false) => drop(self.lists.remove(&entry)),
        }
    }

    fn put_record(&mut self, place: (Shelf, Uuid), record: Option<Record>) -> Option<Record> {
        let before = put(&mut self.records, place.clone(), record);
        self.found.push(Found::Record(place, before.clone()));
        before
    }

    fn put_name(&mut self, name: (Shelf, String), id: Option<Uuid>) {
        let before = put(&mut self.names, name.clone(), id);
        self.found.push(Found::Name(name, before));
    }

    fn put_job(&mut self, job: &Job, is_there: bool) -> Option<Job> {
        let place = (job.workspace.clone(), job.id);
        let before = put(&mut self.jobs, place.clone(), is_there.then(|| job.clone()));
        self.found.push(Found::Job(place, before.clone()));
        before
    }

    /// Applies a change. Returns whether it found what it expects.
    fn apply(&mut self, change: &Change, now: Time) -> bool {
        let is_made = self.make(change, now);
        if let Some(job) = change.leaves_lane() {
            self.wake_next(job);
        }
        is_made
    }

    fn make(&mut self, change: &Change, now: Time) -> bool {
        match change {
            Change::Create { record, names, lists } => {
                let shelf = (record.workspace.clone(), record.kind);
                let is_new = self.put_record((shelf.clone(), record.id), Some(record.clone())).is_none();
                for list in lists {
                    let entry = (shelf.clone(), list.clone(), record.id);
                    let was_there = !self.lists.insert(entry.clone());
                    self.found.push(Found::List(entry, was_there));
                }
                is_new && self.name(&shelf, names, record.id)
            }
            Change::Replace { record, names } => {
                let shelf = (record.workspace.clone(), record.kind);
                let before = self.put_record((shelf.clone(), record.id), Some(record.clone()));
                before.is_some_and(|found| found.version + 1 == record.version) && self.name(&shelf, names, record.id)
            }
            Change::Remove { record, names, lists } => {
                let shelf = (record.workspace.clone(), record.kind);
                for name in names {
                    self.put_name((shelf.clone(), name.clone()), None);
                }
                for list in lists {
                    let entry = (shelf.clone(), list.clone(), record.id);
                    let was_there = self.lists.remove(&entry);
                    self.found.push(Found::List(entry, was_there));
                }
                let removed = self.put_record((shelf, record.id), None);
                removed.is_some_and(|found| found.version == record.version)
            }
            Change::Enqueue(job) => self.put_job(job, true).is_none() && now < job.stands_until(),
            Change::Requeue { job, stands_until } => {
                let before = self.put_job(job, true);
                before.is_some_and(|found| found.version + 1 == job.version && now < *stands_until)
            }
            Change::Dequeue(job) => {
                let removed = self.put_job(job, false);
                removed.is_some_and(|found| found.version == job.version && now < job.stands_until())
            }
        }
    }

    /// Removes records that are past their end, and returns how many.
    fn sweep(&mut self, now: Time, limit: usize) -> usize {
        let is_over = |(_, record): &(&(Shelf, Uuid), &Record)| record.expires_at.is_some_and(|end| end <= now);
        let ended: Vec<(Shelf, Uuid)> =
            self.records.iter().filter(is_over).take(limit).map(|(place, _)| place.clone()).collect();
        for (shelf, id) in &ended {
            self.records.remove(&(shelf.clone(), *id));
            self.names.retain(|(of, _), named| of != shelf || named != id);
            self.lists.retain(|(of, _, listed)| of != shelf || listed != id);
        }
        ended.len()
    }

    /// Wakes the first job that waits for the group that `gone` has left.
    fn wake_next(&mut self, gone: &Job) {
        let waits = |job: &&Job| job.lane == gone.lane && job.workspace == gone.workspace;
        let is_postponed = |job: &&Job| job.state == job::State::Pending && job.wakes_at() > job.due_at;
        let waiting = self.jobs.values().filter(waits).filter(is_postponed);
        if let Some(next) = waiting.min_by_key(|job| (job.due_at, job.id)) {
            let woken = Job { postponed_until: Time::LONG_AGO, version: next.version + 1, ..next.clone() };
            self.put_job(&woken, true);
        }
    }

    fn lane_is_taken(&self, job: &Job) -> bool {
        let is_in_the_way = |other: &Job| other.started && other.lane == job.lane && other.id != job.id;
        job.lane.is_some() && self.jobs.values().any(|other| other.workspace == job.workspace && is_in_the_way(other))
    }

    fn name(&mut self, shelf: &Shelf, names: &[String], id: Uuid) -> bool {
        names.iter().all(|name| {
            let name = (shelf.clone(), name.clone());
            match self.names.get(&name) {
                Some(named) => *named == id,
                None => {
                    self.put_name(name, Some(id));
                    true
                }
            }
        })
    }
}

/// Sets or removes the value, and returns the previous one.
fn put<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) -> Option<V> {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }
}

impl MemoryStore {
    /// A store on this clock. It contains only the default workspace.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let mut shelves = Shelves::default();
        shelves.workspaces.insert(WorkspaceName::default_workspace(), clock.now());
        MemoryStore { clock, shelves: Mutex::new(shelves), waiters: OnceLock::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().expect("no holder of this lock panics")
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        commit.check()?;
        let mut shelves = self.lock();
        let moment = Moment { now: self.clock.now(), token_floor: Token(shelves.token_floor) };
        let decisions: Vec<_> =
            commit.ops.iter().map(|op| decide(&op.key, shelves.claims.get(&op.key), &op.command, moment)).collect();
        let mut conflict = None;
        if decisions.iter().all(|decision| decision.answer.is_accepted()) {
            conflict = shelves.books.apply_all(&commit.changes, moment.now);
            if conflict.is_none() {
                for next in decisions.iter().filter_map(|decision| decision.write.clone()) {
                    shelves.claims.insert(next.key.clone(), next);
                }
                drop(shelves);
                if let Some(waiters) = self.waiters.get() {
                    waiters.wake_after(&commit);
                }
            }
        }
        let answers = decisions.into_iter().map(|decision| decision.answer).collect();
        Ok(Committed { answers, conflict, now: moment.now })
    }

    async fn confirm(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn read(&self, key: &ClaimKey) -> Result<Reading<Option<Claim>>, StoreError> {
        let now = self.clock.now();
        let live = self.lock().claims.get(key).filter(|claim| claim.is_live(now)).cloned();
        Ok(Reading { value: live.map(Arc::unwrap_or_clone), now })
    }

    async fn scan(&self, query: Query) -> Result<Page, StoreError> {
        let now = self.clock.now();
        let shelves = self.lock();
        let mut claims: Vec<&Arc<Claim>> = shelves
            .claims
            .values()
            .filter(|claim| claim.key.workspace == query.workspace && claim.is_live(now))
            .filter(|claim| query.guard.as_ref().is_none_or(|guard| claim.key.guard == *guard))
            .filter(|claim| query.state.is_none_or(|state| claim.state_at(now) == state))
            .filter(|claim| query.after.is_none_or(|after| (claim.token, claim.key.id) < (after.token, after.id)))
            .collect();
        claims.sort_by_key(|claim| std::cmp::Reverse((claim.token, claim.key.id)));
        let more = claims.len() > query.limit;
        let claims: Vec<Claim> =
            claims.into_iter().take(query.limit).map(|claim| Claim { outcome: None, ..Claim::clone(claim) }).collect();
        let next = claims.last().filter(|_| more).map(|last| Cursor { token: last.token, id: last.key.id });
        Ok(Page { claims, next, now })
    }

    async fn sweep(&self, limit: usize) -> Result<Swept, StoreError> {
        let now = self.clock.now();
        let mut shelves = self.lock();
        let ended: Vec<(ClaimKey, i64)> = shelves
            .claims
            .values()
            .filter(|claim| !claim.is_live(now))
            .take(limit)
            .map(|claim| (claim.key.clone(), claim.token.0))
            .collect();
        for (key, token) in &ended {
            shelves.claims.remove(key);
            shelves.token_floor = shelves.token_floor.max(*token);
        }
        Ok(Swept { claims: ended.len(), records: shelves.books.sweep(now, limit) })
    }

    async fn count_duplicates(&self, counts: Vec<DuplicateCount>) -> Result<(), StoreError> {
        let mut shelves = self.lock();
        for count in counts {
            if let Some(claim) = shelves.claims.get_mut(&count.key) {
                count.add_to(Arc::make_mut(claim));
            }
        }
        Ok(())
    }

    fn attach(&self, waiters: Arc<Waiters>) {
        // A store serves one ledger. The waiters of a second one would sleep until the owner's lease ends.
        let _ = self.waiters.set(waiters);
    }

    async fn report(&self) -> Result<Report, StoreError> {
        Ok(Report {
            kind: "memory",
            detail: "in this process".into(),
            schema_version: 0,
            now: self.clock.now(),
            warnings: vec!["nothing is kept when the process ends".into()],
        })
    }

    async fn usage(&self, _: UsageFrom) -> Result<UsagePart, StoreError> {
        let shelves = self.lock();
        let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let claims = shelves.claims.values().map(|claim| {
            let bytes = claim.outcome.as_ref().map_or(0, Bytes::len) + length(&claim.attributes) + length(&claim.parts);
            (&claim.key.workspace, bytes)
        });
        let records = shelves.books.records.values().map(|record| (&record.workspace, record.body.len()));
        let mut usage: BTreeMap<&WorkspaceName, Usage> = BTreeMap::new();
        for (workspace, bytes) in claims.chain(records) {
            let of = || Usage { workspace: workspace.clone(), claims: 0, bytes: 0 };
            let usage = usage.entry(workspace).or_insert_with(of);
            usage.claims += 1;
            usage.bytes += bytes as u64;
        }
        Ok(UsagePart { usage: usage.into_values().collect(), next: None })
    }

    async fn close(&self) {}
}

#[async_trait]
impl MainStore for MemoryStore {
    async fn find(&self, places: &[Place]) -> Result<Reading<Vec<Option<Record>>>, StoreError> {
        let books = &self.lock().books;
        let find = |place: &Place| {
            let shelf = (place.workspace.clone(), place.kind);
            let id = match &place.at {
                At::Id(id) => *id,
                At::Name(name) => *books.names.get(&(shelf.clone(), name.clone()))?,
            };
            books.records.get(&(shelf, id)).cloned()
        };
        Ok(Reading { value: places.iter().map(find).collect(), now: self.clock.now() })
    }

    async fn list(&self, listing: Listing) -> Result<Listed, StoreError> {
        let is_sparse = listing.is_sparse();
        let Listing { workspace, kind, list, state, limit, before } = listing;
        let shelf = (workspace, kind);
        let books = &self.lock().books;
        let is_in_list =
            |id: Uuid| list.as_ref().is_none_or(|list| books.lists.contains(&(shelf.clone(), list.clone(), id)));
        let all = || {
            let records = books.records.values().rev();
            records
                .filter(|record| record.workspace == shelf.0 && record.kind == kind)
                .filter(|record| before.is_none_or(|before| record.id < before))
                .filter(|record| is_in_list(record.id))
        };
        let last_looked_at = if is_sparse { all().nth(Listing::LOOKED_MAX - 1) } else { None };
        let horizon = last_looked_at.map(|record| record.id);
        let mut found = all()
            .filter(|record| horizon.is_none_or(|horizon| record.id >= horizon))
            .filter(|record| state.is_none() || record.state == state);
        let records: Vec<Record> = found.by_ref().take(limit).cloned().collect();
        let next = records.last().map(|record| record.id).filter(|_| found.next().is_some()).or(horizon);
        Ok(Listed { records, next })
    }

    async fn count(&self, listing: Listing) -> Result<usize, StoreError> {
        let (mut count, mut rest) = (0, listing);
        loop {
            let listed = self.list(rest.clone()).await?;
            count += listed.records.len();
            rest.limit -= listed.records.len();
            rest.before = listed.next;
            if rest.before.is_none() || rest.limit == 0 {
                return Ok(count);
            }
        }
    }

    async fn find_jobs(&self, ids: &[(WorkspaceName, Uuid)]) -> Result<Reading<Vec<Option<Job>>>, StoreError> {
        let jobs = &self.lock().books.jobs;
        Ok(Reading { value: ids.iter().map(|id| jobs.get(id).cloned()).collect(), now: self.clock.now() })
    }

    async fn list_jobs(&self, listing: JobListing) -> Result<Vec<Job>, StoreError> {
        let JobListing { workspace, kind, lane_prefix, state, limit, before } = listing;
        let has_prefix = |job: &Job, prefix: &str| job.lane.as_ref().is_some_and(|lane| lane.starts_with(prefix));
        let books = &self.lock().books;
        let jobs = books.jobs.values().rev().filter(|job| job.workspace == workspace && kind.fits(&job.kind));
        Ok(jobs
            .filter(|job| lane_prefix.as_ref().is_none_or(|prefix| has_prefix(job, prefix)))
            .filter(|job| state.is_none_or(|state| JobFilter::of(job) == state))
            .filter(|job| before.is_none_or(|before| job.id < before))
            .take(limit)
            .cloned()
            .collect())
    }

    async fn count_jobs(&self, listing: JobListing) -> Result<usize, StoreError> {
        Ok(self.list_jobs(listing).await?.len())
    }

    async fn lease_jobs(&self, wanted: &Wanted) -> Result<Reading<Leased>, StoreError> {
        let now = self.clock.now();
        let books = &mut self.lock().books;
        let waiting = |books: &Books| -> Vec<Job> {
            let is_wanted = |job: &&Job| wanted.kinds().contains(&job.kind) && wanted.is_from(&job.workspace);
            let mut jobs: Vec<Job> = books.jobs.values().filter(is_wanted).cloned().collect();
            jobs.sort_by_key(|job| (job.wakes_at(), job.id));
            jobs
        };
        let due: Vec<Job> = waiting(books).into_iter().filter(|job| job.wakes_at() <= now).collect();
        let since = due.iter().map(|job| Due { workspace: job.workspace.clone(), since: job.wakes_at() });
        let (mut leased, mut postponed) = (vec![], 0);
        for Share { workspace, jobs } in wanted.shares(since.collect()) {
            for job in due.iter().filter(|job| job.workspace == workspace).take(jobs) {
                let command = match books.lane_is_taken(job) {
                    false => job::Command::Lease { lease: wanted.lease },
                    true => job::Command::Postpone { until: now + wanted.postpones_for() },
                };
                let job::Decision::Keep(next) = job::decide(job, &command, now) else { continue };
                books.jobs.insert((workspace.clone(), job.id), next.clone());
                match next.state {
                    job::State::Running => leased.push(next),
                    job::State::Pending => postponed += 1,
                }
            }
        }
        let next_at = waiting(books).first().map(Job::wakes_at);
        Ok(Reading { value: Leased { jobs: leased, postponed, next_at }, now })
    }
}

#[async_trait]
impl Keyring for MemoryStore {
    async fn create_workspace(&self, name: &WorkspaceName) -> Result<bool, StoreError> {
        let now = self.clock.now();
        let mut shelves = self.lock();
        let is_new = !shelves.workspaces.contains_key(name);
        shelves.workspaces.entry(name.clone()).or_insert(now);
        Ok(is_new)
    }

    async fn workspaces(&self) -> Result<Vec<(WorkspaceName, Time)>, StoreError> {
        Ok(self.lock().workspaces.iter().map(|(name, at)| (name.clone(), *at)).collect())
    }

    async fn create_key(&self, key: ApiKey) -> Result<bool, StoreError> {
        let created_at = self.clock.now();
        let mut shelves = self.lock();
        let exists = shelves.workspaces.contains_key(&key.workspace);
        if exists {
            shelves.keys.push(ApiKey { created_at, last_used_at: None, ..key });
        }
        Ok(exists)
    }

    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        let mut keys = self.lock().keys.clone();
        keys.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        Ok(keys)
    }

    async fn revoke_key(&self, id: &str) -> Result<bool, StoreError> {
        let now = self.clock.now();
        let mut shelves = self.lock();
        let key = shelves.keys.iter_mut().find(|key| key.id == id && key.revoked_at.is_none());
        Ok(key.map(|key| key.revoked_at = Some(now)).is_some())
    }

    async fn touch_keys(&self, ids: &[String]) -> Result<(), StoreError> {
        let now = self.clock.now();
        for key in self.lock().keys.iter_mut().filter(|key| ids.contains(&key.id)) {
            key.last_used_at = Some(now);
        }
        Ok(())
    }
}
