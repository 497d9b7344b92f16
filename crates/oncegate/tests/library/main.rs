//! Tests of the library, on each store.
//!
//! All of them are one program, so that the linker runs once.

mod support;

mod actions;
mod actions_people;
mod actions_recurring;
mod examples;
mod messages;
mod reminders;
mod reminders_grace;
mod reminders_work;
mod run;
mod run_faults;
mod sagas;
mod sends;
mod sends_settled;
mod sends_tended;
mod tower;
mod tower_requests;
mod worker;
