//! Boxes and arrows as layers: every arrow goes down from rank to rank, through a bend in each rank that it passes, and through its
//! label in one of them. So everything with a size is in a rank, and lines are slanted only between the ranks.

use std::ops::Range;

use super::layout::{Arrow, Shape};

/// How close to a corner an arrow may touch a box, and how close to the next arrow.
const CORNER: f64 = 14.0;
const PORT_GAP: f64 = 16.0;
/// Room for an arrowhead above and below a box.
const STUB: f64 = 12.0;
/// The gap between a line and the text of its label.
pub(super) const LABEL_GAP: f64 = 8.0;

pub(super) struct Layered {
    /// First the boxes, in their order, then labels and bends.
    pub nodes: Vec<Node>,
    pub links: Vec<Link>,
    /// The nodes of each rank, from left to right; the ranks from the top.
    pub ranks: Vec<Vec<usize>>,
    /// One for each arrow.
    pub chains: Vec<Chain>,
}

pub(super) struct Node {
    pub rank: usize,
    /// The distance from its axis to its left and right edge. The axis is the middle of a box, or the line that passes through.
    pub left: f64,
    pub right: f64,
    pub height: f64,
    pub is_line: bool,
    pub is_aside: bool,
    pub links_above: Vec<usize>,
    pub links_below: Vec<usize>,
}

/// A piece of an arrow, from a rank to the next.
pub(super) struct Link {
    pub upper: usize,
    pub lower: usize,
}

pub(super) struct Chain {
    pub links: Range<usize>,
    pub label: usize,
    /// The arrow's tip is at the upper end.
    pub is_upwards: bool,
}

impl Layered {
    pub fn new(shapes: &[Shape], arrows: &[Arrow]) -> Layered {
        let order = reading_order(shapes.len(), arrows);
        let ranks = ranks(&order, arrows);
        let nodes = shapes.iter().zip(&ranks).map(|(shape, rank)| Node::of_box(shape, *rank)).collect();
        let mut layered = Layered { nodes, links: vec![], ranks: vec![], chains: vec![] };
        let spans: Vec<Span> = arrows.iter().map(|arrow| Span::new(arrow, &ranks)).collect();
        for (span, label_rank) in spans.iter().zip(label_ranks(&spans)) {
            layered.add_chain(span, label_rank);
        }
        for (node, shape) in layered.nodes.iter_mut().zip(shapes).filter(|(_, shape)| !shape.is_dot) {
            node.widen(shape);
        }
        let last = layered.nodes.iter().map(|node| node.rank).max().unwrap_or(0);
        layered.ranks = vec![vec![]; last + 1];
        for (number, node) in layered.nodes.iter().enumerate() {
            layered.ranks[node.rank].push(number);
        }
        layered
    }

    fn add_chain(&mut self, span: &Span, label_rank: usize) {
        let first = self.links.len();
        let (mut upper, mut label) = (span.upper, span.upper);
        for rank in span.top + 1..span.bottom {
            let lower = self.nodes.len();
            if rank == label_rank {
                label = lower;
                self.nodes.push(Node::of_label(span, rank));
            } else {
                self.nodes.push(Node::of_bend(rank));
            }
            self.link(upper, lower);
            upper = lower;
        }
        self.link(upper, span.lower);
        self.chains.push(Chain { links: first..self.links.len(), label, is_upwards: span.is_upwards });
    }

    fn link(&mut self, upper: usize, lower: usize) {
        self.nodes[upper].links_below.push(self.links.len());
        self.nodes[lower].links_above.push(self.links.len());
        self.links.push(Link { upper, lower });
    }

    pub fn nodes_above(&self, node: usize) -> impl Iterator<Item = usize> {
        self.nodes[node].links_above.iter().map(|link| self.links[*link].upper)
    }

    pub fn nodes_below(&self, node: usize) -> impl Iterator<Item = usize> {
        self.nodes[node].links_below.iter().map(|link| self.links[*link].lower)
    }
}

impl Node {
    fn new(rank: usize, left: f64, right: f64, height: f64) -> Node {
        let (links_above, links_below) = (vec![], vec![]);
        Node { rank, left, right, height, is_line: true, is_aside: false, links_above, links_below }
    }

    fn of_box(shape: &Shape, rank: usize) -> Node {
        let (half, beside) = (shape.size.width / 2.0, shape.beside);
        let height = (shape.size.height + 2.0 * STUB).max(beside.height);
        let node = Node::new(rank, half, half + beside.width, height);
        Node { is_line: false, is_aside: shape.is_aside, ..node }
    }

