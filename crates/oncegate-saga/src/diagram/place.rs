//! Horizontal positions of the nodes: as close to their neighbours above and below as the order in their rank allows.
//!
//! First all nodes are pulled as if by springs, which balances the picture. Then lines are straightened, and boxes hardly move.

use super::layers::{Chain, Layered, Link, Node};
use super::order::Places;

/// The gap between two neighbours in a rank. Smaller between lines, larger next to a box that is aside.
const GAP: f64 = 28.0;
const LINE_GAP: f64 = 18.0;
const ASIDE_GAP: f64 = 72.0;

/// The numbers of rounds after which no movement is visible.
const BALANCING: usize = 80;
const STRAIGHTENING: usize = 4;
/// A kink this small only looks like a mistake.
const KINK: f64 = 16.0;

/// The positions where a link begins and ends, relative to the axes of its nodes.
#[derive(Clone, Copy, Default)]
pub(super) struct Ports {
    pub upper: f64,
    pub lower: f64,
}

/// The axes of all nodes.
pub(super) fn axes(layered: &Layered, ports: &[Ports]) -> Vec<f64> {
    let mut ground = Ground::new(layered, ports);
    for _ in 0..BALANCING {
        let downwards = 0..layered.ranks.len();
        downwards.clone().chain(downwards.rev()).for_each(|rank| ground.balance(rank));
    }
    for _ in 0..STRAIGHTENING {
        layered.ranks.iter().flatten().for_each(|node| ground.nudge(*node));
        layered.chains.iter().for_each(|chain| ground.straighten(chain));
    }
    ground.axes
}

/// Arrows touch a box in the order of their origins, so that they do not cross in front of it.
pub(super) fn ports(layered: &Layered) -> Vec<Ports> {
    let places = Places::of(layered);
    let mut ports = vec![Ports::default(); layered.links.len()];
    for node in layered.nodes.iter().filter(|node| !node.is_line) {
        let mut above = node.links_above.clone();
        above.sort_by_key(|link| places.0[layered.links[*link].upper]);
        above.iter().zip(node.ports(above.len())).for_each(|(link, port)| ports[*link].lower = port);
        let mut below = node.links_below.clone();
        below.sort_by_key(|link| places.0[layered.links[*link].lower]);
        below.iter().zip(node.ports(below.len())).for_each(|(link, port)| ports[*link].upper = port);
    }
    ports
}

struct Ground<'a> {
    layered: &'a Layered,
    ports: &'a [Ports],
    /// For each node, the smallest distance from its axis to the first of its rank, and its left and right neighbours.
    offsets: Vec<f64>,
    neighbours: Vec<(Option<usize>, Option<usize>)>,
    axes: Vec<f64>,
}

