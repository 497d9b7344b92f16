//! `oncegate`: the server and the command line.

mod actions;
mod api;
mod audit;
mod auth;
mod bench;
mod channels;
mod child;
mod cli;
mod client_stream;
mod config;
mod connection;
mod crash;
mod dashboard;
mod decisions;
mod demo;
mod drill;
mod events;
mod jobs;
mod keys;
mod late;
mod log;
mod loopback;
mod messages;
mod metrics_listener;
mod observe;
mod outgoing;
mod problem;
mod reminders;
mod routes;
mod sagas;
mod secret_file;
mod sends;
mod serve;
mod task;
mod tenants;
mod tls;
mod trace;
mod transports;

use std::process::ExitCode;

/// Requests are allocated on one thread and freed on another, for which the system's allocator takes a lock.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::run()
}
