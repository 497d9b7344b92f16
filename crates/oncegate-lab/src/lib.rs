//! Faults for tests: what a machine can do to a process, made on purpose. The chaos driver makes all of them while it checks the
//! servers' answers.

#[cfg(feature = "commands")]
pub mod bench;
pub mod chaos;
pub mod clock;
#[cfg(feature = "commands")]
pub mod demo;
#[cfg(feature = "commands")]
pub mod drill;
pub mod postgres;
pub mod power;
mod shim;
