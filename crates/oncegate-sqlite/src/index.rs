//! An in-memory index from a key to its row.
//!
//! With an index on disk, each claim's random key would dirty a page of its own, which would be most of the cost of a claim.
//! New claims are therefore appended. Their `seq` grows in the order of commits and is never reused,
//! and this index finds the rows.
//!
//! The index may name too many rows, never too few. Every named row is compared with the key, so an entry whose row
//! another process has removed does no harm. No entry is missing, because only the writer changes the index: it enters a
//! row before it commits the row, and reads the rows that other processes have appended before it decides
//! ([`Index::catch_up`]). Opening a file does the same from the first row on. Readers find rows after
//! [`Rows::complete_to`] in the table itself.

use std::hash::BuildHasher;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI64, AtomicUsize};
use std::sync::{Mutex, MutexGuard};

use hashbrown::{DefaultHashBuilder, HashTable};
use oncegate_core::ClaimKey;
use rusqlite::{Connection, ffi};
use smallvec::SmallVec;

use crate::our_error;

/// A hash table that grows moves all of its entries. Many small tables each block only for a moment, and concurrent callers
/// rarely lock the same one.
const SHARDS: usize = 64;
/// With fewer stale entries (rows that other processes removed) it is not worth reading the file again.
const STALE_MIN: i64 = 1_000;

/// 16 bytes, however long the key is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub hash: u64,
    pub seq: i64,
}

/// The rows that may hold a key.
pub struct Rows {
    /// The rows that the index knows: nearly always none or one.
    pub known: SmallVec<[i64; 2]>,
    /// The key may also be in a row after this one, which the index does not know yet.
    pub complete_to: i64,
}

pub struct Index {
    /// Seeded at random. A fast hasher is enough, because ids are cryptographic hashes already.
    hasher: DefaultHashBuilder,
    claims_max: usize,
    shards: [Mutex<HashTable<Entry>>; SHARDS],
    count: AtomicUsize,
    /// The index has every committed row up to this one. It grows after the rows are entered, and falls before they are cleared.
    /// A caller that reads it with a shard locked therefore finds all of that shard's rows up to it.
    complete_to: AtomicI64,
    /// The number of removed rows that are not in the index: never entered, or taken out. The file's count of removed rows
    /// minus this number is the number of stale entries.
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

    /// Enters committed rows that the index does not know yet. Must not run in a transaction that has appended rows itself,
    /// because these would count as committed. Returns the last row's `seq`.
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

    /// Declares that rows up to `seq` are committed and entered.
    pub fn complete_to(&self, seq: i64) {
        self.complete_to.store(seq, SeqCst);
    }

    /// Whether most entries are of rows that other processes have removed. `removed` is the number of rows ever removed
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

    /// Enters a row that is about to be committed. Refuses it when the index has `claims_max` entries.
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

    /// Takes out rows that were entered but not committed.
    pub fn undo(&self, entered: &[Entry]) {
        entered.iter().for_each(|entry| self.remove(*entry));
    }

    /// Takes out rows whose removal is committed.
    pub fn take_out(&self, removed: &[Entry]) {
        removed.iter().for_each(|entry| self.remove(*entry));
        if let Some(gone) = &mut *lock(&self.gone) {
            *gone += removed.len() as i64;
        }
    }

    /// Empties the index, to be read again.
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

    /// Selects the shard by bits that the hash table does not use first.
    fn shard(&self, hash: u64) -> MutexGuard<'_, HashTable<Entry>> {
        lock(&self.shards[(hash >> 40) as usize % SHARDS])
    }

    /// Adds an entry once. A row whose commit was in doubt may be added again.
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
