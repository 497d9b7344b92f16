//! Stopped duplicates over time: bars, one colour for each guard. The server draws the chart, so it needs no script. Each bar has a
//! description.

use std::fmt::Write;

use oncegate::Time;

use super::overview::grouped;
use oncegate_http::decisions::tally::{Counted, Minute, OTHER, Range, Series};

/// Guards with a colour of their own; the others share one.
const COLOURS: usize = 7;
/// In the chart's own units; the browser scales it to the page.
const BAR: u64 = 10;
const GAP: u64 = 2;
const HEIGHT: u64 = 200;
const LABELS: usize = 5;

pub struct Chart {
    pub range: &'static str,
    pub svg: String,
    pub guards: Vec<GuardRow>,
}

pub struct GuardRow {
    pub name: String,
    /// Whether this is a single guard, and not several that are counted together.
    pub is_one: bool,
    pub colour: usize,
    pub stopped: String,
    pub passed: String,
}

impl Chart {
    pub fn draw(series: &Series, range: Range) -> Chart {
        let mut guards: Vec<(&String, &Vec<Counted>, Counted)> =
            series.guards.iter().map(|(name, steps)| (name, steps, steps.iter().copied().sum::<Counted>())).collect();
        guards.sort_by_key(|(name, _, sum)| (std::cmp::Reverse(sum.stopped), (*name).clone()));
        let most = (0..series.steps)
            .map(|step| guards.iter().map(|(_, steps, _)| steps[step].stopped).sum::<u64>())
            .max()
            .unwrap_or(0);
        let top = round_up(most);
        let mut bars = String::new();
        for step in 0..series.steps {
            let counted: Vec<(usize, &String, Counted)> = guards
                .iter()
                .enumerate()
                .map(|(place, (name, steps, _))| (place.min(COLOURS - 1), *name, steps[step]))
                .collect();
            bars.push_str(&bar(series, step, &counted, top));
        }
        let width = series.steps as u64 * BAR;
        let svg = format!(
            "<div class=\"chart\"><span class=\"most\">{}</span>\
             <svg viewBox=\"0 0 {width} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">\
             <path class=\"grid\" d=\"M0 0H{width}M0 {}H{width}M0 {HEIGHT}H{width}\"/>{bars}</svg>\
             <div class=\"times\">{}</div></div>",
            grouped(top),
            says(series, range),
            HEIGHT / 2,
            labels(series, range),
        );
        let row = |(place, (name, _, sum)): (usize, &(&String, &Vec<Counted>, Counted))| GuardRow {
            name: (*name).clone(),
            is_one: *name != OTHER,
            colour: place.min(COLOURS - 1),
            stopped: grouped(sum.stopped),
            passed: grouped(sum.passed),
        };
        let guards = guards.iter().enumerate().map(row).collect();
        Chart { range: range.as_str(), svg, guards }
    }
}

fn says(series: &Series, range: Range) -> String {
    let Counted { stopped, passed } = series.total();
    let (stopped, passed) = (grouped(stopped), grouped(passed));
    format!("{stopped} duplicates stopped in the last {}, {passed} went ahead", range.as_str())
}

