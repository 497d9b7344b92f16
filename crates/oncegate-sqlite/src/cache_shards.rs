//! The shards of a bounded cache, selected by hash. A new entry evicts the oldest entry of its shard.

use std::sync::{Mutex, MutexGuard};

/// The hash of an entry selects its shard. A shard has room for `WIDTH` entries.
pub struct Shards<T, const WIDTH: usize>(Box<[Mutex<Shard<T, WIDTH>>]>);

/// One shard, newest entry first.
pub struct Shard<T, const WIDTH: usize>([Option<T>; WIDTH]);

impl<T, const WIDTH: usize> Shards<T, WIDTH> {
    pub fn new(shards: usize) -> Self {
        let empty = || Mutex::new(Shard(std::array::from_fn(|_| None)));
        Shards(std::iter::repeat_with(empty).take(shards).collect())
    }

    pub fn lock(&self, hash: u64) -> MutexGuard<'_, Shard<T, WIDTH>> {
        self.0[hash as usize % self.0.len()].lock().expect("no holder of this lock panics")
    }
}

impl<T, const WIDTH: usize> Shard<T, WIDTH> {
    pub fn find(&mut self, is_it: impl Fn(&T) -> bool) -> Option<&mut T> {
        self.0.iter_mut().flatten().find(|thing| is_it(thing))
    }

    pub fn take(&mut self, is_it: impl Fn(&T) -> bool) -> Option<T> {
        self.0.iter_mut().find_map(|place| place.take_if(|thing| is_it(thing)))
    }

    /// Adds an entry that the shard does not have.
    pub fn put(&mut self, thing: T) {
        let place = self.0.iter().position(Option::is_none).unwrap_or(WIDTH - 1);
        self.0[..=place].rotate_right(1);
        self.0[0] = Some(thing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_been_there_longest_makes_room() {
        let shards = Shards::<u32, 3>::new(2);
        let mut shard = shards.lock(4);
        (1..=3).for_each(|thing| shard.put(thing));
        assert_eq!(shard.take(|thing| *thing == 2), Some(2));
        shard.put(4);
        let has = |shard: &mut Shard<u32, 3>| {
            (1..=5).filter(|n| shard.find(|thing| thing == n).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(has(&mut shard), [1, 3, 4], "there was room");
        shard.put(5);
        assert_eq!(has(&mut shard), [3, 4, 5]);
        assert!(shards.lock(5).find(|_| true).is_none(), "another shard");
    }
}
