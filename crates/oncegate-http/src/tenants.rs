//! The limits of one workspace on this server, so that it cannot slow down another one.
//!
//! Each limit counts for one workspace. Some requests exceed a limit on which they cannot wait (a connection, a request, a long poll, a
//! follower, an unread answer). They are refused at once, with 429 and the limit. Requests for a shared resource (the bytes of bodies,
//! lookups)
//! wait for their own workspace's turn, and never for another workspace's.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use oncegate::WorkspaceName;
use oncegate::store::Usage;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::observe;
use crate::problem::{Kind, Problem};
use oncegate_config::{Limits, WorkspaceLimits};

/// The number of workspaces with their own limits. Above it, idle workspaces are removed; if none is idle, new workspaces share one set.
const TENANTS_MAX: usize = 10_000;
/// The unit in which bytes of bodies are counted. A body of one unit fits into a connection's buffer anyway, and is not counted.
pub const UNIT_BYTES: usize = 64 * 1024;
const KIB: usize = 1024;
/// How long a request waits for its workspace's turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// The limits of a workspace that refuse further requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Connections,
    Requests,
    Waiters,
    Followers,
}

impl Limit {
    const ALL: [Limit; 4] = [Limit::Connections, Limit::Requests, Limit::Waiters, Limit::Followers];

    /// The last segment of its setting, `limits.workspace.*`.
    const fn name(self) -> &'static str {
        match self {
            Limit::Connections => "connections",
            Limit::Requests => "requests",
            Limit::Waiters => "waiters",
            Limit::Followers => "followers",
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Limit::Connections => "connections at once",
            Limit::Requests => "requests in flight at once",
            Limit::Waiters => "callers waiting at once",
            Limit::Followers => "followers of streams at once",
        }
    }
}

/// The resources for which a request waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Bytes of bodies that are being read.
    Bodies,
    /// Bytes of parsed JSON.
    Parsed,
    /// Lookups in the store: pages, lists, and events to apply.
    Lookups,
    /// Bytes of answers that are being made, or that their clients have not read yet.
    Answers,
}

impl Share {
    const fn name(self) -> &'static str {
        match self {
            Share::Bodies => "bodies",
            // Parsed bodies have the same limit.
            Share::Parsed => "bodies",
            Share::Lookups => "lookups",
            Share::Answers => "answers",
        }
    }
}

/// All workspaces with recent requests.
pub struct Tenants {
    limits: Arc<TenantLimits>,
    by_name: ArcSwap<HashMap<WorkspaceName, Arc<Tenant>>>,
    /// Shared by new workspaces when there are too many. Reads before a request's authentication count here, too.
    others: Arc<Tenant>,
}

struct TenantLimits {
    workspace: WorkspaceLimits,
    /// Requests a second; 0 means no limit.
    rate: u32,
    /// The bytes of the bodies of all workspaces.
    bodies: Arc<Semaphore>,
    parsed: Arc<Semaphore>,
}

/// The maximum bytes of the bodies of all workspaces together; parsed bodies have the same limit again.
const BODIES_BYTES_MAX: usize = 256 * 1024 * 1024;

impl Tenants {
    pub fn new(limits: &Limits) -> Tenants {
        let all = || Arc::new(Semaphore::new(BODIES_BYTES_MAX / UNIT_BYTES));
        let limits = Arc::new(TenantLimits {
            workspace: limits.workspace.clone(),
            rate: limits.rate.unwrap_or(0),
            bodies: all(),
            parsed: all(),
        });
        Tenants { by_name: ArcSwap::default(), others: Tenant::new(None, &limits), limits }
    }

    pub fn of(&self, workspace: &WorkspaceName) -> Arc<Tenant> {
        if let Some(tenant) = self.by_name.load().get(workspace) {
            return tenant.clone();
        }
        let new = Tenant::new(Some(workspace.clone()), &self.limits);
        let mut tenant = new.clone();
        self.by_name.rcu(|known| {
            // A concurrent request of this workspace may have been faster.
            if let Some(known_already) = known.get(workspace) {
                tenant = known_already.clone();
                return known.clone();
            }
            let mut known = HashMap::clone(known);
            if known.len() >= TENANTS_MAX {
                // The previous table holds a reference to each of them, too.
                known.retain(|_, tenant| !tenant.is_idle(2));
            }
            tenant = if known.len() >= TENANTS_MAX { self.others.clone() } else { new.clone() };
            if known.len() < TENANTS_MAX {
                known.insert(workspace.clone(), new.clone());
            }
            Arc::new(known)
        });
        tenant
    }

