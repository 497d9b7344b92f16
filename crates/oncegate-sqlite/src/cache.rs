//! The cache of what was written last: claims, and records with their names.
//!
//! A caller that meets a cached claim (mostly a retry), or looks up a cached record, is answered without a read of the file.
//! Other processes may write to the file too. Each lookup therefore first compares the file's [`Version`] with the cache's
//! version; the two are equal until any process commits. The writer enters what it has committed, then the new version, and
//! then answers its callers. A lookup therefore finds what a read of the file would have found at that moment, or what
//! was committed since. If the versions differ, the file is read instead.

mod records;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, RwLock};

use bytes::Bytes;
use oncegate_core::{Claim, ClaimKey};
use oncegate_store::{At, Change, DuplicateCount, Place, Record};
use uuid::Uuid;

use crate::cache_shards::Shards;
use crate::index::Entry;
use crate::wal_index::{SharedVersion, Version, WalIndex};
use records::Records;

/// Places for claims. The hash selects a claim's only place, and a later claim evicts the one before it.
const CLAIMS: usize = 16_384;
/// A claim or record with more text than this is not cached.
const TEXT_BYTES_MAX: usize = 1_024;

/// One write of a transaction to a claim (by the index's hash of its key) or to a record.
pub enum Written {
    Claim(Entry, Arc<Claim>),
    Counted(u64, DuplicateCount),
    Removed(Entry),
    /// The record, and names that were added to its names.
    Record(Record, Vec<String>),
    /// The record with this id, of any workspace and kind.
    RecordRemoved(Uuid),
}

impl Written {
    /// The effect of a change on the cached records.
    pub fn by(change: &Change) -> Option<Written> {
        match change {
            Change::Create { record, names, .. } | Change::Replace { record, names } => {
                Some(match records::keepable(record, names) {
                    Some(record) => Written::Record(record, names.clone()),
                    None => Written::RecordRemoved(record.id),
                })
            }
            Change::Remove { record, .. } => Some(Written::RecordRemoved(record.id)),
            Change::Enqueue(_) | Change::Requeue { .. } | Change::Dequeue(_) => None,
        }
    }
}

pub struct Cache {
    /// Set by the writer. `None` before it opens the file and after it closes the file.
    wal_index: RwLock<Option<WalIndex>>,
    /// The cache is as of this version or a later one. Its initial value is a version that no file can have.
    as_of: SharedVersion,
    /// The generation of the cache. Entries of earlier generations are invalid.
    generation: AtomicU64,
    claims: Shards<KeptClaim, 1>,
    records: Records,
    /// The length of the log after the writer's commit; 0 if the commit wrote nothing.
    frames: AtomicU32,
}

struct KeptClaim {
    generation: u64,
    seq: i64,
    claim: Arc<Claim>,
}

impl Cache {
    pub fn new() -> Self {
        Cache {
            wal_index: RwLock::new(None),
            as_of: SharedVersion::default(),
            generation: AtomicU64::new(0),
            claims: Shards::new(CLAIMS),
            records: Records::default(),
            frames: AtomicU32::new(0),
        }
    }

    /// The file's version, if the cache is as of that version.
    pub fn current(&self) -> Option<Version> {
        self.version().filter(|version| *version == self.as_of.get())
    }

    /// The claim under a key with this hash, if it is cached and no process has written since.
    pub fn find(&self, hash: u64, key: &ClaimKey) -> Option<Arc<Claim>> {
        self.current()?;
        let mut shard = self.claims.lock(hash);
        let kept = shard.find(|kept| kept.generation == self.generation.load(Acquire) && kept.claim.key == *key);
        kept.map(|kept| kept.claim.clone())
    }

    /// The records at these places as of a version, if all of them are cached and that version is still the current one.
    pub fn records(&self, as_of: Version, places: &[Place]) -> Option<Vec<Option<Record>>> {
        let generation = self.generation.load(Acquire);
        let found = places.iter().map(|place| self.records.find(generation, place).map(Some)).collect::<Option<_>>()?;
        // Nothing was entered meanwhile, so the records form one consistent snapshot.
        self.current().filter(|current| *current == as_of).map(|_| found)
    }

