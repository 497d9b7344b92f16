//! Shares the free slots fairly between workspaces: many jobs of one workspace do not delay another workspace's jobs.

use std::collections::BTreeMap;

use crate::names::WorkspaceName;
use crate::time::Time;

/// A workspace takes another slot only while it has fewer slots than this many times the free ones. Some slots therefore
/// always stay free for the next workspace.
const OF_WHAT_IS_LEFT: usize = 3;

/// A workspace with jobs that are due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// The workspace that owns these jobs.
    pub workspace: WorkspaceName,
    /// When the first of these jobs needed a worker.
    pub since: Time,
}

/// At most this many jobs of this workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The workspace to lease jobs from.
    pub workspace: WorkspaceName,
    /// The most jobs to lease.
    pub jobs: usize,
}

/// Shares at most `max` of the `free` slots between the workspaces with due jobs. `taken` says how many slots each workspace
/// already has. The workspace with the fewest slots comes first; among equals, the one that has waited longest.
pub fn share(mut due: Vec<Due>, taken: &BTreeMap<WorkspaceName, usize>, free: usize, max: usize) -> Vec<Share> {
    let taken = |workspace: &WorkspaceName| taken.get(workspace).copied().unwrap_or(0);
    due.sort_by_key(|due| (taken(&due.workspace), due.since));
    let (mut left, mut more) = (free, max.min(free));
    let mut shares = vec![];
    for (place, Due { workspace, .. }) in due.iter().enumerate() {
        let has = taken(workspace);
        // A workspace without a slot may take the last one.
        let may_take =
            ((OF_WHAT_IS_LEFT * left).saturating_sub(has) / (OF_WHAT_IS_LEFT + 1)).max(usize::from(has == 0));
        let jobs = more.div_ceil(due.len() - place).min(may_take).min(more);
        if jobs > 0 {
            shares.push(Share { workspace: workspace.clone(), jobs });
            (left, more) = (left - jobs, more - jobs);
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> WorkspaceName {
        WorkspaceName::new(name).expect("a good name")
    }

    fn shares(due: &[(&str, i64)], taken: &[(&str, usize)], free: usize) -> Vec<(String, usize)> {
        let due = due.iter().map(|(of, since)| Due { workspace: name(of), since: Time::from_micros(*since) }).collect();
        let taken = taken.iter().map(|(of, taken)| (name(of), *taken)).collect();
        let shares = share(due, &taken, free, free);
        shares.into_iter().map(|Share { workspace, jobs }| (workspace.to_string(), jobs)).collect()
    }

    #[test]
    fn a_quarter_is_left_for_whoever_comes_next() {
        assert_eq!(shares(&[("a", 1)], &[], 16), [("a".to_owned(), 12)]);
        assert_eq!(shares(&[("a", 1)], &[("a", 12)], 4), []);
        assert_eq!(shares(&[("a", 1)], &[("a", 11)], 5), [("a".to_owned(), 1)]);
        assert_eq!(shares(&[("a", 1), ("b", 9)], &[("a", 12)], 4), [("b".to_owned(), 2)]);
        assert_eq!(shares(&[("a", 1)], &[], 1), [("a".to_owned(), 1)], "who has one slot uses it");
        assert_eq!(shares(&[("a", 1)], &[], 2), [("a".to_owned(), 1)]);
        assert_eq!(shares(&[("a", 1)], &[("a", 1)], 1), []);
        assert_eq!(shares(&[("a", 1)], &[], 3), [("a".to_owned(), 2)]);
        assert_eq!(shares(&[("a", 1)], &[("b", 15)], 1), [("a".to_owned(), 1)], "nor is the last one kept for nobody");
    }

    #[test]
    fn what_is_free_is_shared_evenly_and_begins_with_whoever_has_least() {
        assert_eq!(shares(&[("a", 1), ("b", 2)], &[], 16), [("a".to_owned(), 8), ("b".to_owned(), 6)]);
        assert_eq!(shares(&[("a", 1), ("b", 2)], &[("a", 1)], 3), [("b".to_owned(), 2)]);
        let many = [("a", 5), ("b", 4), ("c", 3)];
        assert_eq!(shares(&many, &[], 2), [("c".to_owned(), 1), ("b".to_owned(), 1)], "the longest wait first");
    }
}
