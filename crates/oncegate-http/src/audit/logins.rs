//! Failed logins, counted together: a flood of them makes one line a minute for each source, and every failure is counted.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use oncegate::{Time, WorkspaceName};

/// The minimum time between two lines of one source.
const LINE_EVERY: Duration = Duration::from_secs(60);
/// The number of sources that are counted separately. All further sources are counted together.
const SOURCES_MAX: usize = 100;
const OTHERS: &str = "other addresses";

/// The workspace and the source whose failed logins are counted together.
type Group = (WorkspaceName, String);

#[derive(Default)]
pub struct FailedLogins(Mutex<HashMap<Group, Counted>>);

#[derive(Default)]
struct Counted {
    /// Failures since the last line.
    times: u64,
    /// The key id that the last failed login named, if a key with that id exists.
    key: Option<String>,
    line_at: Option<Time>,
}

/// What one line reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    pub workspace: WorkspaceName,
    pub source: String,
    pub key: Option<String>,
    pub times: u64,
}

impl FailedLogins {
    pub fn count(&self, workspace: WorkspaceName, address: Option<IpAddr>, key: Option<String>) {
        metrics::counter!("oncegate_failed_logins_total").increment(1);
        self.add(Failed { workspace, source: source(address), key, times: 1 });
    }

    /// Adds the failures of a line that could not be written back to the count.
    pub fn give_back(&self, failed: Failed) {
        self.add(failed);
    }

    fn add(&self, Failed { workspace, source, key, times }: Failed) {
        let mut counted = self.lock();
        let mut group = (workspace, source);
        if counted.len() >= SOURCES_MAX && !counted.contains_key(&group) {
            group.1 = OTHERS.into();
        }
        let entry = counted.entry(group).or_default();
        entry.times += times;
        entry.key = key.or(entry.key.take());
    }

    /// The lines to write now. A source without new failures is removed.
    pub fn due(&self, now: Time, all: bool) -> Vec<Failed> {
        let mut counted = self.lock();
        let is_soon = |line: &Counted| line.line_at.is_some_and(|at| now < at + LINE_EVERY);
        let mut due = vec![];
        counted.retain(|(workspace, source), group| {
            if group.times > 0 && (all || !is_soon(group)) {
                let (times, key) = (std::mem::take(&mut group.times), group.key.take());
                due.push(Failed { workspace: workspace.clone(), source: source.clone(), key, times });
                group.line_at = Some(now);
            }
            is_soon(group) || group.times > 0
        });
        due
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Group, Counted>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

/// An IPv6 address counts with its /64 network, because one owner has all addresses of that network.
fn source(address: Option<IpAddr>) -> String {
    match address {
        None => "unknown address".into(),
        Some(IpAddr::V4(address)) => address.to_string(),
        Some(IpAddr::V6(address)) if address.is_loopback() => address.to_string(),
        Some(IpAddr::V6(address)) => {
            let network = u128::from(address) >> 64 << 64;
            format!("{}/64", Ipv6Addr::from(network))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_micros(1) + Duration::from_secs(seconds)
    }

    fn of(due: &[Failed]) -> Vec<(&str, u64)> {
        let mut due: Vec<_> = due.iter().map(|failed| (failed.source.as_str(), failed.times)).collect();
        due.sort_unstable();
        due
    }

    #[test]
    fn the_first_is_told_at_once_and_a_flood_once_a_minute_with_its_count() {
        let logins = FailedLogins::default();
        let fail = |source: &str| {
            logins.add(Failed {
                workspace: WorkspaceName::default_workspace(),
                source: source.into(),
                key: None,
                times: 1,
            });
        };
        fail("a");
        assert_eq!(of(&logins.due(at(0), false)), [("a", 1)]);
        (0..1_000).for_each(|_| fail("a"));
        fail("b");
        assert_eq!(of(&logins.due(at(1), false)), [("b", 1)]);
        assert_eq!(of(&logins.due(at(59), false)), []);
        assert_eq!(of(&logins.due(at(60), false)), [("a", 1_000)]);
        fail("a");
        assert_eq!(of(&logins.due(at(61), true)), [("a", 1)], "the server stops");
        logins.due(at(200), false);
        assert!(logins.lock().is_empty(), "what is over is forgotten");
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let of = |address: &str| source(Some(address.parse().unwrap()));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_eq!(of("2001:db8:1:2::1"), "2001:db8:1:2::/64");
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!((of("192.0.2.1").as_str(), of("::1").as_str()), ("192.0.2.1", "::1"));
    }

    #[test]
    fn any_number_of_sources_is_counted_in_bounded_memory() {
        let logins = FailedLogins::default();
        for address in 0..SOURCES_MAX + 500 {
            let address = IpAddr::from([10, 0, (address / 256) as u8, (address % 256) as u8]);
            logins.count(WorkspaceName::default_workspace(), Some(address), None);
        }
        assert_eq!(logins.lock().len(), SOURCES_MAX + 1);
        let due = logins.due(at(0), false);
        assert_eq!(due.iter().map(|failed| failed.times).sum::<u64>(), SOURCES_MAX as u64 + 500);
        assert!(of(&due).contains(&(OTHERS, 500)));
        due.into_iter().for_each(|failed| logins.give_back(failed));
        let again = logins.due(at(1), true);
        assert_eq!(again.iter().map(|failed| failed.times).sum::<u64>(), SOURCES_MAX as u64 + 500);
    }
}
