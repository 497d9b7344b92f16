//! Time on the store's clock.

use std::fmt;
use std::time::Duration;

/// A point in time on the store's clock, in microseconds since 1970.
///
/// The core never reads a clock: the caller passes the time in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(i64);

impl Time {
    /// Later than anything: the end of a window that does not end.
    pub const NEVER: Time = Time(i64::MAX);
    /// Earlier than any claim: the `expires_at` of a claim that was released, retracted or forgotten.
    pub const LONG_AGO: Time = Time(0);

    /// The time that is this many microseconds after the start of 1970.
    pub const fn from_micros(micros: i64) -> Self {
        Time(micros)
    }

    /// The microseconds since the start of 1970.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Reads RFC 3339, with any offset.
    pub fn parse(text: &str) -> Option<Time> {
        let at: jiff::Timestamp = text.parse().ok()?;
        Some(Time(at.as_microsecond()))
    }

    /// The time from `earlier` to this one; zero if `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0).max(0).unsigned_abs())
    }
}

impl std::ops::Add<Duration> for Time {
    type Output = Time;

    /// Saturates: a window longer than the calendar never ends.
    fn add(self, span: Duration) -> Time {
        let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        Time(self.0.saturating_add(micros))
    }
}

impl fmt::Display for Time {
    /// RFC 3339, UTC, milliseconds; `never` for a time past the calendar's end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(at) = jiff::Timestamp::from_microsecond(self.0) else { return f.write_str("never") };
        let date = jiff::tz::Offset::UTC.to_datetime(at);
        // A year before our era has a sign, so it does not fit the fixed format.
        let Ok(year) = u16::try_from(date.year()) else { return write!(f, "{at:.3}") };
        // Every answer has several times, so this writes the digits itself, which is faster than `format!`.
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let mut put = |place: std::ops::Range<usize>, mut number: u16| {
            for digit in text[place].iter_mut().rev() {
                *digit = b'0' + (number % 10) as u8;
                number /= 10;
            }
        };
        put(0..4, year);
        put(20..23, date.millisecond().unsigned_abs());
        let two = [date.month(), date.day(), date.hour(), date.minute(), date.second()];
        for (place, number) in [5, 8, 11, 14, 17].into_iter().zip(two) {
            put(place..place + 2, number.unsigned_abs().into());
        }
        f.write_str(std::str::from_utf8(&text).expect("digits are ASCII"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_prints_as_rfc_3339_with_milliseconds() {
        assert_eq!(Time::from_micros(1_700_000_000_123_456).to_string(), "2023-11-14T22:13:20.123Z");
        assert_eq!(Time::from_micros(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Time::NEVER.to_string(), "never");
        // The same text as jiff's, also before our era.
        for micros in (-70_000_000_000_000_000..253_402_300_800_000_000).step_by(86_399_999_123_457) {
            let at = jiff::Timestamp::from_microsecond(micros).unwrap();
            assert_eq!(Time::from_micros(micros).to_string(), format!("{at:.3}"));
        }
        assert_eq!(Time::parse("2023-11-15T00:13:20.123456+02:00"), Some(Time::from_micros(1_700_000_000_123_456)));
        assert_eq!(["", "today", "2023-11-15", "2023-11-15T00:13:20"].map(Time::parse), [None; 4]);
    }

    #[test]
    fn adding_saturates_and_an_age_is_never_negative() {
        assert_eq!(Time::from_micros(5) + Duration::MAX, Time::NEVER);
        assert_eq!(Time::from_micros(5).since(Time::from_micros(9)), Duration::ZERO);
        assert_eq!(Time::from_micros(9).since(Time::from_micros(5)), Duration::from_micros(4));
    }
}
