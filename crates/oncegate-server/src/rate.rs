//! A workspace's rate: a bucket that fills at the configured rate and holds one second's worth.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Instant;

use oncegate::WorkspaceName;

use crate::problem::{Kind, Problem};

/// Buckets kept. Past it those that are full again, which say nothing, are dropped; and if none is, newcomers share one.
const BUCKETS_MAX: usize = 10_000;

pub struct Rates {
    /// Requests per second; 0 is off.
    per_second: u64,
    /// By workspace; under none, the one that newcomers share when there are too many.
    buckets: Mutex<HashMap<Option<WorkspaceName>, Bucket>>,
}

struct Bucket {
    left: f64,
    at: Instant,
}

impl Rates {
    pub fn new(per_second: u64) -> Self {
        Rates { per_second, buckets: Mutex::default() }
    }

    /// Takes one request's worth, or says when there will be one.
    pub fn take(&self, workspace: &WorkspaceName) -> Result<(), Problem> {
        // Without a limit nobody looks at the clock for it.
        if self.per_second == 0 { Ok(()) } else { self.take_at(workspace, Instant::now()) }
    }

    fn take_at(&self, workspace: &WorkspaceName, now: Instant) -> Result<(), Problem> {
        self.with_bucket(workspace, now, |bucket, full| {
            if bucket.left < 1.0 {
                let seconds = ((1.0 - bucket.left) / full).ceil();
                return Err(Kind::RateLimited
                    .because(format!("the workspace may make {} requests per second", self.per_second))
                    .retry_after(seconds as u64));
            }
            bucket.left -= 1.0;
            Ok(())
        })
        .unwrap_or(Ok(()))
    }

    /// What a batch costs beyond the one request that was let through: the next ones pay for it.
    pub fn owe(&self, workspace: &WorkspaceName, cost: usize, now: Instant) {
        self.with_bucket(workspace, now, |bucket, _| bucket.left -= cost as f64);
    }

    /// Nothing where there is no limit.
    fn with_bucket<T>(
        &self,
        workspace: &WorkspaceName,
        now: Instant,
        spend: impl FnOnce(&mut Bucket, f64) -> T,
    ) -> Option<T> {
        if self.per_second == 0 {
            return None;
        }
        let full = self.per_second as f64;
        let mut buckets = self.buckets.lock().expect("no holder of this lock panics");
        let refilled = |bucket: &Bucket| bucket.left + now.duration_since(bucket.at).as_secs_f64() * full;
        let mut name = Some(workspace.clone());
        if buckets.len() >= BUCKETS_MAX && !buckets.contains_key(&name) {
            buckets.retain(|_, bucket| refilled(bucket) < full);
            name = name.filter(|_| buckets.len() < BUCKETS_MAX);
        }
        let bucket = buckets.entry(name).or_insert(Bucket { left: full, at: now });
        bucket.left = refilled(bucket).min(full);
        bucket.at = now;
        Some(spend(bucket, full))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_workspace_over_its_rate_is_told_when_to_come_back_and_others_are_not_touched() {
        let rates = Rates::new(2);
        let (busy, calm) = (WorkspaceName::new("busy").unwrap(), WorkspaceName::new("calm").unwrap());
        let start = Instant::now();
        assert!(rates.take_at(&busy, start).is_ok());
        assert!(rates.take_at(&busy, start).is_ok());
        let refused = rates.take_at(&busy, start).unwrap_err();
        assert_eq!((refused.kind, refused.retry_after_seconds), (Kind::RateLimited, Some(1)));
        assert!(rates.take_at(&calm, start).is_ok());
        assert!(rates.take_at(&busy, start + Duration::from_millis(500)).is_ok());
        assert!(rates.take_at(&busy, start + Duration::from_secs(2)).is_ok());
        rates.owe(&busy, 9, start + Duration::from_secs(2));
        assert!(rates.take_at(&busy, start + Duration::from_secs(5)).is_err(), "what a batch borrowed is paid back");
        let off = Rates::new(0);
        off.owe(&busy, 1_000_000, start);
        assert!(off.take_at(&busy, start).is_ok());
    }

    #[test]
    fn of_too_many_workspaces_the_newcomers_share_one_rate_and_the_others_keep_theirs() {
        let rates = Rates::new(2);
        let start = Instant::now();
        let workspace = |number: usize| WorkspaceName::new(&format!("w{number}")).unwrap();
        assert!((0..BUCKETS_MAX).all(|number| rates.take_at(&workspace(number), start).is_ok()));
        let newcomers = BUCKETS_MAX..BUCKETS_MAX + 3;
        let taken: Vec<_> = newcomers.map(|number| rates.take_at(&workspace(number), start).is_ok()).collect();
        assert_eq!(taken, [true, true, false]);
        assert!(rates.take_at(&workspace(0), start).is_ok(), "one that was there has its own");
        assert!(rates.take_at(&workspace(BUCKETS_MAX), start + Duration::from_secs(1)).is_ok(), "room again");
        assert!(rates.buckets.lock().unwrap().len() <= 3);
    }
}
