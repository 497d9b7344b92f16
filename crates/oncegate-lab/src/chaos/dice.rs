//! Random numbers that a seed repeats.

use std::ops::Range;
use std::time::Duration;

/// SplitMix64: the same numbers for the same seed.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// A separate sequence for each name, so that one part of the load does not change the faults.
    pub fn of(seed: u64, name: &str, number: u64) -> Dice {
        let mut mixed = Dice(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for byte in name.bytes() {
            mixed = Dice(mixed.number() ^ u64::from(byte));
        }
        mixed
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.number() % limit.max(1) as u64) as usize
    }

    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    pub fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(range.start + self.number() % (range.end - range.start).max(1))
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
