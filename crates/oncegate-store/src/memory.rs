//! The model: a map under a lock. What the other stores do, they do as this one does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use async_trait::async_trait;
use oncegate_core::{Claim, ClaimKey, Moment, Time, Token, WorkspaceName, decide};

use crate::{
    ApiKey, Clock, Commit, Committed, Cursor, DuplicateCount, Keyring, Page, Query, Reading, Report, Store, StoreError,
    SystemClock, Waiters,
};

/// Keeps everything in memory, and nothing when the process ends. For tests and simulation.
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    shelves: Mutex<Shelves>,
    waiters: OnceLock<Arc<Waiters>>,
}

#[derive(Default)]
struct Shelves {
    claims: BTreeMap<ClaimKey, Claim>,
    token_floor: i64,
    workspaces: BTreeMap<WorkspaceName, Time>,
    keys: Vec<ApiKey>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }
}

impl MemoryStore {
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
        if decisions.iter().all(|decision| decision.answer.is_accepted()) {
            for next in decisions.iter().filter_map(|decision| decision.write.clone()) {
                shelves.claims.insert(next.key.clone(), next);
            }
            drop(shelves);
            if let Some(waiters) = self.waiters.get() {
                commit.ops.iter().for_each(|op| waiters.wake_after(op));
            }
        }
        Ok(Committed { answers: decisions.into_iter().map(|decision| decision.answer).collect(), now: moment.now })
    }

    async fn read(&self, key: &ClaimKey) -> Result<Reading<Option<Claim>>, StoreError> {
        let now = self.clock.now();
        Ok(Reading { value: self.lock().claims.get(key).filter(|claim| claim.is_live(now)).cloned(), now })
    }

    async fn scan(&self, query: Query) -> Result<Page, StoreError> {
        let now = self.clock.now();
        let shelves = self.lock();
        let mut claims: Vec<&Claim> = shelves
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
            claims.into_iter().take(query.limit).map(|claim| Claim { outcome: None, ..claim.clone() }).collect();
        let next = claims.last().filter(|_| more).map(|last| Cursor { token: last.token, id: last.key.id });
        Ok(Page { claims, next, now })
    }

    async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
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
        Ok(ended.len())
    }

    async fn count_duplicates(&self, counts: Vec<DuplicateCount>) -> Result<(), StoreError> {
        let mut shelves = self.lock();
        for count in counts {
            if let Some(claim) = shelves.claims.get_mut(&count.key)
                && claim.token == count.token
            {
                claim.duplicates += count.count;
                claim.last_duplicate_at = claim.last_duplicate_at.max(Some(count.last_at));
            }
        }
        Ok(())
    }

    fn attach(&self, waiters: Arc<Waiters>) {
        // One ledger to a store; a second one's waiters sleep until the owner's lease ends.
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

    async fn close(&self) {}
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
            shelves.keys.push(ApiKey { created_at, ..key });
        }
        Ok(exists)
    }

    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        Ok(self.lock().keys.clone())
    }

    async fn revoke_key(&self, id: &str) -> Result<bool, StoreError> {
        let now = self.clock.now();
        let mut shelves = self.lock();
        let key = shelves.keys.iter_mut().find(|key| key.id == id && key.revoked_at.is_none());
        Ok(key.map(|key| key.revoked_at = Some(now)).is_some())
    }
}