    fn of_label(span: &Span, rank: usize) -> Node {
        let label = span.arrow.label;
        Node::new(rank, 0.0, LABEL_GAP + label.width, label.height)
    }

    fn of_bend(rank: usize) -> Node {
        Node::new(rank, 0.0, 0.0, 0.0)
    }

    /// Widens a box so that its arrows have room.
    fn widen(&mut self, shape: &Shape) {
        let ports = self.links_above.len().max(self.links_below.len());
        let half = shape.size.width.max(2.0 * CORNER + PORT_GAP * (ports as f64 - 1.0)) / 2.0;
        (self.left, self.right) = (half, half + shape.beside.width);
    }

    /// The positions where `count` arrows touch the box, from left to right, relative to its axis.
    pub fn ports(&self, count: usize) -> impl Iterator<Item = f64> {
        let gap = ((2.0 * (self.left - CORNER)) / (count.max(2) - 1) as f64).clamp(0.0, 2.0 * PORT_GAP);
        (0..count).map(move |port| (port as f64 - (count as f64 - 1.0) / 2.0) * gap)
    }
}

/// An arrow between ranks.
struct Span<'a> {
    arrow: &'a Arrow,
    upper: usize,
    lower: usize,
    top: usize,
    bottom: usize,
    is_upwards: bool,
}

impl Span<'_> {
    fn new<'a>(arrow: &'a Arrow, ranks: &[usize]) -> Span<'a> {
        let is_upwards = ranks[arrow.from] > ranks[arrow.to];
        let (upper, lower) = if is_upwards { (arrow.to, arrow.from) } else { (arrow.from, arrow.to) };
        Span { arrow, upper, lower, top: ranks[upper], bottom: ranks[lower], is_upwards }
    }
}

/// The order of the boxes when one follows the arrows from the first box on. Arrows back in this order go upwards.
fn reading_order(boxes: usize, arrows: &[Arrow]) -> Vec<usize> {
    let mut targets = vec![vec![]; boxes];
    for arrow in arrows {
        targets[arrow.from].push(arrow.to);
    }
    let mut is_seen = vec![false; boxes];
    let mut order = vec![];
    for root in 0..boxes {
        let mut path = vec![];
        if !std::mem::replace(&mut is_seen[root], true) {
            path.push((root, targets[root].iter()));
        }
        while let Some((number, to_follow)) = path.last_mut() {
            match to_follow.next() {
                Some(target) if is_seen[*target] => {}
                Some(target) => {
                    is_seen[*target] = true;
                    path.push((*target, targets[*target].iter()));
                }
                None => {
                    order.push(*number);
                    path.pop();
                }
            }
        }
    }
    order.reverse();
    order
}

/// A box is below all boxes that lead to it in reading order. Boxes have the even ranks, so that a rank for labels is in between.
fn ranks(order: &[usize], arrows: &[Arrow]) -> Vec<usize> {
    let mut place = vec![0; order.len()];
    for (position, number) in order.iter().enumerate() {
        place[*number] = position;
    }
    let mut lower_ends = vec![vec![]; order.len()];
    for Arrow { from, to, .. } in arrows {
        let (upper, lower) = if place[*from] < place[*to] { (*from, *to) } else { (*to, *from) };
        lower_ends[upper].push(lower);
    }
    let mut ranks = vec![0; order.len()];
    for upper in order {
        for lower in &lower_ends[*upper] {
            ranks[*lower] = ranks[*lower].max(ranks[*upper] + 2);
        }
    }
    ranks
}

/// The rank of each label. A short arrow has only one choice. A long arrow takes the rank with the most room.
fn label_ranks(spans: &[Span]) -> Vec<usize> {
    let mut by_length: Vec<usize> = (0..spans.len()).collect();
    by_length.sort_by_key(|number| spans[*number].bottom - spans[*number].top);
    let bottom = spans.iter().map(|span| span.bottom).max().unwrap_or(0);
    let (mut taken, mut label_ranks) = (vec![0.0; bottom], vec![0; spans.len()]);
    for number in by_length {
        let span = &spans[number];
        let between = (span.top + 1..span.bottom).step_by(2);
        let rank = between.min_by(|a, b| f64::total_cmp(&taken[*a], &taken[*b])).expect("boxes are two ranks apart");
        taken[rank] += span.arrow.label.width;
        label_ranks[number] = rank;
    }
    label_ranks
}
