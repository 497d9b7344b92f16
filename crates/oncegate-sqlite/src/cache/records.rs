//! The cache of records that were written or read last, found by id and by name.
//!
//! [`Cache`](super::Recent) decides whether the cached records are still valid.

use std::hash::BuildHasher;
use std::sync::MutexGuard;

use bytes::Bytes;
use hashbrown::DefaultHashBuilder;
use oncegate_store::{At, Place, Record};
use uuid::Uuid;

use super::TEXT_BYTES_MAX;
use crate::cache_shards::{Shard, Shards};

/// The number of shards, with four places each.
const SHELVES: usize = 8_192;

pub struct Records {
    hasher: DefaultHashBuilder,
    /// In boxes, so that an empty shard takes little memory; in a small store most shards are empty.
    kept: Shards<Box<Kept>, 4>,
    /// The id of the record with a name, by the name's hash. An entry may be outdated, so the cached record's names are checked.
    named: Shards<(u64, Uuid), 4>,
}

struct Kept {
    generation: u64,
    record: Record,
    /// The known names of the record, perhaps not all.
    names: Vec<String>,
}

impl Default for Records {
    fn default() -> Self {
        Records { hasher: DefaultHashBuilder::default(), kept: Shards::new(SHELVES), named: Shards::new(SHELVES) }
    }
}

impl Records {
    pub fn find(&self, generation: u64, Place { workspace, kind, at }: &Place) -> Option<Record> {
        let (id, name) = match at {
            At::Id(id) => (*id, None),
            At::Name(name) => {
                let hash = self.hasher.hash_one((workspace, kind, name));
                (self.named.lock(hash).find(|(other, _)| *other == hash)?.1, Some(name))
            }
        };
        let mut shard = self.shard(id);
        let kept = shard.find(|kept| {
            let record = &kept.record;
            record.id == id && record.kind == *kind && record.workspace == *workspace
        })?;
        let is_it = kept.generation == generation && name.is_none_or(|name| kept.names.contains(name));
        is_it.then(|| kept.record.clone())
    }

    /// Enters the current version of a record, with known names, if `holds` still returns true. `holds` runs with the shard locked,
    /// so that no other thread can enter a record in between.
    pub fn enter(&self, generation: u64, record: Record, names: Vec<String>, holds: impl FnOnce() -> bool) {
        for name in &names {
            let hash = self.hasher.hash_one((&record.workspace, record.kind, name));
            let mut shard = self.named.lock(hash);
            shard.take(|(other, _)| *other == hash);
            shard.put((hash, record.id));
        }
        let mut shard = self.shard(record.id);
        if !holds() {
            return;
        }
        let before = shard.take(|before| before.record.id == record.id).filter(|before| {
            before.generation == generation
                && before.record.kind == record.kind
                && before.record.workspace == record.workspace
        });
        let mut all = before.map_or(vec![], |before| before.names);
        all.extend(names.into_iter().filter(|name| !all.contains(name)).collect::<Vec<_>>());
        shard.put(Box::new(Kept { generation, record, names: all }));
    }

    pub fn remove(&self, id: Uuid) {
        self.shard(id).take(|kept| kept.record.id == id);
    }

    fn shard(&self, id: Uuid) -> MutexGuard<'_, Shard<Box<Kept>, 4>> {
        self.kept.lock(self.hasher.hash_one(id))
    }
}

/// A copy of the record for the cache, unless its body and names are too large.
pub fn keepable(record: &Record, names: &[String]) -> Option<Record> {
    // The body may be a slice of a larger buffer, which it would keep in memory.
    let keep = || Record { body: Bytes::copy_from_slice(&record.body), ..record.clone() };
    (record.body.len() + names.iter().map(String::len).sum::<usize>() <= TEXT_BYTES_MAX).then(keep)
}
