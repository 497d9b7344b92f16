//! The model checker on the queue: its promises hold, and they break when a safeguard is removed.

use std::collections::BTreeSet;
use std::time::Instant;

use oncegate_core::job::Delivery;
use oncegate_sim::jobs::{AT_MOST_ONCE, Bounds, Fault, JobModel, NOT_CALLED_FAILED};
use stateright::{Checker, HasDiscoveries, Model};

const BOUNDS: Bounds = Bounds { ticks: 6, mishaps: 3, tries: 3 };

fn model(delivery: Delivery, fault: Option<Fault>) -> JobModel {
    JobModel { workers: 3, delivery, fault, bounds: BOUNDS }
}

/// Checks every world within the bounds.
fn assert_sound(delivery: Delivery) {
    let began = Instant::now();
    let checker =
        model(delivery, None).checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let (worlds, steps) = (checker.unique_state_count(), checker.state_count());
    println!("{delivery:?}: {worlds} distinct worlds, {steps} steps, no violation; {:.1?}", began.elapsed());
    checker.assert_properties();
}

fn assert_breaks(delivery: Delivery, fault: Fault, broken: &[&'static str]) {
    let wanted = BTreeSet::from_iter(broken.iter().copied());
    let checker = model(delivery, Some(fault)).checker().finish_when(HasDiscoveries::AllOf(wanted)).spawn_bfs().join();
    for property in broken {
        let path = checker.assert_any_discovery(property);
        println!("{delivery:?}, {fault:?}: not so: {property}: {:?}", path.into_actions());
    }
}

#[test]
fn every_promise_holds_in_every_world_of_a_job_that_happens_at_most_once() {
    assert_sound(Delivery::AtMostOnce);
}

#[test]
fn every_promise_holds_in_every_world_of_a_job_that_happens_at_least_once() {
    assert_sound(Delivery::AtLeastOnce);
}

#[test]
fn without_the_fence_the_checker_finds_an_effect_that_happens_twice() {
    assert_breaks(Delivery::AtMostOnce, Fault::Unfenced, &[AT_MOST_ONCE]);
}

#[test]
fn if_lost_workers_are_taken_for_idle_ones_the_checker_finds_an_effect_twice_and_one_called_failed() {
    assert_breaks(Delivery::AtMostOnce, Fault::LossForgiven, &[AT_MOST_ONCE, NOT_CALLED_FAILED]);
}
