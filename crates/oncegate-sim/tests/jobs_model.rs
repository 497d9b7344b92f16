//! The model checker on the queue: its promises hold, and they break when a safeguard is removed.

mod checked;

use oncegate_core::job::Delivery;
use oncegate_sim::jobs::{AT_MOST_ONCE, Bounds, Fault, JobModel, NOT_CALLED_FAILED};

const BOUNDS: Bounds = Bounds { ticks: 6, mishaps: 3, tries: 3 };

fn model(delivery: Delivery, fault: Option<Fault>) -> JobModel {
    JobModel { workers: 3, delivery, fault, bounds: BOUNDS }
}

fn assert_sound(delivery: Delivery) {
    checked::assert_sound(&format!("{delivery:?}"), model(delivery, None));
}

fn assert_breaks(delivery: Delivery, fault: Fault, broken: &[&'static str]) {
    checked::assert_breaks(&format!("{delivery:?}, {fault:?}"), model(delivery, Some(fault)), broken);
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
