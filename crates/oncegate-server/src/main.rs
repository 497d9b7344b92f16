//! `oncegate`: the server and the command line.

mod api;
mod auth;
mod bench;
mod cli;
mod config;
mod log;
mod observe;
mod problem;
mod rate;
mod serve;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
