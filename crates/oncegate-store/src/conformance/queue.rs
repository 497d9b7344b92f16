//! The rules for the queue: due jobs are leased fairly, and one job of a group (`lane`) at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use oncegate_core::job::{self, Command, Decision, Delivery, Job, Reached, Tries, decide};
use oncegate_core::{Time, Token, WorkspaceName};
use uuid::Uuid;

use super::books::record;
use super::{LEASE, START, World, workspace};
use crate::{Change, JobFilter, JobListing, KindFilter, Waiters, Wanted, Whose};

const MILLI: Duration = Duration::from_millis(1);

pub(super) fn job(number: u128, due_at: Time) -> Job {
    let tries = Tries { max: 3, pause: MILLI, pause_max: Duration::from_secs(5) };
    let new = Job::new(&workspace("default"), Uuid::from_u128(number), "send", Bytes::from_static(b"{}"), tries, START);
    Job { due_at, delivery: Delivery::AtMostOnce, ..new }
}

fn send(max: usize) -> Wanted {
    Wanted::new(["send"], LEASE, Whose::One { workspace: workspace("default"), max })
}

impl World {
    pub(super) async fn lease(&self, max: usize) -> (Vec<Job>, Option<Time>) {
        let leased = self.store.lease_jobs(&send(max)).await.expect("the store is there").value;
        (leased.jobs, leased.next_at)
    }

    async fn enqueue(&self, job: Job) -> Job {
        assert!(self.change(vec![Change::Enqueue(job.clone())]).await.is_written());
        job
    }

    async fn lease_from(&self, free: usize, taken: &[(&str, usize)]) -> Vec<u128> {
        let taken = taken.iter().map(|(name, taken)| (workspace(name), *taken)).collect();
        let wanted = Wanted::new(["send"], LEASE, Whose::All { free, max: free, taken });
        let leased = self.store.lease_jobs(&wanted).await.expect("the store is there").value;
        leased.jobs.iter().map(|job| job.id.as_u128()).collect()
    }
}

/// A job is leased at its due time and not a millisecond earlier. When its lease ends, another worker can lease it.
pub async fn a_job_keeps_every_field_and_is_leased_when_due_to_the_millisecond(world: World) {
    let later = Job {
        due_at: START + LEASE,
        tried: 1,
        token: Token(4),
        delivery: Delivery::AtLeastOnce,
        reached: Reached::Maybe,
        error: Some("refused".into()),
        payload: Bytes::from_static(b"\x00 any bytes"),
        ..job(1, START)
    };
    assert!(world.change(vec![Change::Enqueue(later.clone())]).await.is_written());
    assert_eq!(world.change(vec![Change::Enqueue(later.clone())]).await.conflict, Some(0), "it is there");
    world.clock.set(START + LEASE.saturating_sub(MILLI));
    assert_eq!(world.lease(10).await, (vec![], Some(START + LEASE)));
    world.clock.set(START + LEASE);
    let expected = Job {
        state: job::State::Running,
        started: true,
        token: Token(5),
        tried: 2,
        begun: true,
        version: 2,
        lease_until: START + LEASE + LEASE,
        ..later
    };
    assert_eq!(world.lease(10).await, (vec![expected.clone()], Some(START + LEASE + LEASE)));
    assert_eq!(world.lease(10).await, (vec![], Some(START + LEASE + LEASE)), "it has a worker");
    let others = world.store.lease_jobs(&Wanted::new(["other"], LEASE, send(10).whose)).await.expect("answers").value;
    assert!(others.jobs.is_empty() && others.next_at.is_none(), "jobs of another kind are for others");
    world.clock.set(START + LEASE + LEASE);
    let (again, _) = world.lease(10).await;
    assert_eq!(
        (again[0].token, again[0].version, again[0].error.as_deref()),
        (Token(6), 3, Some("its worker was lost"))
    );
}

