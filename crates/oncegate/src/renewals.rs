//! Renews the leases of this process.
//!
//! A separate thread renews them, so that a closure keeps its lease even if it blocks its thread, or every thread of its
//! runtime. (A store whose connections live on that runtime cannot answer while all threads of the runtime are blocked.)

use std::collections::{BTreeSet, HashMap};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use oncegate_store::StoreError;
use tokio::sync::Notify;

use crate::guard::{Owner, OwnerError};

/// Renewals within the length of a lease.
const RENEWALS_PER_LEASE: u32 = 3;
/// Retries of a failed renewal within the length of a lease.
const RETRIES_PER_LEASE: u32 = 12;

/// One thread serves the process. It starts with the first run.
static RENEWALS: LazyLock<std::io::Result<&'static Renewals>> = LazyLock::new(Renewals::start);

#[derive(Default)]
struct Renewals {
    book: Mutex<Book>,
    /// Wakes the thread: an entry is due before the time at which the thread would wake.
    sooner: Notify,
}

#[derive(Default)]
struct Book {
    last_id: u64,
    entries: HashMap<u64, Entry>,
    /// When each entry is due. An entry whose renewal is under way is not in this set.
    due: BTreeSet<(Instant, u64)>,
    /// When the thread wakes next.
    looks_at: Option<Instant>,
}

#[derive(Clone)]
struct Entry {
    owner: Owner,
    until: Option<Instant>,
    /// When the next renewal is due.
    at: Instant,
}

/// Renews a lease until it is dropped.
pub struct Renewing {
    renewals: &'static Renewals,
    id: u64,
}

/// Renews the lease of `owner` for at most `max_run`. The first renewal is due after a third of the lease.
pub fn renew(owner: &Owner, max_run: Option<Duration>) -> Result<Renewing, StoreError> {
    let no_thread = |error| StoreError::Unavailable(format!("no thread for renewals: {error}"));
    let renewals = *RENEWALS.as_ref().map_err(no_thread)?;
    let now = Instant::now();
    // A `max_run` that exceeds the range of the clock is no limit.
    let until = max_run.and_then(|max_run| now.checked_add(max_run));
    let mut book = renewals.lock();
    book.last_id += 1;
    let id = book.last_id;
    book.entries.insert(id, Entry { owner: owner.clone(), until, at: now });
    if book.put(id, now + owner.lease() / RENEWALS_PER_LEASE) {
        renewals.sooner.notify_one();
    }
    Ok(Renewing { renewals, id })
}

impl Drop for Renewing {
    fn drop(&mut self) {
        let mut book = self.renewals.lock();
        if let Some(entry) = book.entries.remove(&self.id) {
            book.due.remove(&(entry.at, self.id));
        }
    }
}

impl Book {
    /// Returns `true` if the thread would wake too late for this entry.
    fn put(&mut self, id: u64, at: Instant) -> bool {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.at = at;
        }
        self.due.insert((at, id));
        self.looks_at.is_none_or(|looks_at| at < looks_at)
    }

    /// Takes the entries that are due, and sets when the thread wakes next.
    fn take_due(&mut self, now: Instant) -> Vec<(u64, Entry)> {
        let mut taken = vec![];
        while let Some((at, id)) = self.due.first().copied() {
            match self.entries.get(&id) {
                Some(_) if at > now => break,
                Some(entry) if entry.until.is_none_or(|until| now < until) => taken.push((id, entry.clone())),
                // The entry is gone, or its run is past `max_run`: its lease ends by itself.
                _ => {}
            }
            self.due.pop_first();
        }
        self.looks_at = self.due.first().map(|(at, _)| *at);
        taken
    }
}

impl Renewals {
    fn start() -> std::io::Result<&'static Renewals> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let renewals: &'static Renewals = Box::leak(Box::default());
        let thread = std::thread::Builder::new().name("oncegate-renewals".into());
        thread.spawn(move || runtime.block_on(renewals.keep_renewing()))?;
        Ok(renewals)
    }

    async fn keep_renewing(&'static self) {
        loop {
            let (due, looks_at) = {
                let mut book = self.lock();
                (book.take_due(Instant::now()), book.looks_at)
            };
            for (id, entry) in due {
                tokio::spawn(self.renew(id, entry.owner));
            }
            let sleep = async {
                match looks_at {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! { () = sleep => {}, () = self.sooner.notified() => {} }
        }
    }

    async fn renew(&'static self, id: u64, owner: Owner) {
        let lease = owner.lease();
        let renewed = tokio::time::timeout(lease / RENEWALS_PER_LEASE, owner.renew()).await;
        let mut book = self.lock();
        // The run has ended meanwhile, so no owner needs the result of this renewal.
        if !book.entries.contains_key(&id) {
            return;
        }
        let pause = match renewed {
            Ok(Ok(())) => lease / RENEWALS_PER_LEASE,
            Ok(Err(OwnerError::Fenced(refusal))) => {
                // The effect is under way, so only the settle reports this to the caller.
                tracing::warn!(event = "claim.fenced", claimId = %owner.key().id, %refusal);
                return;
            }
            Ok(Err(OwnerError::Store(error))) => {
                tracing::warn!(event = "claim.renew_failed", claimId = %owner.key().id, %error);
                lease / RETRIES_PER_LEASE
            }
            Err(_) => {
                tracing::warn!(event = "claim.renew_failed", claimId = %owner.key().id, error = "no answer in time");
                Duration::ZERO
            }
        };
        if book.put(id, Instant::now() + pause) {
            self.sooner.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("no holder of this lock panics")
    }
}
