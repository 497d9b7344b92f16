//! The drill's chart: one bar for each crash point of each path, as a standalone SVG.
//!
//! Every point's bar has the same length, however many jobs it had. All bars end at the same line, and every duplicate extends beyond
//! it. Each kind is also shown by its shape and in words, never by its colour alone: sent is filled, not arrived is hollow, unknown is
//! dashed, duplicates are taller than the bar.
//!
//! An unknown job has arrived or not: its dashed part covers the filled part, or an empty one.

use super::words::{counted, escaped, findings, grouped, mark, total};
use super::{PathReport, PointReport};

const MARGIN: f64 = 20.0;
const GAP: f64 = 32.0;
const LEGEND_HEIGHT: f64 = 62.0;
const HEADER_HEIGHT: f64 = 56.0;
const BAR_HEIGHT: f64 = 16.0;
/// Room beyond the line even without duplicates, so that the reader sees that there are none.
const SCALE_MIN: f64 = 1.1;
/// The smallest width of a part: a single job among hundreds must be visible.
const PART_MIN: f64 = 4.0;
/// Font sizes to estimate the width of text. Bold text has the same size, but is wider.
const SIZE: f64 = 12.0;
const SIZE_BOLD: f64 = 13.5;
const SIZE_NAME: f64 = 17.0;

const STYLE: &str = include_str!("chart.css");

struct Layout {
    columns: usize,
    /// The width of one path.
    width: f64,
    /// Where a bar begins, how long it may be, and its vertical offset in the row.
    bar: (f64, f64, f64),
    row_height: f64,
}

/// Two paths to compare: side by side, with the names above the bars.
const PAIR: Layout = Layout { columns: 2, width: 404.0, bar: (0.0, 404.0, 21.0), row_height: 52.0 };
/// Any other number: one below the other, with the names left of the bars and the findings right of them.
const STACK: Layout = Layout { columns: 1, width: 840.0, bar: (170.0, 380.0, 4.0), row_height: 26.0 };
const NARROW: Layout = Layout { columns: 1, width: 320.0, bar: (0.0, 320.0, 21.0), row_height: 52.0 };

pub fn svg(paths: &[&PathReport]) -> String {
    draw(paths, if paths.len() == 2 { &PAIR } else { &STACK })
}

/// The chart for a phone.
pub fn narrow(paths: &[&PathReport]) -> String {
    draw(paths, &NARROW)
}

fn draw(paths: &[&PathReport], layout: &Layout) -> String {
    let scale = scale(paths);
    let mut top = MARGIN + LEGEND_HEIGHT;
    let mut groups = String::new();
    for row in paths.chunks(layout.columns) {
        for (column, path) in row.iter().enumerate() {
            let left = MARGIN + column as f64 * (layout.width + GAP);
            groups += &format!("<g transform=\"translate({left} {top})\">{}</g>\n", group(path, scale, layout));
        }
        let points = row.iter().map(|path| path.points.len()).max().unwrap_or(0).max(1);
        top += HEADER_HEIGHT + points as f64 * layout.row_height + GAP;
    }
    let height = top - GAP + MARGIN;
    let width = 2.0 * MARGIN + layout.columns as f64 * (layout.width + GAP) - GAP;
    let described: String = paths.iter().map(|path| described(path)).collect();
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"drill\" role=\"img\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\">\n<title>What arrived after each crash</title>\n<desc>{described}</desc>\n\
         <style>{STYLE}</style>\n<rect class=\"ground\" width=\"{width}\" height=\"{height}\" rx=\"6\"/>\n\
         {}\n{groups}</svg>\n",
        legend()
    )
}

fn described(path: &PathReport) -> String {
    let total = total(&path.points);
    let jobs = counted(total.jobs, "job");
    format!("{} ({}): {jobs}, {} sent, {}. ", escaped(&path.name), mark(path), grouped(total.sent), findings(&total))
}

fn legend() -> String {
    let mut x = MARGIN;
    let mut items = String::new();
    for kind in ["sent", "not arrived", "unknown", "duplicates"] {
        items += &part(&kind.replace(' ', "-"), x, MARGIN, BAR_HEIGHT);
        items += &text("", x + BAR_HEIGHT + 6.0, MARGIN + 12.0, kind);
        x += BAR_HEIGHT + 20.0 + text_width(kind, SIZE);
    }
    items + &text("note", MARGIN, MARGIN + 36.0, "Right of the line: effects that came again.")
}