    /// For reads before a request's authentication.
    pub fn others(&self) -> &Arc<Tenant> {
        &self.others
    }

    /// Whether stored data has to be measured.
    pub fn has_quota(&self) -> bool {
        self.limits.workspace.claims.is_some() || self.limits.workspace.stored_bytes.is_some()
    }

    /// Requests that were accepted until now are in the store, and this measurement includes them.
    pub fn begin_to_measure(&self) {
        self.by_name.load().values().for_each(|tenant| tenant.stored.begin_to_measure());
    }

    /// The stored data of each workspace, as it was measured since [`Tenants::begin_to_measure`].
    pub fn stored(&self, usage: &[Usage]) {
        // A workspace over its quota gets its counts from now on, even without a request.
        let over = usage.iter().filter(|usage| self.limits.workspace.is_reached_by(usage.claims, usage.bytes));
        over.for_each(|usage| drop(self.of(&usage.workspace)));
        let usage: HashMap<_, _> = usage.iter().map(|usage| (&usage.workspace, usage)).collect();
        for (workspace, tenant) in self.by_name.load().iter() {
            let (claims, bytes) = usage.get(workspace).map_or((0, 0), |usage| (usage.claims, usage.bytes));
            tenant.stored.measured(claims, bytes);
        }
    }
}

/// One workspace's counts.
pub struct Tenant {
    /// None for the workspaces that share one set of limits.
    name: Option<WorkspaceName>,
    limits: Arc<TenantLimits>,
    taken: [AtomicUsize; Limit::ALL.len()],
    bodies: Arc<Semaphore>,
    parsed: Arc<Semaphore>,
    /// In KiB.
    answers: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
    bucket: Mutex<Bucket>,
    stored: Stored,
}

/// The stored data of a workspace: the last measurement, and what this server has accepted since.
#[derive(Default)]
struct Stored {
    claims: Counted,
    bytes: Counted,
}

#[derive(Default)]
struct Counted {
    measured: AtomicU64,
    since: AtomicU64,
    /// The part of `since` that a running measurement will include.
    found: AtomicU64,
}

impl Counted {
    fn total(&self) -> u64 {
        self.measured.load(Relaxed).saturating_add(self.since.load(Relaxed))
    }

    fn begin_to_measure(&self) {
        self.found.store(self.since.load(Relaxed), Relaxed);
    }

    fn measured(&self, amount: u64) {
        self.measured.store(amount, Relaxed);
        self.since.fetch_sub(self.found.swap(0, Relaxed), Relaxed);
    }
}

impl Stored {
    fn begin_to_measure(&self) {
        self.claims.begin_to_measure();
        self.bytes.begin_to_measure();
    }

    fn measured(&self, claims: u64, bytes: u64) {
        self.claims.measured(claims);
        self.bytes.measured(bytes);
    }
}

/// A token bucket: it fills at the workspace's rate, and holds one second's worth.
struct Bucket {
    left: f64,
    at: Instant,
}

impl Tenant {
    fn new(name: Option<WorkspaceName>, limits: &Arc<TenantLimits>) -> Arc<Tenant> {
        let WorkspaceLimits { body_bytes, answer_bytes, lookups, .. } = limits.workspace;
        let units = || Arc::new(Semaphore::new((body_bytes / UNIT_BYTES).max(1)));
        Arc::new(Tenant {
            taken: Default::default(),
            bodies: units(),
            parsed: units(),
            answers: Arc::new(Semaphore::new(answer_bytes / KIB)),
            lookups: Arc::new(Semaphore::new(lookups)),
            bucket: Mutex::new(Bucket { left: f64::from(limits.rate), at: Instant::now() }),
            stored: Stored::default(),
            name,
            limits: limits.clone(),
        })
    }

    /// Whether the workspace is idle, so that its removal loses no count. `tables` is the number of tables that hold a reference to it.
    fn is_idle(self: &Arc<Self>, tables: usize) -> bool {
        Arc::strong_count(self) == tables
            && self.refilled(Instant::now()) >= f64::from(self.limits.rate)
            && !self.limits.workspace.is_reached_by(self.stored.claims.total(), self.stored.bytes.total())
    }

    fn max(&self, limit: Limit) -> usize {
        let WorkspaceLimits { connections, requests, waiters, followers, .. } = self.limits.workspace;
        match limit {
            Limit::Connections => connections,
            Limit::Requests => requests,
            Limit::Waiters => waiters,
            Limit::Followers => followers,
        }
    }

