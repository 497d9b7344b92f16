//! Orders the nodes in each rank so that few lines cross. Each node moves towards its neighbours above and below. Then adjacent nodes
//! in a rank are swapped if that helps. The best of several rounds is kept.

use super::layers::Layered;

/// After this many rounds the search restarts from another order. The number is odd, so that every other start begins at the bottom.
const ROUNDS_PER_START: usize = 11;
const ROUNDS_MAX: usize = 24 * ROUNDS_PER_START;
/// The most nodes to visit in all rounds together. A picture too large to be read need not be the best one.
const WORK_MAX: usize = 300_000;

pub(super) fn untangle(layered: &mut Layered) {
    let rounds = (WORK_MAX / layered.nodes.len().max(1)).clamp(2, ROUNDS_MAX);
    let mut best = (usize::MAX, vec![]);
    let mut places = Places::of(layered);
    for round in 0..rounds {
        if round > 0 && round % ROUNDS_PER_START == 0 {
            layered.ranks.iter_mut().for_each(|rank| shuffle(rank, round));
            places = Places::of(layered);
        }
        sweep(layered, &mut places, round % 2 == 0);
        swap_neighbours(layered, &mut places);
        let crossings = crossings(layered, &places);
        if crossings < best.0 {
            best = (crossings, layered.ranks.clone());
        }
        if crossings == 0 {
            break;
        }
    }
    layered.ranks = best.1;
}

/// Another order; the same for each run.
fn shuffle(rank: &mut [usize], round: usize) {
    let factor = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(2 * round as u64 + 1);
    rank.sort_by_key(|node| (*node as u64 + 1).wrapping_mul(factor) >> 32);
}

/// The place of each node in its rank.
pub(super) struct Places(pub Vec<usize>);

impl Places {
    pub fn of(layered: &Layered) -> Places {
        let mut places = Places(vec![0; layered.nodes.len()]);
        layered.ranks.iter().for_each(|rank| places.note(rank));
        places
    }

    fn note(&mut self, rank: &[usize]) {
        for (place, node) in rank.iter().enumerate() {
            self.0[*node] = place;
        }
    }

    fn mean(&self, nodes: impl Iterator<Item = usize>) -> Option<f64> {
        let (sum, count) = nodes.fold((0, 0), |(sum, count), node| (sum + self.0[node], count + 1));
        (count > 0).then(|| sum as f64 / count as f64)
    }
}

/// Goes through the ranks, and puts each node below the middle of its neighbours above, or the other way round. A box that is aside
/// stays the last.
fn sweep(layered: &mut Layered, places: &mut Places, downwards: bool) {
    let count = layered.ranks.len();
    for step in 0..count {
        let number = if downwards { step } else { count - 1 - step };
        let mut rank = std::mem::take(&mut layered.ranks[number]);
        let wanted = |node: usize| {
            let mean = match downwards {
                true => places.mean(layered.nodes_above(node)),
                false => places.mean(layered.nodes_below(node)),
            };
            (layered.nodes[node].is_aside, mean.unwrap_or(places.0[node] as f64))
        };
        rank.sort_by(|a, b| {
            let (a, b) = (wanted(*a), wanted(*b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        });
        places.note(&rank);
        layered.ranks[number] = rank;
    }
}

fn swap_neighbours(layered: &mut Layered, places: &mut Places) {
    for number in 0..layered.ranks.len() {
        for place in 1..layered.ranks[number].len() {
            let (left, right) = (layered.ranks[number][place - 1], layered.ranks[number][place]);
            let may_swap = layered.nodes[left].is_aside == layered.nodes[right].is_aside;
            if may_swap && crossings_of(layered, places, right, left) < crossings_of(layered, places, left, right) {
                layered.ranks[number].swap(place - 1, place);
                (places.0[left], places.0[right]) = (place, place - 1);
            }
        }
    }
}

/// How often the lines of two nodes of a rank cross if the nodes are in this order.
fn crossings_of(layered: &Layered, places: &Places, left: usize, right: usize) -> usize {
    let is_after = |left: usize, right: usize| places.0[left] > places.0[right];
    let above =
        layered.nodes_above(left).map(|node| layered.nodes_above(right).filter(|other| is_after(node, *other)).count());
    let below =
        layered.nodes_below(left).map(|node| layered.nodes_below(right).filter(|other| is_after(node, *other)).count());
    above.chain(below).sum()
}

/// How often lines cross in total.
fn crossings(layered: &Layered, places: &Places) -> usize {
    layered.ranks.iter().map(|rank| crossings_below(layered, places, rank)).sum()
}

/// Two lines cross if the one that begins further to the left ends further to the right.
fn crossings_below(layered: &Layered, places: &Places, rank: &[usize]) -> usize {
    let (mut crossings, mut ends) = (0, vec![]);
    for node in rank {
        let mut own_ends: Vec<usize> = layered.nodes_below(*node).map(|below| places.0[below]).collect();
        own_ends.sort_unstable();
        for end in own_ends {
            let at = ends.partition_point(|other| *other <= end);
            crossings += ends.len() - at;
            ends.insert(at, end);
        }
    }
    crossings
}
