//! The store, on a real PostgreSQL.
//!
//! One program for all of these tests, which is linked once.

mod support;

mod conformance;
mod faults;
mod migrations;
mod replicas;
mod standby;
mod tls;