fn group(path: &PathReport, scale: f64, layout: &Layout) -> String {
    let total = total(&path.points);
    let mark = mark(path);
    let mark_width = px(text_width(mark, SIZE_BOLD) + 14.0);
    let mark_left = px(layout.width - mark_width);
    let inside = if path.broken.is_empty() { "mark" } else { "mark inside" };
    let counts = format!("{}, {}, {}", counted(total.kills, "kill"), counted(total.jobs, "job"), findings(&total));
    let mut drawn = text("name", 0.0, 14.0, &cut(&path.name, mark_left - 12.0, SIZE_NAME));
    drawn += &format!("<rect class=\"mark-{mark}\" x=\"{mark_left}\" width=\"{mark_width}\" height=\"19\" rx=\"4\"/>");
    drawn += &text(inside, mark_left + mark_width / 2.0, 13.5, mark);
    drawn += &text("note", 0.0, 33.0, &cut(&counts, layout.width, SIZE));
    drawn += &format!("<path class=\"rule\" d=\"M0 43.5H{}\"/>\n", layout.width);
    if path.points.is_empty() {
        drawn += &text("note", 0.0, HEADER_HEIGHT + 14.0, "No crash point was reached.");
    }
    for (index, point) in path.points.iter().enumerate() {
        let top = HEADER_HEIGHT + index as f64 * layout.row_height;
        drawn += &format!("<g transform=\"translate(0 {top})\">{}</g>\n", row(point, scale, layout));
    }
    drawn
}

fn row(point: &PointReport, scale: f64, layout: &Layout) -> String {
    let (left, length, top) = layout.bar;
    let jobs_length = length / scale;
    let label = sent_label(point, jobs_length);
    let found = match &label {
        _ if point.jobs == 0 => "no jobs".to_owned(),
        Some(_) => findings(point),
        None => format!("{} sent, {}", grouped(point.sent), findings(point)),
    };
    let class = match point {
        point if point.duplicates > 0 => "bad",
        point if point.not_arrived > 0 || point.unknown > 0 => "",
        _ => "note",
    };
    let (name_width, found_at) = if left > 0.0 {
        (left - 12.0, format!("x=\"{}\"", left + length + 12.0))
    } else {
        (layout.width - text_width(&found, SIZE_BOLD) - 12.0, format!("x=\"{}\" text-anchor=\"end\"", layout.width))
    };
    let baseline = if left > 0.0 { top + 12.0 } else { 13.0 };
    let hover = format!("{}: {}. {} of {} sent, {}", point.point, point.when, point.sent, point.jobs, findings(point));
    let mut drawn = format!("<title>{}</title>", escaped(&hover));
    // On a phone there is room for the end of a name only, which distinguishes it from the others of its path.
    let name = match text_width(&point.point, SIZE) > name_width {
        true => point.point.rsplit('.').next().unwrap_or_default(),
        false => &point.point,
    };
    drawn += &text("", 0.0, baseline, &cut(name, name_width, SIZE));
    drawn += &format!("<text class=\"{class}\" {found_at} y=\"{baseline}\">{found}</text>");
    drawn += &bar(point, (left, top), jobs_length);
    drawn + &label.map_or_else(String::new, |label| text("inside", left + 6.0, top + 12.0, &label))
}

/// The number of sent jobs, if it fits into the part of the bar that is only sent.
fn sent_label(point: &PointReport, length: f64) -> Option<String> {
    let plain = point.jobs.saturating_sub(known_missing(point)).saturating_sub(point.unknown).min(point.sent);
    let room = f64::from(plain) / f64::from(point.jobs.max(1)) * length - 12.0;
    let labels = [format!("{} of {} sent", grouped(point.sent), grouped(point.jobs)), grouped(point.sent)];
    labels.into_iter().find(|label| text_width(label, SIZE_BOLD) < room)
}

/// Jobs that did not arrive, without the unknown ones.
fn known_missing(point: &PointReport) -> u32 {
    let unknown = point.unknown.min(point.not_arrived.saturating_sub(point.missed));
    (point.not_arrived - unknown).min(point.jobs)
}

/// A bar whose jobs are `length` long.
fn bar(point: &PointReport, (left, top): (f64, f64), length: f64) -> String {
    let long = |jobs: u32| match f64::from(jobs) / f64::from(point.jobs.max(1)) * length {
        0.0 => 0.0,
        long => long.max(PART_MIN),
    };
    let end = left + length;
    let sent = long(point.sent.min(point.jobs));
    let missing = long(known_missing(point));
    let unknown = long(point.unknown.min(point.jobs)).min(length - missing);
    let more = format!("+{}", grouped(point.duplicates));
    let duplicates = long(point.duplicates);
    let mut drawn = part("track", left, top, length);
    drawn += &part("sent", left, top, sent);
    drawn += &part("unknown", end - missing - unknown, top, unknown);
    drawn += &part("not-arrived", end - missing, top, missing);
    drawn += &part("duplicates", end, top, duplicates);
    drawn += &format!("<path class=\"end\" d=\"M{} {}v{}\"/>", px(end), px(top - 4.0), px(BAR_HEIGHT + 8.0));
    if text_width(&more, SIZE_BOLD) + 10.0 < duplicates {
        drawn += &text("inside", end + 6.0, top + 12.0, &more);
    }
    drawn
}