/// One step: the stopped duplicates, guards stacked, with a description that shows on hover. (The characters of guards' names need no
/// escaping.)
fn bar(series: &Series, step: usize, counted: &[(usize, &String, Counted)], top: u64) -> String {
    let all: Counted = counted.iter().map(|(_, _, counted)| *counted).sum();
    if all == Counted::default() {
        return String::new();
    }
    let x = step as u64 * BAR + GAP / 2;
    let begins = at(series, step).to_string();
    let mut svg = format!("<g><title>{}: {} stopped", &begins[..16].replace('T', " "), grouped(all.stopped));
    let by_guard: Vec<String> = counted
        .iter()
        .filter(|(_, _, counted)| counted.stopped > 0)
        .map(|(_, name, counted)| format!("{name} {}", grouped(counted.stopped)))
        .collect();
    if !by_guard.is_empty() {
        let _ = write!(svg, " ({})", by_guard.join(", "));
    }
    let _ = write!(svg, ", {} went ahead</title>", grouped(all.passed));
    // The area that reacts to the pointer, however small the bar is.
    let _ =
        write!(svg, "<rect class=\"touch\" x=\"{}\" y=\"0\" width=\"{BAR}\" height=\"{HEIGHT}\"/>", step as u64 * BAR);
    let mut below = 0;
    for (colour, _, counted) in counted.iter().filter(|(_, _, counted)| counted.stopped > 0) {
        let (from, to) = (below, below + counted.stopped);
        below = to;
        let (upper, lower) = (HEIGHT - to * HEIGHT / top, HEIGHT - from * HEIGHT / top);
        let _ = write!(
            svg,
            "<rect class=\"c{colour}\" x=\"{x}\" y=\"{upper}\" width=\"{}\" height=\"{}\"/>",
            BAR - GAP,
            (lower - upper).max(1)
        );
    }
    svg + "</g>"
}

fn at(series: &Series, step: usize) -> Time {
    Minute(series.from.0 + step as i64 * series.step).begins()
}

/// A few time labels below the chart.
fn labels(series: &Series, range: Range) -> String {
    let steps = (0..LABELS).map(|label| label * (series.steps - 1) / (LABELS - 1));
    let label = |step: usize| {
        let begins = at(series, step).to_string();
        let text = if range == Range::Week { begins[5..10].to_owned() } else { begins[11..16].to_owned() };
        format!("<time datetime=\"{begins}\">{text}</time>")
    };
    steps.map(label).collect()
}

/// The next of 1, 2, 5, 10, 20, …
fn round_up(most: u64) -> u64 {
    let mut power = 1_u64;
    loop {
        for step in [1, 2, 5] {
            match power.checked_mul(step) {
                Some(rounded) if rounded >= most => return rounded,
                Some(_) => {}
                None => return most,
            }
        }
        power = power.saturating_mul(10);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn series(guards: &[(&str, u64)]) -> Series {
        let steps = |stopped: u64| {
            let mut steps = vec![Counted::default(); 60];
            steps[59] = Counted { passed: 3, stopped };
            steps
        };
        let guards: BTreeMap<String, Vec<Counted>> =
            guards.iter().map(|(name, stopped)| ((*name).to_owned(), steps(*stopped))).collect();
        Series { from: Minute(28_333_333), step: 1, steps: 60, guards }
    }

    #[test]
    fn a_bar_says_what_it_stands_for() {
        let chart = Chart::draw(&series(&[("message", 3), ("charge", 7)]), Range::Hour);
        assert!(chart.svg.contains("10 stopped (charge 7, message 3), 6 went ahead"), "{}", chart.svg);
        assert!(chart.svg.contains("class=\"c0\" x=\"591\" y=\"60\" width=\"8\" height=\"140\""), "{}", chart.svg);
        assert_eq!(chart.guards.iter().map(|guard| guard.name.as_str()).collect::<Vec<_>>(), ["charge", "message"]);
    }

    #[test]
    fn nothing_to_draw_and_far_too_many_guards_are_drawn_too() {
        assert!(Chart::draw(&series(&[]), Range::Week).svg.contains("0 duplicates stopped"));
        let names: Vec<String> = (0..40).map(|number| format!("g{number}")).collect();
        let many: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let chart = Chart::draw(&series(&many), Range::Hour);
        assert!(chart.guards.iter().all(|guard| guard.colour < COLOURS));
    }

    #[test]
    fn the_scale_ends_at_a_round_number() {
        assert_eq!([0, 1, 3, 10, 11, 201].map(round_up), [1, 1, 5, 10, 20, 500]);
        assert_eq!(round_up(u64::MAX), u64::MAX);
    }
}
