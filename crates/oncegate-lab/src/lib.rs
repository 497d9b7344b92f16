//! Faults for tests: what a machine can do to a process, made on purpose. The chaos driver makes all of them while it checks the
//! servers' answers.

pub mod chaos;
pub mod clock;
pub mod postgres;
pub mod power;
mod shim;