fn part(kind: &str, left: f64, top: f64, length: f64) -> String {
    // A part with a stroke is drawn smaller by the stroke. A part that sticks out is drawn larger.
    let inset = match kind {
        "not-arrived" | "unknown" => 1.0,
        "duplicates" => -2.0,
        _ => 0.0,
    };
    let (x, length) = if inset > 0.0 { (left + inset, length - 2.0 * inset) } else { (left, length) };
    if length <= 0.0 {
        return String::new();
    }
    let (y, height) = (top + inset, BAR_HEIGHT - 2.0 * inset);
    format!("<rect class=\"{kind}\" x=\"{}\" y=\"{y}\" width=\"{}\" height=\"{height}\"/>", px(x), px(length))
}

/// The longest bar, relative to the length of each point's jobs.
fn scale(paths: &[&PathReport]) -> f64 {
    let points = paths.iter().flat_map(|path| &path.points);
    points.map(|point| 1.0 + f64::from(point.duplicates) / f64::from(point.jobs.max(1))).fold(SCALE_MIN, f64::max)
}

fn text(class: &str, x: f64, y: f64, words: &str) -> String {
    format!("<text class=\"{class}\" x=\"{}\" y=\"{}\">{}</text>", px(x), px(y), escaped(words))
}

/// The approximate width of a text. The actual font is unknown, so this is rather too wide than too narrow.
fn text_width(words: &str, size: f64) -> f64 {
    let em = |c: char| match c {
        'i' | 'j' | 'l' | 'f' | 'r' | 't' | 'I' | ' '..='/' | ':' | ';' => 0.4,
        'm' | 'w' | 'A'..='Z' => 0.8,
        c if c.is_ascii() => 0.6,
        _ => 1.0,
    };
    words.chars().map(em).sum::<f64>() * size
}

fn cut(words: &str, width: f64, size: f64) -> String {
    if text_width(words, size) <= width {
        return words.to_owned();
    }
    let mut kept: String = words.to_owned();
    while !kept.is_empty() && text_width(&kept, size) + size > width {
        kept.pop();
    }
    format!("{}…", kept.trim_end())
}

/// Rounds to a tenth of a pixel.
fn px(length: f64) -> f64 {
    (length * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str, duplicates: &[u32], broken: &[&str]) -> PathReport {
        let point = |&duplicates: &u32| PointReport { kills: 20, jobs: 20, sent: 20, duplicates, ..total([]) };
        PathReport {
            name: name.to_owned(),
            promise: String::new(),
            policy: String::new(),
            flag: String::new(),
            guards: Vec::new(),
            points: duplicates.iter().map(point).collect(),
            broken: broken.iter().map(|&what| what.to_owned()).collect(),
        }
    }

    #[test]
    fn only_duplicates_stick_out_beyond_the_line() {
        let clean = svg(&[&path("with the guard", &[0, 0], &[])]);
        let rows = clean.matches("class=\"duplicates\"").count();
        assert_eq!(rows, 1, "only the legend has one");
        let broken = svg(&[&path("without the guard", &[20, 0], &["It came twice."])]);
        assert!(
            broken.contains("<rect class=\"duplicates\" x=\"360\" y=\"2\" width=\"190\" height=\"20\"/>"),
            "{broken}"
        );
        assert!(broken.contains(">20 duplicates</text>") && broken.contains(">broken</text>"));
    }

    #[test]
    fn one_job_among_thousands_is_seen() {
        let point = PointReport { jobs: 9_000, sent: 8_999, not_arrived: 1, ..total([]) };
        assert!(bar(&point, (0.0, 4.0), 100.0).contains("<rect class=\"not-arrived\" x=\"97\" y=\"5\" width=\"2\""));
    }

    #[test]
    fn how_many_were_sent_is_written_even_where_the_bar_has_no_room() {
        let mut path = path("p", &[0], &[]);
        assert!(svg(&[&path]).contains(">20 of 20 sent</text>"));
        path.points[0] = PointReport { jobs: 20, sent: 1, not_arrived: 19, ..total([]) };
        assert!(svg(&[&path]).contains(">1 sent, 0 duplicates, 19 not arrived</text>"));
    }

    #[test]
    fn two_paths_are_side_by_side_and_three_below_each_other() {
        let path = path("p", &[0, 0, 0], &[]);
        assert!(svg(&[&path; 2]).contains("translate(456 82)"));
        assert!(!svg(&[&path; 3]).contains("translate(456"));
        assert!(svg(&[]).ends_with("</svg>\n"));
    }

    #[test]
    fn names_are_escaped_after_they_are_cut() {
        assert_eq!(cut("a short name", 400.0, 15.0), "a short name");
        let long = cut(&"<&>".repeat(40), 100.0, 15.0);
        assert!(long.ends_with('…') && text_width(&long, 15.0) <= 115.0, "{long}");
        let drawn = svg(&[&path(&"<&>".repeat(40), &[0], &[])]);
        assert!(drawn.contains("&lt;&amp;&gt;") && !drawn.contains("<&"));
    }
}
