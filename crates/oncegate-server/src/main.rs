//! `oncegate`: the server and the command line.

mod actions;
mod api;
mod app;
mod audit;
mod auth;
mod bench;
mod brake;
mod channels;
mod child;
mod cli;
mod config;
mod connection;
mod crash;
mod dashboard;
mod decisions;
mod demo;
mod drill;
mod effect;
mod events;
mod failure;
mod first_key;
mod jobs;
mod json;
mod keys;
mod late;
mod log;
mod loopback;
mod messages;
mod metrics_listener;
mod observe;
mod outgoing;
mod output;
mod own_guards;
mod problem;
mod reminders;
mod router;
mod routes;
mod sagas;
mod secret_file;
mod sends;
mod serve;
mod stores;
mod task;
mod telemetry;
mod tenants;
mod tls;
mod trace;
mod trace_export;
mod transports;

use std::process::ExitCode;

/// Requests are allocated on one thread and freed on another, for which the system's allocator takes a lock.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::run()
}
