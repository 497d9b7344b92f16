//! The store, on a real PostgreSQL.
//!
//! One program for all of these tests, which is linked once.

mod support;

mod clock;
mod conformance;
mod failover;
mod faults;
mod lost_commits;
mod migrations;
mod places;
mod replicas;
mod standby;
mod tls;