    /// Takes a number of a limited resource, until the result is dropped.
    pub fn take(self: &Arc<Self>, limit: Limit, amount: u32) -> Result<Taken, Problem> {
        let (taken, max) = (&self.taken[limit as usize], self.max(limit));
        let before = taken.fetch_add(amount as usize, Relaxed);
        let taken = Taken { tenant: self.clone(), limit, amount };
        if before.saturating_add(amount as usize) <= max {
            return Ok(taken);
        }
        drop(taken);
        let setting = limit.name();
        Err(self.refused(setting, format!("a workspace may have {max} {}", limit.words())))
    }

    /// Waits in the workspace's turn for room for the bytes of a body, or of a parsed body.
    pub async fn room(&self, share: Share, bytes: usize) -> Result<Room, Problem> {
        if bytes <= UNIT_BYTES {
            return Ok(Room::default());
        }
        let (own, all) = match share {
            Share::Bodies => (&self.bodies, &self.limits.bodies),
            _ => (&self.parsed, &self.limits.parsed),
        };
        let most = (self.limits.workspace.body_bytes / UNIT_BYTES).max(1);
        let units = bytes.div_ceil(UNIT_BYTES).min(most).min(BODIES_BYTES_MAX / UNIT_BYTES) as u32;
        let turn = async {
            let own = own.clone().acquire_many_owned(units).await.expect("never closed");
            // A request waits for the global limit only after its workspace's own, so that a waiting workspace blocks no other.
            let all = all.clone().acquire_many_owned(units).await.expect("never closed");
            Room { _permits: Some([own, all]) }
        };
        tokio::time::timeout(TURN_TIMEOUT, turn).await.map_err(|_| self.no_turn(share))
    }

    /// Room for a complete answer of this size, until its client has read it.
    pub fn answer(&self, bytes: usize) -> Result<Unread, Problem> {
        let room = self.answers.clone().try_acquire_many_owned(self.kib(bytes));
        room.map(Unread).map_err(|_| self.no_room_for_answers())
    }

    /// The same for an answer that cannot be refused any more: it takes as much room as there is.
    pub fn answer_at_most(&self, bytes: usize) -> Option<Unread> {
        let there_is = u32::try_from(self.answers.available_permits()).unwrap_or(u32::MAX);
        self.answers.clone().try_acquire_many_owned(self.kib(bytes).min(there_is)).ok().map(Unread)
    }

    fn no_room_for_answers(&self) -> Problem {
        let most = self.limits.workspace.answer_bytes;
        let detail = format!("a workspace may have {most} bytes of answers that are not read yet");
        self.refused(Share::Answers.name(), detail)
    }

    /// The same for an answer that is about to be made.
    pub async fn answer_in_turn(&self, bytes: usize) -> Result<Unread, Problem> {
        let turn = self.answers.clone().acquire_many_owned(self.kib(bytes));
        let turn = tokio::time::timeout(TURN_TIMEOUT, turn).await.map_err(|_| self.no_turn(Share::Answers))?;
        Ok(Unread(turn.expect("never closed")))
    }

    /// An answer above the limit takes the whole limit.
    fn kib(&self, bytes: usize) -> u32 {
        bytes.div_ceil(KIB).min(self.limits.workspace.answer_bytes / KIB) as u32
    }

    /// Waits for the workspace's turn for a lookup.
    pub async fn lookup(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let turn = self.lookups.clone().acquire_owned();
        let turn = tokio::time::timeout(TURN_TIMEOUT, turn).await.map_err(|_| self.no_turn(Share::Lookups))?;
        Ok(turn.expect("never closed"))
    }

    /// For several lookups of one request, each of which waits for its turn.
    pub fn lookups(&self) -> &Semaphore {
        &self.lookups
    }

    fn no_turn(&self, share: Share) -> Problem {
        let WorkspaceLimits { body_bytes, lookups, answer_bytes, .. } = self.limits.workspace;
        let what = match share {
            Share::Bodies => format!("{body_bytes} bytes of bodies being read"),
            Share::Parsed => format!("{body_bytes} bytes of parsed JSON"),
            Share::Lookups => format!("{lookups} lookups"),
            Share::Answers => format!("{answer_bytes} bytes of answers that are not read yet"),
        };
        let detail = format!("a workspace may have {what} at once, and there was no turn in {TURN_TIMEOUT:?}");
        self.refused(share.name(), detail)
    }

