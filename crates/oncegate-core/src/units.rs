//! Durations and sizes as people write them.

use std::time::Duration;

const DURATION_UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1000), ("m", 60 * 1000), ("h", 3600 * 1000), ("d", 24 * 3600 * 1000)];
const SIZE_UNITS: [(&str, u64); 5] = [("", 1), ("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// How to write a duration, for error messages.
pub const DURATION_HINT: &str = r#"a duration is a whole number and a unit: "500ms", "30s", "15m", "24h", "365d""#;
/// How to write a size, for error messages.
pub const SIZE_HINT: &str = r#"a size is a whole number of bytes, or of units of 1024: "64KiB", "1MiB", "1GiB""#;

/// Reads a duration as in [`DURATION_HINT`]; `None` if the text is anything else, or too large.
pub fn parse_duration(text: &str) -> Option<Duration> {
    scaled(text, &DURATION_UNITS).map(Duration::from_millis)
}

/// Reads a size as in [`SIZE_HINT`], in bytes; `None` if the text is anything else, or too large.
pub fn parse_size(text: &str) -> Option<u64> {
    scaled(text, &SIZE_UNITS)
}

fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*scale)
}

/// Formats a duration in the largest unit that is exact, which is most likely how it was written. Days are used from two on.
pub fn show_duration(span: Duration) -> String {
    let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let fits = |(unit, scale): &&(&str, u64)| {
        let least = if *unit == "d" { 2 * scale } else { *scale };
        millis >= least && millis.is_multiple_of(*scale)
    };
    let (unit, scale) = DURATION_UNITS.iter().rev().find(fits).unwrap_or(&DURATION_UNITS[0]);
    format!("{}{unit}", millis / scale)
}

/// Formats a size in the largest unit that is exact.
pub fn show_size(bytes: u64) -> String {
    let fits = |(_, scale): &&(&str, u64)| bytes >= *scale && bytes.is_multiple_of(*scale);
    let (unit, scale) = SIZE_UNITS.iter().skip(1).rev().find(fits).unwrap_or(&SIZE_UNITS[1]);
    format!("{}{unit}", bytes / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_whole_number_and_a_unit() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("15m", 900_000),
            ("24h", 86_400_000),
            ("365d", 31_536_000_000),
            ("0s", 0),
        ] {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "15", "m", "15 m", "-1s", "+1s", "1.5h", "15min", "1h30m", "15M", "٣s", "99999999999999999d"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_size_counts_in_units_of_1024() {
        for (text, bytes) in [("1MiB", 1 << 20), ("64KiB", 1 << 16), ("1GiB", 1 << 30), ("512", 512), ("512B", 512)] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for bad in ["", "MiB", "1MB", "1mib", "1 MiB", "-1", "1.5MiB", "99999999999999GiB"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_shown_reads_back_as_the_same() {
        for text in ["500ms", "30s", "15m", "24h", "365d", "90s", "0ms", "1500ms"] {
            assert_eq!(show_duration(parse_duration(text).unwrap()), text);
        }
        for text in ["0B", "1000B", "64KiB", "1MiB", "3GiB"] {
            assert_eq!(show_size(parse_size(text).unwrap()), text);
        }
        assert_eq!(show_duration(parse_duration("1d").unwrap()), "24h");
    }
}
