//! The model checker on schedule, lease and finish: the promises hold, and they break when a safeguard is removed.

mod checked;

use oncegate_sim::slots::{Bounds, Fault, LAST_IS_DELIVERED_LAST, ONE_AT_A_TIME, SlotModel};

const BOUNDS: Bounds = Bounds { ticks: 3, mishaps: 1, schedules: 2 };

fn model(fault: Option<Fault>) -> SlotModel {
    SlotModel { schedulers: 2, workers: 2, fault, bounds: BOUNDS }
}

fn assert_breaks(fault: Fault, property: &'static str) {
    checked::assert_breaks(&format!("{fault:?}"), model(Some(fault)), &[property]);
}

#[test]
fn no_update_is_lost_in_any_order_of_schedule_lease_and_finish() {
    checked::assert_sound("slots", model(None));
}

#[test]
fn an_update_written_to_an_action_that_has_started_is_lost() {
    assert_breaks(Fault::Unconditional, LAST_IS_DELIVERED_LAST);
}

#[test]
fn an_update_written_to_an_action_that_was_given_back_is_overtaken_by_an_older_one() {
    assert_breaks(Fault::StartForgotten, LAST_IS_DELIVERED_LAST);
}

#[test]
fn without_lanes_two_actions_of_one_entity_run_at_once() {
    assert_breaks(Fault::NoLanes, ONE_AT_A_TIME);
}
