//! Which row a key is in, kept in memory.
//!
//! A random key in an index on disk dirties a page of its own with every claim, and that would be most of what a claim
//! costs. So new claims are appended, in rows whose `seq` grows in the order of commits and is never used twice, and
//! this index finds them.
//!
//! It may name too many rows, never too few. What it names is compared with the row itself, so an entry whose row was
//! removed by another process does no harm. And none is missing: the writer, who alone changes the index, enters a row
//! before it commits it, and before it decides anything reads what other processes have appended ([`Index::catch_up`]).
//! Opening a file is the same thing, from the first row on. Readers take what is past [`Rows::complete_to`] from
//! the table itself.

use std::hash::BuildHasher;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI64, AtomicUsize};
use std::sync::{Mutex, MutexGuard};

use hashbrown::{DefaultHashBuilder, HashTable};
use oncegate_core::ClaimKey;
use rusqlite::{Connection, ffi};
use smallvec::SmallVec;

use crate::our_error;

/// A table that grows moves all of its entries; of many small ones each does so for a moment only. And callers that look do
/// not meet.
const SHARDS: usize = 64;
/// Entries of rows that other processes removed, below which it is not worth reading the file again.
const STALE_MIN: i64 = 1_000;

/// 16 bytes, whatever the key is long.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub hash: u64,
    pub seq: i64,
}

/// Where a key may be.
pub struct Rows {
    /// Nearly always none or one.
    pub known: SmallVec<[i64; 2]>,
    /// Or in a row after this one, of which the index does not know yet.
    pub complete_to: i64,
}

pub struct Index {
    /// Seeded at random. It is fast rather than strong: what it hashes are hashes already.
    hasher: DefaultHashBuilder,
    claims_max: usize,
    shards: [Mutex<HashTable<Entry>>; SHARDS],
    count: AtomicUsize,
    /// Every committed row up to this one is in. It grows after they were entered, and falls before they are cleared: whoever
    /// reads it with a shard locked finds in that shard what it promises.
    complete_to: AtomicI64,
    /// Rows that are gone and were never in, or have been taken out: the file's count of removed rows is ahead
    /// of it by the entries that are stale.
    gone: Mutex<Option<i64>>,
}

impl Index {
    pub fn new(claims_max: usize) -> Self {
        Index {
            hasher: DefaultHashBuilder::default(),
            claims_max,
            shards: std::array::from_fn(|_| Mutex::default()),
            count: AtomicUsize::new(0),
            complete_to: AtomicI64::new(0),
            gone: Mutex::default(),
        }
    }

    /// Enters what is committed and was not known yet. Not for a transaction that has appended rows itself: they
    /// would pass for committed ones. Returns the last row's `seq`.
    pub fn catch_up(&self, connection: &Connection) -> rusqlite::Result<i64> {
        let mut last = self.complete_to.load(SeqCst);
        let mut appended =
            connection.prepare_cached("SELECT seq, id, workspace FROM claims WHERE seq > ?1 ORDER BY seq")?;
        let mut rows = appended.query([last])?;
        while let Some(row) = rows.next()? {
            last = row.get(0)?;
            self.add(self.entry(row.get_ref(1)?.as_blob()?, row.get_ref(2)?.as_str()?, last));
            self.complete_to(last);
        }
        Ok(last)
    }

    /// Rows up to `seq` are committed, and have been entered.
    pub fn complete_to(&self, seq: i64) {
        self.complete_to.store(seq, SeqCst);
    }

    /// Whether most of it is of rows that other processes have removed. `removed` is how many rows were ever removed
    /// from the file, as of the last [`Index::catch_up`].
    pub fn is_mostly_stale(&self, removed: i64) -> bool {
        let stale = removed - *lock(&self.gone).get_or_insert(removed);
        stale > STALE_MIN && stale > self.count.load(SeqCst) as i64 / 2
    }

    pub fn rows(&self, key: &ClaimKey) -> Rows {
        let hash = self.hash_of(key);
        let shard = self.shard(hash);
        let same_hash = shard.iter_hash(hash).filter(|entry| entry.hash == hash);
        Rows { known: same_hash.map(|entry| entry.seq).collect(), complete_to: self.complete_to.load(SeqCst) }
    }