/// The worker gets the jobs that were due first, up to its maximum, and learns when the next job needs a worker.
pub async fn the_longest_overdue_are_leased_first_and_no_more_than_asked_for(world: World) {
    for (number, seconds) in [(1, 30), (2, 10), (3, 20), (4, 40)] {
        let due_at = START + Duration::from_secs(seconds);
        assert!(world.change(vec![Change::Enqueue(job(number, due_at))]).await.is_written());
    }
    world.clock.set(START + Duration::from_secs(35));
    let (jobs, next_at) = world.lease(2).await;
    assert_eq!(jobs.iter().map(|job| job.id.as_u128()).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(next_at, Some(START + Duration::from_secs(30)), "the next is due already");
    let (jobs, next_at) = world.lease(2).await;
    assert_eq!((jobs.len(), next_at), (1, Some(START + Duration::from_secs(40))), "before any lease ends");
}

/// A change of a job outside its lease, or from an old version, is a conflict and undoes its commit.
pub async fn a_worker_paused_past_its_lease_changes_nothing(world: World) {
    let leased = async |number: u128| {
        assert!(world.change(vec![Change::Enqueue(job(number, START))]).await.is_written());
        world.lease(1).await.0.remove(0)
    };
    let requeue = |job: &Job| Change::Requeue {
        job: Job { state: job::State::Pending, version: job.version + 1, due_at: START + LEASE * 9, ..job.clone() },
        stands_until: job.stands_until(),
    };
    let (first, second, third) = (leased(1).await, leased(2).await, leased(3).await);
    world.clock.set(START + LEASE.saturating_sub(MILLI));
    let stale = Job { version: 1, ..second.clone() };
    assert_eq!(world.change(vec![Change::Dequeue(stale)]).await.conflict, Some(0), "not the version that it is");
    assert!(world.change(vec![requeue(&first), Change::Dequeue(second)]).await.is_written());
    world.clock.set(START + LEASE);
    let late_born = Job { state: job::State::Running, lease_until: START + LEASE, begun: true, ..job(8, START) };
    let committed = world.change(vec![Change::Enqueue(late_born.clone())]).await;
    assert_eq!(committed.conflict, Some(0), "born when its lease was over");
    let in_time = Job { lease_until: START + LEASE * 3, ..late_born };
    assert!(
        world.change(vec![Change::Enqueue(in_time.clone()), Change::Dequeue(third.clone())]).await.conflict == Some(1)
    );
    assert!(world.change(vec![Change::Enqueue(in_time)]).await.is_written());
    let late = record(9, "{}");
    for change in [requeue(&third), Change::Dequeue(third.clone())] {
        let committed = world.change(vec![Change::create(late.clone()), change]).await;
        assert_eq!(committed.conflict, Some(1), "its lease is over");
    }
    assert_eq!(world.find(late.place()).await, None);
    let (again, next_at) = world.lease(10).await;
    assert_eq!((again.len(), again[0].id, next_at), (1, third.id, Some(START + LEASE * 2)));
    assert_eq!(world.change(vec![Change::Dequeue(third)]).await.conflict, Some(0), "another has it");
}

/// Workers lease from one queue at the same time. They get every job, and each job once.
pub async fn no_two_workers_lease_the_same_job(world: World) {
    for number in 0..300 {
        assert!(world.change(vec![Change::Enqueue(job(number, START))]).await.is_written());
    }
    let work = |store: std::sync::Arc<dyn crate::MainStore>| async move {
        let mut mine = vec![];
        loop {
            let leased = store.lease_jobs(&send(7)).await.expect("answers").value;
            // Other workers may hold all jobs at this moment. The loop ends when every job has a worker.
            if leased.jobs.is_empty() && leased.next_at.is_none_or(|next| next > START) {
                return mine;
            }
            mine.extend(leased.jobs.iter().map(|job| job.id));
        }
    };
    let workers: Vec<_> = (0..8).map(|_| tokio::spawn(work(world.store.clone()))).collect();
    let mut all: Vec<Uuid> =
        join_all(workers).await.into_iter().flat_map(|mine| mine.expect("does not panic")).collect();
    assert_eq!(all.len(), 300);
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 300, "each once");
}

