//! Faults for tests: what a machine can do to a process, made on purpose. The chaos driver makes all of them while it checks the
//! servers' answers.

#[cfg(feature = "commands")]
pub mod bench;
#[cfg(feature = "faults")]
pub mod chaos;
#[cfg(feature = "faults")]
pub mod clock;
#[cfg(feature = "commands")]
pub mod demo;
#[cfg(feature = "commands")]
pub mod drill;
#[cfg(feature = "faults")]
pub mod postgres;
#[cfg(feature = "faults")]
pub mod power;
#[cfg(feature = "faults")]
mod shim;
