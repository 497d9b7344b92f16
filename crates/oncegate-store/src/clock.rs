//! Clocks, for stores that have none of their own, and for tests.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oncegate_core::Time;

/// Where an embedded store takes its time from.
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Time;
}

/// The machine's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Time {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time::from_micros(i64::try_from(since_1970.as_micros()).unwrap_or(i64::MAX))
    }
}

/// A clock that moves when it is told to.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    pub fn starting_at(time: Time) -> Self {
        ManualClock(AtomicI64::new(time.micros()))
    }

    pub fn set(&self, time: Time) {
        self.0.store(time.micros(), Ordering::SeqCst);
    }

    pub fn advance(&self, span: Duration) {
        self.set(self.now() + span);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Time {
        Time::from_micros(self.0.load(Ordering::SeqCst))
    }
}
