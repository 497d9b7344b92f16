//! Which row a key is in, kept in memory.
//!
//! A random key in an index on disk dirties a page of its own with every claim, and that would be most of what a claim
//! costs. So rows are only appended, under a `seq` that grows in the order of commits and is never used twice, and this
//! index finds them.
//!
//! It may name too many rows, never too few. What it names is compared with the row itself, so an entry whose
//! row was rolled back, or removed by another process, does no harm. And none is missing: the writer, who alone changes
//! the index, enters a row before it commits it, and at the start of a transaction reads what other processes have
//! appended ([`Index::catch_up`]). Opening a file is the same thing, from the first row on. Readers take what is past
//! [`Rows::complete_to`] from the table itself.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard};

use hashbrown::HashTable;
use oncegate_core::ClaimKey;
use rusqlite::{Connection, ffi};
use smallvec::SmallVec;

/// A table that grows moves all of its entries; of many small ones each does so for a moment only.
const SHARDS: usize = 64;

/// An entry: 16 bytes, whatever the key is long.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry {
    hash: u64,
    seq: i64,
}

pub struct Index {
    /// Keyed at random, so that nobody can choose keys that meet in one place.
    hasher: RandomState,
    claims_max: usize,
    entries: Mutex<Entries>,
}

struct Entries {
    shards: [HashTable<Entry>; SHARDS],
    count: usize,
    /// Every committed row up to this one is in.
    complete_to: i64,
    /// There is no row before this one.
    first_row: i64,
}

/// An entry to take out, once the removal of its row is committed.
pub struct Removed(Entry);

/// Where a key may be.
pub struct Rows {
    /// Nearly always none or one.
    pub known: SmallVec<[i64; 2]>,
    /// Or in a row after this one, of which the index does not know yet.
    pub complete_to: i64,
}

impl Index {
    pub fn new(claims_max: usize) -> Self {
        Index { hasher: RandomState::new(), claims_max, entries: Mutex::new(Entries::empty()) }
    }

    /// Enters what is committed and was not known yet. Not for a transaction that has appended rows itself: they
    /// would pass for committed ones.
    /// Returns the last row's `seq`.
    pub fn catch_up(&self, connection: &Connection) -> rusqlite::Result<i64> {
        let mut last = self.lock().complete_to;
        let mut appended = connection.prepare_cached(include_str!("../sql/appended_claims.sql"))?;
        let mut rows = appended.query([last])?;
        while let Some(row) = rows.next()? {
            last = row.get(0)?;
            let hash = self.hash(row.get_ref(1)?.as_blob()?, row.get_ref(2)?.as_str()?);
            let mut entries = self.lock();
            entries.add(Entry { hash, seq: last });
            entries.complete_to = last;
        }
        Ok(last)
    }

    /// Rows up to `seq` are committed, and have been entered.
    pub fn complete_to(&self, seq: i64) {
        self.lock().complete_to = seq;
    }

    /// There is no row before this one, nor will there be: entries that are older may go.
    pub fn forget_before(&self, first_row: i64) {
        self.lock().first_row = first_row;
    }

    pub fn rows(&self, key: &ClaimKey) -> Rows {
        let hash = self.hash_of(key);
        let entries = self.lock();
        let same_hash = entries.shards[shard(hash)].iter_hash(hash).filter(|entry| entry.hash == hash);
        Rows { known: same_hash.map(|entry| entry.seq).collect(), complete_to: entries.complete_to }
    }

    /// Enters a row that is about to be committed; or refuses, when memory has its fill.
    pub fn enter(&self, key: &ClaimKey, seq: i64) -> rusqlite::Result<()> {
        let mut entries = self.lock();
        if entries.count >= self.claims_max {
            let full = format!(
                "this store keeps at most {} claims. hint: shorten windows, or use PostgreSQL",
                self.claims_max
            );
            return Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), Some(full)));
        }
        entries.add(Entry { hash: self.hash_of(key), seq });
        Ok(())
    }

    pub fn removed(&self, seq: i64, id: &[u8], workspace: &str) -> Removed {
        Removed(Entry { hash: self.hash(id, workspace), seq })
    }

    /// Takes out what was removed, and committed.
    pub fn take_out(&self, removed: &[Removed]) {
        for Removed(entry) in removed {
            self.lock().take_out(*entry);
        }
    }

    /// The file may be another one now.
    pub fn clear(&self) {
        *self.lock() = Entries::empty();
    }

    fn hash_of(&self, key: &ClaimKey) -> u64 {
        self.hash(key.id.as_bytes(), key.workspace.as_str())
    }

    fn hash(&self, id: &[u8], workspace: &str) -> u64 {
        self.hasher.hash_one((id, workspace))
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().expect("no holder of this lock panics")
    }
}

impl Entries {
    fn empty() -> Self {
        Entries { shards: std::array::from_fn(|_| HashTable::new()), count: 0, complete_to: 0, first_row: 0 }
    }

    /// What was entered and rolled back, or whose commit was in doubt, may come again.
    fn add(&mut self, entry: Entry) {
        let shard = &mut self.shards[shard(entry.hash)];
        if shard.find(entry.hash, |other| *other == entry).is_some() {
            return;
        }
        if shard.len() == shard.capacity() {
            let before = shard.len();
            shard.retain(|entry| entry.seq >= self.first_row);
            self.count -= before - shard.len();
        }
        shard.insert_unique(entry.hash, entry, |entry| entry.hash);
        self.count += 1;
    }

    fn take_out(&mut self, entry: Entry) {
        if let Ok(found) = self.shards[shard(entry.hash)].find_entry(entry.hash, |other| *other == entry) {
            found.remove();
            self.count -= 1;
        }
    }
}

/// By bits that the table itself does not look at first.
fn shard(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
}

#[cfg(test)]
mod tests {
    use oncegate_core::{GuardName, WorkspaceName};

    use super::*;

    fn key(part: u64) -> ClaimKey {
        let guard = GuardName::new("g").unwrap();
        ClaimKey::of(&WorkspaceName::default_workspace(), &guard, &[Some(part.to_le_bytes())])
    }

    fn removed(index: &Index, part: u64, seq: i64) -> Removed {
        let key = key(part);
        index.removed(seq, key.id.as_bytes(), key.workspace.as_str())
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
        index.take_out(&[removed(&index, 7, 1), removed(&index, 7, 3), removed(&index, 8, 2)]);
        assert_eq!(index.rows(&key(7)).known[..], [2]);
    }

    #[test]
    fn it_refuses_more_than_its_fill_until_something_is_taken_out() {
        let index = Index::new(2);
        index.enter(&key(1), 1).unwrap();
        index.enter(&key(2), 2).unwrap();
        let error = index.enter(&key(3), 3).unwrap_err();
        assert!(error.to_string().contains("at most 2 claims"), "{error}");
        index.take_out(&[removed(&index, 1, 1)]);
        index.enter(&key(3), 3).unwrap();
    }

    #[test]
    fn what_others_have_swept_does_not_pile_up() {
        let index = Index::new(usize::MAX);
        for seq in 1..=1_000_000_u64 {
            index.enter(&key(seq), seq as i64).unwrap();
            index.forget_before(seq as i64 - 10);
        }
        let count = index.lock().count;
        assert!(count < 1_000, "{count} entries for 10 rows");
        assert_eq!(index.rows(&key(1_000_000)).known[..], [1_000_000]);
    }
}
