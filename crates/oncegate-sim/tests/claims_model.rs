//! The model checker on the claims kernel: its promises hold, and they break when
//! a safeguard is removed.

mod checked;

use oncegate_core::Lost;
use oncegate_sim::claims::properties::{
    HELD_EFFECT_STARTS_ONCE, ONE_LIVE_OWNER, ONE_OUTCOME, STALE_WRITES_CHANGE_NOTHING, TOKENS_GROW,
};
use oncegate_sim::claims::{Bounds, ClaimModel, Fault};

const BOUNDS: Bounds = Bounds { ticks: 4, steps_back: 1, mishaps: 2, releases: 1 };

fn model(lost: Lost, fault: Option<Fault>) -> ClaimModel {
    ClaimModel { workers: 3, lost, fault, bounds: BOUNDS }
}

fn assert_sound(lost: Lost) {
    checked::assert_sound(&format!("{lost:?}"), model(lost, None));
}

fn assert_breaks(lost: Lost, fault: Fault, broken: &[&'static str]) {
    checked::assert_breaks(&format!("{lost:?}, {fault:?}"), model(lost, Some(fault)), broken);
}

#[test]
fn every_promise_holds_in_every_world_where_lost_claims_are_taken_over() {
    assert_sound(Lost::TakeOver);
}

#[test]
fn every_promise_holds_in_every_world_where_lost_claims_are_held() {
    assert_sound(Lost::Hold);
}

#[test]
fn without_the_fence_the_checker_finds_two_owners_and_stale_writes() {
    assert_breaks(Lost::TakeOver, Fault::Unfenced, &[ONE_LIVE_OWNER, STALE_WRITES_CHANGE_NOTHING]);
}

#[test]
fn without_the_fence_the_checker_finds_an_at_most_once_effect_started_twice() {
    assert_breaks(Lost::Hold, Fault::Unfenced, &[HELD_EFFECT_STARTS_ONCE, STALE_WRITES_CHANGE_NOTHING]);
}

#[test]
fn without_the_token_floor_the_checker_finds_a_token_given_twice() {
    assert_breaks(Lost::TakeOver, Fault::FloorForgotten, &[TOKENS_GROW]);
}

#[test]
fn with_a_sweeper_that_ignores_windows_the_checker_finds_a_lost_outcome() {
    assert_breaks(Lost::TakeOver, Fault::SweptTooSoon, &[ONE_OUTCOME]);
}
