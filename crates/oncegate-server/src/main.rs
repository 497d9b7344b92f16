//! `oncegate`: the server and the command line.

mod cli;
mod router;
mod serve;

use std::process::ExitCode;

/// Requests are allocated on one thread and freed on another, for which the system's allocator takes a lock.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::run()
}
