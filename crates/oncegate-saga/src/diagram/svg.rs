//! The picture as SVG: no script, no external resources, and every text escaped.

use std::collections::BTreeMap;

use super::layout::{Arrow, Layout, Route, Shape, Size, lay_out};
use super::state::State;
use super::text::{escaped, px, width};
use super::{Picture, STYLE, Transition};
use crate::definition::{Definition, NONE};

pub(super) const SMALL_FONT: f64 = 12.0;
pub(super) const LINE_HEIGHT: f64 = 16.0;
/// The distance from the middle of a line of text to its baseline, as a factor of the font size.
pub(super) const BASELINE: f64 = 0.35;

pub(super) const TIP_LENGTH: f64 = 8.0;
pub(super) const TIP_HALF: f64 = 4.0;
const DOT: f64 = 14.0;

pub(super) fn draw(definition: &Definition, picture: &Picture) -> String {
    let transitions = definition.transitions();
    let (loops, moves): (Vec<_>, Vec<_>) = transitions.iter().partition(|transition| transition.is_loop());
    let states = definition.states.iter().map(|name| State::new(definition, picture, &loops, name));
    let states: Vec<State> = states.collect();
    let layout = lay_out(&shapes(&states), &arrows(definition, &moves));
    let mut svg = head(definition, &transitions, &layout, picture);
    let mut routed: Vec<_> = moves.iter().zip(&layout.routes).collect();
    // Arrows that the instance has taken are drawn last, so that they are on top.
    routed.sort_by_key(|(transition, _)| is_walked(transition, picture));
    for (transition, route) in routed {
        svg += &arrow(transition, route, picture);
    }
    let (dot, boxes) = layout.boxes.split_first().expect("the dot is the first of the shapes");
    let (x, y, radius) = (px(dot.middle()), px(dot.centre()), px(DOT / 2.0));
    svg += &format!("<circle class=\"dot\" cx=\"{x}\" cy=\"{y}\" r=\"{radius}\"/>\n");
    for (state, rect) in states.iter().zip(boxes) {
        svg += &state.draw(rect);
    }
    svg + "</svg>\n"
}

fn head(definition: &Definition, transitions: &[Transition], layout: &Layout, picture: &Picture) -> String {
    let (width, height) = (px(layout.size.width.ceil()), px(layout.size.height.ceil()));
    let step = |transition: &Transition| {
        format!("{} to {} on {}", transition.from.unwrap_or(NONE), transition.to, transition.events.join(", "))
    };
    let steps = transitions.iter().map(step).collect::<Vec<_>>().join("; ");
    let style = if picture.is_part { String::new() } else { format!("<style>\n{STYLE}</style>\n") };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"saga\" role=\"img\" \
         width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
         <title>{}</title>\n<desc>{}</desc>\n{style}\
         <rect class=\"ground\" width=\"{width}\" height=\"{height}\"/>\n",
        escaped(&format!("The saga {}", definition.name)),
        escaped(&format!("Its transitions: {steps}.")),
    )
}

/// The starting dot, then the states.
fn shapes(states: &[State]) -> Vec<Shape> {
    let dot = Size { width: DOT, height: DOT };
    let dot = Shape { size: dot, beside: Size::default(), is_aside: false, is_dot: true };
    std::iter::once(dot).chain(states.iter().map(State::shape)).collect()
}

fn arrows(definition: &Definition, moves: &[&Transition]) -> Vec<Arrow> {
    let numbers: BTreeMap<&str, usize> = definition.states.iter().map(String::as_str).zip(1..).collect();
    let arrow = |transition: &&Transition| Arrow {
        from: transition.from.map_or(0, |from| numbers[from]),
        to: numbers[transition.to],
        label: text_size(&transition.events),
    };
    moves.iter().map(arrow).collect()
}

pub(super) fn text_size(lines: &[&str]) -> Size {
    let width = lines.iter().map(|line| width(line, SMALL_FONT)).fold(0.0, f64::max);
    Size { width, height: LINE_HEIGHT * lines.len() as f64 }
}

fn is_walked(transition: &Transition, picture: &Picture) -> bool {
    picture.walked.iter().any(|(from, to)| from.as_deref() == transition.from && to == transition.to)
}

fn arrow(transition: &Transition, route: &Route, picture: &Picture) -> String {
    let walked = if is_walked(transition, picture) { " walked" } else { "" };
    let (first, last) = (route.runs[0], route.runs[route.runs.len() - 1]);
    let (tip_x, tip_y, length) = match route.is_upwards {
        true => (first.x, first.top, TIP_LENGTH),
        false => (last.x, last.bottom, -TIP_LENGTH),
    };
    // The line ends inside the tip, so that it does not stick out.
    let (start, end) = match route.is_upwards {
        true => (first.top + TIP_LENGTH - 1.0, last.bottom),
        false => (first.top, last.bottom - TIP_LENGTH + 1.0),
    };
    let mut path = format!("M{} {}", px(first.x), px(start));
    for pair in route.runs.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let (from_x, to_x, half) = (px(from.x), px(to.x), px((from.bottom + to.top) / 2.0));
        path += &format!("V{}C{from_x} {half} {to_x} {half} {to_x} {}", px(from.bottom), px(to.top));
    }
    format!(
        "<g class=\"arrow{walked}\" data-from=\"{}\" data-to=\"{}\">\n<path class=\"line\" d=\"{path}V{}\"/>\n\
         <path class=\"tip\" d=\"M{} {}l{} {}h{}z\"/>\n{}</g>\n",
        escaped(transition.from.unwrap_or(NONE)),
        escaped(transition.to),
        px(end),
        px(tip_x),
        px(tip_y),
        px(-TIP_HALF),
        px(length),
        px(2.0 * TIP_HALF),
        lines(&transition.events, route.label.x, route.label.centre()),
    )
}

/// Lines of text one below the other, centred at a height.
pub(super) fn lines(texts: &[&str], x: f64, centre: f64) -> String {
    let first = centre - LINE_HEIGHT * (texts.len() as f64 - 1.0) / 2.0 + BASELINE * SMALL_FONT;
    let line = |(number, text): (usize, &&str)| {
        let y = first + LINE_HEIGHT * number as f64;
        format!("<text class=\"event\" x=\"{}\" y=\"{}\">{}</text>\n", px(x), px(y), escaped(text))
    };
    texts.iter().enumerate().map(line).collect()
}