/// Many jobs of one workspace leave free slots for the jobs of another workspace.
pub async fn one_workspaces_jobs_do_not_hold_up_anothers(world: World) {
    for number in 0..40 {
        world.enqueue(job(number, START)).await;
    }
    let other = workspace("other");
    world.enqueue(Job { workspace: other.clone(), ..job(100, START + MILLI) }).await;
    world.enqueue(Job { workspace: other.clone(), kind: "call".into(), ..job(101, START + MILLI) }).await;
    world.clock.set(START + LEASE);
    assert_eq!(world.lease_from(8, &[("other", 1)]).await.len(), 5, "half of what is free, and the other's one");
    assert_eq!(world.lease_from(4, &[("default", 12)]).await, [0; 0], "a quarter is left for others");
    world.enqueue(Job { workspace: other.clone(), ..job(102, START + MILLI) }).await;
    assert_eq!(world.lease_from(4, &[("default", 12)]).await, [102]);
    // Several kinds of one workspace share its slots.
    let kinds = ["call", "send", "send"];
    let wanted = Wanted::new(kinds, LEASE, Whose::All { free: 2, max: 2, taken: BTreeMap::new() });
    let leased = world.store.lease_jobs(&wanted).await.expect("the store is there").value;
    let of = |name: &WorkspaceName| leased.jobs.iter().filter(|job| job.workspace == *name).count();
    assert_eq!((of(&workspace("default")), of(&other)), (1, 1));
    assert_eq!(leased.next_at, Some(START), "there is more");
    let only = Wanted::new(kinds, LEASE, Whose::One { workspace: other, max: 9 });
    let of_other = world.store.lease_jobs(&only).await.expect("the store is there").value;
    assert_eq!(
        (of_other.jobs.len(), of_other.next_at),
        (0, Some(START + LEASE + LEASE)),
        "its own leases, and no more"
    );
}

/// A job that has started holds its group, also while it waits for a retry. The next job is woken when it leaves the queue.
pub async fn one_job_in_a_lane_is_at_work_at_a_time(world: World) {
    let in_lane = |number: u128| Job {
        lane: Some("a lane".into()),
        delivery: Delivery::AtLeastOnce,
        ..job(number, START + MILLI * u32::try_from(number).expect("small"))
    };
    let lease =
        async || world.lease(10).await.0.into_iter().map(|job| (job.id.as_u128(), job)).collect::<BTreeMap<_, _>>();
    for number in [3, 1, 2] {
        world.enqueue(in_lane(number)).await;
    }
    world.enqueue(Job { lane: Some("another lane".into()), ..in_lane(4) }).await;
    world.enqueue(Job { workspace: workspace("other"), ..in_lane(5) }).await;
    world.clock.set(START + Duration::from_secs(1));
    let leased = lease().await;
    assert_eq!(leased.keys().copied().collect::<Vec<_>>(), [1, 4], "the first in each lane");
    assert_eq!(lease().await.len(), 0);
    // A job whose try failed still holds its group, so a later job does not overtake it.
    let first = &leased[&1];
    let failure = job::Failure { error: "no".into(), reached: Reached::No, is_final: false, retry_in: None };
    let failed = decide(first, &Command::Fail { token: first.token, failure }, START + Duration::from_secs(1));
    let Decision::Keep(failed) = failed else { panic!("{failed:?}") };
    let requeue = Change::Requeue { job: failed.clone(), stands_until: first.stands_until() };
    assert!(world.change(vec![requeue]).await.is_written());
    world.clock.set(START + Duration::from_secs(1) + LEASE.saturating_sub(MILLI));
    let leased = lease().await;
    assert_eq!(leased.keys().copied().collect::<Vec<_>>(), [1], "again");
    // A waiting job is woken when the job before it leaves the queue, one at a time.
    let waiters = std::sync::Arc::new(Waiters::default());
    let listener = waiters.jobs.listen(vec!["send".into()]);
    world.store.attach(waiters);
    assert!(world.change(vec![Change::Dequeue(leased[&1].clone())]).await.is_written());
    let _ = tokio::time::timeout(Duration::from_secs(5), listener.heard()).await.expect("rings");
    let leased = lease().await;
    assert_eq!(leased.keys().copied().collect::<Vec<_>>(), [2]);
    assert_eq!(world.find_job(3).await.expect("is there").wakes_at(), START + Duration::from_secs(1) + LEASE);
    // A waiting job is also leased when its postponement ends, because the worker of its group may be lost.
    world.clock.set(START + Duration::from_secs(9) + LEASE * 3);
    let leased = lease().await;
    assert_eq!(leased.keys().copied().collect::<Vec<_>>(), [2, 4], "their workers are gone");
    assert!(world.change(vec![Change::Dequeue(leased[&2].clone())]).await.is_written());
    assert_eq!(lease().await.keys().copied().collect::<Vec<_>>(), [3]);
}