    fn refused(&self, setting: &'static str, detail: String) -> Problem {
        self.note(setting);
        Kind::WorkspaceLimit.because(format!("{detail} (limits.workspace.{setting})")).retry_after(1)
    }

    fn note(&self, limit: &'static str) {
        observe::limited(self.name.as_ref(), limit);
    }

    /// Takes one request from the rate, or returns when one is available.
    pub fn pay(&self) -> Result<(), Problem> {
        // Without a limit, the clock is not read.
        if self.limits.rate == 0 { Ok(()) } else { self.pay_at(Instant::now()) }
    }

    fn pay_at(&self, now: Instant) -> Result<(), Problem> {
        let per_second = self.limits.rate;
        let lacks = self.with_bucket(now, |bucket| {
            let lacks = 1.0 - bucket.left;
            if lacks <= 0.0 {
                bucket.left -= 1.0;
            }
            lacks
        });
        if lacks <= 0.0 {
            return Ok(());
        }
        self.note("rate");
        let seconds = (lacks / f64::from(per_second)).ceil();
        let detail = format!("the workspace may make {per_second} requests per second");
        Err(Kind::RateLimited.because(detail).retry_after(seconds as u64))
    }

    /// Charges the cost of a list beyond the one request that it paid: the next requests pay for it.
    pub fn owe(&self, cost: usize) {
        if self.limits.rate > 0 && cost > 0 {
            self.owe_at(cost, Instant::now());
        }
    }

    fn owe_at(&self, cost: usize, now: Instant) {
        self.with_bucket(now, |bucket| bucket.left -= cost as f64);
    }

    fn with_bucket<T>(&self, now: Instant, spend: impl FnOnce(&mut Bucket) -> T) -> T {
        let mut bucket = self.bucket.lock().expect("no holder of this lock panics");
        bucket.left = refill(&bucket, now, self.limits.rate);
        bucket.at = now;
        spend(&mut bucket)
    }

    fn refilled(&self, now: Instant) -> f64 {
        refill(&self.bucket.lock().expect("no holder of this lock panics"), now, self.limits.rate)
    }

    /// Refuses a request that would store more, where the workspace is over its quota.
    pub fn check_quota(&self) -> Result<(), Problem> {
        let quota = &self.limits.workspace;
        let (claims, bytes) = (self.stored.claims.total(), self.stored.bytes.total());
        // Workspaces that share their counts are not measured together.
        if self.name.is_none() || !quota.is_reached_by(claims, bytes) {
            return Ok(());
        }
        let (setting, has) = match (quota.claims, quota.stored_bytes) {
            (Some(max), _) if claims >= max => ("claims", format!("{claims} claims and records of at most {max}")),
            (_, max) => ("stored", format!("{bytes} bytes of at most {}", max.unwrap_or_default())),
        };
        self.note(setting);
        let detail = format!("the workspace has stored {has} (limits.workspace.{setting})");
        Err(Kind::QuotaExceeded.because(detail).retry_after(QUOTA_RETRY_SECONDS))
    }

    /// Adds stored data: it counts until the next measurement.
    pub fn stores(&self, claims: usize, bytes: usize) {
        for (stored, more) in [(&self.stored.claims, claims), (&self.stored.bytes, bytes)] {
            if more > 0 {
                stored.since.fetch_add(more as u64, Relaxed);
            }
        }
    }
}

/// Data has to expire, and to be measured again, before there is room.
const QUOTA_RETRY_SECONDS: u64 = 60;

fn refill(bucket: &Bucket, now: Instant, per_second: u32) -> f64 {
    let full = f64::from(per_second);
    (bucket.left + now.duration_since(bucket.at).as_secs_f64() * full).min(full)
}

/// Room in memory, until it is dropped: in the workspace's limit, and in the global one.
#[derive(Debug, Default)]
pub struct Room {
    _permits: Option<[OwnedSemaphorePermit; 2]>,
}

/// Room for a workspace's answers, until it is dropped.
pub struct Unread(OwnedSemaphorePermit);

impl Unread {
    /// Releases the bytes that the answer does not need.
    pub fn shrink_to(&mut self, bytes: usize) {
        drop(self.0.split(self.0.num_permits().saturating_sub(bytes.div_ceil(KIB))));
    }
}

/// A number of a limited resource, until it is dropped.
pub struct Taken {
    tenant: Arc<Tenant>,
    limit: Limit,
    amount: u32,
}

