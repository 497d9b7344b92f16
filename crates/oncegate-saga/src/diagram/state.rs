//! The box of a state: its name, its count of instances, and the loop of the events that leave the state unchanged.

use super::layout::{Rect, Shape, Size};
use super::svg::{BASELINE, LINE_HEIGHT, SMALL_FONT, TIP_HALF, TIP_LENGTH, lines, text_size};
use super::text::{escaped, px, width};
use super::{Picture, Transition};
use crate::definition::Definition;

const NAME_FONT: f64 = 14.0;
const HEIGHT: f64 = 38.0;
const WIDTH_MIN: f64 = 80.0;
const PADDING: f64 = 16.0;
const RADIUS: f64 = 8.0;
/// The gap between the two borders of a terminal state.
const BORDERS: f64 = 3.5;
const UNREACHED: &str = "unreached";

const BADGE_HEIGHT: f64 = 18.0;
const BADGE_PADDING: f64 = 6.0;
const BADGE_GAP: f64 = 8.0;

/// The width of a loop, half its height, and the gap to its text.
const LOOP: f64 = 26.0;
const LOOP_HALF: f64 = 9.0;
const LOOP_GAP: f64 = 4.0;

pub(super) struct State<'a> {
    name: &'a str,
    count: Option<String>,
    is_terminal: bool,
    is_unreached: bool,
    is_here: bool,
    /// The events that are handled without a change of state.
    events: &'a [&'a str],
}

impl<'a> State<'a> {
    pub fn new(definition: &Definition, picture: &Picture, loops: &[&'a Transition<'a>], name: &'a str) -> State<'a> {
        State {
            name,
            count: picture.counts.get(name).cloned(),
            is_terminal: definition.is_terminal(name),
            is_unreached: definition.unreached.contains(name),
            is_here: picture.here.as_deref() == Some(name),
            events: loops.iter().find(|transition| transition.to == name).map_or(&[], |transition| &transition.events),
        }
    }

    pub fn shape(&self) -> Shape {
        let width = (self.line_width() + 2.0 * PADDING).max(WIDTH_MIN);
        let height = if self.is_unreached { HEIGHT + LINE_HEIGHT } else { HEIGHT };
        let beside = match self.events {
            [] => Size::default(),
            events => Size { width: LOOP + LOOP_GAP + text_size(events).width, ..text_size(events) },
        };
        Shape { size: Size { width, height }, beside, is_aside: self.is_unreached, is_dot: false }
    }

    /// The name and its badge.
    fn line_width(&self) -> f64 {
        let badge = self.count.as_ref().map_or(0.0, |count| BADGE_GAP + badge_width(count));
        bold_width(self.name, NAME_FONT) + badge
    }

    pub fn draw(&self, rect: &Rect) -> String {
        let dashed = if self.is_unreached { " unreached" } else { "" };
        let here = if self.is_here { " here" } else { "" };
        let mut svg = format!("<g class=\"state{dashed}{here}\" data-state=\"{}\">\n", escaped(self.name));
        svg += &border(rect, 0.0, "box");
        if self.is_terminal {
            svg += &border(rect, BORDERS, "inner");
        }
        let line = if self.is_unreached { rect.centre() - LINE_HEIGHT / 2.0 } else { rect.centre() };
        svg += &self.draw_name(rect.middle(), line);
        if self.is_unreached {
            let y = rect.centre() + LINE_HEIGHT / 2.0 + BASELINE * SMALL_FONT;
            svg += &format!("<text class=\"note\" x=\"{}\" y=\"{}\">{UNREACHED}</text>\n", px(rect.middle()), px(y));
        }
        if !self.events.is_empty() {
            svg += &self.draw_loop(rect.x + rect.width, rect.centre());
        }
        svg + "</g>\n"
    }

    /// Draws the name and the badge after it, around a point.
    fn draw_name(&self, middle: f64, centre: f64) -> String {
        let (left, right) = (middle - self.line_width() / 2.0, middle + self.line_width() / 2.0);
        let (x, y) = (left + bold_width(self.name, NAME_FONT) / 2.0, centre + BASELINE * NAME_FONT);
        let name = format!("<text class=\"name\" x=\"{}\" y=\"{}\">{}</text>\n", px(x), px(y), escaped(self.name));
        let Some(count) = &self.count else { return name };
        let (left, half) = (right - badge_width(count), BADGE_HEIGHT / 2.0);
        name + &format!(
            "<rect class=\"badge\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{}\"/>\n\
             <text class=\"count\" x=\"{}\" y=\"{}\">{}</text>\n",
            px(left),
            px(centre - half),
            px(right - left),
            px(BADGE_HEIGHT),
            px(half),
            px((left + right) / 2.0),
            px(centre + BASELINE * SMALL_FONT),
            escaped(count),
        )
    }

    fn draw_loop(&self, x: f64, centre: f64) -> String {
        let (top, bottom) = (px(centre - LOOP_HALF), px(centre + LOOP_HALF));
        let (border, out, back) = (px(x), px(x + LOOP), px(x + TIP_LENGTH - 1.0));
        format!(
            "<path class=\"line\" d=\"M{border} {top}C{out} {top} {out} {bottom} {back} {bottom}\"/>\n\
             <path class=\"tip\" d=\"M{border} {bottom}l{} {}v{}z\"/>\n{}",
            px(TIP_LENGTH),
            px(-TIP_HALF),
            px(2.0 * TIP_HALF),
            lines(self.events, x + LOOP + LOOP_GAP, centre),
        )
    }
}

fn border(rect: &Rect, inset: f64, class: &str) -> String {
    format!(
        "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{}\"/>\n",
        px(rect.x + inset),
        px(rect.y + inset),
        px(rect.width - 2.0 * inset),
        px(rect.height - 2.0 * inset),
        px(RADIUS - inset),
    )
}

fn badge_width(count: &str) -> f64 {
    bold_width(count, SMALL_FONT) + 2.0 * BADGE_PADDING
}

/// Names and counts are bold, which makes them wider.
fn bold_width(text: &str, font_size: f64) -> f64 {
    1.12 * width(text, font_size)
}
