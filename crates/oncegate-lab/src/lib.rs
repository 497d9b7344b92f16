//! Faults for tests: what a machine can do to a process, made on purpose; and the chaos driver, which makes them all while it checks what the
//! servers answer.

pub mod chaos;
pub mod clock;
pub mod power;
mod shim;
