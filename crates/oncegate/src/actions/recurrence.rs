//! When a schedule is due again: after an interval, daily at a local time, or as a cron line defines.

use std::time::Duration;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan, Zoned};
use oncegate_core::Time;
use oncegate_core::units::show_duration;
use serde::{Deserialize, Serialize};

use super::{ScheduleError, When};

/// The shortest interval; shorter ones are refused.
const INTERVAL_MIN: Duration = Duration::from_millis(10);
const INTERVAL_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);
/// The shortest day of a time zone, and the shortest time between two ticks of a cron line.
const DAY_MIN: Duration = Duration::from_secs(22 * 3600);
const CRON_MIN: Duration = Duration::from_secs(60);
/// How far in the past a limited schedule with `catchUp` may begin: clocks differ, and a request takes a while to arrive.
const CATCH_UP_MAX: Duration = Duration::from_secs(60);
/// How many ticks of a cron line are checked for the shortest time between two: more than a year of days.
const CRON_TICKS_LOOKED_AT: usize = 500;
const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// A checked recurrence.
#[derive(Clone, Debug)]
pub struct Repeats {
    rule: Rule,
    text: String,
    zone: TimeZone,
    timezone: Option<String>,
    catch_up: bool,
}

#[derive(Clone, Debug)]
enum Rule {
    Every(Duration),
    /// A span of the calendar: a day is not always 24 hours long, nor a month 30 days.
    Calendar(Span),
    Cron(Box<Cron>),
}

/// A recurrence and its start, stored as the caller wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recurrence {
    /// `hourly`, `15m`, a cron line.
    pub interval: String,
    /// The time zone of the times; `None` for UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Whether each missed tick runs, or one tick for all of them.
    pub catch_up: bool,
    /// The time from which intervals are counted.
    pub first_us: i64,
    /// The next tick, or the tick that is running. A retry makes its job due later; the tick stays the same.
    pub tick_us: i64,
    /// The planned tick that follows a tick that a person ran early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_us: Option<i64>,
    /// The previous tick.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_us: Option<i64>,
}

impl Repeats {
    /// Parses `hourly`, `daily`, `weekly`, `monthly`, a duration (`15m`), or a cron line of five fields. The times are those of the
    /// time zone (`Europe/Berlin`), or UTC.
    pub fn parse(interval: &str, timezone: Option<&str>, catch_up: bool) -> Result<Repeats, ScheduleError> {
        let wrong = |field: &str, what: String| ScheduleError::Invalid(format!("{field}: {what}"));
        let zone = match timezone {
            None => TimeZone::UTC,
            Some(name) => TimeZone::get(name)
                .map_err(|_| wrong("timezone", format!("{name:?} is not a time zone; one is \"Europe/Berlin\"")))?,
        };
        let rule = match interval {
            "hourly" => Rule::Every(Duration::from_secs(3600)),
            "daily" => Rule::Calendar(1.day()),
            "weekly" => Rule::Calendar(1.week()),
            "monthly" => Rule::Calendar(1.month()),
            _ => match duration(interval) {
                Some(every) if !(INTERVAL_MIN..=INTERVAL_MAX).contains(&every) => {
                    return Err(wrong("recurringInterval", "from 10ms to ten years".into()));
                }
                Some(every) => Rule::Every(every),
                None => {
                    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
                    let cron = parser.parse(interval).map_err(|error| {
                        let what =
                            "hourly, daily, weekly, monthly, a duration such as \"15m\", or a cron line of five fields";
                        wrong("recurringInterval", format!("{what}; as a cron line: {error}"))
                    })?;
                    Rule::Cron(Box::new(cron))
                }
            },
        };
        let repeats = Repeats { rule, text: interval.into(), zone, timezone: timezone.map(str::to_owned), catch_up };
        // A line such as "0 0 30 2 *" matches no day at all.
        let some_day = Timestamp::UNIX_EPOCH.to_zoned(repeats.zone.clone());
        match &repeats.rule {
            Rule::Cron(cron) if cron.find_next_occurrence(&some_day, false).is_err() => {
                Err(wrong("recurringInterval", "there is no such day".into()))
            }
            _ => Ok(repeats),
        }
    }

