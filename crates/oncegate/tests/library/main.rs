//! The library, on each store.
//!
//! One program for all of these tests, which is linked once.

mod support;

mod actions;
mod actions_people;
mod actions_recurring;
mod examples;
mod layer;
mod layer_requests;
mod reminders;
mod reminders_grace;
mod reminders_work;
mod run;
mod run_faults;
mod sagas;
mod sends;
mod sends_settled;
mod sends_tended;
