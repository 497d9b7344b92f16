//! The position of everything in a picture. No two boxes or labels overlap, and no line crosses one: boxes and labels are in ranks, and
//! lines pass straight down between them.

use super::layers::{LABEL_GAP, Layered, Node};
use super::order::untangle;
use super::place::{Ports, axes, ports};

const MARGIN: f64 = 20.0;
/// The gap between two ranks grows with the distance that a line has to go sideways.
const RANK_GAP: f64 = 12.0;
const RANK_GAP_MAX: f64 = 64.0;
const SLOPE: f64 = 0.2;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size {
    pub width: f64,
    pub height: f64,
}

/// A box to be placed.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub size: Size,
    /// Additional room to its right.
    pub beside: Size,
    /// The box is to the right of all others.
    pub is_aside: bool,
    /// All arrows touch the box at one point.
    pub is_dot: bool,
}

/// An arrow from a box to another one.
#[derive(Clone, Debug)]
pub(super) struct Arrow {
    pub from: usize,
    pub to: usize,
    pub label: Size,
}

pub(super) struct Layout {
    pub size: Size,
    /// In the order of the shapes.
    pub boxes: Vec<Rect>,
    /// In the order of the arrows.
    pub routes: Vec<Route>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Rect {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

impl Rect {
    /// The middle between left and right.
    pub fn middle(&self) -> f64 {
        self.x + self.width / 2.0
    }

    /// The middle between top and bottom.
    pub fn centre(&self) -> f64 {
        self.y + self.height / 2.0
    }
}

pub(super) struct Route {
    /// The runs from top to bottom, connected by curves.
    pub runs: Vec<Run>,
    pub label: Rect,
    /// The arrow's tip is at the upper end.
    pub is_upwards: bool,
}

/// A straight vertical piece of a line.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub x: f64,
    pub top: f64,
    pub bottom: f64,
}

pub(super) fn lay_out(shapes: &[Shape], arrows: &[Arrow]) -> Layout {
    let mut layered = Layered::new(shapes, arrows);
    untangle(&mut layered);
    let ports = ports(&layered);
    let axes = axes(&layered, &ports);
    let left = layered.nodes.iter().zip(&axes).map(|(node, axis)| axis - node.left).fold(f64::INFINITY, f64::min);
    let axes: Vec<f64> = axes.iter().map(|axis| axis - left + MARGIN).collect();
    let right = layered.nodes.iter().zip(&axes).map(|(node, axis)| axis + node.right).fold(0.0, f64::max);
    let bands = bands(&layered, &ports, &axes);
    let bottom = bands.last().map_or(0.0, |band| band.bottom);
    let placed = Placed { layered: &layered, ports: &ports, axes: &axes, bands: &bands, shapes };
    Layout {
        size: Size { width: right + MARGIN, height: bottom + MARGIN },
        boxes: (0..shapes.len()).map(|number| placed.rect(number)).collect(),
        routes: (0..arrows.len()).map(|number| placed.route(number, &arrows[number])).collect(),
    }
}

/// The vertical range of a rank.
struct Band {
    top: f64,
    bottom: f64,
}

impl Band {
    fn middle(&self) -> f64 {
        (self.top + self.bottom) / 2.0
    }
}

fn bands(layered: &Layered, ports: &[Ports], axes: &[f64]) -> Vec<Band> {
    let aside = |link: &usize| {
        let (ends, ports) = (&layered.links[*link], ports[*link]);
        (axes[ends.upper] + ports.upper - axes[ends.lower] - ports.lower).abs()
    };
    let mut y = MARGIN;
    let mut bands = vec![];
    for (number, rank) in layered.ranks.iter().enumerate() {
        let nodes = || rank.iter().map(|node| &layered.nodes[*node]);
        let furthest = nodes().flat_map(|node| &node.links_above).map(aside).fold(0.0, f64::max);
        let top = if number == 0 { y } else { y + (RANK_GAP + SLOPE * furthest).min(RANK_GAP_MAX) };
        y = top + nodes().map(|node| node.height).fold(0.0, f64::max);
        bands.push(Band { top, bottom: y });
    }
    bands
}

struct Placed<'a> {
    layered: &'a Layered,
    ports: &'a [Ports],
    axes: &'a [f64],
    bands: &'a [Band],
    shapes: &'a [Shape],
}

impl Placed<'_> {
    fn rect(&self, number: usize) -> Rect {
        let (node, height) = (&self.layered.nodes[number], self.shapes[number].size.height);
        let (x, y) = (self.axes[number] - node.left, self.band(node).middle() - height / 2.0);
        Rect { x, y, width: 2.0 * node.left, height }
    }

    fn band(&self, node: &Node) -> &Band {
        &self.bands[node.rank]
    }

    fn route(&self, number: usize, arrow: &Arrow) -> Route {
        let chain = &self.layered.chains[number];
        let label = &self.layered.nodes[chain.label];
        let (x, y) = (self.axes[chain.label] + LABEL_GAP, self.band(label).middle() - arrow.label.height / 2.0);
        let starts = chain.links.clone().map(|link| self.run_below(link));
        let end = self.run_above(chain.links.end - 1);
        Route {
            runs: starts.chain([end]).collect(),
            label: Rect { x, y, width: arrow.label.width, height: arrow.label.height },
            is_upwards: chain.is_upwards,
        }
    }

    /// The run from the upper end of a link to the end of its rank.
    fn run_below(&self, link: usize) -> Run {
        let number = self.layered.links[link].upper;
        let node = &self.layered.nodes[number];
        let top = match node.is_line {
            true => self.band(node).top,
            false => self.rect(number).y + self.rect(number).height,
        };
        Run { x: self.axes[number] + self.ports[link].upper, top, bottom: self.band(node).bottom }
    }

    /// The run from the beginning of a rank to the box at the lower end of a link.
    fn run_above(&self, link: usize) -> Run {
        let number = self.layered.links[link].lower;
        let x = self.axes[number] + self.ports[link].lower;
        Run { x, top: self.band(&self.layered.nodes[number]).top, bottom: self.rect(number).y }
    }
}
