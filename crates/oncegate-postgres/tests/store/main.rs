//! The store, on a real PostgreSQL.
//!
//! All of these tests are one program, so that it is linked only once.

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