    /// Refuses a recurrence that runs more often than every `least`.
    pub(super) fn at_least(&self, least: Option<Duration>) -> Result<(), ScheduleError> {
        let Some(least) = least else { return Ok(()) };
        let shortest = self.shortest(least);
        if shortest.is_none_or(|shortest| shortest >= least) {
            return Ok(());
        }
        let least = show_duration(least);
        let what = format!("recurringInterval: at least {least} from one run to the next; {:?} is shorter", self.text);
        Err(ScheduleError::Invalid(what))
    }

    /// Refuses a schedule that would catch up with ticks from before it was made. All of them would run at once, so the limit of
    /// the interval would have no effect.
    pub(super) fn begins_now_or_later(&self, when: When, now: Time) -> Result<(), ScheduleError> {
        match when {
            When::At(at) if self.catch_up && at + CATCH_UP_MAX < now => {
                let most = show_duration(CATCH_UP_MAX);
                let what = format!("runAt: with catchUp at most {most} ago; all runs since then would be made at once");
                Err(ScheduleError::Invalid(what))
            }
            _ => Ok(()),
        }
    }

    /// The shortest time between two ticks, precise enough to compare it with `least`.
    fn shortest(&self, least: Duration) -> Option<Duration> {
        match &self.rule {
            Rule::Every(every) => Some(*every),
            // The shortest day, when clocks go forward.
            Rule::Calendar(_) => Some(DAY_MIN),
            // A cron line has no seconds.
            Rule::Cron(_) if least <= CRON_MIN => Some(CRON_MIN),
            Rule::Cron(cron) => {
                let first = Timestamp::UNIX_EPOCH.to_zoned(self.zone.clone());
                let next = |after: &Zoned| cron.find_next_occurrence(after, false).ok();
                let ticks: Vec<Zoned> = std::iter::successors(next(&first), next).take(CRON_TICKS_LOOKED_AT).collect();
                ticks.windows(2).map(|pair| time(&pair[1]).since(time(&pair[0]))).min()
            }
        }
    }

    /// The first tick after `after`, counted from `first`.
    fn next(&self, first: Time, after: Time) -> Option<Time> {
        match &self.rule {
            Rule::Every(every) => {
                let every = i64::try_from(every.as_micros()).ok()?;
                let passed = after.micros().checked_sub(first.micros())?.div_euclid(every);
                Some(Time::from_micros(first.micros().checked_add(every.checked_mul(passed.max(-1).checked_add(1)?)?)?))
            }
            Rule::Calendar(span) => {
                let first = self.zoned(first)?;
                // Counted from the first tick, not from the previous one: one month after January 31 is the end of February, two months
                // after it is March 31.
                let step = |count: i64| first.checked_add(span.checked_mul(count).ok()?).ok();
                let after = self.zoned(after)?;
                let days = (after.timestamp().as_second() - first.timestamp().as_second()).max(0) / 86_400;
                let length = if span.get_months() > 0 {
                    31
                } else {
                    i64::from(span.get_weeks()) * 7 + i64::from(span.get_days())
                };
                let mut count = (days / length - 1).max(0);
                loop {
                    let tick = step(count)?;
                    if tick > after {
                        return Some(time(&tick));
                    }
                    count += 1;
                }
            }
            Rule::Cron(cron) => cron.find_next_occurrence(&self.zoned(after)?, false).ok().map(|tick| time(&tick)),
        }
    }

    fn zoned(&self, at: Time) -> Option<Zoned> {
        Some(Timestamp::from_microsecond(at.micros()).ok()?.to_zoned(self.zone.clone()))
    }
}

impl Recurrence {
    /// Starts at the requested time. Without one, a cron line starts at its next tick, and an interval starts now.
    pub(super) fn new(repeats: Repeats, when: When, now: Time) -> Recurrence {
        let first = match (when, &repeats.rule) {
            (When::At(at), _) => at,
            (When::After(delay), _) => now + delay,
            (When::Unsaid, Rule::Cron(_)) => repeats.next(now, now).unwrap_or(Time::NEVER),
            (When::Unsaid, _) => now,
        };
        let Repeats { text, timezone, catch_up, .. } = repeats;
        let first_us = first.micros();
        Recurrence { interval: text, timezone, catch_up, first_us, tick_us: first_us, next_us: None, last_us: None }
    }