    /// Caches a record that was read from the file. The read must have begun when `as_of` was current.
    pub fn learn(&self, as_of: Version, place: &Place, record: &Record) {
        let names = match &place.at {
            At::Id(_) => vec![],
            At::Name(name) => vec![name.clone()],
        };
        if let Some(record) = records::keepable(record, &names) {
            self.records.enter(self.generation.load(Acquire), record, names, || self.current() == Some(as_of));
        }
    }

    // The functions below are for the writer only.

    pub fn open(&self, wal_index: WalIndex) {
        self.forget_all();
        self.set_wal_index(Some(wal_index));
    }

    pub fn close(&self) {
        self.set_wal_index(None);
    }

    /// Call it when a transaction has begun, so that no other process can commit before it ends. Returns false if another process
    /// has committed, or may have, since the writer's last transaction. Then the whole cache is invalid.
    pub fn begin(&self) -> bool {
        self.frames.store(0, Relaxed);
        if self.current().is_some() {
            return true;
        }
        self.forget_all();
        if let Some(version) = self.version() {
            self.as_of.set(version);
        }
        false
    }

    /// The transaction is in the log, which now has this length.
    pub fn logged(&self, frames: u32) {
        self.frames.store(frames, Relaxed);
    }

    /// Enters the writes of a committed transaction, then the file's new version.
    pub fn committed(&self, written: impl Iterator<Item = Written>) {
        written.for_each(|written| self.enter(written));
        match self.frames.load(Relaxed) {
            // The transaction wrote nothing to the log, so any new version of the file is another process's commit.
            0 => {}
            frames => match self.version().filter(|version| version.follows(self.as_of.get(), frames)) {
                Some(version) => self.as_of.set(version),
                // Another process has committed right after this one.
                None => self.forget_all(),
            },
        }
    }

    fn forget_all(&self) {
        self.generation.fetch_add(1, Release);
    }

    fn set_wal_index(&self, next: Option<WalIndex>) {
        let last = std::mem::replace(&mut *self.wal_index.write().expect("no holder of this lock panics"), next);
        // Dropped after the lock is released, because closing the file may take a while and readers need the lock.
        drop(last);
    }

    fn version(&self) -> Option<Version> {
        let wal_index = self.wal_index.read().expect("no holder of this lock panics");
        wal_index.as_ref().map(WalIndex::version)
    }

    fn enter(&self, written: Written) {
        let generation = self.generation.load(Relaxed);
        match written {
            Written::Claim(Entry { hash, seq }, claim) => {
                let mut shard = self.claims.lock(hash);
                shard.take(|_| true);
                keepable(claim).into_iter().for_each(|claim| shard.put(KeptClaim { generation, seq, claim }));
            }
            Written::Counted(hash, count) => {
                if let Some(kept) = self.claims.lock(hash).find(|kept| kept.claim.key == count.key) {
                    count.add_to(Arc::make_mut(&mut kept.claim));
                }
            }
            Written::Removed(Entry { hash, seq }) => {
                self.claims.lock(hash).take(|kept| kept.seq == seq);
            }
            Written::Record(record, names) => self.records.enter(generation, record, names, || true),
            Written::RecordRemoved(id) => self.records.remove(id),
        }
    }
}