impl<'a> Ground<'a> {
    /// Places all nodes as close together as allowed, each rank around the same middle.
    fn new(layered: &'a Layered, ports: &'a [Ports]) -> Ground<'a> {
        let count = layered.nodes.len();
        let (mut offsets, mut neighbours, mut axes) = (vec![0.0; count], vec![(None, None); count], vec![0.0; count]);
        for rank in &layered.ranks {
            for pair in rank.windows(2) {
                let (left, right) = (pair[0], pair[1]);
                offsets[right] = offsets[left] + distance(&layered.nodes[left], &layered.nodes[right]);
                neighbours[left].1 = Some(right);
                neighbours[right].0 = Some(left);
            }
            let middle = rank.last().map_or(0.0, |last| offsets[*last] / 2.0);
            rank.iter().for_each(|node| axes[*node] = offsets[*node] - middle);
        }
        Ground { layered, ports, offsets, neighbours, axes }
    }

    /// Moves the nodes of a rank to where they are pulled, as far as their order allows. Nodes that would come too close become a
    /// block, which moves as a whole.
    fn balance(&mut self, rank: usize) {
        let mut blocks: Vec<Block> = vec![];
        for node in &self.layered.ranks[rank] {
            let mut block = Block { nodes: vec![*node], ..self.pull(*node) };
            while let Some(before) = blocks.pop_if(|before| before.start() > block.start()) {
                block = before.joined_by(block);
            }
            blocks.push(block);
        }
        for block in blocks {
            block.nodes.iter().for_each(|node| self.axes[*node] = block.start() + self.offsets[*node]);
        }
    }

    /// How the neighbours above and below pull the node.
    fn pull(&self, node: usize) -> Block {
        let Node { links_above, links_below, .. } = &self.layered.nodes[node];
        let above = links_above.iter().map(|link| (*link, self.upper_end(*link) - self.ports[*link].lower));
        let below = links_below.iter().map(|link| (*link, self.lower_end(*link) - self.ports[*link].upper));
        // A node that nothing pulls stays, unless others need the room.
        let stay = (self.axes[node], 0.01);
        let pulls = above.chain(below).map(|(link, to)| (to, self.weight(link))).chain([stay]);
        let (sum, weight) = pulls.fold((0.0, 0.0), |(sum, all), (to, weight)| (sum + to * weight, all + weight));
        Block { nodes: vec![], sum: sum - self.offsets[node] * weight, weight }
    }

    /// A line with a bend is worse than a slanted line in front of a box.
    fn weight(&self, link: usize) -> f64 {
        let Link { upper, lower } = self.layered.links[link];
        if self.layered.nodes[upper].is_line && self.layered.nodes[lower].is_line { 8.0 } else { 2.0 }
    }

    fn upper_end(&self, link: usize) -> f64 {
        self.axes[self.layered.links[link].upper] + self.ports[link].upper
    }

    fn lower_end(&self, link: usize) -> f64 {
        self.axes[self.layered.links[link].lower] + self.ports[link].lower
    }

    /// Moves a box a little if that avoids a kink in a line that comes almost straight from above.
    fn nudge(&mut self, node: usize) {
        let links = self.layered.nodes[node].links_above.iter();
        let kinks = links.map(|link| self.upper_end(*link) - self.lower_end(*link));
        let Some(kink) = kinks.min_by(|a, b| a.abs().total_cmp(&b.abs())) else { return };
        let axis = self.axes[node] + kink;
        if !self.layered.nodes[node].is_line && kink.abs() <= KINK && self.room(node).holds(axis) {
            self.axes[node] = axis;
        }
    }

    /// Lets an arrow run straight down as far as there is room between its neighbours. After that it may bend.
    fn straighten(&mut self, chain: &Chain) {
        let (first, last) = (chain.links.start, chain.links.end - 1);
        let (mut run, mut room): (Vec<usize>, Room) = (vec![], Room::ALL);
        let mut wish = Some(self.upper_end(first));
        for node in (first..last).map(|link| self.layered.links[link].lower) {
            let narrowed = room.within(self.room(node));
            if narrowed.is_empty() && !run.is_empty() {
                self.align(&run, room, &[wish.take()]);
                (run, room) = (vec![], self.room(node));
            } else {
                room = narrowed;
            }
            run.push(node);
        }
        self.align(&run, room, &[wish, Some(self.lower_end(last))]);
    }

    /// Puts nodes below each other: at the first wish that fits, otherwise in their middle.
    fn align(&mut self, run: &[usize], room: Room, wishes: &[Option<f64>]) {
        let middle = run.iter().map(|node| self.axes[*node]).sum::<f64>() / run.len() as f64;
        let axis = wishes.iter().flatten().copied().find(|wish| room.holds(*wish));
        let axis = axis.unwrap_or_else(|| room.nearest(middle));
        run.iter().for_each(|node| self.axes[*node] = axis);
    }

    fn room(&self, node: usize) -> Room {
        let (left, right) = self.neighbours[node];
        let distance = |other: usize| self.offsets[node] - self.offsets[other];
        Room {
            from: left.map_or(f64::NEG_INFINITY, |left| self.axes[left] + distance(left)),
            to: right.map_or(f64::INFINITY, |right| self.axes[right] + distance(right)),
        }
    }
}

/// The smallest distance between the axes of two neighbours.
fn distance(left: &Node, right: &Node) -> f64 {
    let gap = match (left.is_aside || right.is_aside, left.is_line && right.is_line) {
        (true, _) => ASIDE_GAP,
        (false, true) => LINE_GAP,
        (false, false) => GAP,
    };
    left.right + gap + right.left
}

/// Nodes that are as close as allowed, and the pull on them.
struct Block {
    nodes: Vec<usize>,
    sum: f64,
    weight: f64,
}

impl Block {
    /// The position of the first node of the rank, if all nodes were this close together.
    fn start(&self) -> f64 {
        self.sum / self.weight
    }

    fn joined_by(mut self, other: Block) -> Block {
        self.nodes.extend(other.nodes);
        Block { nodes: self.nodes, sum: self.sum + other.sum, weight: self.weight + other.weight }
    }
}

#[derive(Clone, Copy)]
struct Room {
    from: f64,
    to: f64,
}

impl Room {
    const ALL: Room = Room { from: f64::NEG_INFINITY, to: f64::INFINITY };

    fn within(self, other: Room) -> Room {
        Room { from: self.from.max(other.from), to: self.to.min(other.to) }
    }

    fn is_empty(self) -> bool {
        self.from > self.to
    }

    fn holds(self, axis: f64) -> bool {
        self.from <= axis && axis <= self.to
    }

    fn nearest(self, axis: f64) -> f64 {
        axis.min(self.to).max(self.from)
    }
}