/// Workers lease jobs of a few groups at the same time. No group ever has two running jobs, and every job is done once.
pub async fn of_many_workers_two_never_have_the_same_lane(world: World) {
    const LANES: u128 = 5;
    for number in 0..100 {
        let lane = Some(format!("lane {}", number % LANES));
        world.enqueue(Job { lane, delivery: Delivery::AtLeastOnce, ..job(number, START) }).await;
    }
    let at_work = std::sync::Arc::new(std::sync::Mutex::new(BTreeMap::<String, u128>::new()));
    let done = std::sync::Arc::new(std::sync::Mutex::new(Vec::<u128>::new()));
    let work = |store: std::sync::Arc<dyn crate::MainStore>| {
        let (at_work, done) = (at_work.clone(), done.clone());
        async move {
            while done.lock().expect("not poisoned").len() < 100 {
                // The in-memory store never awaits, so this lets the other tasks run.
                tokio::task::yield_now().await;
                for job in store.lease_jobs(&send(3)).await.expect("answers").value.jobs {
                    let (lane, id) = (job.lane.clone().expect("has one"), job.id.as_u128());
                    let before = at_work.lock().expect("not poisoned").insert(lane.clone(), id);
                    assert_eq!(before, None, "{id} is at work in {lane}");
                    tokio::task::yield_now().await;
                    at_work.lock().expect("not poisoned").remove(&lane);
                    let committed =
                        store.commit(crate::Commit { ops: vec![], changes: vec![Change::Dequeue(job)] }).await;
                    assert!(committed.expect("answers").is_written());
                    done.lock().expect("not poisoned").push(id);
                }
            }
        }
    };
    let workers: Vec<_> = (0..6).map(|_| tokio::spawn(work(world.store.clone()))).collect();
    let all = tokio::time::timeout(Duration::from_secs(60), join_all(workers)).await.expect("nobody is forgotten");
    all.into_iter().for_each(|worker| worker.expect("does not panic"));
    let mut done = done.lock().expect("not poisoned").clone();
    done.sort_unstable();
    assert_eq!(done, (0..100).collect::<Vec<_>>(), "each once");
}

