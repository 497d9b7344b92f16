//! What each process of Oncegate has: failures with exit codes, output for people and programs, child processes, and the named
//! points at which a test ends or delays it.

pub mod child;
pub mod crash;
pub mod failure;
pub mod loopback;
pub mod output;
pub mod secret_file;