    /// The same schedule, with an extra tick now.
    pub(super) fn early(self, now: Time) -> Recurrence {
        match self.tick_us > now.micros() {
            true => Recurrence { next_us: Some(self.next_us.unwrap_or(self.tick_us)), tick_us: now.micros(), ..self },
            false => self,
        }
    }

    /// The same schedule, one tick later.
    pub(super) fn at_tick(self, tick: Time) -> Recurrence {
        Recurrence { last_us: Some(self.tick_us), tick_us: tick.micros(), next_us: None, ..self }
    }

    pub(super) fn first(&self) -> Time {
        Time::from_micros(self.first_us)
    }

    /// The tick after the one that was due at `tick`. Missed ticks are skipped, unless the schedule catches up. `None` if there is
    /// no further tick.
    pub(super) fn next(&self, tick: Time, now: Time) -> Option<Time> {
        if let Some(next) = self.next_us {
            return Some(Time::from_micros(next));
        }
        let repeats = Repeats::parse(&self.interval, self.timezone.as_deref(), self.catch_up).ok()?;
        repeats.next(self.first(), if self.catch_up { tick } else { tick.max(now) })
    }
}

fn time(at: &Zoned) -> Time {
    Time::from_micros(at.timestamp().as_microsecond())
}

fn duration(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit)?;
    Some(Duration::from_millis(number.parse::<u64>().ok()?.checked_mul(*millis)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Time {
        Time::from_micros(text.parse::<Timestamp>().expect("a time").as_microsecond())
    }

    /// The ticks after `from`, in UTC, of a schedule whose first tick is `first`.
    fn ticks(interval: &str, zone: Option<&str>, first: &str, from: &str, count: usize) -> Vec<String> {
        let repeats = Repeats::parse(interval, zone, true).expect("is right");
        let mut after = at(from);
        let next = |_| {
            after = repeats.next(at(first), after).expect("there is one");
            after.to_string().replace(":00.000Z", "Z")
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn an_interval_is_counted_from_its_first_tick() {
        let first = "2026-01-01T00:00:30Z";
        assert_eq!(ticks("15m", None, first, first, 2), ["2026-01-01T00:15:30.000Z", "2026-01-01T00:30:30.000Z"]);
        assert_eq!(ticks("hourly", None, first, "2026-01-01T05:00:00Z", 1), ["2026-01-01T05:00:30.000Z"]);
        assert_eq!(ticks("15m", None, first, "2025-12-31T00:00:00Z", 1), ["2026-01-01T00:00:30.000Z"]);
    }

    #[test]
    fn a_month_after_the_last_day_of_january_is_the_last_of_february_and_then_the_31st_again() {
        let ticks = ticks("monthly", None, "2026-01-31T09:00:00Z", "2026-01-31T09:00:00Z", 3);
        assert_eq!(ticks, ["2026-02-28T09:00Z", "2026-03-31T09:00Z", "2026-04-30T09:00Z"]);
    }

    #[test]
    fn a_day_of_a_place_is_23_or_25_hours_when_its_clocks_change() {
        // 09:00 in Berlin: an hour earlier in UTC from March 29 on.
        let spring = ticks("daily", Some("Europe/Berlin"), "2026-03-01T08:00:00Z", "2026-03-27T12:00:00Z", 3);
        assert_eq!(spring, ["2026-03-28T08:00Z", "2026-03-29T07:00Z", "2026-03-30T07:00Z"]);
        let autumn = ticks("daily", Some("Europe/Berlin"), "2026-03-01T08:00:00Z", "2026-10-23T12:00:00Z", 3);
        assert_eq!(autumn, ["2026-10-24T07:00Z", "2026-10-25T08:00Z", "2026-10-26T08:00Z"]);
        let weekly = ticks("weekly", Some("Europe/Berlin"), "2026-03-22T08:00:00Z", "2026-03-22T08:00:00Z", 2);
        assert_eq!(weekly, ["2026-03-29T07:00Z", "2026-04-05T07:00Z"]);
    }

    #[test]
    fn a_cron_line_runs_once_in_a_night_that_repeats_or_leaves_out_its_hour() {
        // 02:30 does not exist in Berlin on March 29: it runs when the clocks have gone forward.
        let spring = ticks("30 2 * * *", Some("Europe/Berlin"), "2026-03-27T12:00:00Z", "2026-03-27T12:00:00Z", 3);
        assert_eq!(spring, ["2026-03-28T01:30Z", "2026-03-29T01:00Z", "2026-03-30T00:30Z"]);
        // On October 25 it is 02:30 twice.
        let autumn = ticks("30 2 * * *", Some("Europe/Berlin"), "2026-10-23T12:00:00Z", "2026-10-23T12:00:00Z", 3);
        assert_eq!(autumn, ["2026-10-24T00:30Z", "2026-10-25T00:30Z", "2026-10-26T01:30Z"]);
        // An hourly schedule runs every hour, in such a night too.
        let hourly = ticks("0 * * * *", Some("Europe/Berlin"), "2026-10-24T23:30:00Z", "2026-10-24T23:30:00Z", 4);
        assert_eq!(hourly, ["2026-10-25T00:00Z", "2026-10-25T01:00Z", "2026-10-25T02:00Z", "2026-10-25T03:00Z"]);
    }

    #[test]
    fn what_runs_more_often_than_it_may_is_refused_cron_lines_too() {
        let check = |interval: &str, least_s: u64| {
            Repeats::parse(interval, None, false).expect("is right").at_least(Some(Duration::from_secs(least_s)))
        };
        for (interval, least_s) in [
            ("60s", 60),
            ("1m", 60),
            ("* * * * *", 60),
            ("hourly", 3600),
            ("daily", 22 * 3600),
            ("*/15 * * * *", 900),
            ("0 9 * * 1-5", 3600),
            ("0,30 9 1 1 *", 1800),
        ] {
            assert!(check(interval, least_s).is_ok(), "{interval}");
        }
        for (interval, least_s, least) in [
            ("10ms", 60, "1m"),
            ("59s", 60, "1m"),
            ("*/15 * * * *", 901, "901s"),
            ("0,1 0 1 1 *", 120, "2m"),
            ("hourly", 3601, "3601s"),
        ] {
            let error = check(interval, least_s).expect_err(interval).to_string();
            assert!(error.starts_with(&format!("recurringInterval: at least {least} ")), "{error}");
        }
        assert!(Repeats::parse("10ms", None, false).expect("is right").at_least(None).is_ok());
    }

    #[test]
    fn a_schedule_that_catches_up_does_not_begin_long_before_it_is_made() {
        let now = at("2026-01-01T00:00:00Z");
        let check = |when: When, catch_up: bool| {
            Repeats::parse("1m", None, catch_up).expect("is right").begins_now_or_later(when, now)
        };
        let long_ago = When::At(at("2025-12-31T23:58:59Z"));
        let error = check(long_ago, true).expect_err("61 seconds ago").to_string();
        assert!(error.starts_with("runAt: with catchUp at most 1m ago"), "{error}");
        assert!(check(long_ago, false).is_ok(), "its first run stands for all that were missed");
        for when in [When::At(at("2025-12-31T23:59:00Z")), When::At(now), When::Unsaid] {
            assert!(check(when, true).is_ok(), "{when:?}");
        }
    }

    #[test]
    fn what_was_missed_runs_once_unless_it_is_to_be_caught_up_with() {
        let (first, now) = (at("2026-01-01T00:00:00Z"), at("2026-01-01T05:30:00Z"));
        let next = |catch_up: bool| {
            let repeats = Repeats::parse("hourly", None, catch_up).expect("is right");
            Recurrence::new(repeats, When::At(first), first).next(first, now).expect("there is one").to_string()
        };
        assert_eq!(next(false), "2026-01-01T06:00:00.000Z");
        assert_eq!(next(true), "2026-01-01T01:00:00.000Z");
    }

    #[test]
    fn what_is_no_interval_is_refused_with_what_would_be_right() {
        for bad in
            ["", "sometimes", "15", "5ms", "0s", "99999999999d", "* * * *", "61 * * * *", "0 0 30 2 *", "* * * * * *"]
        {
            let error = Repeats::parse(bad, None, false).expect_err(bad).to_string();
            assert!(error.starts_with("recurringInterval: "), "{bad}: {error}");
        }
        let error = Repeats::parse("daily", Some("Mars/Olympus"), false).expect_err("no zone").to_string();
        assert!(error.starts_with("timezone: "), "{error}");
    }
}