    /// Enters a row that is about to be committed; or refuses, when memory has its fill.
    pub fn enter(&self, key: &ClaimKey, seq: i64) -> rusqlite::Result<Entry> {
        if self.count.load(SeqCst) >= self.claims_max {
            let max = self.claims_max;
            let full = format!("this store keeps at most {max} claims. hint: shorten windows, or use PostgreSQL");
            return Err(our_error(ffi::SQLITE_FULL, full));
        }
        let entry = self.entry_of(key, seq);
        self.add(entry);
        Ok(entry)
    }

    /// Takes out rows that were entered and not committed.
    pub fn undo(&self, entered: &[Entry]) {
        entered.iter().for_each(|entry| self.remove(*entry));
    }

    /// Takes out rows that were removed, now that this is committed.
    pub fn take_out(&self, removed: &[Entry]) {
        removed.iter().for_each(|entry| self.remove(*entry));
        if let Some(gone) = &mut *lock(&self.gone) {
            *gone += removed.len() as i64;
        }
    }

    /// To be read anew.
    pub fn clear(&self) {
        self.complete_to(0);
        *lock(&self.gone) = None;
        self.shards.iter().for_each(|shard| *lock(shard) = HashTable::new());
        self.count.store(0, SeqCst);
    }

    pub fn entry(&self, id: &[u8], workspace: &str, seq: i64) -> Entry {
        Entry { hash: self.hasher.hash_one((id, workspace)), seq }
    }

    pub fn entry_of(&self, key: &ClaimKey, seq: i64) -> Entry {
        self.entry(key.id.as_bytes(), key.workspace.as_str(), seq)
    }

    pub fn hash_of(&self, key: &ClaimKey) -> u64 {
        self.entry_of(key, 0).hash
    }

    /// By bits that the table itself does not look at first.
    fn shard(&self, hash: u64) -> MutexGuard<'_, HashTable<Entry>> {
        lock(&self.shards[(hash >> 40) as usize % SHARDS])
    }

    /// A row whose commit was in doubt may come again.
    fn add(&self, entry: Entry) {
        let mut shard = self.shard(entry.hash);
        if shard.find(entry.hash, |other| *other == entry).is_none() {
            shard.insert_unique(entry.hash, entry, |entry| entry.hash);
            self.count.fetch_add(1, SeqCst);
        }
    }

    fn remove(&self, entry: Entry) {
        if let Ok(found) = self.shard(entry.hash).find_entry(entry.hash, |other| *other == entry) {
            found.remove();
            self.count.fetch_sub(1, SeqCst);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder of this lock panics")
}

#[cfg(test)]
mod tests {
    use oncegate_core::{GuardName, WorkspaceName};

    use super::*;

    fn key(part: u64) -> ClaimKey {
        let guard = GuardName::new("g").unwrap();
        ClaimKey::of(&WorkspaceName::default_workspace(), &guard, &[Some(part.to_le_bytes())])
    }

    #[test]
    fn a_key_may_have_several_rows_and_each_is_entered_once() {
        let index = Index::new(10);
        for seq in [1, 2, 2, 1] {
            index.enter(&key(7), seq).unwrap();
        }
        let mut rows = index.rows(&key(7)).known;
        rows.sort_unstable();
        assert_eq!(rows[..], [1, 2]);
        assert!(index.rows(&key(8)).known.is_empty());
        index.take_out(&[index.entry_of(&key(7), 1), index.entry_of(&key(7), 3), index.entry_of(&key(8), 2)]);
        assert_eq!(index.rows(&key(7)).known[..], [2]);
    }

    #[test]
    fn it_refuses_more_than_its_fill_until_something_is_taken_out() {
        let index = Index::new(2);
        let first = index.enter(&key(1), 1).unwrap();
        index.enter(&key(2), 2).unwrap();
        let error = index.enter(&key(3), 3).err().unwrap();
        assert!(error.to_string().contains("at most 2 claims"), "{error}");
        index.undo(&[first]);
        index.enter(&key(3), 3).unwrap();
    }

    #[test]
    fn it_knows_how_much_of_it_others_have_removed() {
        let index = Index::new(usize::MAX);
        assert!(!index.is_mostly_stale(50_000), "what was gone before it was read was never in");
        let entries: Vec<Entry> = (1..=10_000).map(|seq| index.enter(&key(seq), seq as i64).unwrap()).collect();
        index.take_out(&entries[..4_000]);
        assert!(!index.is_mostly_stale(54_000), "our own removals are not stale");
        assert!(!index.is_mostly_stale(57_000));
        assert!(index.is_mostly_stale(57_001));
    }
}
