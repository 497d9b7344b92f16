//! What the chart and the page share: sums, counts in words, and text that is safe in XML and HTML.

use super::{PathReport, PointReport};

pub(super) fn mark(path: &PathReport) -> &'static str {
    if path.broken.is_empty() { "ok" } else { "broken" }
}

/// The sum of all points, which is drawn and described like a single point.
pub(super) fn total<'a>(points: impl IntoIterator<Item = &'a PointReport>) -> PointReport {
    points.into_iter().fold(PointReport::new("total", ""), |sum, point| PointReport {
        kills: sum.kills.saturating_add(point.kills),
        jobs: sum.jobs.saturating_add(point.jobs),
        sent: sum.sent.saturating_add(point.sent),
        repeats: sum.repeats.saturating_add(point.repeats),
        duplicates: sum.duplicates.saturating_add(point.duplicates),
        not_arrived: sum.not_arrived.saturating_add(point.not_arrived),
        missed: sum.missed.saturating_add(point.missed),
        unknown: sum.unknown.saturating_add(point.unknown),
        ..sum
    })
}

/// The findings beside the sent jobs: "19 duplicates, 1 not arrived". Zero duplicates are mentioned, too.
pub(super) fn findings(point: &PointReport) -> String {
    let others = [(point.not_arrived, "not arrived"), (point.unknown, "unknown")];
    let others = others.into_iter().filter(|&(count, _)| count > 0);
    let others = others.map(|(count, kind)| format!("{} {kind}", grouped(count)));
    [counted(point.duplicates, "duplicate")].into_iter().chain(others).collect::<Vec<_>>().join(", ")
}

pub(super) fn counted(count: impl Into<u64>, thing: &str) -> String {
    let count = count.into();
    format!("{} {thing}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// Formats 1940 as "1,940".
pub(super) fn grouped(count: impl Into<u64>) -> String {
    let digits = count.into().to_string();
    let comma = |at: usize| at > 0 && (digits.len() - at).is_multiple_of(3);
    digits.chars().enumerate().flat_map(|(at, digit)| comma(at).then_some(',').into_iter().chain([digit])).collect()
}

/// Escapes a text for XML or HTML. A worker's name may contain control characters, which are not allowed in XML at all.
pub(super) fn escaped(words: &str) -> String {
    let escape = |escaped: String, c: char| match c {
        '&' => escaped + "&amp;",
        '<' => escaped + "&lt;",
        '>' => escaped + "&gt;",
        '"' => escaped + "&quot;",
        '\'' => escaped + "&#39;",
        '\n' | '\t' => escaped + " ",
        c if c.is_control() => escaped + "\u{fffd}",
        '\u{fffe}' | '\u{ffff}' => escaped + "\u{fffd}",
        c => escaped + c.encode_utf8(&mut [0; 4]),
    };
    words.chars().fold(String::new(), escape)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(duplicates: u32, not_arrived: u32, unknown: u32) -> PointReport {
        let (sent, missed) = (10 - not_arrived, not_arrived);
        PointReport { kills: 1, jobs: 10, sent, repeats: 2, duplicates, not_arrived, missed, unknown, ..total([]) }
    }

    #[test]
    fn a_total_is_the_sum_of_every_column() {
        let sum = total(&[point(3, 1, 0), point(4, 0, 5)]);
        assert_eq!((sum.kills, sum.jobs, sum.sent, sum.repeats), (2, 20, 19, 4));
        assert_eq!((sum.duplicates, sum.not_arrived, sum.missed, sum.unknown), (7, 1, 1, 5));
    }

    #[test]
    fn findings_always_say_how_many_duplicates_there_are() {
        assert_eq!(findings(&point(0, 0, 0)), "0 duplicates");
        assert_eq!(findings(&point(1, 2, 3)), "1 duplicate, 2 not arrived, 3 unknown");
        assert_eq!(findings(&point(0, 0, 3)), "0 duplicates, 3 unknown");
    }

    #[test]
    fn thousands_are_grouped() {
        let written = [0u32, 999, 1_000, 1_234_567].map(grouped);
        assert_eq!(written, ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(counted(1u32, "kill"), "1 kill");
        assert_eq!(counted(1_940u32, "job"), "1,940 jobs");
    }

    #[test]
    fn nothing_that_is_escaped_can_end_a_text_or_an_attribute() {
        assert_eq!(escaped("</title>\"'&\u{1b}[0m"), "&lt;/title&gt;&quot;&#39;&amp;\u{fffd}[0m");
    }
}
