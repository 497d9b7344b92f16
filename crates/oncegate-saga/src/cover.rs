//! The paths through a definition: which states can be reached, and where a scheduled event can arrive.

use std::collections::BTreeSet;

use crate::definition::{Cell, Definition, NONE, Plan};

/// One path that a row can take.
pub(crate) struct Way<'a> {
    pub to: &'a str,
    pub schedules: BTreeSet<&'a str>,
    pub unschedules: BTreeSet<&'a str>,
}

impl Definition {
    /// All the paths of a row, from a state.
    pub(crate) fn ways<'a>(&'a self, row: &'a Plan, from: &'a str) -> Vec<Way<'a>> {
        let mut ways = vec![];
        if let Some(otherwise) = row.require.as_ref().and_then(|required| required.otherwise.as_deref()) {
            ways.push(self.way(from, otherwise, &[]));
        }
        for branch in &row.branches {
            let to = branch.to.as_deref().or(row.to.as_deref()).unwrap_or(from);
            ways.push(self.way(from, to, &[row, branch]));
        }
        // If no condition holds, the row applies alone.
        if row.branches.last().is_none_or(|last| last.condition.is_some()) {
            ways.push(self.way(from, row.to.as_deref().unwrap_or(from), &[row]));
        }
        ways
    }

    fn way<'a>(&'a self, from: &str, to: &'a str, plans: &[&'a Plan]) -> Way<'a> {
        let mut plans = plans.to_vec();
        plans.extend(self.enter.get(to).filter(|_| from != to));
        let (mut schedules, mut unschedules) = (BTreeSet::new(), BTreeSet::new());
        // In the order in which they happen, because the last one counts.
        for plan in plans {
            for name in &plan.unschedule {
                schedules.remove(name.as_str());
                unschedules.insert(name.as_str());
            }
            schedules.extend(plan.schedule.iter().map(|scheduled| scheduled.event.as_str()));
        }
        Way { to, schedules, unschedules }
    }

    /// Every path out of a state.
    fn ways_out<'a>(&'a self, state: &'a str) -> Vec<Way<'a>> {
        let rows = self.table.get(state).into_iter().flatten().filter_map(|(_, cell)| match cell {
            Cell::Handled(row) => Some(*row),
            Cell::Ignored | Cell::Unexpected => None,
        });
        rows.flat_map(|row| self.ways(&self.rows[row], state)).collect()
    }

    /// The states that an instance can reach, also from the states in which an earlier version may have left one.
    pub(crate) fn reachable(&self) -> BTreeSet<&str> {
        let starts = std::iter::once(NONE).chain(self.unreached.iter().map(String::as_str));
        self.spread(starts.collect(), |_| true)
    }

    /// The states in which a scheduled event can arrive. In a terminal state it is no longer awaited.
    pub(crate) fn arrivals(&self, event: &str) -> BTreeSet<&str> {
        let states = std::iter::once(NONE).chain(self.states.iter().map(String::as_str));
        let scheduling = states.flat_map(|state| self.ways_out(state)).filter(|way| way.schedules.contains(event));
        let starts = scheduling.map(|way| way.to).collect();
        let mut arrivals = self.spread(starts, |way| !way.unschedules.contains(event));
        arrivals.retain(|state| !self.is_terminal(state));
        arrivals
    }

    /// All states that can be reached from some states, on the permitted paths.
    fn spread<'a>(&'a self, starts: BTreeSet<&'a str>, may_go: impl Fn(&Way<'a>) -> bool) -> BTreeSet<&'a str> {
        let mut reached = starts.clone();
        let mut to_visit: Vec<&str> = starts.into_iter().collect();
        while let Some(state) = to_visit.pop() {
            for way in self.ways_out(state).into_iter().filter(&may_go) {
                if reached.insert(way.to) {
                    to_visit.push(way.to);
                }
            }
        }
        reached
    }
}