/// The claim for the cache, unless its texts and outcome are too large.
fn keepable(mut claim: Arc<Claim>) -> Option<Arc<Claim>> {
    let texts = [&claim.fingerprint, &claim.attributes, &claim.parts];
    let outcome_bytes = claim.outcome.as_ref().map_or(0, Bytes::len);
    if texts.into_iter().flatten().map(String::len).sum::<usize>() + outcome_bytes > TEXT_BYTES_MAX {
        return None;
    }
    // The outcome may be a slice of a larger buffer, which it would keep in memory.
    if let Some(outcome) = claim.outcome.as_deref().map(Bytes::copy_from_slice) {
        Arc::make_mut(&mut claim).outcome = Some(outcome);
    }
    Some(claim)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use oncegate_core::{GuardName, Lost, State, Time, Token, WorkspaceName};
    use rusqlite::Connection;

    use super::*;

    const HASH: u64 = 7;

    struct World {
        cache: Cache,
        ours: Connection,
        theirs: Connection,
        _folder: tempfile::TempDir,
    }

    impl World {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("x.db");
            Connection::open(&path).unwrap().execute_batch("PRAGMA journal_mode = wal; CREATE TABLE t (x)").unwrap();
            let cache = Cache::new();
            cache.open(WalIndex::open(&path).unwrap());
            World { cache, ours: connect(&path), theirs: connect(&path), _folder: folder }
        }

        /// Does the writer's steps, with `after_commit` between the commit and its entry into the cache.
        fn write(&self, key: &ClaimKey, after_commit: impl FnOnce()) {
            self.ours.execute_batch("BEGIN IMMEDIATE; INSERT INTO t VALUES (1)").unwrap();
            self.cache.begin();
            self.ours.execute_batch("COMMIT").unwrap();
            self.cache.logged(log_frames(&self.ours));
            after_commit();
            let entry = Entry { hash: HASH, seq: 1 };
            self.cache.committed([Written::Claim(entry, claim(key))].into_iter());
        }

        fn write_nothing(&self, after_commit: impl FnOnce()) {
            self.ours.execute_batch("BEGIN IMMEDIATE").unwrap();
            self.cache.begin();
            self.ours.execute_batch("COMMIT").unwrap();
            after_commit();
            self.cache.committed(std::iter::empty());
        }

        fn they_write(&self) {
            self.theirs.execute_batch("INSERT INTO t VALUES (2)").unwrap();
        }

        fn knows(&self, key: &ClaimKey) -> bool {
            self.cache.find(HASH, key).is_some()
        }
    }

    fn connect(path: &Path) -> Connection {
        let connection = Connection::open(path).unwrap();
        connection.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
        connection
    }

    /// The log is never checkpointed here, so its length follows from its file's size.
    fn log_frames(connection: &Connection) -> u32 {
        let log = format!("{}-wal", connection.path().unwrap());
        u32::try_from((std::fs::metadata(log).unwrap().len() - 32) / (4_096 + 24)).unwrap()
    }

    fn key(part: &str) -> ClaimKey {
        ClaimKey::of(&WorkspaceName::default_workspace(), &GuardName::new("g").unwrap(), &[Some(part)])
    }

    fn claim(key: &ClaimKey) -> Arc<Claim> {
        Arc::new(Claim {
            key: key.clone(),
            state: State::InFlight,
            token: Token(1),
            version: 1,
            attempt: 1,
            lost: Lost::TakeOver,
            lease: std::time::Duration::ZERO,
            lease_until: Time::NEVER,
            expires_at: Time::NEVER,
            created_at: Time::NEVER,
            settled_at: None,
            fingerprint: None,
            outcome: None,
            duplicates: 0,
            last_duplicate_at: None,
            attributes: None,
            parts: None,
        })
    }

    #[test]
    fn it_knows_what_was_written_until_somebody_else_writes() {
        let world = World::new();
        let (a, b) = (key("a"), key("b"));
        assert!(!world.knows(&a));
        world.write(&a, || ());
        assert!(world.knows(&a) && !world.knows(&b));
        world.they_write();
        assert!(!world.knows(&a));
        // A transaction that writes nothing notices the foreign commit too, and makes no entry valid again.
        world.write_nothing(|| ());
        assert!(!world.knows(&a));
        world.write(&a, || ());
        world.write(&b, || ());
        assert!(world.knows(&b) && !world.knows(&a), "they have the same place");
    }

    #[test]
    fn it_does_not_take_anothers_commit_for_its_own() {
        let world = World::new();
        world.write(&key("a"), || world.they_write());
        assert!(!world.knows(&key("a")));
        world.write(&key("b"), || ());
        assert!(world.knows(&key("b")));
        world.write_nothing(|| world.they_write());
        assert!(!world.knows(&key("b")));
        // Here the other process also empties the log, so its length is 0, like that of a transaction that writes nothing.
        world.write(&key("c"), || ());
        world.write_nothing(|| {
            world.they_write();
            world.theirs.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        });
        assert!(!world.knows(&key("c")));
        world.write_nothing(|| ());
        assert!(!world.knows(&key("c")));
    }

    #[test]
    fn closed_it_knows_nothing() {
        let world = World::new();
        world.write(&key("a"), || ());
        world.cache.close();
        assert!(!world.knows(&key("a")));
        world.cache.open(WalIndex::open(Path::new(world.ours.path().unwrap())).unwrap());
        assert!(!world.knows(&key("a")), "opened again, it does not know what happened meanwhile");
    }
}
