//! Limits the logging of repeated errors: the first is logged at once, then their count at intervals, then their end.
//!
//! A full disk fails every commit within microseconds. A log line for each would fill the rest of the disk.

use std::time::{Duration, Instant};

const TOLD_EVERY: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct Trouble(Option<Errors>);

struct Errors {
    since: Instant,
    told_at: Instant,
    count: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Over {
    pub errors: u64,
    pub lasted: Duration,
}

impl Trouble {
    /// Counts an error. Returns the count if it is time to log it.
    pub fn failed(&mut self, now: Instant) -> Option<u64> {
        let Some(errors) = &mut self.0 else {
            self.0 = Some(Errors { since: now, told_at: now, count: 1 });
            return Some(1);
        };
        errors.count += 1;
        let is_due = now - errors.told_at >= TOLD_EVERY;
        if is_due {
            errors.told_at = now;
        }
        is_due.then_some(errors.count)
    }

    /// Records a success. Returns a summary of the errors before it, if there were any.
    pub fn succeeded(&mut self, now: Instant) -> Option<Over> {
        self.0.take().map(|errors| Over { errors: errors.count, lasted: now - errors.since })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_is_told_then_a_count_at_intervals_then_the_end() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut trouble = Trouble::default();
        assert_eq!(trouble.succeeded(at(0)), None);
        let told: Vec<u64> = (0..45_000).filter_map(|turn| trouble.failed(at(turn * 12 / 45))).collect();
        assert_eq!(told.len(), 2, "45,000 errors in 12 seconds: {told:?}");
        assert_eq!(told[0], 1);
        assert_eq!(trouble.succeeded(at(12_000)), Some(Over { errors: 45_000, lasted: Duration::from_secs(12) }));
        assert_eq!(trouble.succeeded(at(12_001)), None);
        assert_eq!(trouble.failed(at(12_002)), Some(1), "the next trouble is told at once");
    }
}
