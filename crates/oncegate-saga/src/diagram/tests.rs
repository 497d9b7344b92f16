//! Nothing in a picture overlaps.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::layout::{Arrow, Layout, Rect, Run, Shape, Size, lay_out};
use super::text::{escaped, px};

/// The tolerance for comparing lengths, which are sums of many numbers.
const HAIR: f64 = 0.001;

fn size() -> impl Strategy<Value = Size> {
    (30.0..220.0, 1..5).prop_map(|(width, lines)| Size { width, height: 16.0 * f64::from(lines) })
}

fn shape() -> impl Strategy<Value = Shape> {
    (size(), prop::option::of(size()), prop::bool::weighted(0.2)).prop_map(|(size, beside, is_aside)| Shape {
        size,
        beside: beside.unwrap_or_default(),
        is_aside,
        is_dot: false,
    })
}

/// A dot, boxes, and at most one arrow from each to each.
fn pictures() -> impl Strategy<Value = (Vec<Shape>, Vec<Arrow>)> {
    prop::collection::vec(shape(), 1..13).prop_flat_map(|mut shapes| {
        let dot = Size { width: 14.0, height: 14.0 };
        shapes.insert(0, Shape { size: dot, beside: Size::default(), is_aside: false, is_dot: true });
        let arrow = (0..shapes.len(), 1..shapes.len(), size()).prop_map(|(from, to, label)| Arrow { from, to, label });
        let arrows = prop::collection::vec(arrow, 0..25).prop_map(|mut arrows| {
            let mut seen = BTreeSet::new();
            arrows.retain(|arrow| arrow.from != arrow.to && seen.insert((arrow.from, arrow.to)));
            arrows
        });
        (Just(shapes), arrows)
    })
}

/// Everything with a size: boxes, the room beside them, and labels.
fn things(shapes: &[Shape], layout: &Layout) -> Vec<Rect> {
    let besides = shapes.iter().zip(&layout.boxes).map(|(shape, rect)| Rect {
        x: rect.x + rect.width,
        y: rect.centre() - shape.beside.height / 2.0,
        width: shape.beside.width,
        height: shape.beside.height,
    });
    let besides = besides.filter(|beside| beside.width > 0.0);
    layout.boxes.iter().copied().chain(besides).chain(layout.routes.iter().map(|route| route.label)).collect()
}

fn overlap(a: &Rect, b: &Rect) -> bool {
    let apart = |from: f64, length: f64, other: f64, other_length: f64| {
        from + length <= other + HAIR || other + other_length <= from + HAIR
    };
    !apart(a.x, a.width, b.x, b.width) && !apart(a.y, a.height, b.y, b.height)
}

fn points(runs: &[Run]) -> Vec<(f64, f64)> {
    let along = |run: &Run| (0..=8).map(|i| (run.x, run.top + (run.bottom - run.top) * f64::from(i) / 8.0)).collect();
    let mut points: Vec<(f64, f64)> = runs.iter().flat_map(|run| -> Vec<_> { along(run) }).collect();
    for pair in runs.windows(2) {
        points.extend((0..=16).map(|i| curve(pair[0], pair[1], f64::from(i) / 16.0)));
    }
    points
}

/// A point of the curve that leads from one run to the next.
fn curve(from: Run, to: Run, t: f64) -> (f64, f64) {
    let half = (from.bottom + to.top) / 2.0;
    let bezier = |a: f64, b: f64, c: f64, d: f64| {
        let s = 1.0 - t;
        s * s * s * a + 3.0 * s * s * t * b + 3.0 * s * t * t * c + t * t * t * d
    };
    (bezier(from.x, from.x, to.x, to.x), bezier(from.bottom, half, half, to.top))
}

fn is_within((x, y): (f64, f64), rect: &Rect) -> bool {
    let inside = |at: f64, from: f64, length: f64| from + HAIR < at && at < from + length - HAIR;
    inside(x, rect.x, rect.width) && inside(y, rect.y, rect.height)
}

fn touches(x: f64, rect: &Rect) -> bool {
    rect.x <= x && x <= rect.x + rect.width
}

proptest! {
    #[test]
    fn boxes_and_labels_do_not_overlap((shapes, arrows) in pictures()) {
        let things = things(&shapes, &lay_out(&shapes, &arrows));
        for (number, thing) in things.iter().enumerate() {
            for other in &things[number + 1..] {
                prop_assert!(!overlap(thing, other), "{thing:?} and {other:?}");
            }
        }
    }

    #[test]
    fn no_line_runs_through_a_box_or_a_label((shapes, arrows) in pictures()) {
        let layout = lay_out(&shapes, &arrows);
        let things = things(&shapes, &layout);
        for point in layout.routes.iter().flat_map(|route| points(&route.runs)) {
            prop_assert!(!things.iter().any(|thing| is_within(point, thing)), "{point:?}");
        }
    }

    #[test]
    fn every_arrow_leads_from_its_box_to_its_box((shapes, arrows) in pictures()) {
        let layout = lay_out(&shapes, &arrows);
        for (arrow, route) in arrows.iter().zip(&layout.routes) {
            let (upper, lower) = if route.is_upwards { (arrow.to, arrow.from) } else { (arrow.from, arrow.to) };
            let (upper, lower) = (&layout.boxes[upper], &layout.boxes[lower]);
            let (first, last) = (route.runs[0], route.runs[route.runs.len() - 1]);
            prop_assert!(touches(first.x, upper) && (first.top - upper.y - upper.height).abs() < HAIR);
            prop_assert!(touches(last.x, lower) && (last.bottom - lower.y).abs() < HAIR);
        }
    }

    #[test]
    fn everything_is_within_the_picture((shapes, arrows) in pictures()) {
        let layout = lay_out(&shapes, &arrows);
        for thing in things(&shapes, &layout) {
            prop_assert!(thing.x >= 0.0 && thing.x + thing.width <= layout.size.width, "{thing:?}");
            prop_assert!(thing.y >= 0.0 && thing.y + thing.height <= layout.size.height, "{thing:?}");
        }
    }
}

#[test]
fn text_is_escaped_for_xml() {
    assert_eq!(escaped("a<b> & \"c\""), "a&lt;b&gt; &amp; &quot;c&quot;");
}

#[test]
fn lengths_are_short_and_never_minus_zero() {
    assert_eq!([px(1.0), px(2.345), px(-0.01)], ["1", "2.3", "0"]);
}