impl Taken {
    pub fn tenant(&self) -> &Arc<Tenant> {
        &self.tenant
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.tenant.taken[self.limit as usize].fetch_sub(self.amount as usize, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::{Connection, Newcomers};

    fn tenants(rate: u32, change: impl FnOnce(&mut WorkspaceLimits)) -> Tenants {
        let mut limits = Limits {
            body_bytes: 1024,
            event_body_bytes: 1024,
            saga_steps: 1_000_000,
            schedules: 1000,
            schedule_interval: Duration::from_secs(60),
            connections: 10,
            rate: Some(rate),
            workspace: WorkspaceLimits {
                connections: 10,
                requests: 10,
                waiters: 10,
                followers: 10,
                lookups: 1,
                body_bytes: UNIT_BYTES,
                answer_bytes: UNIT_BYTES,
                claims: None,
                stored_bytes: None,
            },
        };
        change(&mut limits.workspace);
        Tenants::new(&limits)
    }

    fn workspace(name: &str) -> WorkspaceName {
        WorkspaceName::new(name).unwrap()
    }

    /// Otherwise its claim could be won just before the connection is cut.
    #[test]
    fn a_connection_that_has_made_room_takes_no_request_and_one_of_a_workspace_makes_no_room() {
        let tenants = tenants(0, |_| ());
        let newcomers = Newcomers::new(0, Duration::ZERO);
        let silent = Arc::new(Connection::default());
        newcomers.admit(&silent);
        assert_eq!(silent.tenant(&tenants, &workspace("late")).err().map(|late| late.kind), Some(Kind::ServerBusy));
        let known = Arc::new(Connection::default());
        known.tenant(&tenants, &workspace("known")).unwrap();
        newcomers.admit(&known);
        assert!(known.tenant(&tenants, &workspace("known")).is_ok());
    }

    #[test]
    fn a_workspace_at_a_limit_is_refused_more_and_another_is_not() {
        let tenants = tenants(0, |limits| limits.waiters = 2);
        let (busy, calm) = (tenants.of(&workspace("busy")), tenants.of(&workspace("calm")));
        let waiting = [busy.take(Limit::Waiters, 1).unwrap(), busy.take(Limit::Waiters, 1).unwrap()];
        let refused = busy.take(Limit::Waiters, 1).err().unwrap();
        assert_eq!((refused.kind, refused.retry_after_seconds), (Kind::WorkspaceLimit, Some(1)));
        assert!(refused.detail.contains("2 callers waiting") && refused.detail.contains("limits.workspace.waiters"));
        assert!(busy.take(Limit::Followers, 1).is_ok(), "another limit");
        assert!(calm.take(Limit::Waiters, 2).is_ok(), "another workspace");
        drop(waiting);
        assert!(tenants.of(&workspace("busy")).take(Limit::Waiters, 2).is_ok(), "what is over makes room");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_waits_for_its_own_workspaces_turn_and_not_for_anothers() {
        let tenants = tenants(0, |limits| limits.body_bytes = 4 * UNIT_BYTES);
        let (busy, calm) = (tenants.of(&workspace("busy")), tenants.of(&workspace("calm")));
        let room = busy.room(Share::Bodies, 100 * UNIT_BYTES).await.unwrap();
        assert_eq!(busy.room(Share::Bodies, 2 * UNIT_BYTES).await.unwrap_err().kind, Kind::WorkspaceLimit);
        busy.room(Share::Bodies, UNIT_BYTES).await.expect("a small body needs no turn");
        busy.room(Share::Parsed, 2 * UNIT_BYTES).await.expect("what is parsed has a turn of its own");
        calm.room(Share::Bodies, 4 * UNIT_BYTES).await.expect("another workspace");
        drop(room);
        busy.room(Share::Bodies, 2 * UNIT_BYTES).await.expect("there is room again");
    }

    #[tokio::test(start_paused = true)]
    async fn answers_have_room_until_they_are_read() {
        let tenants = tenants(0, |limits| limits.answer_bytes = 100 * KIB);
        let slow = tenants.of(&workspace("slow"));
        let mut made = slow.answer_in_turn(90 * KIB).await.unwrap();
        assert_eq!(slow.answer(20 * KIB).err().unwrap().kind, Kind::WorkspaceLimit);
        made.shrink_to(50 * KIB);
        let read = slow.answer(50 * KIB).unwrap();
        assert_eq!(slow.answer_in_turn(KIB).await.err().unwrap().kind, Kind::WorkspaceLimit);
        drop(read);
        assert!(slow.answer_in_turn(KIB).await.is_ok());
        assert!(tenants.of(&workspace("other")).answer(100 * KIB).is_ok());
    }

    #[test]
    fn a_workspace_over_its_rate_is_told_when_to_come_back_and_others_are_not_touched() {
        let tenants = tenants(2, |_| {});
        let (busy, calm) = (tenants.of(&workspace("busy")), tenants.of(&workspace("calm")));
        let start = Instant::now();
        assert!(busy.pay_at(start).is_ok());
        assert!(busy.pay_at(start).is_ok());
        let refused = busy.pay_at(start).unwrap_err();
        assert_eq!((refused.kind, refused.retry_after_seconds), (Kind::RateLimited, Some(1)));
        assert!(calm.pay_at(start).is_ok());
        assert!(busy.pay_at(start + Duration::from_millis(500)).is_ok());
        assert!(busy.pay_at(start + Duration::from_secs(2)).is_ok());
        busy.owe_at(9, start + Duration::from_secs(2));
        assert!(busy.pay_at(start + Duration::from_secs(5)).is_err(), "what a list borrowed is paid back");
    }

    #[test]
    fn of_too_many_workspaces_the_newcomers_share_one_and_the_others_keep_theirs() {
        let tenants = tenants(2, |_| {});
        let start = Instant::now();
        let numbered = |number: usize| workspace(&format!("w{number}"));
        let pay = |number, at| tenants.of(&numbered(number)).pay_at(at).is_ok();
        let known: HashMap<_, _> = (0..TENANTS_MAX)
            .map(|number| (numbered(number), Tenant::new(Some(numbered(number)), &tenants.limits)))
            .collect();
        tenants.by_name.store(Arc::new(known));
        let soon = start + Duration::from_secs(3600);
        assert!((0..TENANTS_MAX).all(|number| pay(number, soon)));
        let newcomers: Vec<_> = (TENANTS_MAX..TENANTS_MAX + 3).map(|number| pay(number, soon)).collect();
        assert_eq!(newcomers, [true, true, false]);
        assert!(pay(0, soon), "a workspace that was known has its own rate");
    }

    #[test]
    fn of_too_many_workspaces_those_that_do_nothing_are_forgotten() {
        let tenants = tenants(0, |limits| limits.claims = Some(1));
        let numbered = |number: usize| workspace(&format!("w{number}"));
        (0..TENANTS_MAX).for_each(|number| drop(tenants.of(&numbered(number))));
        let _follows = tenants.of(&numbered(0)).take(Limit::Followers, 1).unwrap();
        tenants.of(&numbered(1)).stores(1, 0);
        let newcomer = tenants.of(&numbered(TENANTS_MAX));
        let mut known: Vec<_> = tenants.by_name.load().keys().map(ToString::to_string).collect();
        known.sort();
        assert_eq!(known, ["w0".to_owned(), "w1".to_owned(), format!("w{TENANTS_MAX}")]);
        assert!(!Arc::ptr_eq(&newcomer, tenants.others()));
        assert_eq!(tenants.of(&numbered(1)).check_quota().unwrap_err().kind, Kind::QuotaExceeded);
        tenants.others().stores(5, 0);
        assert!(tenants.others().check_quota().is_ok(), "those that share their counts have no quota");
    }

    #[test]
    fn what_is_stored_counts_at_once_and_is_measured_now_and_then() {
        let tenants = tenants(0, |limits| (limits.claims, limits.stored_bytes) = (Some(2), Some(1000)));
        let full = tenants.of(&workspace("full"));
        full.stores(2, 1);
        let refused = full.check_quota().unwrap_err();
        assert_eq!(refused.kind, Kind::QuotaExceeded);
        assert!(refused.detail.contains("2 claims and records of at most 2"), "{}", refused.detail);
        let usage = |claims, bytes| [Usage { workspace: workspace("full"), claims, bytes }];
        tenants.begin_to_measure();
        tenants.stored(&usage(1, 1000));
        assert!(full.check_quota().unwrap_err().detail.contains("1000 bytes of at most 1000"));
        tenants.begin_to_measure();
        tenants.stored(&usage(1, 10));
        assert!(full.check_quota().is_ok(), "something has expired");
        tenants.begin_to_measure();
        full.stores(1, 0);
        tenants.stored(&usage(1, 10));
        assert!(full.check_quota().is_err(), "what was accepted while it was measured counts");
        tenants.begin_to_measure();
        tenants.stored(&usage(1, 10));
        assert!(full.check_quota().is_ok(), "and is measured the next time");
        assert!(tenants.of(&workspace("other")).check_quota().is_ok());
    }
}
