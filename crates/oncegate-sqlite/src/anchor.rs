//! Computes the ledger's time, as a pure function of the file's state and the machine's clocks.
//!
//! Leases and windows follow elapsed time. The ledger's time is the machine's time since boot plus an offset that is stored in the
//! file. A step of the wall clock does not move the time since boot, and all processes of one boot compute the same time.
//! A stepped wall clock is trusted after ten minutes. The offset then moves towards it by a tenth of the time that passes, so
//! no lease ends much too early.

use oncegate_core::Time;
use oncegate_store::MachineTime;

const SECOND: i64 = 1_000_000;
/// A larger difference between the wall clock and its expected value is a step.
const STEP_MIN: i64 = 5 * SECOND;
/// A smaller difference is not worth a write.
const FOLLOWED_MIN: i64 = SECOND / 10;
/// How long a stepped wall clock must be stable before it is trusted.
const CONFIRMED_AFTER: i64 = 600 * SECOND;
/// The offset moves by at most 1/`SLEW_PARTS` of the time that passes: a lease of 60 s lasts at least 54 s.
const SLEW_PARTS: i64 = 10;
/// The file's largest time is written this much ahead, so that it need not be written with every commit.
const SEEN_AHEAD: i64 = 10 * SECOND;

/// The clock's state in the file. Times are microseconds since the machine's boot. A time plus an offset is in microseconds since
/// 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    pub boot: u128,
    pub since: i64,
    pub offset: i64,
    pub target: i64,
    pub sweeps_from: i64,
    pub step: Option<Step>,
    /// No time in the file is later than this, in microseconds since 1970.
    pub seen: i64,
}

/// A step of the wall clock that is not confirmed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub offset: i64,
    pub since: i64,
}

/// A change of the wall clock that the operator should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The wall clock differs from the ledger's time by this many microseconds.
    Stepped(i64),
    /// The wall clock is back where it was.
    Returned,
    /// The stepped wall clock has been stable for long enough. It differs by this many microseconds.
    Confirmed(i64),
}

impl Anchor {
    /// Sets the clock for the first time, or for the first time since the machine booted.
    fn set(machine: MachineTime, seen: i64, is_new: bool) -> (Anchor, Option<News>) {
        let MachineTime { boot, since_boot_us: since, wall } = machine;
        // The elapsed time is not known. The ledger's time must not go back, even if the wall clock did.
        let offset = wall.micros().max(seen) - since;
        let sweeps_from = if is_new { since } else { since + CONFIRMED_AFTER };
        let mut anchor = Anchor { boot, since, offset, target: offset, sweeps_from, step: None, seen };
        let news = anchor.follow(machine);
        (anchor, news)
    }

    fn offset_at(&self, since_boot: i64) -> i64 {
        let most = (since_boot - self.since).max(0) / SLEW_PARTS;
        self.offset + (self.target - self.offset).clamp(-most, most)
    }

    pub fn time_at(&self, since_boot: i64) -> Time {
        Time::from_micros(since_boot + self.offset_at(since_boot))
    }

    pub fn may_sweep(&self, since_boot: i64) -> bool {
        self.step.is_none() && since_boot >= self.sweeps_from
    }

    /// Compares the wall clock with its expected value.
    fn follow(&mut self, MachineTime { since_boot_us: now, wall, .. }: MachineTime) -> Option<News> {
        let offset = wall.micros() - now;
        let by = offset - self.target;
        if by.abs() <= STEP_MIN {
            if by.abs() >= FOLLOWED_MIN {
                self.aim(now, offset);
            }
            return self.step.take().map(|_| News::Returned);
        }
        match self.step {
            Some(step) if (offset - step.offset).abs() <= STEP_MIN => {
                if now - step.since < CONFIRMED_AFTER {
                    return None;
                }
                self.aim(now, offset);
                self.step = None;
                Some(News::Confirmed(by))
            }
            _ => {
                self.step = Some(Step { offset, since: now });
                Some(News::Stepped(by))
            }
        }
    }

