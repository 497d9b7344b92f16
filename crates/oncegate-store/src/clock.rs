//! Clocks for tests and for stores without a clock of their own.

#[cfg(target_os = "linux")]
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oncegate_core::Time;

/// The source of time for an embedded store.
pub trait Clock: Send + Sync + 'static {
    /// The time that the clock shows.
    fn now(&self) -> Time;

    /// The machine's clocks, if this clock is the machine's. With them a store can tell elapsed time from a step of the wall clock.
    /// `None`: the store trusts [`now`](Clock::now) as it is.
    fn machine(&self) -> Option<MachineTime> {
        None
    }
}

/// The machine's clocks, read at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineTime {
    /// Identifies the boot. It is equal only between processes that share the clock `since_boot_us`.
    pub boot: u128,
    /// Microseconds since boot, including time in suspend. A step of the wall clock does not move it.
    pub since_boot_us: i64,
    /// The wall clock, which may step forward or back.
    pub wall: Time,
}

/// The machine's wall clock, and on Linux its clock since boot.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Time {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time::from_micros(i64::try_from(since_1970.as_micros()).unwrap_or(i64::MAX))
    }

    #[cfg(target_os = "linux")]
    fn machine(&self) -> Option<MachineTime> {
        static BOOT: LazyLock<Option<(u128, i64)>> = LazyLock::new(boot);
        let (boot, shift_us) = (*BOOT)?;
        let since_boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Some(MachineTime {
            boot,
            since_boot_us: since_boot.tv_sec * 1_000_000 + since_boot.tv_nsec / 1_000 - shift_us,
            wall: self.now(),
        })
    }
}

/// The kernel's id of this boot, and the shift of the time since boot in this process's time namespace, in microseconds.
/// Processes of one boot agree on the time without that shift.
#[cfg(target_os = "linux")]
fn boot() -> Option<(u128, i64)> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let id = u128::from_str_radix(&id.trim().replace('-', ""), 16).ok()?;
    // A kernel without time namespaces has no such file, and shifts nothing.
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    Some((id, boottime_shift(&offsets)))
}

/// Parses lines such as `boottime  86400  500000000`: seconds and nanoseconds.
#[cfg(target_os = "linux")]
fn boottime_shift(offsets: &str) -> i64 {
    let shift = |line: &str| {
        let mut words = line.split_whitespace();
        let is_boottime = words.next() == Some("boottime");
        let (seconds, nanos): (i64, i64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        is_boottime.then_some(seconds * 1_000_000 + nanos / 1_000)
    };
    offsets.lines().find_map(shift).unwrap_or(0)
}

/// A clock that only the test moves.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that shows `time` until the test moves it.
    pub fn starting_at(time: Time) -> Self {
        ManualClock(AtomicI64::new(time.micros()))
    }

    /// Moves the clock to `time`, which may be earlier.
    pub fn set(&self, time: Time) {
        self.0.store(time.micros(), Ordering::SeqCst);
    }

    /// Moves the clock forward by `span`.
    pub fn advance(&self, span: Duration) {
        self.set(self.now() + span);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Time {
        Time::from_micros(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_shift_of_a_time_namespace_is_read() {
        assert_eq!(boottime_shift("monotonic           0         0\nboottime            0         0\n"), 0);
        assert_eq!(boottime_shift("monotonic  5  0\nboottime  -3600  500000000\n"), -3_599_500_000);
        assert_eq!(boottime_shift(""), 0);
    }
}
