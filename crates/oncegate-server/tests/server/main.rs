//! The real binary, over HTTP, on the command line and in a browser.
//!
//! One program for all of these tests, which is linked once.

mod support;

mod access;
mod actions;
mod actions_crash;
mod actions_hooks;
mod actions_recurring;
mod actions_workers;
mod bad_input;
mod claims_api;
mod claims_batch;
mod claims_guards;
mod claims_seen;
mod claims_waiting;
mod cli;
mod dashboard_browser;
mod dashboard_counts;
mod dashboard_kept;
mod dashboard_pages;
mod dashboard_sessions;
mod decisions;
mod demo;
mod disk;
mod drill;
mod kill;
mod leaving_clients;
mod left_out;
mod lifecycle;
mod messages;
mod messages_apart;
mod messages_crash;
mod messages_failures;
mod messages_keys;
mod messages_queue;
mod messages_seen;
mod reminders;
mod reminders_crash;
mod reminders_people;
mod sagas;
mod sagas_amqp;
mod sagas_crash;
mod sagas_example;
mod sagas_nats;
mod sagas_two_servers;
mod sends;
mod sends_crash;
mod sends_settled;
mod slow_clients;
mod store_away;
mod tail;
mod traces;
mod two_servers;
mod wall_clock;