    fn aim(&mut self, now: i64, target: i64) {
        (self.offset, self.since, self.target) = (self.offset_at(now), now, target);
    }

    /// Whether the state is of this machine's clock, even under another boot id: the time since boot and the wall clock have both
    /// continued from the stored values, and no time in the file is later. A machine that boots at the same wall time again
    /// has such a later time.
    fn fits(&self, MachineTime { since_boot_us: now, wall, .. }: MachineTime) -> bool {
        self.step.is_none()
            && now >= self.since
            && (wall.micros() - now - self.target).abs() <= STEP_MIN
            && self.time_at(now).micros() + SEEN_AHEAD >= self.seen
    }

    /// The state after `time` is written to the file.
    pub fn with_seen(self, time: Time) -> Anchor {
        let seen = if time.micros() > self.seen { time.micros() + SEEN_AHEAD } else { self.seen };
        Anchor { seen, ..self }
    }

    /// A warning for the operator, if the wall clock has stepped.
    pub fn warning(&self, machine: MachineTime) -> Option<String> {
        let now = machine.since_boot_us;
        let seconds = |micros: i64| (micros + SECOND / 2).div_euclid(SECOND);
        if let Some(step) = self.step {
            return Some(format!(
                "the wall clock stepped by {} s; the ledger keeps to elapsed time, and sweeps nothing until the wall clock has been stable for {} s",
                seconds(step.offset - self.offset_at(now)),
                seconds(CONFIRMED_AFTER)
            ));
        }
        let behind = self.target - self.offset_at(now);
        let catches_up = format!(
            "the ledger's clock differs by {} s from the wall clock, which has stepped, and follows it by a tenth of the time that passes",
            seconds(behind)
        );
        (behind.abs() > STEP_MIN).then_some(catches_up)
    }
}