/// A job is found by its workspace and id. Listings filter by kind, group and state, and continue at a cursor.
pub async fn jobs_are_found_and_listed_newest_first(world: World) {
    let lane = |number: u128| Some(format!("{}:lane", number % 3));
    for number in 1..=9 {
        world.enqueue(Job { lane: lane(number), ..job(number, START + MILLI) }).await;
    }
    world.enqueue(Job { kind: "sell".into(), tried: 1, ..job(10, START) }).await;
    world.enqueue(Job { kind: "call".into(), ..job(11, START) }).await;
    world.enqueue(Job { workspace: workspace("other"), ..job(12, START) }).await;
    assert_eq!(world.find_job(3).await, Some(Job { lane: lane(3), ..job(3, START + MILLI) }));
    assert_eq!(world.find_job(12).await, None, "another workspace's");
    let listing = |kind: KindFilter| JobListing {
        workspace: workspace("default"),
        kind,
        lane_prefix: None,
        state: None,
        limit: 3,
        before: None,
    };
    let list = async |listing: JobListing| -> Vec<u128> {
        let jobs = world.store.list_jobs(listing).await.expect("the store is there");
        jobs.iter().map(|job| job.id.as_u128()).collect()
    };
    let begins = listing(KindFilter::BeginsWith("se"));
    assert_eq!(list(begins.clone()).await, [10, 9, 8]);
    assert_eq!(list(JobListing { before: Some(Uuid::from_u128(8)), ..begins.clone() }).await, [7, 6, 5]);
    assert_eq!(list(listing(KindFilter::Is("call".into()))).await, [11]);
    assert_eq!(list(JobListing { lane_prefix: Some("0:".into()), ..begins.clone() }).await, [9, 6, 3]);
    let state = |state| JobListing { state: Some(state), limit: 20, ..begins.clone() };
    assert_eq!(list(state(JobFilter::Failed)).await, [10]);
    assert_eq!(list(state(JobFilter::Untouched)).await.len(), 9);
    world.clock.set(START + MILLI);
    assert_eq!(world.lease(2).await.0.len(), 2);
    assert_eq!(list(state(JobFilter::Running)).await, [2, 1]);
}

/// A count equals the length of the listing with the same filters, limit and cursor.
pub async fn jobs_are_counted_as_a_listing_finds_them_and_no_further_than_its_limit(world: World) {
    for number in 1..=9 {
        world.enqueue(Job { lane: Some(format!("{}:lane", number % 3)), ..job(number, START) }).await;
    }
    world.enqueue(Job { kind: "sell".into(), tried: 1, ..job(10, START) }).await;
    world.enqueue(Job { kind: "call".into(), ..job(11, START) }).await;
    world.enqueue(Job { kind: "sf".into(), ..job(12, START) }).await;
    world.enqueue(Job { workspace: workspace("other"), ..job(13, START) }).await;
    assert_eq!(world.lease(2).await.0.len(), 2);
    let all = JobListing {
        workspace: workspace("default"),
        kind: KindFilter::BeginsWith("se"),
        lane_prefix: None,
        state: None,
        limit: 100,
        before: None,
    };
    let count = async |listing: JobListing| world.store.count_jobs(listing).await.expect("the store is there");
    assert_eq!(count(all.clone()).await, 10);
    assert_eq!(count(JobListing { limit: 4, ..all.clone() }).await, 4, "no further than that");
    assert_eq!(count(JobListing { limit: 0, ..all.clone() }).await, 0);
    let one = JobListing { kind: KindFilter::Is("send".into()), ..all.clone() };
    assert_eq!(count(one.clone()).await, 9);
    assert_eq!(count(JobListing { before: Some(Uuid::from_u128(4)), ..one.clone() }).await, 3, "those older than that");
    assert_eq!(count(JobListing { lane_prefix: Some("0:".into()), ..all.clone() }).await, 3);
    assert_eq!(count(JobListing { kind: KindFilter::Is("se".into()), ..all.clone() }).await, 0);
    for (state, expected) in [(JobFilter::Running, 2), (JobFilter::Untouched, 7), (JobFilter::Failed, 1)] {
        assert_eq!(count(JobListing { state: Some(state), ..all.clone() }).await, expected, "{state:?}");
    }
}

impl World {
    async fn find_job(&self, number: u128) -> Option<Job> {
        let id = (workspace("default"), Uuid::from_u128(number));
        self.store.find_jobs(&[id]).await.expect("the store is there").value.remove(0)
    }
}