/// The clock's next state, from the state found in the file. `found` is `None` if the file's clock was never set.
pub fn observe(found: Option<Anchor>, machine: MachineTime) -> (Anchor, Option<News>) {
    match found {
        Some(mut anchor) if anchor.boot == machine.boot => {
            let news = anchor.follow(machine);
            (anchor, news)
        }
        // Containers on one kernel may each have a boot id of their own, with the same clocks.
        Some(anchor) if anchor.fits(machine) => (Anchor { boot: machine.boot, ..anchor }, None),
        Some(before) => Anchor::set(machine, before.seen, false),
        None => Anchor::set(machine, 0, true),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOOT: u128 = 7;
    const EPOCH: i64 = 1_800_000_000 * SECOND;
    const HOUR: i64 = 3_600 * SECOND;
    const DAY: i64 = 24 * HOUR;

    /// The machine's clocks after `elapsed` microseconds, with the wall clock wrong by `wrong` microseconds.
    fn at(elapsed: i64, wrong: i64) -> MachineTime {
        MachineTime { boot: BOOT, since_boot_us: 1_000 + elapsed, wall: Time::from_micros(EPOCH + elapsed + wrong) }
    }

    fn time(anchor: &Anchor, machine: MachineTime) -> i64 {
        anchor.time_at(machine.since_boot_us).micros() - EPOCH
    }

    #[test]
    fn a_step_of_the_wall_clock_moves_no_lease() {
        for step in [HOUR, -HOUR, 2 * DAY, -2 * DAY, 6 * SECOND, -6 * SECOND] {
            let (anchor, news) = observe(None, at(0, 0));
            assert_eq!((time(&anchor, at(0, 0)), news), (0, None));
            let (stepped, news) = observe(Some(anchor), at(SECOND, step));
            assert_eq!((time(&stepped, at(SECOND, step)), news), (SECOND, Some(News::Stepped(step))));
            assert!(!stepped.may_sweep(at(SECOND, step).since_boot_us), "{step}");
            assert!(stepped.warning(at(SECOND, step)).is_some());
            let (same, news) = observe(Some(stepped), at(60 * SECOND, step));
            assert_eq!((same, news, time(&same, at(60 * SECOND, step))), (stepped, None, 60 * SECOND), "told once");
            let (back, news) = observe(Some(same), at(61 * SECOND, 0));
            assert_eq!((back, news), (anchor, Some(News::Returned)));
            assert!(back.may_sweep(at(61 * SECOND, 0).since_boot_us) && back.warning(at(61 * SECOND, 0)).is_none());
        }
    }

    #[test]
    fn a_step_is_believed_after_ten_minutes_and_followed_slowly() {
        for step in [HOUR, -HOUR] {
            let (anchor, _) = observe(None, at(0, 0));
            let (stepped, _) = observe(Some(anchor), at(SECOND, step));
            let (waiting, news) = observe(Some(stepped), at(600 * SECOND, step));
            assert_eq!((waiting, news), (stepped, None));
            let (confirmed, news) = observe(Some(waiting), at(601 * SECOND, step));
            assert_eq!(news, Some(News::Confirmed(step)));
            assert_eq!(time(&confirmed, at(601 * SECOND, step)), 601 * SECOND, "nothing jumps");
            assert!(confirmed.may_sweep(at(601 * SECOND, step).since_boot_us));
            assert_eq!(time(&confirmed, at(611 * SECOND, step)), 611 * SECOND + step.signum() * SECOND);
            assert!(confirmed.warning(at(611 * SECOND, step)).is_some());
            let later = at(20 * HOUR, step);
            assert_eq!(time(&confirmed, later), 20 * HOUR + step, "it has caught up");
            assert_eq!(confirmed.warning(later), None);
        }
    }

    #[test]
    fn a_clock_that_steps_again_is_not_confirmed() {
        let (anchor, _) = observe(None, at(0, 0));
        let (first, _) = observe(Some(anchor), at(SECOND, HOUR));
        let (second, news) = observe(Some(first), at(500 * SECOND, 2 * HOUR));
        assert_eq!(news, Some(News::Stepped(2 * HOUR)));
        assert_eq!(observe(Some(second), at(700 * SECOND, 2 * HOUR)), (second, None));
        assert_eq!(observe(Some(second), at(1_100 * SECOND, 2 * HOUR)).1, Some(News::Confirmed(2 * HOUR)));
    }

    #[test]
    fn drift_and_small_corrections_alarm_nobody_and_are_followed() {
        let (anchor, _) = observe(None, at(0, 0));
        assert_eq!(observe(Some(anchor), at(SECOND, SECOND / 20)), (anchor, None), "not even written");
        let (leap, news) = observe(Some(anchor), at(SECOND, -SECOND));
        assert_eq!((news, leap.step, leap.warning(at(SECOND, -SECOND))), (None, None, None));
        assert_eq!(time(&leap, at(SECOND, -SECOND)), SECOND);
        assert_eq!(time(&leap, at(HOUR, -SECOND)), HOUR - SECOND);
    }

    #[test]
    fn after_a_reboot_the_largest_time_seen_is_the_floor_and_sweeping_waits() {
        let (anchor, _) = observe(None, at(0, 0));
        let before = anchor.with_seen(Time::from_micros(EPOCH));
        let rebooted = |wrong: i64| MachineTime { boot: 8, since_boot_us: 5, wall: Time::from_micros(EPOCH + wrong) };
        let (ahead, news) = observe(Some(before), rebooted(HOUR));
        assert_eq!((ahead.time_at(5).micros() - EPOCH, news), (HOUR, None), "the machine was off for an hour");
        assert!(!ahead.may_sweep(5) && ahead.may_sweep(5 + CONFIRMED_AFTER));
        let (behind, news) = observe(Some(before), rebooted(-HOUR));
        assert_eq!(behind.time_at(5).micros(), before.seen);
        assert_eq!(news, Some(News::Stepped(-HOUR - SEEN_AHEAD)));
        assert!(!behind.may_sweep(5 + CONFIRMED_AFTER), "not while the wall clock is doubted");
    }

    #[test]
    fn two_boot_ids_with_the_same_clocks_are_one_machine() {
        let (mut anchor, _) = observe(None, at(0, 0));
        for commit in 1..1_000 {
            let elapsed = commit * SECOND / 50;
            let machine = MachineTime { boot: BOOT + u128::from(commit % 3 == 0), ..at(elapsed, 0) };
            anchor = observe(Some(anchor), machine).0;
            assert_eq!((anchor.boot, time(&anchor, machine)), (machine.boot, elapsed), "commit {commit}");
            assert!(anchor.may_sweep(machine.since_boot_us));
            anchor = anchor.with_seen(anchor.time_at(machine.since_boot_us));
        }
    }

    #[test]
    fn a_machine_that_boots_at_the_same_wall_time_again_does_not_go_back() {
        let (anchor, _) = observe(None, at(20 * SECOND, 0));
        let used = anchor.with_seen(anchor.time_at(at(10 * HOUR, 0).since_boot_us));
        let again = MachineTime { boot: 8, ..at(25 * SECOND, 0) };
        let (anchor, _) = observe(Some(used), again);
        assert!(time(&anchor, again) >= 10 * HOUR, "{}", time(&anchor, again));
    }

    #[test]
    fn what_the_file_has_seen_is_written_ahead() {
        let (anchor, _) = observe(None, at(0, 0));
        let noted = anchor.with_seen(Time::from_micros(EPOCH));
        assert_eq!(noted.seen, EPOCH + SEEN_AHEAD);
        assert_eq!(noted.with_seen(Time::from_micros(EPOCH + SEEN_AHEAD)), noted);
    }

    proptest! {
        /// Holds for any steps of the wall clock and any reboots.
        #[test]
        fn time_never_goes_back_and_follows_elapsed_time(
            looks in prop::collection::vec((1..900 * SECOND, -3 * DAY..3 * DAY, 0..4u8, 0..20u8), 1..60)
        ) {
            let (mut elapsed, mut wrong, mut boot, mut booted) = (0, 0, BOOT, 0);
            let mut anchor: Option<Anchor> = None;
            let mut last: Option<(i64, i64)> = None;
            for (passes, step, steps, reboots) in looks {
                elapsed += passes;
                wrong = if steps == 0 { step } else { wrong };
                // A machine does not reboot sooner than this after its last boot.
                let is_rebooted = reboots == 0 && elapsed - booted > 2 * SEEN_AHEAD;
                if is_rebooted {
                    (boot, booted) = (boot + 1, elapsed);
                }
                let machine = MachineTime {
                    boot, since_boot_us: elapsed - booted, wall: Time::from_micros(EPOCH + elapsed + wrong)
                };
                // Except after a reboot, a process that has not observed yet computes the same time.
                if let (Some(before), false) = (anchor, is_rebooted) {
                    let now = observe(Some(before), machine).0.time_at(machine.since_boot_us);
                    prop_assert_eq!(before.time_at(machine.since_boot_us), now);
                }
                let observed = observe(anchor, machine).0;
                let now = observed.time_at(machine.since_boot_us);
                if let Some((then, then_elapsed)) = last {
                    prop_assert!(now.micros() >= then, "time went back");
                    if !is_rebooted {
                        let passed = elapsed - then_elapsed;
                        let slewed = now.micros() - then - passed;
                        prop_assert!(slewed.abs() <= passed / SLEW_PARTS + 1, "{slewed} in {passed}");
                    }
                }
                last = Some((now.micros(), elapsed));
                anchor = Some(observed.with_seen(now));
            }
        }
    }
}
